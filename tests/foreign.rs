//! The examples of servers that are not ours: real processes, real requests, a real SIGTERM. Those of tonic and actix-web are in
//! `servers`.
#![cfg(all(unix, feature = "axum", feature = "tower", feature = "test-util"))]

#[path = "foreign/rig.rs"]
mod rig;

use std::time::Duration;

use rig::within::within;
use rig::{SOON, check, stop_while_busy};

#[tokio::test]
async fn plain_axum_serve_with_the_layer_finishes_a_request_and_what_follows_from_it() {
    let (answer, exit) = stop_while_busy("axum_serve").await;
    check(&answer, &exit);
    exit.assert_line("slow: written to the log");
}

#[tokio::test]
async fn hyper_by_hand_finishes_a_request() {
    let (answer, exit) = stop_while_busy("hyper").await;
    check(&answer, &exit);
}

#[tokio::test]
async fn a_process_that_stood_still_is_not_taken_for_one_that_hangs() {
    let limit = Duration::from_millis(300);
    let other = tokio::spawn(async {
        std::thread::sleep(Duration::from_millis(900));
        tokio::time::sleep(Duration::from_millis(1)).await;
        tokio::task::yield_now().await;
    });
    within(limit, other).await.unwrap();
}

#[tokio::test(start_paused = true)]
#[should_panic(expected = "something hangs")]
async fn what_hangs_is_told_when_its_time_is_over() {
    within(SOON, std::future::pending::<()>()).await;
}
