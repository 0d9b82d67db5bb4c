//! TLS in front of HTTP: what a handshake is granted, in serving and at the stop, over real sockets.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::get;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use winddown::server::rustls::pki_types::{PrivateKeyDer, ServerName};
use winddown::server::rustls::{ClientConfig, RootCertStore, ServerConfig, crypto};
use winddown::server::{self, Server};
use winddown::{Budget, Gate, Phase, Report, ShutdownCoordinator, ShutdownHandle, signal};

#[allow(dead_code, reason = "each test file uses what it needs")]
#[path = "../../tests/http/rig.rs"]
mod rig;

use rig::{MS, cuts, drained_in, ended, soon};

/// Longer than anything here waits for.
const LONG: Duration = Duration::from_secs(20);
/// What a busy machine may add; less than the limits that it has to be told apart from.
const SLACK: Duration = Duration::from_secs(1);
/// How a hello begins: a record of 512 bytes, with one of them.
const HALF_HELLO: &[u8] = b"\x16\x03\x01\x02\x00\x01";
/// More than a pipe takes, and less than what TLS keeps in its own buffer.
const BIG: usize = 40_000;
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n";

struct Rig {
    addr: SocketAddr,
    handle: ShutdownHandle,
    gate: Gate,
    client: ClientConfig,
    report: JoinHandle<Report>,
}

/// Sends half of what is first written, and the rest when it may.
struct Halting {
    stream: TcpStream,
    halted: Option<bool>,
    go_on: Pin<Box<WaitForCancellationFutureOwned>>,
}

fn budget() -> Budget {
    Budget::given(LONG, "test").unready(Duration::ZERO)
}

fn handshaking(peers: usize) -> Vec<(String, usize)> {
    vec![("handshaking".to_owned(), peers)]
}

// === impl Rig ===

impl Rig {
    async fn new() -> Rig {
        Rig::with(budget(), &[], |server| server).await
    }

    async fn with(
        budget: Budget,
        alpn: &[&str],
        options: impl FnOnce(Server<Router>) -> Server<Router>,
    ) -> Rig {
        let signed = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let provider = Arc::new(crypto::ring::default_provider());
        let key = PrivateKeyDer::try_from(signed.signing_key.serialize_der()).unwrap();
        let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(vec![signed.cert.der().clone()], key)
            .unwrap();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        let mut roots = RootCertStore::empty();
        roots.add(signed.cert.der().clone()).unwrap();
        let client = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();

        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
        let app =
            Router::new().route("/", get(async || "over tls")).route("/big", get(async || vec![b'x'; BIG]));
        let server = options(server::axum::serve("https", listener, app)).tls(Arc::new(config));
        let gate = shutdown.add(server);
        let rig = Rig { addr, handle: shutdown.handle(), gate, client, report: tokio::spawn(shutdown.run()) };
        assert!(rig.get().await.contains("over tls"));
        rig
    }

    fn connector(&self, alpn: &[&str]) -> TlsConnector {
        let mut config = self.client.clone();
        config.alpn_protocols = alpn.iter().map(|name| name.as_bytes().to_vec()).collect();
        TlsConnector::from(Arc::new(config))
    }

    /// A connection whose handshake has begun, and which the server knows of.
    async fn half_hello(&self) -> TcpStream {
        self.until_open(0).await;
        let mut half = self.tcp().await;
        half.write_all(HALF_HELLO).await.unwrap();
        self.until_open(1).await;
        half
    }

