//! The examples of servers that are not ours: real processes, real requests, a real SIGTERM. Those of tonic and actix-web are in
//! `servers`.
#![cfg(all(unix, feature = "axum", feature = "tower", feature = "test-util"))]

#[path = "foreign/rig.rs"]
mod rig;

use rig::{check, stop_while_busy};

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
