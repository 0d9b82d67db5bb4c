//! Both ends of TLS, with a certificate that only they know.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;

use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::{PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, Stream};

use crate::child::Result;

const NAME: &str = "localhost";

/// The client's end, which has its first message ready.
pub struct Hello {
    connection: ClientConnection,
    pub bytes: Vec<u8>,
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// A new certificate, and its form for [`Hello::new`].
pub fn server() -> Result<(Arc<ServerConfig>, String)> {
    let made = rcgen::generate_simple_self_signed([NAME.to_owned()])?;
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der())?;
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    let mut hex = String::new();
    for byte in made.cert.der().iter() {
        let _ = write!(hex, "{byte:02x}");
    }
    Ok((Arc::new(config), hex))
}

// === impl Hello ===

impl Hello {
    pub fn new(certificate: &str) -> Result<Hello> {
        let bytes = certificate.as_bytes().chunks(2);
        let bytes = bytes.map(|two| Ok(u8::from_str_radix(std::str::from_utf8(two)?, 16)?));
        let mut roots = RootCertStore::empty();
        roots.add(bytes.collect::<Result<Vec<u8>>>()?.into())?;
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let mut connection = ClientConnection::new(Arc::new(config), ServerName::try_from(NAME)?)?;
        let mut bytes = Vec::new();
        connection.write_tls(&mut bytes)?;
        Ok(Hello { connection, bytes })
    }

    /// With all bytes sent: the rest of the handshake, and what is answered to a request.
    pub fn ask(mut self, mut stream: TcpStream, request: &str) -> std::io::Result<String> {
        let mut tls = Stream::new(&mut self.connection, &mut stream);
        tls.write_all(request.as_bytes())?;
        let mut answer = vec![0; 1 << 12];
        let read = tls.read(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer[..read]).into_owned())
    }
}
