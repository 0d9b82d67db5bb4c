//! The layer around tonic: health turns before anything else, calls are finished, and there is a deadline after the signal.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::health_server::{Health, HealthServer};
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_health::server::{HealthReporter, HealthService, WatchStream};
use winddown::server::tower::InFlightLayer;
use winddown::{Budget, Outcome, Phase, Report, ShutdownCoordinator, ShutdownHandle, signal};

#[path = "../../tests/support/within.rs"]
mod within;

const MS: Duration = Duration::from_millis(1);
/// Far more than anything here takes on a slow machine.
const SOON: Duration = Duration::from_secs(10);
/// What a busy machine may add; less than the limits that it has to be told apart from.
const SLACK: Duration = Duration::from_secs(2);

const SERVING: i32 = 1;
const NOT_SERVING: i32 = 2;

/// The health service; asked for `slow` it answers when it is released.
struct Program {
    health: HealthService,
    entered: Arc<Semaphore>,
    release: Arc<Semaphore>,
}

struct Grpc {
    addr: SocketAddr,
    handle: ShutdownHandle,
    entered: Arc<Semaphore>,
    release: Arc<Semaphore>,
    report: JoinHandle<Report>,
}

struct Options {
    budget: Budget,
    /// Whether the server hears of the stop.
    told: bool,
    /// Whether watchers of the health are ended at the stop.
    ends_watchers: bool,
    keep_alive: Option<Duration>,
}

// === impl Program ===

#[tonic::async_trait]
impl Health for Program {
    type WatchStream = WatchStream;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if request.get_ref().service != "slow" {
            return self.health.check(request).await;
        }
        self.entered.add_permits(1);
        self.release.acquire().await.map_err(|_| Status::aborted("closed"))?.forget();
        Ok(Response::new(HealthCheckResponse { status: SERVING }))
    }

    async fn watch(&self, request: Request<HealthCheckRequest>) -> Result<Response<WatchStream>, Status> {
        self.health.watch(request).await
    }
}

// === impl Grpc ===

impl Grpc {
    async fn new(options: Options) -> Grpc {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = listener.local_addr().unwrap();
        let mut shutdown = ShutdownCoordinator::new(options.budget, signal::none()).unwrap();
        let handle = shutdown.handle();
        let (entered, release) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));

        let reporter = HealthReporter::new();
        let health = HealthService::from_health_reporter(reporter.clone());
        let program = Program { health, entered: Arc::clone(&entered), release: Arc::clone(&release) };
        let mut watched = reporter.clone();
        shutdown.on(Phase::Unready, "health", async move |_| {
            reporter.set_service_status("", ServingStatus::NotServing).await;
        });
        if options.ends_watchers {
            shutdown.on(Phase::StopIntake, "watchers of health", async move |_| {
                watched.clear_service_status("").await;
            });
        }
        let server = Server::builder()
            .http2_keepalive_interval(options.keep_alive)
            .http2_keepalive_timeout(options.keep_alive)
            .layer(InFlightLayer::new(shutdown.gate("calls")))
            .add_service(HealthServer::new(program));
        let incoming = TcpIncoming::from(listener);
        if options.told {
            let stopping = handle.stopping();
            shutdown
                .spawn("grpc", async move { server.serve_with_incoming_shutdown(incoming, stopping).await });
        } else {
            tokio::spawn(async move { server.serve_with_incoming(incoming).await });
        }
        let report = tokio::spawn(shutdown.run());
        let grpc = Grpc { addr, handle, entered, release, report };
        assert_eq!(check(&mut grpc.client().await, "").await.unwrap(), SERVING);
        grpc
    }

    async fn client(&self) -> HealthClient<Channel> {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.addr)).unwrap();
        HealthClient::new(soon(endpoint.connect()).await.unwrap())
    }

    async fn entered(&self) {
        soon(self.entered.acquire()).await.unwrap().forget();
    }

    async fn report(self) -> Report {
        let report = soon(self.report).await.unwrap();
        assert!(report.gates().iter().all(winddown::GateReport::adds_up), "{report}");
        report
    }
}

impl Default for Options {
    fn default() -> Self {
        let budget = Budget::given(Duration::from_secs(10), "test").unready(Duration::ZERO);
        Options { budget, told: true, ends_watchers: false, keep_alive: None }
    }
}

async fn check(client: &mut HealthClient<Channel>, service: &str) -> Result<i32, Status> {
    let request = HealthCheckRequest { service: service.to_owned() };
    soon(client.check(request)).await.map(|answer| answer.into_inner().status)
}

async fn soon<F: Future>(future: F) -> F::Output {
    within::within(SOON, future).await
}

fn drain(report: &Report) -> &winddown::PhaseReport {
    report.phase(Phase::Drain).unwrap()
}

fn cut(report: &Report) -> &[(String, usize)] {
    &report.gate("calls").unwrap().cut
}

#[tokio::test]
async fn health_turns_at_unready_while_calls_are_served_and_watchers_are_told() {
    let budget = Options::default().budget.unready(Duration::from_secs(2));
    let grpc = Grpc::new(Options { budget, ends_watchers: true, ..Options::default() }).await;
    let mut client = grpc.client().await;
    let mut watching = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    assert_eq!(soon(watching.message()).await.unwrap().unwrap().status, SERVING);
    grpc.handle.trigger("test");
    assert_eq!(soon(watching.message()).await.unwrap().unwrap().status, NOT_SERVING);
    assert_eq!(grpc.handle.phase(), Some(Phase::Unready));
    assert_eq!(check(&mut client, "").await.unwrap(), NOT_SERVING);
    grpc.release.add_permits(1);
    assert_eq!(check(&mut client, "slow").await.unwrap(), SERVING, "what is not health is served as ever");
    assert!(soon(watching.message()).await.unwrap().is_none(), "an end that is none of an error");
    let report = grpc.report().await;
    assert!(report.is_clean(), "{report}");
    assert!(drain(&report).took < SLACK, "a watcher does not hold the drain: {report}");
}

