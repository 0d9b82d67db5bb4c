//! The examples of servers that are not ours: real processes, real requests, a real SIGTERM.
#![cfg(unix)]

#[path = "../../tests/foreign/rig.rs"]
mod rig;

use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

use rig::{AT_ONCE, GRACE, check, soon, start, stop_while_busy};

#[tokio::test]
async fn actix_web_finishes_a_request_within_the_drain_and_leaves_the_signals_to_us() {
    let (answer, exit) = stop_while_busy("actix_web").await;
    check(&answer, &exit);
}

#[tokio::test]
async fn tonic_tells_watchers_of_its_health_and_ends_their_streams() {
    let (running, addr) = start("tonic").await;
    let endpoint = Endpoint::from_shared(format!("http://{addr}")).unwrap();
    let mut client = HealthClient::new(soon(endpoint.connect()).await.unwrap());
    let mut watching = soon(client.watch(HealthCheckRequest::default())).await.unwrap().into_inner();
    assert_eq!(soon(watching.message()).await.unwrap().unwrap().status, 1, "serving");
    let told = async {
        let told = soon(watching.message()).await.unwrap().map(|answer| answer.status);
        (told, soon(watching.message()).await.unwrap().is_none())
    };
    let ((told, ended), exit) = tokio::join!(told, running.kubelet(GRACE));
    assert_eq!((told, ended), (Some(2), true), "not serving, and an end that is no error");
    exit.assert_code(0).assert_within(AT_ONCE);
}
