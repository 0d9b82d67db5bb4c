//! A peer that speaks HTTP/2 frame by frame.

use std::collections::VecDeque;
use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::rig::soon;

pub const PREFACE: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The preface and empty SETTINGS: all that a client has to say before it may ask.
pub const START: &str = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;

pub const END_STREAM: u8 = 1;
pub const ACK: u8 = 1;
const END_HEADERS: u8 = 4;

pub const INITIAL_WINDOW_SIZE: u16 = 4;
/// The last stream of a first GOAWAY: all that are on their way are still let in.
pub const ANY: u32 = u32::MAX >> 1;

pub struct Peer {
    stream: TcpStream,
    /// Read while something else was waited for.
    kept: VecDeque<Frame>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

// === impl Peer ===

impl Peer {
    /// Connects, and has said and heard what each side begins with.
    pub async fn connect(addr: SocketAddr, settings: &[(u16, u32)]) -> Peer {
        Self::over(TcpStream::connect(addr).await.unwrap(), settings).await
    }

    /// As [`connect`](Self::connect), on a connection of the test's own.
    pub async fn over(stream: TcpStream, settings: &[(u16, u32)]) -> Peer {
        stream.set_nodelay(true).unwrap();
        let mut peer = Peer { stream, kept: VecDeque::new() };
        peer.send_raw(PREFACE.as_bytes()).await;
        let mut payload = Vec::new();
        for (name, value) in settings {
            payload.extend(name.to_be_bytes());
            payload.extend(value.to_be_bytes());
        }
        peer.send(SETTINGS, 0, 0, &payload).await;
        peer.expect(|frame| frame.kind == SETTINGS && frame.flags == 0).await;
        peer.send(SETTINGS, ACK, 0, &[]).await;
        peer.expect(|frame| frame.kind == SETTINGS && frame.flags == ACK).await;
        peer
    }

    pub async fn send_raw(&mut self, bytes: &[u8]) {
        soon(self.stream.write_all(bytes)).await.unwrap();
    }

    pub async fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let mut frame = u32::try_from(payload.len()).unwrap().to_be_bytes()[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        self.send_raw(&frame).await;
    }

    pub async fn get(&mut self, stream: u32, path: &str) {
        self.request(stream, &[0x82], path, END_STREAM).await;
    }

    pub async fn post(&mut self, stream: u32, path: &str) {
        self.request(stream, &[0x83], path, 0).await;
    }

    pub async fn connect_through(&mut self, stream: u32) {
        let block = b"\x02\x07CONNECT\x01\x04test";
        self.send(HEADERS, END_HEADERS, stream, block).await;
    }

    /// Opens a stream: the method as HPACK has it, `http`, the path, one authority.
    pub async fn request(&mut self, stream: u32, method: &[u8], path: &str, flags: u8) {
        let mut block = method.to_vec();
        block.push(0x86);
        for (name, value) in [(0x04, path), (0x01, "test")] {
            block.extend([name, u8::try_from(value.len()).unwrap()]);
            block.extend(value.as_bytes());
        }
        self.send(HEADERS, flags | END_HEADERS, stream, &block).await;
    }

    /// The next frame; `None` at an end without a reset.
    pub async fn next(&mut self) -> Option<Frame> {
        match self.kept.pop_front() {
            Some(frame) => Some(frame),
            None => self.read().await,
        }
    }

    /// The first frame that is such; the others are kept for later.
    pub async fn expect(&mut self, is: impl Fn(&Frame) -> bool) -> Frame {
        if let Some(at) = self.kept.iter().position(&is) {
            return self.kept.remove(at).unwrap();
        }
        loop {
            let frame = self.read().await.expect("a frame and not the end");
            if is(&frame) {
                return frame;
            }
            self.kept.push_back(frame);
        }
    }

    /// Answers the PING that goes with a first GOAWAY.
    pub async fn acknowledge(&mut self) {
        let ping = self.expect(|frame| frame.kind == PING && frame.flags == 0).await;
        self.send(PING, ACK, 0, &ping.payload).await;
    }

    /// Waits for the GOAWAY that names the last stream that is let in.
    pub async fn goes_away_after(&mut self) -> u32 {
        loop {
            let last = self.expect(|frame| frame.kind == GOAWAY).await.number();
            if last != ANY {
                return last;
            }
        }
    }

    /// The whole body of the answer on a stream, or the code that it was reset with.
    pub async fn body(&mut self, stream: u32) -> Result<Vec<u8>, u32> {
        let mut body = Vec::new();
        loop {
            let ours =
                |frame: &Frame| frame.stream == stream && [DATA, HEADERS, RST_STREAM].contains(&frame.kind);
            let frame = self.expect(ours).await;
            match frame.kind {
                RST_STREAM => return Err(frame.number()),
                DATA => body.extend(&frame.payload),
                _ => {}
            }
            if frame.flags & END_STREAM != 0 {
                return Ok(body);
            }
        }
    }

    async fn read(&mut self) -> Option<Frame> {
        let mut head = [0; 9];
        match soon(self.stream.read(&mut head[..1])).await.expect("no reset") {
            0 => return None,
            _ => soon(self.stream.read_exact(&mut head[1..])).await.expect("a whole frame"),
        };
        let number = |bytes: &[u8]| bytes.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
        let mut payload = vec![0; number(&head[..3]) as usize];
        soon(self.stream.read_exact(&mut payload)).await.expect("a whole frame");
        Some(Frame { kind: head[3], flags: head[4], stream: number(&head[5..]) & ANY, payload })
    }
}

// === impl Frame ===

impl Frame {
    /// What a RST_STREAM or a GOAWAY begins with.
    pub fn number(&self) -> u32 {
        u32::from_be_bytes(self.payload[..4].try_into().unwrap())
    }
}
