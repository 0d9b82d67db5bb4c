//! A line to a server that can be slow, lose answers, be cut and closed, and counts who calls.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
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
    refused: AtomicU64,
    loses: Mutex<Option<Loss>>,
    /// Each change cuts what is connected.
    cuts: watch::Sender<u64>,
}

/// An answer that is to be lost: the request arrives, and its connection is cut.
struct Loss {
    /// What it holds; any answer holds nothing.
    bait: Vec<u8>,
    /// Nobody is let through from then on.
    closes: bool,
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
            refused: AtomicU64::new(0),
            loses: Mutex::new(None),
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

    /// Loses the next answer, whichever it is.
    pub fn lose_the_next_answer(&self) {
        *self.state.loses.lock().unwrap() = Some(Loss { bait: Vec::new(), closes: false });
    }

    /// Loses the answer that holds this, and lets nobody through from then on, until opened.
    pub fn lose_the_answer_and_close(&self, bait: &str) {
        *self.state.loses.lock().unwrap() = Some(Loss { bait: bait.into(), closes: true });
    }

    /// Lets through who comes next.
    pub fn open(&self) {
        self.state.closed.store(false, Ordering::SeqCst);
    }

    /// How many were not let through so far.
    pub fn refused(&self) -> u64 {
        self.state.refused.load(Ordering::SeqCst)
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

// === impl State ===

impl State {
    fn loses(&self, answer: &[u8]) -> bool {
        let mut loses = self.loses.lock().unwrap();
        let bites = |loss: &mut Loss| {
            loss.bait.is_empty() || answer.windows(loss.bait.len()).any(|part| part == loss.bait)
        };
        let Some(loss) = loses.take_if(bites) else { return false };
        self.closed.fetch_or(loss.closes, Ordering::SeqCst);
        true
    }
}

async fn accept(listener: TcpListener, state: Arc<State>) {
    while let Ok((client, _)) = listener.accept().await {
        state.calls.fetch_add(1, Ordering::SeqCst);
        let mut cuts = state.cuts.subscribe();
        let state = Arc::clone(&state);
        tokio::spawn(async move {
            if state.closed.load(Ordering::SeqCst) {
                state.refused.fetch_add(1, Ordering::SeqCst);
                return;
            }
            tokio::select! {
                _ = cuts.changed() => {}
                () = serve(client, &state) => {}
            }
        });
    }
}

async fn serve(client: TcpStream, state: &State) {
    let Ok(server) = UnixStream::connect(&state.server).await else { return };
    let _ = client.set_nodelay(true);
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = carry(from_client, to_server, state, |_| false) => {}
        () = carry(from_server, to_client, state, |answer| state.loses(answer)) => {}
    }
}

/// Carries what comes, until it ends or something of it is lost.
async fn carry(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    state: &State,
    is_lost: impl Fn(&[u8]) -> bool,
) {
    let (sender, mut chunks) = mpsc::unbounded_channel::<(Instant, Vec<u8>)>();
    let read = async move {
        let mut buffer = vec![0; 16 * 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            if is_lost(&buffer[..count]) {
                return;
            }
            let due = Instant::now() + Duration::from_millis(state.delay_ms.load(Ordering::SeqCst));
            if sender.send((due, buffer[..count].to_vec())).is_err() {
                return;
            }
        }
    };
    let write = async {
        while let Some((due, chunk)) = chunks.recv().await {
            // A timer has no less than a millisecond.
            if due > Instant::now() {
                sleep_until(due).await;
            }
            if to.write_all(&chunk).await.is_err() {
                return;
            }
        }
    };
    tokio::join!(read, write);
}
