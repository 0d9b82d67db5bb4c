//! A way to a server that swallows the answer to one call, and from then on lets nobody through.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

pub struct Trap {
    state: Arc<State>,
    folder: TempDir,
}

#[derive(Default)]
struct State {
    /// What the answer holds that is to be lost.
    bait: Mutex<Vec<u8>>,
    shut: AtomicBool,
    refused: AtomicUsize,
}

// === impl Trap ===

impl Trap {
    pub fn before(server: &Path, bait: &str) -> Trap {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("trap.sock")).unwrap();
        let state = Arc::new(State { bait: Mutex::new(bait.into()), ..State::default() });
        let (server, shared) = (server.to_owned(), Arc::clone(&state));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if shared.shut.load(Ordering::SeqCst) {
                    shared.refused.fetch_add(1, Ordering::SeqCst);
                    continue;
                }
                let server = UnixStream::connect(&server).await.unwrap();
                tokio::spawn(carry(client, server, Arc::clone(&shared)));
            }
        });
        Trap { state, folder }
    }

    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.folder.path().join("trap.sock").display())
    }

    /// How many were not let through.
    pub fn refused(&self) -> usize {
        self.state.refused.load(Ordering::SeqCst)
    }

    pub fn open(&self) {
        self.state.shut.store(false, Ordering::SeqCst);
    }
}

async fn carry(client: UnixStream, server: UnixStream, state: Arc<State>) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let requests = async { drop(tokio::io::copy(&mut from_client, &mut to_server).await) };
    let answers = async {
        let mut buffer = [0; 65536];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            {
                let mut bait = state.bait.lock().unwrap();
                let answer = &buffer[..read];
                if !bait.is_empty() && answer.windows(bait.len()).any(|part| part == &**bait) {
                    bait.clear();
                    state.shut.store(true, Ordering::SeqCst);
                    return;
                }
            }
            if to_client.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        () = requests => {}
        () = answers => {}
    }
}
