//! Load, and what it counted.

use std::net::SocketAddr;

use winddown::testing::process::{Process, Running, Signal};

use crate::replica::ORDER;

/// Longer than any rollout: each load is ended by the test, when the rollout is over.
const FOREVER: &str = "900s";

pub struct Load {
    running: Running,
    counts: fn(&str) -> Count,
}

#[derive(Debug, Default, Clone)]
pub struct Count {
    /// Requests that were answered, and those that were not.
    pub sent: u64,
    /// Answers other than 2xx, and none.
    pub failed: u64,
    /// What the program wrote.
    pub told: String,
}

// === impl Load ===

impl Load {
    /// GETs by `wrk`, which repeats none.
    pub async fn get(front: SocketAddr, headers: &[&str]) -> Load {
        let headers = headers.iter().flat_map(|&header| ["-H", header]);
        let wrk = polite("wrk")
            .args(["-t1", "-c8", "-d", FOREVER, "--timeout", "20s"])
            .args(headers)
            .arg(format!("http://{front}/orders/one"));
        Load { running: started(wrk).await, counts: wrk_counts }
    }

    /// POSTs by `hey`, which may repeat none: the order is accepted once, and then known.
    pub async fn post(front: SocketAddr, args: &[&str]) -> Load {
        let hey = polite("hey")
            .args(["-z", FOREVER, "-c", "4", "-m", "POST", "-T", "application/json", "-d", ORDER])
            .args(args)
            .arg(format!("http://{front}/orders"));
        Load { running: started(hey).await, counts: hey_counts }
    }

    pub fn assert_runs(&self) {
        assert!(!self.running.has_ended(), "the load ended by itself: {}", self.running.stdout());
    }

    /// Ends it, and has it count.
    pub async fn end(self) -> Count {
        self.assert_runs();
        self.running.signal(Signal::Int);
        let exit = self.running.wait().await;
        exit.assert_code(0);
        Count { told: exit.stdout.clone(), ..(self.counts)(&exit.stdout) }
    }
}

/// What is measured goes first where the machine is busy.
fn polite(program: &str) -> Process {
    Process::new("nice").args(["-n", "5", program])
}

async fn started(load: Process) -> Running {
    load.start().await.unwrap_or_else(|error| panic!("{error:?}"))
}

/// `1647 requests in 1.70s`, `Socket errors: connect 0, read 0, write 3, timeout 0`, `Non-2xx or 3xx responses: 1`.
fn wrk_counts(told: &str) -> Count {
    let mut count = Count::default();
    let mut unanswered = 0;
    for line in told.lines().map(str::trim) {
        if let Some((requests, _)) = line.split_once(" requests in ") {
            count.sent = number(requests);
        } else if let Some(errors) = line.strip_prefix("Socket errors: ") {
            unanswered = errors.split(", ").filter_map(|error| error.split(' ').nth(1)).map(number).sum();
        } else if let Some(answers) = line.strip_prefix("Non-2xx or 3xx responses: ") {
            count.failed = number(answers);
        }
    }
    count.sent += unanswered;
    count.failed += unanswered;
    count
}

/// Under `Status code distribution:` lines like `[200]  501 responses`, under `Error distribution:` like `[3]  EOF`.
fn hey_counts(told: &str) -> Count {
    let mut count = Count::default();
    let mut errors = false;
    for line in told.lines().map(str::trim) {
        errors |= line == "Error distribution:";
        let Some((first, rest)) = line.strip_prefix('[').and_then(|line| line.split_once("]\t")) else {
            continue;
        };
        let (requests, failed) = match rest.strip_suffix(" responses") {
            Some(answers) if !errors => (number(answers), !first.starts_with('2')),
            _ => (number(first), true),
        };
        count.sent += requests;
        count.failed += if failed { requests } else { 0 };
    }
    count
}

#[track_caller]
fn number(text: &str) -> u64 {
    text.trim().parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

#[test]
fn what_wrk_and_hey_tell_is_understood() {
    let wrk = wrk_counts(
        "  1647 requests in 1.70s, 351.39KB read\n  Socket errors: connect 1, read 2, write 3709, timeout 4\n  \
         Non-2xx or 3xx responses: 5\nRequests/sec:    967.62\n",
    );
    assert_eq!((wrk.sent, wrk.failed), (1647 + 3716, 3716 + 5));
    let hey = hey_counts(
        "  0.001 [1]\t|\n\nStatus code distribution:\n  [200]\t501 responses\n  [202]\t1 responses\n  [503]\t7 responses\n\n\
         Error distribution:\n  [2395]\tPost \"http://127.9.0.1:1/orders\": refused\n  [2]\tEOF: no responses\n",
    );
    assert_eq!((hey.sent, hey.failed), (501 + 1 + 7 + 2395 + 2, 7 + 2395 + 2));
}
