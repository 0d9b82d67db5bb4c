//! A line to a server that can be slow, cut and closed, and counts who calls.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep_until};

pub struct Proxy {
    address: SocketAddr,
    state: Arc<State>,
    accepting: AbortHandle,
}

struct State {
    server: PathBuf,
    delay_ms: AtomicU64,
    closed: AtomicBool,
    calls: AtomicU64,
    /// Each change cuts what is connected.
    cuts: watch::Sender<u64>,
}

// === impl Proxy ===

impl Proxy {
    /// In front of the server on this socket; on the runtime of the test, which must have a thread to spare.
    pub async fn to(server: &Path) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(State {
            server: server.to_owned(),
            delay_ms: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            calls: AtomicU64::new(0),
            cuts: watch::Sender::new(0),
        });
        let accepting = tokio::spawn(accept(listener, Arc::clone(&state))).abort_handle();
        Proxy { address, state, accepting }
    }

    pub fn url(&self) -> String {
        format!("redis://{}", self.address)
    }

    /// What is sent from now on takes so long, each way.
    pub fn delay(&self, delay: Duration) {
        self.state.delay_ms.store(delay.as_millis() as u64, Ordering::SeqCst);
    }

    /// Cuts all connections; the next are let through.
    pub fn cut(&self) {
        self.state.cuts.send_modify(|cuts| *cuts += 1);
    }

    /// Cuts all connections, and each that comes, until opened again.
    pub fn close(&self, closed: bool) {
        self.state.closed.store(closed, Ordering::SeqCst);
        self.cut();
    }

    /// How many connections were asked for so far.
    pub fn calls(&self) -> u64 {
        self.state.calls.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.close(true);
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    while let Ok((client, _)) = listener.accept().await {
        state.calls.fetch_add(1, Ordering::SeqCst);
        let mut cuts = state.cuts.subscribe();
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            if state.closed.load(Ordering::SeqCst) {
                return;
            }
            tokio::select! {
                _ = cuts.changed() => {}
                () = serve(client, &state) => {}
            }
        });
    }
}

async fn serve(client: TcpStream, state: &Arc<State>) {
    let Ok(server) = UnixStream::connect(&state.server).await else { return };
    let _ = client.set_nodelay(true);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = carry(from_client, to_server, state) => {}
        () = carry(from_server, to_client, state) => {}
    }
}

async fn carry(
    mut from: impl AsyncRead + Unpin + Send + 'static,
    mut to: impl AsyncWrite + Unpin,
    state: &Arc<State>,
) {
    let (sender, mut chunks) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            let due = Instant::now() + Duration::from_millis(state.delay_ms.load(Ordering::SeqCst));
            if sender.send((due, buffer[..count].to_vec())).is_err() {
                return;
            }
        }
    };
    let write = async {
        while let Some((due, chunk)) = chunks.recv().await {
            sleep_until(due).await;
            if to.write_all(&chunk).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(read, write);
}