    async fn tcp(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    async fn connect(&self, alpn: &[&str]) -> TlsStream<TcpStream> {
        secure(self.connector(alpn), self.tcp().await).await.unwrap()
    }

    /// One answer, on a connection of its own that is left open.
    async fn get(&self) -> String {
        ask(&mut self.connect(&[]).await).await
    }

    /// Waits until so many connections are in flight, beside the listener.
    async fn until_open(&self, connections: usize) {
        soon(async {
            while self.gate.in_flight() != connections + 1 {
                tokio::time::sleep(5 * MS).await;
            }
        })
        .await;
    }

    fn stop(&self) {
        assert!(self.handle.trigger("test"));
    }

    async fn report(self) -> Report {
        ended(self.report).await
    }
}

async fn secure<I: AsyncRead + AsyncWrite + Unpin>(
    connector: TlsConnector,
    stream: I,
) -> io::Result<TlsStream<I>> {
    soon(connector.connect(ServerName::try_from("localhost").unwrap(), stream)).await
}

async fn ask<I: AsyncRead + AsyncWrite + Unpin>(stream: &mut TlsStream<I>) -> String {
    stream.write_all(REQUEST).await.unwrap();
    let mut answer = Vec::new();
    while !answer.ends_with(b"over tls") {
        assert!(soon(stream.read_buf(&mut answer)).await.unwrap() > 0, "{answer:?}");
    }
    String::from_utf8(answer).unwrap().to_ascii_lowercase()
}

/// How the connection ends: whether with a `close_notify`; an error where it was cut.
async fn ends(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<usize> {
    soon(stream.read(&mut [0; 64])).await
}

fn alpn<I>(stream: &TlsStream<I>) -> Option<&[u8]> {
    stream.get_ref().1.alpn_protocol()
}

#[tokio::test]
async fn requests_over_tls_are_answered_and_the_last_one_ends_with_a_close_notify() {
    let rig = Rig::new().await;
    let mut client = rig.connect(&["http/1.1"]).await;
    assert_eq!(alpn(&client), Some(&b"http/1.1"[..]));
    for _ in 0..3 {
        assert!(!ask(&mut client).await.contains("connection: close"));
    }
    // Without another turn for the server.
    rig.stop();
    assert!(ask(&mut client).await.contains("connection: close"));
    assert_eq!(ends(&mut client).await.unwrap(), 0);
    let report = rig.report().await;
    assert!(report.is_clean() && cuts(&report).is_empty(), "{report}");
}

#[tokio::test]
async fn http2_is_chosen_by_alpn_and_ends_with_a_goaway_and_a_close_notify() {
    let rig = Rig::new().await;
    let stream = rig.connect(&["h2", "http/1.1"]).await;
    assert_eq!(alpn(&stream), Some(&b"h2"[..]));
    let (mut send, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let request = http::Request::get("https://localhost/").body(Empty::<Bytes>::new()).unwrap();
    let answer = soon(send.send_request(request)).await.unwrap();
    assert_eq!(answer.version(), http::Version::HTTP_2);
    assert_eq!(answer.into_body().collect().await.unwrap().to_bytes(), "over tls");
    rig.stop();
    soon(connection).await.unwrap().expect("no error, so no end without a close_notify");
    let report = rig.report().await;
    assert!(report.is_clean() && cuts(&report).is_empty(), "{report}");
}

#[tokio::test]
async fn protocols_that_the_configuration_names_are_left_as_they_are() {
    for (named, chosen) in [("http/1.1", "http/1.1"), ("h2", "h2")] {
        let rig = Rig::with(budget(), &[named], |server| server).await;
        let client = rig.connect(&["h2", "http/1.1"]).await;
        assert_eq!(alpn(&client), Some(chosen.as_bytes()));
        drop(client);
        rig.stop();
        rig.report().await;
    }
}

#[tokio::test]
async fn handshakes_that_were_begun_before_the_trigger_are_completed_and_answered() {
    const CLIENTS: usize = 20;
    let rig = Rig::with(budget(), &[], |server| server.head_grace(8 * SLACK).idle_grace(4 * SLACK)).await;
    rig.until_open(0).await;
    let go_on = CancellationToken::new();
    let mut clients = Vec::new();
    for at in 0..CLIENTS {
        let stream = Halting {
            stream: rig.tcp().await,
            halted: None,
            go_on: Box::pin(go_on.clone().cancelled_owned()),
        };
        let connector = rig.connector(if at % 2 == 0 { &["http/1.1"] } else { &[] });
        clients.push(tokio::spawn(async move {
            let mut stream = secure(connector, stream).await.unwrap();
            let answer = ask(&mut stream).await;
            (answer.contains("connection: close"), ends(&mut stream).await.unwrap())
        }));
    }
    rig.until_open(CLIENTS).await;
    rig.stop();
    soon(rig.handle.reached(Phase::Drain)).await;
    go_on.cancel();
    for client in clients {
        assert_eq!(soon(client).await.unwrap(), (true, 0));
    }
    let report = rig.report().await;
    assert!(report.is_clean() && cuts(&report).is_empty(), "{report}");
}

#[tokio::test]
async fn a_handshake_that_is_never_completed_is_cut_by_its_limit_and_holds_up_nobody() {
    for limit in [200 * MS, 1400 * MS] {
        let rig = Rig::with(budget(), &[], |server| server.handshake_limit(limit)).await;
        let began = Instant::now();
        let (mut half, mut silent) = (rig.tcp().await, rig.tcp().await);
        half.write_all(HALF_HELLO).await.unwrap();
        assert!(rig.get().await.contains("over tls"));
        for stream in [&mut half, &mut silent] {
            let _ = ends(stream).await;
        }
        assert!((limit..limit + SLACK).contains(&began.elapsed()), "{:?}", began.elapsed());
        rig.until_open(0).await;
        rig.stop();
        // The ledger begins with the stop.
        assert!(rig.report().await.is_clean());
    }
}

#[tokio::test]
async fn a_handshake_that_is_not_completed_at_the_stop_is_cut_after_the_grace_of_a_head() {
    for grace in [150 * MS, 1300 * MS] {
        let rig = Rig::with(budget(), &[], |server| server.head_grace(grace)).await;
        let mut half = rig.half_hello().await;
        rig.stop();
        let _ = ends(&mut half).await;
        let report = rig.report().await;
        assert!((grace - 20 * MS..grace + SLACK).contains(&drained_in(&report)), "{report}");
        assert_eq!(cuts(&report), handshaking(1), "{report}");
    }
}

#[tokio::test]
async fn a_handshake_is_cut_when_the_drain_is_over_and_by_its_own_limit_at_the_stop_as_well() {
    for (drain, limit) in [(200 * MS, LONG), (8 * SLACK, 300 * MS)] {
        let rig =
            Rig::with(budget().drain(drain), &[], |server| server.head_grace(LONG).handshake_limit(limit))
                .await;
        let mut half = rig.half_hello().await;
        rig.stop();
        let _ = ends(&mut half).await;
        let report = rig.report().await;
        assert!(drained_in(&report) < 3 * SLACK, "{report}");
        // And not only when it is taken away, after half of the time for handing back.
        assert!(report.phase(Phase::Requeue).unwrap().took < SLACK, "{report}");
        assert_eq!(cuts(&report), handshaking(1), "{report}");
    }
}

#[tokio::test]
async fn an_idle_connection_is_closed_with_a_close_notify() {
    let rig = Rig::new().await;
    let (mut used, mut fresh) = (rig.connect(&[]).await, rig.connect(&[]).await);
    ask(&mut used).await;
    rig.stop();
    for client in [&mut used, &mut fresh] {
        assert_eq!(ends(client).await.unwrap(), 0);
    }
    let report = rig.report().await;
    assert!(report.is_clean() && cuts(&report).is_empty(), "{report}");
}

#[tokio::test]
async fn a_partial_head_is_answered_408_and_ends_with_a_close_notify() {
    let rig = Rig::with(budget(), &[], |server| server.head_grace(150 * MS)).await;
    let mut client = rig.connect(&[]).await;
    client.write_all(b"GET / HTTP/1.1\r\nhos").await.unwrap();
    rig.stop();
    let mut answer = String::new();
    soon(client.read_to_string(&mut answer)).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
    let report = rig.report().await;
    assert_eq!(cuts(&report), [("head".to_owned(), 1)], "{report}");
}

#[tokio::test]
async fn a_peer_that_reads_nothing_is_cut_though_tls_has_taken_all_of_the_answer() {
    for stall in [200 * MS, 1400 * MS] {
        let (pipes, connector) = server::in_memory(16 << 10);
        let rig = Rig::with(budget(), &[], |server| server.also(pipes).write_stall(stall)).await;
        rig.until_open(0).await;
        let mut client = secure(rig.connector(&[]), connector.connect().unwrap()).await.unwrap();
        client.write_all(b"GET /big HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        let asked = Instant::now();
        rig.until_open(1).await;
        rig.until_open(0).await;
        assert!((stall..stall + SLACK).contains(&asked.elapsed()), "{:?}", asked.elapsed());
        rig.stop();
        assert!(rig.report().await.is_clean());
    }
}

#[tokio::test]
async fn plain_http_at_the_port_of_tls_ends_and_harms_nobody() {
    let rig = Rig::new().await;
    let mut plain = rig.tcp().await;
    plain.write_all(REQUEST).await.unwrap();
    let mut answer = Vec::new();
    let _ = soon(plain.read_to_end(&mut answer)).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    assert!(rig.get().await.contains("over tls"));
    rig.stop();
    let report = rig.report().await;
    assert!(report.is_clean() && cuts(&report).is_empty(), "{report}");
}

// === impl Halting ===

impl AsyncRead for Halting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Halting {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match self.halted {
            None => {
                let sent = ready!(Pin::new(&mut self.stream).poll_write(cx, &buf[..buf.len() / 2]))?;
                self.halted = Some(true);
                return Poll::Ready(Ok(sent));
            }
            Some(true) => {
                ready!(self.go_on.as_mut().poll(cx));
                self.halted = Some(false);
            }
            Some(false) => {}
        }
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
