//! Where it listens: what the command line names, and what it is handed.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::process::{Command, Stdio};
use std::time::Duration;

use winddown::testing::process::{Exit, Signal};

use crate::service::{Place, Service, eventually, skip};

const REQUEST: &[u8] = b"GET /livez HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";
const PROGRAM: &str = "systemd-socket-activate";

/// Sends a request and leaves it to whoever accepts.
fn send<S: Write>(mut stream: S) -> S {
    stream.write_all(REQUEST).expect("sent");
    stream
}

#[track_caller]
fn assert_answered(mut stream: impl Read) {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 ") && answer.ends_with("live\n"), "{answer:?}");
}

async fn answered(address: SocketAddr) {
    let stream = send(TcpStream::connect(address).expect("connected"));
    tokio::task::spawn_blocking(move || assert_answered(stream)).await.expect("answered");
}

/// The program, started by a shell that hands it its standard input as the one listener.
fn handed(place: &Place, listener: OwnedFd, args: &[&str]) -> Command {
    let mut command = Command::new("sh");
    command
        .args(["-c", "LISTEN_PID=$$ LISTEN_FDS=1 exec \"$0\" \"$@\" 3<&0 0</dev/null"])
        .arg(example())
        .args(["--listen", "systemd", "--database", &place.url()])
        .args(args)
        .stdin(listener)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for name in ["WINDDOWN_GRACE", "WINDDOWN_PRESTOP", "KUBERNETES_SERVICE_HOST", "RUST_LOG"] {
        command.env_remove(name);
    }
    command
}

fn example() -> std::path::PathBuf {
    let test = std::env::current_exe().expect("a path");
    test.parent().and_then(|deps| deps.parent()).expect("a folder").join("examples/orders")
}

/// Kills it where a test fails.
struct Child(std::process::Child);

impl Child {
    /// Started, and past its ready line; what it said until then.
    fn start(mut command: Command) -> (Child, String) {
        let mut child = Child(command.spawn().expect("started"));
        let mut said = Vec::new();
        let out = child.0.stdout.as_mut().expect("piped");
        while !said.ends_with(b"ready\n") {
            let mut byte = [0];
            assert!(out.read(&mut byte).expect("read") == 1, "{}", child.rest());
            said.extend(byte);
        }
        (child, String::from_utf8(said).expect("text"))
    }

