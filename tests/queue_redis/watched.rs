//! A server that a Sentinel watches.

use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

pub struct Watched {
    sentinel: u16,
    children: [Child; 2],
    _folder: TempDir,
}

/// Nothing keeps another process from taking it first; then the test fails, and says so.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

// === impl Watched ===

impl Watched {
    pub fn start() -> Watched {
        let folder = tempfile::tempdir().unwrap();
        let (master, sentinel) = (free_port(), free_port());
        let config = folder.path().join("sentinel.conf");
        let text = format!("port {sentinel}\nsentinel monitor orders 127.0.0.1 {master} 1\n");
        std::fs::write(&config, text).unwrap();
        let start = |command: &mut Command| {
            let command = command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null());
            command.spawn().unwrap()
        };
        let master = start(Command::new("redis-server").args(["--save", "", "--port", &master.to_string()]));
        let watch = start(Command::new("redis-server").arg(&config).arg("--sentinel"));
        Watched { sentinel, children: [master, watch], _folder: folder }
    }

    /// The first Sentinel is not there.
    pub fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:1,127.0.0.1:{}/orders/3", self.sentinel)
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        for child in &mut self.children {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
