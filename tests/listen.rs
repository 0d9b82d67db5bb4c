//! What a server accepts from: several listeners, of several kinds, that end with it or outlive it.
#![cfg(all(unix, feature = "axum"))]

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use winddown::Phase;
use winddown::server::{self, Address, Listener};

#[path = "listen/rig.rs"]
mod rig;

use rig::{Asked, Client, MS, Running, app, ask, coordinator, place, soon};

/// Takes the one place of a server with `max_connections(1)`, so that whoever comes next stays in a backlog.
async fn take_the_place(address: SocketAddr) -> tokio::net::TcpStream {
    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: test\r\n\r\n").await.unwrap();
    assert!(soon(stream.read(&mut [0; 1024])).await.unwrap() > 0);
    stream
}

fn tcp() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

#[tokio::test]
async fn listeners_of_all_kinds_are_served_side_by_side_and_their_backlogs_at_the_stop() {
    let ((std_tcp, first), (other, second)) = (tcp(), tcp());
    let (_folder, path) = place();
    let more = path.with_extension("more");
    other.set_nonblocking(true).unwrap();
    let server = server::axum::serve("http", std_tcp, app("all", &Asked::default()))
        .also(tokio::net::TcpListener::from_std(other).unwrap())
        .also(UnixListener::bind(&path).unwrap())
        .also(tokio::net::UnixListener::bind(&more).unwrap())
        .max_connections(1);
    let running = Running::with(server).await;
    let clients = || {
        let (path, more) = (path.clone(), more.clone());
        [
            Client::tcp(first, "/").unwrap(),
            Client::tcp(second, "/").unwrap(),
            Client::unix(&path, "/").unwrap(),
            Client::unix(&more, "/").unwrap(),
        ]
    };
    for client in clients() {
        assert_eq!(ask(client).await.unwrap(), "all");
    }
    let _place = take_the_place(first).await;
    let waiting: Vec<Client> = (0..5).flat_map(|_| clients()).collect();
    let report = running.stop().await;
    for client in waiting {
        assert_eq!(client.answer().unwrap(), "all");
    }
    assert!(report.is_clean(), "{report}");
    assert!(Client::tcp(first, "/").is_err() && Client::tcp(second, "/").is_err());
    assert!(Client::unix(&path, "/").is_err() && Client::unix(&more, "/").is_err());
}

#[test]
fn an_address_is_what_clients_connect_to() {
    let (listener, address) = tcp();
    let listener = Listener::from(listener);
    assert_eq!(listener.local_addr().unwrap(), Address::Tcp(address));
    assert_eq!(listener.local_addr().unwrap().to_string(), address.to_string());
    let (_folder, path) = place();
    let listener = Listener::from(UnixListener::bind(&path).unwrap());
    assert_eq!(listener.local_addr().unwrap().to_string(), format!("unix:{}", path.display()));
    assert_eq!(listener.local_addr().unwrap(), Address::Unix(Some(path)));
    assert!(listener.into_tcp().unwrap_err().to_string().contains("Unix socket"));
}

#[tokio::test]
async fn a_busy_listener_does_not_starve_the_others() {
    let ((busy, address), (_folder, path)) = (tcp(), place());
    let asked = Asked::default();
    let server = server::axum::serve("http", busy, app("fair", &asked))
        .also(UnixListener::bind(&path).unwrap())
        // One after the other, so that their order is that of `accept`.
        .max_connections(1);
    let crowd: Vec<Client> = (0..30).map(|_| Client::tcp(address, "/crowd").unwrap()).collect();
    let lone = Client::unix(&path, "/lone").unwrap();
    let running = Running::with(server).await;
    assert_eq!(ask(lone).await.unwrap(), "fair");
    let before = asked.lock().unwrap().iter().position(|path| path == "/lone").unwrap();
    assert!(before <= 1, "{before} of the crowd were before it");
    for client in crowd {
        assert_eq!(ask(client).await.unwrap(), "fair");
    }
    assert!(running.stop().await.is_clean());
}

