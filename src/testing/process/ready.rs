//! When a process counts as ready.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use super::error::ProcessError;
use super::exit::Stream;
use super::running::Running;

/// How often an address is asked, and how long one answer may take.
const ASK_EVERY: Duration = Duration::from_millis(20);
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(super) enum Ready {
    Started,
    Line(String),
    Url(String),
}

struct Address<'a> {
    host: &'a str,
    path: &'a str,
}

// === impl Ready ===

impl Ready {
    /// Refuses an address that cannot be asked before anything is started.
    pub(super) fn check(&self) -> io::Result<()> {
        match self {
            Ready::Url(url) => Address::parse(url).map(drop),
            Ready::Started | Ready::Line(_) => Ok(()),
        }
    }

    pub(super) async fn reached(&self, running: &Running) -> Result<(), ProcessError> {
        match self {
            Ready::Started => Ok(()),
            Ready::Line(start) => {
                let matches = |state: &super::watch::State| {
                    let mut lines = state.lines.iter();
                    lines
                        .any(|line| line.stream == Stream::Stdout && line.text.starts_with(start))
                        .then_some(())
                };
                running.until(&format!("the line `{start}`"), matches).await
            }
            Ready::Url(url) => {
                let answered = async {
                    while !Address::parse(url)?.answers().await {
                        sleep(ASK_EVERY).await;
                    }
                    Ok::<_, io::Error>(())
                };
                let awaited = format!("200 from {url}");
                tokio::select! {
                    // Answers by somebody else on the same port are no answer of a process that is gone.
                    biased;
                    gone = running.until(&awaited, |_| None::<()>) => gone,
                    answered = answered => answered.map_err(|error| ProcessError::not_started(url, error)),
                }
            }
        }
    }
}

// === impl Address ===

impl<'a> Address<'a> {
    fn parse(url: &'a str) -> io::Result<Self> {
        let refused =
            || io::Error::new(io::ErrorKind::InvalidInput, format!("`{url}` is not http://HOST:PORT/PATH"));
        let rest = url.strip_prefix("http://").ok_or_else(refused)?;
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let port = host.rsplit_once(':').map(|(_, port)| port.parse::<u16>());
        if !matches!(port, Some(Ok(_))) || url.contains(char::is_whitespace) {
            return Err(refused());
        }
        Ok(Address { host, path: if path.is_empty() { "/" } else { path } })
    }

    async fn answers(&self) -> bool {
        matches!(timeout(ANSWER_WITHIN, self.status()).await, Ok(Ok(status)) if status == *b"200")
    }

    async fn status(&self) -> io::Result<[u8; 3]> {
        let mut stream = TcpStream::connect(self.host).await?;
        let request =
            format!("GET {} HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", self.path, self.host);
        stream.write_all(request.as_bytes()).await?;
        let mut start = [0; "HTTP/1.1 200".len()];
        stream.read_exact(&mut start).await?;
        // Read to its end: closing earlier would reset the connection, and the server would log an error.
        tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
        Ok([start[9], start[10], start[11]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_cannot_be_asked_is_refused() {
        for url in [
            "https://localhost:1/",
            "localhost:1",
            "http://localhost/readyz",
            "http://localhost:x/",
            "http://a:1/ b",
        ] {
            assert!(Address::parse(url).is_err(), "{url}");
        }
        assert_eq!(Address::parse("http://[::1]:80").map(|address| address.path).ok(), Some("/"));
        assert_eq!(
            Address::parse("http://localhost:80/readyz?x").map(|address| address.path).ok(),
            Some("/readyz?x")
        );
    }
}
