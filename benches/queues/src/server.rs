//! The one server that all are measured on: private, on a unix socket, and nothing is written to disk.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::measure::Clock;

pub struct Server {
    child: Child,
    folder: TempDir,
}

/// Far more than it needs on a slow machine.
const SOON: Duration = Duration::from_secs(30);

// === impl Server ===

impl Server {
    pub fn start() -> Server {
        let folder = tempfile::tempdir().expect("a folder");
        let log = File::create(folder.path().join("redis.log")).expect("a file");
        let child = Command::new("redis-server")
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--unixsocket"])
            .arg(socket(folder.path()))
            .arg("--dir")
            .arg(folder.path())
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let server = Server { child, folder };
        let began = Instant::now();
        while UnixStream::connect(server.socket()).is_err() {
            assert!(began.elapsed() < SOON, "redis-server does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    pub fn socket(&self) -> PathBuf {
        socket(self.folder.path())
    }

    pub fn url(&self) -> String {
        url(&self.socket())
    }

    /// The processor's time that it has used.
    pub fn clock(&self) -> Clock {
        Clock::of_process(self.child.id())
    }

    /// Forgets everything, and is done with it when this returns.
    pub fn flush(&self) {
        let mut connection = self.connection();
        let _: () = redis::cmd("FLUSHALL").arg("SYNC").query(&mut connection).expect("it answers");
    }

    pub fn version(&self) -> String {
        let info: String =
            redis::cmd("INFO").arg("server").query(&mut self.connection()).expect("it answers");
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        version.unwrap_or("?").to_owned()
    }

    /// How often each command was called, those that scripts call included.
    pub fn calls(&self) -> u64 {
        let info: String =
            redis::cmd("INFO").arg("commandstats").query(&mut self.connection()).expect("it answers");
        let calls = info.lines().filter(|line| !line.starts_with("cmdstat_info"));
        calls.filter_map(|line| line.split_once("calls=")?.1.split(',').next()?.parse::<u64>().ok()).sum()
    }

    fn connection(&self) -> redis::Connection {
        redis::Client::open(self.url()).and_then(|client| client.get_connection()).expect("it listens")
    }

    /// How many requests clients send within the time: what a script calls is not counted.
    pub fn requests(&self, within: Duration) -> usize {
        let mut monitor = UnixStream::connect(self.socket()).expect("it listens");
        monitor.write_all(b"MONITOR\r\n").expect("it listens");
        monitor.set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
        let (began, mut lines) = (Instant::now(), Vec::new());
        let mut reader = BufReader::new(monitor);
        let mut line = Vec::new();
        while began.elapsed() < within {
            // What was read before the time ran out stays in the line.
            match reader.read_until(b'\n', &mut line) {
                Ok(0) => break,
                Ok(_) => lines.push(std::mem::take(&mut line)),
                Err(_) => {}
            }
        }
        let by_script = |line: &[u8]| line.windows(5).any(|part| part == b" lua]");
        // The first is the answer to MONITOR itself.
        lines.iter().skip(1).filter(|line| !by_script(line)).count()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn socket(folder: &Path) -> PathBuf {
    folder.join("redis.sock")
}

pub fn url(socket: &Path) -> String {
    format!("redis+unix://{}", socket.display())
}
