//! As much of HTTP/1.1 as these tests speak.

use std::io::{Error, ErrorKind, Result};
use std::net::SocketAddr;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// A connection, kept for as many requests as the server likes.
pub struct Client(BufReader<TcpStream>);

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    headers: Vec<(String, String)>,
    pub body: String,
}

// === impl Client ===

impl Client {
    pub async fn connect(address: SocketAddr) -> Result<Client> {
        Ok(Client(BufReader::new(TcpStream::connect(address).await?)))
    }

    pub async fn get(&mut self, path: &str) -> Result<Answer> {
        self.request("GET", path, b"").await
    }

    /// Places an order.
    pub async fn post(&mut self, order: impl AsRef<[u8]>) -> Result<Answer> {
        self.request("POST", "/orders", order.as_ref()).await
    }

    pub async fn request(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Answer> {
        let mut answer = self.begin(method, path, body).await?;
        let mut body = Vec::new();
        if answer.header("transfer-encoding").is_some_and(|coding| coding.contains("chunked")) {
            while let Some(chunk) = self.chunk().await? {
                body.extend(chunk.into_bytes());
            }
        } else {
            let length = answer.header("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
            body.resize(length, 0);
            self.0.read_exact(&mut body).await?;
        }
        answer.body = String::from_utf8_lossy(&body).into_owned();
        Ok(answer)
    }

    /// Sends a request and reads the head of the answer; [`chunk`](Client::chunk) reads on.
    pub async fn begin(&mut self, method: &str, path: &str, body: &[u8]) -> Result<Answer> {
        let head =
            format!("{method} {path} HTTP/1.1\r\nhost: test\r\ncontent-length: {}\r\n\r\n", body.len());
        self.0.get_mut().write_all(&[head.as_bytes(), body].concat()).await?;
        let status = self.line().await?;
        let status = status.split(' ').nth(1).and_then(|code| code.parse().ok());
        let status = status.ok_or_else(|| Error::new(ErrorKind::InvalidData, "no status line"))?;
        let mut headers = Vec::new();
        loop {
            let line = self.line().await?;
            match line.split_once(':') {
                Some((name, value)) => headers.push((name.to_lowercase(), value.trim().to_owned())),
                None => break,
            }
        }
        Ok(Answer { status, headers, body: String::new() })
    }

    /// The next chunk of a body, `None` for the final one; a body that is cut short is an error.
    pub async fn chunk(&mut self) -> Result<Option<String>> {
        let size = self.line().await?;
        let size =
            usize::from_str_radix(&size, 16).map_err(|error| Error::new(ErrorKind::InvalidData, error))?;
        let mut chunk = vec![0; size + 2];
        self.0.read_exact(&mut chunk).await?;
        chunk.truncate(size);
        Ok((size > 0).then(|| String::from_utf8_lossy(&chunk).into_owned()))
    }

    async fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        if self.0.read_line(&mut line).await? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(line.trim_end().to_owned())
    }
}

// === impl Answer ===

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// What `{"error": …}` says, with nothing beside it.
    #[track_caller]
    pub fn error(&self) -> String {
        let json = self.json();
        assert_eq!(json.as_object().map(|object| object.len()), Some(1), "{self:?}");
        json["error"].as_str().unwrap_or_else(|| panic!("no error: {self:?}")).to_owned()
    }
}
