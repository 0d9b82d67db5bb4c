//! Stops three servers with a real SIGTERM while clients are in the middle of something, and shows what those clients saw:
//! ours, plain `axum::serve` with its graceful shutdown, and `axum-server` with a handle and a deadline.
//!
//! `cargo run --release -p winddown-servers --example side_by_side`; `--help` lists the options.
//! Each scene starts its server as a process of its own. The exit code is 1 if ours did not hold in one of them.

mod child;
mod client;
mod frames;
mod scenes;
mod serve;
mod show;
mod tls;

use std::process::ExitCode;
use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use scenes::{SCENES, Scene};
use serve::Which;
use show::{Row, Shown};

const HELP: &str = "\
side_by_side [--runs N | --full] [--only SCENE]... [--json] [--list]

  --runs N      how often the scenes are run that are about a race; 3 when not given
  --full        the same as --runs 20
  --only SCENE  this scene; may be given more than once
  --json        one line of JSON for each scene and server, after the table
  --list        the names of the scenes
";

/// How many scenes run at once where they mostly wait, each with three servers.
const AT_ONCE: usize = 6;

#[derive(Debug)]
struct Options {
    runs: u32,
    only: Vec<String>,
    json: bool,
}

#[tokio::main]
async fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [command, rest @ ..] = args.as_slice() {
        if command == "serve" {
            return match serve::run(rest).await {
                Ok(code) => code,
                Err(error) => refuse(&error.to_string()),
            };
        }
        if command == "--help" || command == "--list" {
            let names = || SCENES.iter().map(|scene| format!("{}\n", scene.name)).collect();
            show::print(&if command == "--help" { HELP.to_owned() } else { names() });
            return ExitCode::SUCCESS;
        }
    }
    let options = match Options::parse(args) {
        Ok(options) => options,
        Err(error) => return refuse(&error),
    };
    let rows = run(&options).await;
    show::print(&show::table(&rows));
    if options.json {
        show::print(&rows.iter().map(|row| format!("{}\n", row.to_json())).collect::<String>());
    }
    let ours_held = rows.iter().all(|row| row.which != Which::Ours || row.held() == Some(true));
    ExitCode::from(u8::from(!ours_held))
}

/// Races first and alone, since they are about moments; then the scenes that mostly wait, several at once.
async fn run(options: &Options) -> Vec<Row> {
    let asked =
        |scene: &&Scene| options.only.is_empty() || options.only.iter().any(|only| only == scene.name);
    let mut rows = Vec::new();
    for scene in SCENES.iter().filter(asked).filter(|scene| scene.race) {
        for which in Which::ALL {
            rows.push(run_one(scene, which, options.runs).await);
        }
    }
    let places = Arc::new(Semaphore::new(AT_ONCE * Which::ALL.len()));
    let mut running = JoinSet::new();
    for scene in SCENES.iter().filter(asked).filter(|scene| !scene.race) {
        for which in Which::ALL {
            let places = Arc::clone(&places);
            running.spawn(async move {
                let _place = places.acquire_owned().await;
                run_one(scene, which, 1).await
            });
        }
    }
    while let Some(row) = running.join_next().await {
        rows.extend(row);
    }
    rows.sort_by_key(|row| (SCENES.iter().position(|scene| scene.name == row.scene.name), row.which));
    rows
}

async fn run_one(scene: &'static Scene, which: Which, runs: u32) -> Row {
    let mut shown = Vec::new();
    for run in 0..runs {
        let seen = (scene.play)(which, run).await;
        shown.push(seen.unwrap_or_else(|error| Shown::new(false, format!("could not be played: {error:?}"))));
    }
    Row { scene, which, shown }
}

fn refuse(error: &str) -> ExitCode {
    eprintln!("side_by_side: {error}; --help lists the options");
    ExitCode::from(2)
}

// === impl Options ===

impl Options {
    fn parse(args: Vec<String>) -> Result<Self, String> {
        let mut options = Options { runs: 3, only: Vec::new(), json: false };
        let mut args = args.into_iter();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or(format!("{arg} needs a value"));
            match arg.as_str() {
                "--runs" => {
                    let runs = value()?;
                    options.runs = runs
                        .parse()
                        .ok()
                        .filter(|&n| n > 0)
                        .ok_or(format!("--runs {runs} is no number of runs"))?;
                }
                "--full" => options.runs = 20,
                "--only" => {
                    let only = value()?;
                    if !SCENES.iter().any(|scene| scene.name == only) {
                        return Err(format!("there is no scene `{only}`"));
                    }
                    options.only.push(only);
                }
                "--json" => options.json = true,
                _ => return Err(format!("{arg} is no option")),
            }
        }
        Ok(options)
    }
}
