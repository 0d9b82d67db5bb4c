//! Clients that speak in frames: HTTP/2 and websockets, as far as the scenes need.

use crate::child::Result;
use crate::client::{Client, Got};

pub const PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
pub const REFUSED_STREAM: u32 = 7;

/// A connection of HTTP/2 with prior knowledge.
pub struct Http2(pub Client);

#[derive(Debug)]
pub struct Frame {
    pub kind: u8,
    flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

/// A connection that has become a websocket.
pub struct Websocket(pub Client);

// === impl Http2 ===

impl Http2 {
    pub async fn start(mut client: Client) -> Result<Http2> {
        client.send(PREFACE).await?;
        let mut connection = Http2(client);
        connection.send(SETTINGS, 0, 0, &[]).await?;
        Ok(connection)
    }

    /// Asks for a path of less than 100 bytes.
    pub async fn get(&mut self, stream: u32, path: &str) -> Result<()> {
        // Indexed: GET, http; without indexing: the path, and the authority.
        let mut block = vec![0x82, 0x86, 0x04, path.len() as u8];
        block.extend(path.as_bytes());
        block.extend(b"\x01\x04test");
        self.send(HEADERS, END_STREAM | END_HEADERS, stream, &block).await
    }

    /// Waits until all that was sent before has been seen.
    pub async fn seen(&mut self) -> Result<()> {
        self.send(PING, 0, 0, b"seen yet").await?;
        loop {
            let frame = self.next().await.map_err(|got| got.to_string())?;
            if frame.kind == PING && frame.flags & ACK != 0 {
                return Ok(());
            }
        }
    }

    /// The next frame; settings are taken note of.
    pub async fn next(&mut self) -> std::result::Result<Frame, Got> {
        loop {
            let head = self.0.exactly(9).await?;
            let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let frame =
                Frame { kind: head[3], flags: head[4], stream, payload: self.0.exactly(length).await? };
            if frame.kind != SETTINGS {
                return Ok(frame);
            }
            if frame.flags & ACK == 0 && self.send(SETTINGS, ACK, 0, &[]).await.is_err() {
                return Err(Got::Reset);
            }
        }
    }

    /// Answers a PING, unless it is itself an answer.
    pub async fn pong(&mut self, ping: &Frame) -> Result<()> {
        match ping.flags & ACK {
            0 => self.send(PING, ACK, 0, &ping.payload).await,
            _ => Ok(()),
        }
    }

    async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Result<()> {
        let length = u32::try_from(payload.len())?.to_be_bytes();
        let mut frame = vec![length[1], length[2], length[3], kind, flags];
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        Ok(self.0.send(frame).await?)
    }
}

// === impl Frame ===

impl Frame {
    pub fn ends_stream(&self) -> bool {
        matches!(self.kind, DATA | HEADERS) && self.flags & END_STREAM != 0
    }

    /// Whether it begins an answer of 200, which has a number of its own.
    pub fn is_ok(&self) -> bool {
        self.kind == HEADERS && self.payload.first() == Some(&0x88)
    }

    /// The number at a place of the payload.
    pub fn number(&self, at: usize) -> u32 {
        self.payload
            .get(at..at + 4)
            .map_or(0, |bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }
}

// === impl Websocket ===

impl Websocket {
    pub async fn open(mut client: Client, path: &str) -> Result<Websocket> {
        let upgrade = "connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-version: 13\r\n";
        let key = "sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n";
        client.send(format!("GET {path} HTTP/1.1\r\nhost: test\r\n{upgrade}{key}\r\n")).await?;
        let head = client.head().await.map_err(|got| got.to_string())?;
        if !head.starts_with("http/1.1 101") {
            return Err(head.into());
        }
        Ok(Websocket(client))
    }

    /// Sends a short message, masked with nothing, as a client may.
    pub async fn send(&mut self, kind: u8, message: &[u8]) -> Result<()> {
        let mut frame = vec![0x80 | kind, 0x80 | message.len() as u8, 0, 0, 0, 0];
        frame.extend(message);
        Ok(self.0.send(frame).await?)
    }

    /// The kind and the bytes of the next short message.
    pub async fn next(&mut self) -> std::result::Result<(u8, Vec<u8>), Got> {
        let head = self.0.exactly(2).await?;
        Ok((head[0] & 0x0f, self.0.exactly(usize::from(head[1] & 0x7f)).await?))
    }
}
