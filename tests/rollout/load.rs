//! Load, and what it counted.

use std::net::SocketAddr;
use std::path::Path;

use winddown::testing::process::{Process, Running, Signal};

use crate::replica::ORDER;

/// Longer than any rollout: each load is ended by the test, when the rollout is over.
const FOREVER: &str = "900s";

pub struct Load {
    running: Running,
    counts: Box<dyn Fn(&str) -> Count>,
}

#[derive(Debug, Default, Clone)]
pub struct Count {
    /// Requests that were answered, and those that were not.
    pub sent: u64,
    /// Answers other than 2xx, and none.
    pub failed: u64,
    /// Of these, as far as the program tells, answers 503: orders that are to be placed again.
    pub refused: u64,
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
        Load { running: started(wrk).await, counts: Box::new(wrk_counts) }
    }

    /// POSTs by `hey`, which may repeat none: the order is accepted once, and then known.
    pub async fn post(front: SocketAddr, args: &[&str]) -> Load {
        let hey = polite("hey")
            .args(["-z", FOREVER, "-c", "4", "-m", "POST", "-T", "application/json", "-d", ORDER])
            .args(args)
            .arg(format!("http://{front}/orders"));
        Load { running: started(hey).await, counts: Box::new(hey_counts) }
    }

    /// GETs by `h2load` over HTTP/2, ten at a time on each of four connections.
    ///
    /// It ends with them: it opens no others.
    pub async fn streams(front: SocketAddr, log: &Path) -> Load {
        let h2load = polite("h2load")
            .args(["-p", "h2c", "-c", "4", "-m", "10", "-n", "1000000"])
            .arg(format!("--log-file={}", log.display()))
            .arg(format!("http://{front}/orders/one"));
        let log = log.to_owned();
        let counts =
            move |told: &str| h2load_counts(told, &std::fs::read_to_string(&log).unwrap_or_default());
        Load { running: started(h2load).await, counts: Box::new(counts) }
    }

    pub fn assert_runs(&self) {
        assert!(!self.running.has_ended(), "the load ended by itself: {}", self.running.stdout());
    }

    /// Ends it, and has it count.
    pub async fn end(self) -> Count {
        self.assert_runs();
        self.running.signal(Signal::Int);
        self.count().await
    }

    /// Has it count once it has ended.
    pub async fn count(self) -> Count {
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
        count.refused += if first == "503" && !errors { requests } else { 0 };
        count.failed += if failed { requests } else { 0 };
    }
    count
}

/// `requests: 1000000 total, 1384 started, 1344 done, …`, and for each stream that ended a line with its start, status, and
/// time.
///
/// A stream that went down with its connection is started and never done. One of status -1 with the start 0 was never sent:
/// the client had it ready when the GOAWAY came, and that says where not to send it. Those that were not even started count
/// as failed there, and for nothing here.
fn h2load_counts(told: &str, log: &str) -> Count {
    let mut count = Count::default();
    if let Some(requests) = told.lines().find_map(|line| line.strip_prefix("requests: ")) {
        let of = |name: &str| requests.split(", ").find_map(|part| part.strip_suffix(name)).map_or(0, number);
        count.sent = of(" started");
        count.failed = count.sent - of(" done");
    }
    let streams = log.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    count.failed += streams.filter(|stream| !stream[1].starts_with('2') && stream[0] != "0").count() as u64;
    count
}

#[track_caller]
fn number(text: &str) -> u64 {
    text.trim().parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

#[test]
fn what_the_loads_tell_is_understood() {
    let wrk = wrk_counts(
        "  1647 requests in 1.70s, 351.39KB read\n  Socket errors: connect 1, read 2, write 3709, timeout 4\n  \
         Non-2xx or 3xx responses: 5\nRequests/sec:    967.62\n",
    );
    assert_eq!((wrk.sent, wrk.failed), (1647 + 3716, 3716 + 5));
    let hey = hey_counts(
        "  0.001 [1]\t|\n\nStatus code distribution:\n  [200]\t501 responses\n  [202]\t1 responses\n  [503]\t7 responses\n\n\
         Error distribution:\n  [2395]\tPost \"http://127.9.0.1:1/orders\": refused\n  [2]\tEOF: no responses\n",
    );
    assert_eq!((hey.sent, hey.failed, hey.refused), (501 + 1 + 7 + 2395 + 2, 7 + 2395 + 2, 7));
    let h2load = h2load_counts(
        "requests: 1000000 total, 1384 started, 1344 done, 1342 succeeded, 998658 failed, 2 errored, 0 timeout\n",
        "1784\t200\t4000\n0\t-1\t12217310987\n1785\t-1\t5\n1786\t503\t5\n",
    );
    assert_eq!((h2load.sent, h2load.failed), (1384, 40 + 2));
}
