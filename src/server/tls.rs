//! TLS, by rustls.

use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::server::TlsStream;

use super::Server;
use super::handshake::{Handshake, Secured};
use super::transport::{Io, Transport};
use crate::budget::LONGEST;

/// What the server speaks, in the order of its liking.
const SPOKEN: [&[u8]; 2] = [b"h2", b"http/1.1"];

// === impl Server ===

impl<S> Server<S> {
    /// Speaks TLS on all of its listeners; the configuration holds the certificates and chooses the cryptography.
    ///
    /// If it names no protocols (ALPN), HTTP/2 and HTTP/1.1 are offered; to leave one out, name the other. What comes
    /// through is served as without TLS, and ends with a `close_notify` wherever it ends by itself; what is cut does not
    /// claim to be complete.
    ///
    /// A handshake runs beside all others, is a connection in flight, and has its [limit](Server::handshake_limit). One that
    /// is under way when intake stops gets [`head_grace`](Server::head_grace) to be completed and then has its request
    /// answered.
    ///
    /// ```no_run
    /// # use winddown::server::rustls::{crypto::CryptoProvider, pki_types::{CertificateDer, PrivateKeyDer}};
    /// # fn example(certs: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>, provider: CryptoProvider,
    /// #     shutdown: &mut winddown::ShutdownCoordinator, listener: std::net::TcpListener, app: axum::Router)
    /// # -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    /// use winddown::server::{self, rustls};
    ///
    /// let config = rustls::ServerConfig::builder_with_provider(Arc::new(provider))
    ///     .with_safe_default_protocol_versions()?
    ///     .with_no_client_auth()
    ///     .with_single_cert(certs, key)?;
    /// shutdown.add(server::axum::serve("https", listener, app).tls(Arc::new(config)));
    /// # Ok(()) }
    /// ```
    pub fn tls(mut self, config: Arc<ServerConfig>) -> Self {
        let mut config = config;
        if config.alpn_protocols.is_empty() {
            Arc::make_mut(&mut config).alpn_protocols = SPOKEN.map(<[u8]>::to_vec).to_vec();
        }
        self.handshake = Some(Arc::new(TlsAcceptor::from(config)));
        self
    }

    /// How long a TLS handshake may take, from the connection's first moment; 10 s when not given. Then it is cut.
    pub fn handshake_limit(mut self, limit: Duration) -> Self {
        self.limits.handshake = limit.min(LONGEST);
        self
    }
}

// === impl TlsAcceptor ===

impl Handshake for TlsAcceptor {
    fn begin(&self, stream: Transport) -> Secured {
        let accepted = self.accept(stream);
        Box::pin(async move { accepted.await.map(|stream| Box::new(stream) as Box<dyn Io>) })
    }
}

// === impl TlsStream ===

impl Io for TlsStream<Transport> {
    fn socket(&self) -> Option<SockRef<'_>> {
        self.get_ref().0.socket()
    }
}
