//! A program that serves, and clients that speak in bytes.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::IntoResponse;
use axum::routing::{any, get, post};
use bytes::Bytes;
use futures_util::stream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use winddown::server::{self, Server};
use winddown::{Budget, GateReport, Phase, Report, ShutdownCoordinator, ShutdownHandle, signal};

#[path = "../support/within.rs"]
mod within;

/// Far more than anything here takes on a slow machine.
pub const SOON: Duration = Duration::from_secs(8);
pub const MS: Duration = Duration::from_millis(1);
pub const BIG: usize = 5_000_000;

pub struct Rig {
    pub addr: SocketAddr,
    pub handle: ShutdownHandle,
    pub scene: Arc<Scene>,
    report: JoinHandle<Report>,
}

/// Where handlers and the test meet.
pub struct Scene {
    pub entered: Semaphore,
    pub release: Semaphore,
    pub dropped: Semaphore,
}

pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

pub struct Client(TcpStream);

struct Dropped(Arc<Scene>);

pub fn budget() -> Budget {
    Budget::given(Duration::from_secs(10), "test").unready(Duration::ZERO)
}

// === impl Rig ===

impl Rig {
    pub async fn new(budget: Budget) -> Rig {
        Self::with(budget, |server| server).await
    }

    pub async fn with(budget: Budget, options: impl FnOnce(Server<Router>) -> Server<Router>) -> Rig {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).unwrap();
        let handle = shutdown.handle();
        let scene = Arc::new(Scene {
            entered: Semaphore::new(0),
            release: Semaphore::new(0),
            dropped: Semaphore::new(0),
        });
        let app = app(Arc::clone(&scene), &handle);
        shutdown.add(options(server::axum::serve("http", listener, app)));
        let report = tokio::spawn(shutdown.run());
        let rig = Rig { addr, handle, scene, report };
        // Answered once the set-up has returned; not ready would be 503.
        let ready = rig.connect().await.ask("/readyz").await;
        assert_eq!((ready.status, ready.text()), (200, "ready\n"));
        rig
    }

    pub async fn connect(&self) -> Client {
        Client::to(self.addr).await
    }

    /// Most of a big answer stays with the server until it is read.
    pub async fn connect_with_small_buffer(&self) -> Client {
        let socket = tokio::net::TcpSocket::new_v4().unwrap();
        socket.set_recv_buffer_size(1 << 16).unwrap();
        Client(socket.connect(self.addr).await.unwrap())
    }

    /// Connects and sends without giving the server a chance to run.
    pub fn connect_at_once(&self, request: &str) -> Client {
        let mut stream = std::net::TcpStream::connect(self.addr).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        stream.set_nonblocking(true).unwrap();
        Client(TcpStream::from_std(stream).unwrap())
    }

    pub fn stop(&self) {
        assert!(self.handle.trigger("test"));
    }

    pub async fn report(self) -> Report {
        ended(self.report).await
    }
}

// === impl Scene ===

impl Scene {
    /// Waits until a handler is at work.
    pub async fn entered(&self) {
        soon(self.entered.acquire()).await.unwrap().forget();
    }
}

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.dropped.add_permits(1);
    }
}

