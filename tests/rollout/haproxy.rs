//! Behind HAProxy, whose health checks take a process out before it closes.

use winddown::testing::process::Signal;

use crate::balancer::Haproxy;
use crate::load::{Count, Load};
use crate::place::{Place, times};
use crate::replica::Replica;

/// How a rollout went.
struct Rollout {
    restarts: u64,
    gets: Count,
    posts: Count,
    /// All that was logged.
    log: String,
    exits: Vec<Option<i32>>,
    cuts: Vec<String>,
}

#[tokio::test]
async fn a_rollout_behind_haproxy_fails_no_request() {
    assert_nothing_fails("").await;
}

#[tokio::test]
async fn a_rollout_behind_haproxy_that_reuses_every_connection_fails_no_request() {
    assert_nothing_fails("http-reuse always").await;
}

#[tokio::test]
async fn a_rollout_behind_haproxy_that_speaks_http_2_to_it_fails_no_request() {
    assert_nothing_fails("default-server proto h2").await;
}

/// What the delay is for: until its next check HAProxy goes on sending.
#[tokio::test]
async fn without_a_delay_a_rollout_behind_haproxy_fails_requests() {
    let Some(rollout) = rollout(Signal::Term, "0ms", "", 6, 0).await else { return };
    assert!(rollout.failed() > 0, "{}", rollout.told());
    assert!(rollout.exits.iter().all(|&code| code == Some(0)), "{:?}", rollout.exits);
}

/// What shows that the others can fail.
#[tokio::test]
async fn a_rollout_by_sigkill_fails_requests_and_they_are_counted() {
    let Some(rollout) = rollout(Signal::Kill, "300ms", "", 6, 0).await else { return };
    assert!(rollout.failed() > 0, "{}", rollout.told());
    assert!(rollout.exits.iter().all(|&code| code.is_none()), "{:?}", rollout.exits);
}

/// With the delay that three checks fit into.
async fn assert_nothing_fails(backend: &str) {
    let requests = times(1_500, 15_000);
    let rollout = rollout(Signal::Term, "300ms", backend, times(12, 30), requests).await;
    if let Some(rollout) = rollout {
        rollout.assert_nothing_failed(requests);
    }
}

/// Restarts three replicas in turn, at least so often and until so many requests were sent.
async fn rollout(signal: Signal, unready: &str, backend: &str, least: u64, requests: u64) -> Option<Rollout> {
    let place = Place::with(&["haproxy", "wrk", "hey", "nice"]).await?;
    let mut replicas = Vec::new();
    for host in 0..3 {
        replicas.push(Replica::start(&place, host, &["--unready", unready]).await);
    }
    let haproxy = Haproxy::start(&place, &replicas, backend).await;
    let gets = Load::get(haproxy.front, &[]).await;
    let posts = Load::post(haproxy.front, &[]).await;
    let mut restarts = 0;
    while restarts < least || haproxy.requests().await < requests {
        for (number, replica) in replicas.iter_mut().enumerate() {
            haproxy.until_requests(100).await;
            replica.end(signal).await;
            haproxy.until_requests(20).await;
            replica.again().await;
            haproxy.until_up(number).await;
            restarts += 1;
            gets.assert_runs();
            posts.assert_runs();
        }
    }
    let (gets, posts) = (gets.end().await, posts.end().await);
    let log = haproxy.log() + &replicas.iter().map(Replica::told).collect::<String>();
    let exits = replicas.iter().flat_map(|replica| &replica.exits).map(|exit| exit.code).collect();
    let cuts = replicas.iter().flat_map(Replica::cuts).collect();
    Some(Rollout { restarts, gets, posts, log, exits, cuts })
}

// === impl Rollout ===

impl Rollout {
    #[track_caller]
    fn assert_nothing_failed(&self, requests: u64) {
        let failed = self.failed();
        assert_eq!(failed, 0, "{failed} requests failed in {} restarts\n{}", self.restarts, self.told());
        assert!(self.exits.iter().all(|&code| code == Some(0)), "{:?}\n{}", self.exits, self.told());
        assert!(self.cuts.is_empty(), "{:?}\n{}", self.cuts, self.told());
        assert!(self.restarts >= 6 && self.exits.len() as u64 == self.restarts, "{} restarts", self.restarts);
        assert!(self.gets.sent + self.posts.sent >= requests, "{}", self.told());
        assert!(self.gets.sent > 0 && self.posts.sent > 0, "{}", self.told());
        println!(
            "{} restarts: 0 of {} GET and {} POST failed",
            self.restarts, self.gets.sent, self.posts.sent
        );
    }

    fn failed(&self) -> u64 {
        self.gets.failed + self.posts.failed
    }

    fn told(&self) -> String {
        format!("--- GET: {}--- POST: {}{}", self.gets.told, self.posts.told, self.log)
    }
}
