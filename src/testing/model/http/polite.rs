//! Peers that keep to the rules: each gets what it asked for, whatever others do and wherever the stop finds it.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::sleep;

use super::MS;
use crate::server::Connector;

const GET: &[u8] = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n";
const POST: &[u8] = b"POST /count HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello";
const CHUNKED: &[u8] = b"POST /count HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\nx: y\r\n\r\n";
const UNREAD: &[u8] = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello";
/// The preface, SETTINGS, and two streams: GET / and GET /s, which takes a while.
const H2: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\
    \0\0\x06\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01a\
    \0\0\x09\x01\x05\0\0\0\x03\x82\x86\x41\x01a\x04\x02/s";

/// When a peer sends, and in which parts.
#[derive(Clone)]
pub(super) struct Polite {
    pub(super) trigger: Duration,
    pub(super) connector: Connector,
    /// Where its bytes are cut, and how long the rest takes.
    pub(super) cut: u8,
}

// === impl Polite ===

impl Polite {
    /// One of each kind.
    pub(super) fn all(&self, mut cut: impl FnMut() -> u8) -> Vec<JoinHandle<()>> {
        let mut one = || Polite { cut: cut(), ..self.clone() };
        vec![
            tokio::spawn(one().asks(&[GET])),
            tokio::spawn(one().asks(&[POST])),
            tokio::spawn(one().asks(&[CHUNKED])),
            tokio::spawn(one().keeps(GET, GET)),
            tokio::spawn(one().keeps(POST, CHUNKED)),
            tokio::spawn(one().keeps(UNREAD, POST)),
            tokio::spawn(one().asks(&[GET, CHUNKED, GET])),
            tokio::spawn(one().opens_streams()),
        ]
    }

    async fn connect(&self) -> DuplexStream {
        sleep(self.trigger.saturating_sub(MS)).await;
        self.connector.connect().expect("it listens")
    }

    /// In two parts: the first before the stop begins, or as it does.
    async fn send(&self, stream: &mut (impl AsyncWriteExt + Unpin), bytes: &[u8]) -> std::io::Result<()> {
        let mut at = 1 + usize::from(self.cut) % (bytes.len() - 1);
        // Not between two requests, where an idle connection may end before the second.
        at += usize::from(
            bytes.len() > at + 1 && bytes[..at].ends_with(b"\n\r\n") && bytes[at..].ends_with(GET),
        );
        let (first, rest) = bytes.split_at(at);
        stream.write_all(first).await?;
        sleep(u32::from(self.cut) * 3 * MS).await;
        stream.write_all(rest).await
    }

    /// Asks all at once, and is answered up to the answer that says that it is the last.
    async fn asks(self, requests: &'static [&'static [u8]]) {
        let (mut reads, mut writes) = tokio::io::split(self.connect().await);
        let all = requests.concat();
        let sends = async {
            // What follows the last answer may find nobody any more.
            let sent = self.send(&mut writes, &all).await;
            assert!(sent.is_ok() || requests.len() > 1, "it is read");
        };
        let answers = async {
            for _ in requests {
                if answer(&mut reads).await {
                    return;
                }
            }
        };
        tokio::join!(sends, answers);
    }

    /// Asks, and asks again on the same connection as the stop begins.
    async fn keeps(self, first: &[u8], second: &[u8]) {
        sleep(self.trigger.saturating_sub(5 * MS)).await;
        let mut stream = self.connector.connect().expect("it listens");
        stream.write_all(first).await.expect("it is read");
        if answer(&mut stream).await {
            return;
        }
        sleep(4 * MS).await;
        self.send(&mut stream, second).await.expect("it is read");
        answer(&mut stream).await;
    }

    /// Speaks HTTP/2, and answers every PING when its own frames are out.
    async fn opens_streams(self) {
        let (reads, mut writes) = tokio::io::split(self.connect().await);
        let (pings, mut pinged) = mpsc::unbounded_channel::<Vec<u8>>();
        let sends = async {
            self.send(&mut writes, H2).await.expect("it is read");
            while let Some(ping) = pinged.recv().await {
                // The last one may find nobody any more.
                let _ = writes.write_all(&ping).await;
            }
        };
        tokio::join!(sends, read_streams(reads, pings));
    }
}

/// Reads until both streams have had their whole answer.
async fn read_streams(mut reads: impl AsyncReadExt + Unpin, pings: mpsc::UnboundedSender<Vec<u8>>) {
    let mut open = vec![1, 3];
    while !open.is_empty() {
        let mut head = [0; 9];
        reads.read_exact(&mut head).await.unwrap_or_else(|error| panic!("{open:?} are open: {error}"));
        let mut payload = vec![0; usize::from(head[1]) << 8 | usize::from(head[2])];
        reads.read_exact(&mut payload).await.expect("a whole frame");
        let (kind, flags, stream) = (head[3], head[4], head[8]);
        match (kind, flags) {
            (6, 0) => {
                head[4] = 1;
                let _ = pings.send([&head[..], &payload].concat());
            }
            (3, _) => panic!("stream {stream} is reset: {payload:?}"),
            (1, _) => assert_eq!(payload[0], 0x88, "the status is 200"),
            _ => {}
        }
        if kind < 2 && flags & 1 != 0 {
            open.retain(|open| *open != stream);
        }
    }
}

/// Reads one answer to its end; whether it is the last.
async fn answer(stream: &mut (impl AsyncReadExt + Unpin)) -> bool {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap_or_else(|error| {
            panic!("{:?} is all of an answer: {error}", String::from_utf8_lossy(&head));
        }));
    }
    let head = String::from_utf8(head).expect("a head in letters").to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 200"), "{head}");
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
    let mut body = vec![0; length.parse().expect("a number")];
    stream.read_exact(&mut body).await.expect("a whole body");
    head.contains("connection: close")
}
