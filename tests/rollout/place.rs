//! Where a rollout takes place: a folder and addresses of its own, and the machine to itself.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, MutexGuard};

#[path = "../support/limits.rs"]
mod limits;

use limits::eventually_within;
pub use limits::times;

/// Far more than anything here takes on a slow machine.
const SOON: Duration = Duration::from_secs(60);

/// Two loads at once would measure each other.
static MACHINE: Mutex<()> = Mutex::const_new(());

pub struct Place {
    folder: TempDir,
    /// The first of its addresses.
    network: Ipv4Addr,
    _machine: MutexGuard<'static, ()>,
}

/// Looks again and again, for as long as is bearable.
pub async fn eventually(what: &str, look: impl AsyncFnMut() -> bool) {
    eventually_within(SOON, what, look).await;
}

/// Sends a request that says `connection: close`, and reads to the end.
pub async fn ask(address: SocketAddr, request: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// Where a program is; servers lie beside the `PATH` of who is not root.
pub fn program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin".into(), "/usr/local/sbin".into()]);
    folders.map(|folder| folder.join(name)).find(|file| file.is_file())
}

/// For what this machine does not let us do: never silently.
fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
    if let Some(file) = std::env::var_os("WINDDOWN_SKIPS") {
        use std::io::Write;
        let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
        let _ = file.and_then(|mut file| writeln!(file, "rollout: {why}"));
    }
}

// === impl Place ===

impl Place {
    /// With the machine, once no other rollout has it; `None` where one of these programs is missing.
    pub async fn with(programs: &[&str]) -> Option<Place> {
        let missing: Vec<&str> = programs.iter().copied().filter(|name| program(name).is_none()).collect();
        if !missing.is_empty() {
            skip(&format!("not installed: {}", missing.join(", ")));
            return None;
        }
        let machine = MACHINE.lock().await;
        let folder = tempfile::tempdir().expect("a folder");
        let id = std::process::id();
        let [_, _, high, low] = id.to_be_bytes();
        let network = Ipv4Addr::new(127, 16 + (id >> 16) as u8 % 200, high, low & 0xf0);
        Some(Place { folder, network, _machine: machine })
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A free port on an address of our own.
    ///
    /// Clients connect from 127.0.0.1, so none of their connections is given this port while its owner restarts.
    pub fn address(&self, host: u8) -> SocketAddr {
        let address = Ipv4Addr::from(u32::from(self.network) + 1 + u32::from(host));
        let free = TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr());
        free.expect("all of 127.0.0.0/8 is this machine")
    }
}
