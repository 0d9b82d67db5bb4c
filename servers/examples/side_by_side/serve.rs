//! The program that is stopped: the same routes behind one of three servers.

use std::convert::Infallible;
use std::error::Error;
use std::net::TcpListener;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use axum::Router;
use axum::extract::Query;
use axum::extract::ws::WebSocketUpgrade;
use axum::response::sse::{Event, Sse};
use axum::routing::{any, get, post};
use bytes::Bytes;
use futures_util::stream::{self, Stream};
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind};
use tokio_rustls::rustls::ServerConfig;
use winddown::server::{self, RequestCx, websocket};
use winddown::{Budget, ShutdownCoordinator, ShutdownHandle, signal};

use crate::child::Setting;
use crate::show::print;
use crate::tls;

pub const BIG: usize = 5_000_000;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Which {
    Ours,
    Axum,
    AxumServer,
}

#[derive(Deserialize)]
struct Slow {
    ms: u64,
}

/// A websocket that lives.
struct Living;

/// How many of [`Living`] there are.
static LIVING: AtomicUsize = AtomicUsize::new(0);

/// Serves until SIGTERM, and then prints what became of the connections, as far as the server can tell.
pub async fn run(args: &[String]) -> Result<ExitCode> {
    let (which, setting) = Setting::parse(args)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    let listening = format!("listening {}\n", listener.local_addr()?);
    let secured = match setting.tls {
        true => {
            let (config, certificate) = tls::server()?;
            print(&format!("certificate {certificate}\n"));
            Some(config)
        }
        false => None,
    };
    let (code, account) = match which {
        Which::Ours => ours(listener, setting, secured, &listening).await?,
        Which::Axum => {
            plain(listener, &listening).await?;
            (ExitCode::SUCCESS, json!(null))
        }
        Which::AxumServer => {
            axum_server(listener, setting, secured, &listening).await?;
            (ExitCode::SUCCESS, json!(null))
        }
    };
    let ended = json!({"cut": account, "websockets": LIVING.load(SeqCst)});
    print(&format!("ended {ended}\n"));
    Ok(code)
}

async fn ours(
    listener: TcpListener,
    setting: Setting,
    secured: Option<Arc<ServerConfig>>,
    listening: &str,
) -> Result<(ExitCode, serde_json::Value)> {
    let budget = Budget::given(setting.kill, "the scene").unready(setting.unready).drain(setting.drain);
    let mut shutdown = ShutdownCoordinator::new(budget, signal::terminate()?)?;
    let app =
        routes().merge(told_routes(shutdown.handle())).merge(server::axum::probes(shutdown.readiness()));
    // A drain of seconds is too short to see a peer's silence by the PING that is usual.
    let server = server::axum::serve("http", listener, app).ping(Duration::from_secs(1));
    match secured {
        Some(config) => shutdown.add(server.tls(config)),
        None => shutdown.add(server),
    };
    print(listening);
    let report = shutdown.run().await;
    let gate = report.gate("http").ok_or("no gate in the report")?;
    let cut = gate.cut.iter().map(|(state, count)| (state.clone(), json!(count)));
    let cut = cut.collect::<serde_json::Map<_, _>>();
    report.print();
    Ok((report.exit_code(), json!(cut)))
}

async fn plain(listener: TcpListener, listening: &str) -> Result<()> {
    let (term, ready) = plain_signal()?;
    let app = routes().merge(untold_routes()).merge(plain_probes(&ready));
    let listener = tokio::net::TcpListener::from_std(listener)?;
    print(listening);
    axum::serve(listener, app).with_graceful_shutdown(told(term, ready)).await?;
    Ok(())
}