    fn term(mut self) {
        let id = self.0.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().expect("kill").success());
        // What it says must not hold it up.
        let rest = self.rest();
        assert!(self.0.wait().expect("waited for").success(), "{rest}");
    }

    fn rest(&mut self) -> String {
        let mut rest = String::new();
        let _ = self.0.stderr.as_mut().expect("piped").read_to_string(&mut rest);
        rest
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn fails(mut command: Command) -> (Option<i32>, String) {
    let output = command.output().expect("started");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[tokio::test]
async fn it_listens_at_several_places_and_says_each() {
    let place = Place::new();
    let socket = place.path("orders.sock");
    let unix = format!("unix:{}", socket.display());
    let service = place.start(["--listen", "127.0.0.1:0", "--listen", &unix]).await;
    let said: Vec<String> = service.running.stdout().lines().map(str::to_owned).collect();
    assert_eq!(said.len(), 4, "{said:?}");
    for line in [&said[0], &said[2]] {
        let address = line.strip_prefix("listening on http://").expect("an address");
        answered(address.parse().expect("an address")).await;
    }
    assert_eq!(said[1], format!("listening on http://{unix}"));
    let stream = send(UnixStream::connect(&socket).expect("connected"));
    tokio::task::spawn_blocking(move || assert_answered(stream)).await.expect("answered");
    service.term().await.assert_code(0);
    assert!(!socket.exists(), "removed at the end");
}

#[tokio::test]
async fn a_socket_that_was_left_is_replaced_and_one_that_answers_is_refused() {
    let place = Place::new();
    let socket = place.path("orders.sock");
    let unix = format!("unix:{}", socket.display());
    let first = place.start(["--listen", &unix]).await;
    let refused = place.fails(["--listen", &unix]).await;
    refused.assert_code(1).assert_line(&unix).assert_line("in use");
    assert!(UnixStream::connect(&socket).is_ok(), "and is as it was");
    // Killed, it leaves its socket behind.
    first.running.signal(Signal::Kill);
    first.running.wait().await;
    assert!(socket.exists());
    let second = place.start(["--listen", &unix]).await;
    let stream = send(UnixStream::connect(&socket).expect("connected"));
    tokio::task::spawn_blocking(move || assert_answered(stream)).await.expect("answered");
    // Taken over by somebody else in the meantime: not ours to remove.
    std::fs::remove_file(&socket).expect("removed");
    let _theirs = UnixListener::bind(&socket).expect("bound");
    second.term().await.assert_code(0);
    assert!(socket.exists());
    // No socket at all: not to be replaced.
    let file = place.path("precious");
    std::fs::write(&file, "precious").expect("written");
    let exit: Exit = place.fails(["--listen", &format!("unix:{}", file.display())]).await;
    exit.assert_code(1).assert_line("in use");
    assert_eq!(std::fs::read_to_string(&file).expect("read"), "precious");
}

#[tokio::test]
async fn the_next_process_listens_at_the_same_port_before_this_one_stops() {
    let place = Place::new();
    let first = place.start(["--reuse-port"]).await;
    let address = first.address;
    let at = address.to_string();
    let second = crate::service::bare(["--reuse-port", "--listen", &at, "--database", &place.url()]);
    let second = Service::start(second).await;
    assert_eq!(second.address, address);
    first.term().await.assert_code(0);
    for _ in 0..10 {
        answered(address).await;
    }
    let refused = crate::service::bare(["--listen", &at, "--database", &place.url()]);
    refused.start().await.expect("started").wait().await.assert_code(1).assert_line("in use");
    second.term().await.assert_code(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_that_is_handed_over_outlives_the_process_with_its_backlog() {
    let place = Place::new();
    let kept = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = kept.local_addr().expect("an address");
    let mut waiting: Option<TcpStream> = None;
    for _ in 0..3 {
        let listener: OwnedFd = kept.try_clone().expect("a descriptor").into();
        let (child, said) = Child::start(handed(&place, listener, &[]));
        assert_eq!(said, format!("listening on http://{address}\nready\n"));
        // Who came while nobody was there.
        if let Some(stream) = waiting.take() {
            assert_answered(stream);
        }
        answered(address).await;
        child.term();
        waiting = Some(send(TcpStream::connect(address).expect("the socket lives on")));
    }
    let unix = UnixListener::bind(place.path("orders.sock")).expect("bound");
    let (child, said) = Child::start(handed(&place, unix.try_clone().expect("a descriptor").into(), &[]));
    let path = place.path("orders.sock");
    assert_eq!(said, format!("listening on http://unix:{}\nready\n", path.display()));
    assert_answered(send(UnixStream::connect(&path).expect("connected")));
    child.term();
    assert!(UnixStream::connect(&path).is_ok(), "it is not ours, and lives on");
}

#[test]
fn what_is_handed_over_and_no_listener_is_refused_with_its_reason() {
    let place = Place::new();
    let (one, _other) = UnixStream::pair().expect("a pair");
    let file = std::fs::File::create(place.path("file")).expect("a file");
    for (handed_over, says) in
        [(OwnedFd::from(one), "does not listen"), (OwnedFd::from(file), "no stream socket")]
    {
        let (code, said) = fails(handed(&place, handed_over, &[]));
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("--listen systemd: listener 1 of LISTEN_FDS") && said.contains(says), "{said}");
    }
    // For another process, or for none.
    for (pid, fds, says) in
        [("1", "1", "nothing was handed over"), ("", "many", "\"many\""), ("", "", "nothing")]
    {
        let mut command = Command::new(example());
        command.args(["--listen", "systemd", "--database", &place.url()]);
        command.env("LISTEN_PID", pid).env("LISTEN_FDS", fds);
        let (code, said) = fails(command);
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(says), "{said}");
    }
}

/// By systemd's own program, which starts the service for the first client and keeps its socket.
#[tokio::test(flavor = "multi_thread")]
async fn systemd_hands_over_its_socket() {
    if Command::new(PROGRAM).arg("--version").output().is_err() {
        return skip("no systemd-socket-activate, so its protocol is only played by a shell");
    }
    let place = Place::new();
    let at = {
        let free = TcpListener::bind("127.0.0.1:0").expect("a port");
        free.local_addr().expect("an address")
    };
    let mut command = Command::new(PROGRAM);
    command
        .args(["-l", &at.to_string(), "-E", "PATH"])
        .arg(example())
        .args(["--listen", "systemd", "--database", &place.url()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut activator = Child(command.spawn().expect("started"));
    eventually("systemd-socket-activate listens", async || TcpStream::connect(at).is_ok()).await;
    // It has become the service by the time that this is answered.
    tokio::task::spawn_blocking(move || {
        let stream = TcpStream::connect(at).expect("connected");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        assert_answered(send(stream));
    })
    .await
    .expect("answered");
    assert!(activator.0.try_wait().expect("looked at").is_none());
    activator.term();
}
