//! A Redis server of a test's own: in a folder of its own, on a socket in it, gone with the test.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use tempfile::TempDir;

/// Far more than a server needs on a slow machine.
const SOON: Duration = Duration::from_secs(30);

pub struct Redis {
    child: Child,
    args: Vec<String>,
    folder: TempDir,
}

// === impl Redis ===

impl Redis {
    /// Starts a server that keeps nothing on disk.
    pub fn start() -> Redis {
        Redis::start_with(&["--save", "", "--appendonly", "no"])
    }

    /// Starts a server with options of its own; `--port 0`, the folder and the socket are given.
    pub fn start_with(args: &[&str]) -> Redis {
        let folder = tempfile::tempdir().unwrap();
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        let child = spawn(folder.path(), &args);
        Redis { child, args, folder }
    }

    /// Kills the server, as the loss of its machine would.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Starts it again after [`kill`](Self::kill), on the same socket and with what is on disk.
    pub fn start_again(&mut self) {
        self.kill();
        self.child = spawn(self.folder.path(), &self.args);
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("redis.sock")
    }

    /// As a program is given it.
    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.socket().display())
    }

    /// A connection to look and meddle with, patient enough for commands that block.
    pub async fn connection(&self) -> MultiplexedConnection {
        let config = redis::AsyncConnectionConfig::new()
            .set_connection_timeout(Some(SOON))
            .set_response_timeout(Some(SOON));
        let client = redis::Client::open(self.url()).unwrap();
        client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Listens, and has read what is on its disk.
fn answers(socket: &Path) -> bool {
    let Ok(mut server) = UnixStream::connect(socket) else { return false };
    let mut answer = [0; 7];
    server.write_all(b"PING\r\n").is_ok()
        && server.read_exact(&mut answer).is_ok()
        && !answer.starts_with(b"-LOAD")
}

fn spawn(folder: &Path, args: &[String]) -> Child {
    let socket = folder.join("redis.sock");
    let _ = std::fs::remove_file(&socket);
    let mut command = Command::new("redis-server");
    command.args(["--port", "0", "--unixsocket"]).arg(&socket).arg("--dir").arg(folder).args(args);
    let log = std::fs::File::create(folder.join("redis.log")).unwrap();
    let child = command.stdin(Stdio::null()).stdout(log).stderr(Stdio::null()).spawn();
    let mut child =
        child.unwrap_or_else(|error| panic!("redis-server (`scripts/test` installs it): {error}"));
    let began = Instant::now();
    while !answers(&socket) {
        let log = || std::fs::read_to_string(folder.join("redis.log")).unwrap_or_default();
        assert!(child.try_wait().unwrap().is_none(), "redis-server has ended: {}", log());
        assert!(began.elapsed() < SOON, "redis-server does not listen: {}", log());
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}