async fn axum_server(
    listener: TcpListener,
    setting: Setting,
    secured: Option<Arc<ServerConfig>>,
    listening: &str,
) -> Result<()> {
    let (term, ready) = plain_signal()?;
    let app = routes().merge(untold_routes()).merge(plain_probes(&ready)).into_make_service();
    let handle = axum_server::Handle::new();
    let stop = handle.clone();
    tokio::spawn(async move {
        told(term, ready).await;
        stop.graceful_shutdown(Some(setting.drain));
    });
    print(listening);
    let server = axum_server::from_tcp(listener)?.handle(handle);
    match secured {
        Some(config) => {
            let config = axum_server::tls_rustls::RustlsConfig::from_config(config);
            server.acceptor(axum_server::tls_rustls::RustlsAcceptor::new(config)).serve(app).await?;
        }
        None => server.serve(app).await?,
    }
    Ok(())
}

/// SIGTERM for servers that do not bring it, and what their probe says.
fn plain_signal() -> Result<(Signal, Arc<AtomicBool>)> {
    Ok((tokio::signal::unix::signal(SignalKind::terminate())?, Arc::new(AtomicBool::new(true))))
}

async fn told(mut term: Signal, ready: Arc<AtomicBool>) {
    term.recv().await;
    ready.store(false, SeqCst);
}

fn plain_probes(ready: &Arc<AtomicBool>) -> Router {
    let ready = Arc::clone(ready);
    let readyz = move || {
        let ready = ready.load(SeqCst);
        async move { if ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE } }
    };
    Router::new().route("/livez", get(async || "live")).route("/readyz", get(readyz))
}

/// What all three serve alike.
fn routes() -> Router {
    Router::new()
        .route("/", get(async || "ok"))
        .route(
            "/slow",
            any(async |Query(Slow { ms }): Query<Slow>| {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                "slow"
            }),
        )
        .route("/big", get(async || Bytes::from(vec![b'x'; BIG])))
        .route("/upload", post(async |body: Bytes| body.len().to_string()))
        .route(
            "/refuse",
            post(async || {
                tokio::time::sleep(Duration::from_millis(300)).await;
                StatusCode::PAYLOAD_TOO_LARGE
            }),
        )
}

/// What would not end by itself, with what ours gives to a handler.
fn told_routes(handle: ShutdownHandle) -> Router {
    Router::new()
        .route("/events", get(async move || Sse::new(server::until_stopping(ticks(), &handle))))
        .route(
            "/poll",
            get(async |cx: RequestCx| {
                tokio::select! {
                    news = news() => news,
                    () = cx.stopping() => "no news",
                }
            }),
        )
        .route(
            "/ws",
            any(async |upgrade: WebSocketUpgrade, cx: RequestCx| {
                websocket::upgrade(upgrade, cx, async |mut socket| {
                    let _living = Living::new();
                    while let Some(Ok(message)) = socket.recv().await {
                        if socket.send(message).await.is_err() {
                            break;
                        }
                    }
                })
            }),
        )
}

/// The same, as one writes it who is told nothing.
fn untold_routes() -> Router {
    Router::new().route("/events", get(async || Sse::new(ticks()))).route("/poll", get(news)).route(
        "/ws",
        any(async |upgrade: WebSocketUpgrade| {
            upgrade.on_upgrade(async |mut socket| {
                let _living = Living::new();
                while let Some(Ok(message)) = socket.recv().await {
                    if socket.send(message).await.is_err() {
                        break;
                    }
                }
            })
        }),
    )
}

fn ticks() -> impl Stream<Item = std::result::Result<Event, Infallible>> + Send {
    Box::pin(stream::unfold(0, async |tick| {
        if tick > 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Some((Ok(Event::default().data(tick.to_string())), tick + 1))
    }))
}

async fn news() -> &'static str {
    tokio::time::sleep(Duration::from_secs(60)).await;
    "news"
}

// === impl Which ===

impl Which {
    pub const ALL: [Which; 3] = [Which::Ours, Which::Axum, Which::AxumServer];

    pub fn as_str(self) -> &'static str {
        match self {
            Which::Ours => "ours",
            Which::Axum => "axum",
            Which::AxumServer => "axum-server",
        }
    }
}

// === impl Living ===

impl Living {
    fn new() -> Self {
        LIVING.fetch_add(1, SeqCst);
        Living
    }
}

impl Drop for Living {
    fn drop(&mut self) {
        LIVING.fetch_sub(1, SeqCst);
    }
}