fn app(scene: Arc<Scene>, handle: &ShutdownHandle) -> Router {
    let events = handle.clone();
    let deaf = Arc::clone(&scene);
    let echo = Arc::clone(&scene);
    let tunnel = Arc::clone(&scene);
    Router::new()
        .route("/", get(async || "ok"))
        .route(
            "/slow",
            any(async move || {
                let _dropped = Dropped(Arc::clone(&scene));
                scene.entered.add_permits(1);
                scene.release.acquire().await.unwrap().forget();
                "slow"
            }),
        )
        .route("/big", get(async || Bytes::from(vec![b'x'; BIG])))
        .route("/count", post(async |body: Bytes| body.len().to_string()))
        .route("/read", post(read))
        .route(
            "/later",
            post(async |body: Body| {
                tokio::spawn(read(body));
                "later"
            }),
        )
        .route(
            "/peer",
            get(async |request: axum::extract::Request| {
                let cx = request.extensions().get::<server::RequestCx>().unwrap();
                format!("{:?}, stopping: {}", cx.remote_addr(), cx.is_stopping())
            }),
        )
        .route("/refuse", post(async || (http::StatusCode::PAYLOAD_TOO_LARGE, "too large")))
        .route("/panic", get(async || -> &'static str { panic!("a handler's own fault") }))
        .route(
            "/events",
            get(async move || {
                let first = stream::iter([Ok::<_, std::io::Error>("data: 1\n\n")]);
                let all = stream::StreamExt::chain(first, stream::pending());
                Body::from_stream(server::until_stopping(all, &events))
            }),
        )
        .route(
            "/deaf",
            get(async move || {
                deaf.entered.add_permits(1);
                Body::from_stream(stream::pending::<Result<Bytes, std::io::Error>>())
            }),
        )
        .route("/echo", get(async move |request| upgrade(request, echo).await))
        .fallback(async move |request: axum::extract::Request| match *request.method() {
            http::Method::CONNECT => {
                echo_to(request, tunnel);
                http::StatusCode::OK
            }
            _ => http::StatusCode::NOT_FOUND,
        })
        .merge(server::axum::probes(handle.readiness()))
}

/// Reads to the end, and says why that did not come.
async fn read(body: Body) -> (http::StatusCode, String) {
    match axum::body::to_bytes(body, usize::MAX).await {
        Ok(body) => (http::StatusCode::OK, body.len().to_string()),
        Err(error) => (http::StatusCode::INSUFFICIENT_STORAGE, source_of(&error).to_string()),
    }
}

fn source_of(error: &dyn std::error::Error) -> &dyn std::error::Error {
    error.source().map_or(error, source_of)
}

async fn upgrade(request: axum::extract::Request, scene: Arc<Scene>) -> impl IntoResponse {
    echo_to(request, scene);
    (http::StatusCode::SWITCHING_PROTOCOLS, [("connection", "upgrade"), ("upgrade", "echo")])
}

/// Echoes until it reads the end.
fn echo_to(request: axum::extract::Request, scene: Arc<Scene>) {
    tokio::spawn(async move {
        let _dropped = Dropped(Arc::clone(&scene));
        let upgraded = hyper::upgrade::on(request).await.unwrap();
        scene.entered.add_permits(1);
        let mut io = hyper_util::rt::TokioIo::new(upgraded);
        let mut buf = [0; 64];
        while let Ok(read @ 1..) = io.read(&mut buf).await {
            if io.write_all(&buf[..read]).await.is_err() {
                break;
            }
        }
    });
}

// === impl Client ===

pub fn get_request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n")
}

impl Client {
    pub async fn to(addr: impl tokio::net::ToSocketAddrs) -> Client {
        let stream = TcpStream::connect(addr).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Client(stream)
    }

    pub fn addr(&self) -> SocketAddr {
        self.0.local_addr().unwrap()
    }

    pub async fn send(&mut self, bytes: &str) {
        soon(self.0.write_all(bytes.as_bytes())).await.unwrap();
    }

    pub async fn try_send(&mut self, bytes: &str) -> std::io::Result<()> {
        soon(self.0.write_all(bytes.as_bytes())).await
    }

    /// Sends without giving the server a chance to run.
    pub fn send_at_once(&mut self, bytes: &str) {
        assert_eq!(self.0.try_write(bytes.as_bytes()).unwrap(), bytes.len());
    }

    pub async fn ask(&mut self, path: &str) -> Answer {
        self.send(&get_request(path)).await;
        self.answer().await
    }

    pub async fn answer(&mut self) -> Answer {
        self.try_answer().await.expect("an answer")
    }

    /// The next answer, whole; `None` if the connection ends before it does.
    pub async fn try_answer(&mut self) -> Option<Answer> {
        let head = self.head().await?;
        let field = |name: &str| {
            let line = head.lines().find(|line| line.to_ascii_lowercase().starts_with(name))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let mut body = Vec::new();
        if let Some(length) = field("content-length") {
            body.resize(length.parse().unwrap(), 0);
            soon(self.0.read_exact(&mut body)).await.ok()?;
        } else if field("transfer-encoding").is_some() {
            while let Some(chunk) = self.chunk().await? {
                body.extend(chunk);
            }
        }
        let status = head.split(' ').nth(1)?.parse().unwrap();
        Some(Answer { status, head: head.to_ascii_lowercase(), body })
    }

    pub async fn head(&mut self) -> Option<String> {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(soon(self.0.read_u8()).await.ok()?);
        }
        Some(String::from_utf8(head).unwrap())
    }

    /// The first chunk of an answer, past its head; `None` where that has been read, and there is only the final one.
    pub async fn chunk_or_head(&mut self) -> Option<Vec<u8>> {
        let mut first = [0; 1];
        if self.peek(&mut first).await == b'H' {
            self.head().await?;
            return self.chunk().await?;
        }
        assert_eq!(self.chunk().await, Some(None), "the final chunk");
        None
    }

    /// The next chunk of a body; `Some(None)` for the final one, `None` if the connection ends without it.
    pub async fn chunk(&mut self) -> Option<Option<Vec<u8>>> {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.push(soon(self.0.read_u8()).await.ok()?);
        }
        let size = usize::from_str_radix(std::str::from_utf8(&line).unwrap().trim(), 16).unwrap();
        let mut chunk = vec![0; size + 2];
        soon(self.0.read_exact(&mut chunk)).await.ok()?;
        chunk.truncate(size);
        Some((size > 0).then_some(chunk))
    }

    pub async fn read(&mut self, buf: &mut [u8]) -> usize {
        soon(self.0.read(buf)).await.unwrap_or(0)
    }

    pub async fn peek(&mut self, buf: &mut [u8; 1]) -> u8 {
        soon(self.0.peek(buf)).await.unwrap();
        buf[0]
    }

    /// Waits for the end, and whether it was one without a reset and without another byte.
    pub async fn ends_cleanly(&mut self) -> bool {
        matches!(soon(self.0.read(&mut [0; 64])).await, Ok(0))
    }

    /// Has no more to send.
    pub async fn half_close(&mut self) {
        self.0.shutdown().await.unwrap();
    }

    /// What comes until the end, or why that did not come.
    pub async fn rest(&mut self) -> std::io::Result<Vec<u8>> {
        let mut rest = Vec::new();
        soon(self.0.read_to_end(&mut rest)).await?;
        Ok(rest)
    }

    pub fn into_stream(self) -> TcpStream {
        self.0
    }
}

// === impl Answer ===

impl Answer {
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub fn says_close(&self) -> bool {
        self.head.contains("connection: close")
    }
}

pub async fn soon<F: Future>(future: F) -> F::Output {
    within::within(SOON, future).await
}

/// What was said at the end, of which every ledger adds up.
pub async fn ended(run: JoinHandle<Report>) -> Report {
    let report = soon(run).await.unwrap();
    assert!(report.gates().iter().all(GateReport::adds_up), "{report}");
    report
}

/// What was cut at any gate, by the state that it was in.
pub fn cuts(report: &Report) -> Vec<(String, usize)> {
    report.gates().iter().flat_map(|gate| gate.cut.clone()).collect()
}

pub fn drained_in(report: &Report) -> Duration {
    report.phase(Phase::Drain).unwrap().took
}

/// Reads the rest slowly, a piece at a time.
pub fn read_slowly(stream: std::net::TcpStream, piece: usize, pause: Duration) -> usize {
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(SOON / 2)).unwrap();
    let (mut stream, mut buf, mut read) = (stream, vec![0; piece], 0);
    loop {
        match stream.read(&mut buf) {
            Ok(0) | Err(_) => return read,
            Ok(more) => read += more,
        }
        std::thread::sleep(pause);
    }
}
