//! Servers on whatever they are given, and clients that ask once.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::routing::get;
use tokio::task::JoinHandle;
use winddown::server::{self, Listener, Server};
use winddown::{Budget, Report, ShutdownCoordinator, ShutdownHandle, signal};

#[path = "../support/within.rs"]
mod within;

/// Far more than anything here takes on a slow machine.
pub const SOON: Duration = Duration::from_secs(30);
pub const MS: Duration = Duration::from_millis(1);

pub struct Running {
    pub handle: ShutdownHandle,
    report: JoinHandle<Report>,
}

/// A socket that a client has connected, with its request sent; blocking.
pub enum Client {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// What handlers were asked for, in order.
pub type Asked = Arc<Mutex<Vec<String>>>;

/// Says its own name to all who ask, and writes down what they asked for.
pub fn app(name: &'static str, asked: &Asked) -> Router {
    let asked = Arc::clone(asked);
    let answer = async move |uri: axum::http::Uri| {
        asked.lock().unwrap().push(uri.path().to_owned());
        name
    };
    Router::new().fallback(get(answer))
}

pub fn coordinator() -> ShutdownCoordinator {
    let budget = Budget::given(Duration::from_secs(20), "test").unready(Duration::ZERO);
    ShutdownCoordinator::new(budget, signal::none()).unwrap()
}

pub async fn soon<F: Future>(future: F) -> F::Output {
    within::within(SOON, future).await
}

/// Connects, by a thread that may block for as long as it takes.
pub async fn ask(at: Client) -> io::Result<String> {
    soon(tokio::task::spawn_blocking(move || at.answer())).await.unwrap()
}

// === impl Running ===

impl Running {
    pub async fn start(name: &'static str, listener: impl Into<Listener>) -> Running {
        Running::with(server::axum::serve("http", listener, app(name, &Asked::default()))).await
    }

    pub async fn with(server: Server<Router>) -> Running {
        let mut shutdown = coordinator();
        shutdown.add(server);
        let handle = shutdown.handle();
        Running { handle, report: tokio::spawn(shutdown.run()) }
    }

    pub async fn stop(self) -> Report {
        assert!(self.handle.trigger("test"));
        self.ended().await
    }

    pub async fn ended(self) -> Report {
        let report = soon(self.report).await.unwrap();
        assert!(report.gates().iter().all(winddown::GateReport::adds_up), "{report}");
        report
    }
}

// === impl Client ===

impl Client {
    pub fn tcp(at: SocketAddr, path: &str) -> io::Result<Client> {
        let mut stream = TcpStream::connect_timeout(&at, SOON)?;
        stream.set_read_timeout(Some(SOON))?;
        stream.write_all(request(path).as_bytes())?;
        Ok(Client::Tcp(stream))
    }

    pub fn unix(at: &Path, path: &str) -> io::Result<Client> {
        let mut stream = UnixStream::connect(at)?;
        stream.set_read_timeout(Some(SOON))?;
        stream.write_all(request(path).as_bytes())?;
        Ok(Client::Unix(stream))
    }

    /// The body of the one answer, to the end of the connection.
    pub fn answer(self) -> io::Result<String> {
        let mut text = String::new();
        match self {
            Client::Tcp(mut stream) => stream.read_to_string(&mut text)?,
            Client::Unix(mut stream) => stream.read_to_string(&mut text)?,
        };
        match text.split_once("\r\n\r\n") {
            Some((head, body)) if head.starts_with("HTTP/1.1 200 ") && !body.is_empty() => {
                Ok(body.to_owned())
            }
            _ => Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("no answer: {text:?}"))),
        }
    }
}

fn request(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n")
}

/// A folder for a Unix socket, and the socket's path.
pub fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("http.sock");
    (folder, path)
}