#[tokio::test]
async fn the_count_of_the_backlog_is_for_all_listeners_together() {
    for limit in [3, 8] {
        let ((first, address), (_folder, path)) = (tcp(), place());
        let server = server::axum::serve("http", first, app("counted", &Asked::default()))
            .also(UnixListener::bind(&path).unwrap())
            .max_connections(1)
            .max_backlog(limit);
        let running = Running::with(server).await;
        let _place = take_the_place(address).await;
        let clients = || [Client::tcp(address, "/").unwrap(), Client::unix(&path, "/").unwrap()];
        let waiting: Vec<Client> = (0..5).flat_map(|_| clients()).collect();
        let report = running.stop().await;
        let answered = waiting.into_iter().filter_map(|client| client.answer().ok()).count();
        assert_eq!(answered, limit, "{report}");
    }
}

#[tokio::test]
async fn a_listener_that_is_broken_keeps_none_of_the_others() {
    let ((broken, _), (whole, address)) = (tcp(), tcp());
    // Every `accept` fails from now on.
    socket2::SockRef::from(&broken).shutdown(std::net::Shutdown::Both).unwrap();
    let server = server::axum::serve("http", broken, app("whole", &Asked::default())).also(whole);
    let running = Running::with(server).await;
    let began = Instant::now();
    for _ in 0..40 {
        assert_eq!(ask(Client::tcp(address, "/").unwrap()).await.unwrap(), "whole");
    }
    // The pauses of the broken one are up to a second each by then.
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let report = running.stop().await;
    assert!(report.is_clean(), "{report}");
}

#[tokio::test]
async fn who_waits_at_a_shared_listener_is_answered_by_the_next_process() {
    let ((mine, address), (_folder, path)) = (tcp(), place());
    let unix = UnixListener::bind(&path).unwrap();
    let (theirs, their_unix) = (mine.try_clone().unwrap(), unix.try_clone().unwrap());
    let server = server::axum::serve("http", Listener::from(mine).shared(), app("first", &Asked::default()))
        .also(Listener::from(unix).shared())
        .max_connections(1);
    let first = Running::with(server).await;
    let _place = take_the_place(address).await;
    let clients = || [Client::tcp(address, "/").unwrap(), Client::unix(&path, "/").unwrap()];
    let mut waiting: Vec<Client> = clients().into();
    let report = first.stop().await;
    assert!(report.is_clean(), "{report}");
    waiting.extend(clients());
    let second = server::axum::serve("http", theirs, app("second", &Asked::default())).also(their_unix);
    let second = Running::with(second).await;
    for client in waiting {
        assert_eq!(ask(client).await.unwrap(), "second");
    }
    assert!(second.stop().await.is_clean());
}

#[tokio::test]
async fn listeners_that_are_given_back_are_served_again_with_their_backlogs() {
    let ((listener, address), (_folder, path)) = (tcp(), place());
    let mut listeners = vec![Listener::from(listener), UnixListener::bind(&path).unwrap().into()];
    let clients = || [Client::tcp(address, "/").unwrap(), Client::unix(&path, "/").unwrap()];
    let mut waiting = Vec::new();
    // A part that is stopped alone, and started again and again.
    for name in ["first", "second", "third"] {
        let unix = listeners.pop().unwrap();
        let server =
            server::axum::serve("http", listeners.pop().unwrap(), app(name, &Asked::default())).also(unix);
        let (server, given_back) = server.max_connections(1).give_back();
        let running = Running::with(server).await;
        for client in waiting.drain(..).chain(clients()) {
            assert_eq!(ask(client).await.unwrap(), name);
        }
        let _place = take_the_place(address).await;
        waiting.extend(clients());
        let report = running.stop().await;
        assert!(report.is_clean(), "{report}");
        waiting.extend(clients());
        listeners = soon(given_back).await;
        assert_eq!(listeners.len(), 2);
    }
    // As what they were, for whoever takes them next.
    let unix = UnixListener::from(listeners.pop().unwrap().into_fd().unwrap());
    assert_eq!(unix.local_addr().unwrap().as_pathname(), Some(path.as_path()));
    let tcp = listeners.pop().unwrap().into_tcp().unwrap();
    assert_eq!(tcp.local_addr().unwrap(), address);
    assert!(tcp.accept().is_ok(), "with who waits there");
}

