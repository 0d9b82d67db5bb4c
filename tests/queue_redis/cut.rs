//! A way to a server that can lose an answer: the request arrives, its answer does not, and the connection is cut.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

pub struct Cut {
    loses: Arc<AtomicBool>,
    folder: TempDir,
}

// === impl Cut ===

impl Cut {
    pub async fn before(server: &Path) -> Cut {
        let folder = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(folder.path().join("cut.sock")).unwrap();
        let loses = Arc::new(AtomicBool::new(false));
        let (server, lose) = (server.to_owned(), Arc::clone(&loses));
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = UnixStream::connect(&server).await.unwrap();
                tokio::spawn(carry(client, server, Arc::clone(&lose)));
            }
        });
        Cut { loses, folder }
    }

    pub fn url(&self) -> String {
        format!("redis+unix://{}", self.folder.path().join("cut.sock").display())
    }

    pub fn lose_the_next_answer(&self) {
        self.loses.store(true, Ordering::SeqCst);
    }
}

async fn carry(client: UnixStream, server: UnixStream, loses: Arc<AtomicBool>) {
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let requests = async { drop(tokio::io::copy(&mut from_client, &mut to_server).await) };
    let answers = async {
        let mut buffer = [0; 65536];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            if loses.swap(false, Ordering::SeqCst) || to_client.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    // Whichever ends first takes the other with it, and both connections are closed.
    tokio::select! {
        () = requests => {}
        () = answers => {}
    }
}
