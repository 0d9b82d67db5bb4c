//! A client that speaks HTTP/1 in bytes.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::timeout;

/// Longer than any server lives after its signal.
const PATIENCE: Duration = Duration::from_secs(20);

pub struct Client {
    stream: TcpStream,
    /// What has come and is not read.
    ahead: Vec<u8>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

/// What a client gets that waits for an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Got {
    Answer(Answer),
    /// The end, without a byte of an answer.
    Closed,
    Reset,
    /// The end, or a reset, within an answer.
    Torn,
    Nothing,
}

/// How the bytes end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Closed,
    Reset,
    Patience,
}

pub fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n")
}

// === impl Client ===

impl Client {
    pub async fn connect(addr: SocketAddr) -> io::Result<Client> {
        Self::over(TcpSocket::new_v4()?, addr).await
    }

    /// Most of a big answer stays with the server until it is read.
    pub async fn connect_with_small_buffer(addr: SocketAddr) -> io::Result<Client> {
        let socket = TcpSocket::new_v4()?;
        socket.set_recv_buffer_size(1 << 16)?;
        Self::over(socket, addr).await
    }

    async fn over(socket: TcpSocket, addr: SocketAddr) -> io::Result<Client> {
        let stream = timeout(PATIENCE, socket.connect(addr)).await??;
        stream.set_nodelay(true)?;
        Ok(Client { stream, ahead: Vec::new() })
    }

    /// One that has had an answer and is kept.
    pub async fn kept(addr: SocketAddr) -> io::Result<Client> {
        let mut client = Self::connect(addr).await?;
        match client.ask("/").await {
            got if got.is(200) => Ok(client),
            got => Err(io::Error::other(format!("the first answer is: {got}"))),
        }
    }

    pub async fn send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        timeout(PATIENCE, self.stream.write_all(bytes.as_ref())).await?
    }

    /// Sends a little, in this very moment.
    pub fn send_at_once(&self, bytes: &str) -> io::Result<()> {
        self.stream.try_write(bytes.as_bytes()).map(drop)
    }

    pub async fn finish_sending(&mut self) -> io::Result<()> {
        self.stream.shutdown().await
    }

    pub async fn ask(&mut self, path: &str) -> Got {
        match self.send(get(path)).await {
            Ok(()) => self.answer().await,
            Err(_) => Got::Reset,
        }
    }

    /// The next answer, whole.
    pub async fn answer(&mut self) -> Got {
        let head = match self.head().await {
            Ok(head) => head,
            Err(got) => return got,
        };
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
        let field = |name: &str| {
            let line = head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            Some(line.trim().to_owned())
        };
        let mut body = Vec::new();
        if let Some(length) = field("content-length").and_then(|length| length.parse().ok()) {
            match self.exactly(length).await {
                Ok(bytes) => body = bytes,
                Err(_) => return Got::Torn,
            }
        } else if field("transfer-encoding").is_some() {
            loop {
                match self.chunk().await {
                    Ok(chunk) if chunk.is_empty() => break,
                    Ok(chunk) => body.extend(chunk),
                    Err(_) => return Got::Torn,
                }
            }
        }
        Got::Answer(Answer { status, head, body })
    }

    /// The head of the next answer, in lower case.
    pub async fn head(&mut self) -> Result<String, Got> {
        loop {
            if let Some(end) = self.ahead.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
                let head = self.ahead.drain(..end + 4).collect::<Vec<_>>();
                return Ok(String::from_utf8_lossy(&head).to_ascii_lowercase());
            }
            if let Err(end) = self.more(1 << 12).await {
                return Err(if self.ahead.is_empty() { end.into() } else { Got::Torn });
            }
        }
    }

    /// The next chunk of a body; an empty one is the final one.
    pub async fn chunk(&mut self) -> Result<Vec<u8>, Got> {
        let size = loop {
            if let Some(end) = self.ahead.windows(2).position(|bytes| bytes == b"\r\n") {
                let line = self.ahead.drain(..end + 2).collect::<Vec<_>>();
                let size = String::from_utf8_lossy(&line[..end]).into_owned();
                break usize::from_str_radix(&size, 16).map_err(|_| Got::Torn)?;
            }
            self.more(1 << 12).await.map_err(Got::from)?;
        };
        let mut chunk = self.exactly(size + 2).await?;
        chunk.truncate(size);
        Ok(chunk)
    }

    pub async fn exactly(&mut self, length: usize) -> Result<Vec<u8>, Got> {
        while self.ahead.len() < length {
            self.more(length - self.ahead.len()).await.map_err(Got::from)?;
        }
        Ok(self.ahead.drain(..length).collect())
    }

    /// As [`exactly`](Self::exactly), in sips, with a pause between.
    pub async fn slowly(&mut self, length: usize, sip: usize, pause: Duration) -> Result<(), Got> {
        let mut left = length;
        while left > 0 {
            let next = left.min(sip);
            self.exactly(next).await?;
            left -= next;
            tokio::time::sleep(pause).await;
        }
        Ok(())
    }

    /// Waits for the end, whatever comes before it: how long that took, and whether it was without a reset.
    pub async fn end(&mut self) -> (Duration, bool) {
        let since = Instant::now();
        loop {
            self.ahead.clear();
            match self.more(1 << 16).await {
                Ok(()) => {}
                Err(end) => return (since.elapsed(), end == End::Closed),
            }
        }
    }

    /// The socket, for what reads and writes without tokio; each of its waits has a limit.
    pub fn into_blocking(self) -> io::Result<std::net::TcpStream> {
        let stream = self.stream.into_std()?;
        stream.set_nonblocking(false)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(stream)
    }

    async fn more(&mut self, length: usize) -> Result<(), End> {
        let have = self.ahead.len();
        self.ahead.resize(have + length, 0);
        let read = timeout(PATIENCE, self.stream.read(&mut self.ahead[have..])).await;
        self.ahead.truncate(have + read.as_ref().map_or(0, |read| *read.as_ref().unwrap_or(&0)));
        match read {
            Err(_) => Err(End::Patience),
            Ok(Err(_)) => Err(End::Reset),
            Ok(Ok(0)) => Err(End::Closed),
            Ok(Ok(_)) => Ok(()),
        }
    }
}

// === impl Got ===

impl Got {
    pub fn is(&self, status: u16) -> bool {
        matches!(self, Got::Answer(answer) if answer.status == status)
    }
}

impl From<End> for Got {
    fn from(end: End) -> Self {
        match end {
            End::Closed => Got::Closed,
            End::Reset => Got::Reset,
            End::Patience => Got::Nothing,
        }
    }
}

impl fmt::Display for Got {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Got::Answer(answer) => write!(f, "{}", answer.status),
            Got::Closed => f.write_str("closed without an answer"),
            Got::Reset => f.write_str("reset"),
            Got::Torn => f.write_str("cut short"),
            Got::Nothing => f.write_str("no answer"),
        }
    }
}