#[tokio::test]
async fn listeners_are_given_back_after_a_stop_during_the_set_up_too() {
    let (listener, address) = tcp();
    let (server, given_back) =
        server::axum::serve("http", listener, app("never", &Asked::default())).give_back();
    let mut shutdown = coordinator();
    shutdown.add(server);
    let waiting = Client::tcp(address, "/").unwrap();
    shutdown.handle().trigger("test");
    soon(shutdown.run()).await;
    let mut listeners = soon(given_back).await;
    let running = Running::start("next", listeners.pop().unwrap()).await;
    assert_eq!(ask(waiting).await.unwrap(), "next");
    assert!(running.stop().await.is_clean());
}

#[tokio::test]
async fn listeners_that_nobody_waits_for_are_drained_and_closed() {
    let (listener, address) = tcp();
    let (server, given_back) = server::axum::serve("http", listener, app("drained", &Asked::default()))
        .max_connections(1)
        .give_back();
    let running = Running::with(server).await;
    let _place = take_the_place(address).await;
    let waiting = Client::tcp(address, "/").unwrap();
    drop(given_back);
    assert!(running.stop().await.is_clean());
    assert_eq!(waiting.answer().unwrap(), "drained");
    assert!(Client::tcp(address, "/").is_err());
}

#[tokio::test]
async fn a_server_that_is_dropped_gives_nothing_back() {
    let (server, given_back) =
        server::axum::serve("http", tcp().0, app("dropped", &Asked::default())).give_back();
    drop(server);
    assert!(soon(given_back).await.is_empty());
}

#[tokio::test]
async fn an_address_is_taken_twice_only_if_both_say_so() {
    let first = Listener::bind_reuse_port("127.0.0.1:0".parse().unwrap()).unwrap();
    let Address::Tcp(address) = first.local_addr().unwrap() else { panic!("TCP") };
    Listener::bind_reuse_port(address).unwrap();
    assert_eq!(TcpListener::bind(address).unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    let (_lone, address) = tcp();
    let refused = Listener::bind_reuse_port(address).unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::AddrInUse);
}

/// Restarts in place, under load: clients with and without keep-alive, none of which tries anything twice.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_restart_in_place_fails_no_request() {
    let restarts = if std::env::var_os("WINDDOWN_FULL").is_some() { 40 } else { 8 };
    let first = Listener::bind_reuse_port("127.0.0.1:0".parse().unwrap()).unwrap();
    let Address::Tcp(address) = first.local_addr().unwrap() else { panic!("TCP") };
    let mut running = Running::start("orders", first).await;
    let over = Arc::new(AtomicBool::new(false));
    let clients: Vec<_> =
        (0..12).map(|at| tokio::spawn(keep_asking(address, at % 3 == 0, Arc::clone(&over)))).collect();
    for _ in 0..restarts {
        tokio::time::sleep(200 * MS).await;
        let next = Running::start("orders", Listener::bind_reuse_port(address).unwrap()).await;
        let report = running.stop().await;
        assert!(report.is_clean(), "{report}");
        running = next;
    }
    over.store(true, Relaxed);
    let (mut answered, mut failed) = (0, Vec::new());
    for client in clients {
        let (good, bad) = soon(client).await.unwrap();
        answered += good;
        failed.extend(bad);
    }
    println!("{restarts} restarts, {answered} answered, {} failed", failed.len());
    assert!(failed.is_empty() && answered > 500, "{answered} answered, {}: {failed:?}", failed.len());
    assert!(running.stop().await.is_clean());
}

