//! Peers that send any bytes, cut and delayed at any place, to a server that stops.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http::{Request, Response, StatusCode};
use http_body::Frame;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::time::sleep;

use self::polite::Polite;
use super::Choices;
use crate::server::{self, Connector, RequestBody, RequestCx};
use crate::{Budget, GateReport, ShutdownCoordinator, signal};

mod polite;

const MS: Duration = Duration::from_millis(1);
const GRACE: Duration = Duration::from_secs(5);
const DRAIN: Duration = Duration::from_secs(2);
/// Far more than the server may take, on a clock that only goes when all wait.
const HANGS: Duration = Duration::from_secs(3600);
const BIG: usize = 300 << 10;

const REQUESTS: [&[u8]; 12] = [
    b"GET / HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /slow HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /big HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /deaf HTTP/1.0\r\n\r\n",
    b"GET /never HTTP/1.1\r\nhost: a\r\n\r\n",
    b"POST /count HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n\r\nhello",
    b"POST /count HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 70000\r\n\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
    // A stream that is complete (GET /slow by its literal path), one that still sends, and an answer to SETTINGS.
    b"\0\0\x0a\x01\x05\0\0\0\x01\x82\x86\x84\x41\x01a\x04\x02/s",
    b"\0\0\x06\x01\x04\0\0\0\x03\x83\x86\x84\x41\x01a",
    b"\0\0\0\x04\x01\0\0\0\0",
];

/// Answers at once, late, at length, or never.
#[derive(Clone)]
struct Program;

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// Whatever peers do, the server ends in time, and each connection is in its ledger; a request that was sent in good faith is
/// answered.
pub fn http(data: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.expect("a runtime needs nothing but time").block_on(async {
        let mut choices = Choices(data);
        let unready = [Duration::ZERO, 300 * MS][usize::from(choices.byte() % 2)];
        let trigger = u32::from(choices.byte()) * 10 * MS;
        let buffer = [16, 1 << 10, 64 << 10][usize::from(choices.byte() % 3)];
        let peers = usize::from(choices.byte() % 4) + 1;

        let (listener, connector) = server::in_memory(buffer);
        let budget = Budget::given(GRACE, "model").unready(unready).drain(DRAIN);
        let mut shutdown = ShutdownCoordinator::new(budget, signal::none()).expect("the budget fits");
        let gate = shutdown.add(server::serve("http", listener, Program));
        let handle = shutdown.handle();
        let scripts = choices.0.chunks(choices.0.len().div_ceil(peers).max(1));
        let peers: Vec<_> =
            scripts.map(|script| tokio::spawn(peer(script.to_vec(), connector.clone()))).collect();
        let mut cuts = data.iter().copied().chain(std::iter::repeat(0));
        let polite = Polite { trigger, connector, cut: 0 }.all(|| cuts.next().unwrap_or_default());
        let stops = async {
            sleep(trigger).await;
            handle.trigger("model");
        };
        let run = async { tokio::join!(shutdown.run(), stops).0 };
        let report = tokio::time::timeout(HANGS, run).await.expect("the server ends");

        assert!(report.took() <= GRACE, "{report}");
        assert!(report.gates().iter().all(GateReport::adds_up), "{report}");
        assert_eq!((gate.in_flight(), report.code()), (0, 0), "{report}");
        for polite in polite {
            assert!(polite.await.is_ok(), "{report}");
        }
        for peer in peers {
            peer.abort();
        }
    });
}

async fn peer(script: Vec<u8>, connector: Connector) {
    let mut choices = Choices(&script);
    sleep(u32::from(choices.byte()) * 10 * MS).await;
    let Ok(mut stream) = connector.connect() else { return };
    while !choices.0.is_empty() {
        let (what, how) = (choices.byte(), choices.byte());
        if act(&mut stream, what, how, &mut choices).await.is_err() {
            return;
        }
    }
    // Silent from here on.
    std::future::pending::<()>().await;
}

/// One thing that a peer does; an error if it has gone.
async fn act(stream: &mut DuplexStream, what: u8, how: u8, choices: &mut Choices<'_>) -> std::io::Result<()> {
    let patience = u32::from(how) * MS;
    match what % 24 {
        which @ 0..=11 => {
            let request = REQUESTS[usize::from(which)];
            let (first, rest) = request.split_at(usize::from(how) % (request.len() + 1));
            send(stream, first, patience).await?;
            sleep(u32::from(choices.byte()) * 8 * MS).await;
            send(stream, rest, patience).await
        }
        12..=14 => {
            let bytes: Vec<u8> = (0..how % 32).map(|_| choices.byte()).collect();
            send(stream, &bytes, patience).await
        }
        15 => send(stream, &vec![how; 80 << 10], patience).await,
        16 | 17 => {
            sleep(patience * 10).await;
            Ok(())
        }
        18..=20 => {
            let mut some = vec![0; usize::from(how) * 64 + 1];
            let _late = tokio::time::timeout(patience, stream.read(&mut some)).await;
            Ok(())
        }
        21 => {
            let _late = tokio::time::timeout(patience * 10, stream.read_to_end(&mut Vec::new())).await;
            Ok(())
        }
        22 => stream.shutdown().await,
        _ => Err(std::io::ErrorKind::ConnectionAborted.into()),
    }
}

/// Sends as much as is taken in time.
async fn send(stream: &mut DuplexStream, bytes: &[u8], patience: Duration) -> std::io::Result<()> {
    tokio::time::timeout(patience, stream.write_all(bytes)).await.unwrap_or(Ok(()))
}

// === impl Program ===

impl tower_service::Service<Request<RequestBody>> for Program {
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        Box::pin(async move { Ok(answer(request).await) })
    }
}

async fn answer(request: Request<RequestBody>) -> Answer {
    let cx = request.extensions().get::<RequestCx>().cloned();
    let full = |text: String| Response::new(Full::from(text).boxed_unsync());
    match request.uri().path() {
        "/slow" | "/s" => {
            sleep(700 * MS).await;
            full("slow".into())
        }
        "/big" => full("x".repeat(BIG)),
        "/deaf" => {
            let first = stream::iter([Ok(Frame::data(Bytes::from_static(b"first")))]);
            Response::new(StreamBody::new(first.chain(stream::pending())).boxed_unsync())
        }
        "/never" => std::future::pending().await,
        "/count" => match request.into_body().collect().await {
            Ok(body) => full(body.to_bytes().len().to_string()),
            Err(_) => {
                let mut refused = Response::new(Empty::new().boxed_unsync());
                *refused.status_mut() = StatusCode::BAD_REQUEST;
                refused
            }
        },
        _ => full(format!("stopping: {}", cx.is_some_and(|cx| cx.is_stopping()))),
    }
}
