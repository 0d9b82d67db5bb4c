//! What a peer has to do before it may speak HTTP; a technology for it stands beside this, in `tls.rs`.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};

use tokio::time::{Instant, sleep_until};

use super::Limits;
use super::peer::Peer;
use super::transport::{Io, Transport};

/// A handshake under way. Dropped, it takes its connection with it.
pub(super) type Secured = Pin<Box<dyn Future<Output = io::Result<Box<dyn Io>>> + Send>>;

pub(super) trait Handshake: Send + Sync {
    fn begin(&self, stream: Transport) -> Secured;
}

/// Waits for the peer's part. A stop shortens what it has left and does not cut it: the request that it is for was sent in good
/// faith. `None` if nothing came of it.
pub(super) async fn completed(secured: Secured, peer: &Peer, limits: &Limits) -> Option<Transport> {
    peer.shake_hands(true);
    let mut secured = pin!(secured);
    let limit = Instant::now() + limits.handshake;
    let serving = tokio::select! {
        biased;
        ended = &mut secured => Some(ended),
        () = peer.gate.stopping() => None,
        () = sleep_until(limit) => return cut(peer),
    };
    let ended = match serving {
        Some(ended) => ended,
        None => tokio::select! {
            biased;
            ended = &mut secured => ended,
            () = peer.gate.cancelled() => return cut(peer),
            () = sleep_until(limit.min(Instant::now() + limits.head_grace)) => return cut(peer),
        },
    };
    peer.shake_hands(false);
    match ended {
        Ok(stream) => Some(Transport::Other(stream)),
        Err(error) => {
            tracing::debug!(target: "winddown", gate = peer.gate.name(), %error, "handshake.failed");
            peer.ended();
            None
        }
    }
}

fn cut(peer: &Peer) -> Option<Transport> {
    peer.cut();
    None
}
