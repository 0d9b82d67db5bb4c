//! No request that a client sent in good faith fails at a stop: the program that shows it beside others, in its short form.
//!
//! Ours has to hold in every scene. What the others do is printed (`--nocapture`), and asserted nowhere.
#![cfg(unix)]

use std::time::Duration;

use serde_json::Value;
use winddown::testing::process::{Exit, Process};

const SCENES: [&str; 23] = [
    "idle",
    "together",
    "on-its-way",
    "backlog",
    "long-backlog",
    "partial",
    "half-head",
    "half-head-kept",
    "half-body",
    "half-preface",
    "tls-completed",
    "tls-half-hello",
    "stalled",
    "events",
    "long-poll",
    "websocket",
    "h2-streams",
    "h2-silent",
    "h2-idle-silent",
    "order",
    "slow-reader",
    "half-closed",
    "early-answer",
];

/// About a moment, so that once says little.
const RACES: [&str; 4] = ["together", "on-its-way", "backlog", "long-backlog"];
const RUNS: u64 = 3;

#[tokio::test]
async fn ours_holds_in_every_scene() {
    let exit = side_by_side(&["--runs", &RUNS.to_string(), "--json"]).await;
    println!("{}", exit.stdout);
    let rows: Vec<Value> = exit.stdout.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    for scene in SCENES {
        for server in ["ours", "axum", "axum-server"] {
            let row = rows.iter().find(|row| row["scene"] == scene && row["server"] == server);
            let row =
                row.unwrap_or_else(|| panic!("`{scene}` was not played with {server}:\n{}", exit.stdout));
            assert_eq!(row["runs"], if RACES.contains(&scene) { RUNS } else { 1 }, "{row}");
            assert!(server != "ours" || row["held"] == true, "{row}\n{}", exit.stderr);
        }
    }
    assert_eq!(rows.len(), SCENES.len() * 3, "a scene that this test does not know:\n{}", exit.stdout);
    exit.assert_code(0);
}

#[tokio::test]
async fn what_it_does_not_know_is_refused() {
    for (args, error) in [
        (&["--only", "nothing"][..], "there is no scene `nothing`"),
        (&["--runs", "0"], "--runs 0 is no number of runs"),
        (&["--runs"], "--runs needs a value"),
        (&["--fast"], "--fast is no option"),
        (&["serve", "nginx", "0", "2000", "5000"], "no such server"),
        (&["serve", "ours", "0", "2000"], "serve: too little is said"),
    ] {
        let exit = side_by_side(args).await;
        exit.assert_code(2);
        assert!(exit.stderr.starts_with(&format!("side_by_side: {error}")), "{args:?}: {}", exit.stderr);
    }
}

async fn side_by_side(args: &[&str]) -> Exit {
    let process = Process::example("side_by_side").args(args).patience(Duration::from_secs(300));
    process.start().await.unwrap().wait().await
}
