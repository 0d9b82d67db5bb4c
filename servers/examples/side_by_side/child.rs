//! A server as a process: started, told to stop, and killed where its time is over, as a platform does.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use winddown::testing::process::{Exit, Process, Running, Signal};

use crate::serve::Which;

/// How a scene wants its server: the times of a stop, from the signal, and whether it has TLS.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub unready: Duration,
    pub drain: Duration,
    /// When the platform kills.
    pub kill: Duration,
    pub tls: bool,
}

/// A server that runs.
pub struct Child {
    pub addr: SocketAddr,
    /// As [`tls::server`](crate::tls::server) has written it; empty without TLS.
    pub certificate: String,
    which: Which,
    running: Running,
}

/// A server that was told to stop.
pub struct Stopping {
    which: Which,
    at: Instant,
    exit: JoinHandle<Exit>,
}

/// How it ended.
pub struct Ended {
    pub took: Duration,
    pub killed: bool,
    /// Peers that were cut, by state, where the server can tell.
    pub cut: Option<BTreeMap<String, u64>>,
    /// Websockets that lived when the server said that it was done.
    pub websockets: Option<u64>,
}

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

// === impl Setting ===

impl Setting {
    /// For what is to be over far below a limit: a drain that nobody who sees it mistakes for a grace.
    pub const LONG: Setting = Setting::new(0, 8000, 12_000);
    /// For what has to be cut with the drain.
    pub const SHORT: Setting = Setting::new(0, 3000, 8000);

    /// Far below the drain of [`LONG`](Self::LONG), and enough for a busy machine.
    pub const SOON: Duration = Duration::from_secs(5);
    /// What is still *300 ms after the signal*: far below the second that is granted.
    pub const LATE: Duration = Duration::from_millis(600);
    /// How often a scene is played whose client was too late for what it shows.
    pub const TRIES: u32 = 10;
    pub const TOO_SLOW: &str = "this machine is too slow for what is shown";

    /// Times in ms.
    pub const fn new(unready: u64, drain: u64, kill: u64) -> Self {
        Setting {
            unready: Duration::from_millis(unready),
            drain: Duration::from_millis(drain),
            kill: Duration::from_millis(kill),
            tls: false,
        }
    }

    /// Reads what [`to_args`](Self::to_args) wrote, after the server's name.
    pub fn parse(args: &[String]) -> Result<(Which, Self)> {
        let [which, unready, drain, kill, rest @ ..] = args else {
            return Err("serve: too little is said".into());
        };
        let which = Which::ALL.into_iter().find(|server| server.as_str() == which).ok_or("no such server")?;
        let mut setting = Setting::new(unready.parse()?, drain.parse()?, kill.parse()?);
        setting.tls = rest == ["tls"];
        Ok((which, setting))
    }

    fn to_args(self) -> Vec<String> {
        let times = [self.unready, self.drain, self.kill].map(|time| time.as_millis().to_string());
        times.into_iter().chain(self.tls.then(|| "tls".to_owned())).collect()
    }
}

// === impl Child ===

impl Child {
    pub async fn start(which: Which, setting: Setting) -> Result<Child> {
        const READY: &str = "listening ";
        let running = Process::new(std::env::current_exe()?)
            .args(["serve", which.as_str()])
            .args(setting.to_args())
            .ready_line(READY)
            .patience(setting.kill)
            .start()
            .await?;
        let stdout = running.stdout();
        let said = |what| stdout.lines().find_map(|line| line.strip_prefix(what));
        let addr = said(READY).ok_or("no address")?.parse()?;
        let certificate = said("certificate ").unwrap_or_default().to_owned();
        Ok(Child { addr, certificate, which, running })
    }

    /// Freezes it: what is sent from here on waits in the kernel.
    pub async fn freeze(&self) -> Result<()> {
        self.running.signal(Signal::Stop);
        let stopped = || -> Result<bool> {
            for task in std::fs::read_dir(format!("/proc/{}/task", self.running.id()))? {
                let stat = std::fs::read_to_string(task?.path().join("stat"))?;
                // The state follows the name, which is in parentheses and may be anything.
                if !stat.rsplit(')').next().unwrap_or_default().trim_start().starts_with('T') {
                    return Ok(false);
                }
            }
            Ok(true)
        };
        while !stopped()? {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// SIGTERM; and the clock of the kill begins.
    pub fn term(self) -> Stopping {
        self.running.signal(Signal::Term);
        self.awaited()
    }

    /// SIGTERM while frozen, so that it and what came before are seen at once.
    pub fn term_and_thaw(self) -> Stopping {
        self.running.signal(Signal::Term);
        self.running.signal(Signal::Cont);
        self.awaited()
    }

    fn awaited(self) -> Stopping {
        Stopping { which: self.which, at: Instant::now(), exit: tokio::spawn(self.running.wait()) }
    }
}

// === impl Stopping ===

impl Stopping {
    /// How long ago the signal was sent.
    pub fn elapsed(&self) -> Duration {
        self.at.elapsed()
    }

    pub async fn ended(self) -> Result<Ended> {
        let exit = self.exit.await?;
        let account = exit.stdout.lines().find_map(|line| line.strip_prefix("ended "));
        let account: serde_json::Value = serde_json::from_str(account.unwrap_or("{}"))?;
        let count =
            |(state, count): (&String, &serde_json::Value)| (state.clone(), count.as_u64().unwrap_or(0));
        let cut = account["cut"].as_object().map(|cut| cut.iter().map(count).collect());
        if self.which == Which::Ours && cut.is_none() {
            eprintln!("{exit:?}");
        }
        Ok(Ended {
            took: exit.took,
            killed: exit.was_killed(),
            cut,
            websockets: account["websockets"].as_u64(),
        })
    }
}

// === impl Ended ===

impl Ended {
    /// Whether it left by itself, this soon.
    pub fn within(&self, limit: Duration) -> bool {
        !self.killed && self.took < limit
    }

    /// Whether these peers were cut, each in one of the states, and no others; never where nobody counts.
    pub fn counts(&self, peers: u64, states: &[&str]) -> bool {
        self.cut.as_ref().is_some_and(|cut| {
            cut.values().sum::<u64>() == peers && cut.keys().all(|state| states.contains(&state.as_str()))
        })
    }

    pub fn counted(&self) -> String {
        match &self.cut {
            None => "nothing counted".to_owned(),
            Some(cut) if cut.is_empty() => "nothing cut".to_owned(),
            Some(cut) => {
                let cut = cut.iter().map(|(state, count)| format!("{state} {count}")).collect::<Vec<_>>();
                format!("counted: {}", cut.join(", "))
            }
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.killed { "hangs, killed" } else { "gone" };
        write!(f, "{how} after {:.1} s", self.took.as_secs_f64())
    }
}
