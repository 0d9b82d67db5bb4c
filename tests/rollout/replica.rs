//! One `orders` process after the other at one address.

use std::net::SocketAddr;

use winddown::testing::process::{Exit, Process, Running, Signal};

use crate::place::{Place, ask};

/// The order that all requests are about.
pub const ORDER: &str = r#"{"id":"one","items":["tea"],"work_ms":0}"#;

pub struct Replica {
    pub address: SocketAddr,
    process: Process,
    running: Option<Running>,
    /// How each process before this one ended.
    pub exits: Vec<Exit>,
}

// === impl Replica ===

impl Replica {
    /// Starts the first, with a database and an address of its own.
    pub async fn start(place: &Place, host: u8, args: &[&str]) -> Replica {
        let address = place.address(host);
        let database = format!("sqlite:{}", place.path(&format!("orders{host}.db")).display());
        let process = ["WINDDOWN_GRACE", "WINDDOWN_PRESTOP", "KUBERNETES_SERVICE_HOST", "RUST_LOG"]
            .into_iter()
            .fold(Process::example("orders"), Process::env_remove)
            .args(["--listen", &address.to_string(), "--database", &database])
            .args(args)
            .ready_line("ready");
        let mut replica = Replica { address, process, running: None, exits: Vec::new() };
        replica.again().await;
        replica.place_order().await;
        replica
    }

    /// Starts the next, after the one before.
    pub async fn again(&mut self) {
        let started = self.process.start().await;
        self.running = Some(started.unwrap_or_else(|error| panic!("{error:?}")));
    }

    /// Ends the one that runs.
    pub async fn end(&mut self, signal: Signal) {
        let running = self.running.take().expect("it runs");
        self.exits.push(end(running, signal).await);
    }

    /// Starts the next beside the one that runs, and ends that one when the next is ready.
    pub async fn replace(&mut self, signal: Signal) {
        let before = self.running.take().expect("it runs");
        self.again().await;
        self.exits.push(end(before, signal).await);
    }

    /// What those that have ended say of requests that they had to cut. A load that is ended knows nothing of one that it
    /// waits for in vain.
    pub fn cuts(&self) -> Vec<String> {
        let lines = self.exits.iter().flat_map(|exit| &exit.lines).map(|line| line.text.trim());
        lines
            .filter(|line| line.starts_with("gate http: ") && line.contains(" cut ("))
            .map(str::to_owned)
            .collect()
    }

    /// What all of them wrote.
    pub fn told(&self) -> String {
        let running = self.running.iter().map(Running::stderr);
        let told = self.exits.iter().map(|exit| format!("{exit}")).chain(running);
        told.map(|told| format!("--- orders on {}: {told}\n", self.address)).collect()
    }

    async fn place_order(&self) {
        let length = ORDER.len();
        let post = format!(
            "POST /orders HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{ORDER}"
        );
        let answer = ask(self.address, &post).await.expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 202 "), "{answer}");
    }
}

async fn end(running: Running, signal: Signal) -> Exit {
    assert!(running.signal(signal), "it ended by itself");
    running.wait().await
}