#[tokio::test]
async fn a_running_call_is_finished_and_a_call_after_it_is_refused_as_unavailable() {
    let grpc = Grpc::new(Options::default()).await;
    let (mut client, mut late) = (grpc.client().await, grpc.client().await);
    let running = tokio::spawn(async move { check(&mut client, "slow").await });
    grpc.entered().await;
    grpc.handle.trigger("test");
    soon(grpc.handle.reached(Phase::Drain)).await;
    // Refused once the GOAWAY has come; until then by the layer.
    let refused = check(&mut late, "").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
    grpc.release.add_permits(1);
    assert_eq!(soon(running).await.unwrap().unwrap(), SERVING);
    let report = grpc.report().await;
    assert!(report.is_clean(), "{report}");
}

#[tokio::test]
async fn a_server_that_takes_calls_after_the_close_refuses_them_as_unavailable() {
    let grpc = Grpc::new(Options { told: false, ..Options::default() }).await;
    let (mut client, mut late) = (grpc.client().await, grpc.client().await);
    let running = tokio::spawn(async move { check(&mut client, "slow").await });
    grpc.entered().await;
    grpc.handle.trigger("test");
    soon(grpc.handle.reached(Phase::Drain)).await;
    let refused = check(&mut late, "").await.unwrap_err();
    assert_eq!(refused.code(), Code::Unavailable);
    assert_eq!(refused.message(), "the server is stopping: try again");
    let stream = soon(late.watch(HealthCheckRequest::default())).await.unwrap_err();
    assert_eq!((stream.code(), stream.message()), (Code::Unavailable, "the server is stopping: try again"));
    grpc.release.add_permits(1);
    assert_eq!(soon(running).await.unwrap().unwrap(), SERVING);
    assert!(grpc.report().await.is_clean());
}

#[tokio::test]
async fn a_stuck_call_and_a_stuck_stream_are_cut_at_the_deadline_with_a_status() {
    for limit in [1200 * MS, 4000 * MS] {
        let budget = Options::default().budget.drain(limit);
        let grpc = Grpc::new(Options { budget, ..Options::default() }).await;
        let (mut client, mut other) = (grpc.client().await, grpc.client().await);
        let mut watching = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
        assert_eq!(soon(watching.message()).await.unwrap().unwrap().status, SERVING);
        let stuck = tokio::spawn(async move { check(&mut other, "slow").await });
        grpc.entered().await;
        let stopped = Instant::now();
        grpc.handle.trigger("test");
        assert_eq!(soon(watching.message()).await.unwrap().unwrap().status, NOT_SERVING);
        let ended = soon(watching.message()).await.unwrap_err();
        assert_eq!(ended.code(), Code::Unavailable, "{ended:?}");
        assert_eq!(soon(stuck).await.unwrap().unwrap_err().code(), Code::Unavailable);
        assert!((limit..limit + SLACK).contains(&stopped.elapsed()), "{:?}", stopped.elapsed());
        let report = grpc.report().await;
        assert_eq!(cut(&report), [("body".to_owned(), 1), ("request".to_owned(), 1)], "{report}");
        assert_eq!(drain(&report).outcome, Outcome::Overdue);
        assert!(report.took() < limit + SLACK, "{report}");
    }
}

/// Speaks just enough HTTP/2 to be taken for a client, and then never again.
async fn silent_peer(addr: SocketAddr) -> TcpStream {
    const SETTINGS: [u8; 9] = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let mut peer = TcpStream::connect(addr).await.unwrap();
    peer.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    peer.write_all(&SETTINGS).await.unwrap();
    let mut head = [0; 9];
    soon(peer.read_exact(&mut head)).await.unwrap();
    peer
}

#[tokio::test]
async fn a_peer_that_answers_no_ping_does_not_hold_the_end() {
    for limit in [300 * MS, 2500 * MS] {
        let budget = Options::default().budget.drain(limit);
        let grpc = Grpc::new(Options { budget, ..Options::default() }).await;
        let _silent = silent_peer(grpc.addr).await;
        grpc.handle.trigger("test");
        let report = grpc.report().await;
        // Only the server knows of it, which is given up; no request was lost.
        assert_eq!(report.task("grpc").unwrap().outcome, Outcome::Overdue, "{report}");
        assert!((limit..limit + SLACK).contains(&report.took()), "{report}");
        assert_eq!((cut(&report).len(), report.gate("calls").unwrap().lost), (0, 0), "{report}");
    }
}

#[tokio::test]
async fn with_tonics_keep_alive_a_silent_peer_does_not_even_hold_the_drain() {
    let grpc = Grpc::new(Options { keep_alive: Some(200 * MS), ..Options::default() }).await;
    let _silent = silent_peer(grpc.addr).await;
    grpc.handle.trigger("test");
    let report = grpc.report().await;
    assert!(drain(&report).took < SLACK, "{report}");
    assert_eq!(report.gate("calls").unwrap().lost, 0, "{report}");
}
