//! Behind nginx, which has no health checks and sends what it may repeat to the next server where one fails.

use winddown::testing::process::Signal;

use crate::balancer::Nginx;
use crate::load::Load;
use crate::place::{Place, times};
use crate::replica::Replica;

#[tokio::test]
async fn a_rollout_behind_nginx_fails_no_get() {
    rollout("300ms").await;
}

/// nginx never asks whether a process is ready: the delay gives it nothing, and its absence takes nothing.
#[tokio::test]
async fn a_rollout_behind_nginx_needs_no_delay() {
    rollout("0ms").await;
}

/// Restarts two replicas in turn, six times and more.
async fn rollout(unready: &str) {
    let Some(place) = Place::with(&["nginx", "wrk", "nice"]).await else { return };
    let args = ["--unready", unready];
    let mut replicas = [Replica::start(&place, 0, &args).await, Replica::start(&place, 1, &args).await];
    let nginx = Nginx::start(&place, &replicas).await;
    let gets = Load::get(nginx.front, &[]).await;
    let mut restarts = 0;
    while restarts < times(12, 60) {
        for replica in &mut replicas {
            nginx.until_requests(200).await;
            replica.end(Signal::Term).await;
            nginx.until_requests(50).await;
            replica.again().await;
            restarts += 1;
        }
    }
    let gets = gets.end().await;
    let told = format!("{}{}", gets.told, nginx.log());
    let told = replicas.iter().fold(told, |told, replica| told + &replica.told());
    assert_eq!(gets.failed, 0, "{} requests failed in {restarts} restarts\n{told}", gets.failed);
    assert!(restarts >= 6 && gets.sent >= 250 * restarts, "{restarts} restarts\n{told}");
    for replica in &replicas {
        assert_eq!(replica.exits.len() as u64, restarts / 2);
        assert_eq!(replica.cuts(), [""; 0]);
        for exit in &replica.exits {
            exit.assert_code(0);
        }
    }
    println!("{restarts} restarts: 0 of {} GET failed", gets.sent);
}