/// How many were answered, and what became of the others. A kept connection that the server has ended is no failure where
/// nothing was sent on it.
async fn keep_asking(address: SocketAddr, keeps: bool, over: Arc<AtomicBool>) -> (usize, Vec<String>) {
    let (mut answered, mut failed) = (0, Vec::new());
    while !over.load(Relaxed) {
        let mut stream = match tokio::net::TcpStream::connect(address).await {
            Ok(stream) => stream,
            Err(error) => {
                failed.push(format!("connect: {error}"));
                continue;
            }
        };
        loop {
            let how = if keeps { "keep-alive" } else { "close" };
            let request = format!("GET / HTTP/1.1\r\nhost: test\r\nconnection: {how}\r\n\r\n");
            let mut text = Vec::new();
            let asked = async {
                stream.write_all(request.as_bytes()).await?;
                while !text.ends_with(b"orders") {
                    if stream.read_buf(&mut text).await? == 0 {
                        return Err(std::io::ErrorKind::UnexpectedEof.into());
                    }
                }
                Ok::<_, std::io::Error>(())
            };
            match asked.await {
                Ok(()) => answered += 1,
                Err(error) => failed.push(format!("{how}: {error}")),
            }
            let text = String::from_utf8_lossy(&text).to_ascii_lowercase();
            if !keeps || text.contains("connection: close") || over.load(Relaxed) || text.is_empty() {
                break;
            }
        }
    }
    (answered, failed)
}

#[tokio::test]
async fn a_stop_that_leaves_new_clients_to_others_takes_its_handover_and_no_longer() {
    for handover in [50 * MS, 700 * MS] {
        let listener = Listener::bind_reuse_port("127.0.0.1:0".parse().unwrap()).unwrap();
        let server =
            server::axum::serve("http", listener, app("short", &Asked::default())).handover(handover);
        let running = Running::with(server).await;
        tokio::task::yield_now().await;
        let report = running.stop().await;
        let took = report.phase(Phase::StopIntake).unwrap().took;
        assert!((handover..handover + 600 * MS).contains(&took), "{report}");
    }
}

/// The process that the next test hands a listener.
#[cfg(feature = "listenfd")]
#[test]
#[ignore = "started by another test"]
fn process_that_is_handed_a_listener() {
    if !std::env::args().any(|arg| arg == "--exact") {
        return;
    }
    let handed = server::listeners_from_env().unwrap();
    let addresses: Vec<String> =
        handed.iter().map(|listener| listener.local_addr().unwrap().to_string()).collect();
    println!("\nhanded over: {}", addresses.join(", "));
    assert!(server::listeners_from_env().unwrap().is_empty(), "once only");
    // A child has neither the variables nor the descriptors.
    let child = std::process::Command::new("sh")
        .args(["-c", "echo \"child: $LISTEN_PID$LISTEN_FDS$(ls -l /proc/$$/fd | grep -c 'socket:')\""])
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    println!("{}", String::from_utf8(child.stdout).unwrap());
}

#[cfg(all(feature = "listenfd", target_os = "linux"))]
#[test]
fn listeners_are_handed_over_in_their_order_and_to_no_child() {
    use std::process::Command;
    let ((tcp, address), (_folder, path)) = (tcp(), place());
    let unix = UnixListener::bind(&path).unwrap();
    let output = Command::new("sh")
        .args(["-c", "LISTEN_PID=$$ LISTEN_FDS=2 exec \"$0\" --exact process_that_is_handed_a_listener --ignored --nocapture 3<&0 4<&1 0</dev/null 1>&2"])
        .arg(std::env::current_exe().unwrap())
        .stdin(std::os::fd::OwnedFd::from(tcp))
        .stdout(std::os::fd::OwnedFd::from(unix))
        .stderr(std::process::Stdio::piped())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&format!("handed over: {address}, unix:{}\n", path.display())), "{said}");
    assert!(said.contains("child: 0\n"), "{said}");
    assert!(output.status.success(), "{said}");
}
