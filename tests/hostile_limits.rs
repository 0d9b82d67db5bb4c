//! Limits of any length, in every option that takes one: none is a panic, and none changes what is promised.
#![cfg(feature = "axum")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::{Router, routing::get};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use winddown::queue::{self, Leased, NewJob, Queue, memory::Memory};
use winddown::{BoxError, Budget, Cx, ShutdownCoordinator, server, signal};

const SECOND: Duration = Duration::from_secs(1);

fn coordinator() -> ShutdownCoordinator {
    ShutdownCoordinator::new(Budget::given(10 * SECOND, "test"), signal::none()).unwrap()
}

#[tokio::test]
async fn a_worker_takes_limits_of_any_length() {
    for limit in [Duration::MAX, Duration::from_secs(u64::MAX / 1000)] {
        let jobs = Memory::new();
        jobs.enqueue(NewJob::new("a".parse().unwrap(), 1_u32));
        let mut shutdown = coordinator();
        let ran = Arc::new(AtomicUsize::new(0));
        let (runs, handle) = (Arc::clone(&ran), shutdown.handle());
        let handler = move |_: &Leased<u32>, _: &Cx| {
            let runs = Arc::clone(&runs);
            async move {
                runs.fetch_add(1, Ordering::SeqCst);
                Ok::<_, BoxError>(())
            }
        };
        let work = queue::work("orders", jobs.clone(), handler);
        let work = work.lease(limit).task_limit(limit).backoff(limit, limit);
        shutdown.add(work);
        let stops = async {
            while jobs.counts().await.unwrap().active + jobs.counts().await.unwrap().pending > 0
                && !handle.is_triggered()
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            handle.trigger("test")
        };
        let (report, ours) = tokio::join!(shutdown.run(), stops);
        assert!(ours, "{report}");
        assert_eq!(ran.load(Ordering::SeqCst), 1);
    }
}

/// Asks twice, some time after it has come.
async fn ask(addr: std::net::SocketAddr) -> String {
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let mut answer = Vec::new();
    for times in 1..=2 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n").await.unwrap();
        while answer.windows(5).filter(|part| part == b"hello").count() < times {
            let read = tokio::time::timeout(5 * SECOND, stream.read_buf(&mut answer)).await;
            assert_ne!(read.expect("an answer").unwrap(), 0, "{}", String::from_utf8_lossy(&answer));
        }
    }
    String::from_utf8(answer).unwrap()
}

#[tokio::test]
async fn a_server_takes_limits_of_any_length() {
    const OPTIONS: usize = 8;
    for option in 0..OPTIONS {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut shutdown = coordinator();
        let app = Router::new().route("/", get(async || "hello"));
        let server = server::axum::serve("http", listener, app);
        let longest = Duration::MAX;
        shutdown.add(match option {
            0 => server.head_limit(longest),
            1 => server.keep_alive(longest),
            2 => server.ping(longest),
            3 => server.write_stall(longest),
            4 => server.idle_grace(longest),
            5 => server.head_grace(longest),
            6 => server.cancel_grace(longest),
            _ => server.max_head_size(usize::MAX).max_connections(usize::MAX).max_backlog(usize::MAX),
        });
        let handle = shutdown.handle();
        let running = tokio::spawn(shutdown.run());
        assert!(ask(addr).await.ends_with("hello"), "option {option}");
        let mut h2 = TcpStream::connect(addr).await.unwrap();
        h2.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
        let mut frame = [0; 9];
        let read = tokio::time::timeout(5 * SECOND, h2.read_exact(&mut frame)).await;
        assert!(read.is_ok_and(|read| read.is_ok()), "option {option}");
        drop(h2);
        let idle = TcpStream::connect(addr).await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        handle.trigger("test");
        drop(idle);
        let report = running.await.unwrap();
        assert_eq!(report.code(), 0, "option {option}: {report}");
    }
}
