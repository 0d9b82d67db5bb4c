//! A link that is slow and wide: what goes in comes out one millisecond later, however much it is.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

/// A socket that leads to another.
pub struct Link {
    socket: PathBuf,
    _folder: tempfile::TempDir,
}

pub const EACH_WAY: Duration = Duration::from_millis(1);

// === impl Link ===

impl Link {
    pub fn to(server: &Path) -> Link {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("link.sock");
        let listener = UnixListener::bind(&socket).expect("a socket");
        let server = server.to_owned();
        // Ends with the process.
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = UnixStream::connect(&server).expect("it listens");
                carry(client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
                carry(server, client);
            }
        });
        Link { socket, _folder: folder }
    }

    pub fn url(&self) -> String {
        crate::server::url(&self.socket)
    }
}

/// Threads, since a runtime's timers are no finer than what is to be shown.
fn carry(from: UnixStream, to: UnixStream) {
    let (sender, receiver) = channel();
    thread::spawn(move || take(from, &sender));
    thread::spawn(move || give(to, &receiver));
}

fn take(mut from: UnixStream, sender: &Sender<(Instant, Vec<u8>)>) {
    let mut buffer = vec![0; 1 << 18];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        if sender.send((Instant::now() + EACH_WAY, buffer[..length].to_vec())).is_err() {
            return;
        }
    }
}

fn give(mut to: UnixStream, receiver: &Receiver<(Instant, Vec<u8>)>) {
    for (due, bytes) in receiver {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        if to.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}
