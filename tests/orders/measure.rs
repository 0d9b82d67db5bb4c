//! How fast it is, printed for who reads it: `cargo test --release … measure -- --include-ignored --nocapture`.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::client::Client;
use crate::service::{Place, order};

#[tokio::test]
#[ignore = "measures"]
async fn measured_orders_a_second() {
    println!("in the database:");
    measured(Place::new()).await;
    println!("in redis:");
    measured(Place::with_redis()).await;
}

async fn measured(place: Place) {
    const ORDERS: u32 = 2_000;
    let service = place.start(["--workers", "8"]).await;
    let address = service.address;
    let began = Instant::now();
    let mut clients = JoinSet::new();
    for first in 0..8 {
        clients.spawn(async move {
            let mut client = Client::connect(address).await.expect("a connection");
            for number in (first..ORDERS).step_by(8) {
                let answer = client.post(order(&format!("o{number}"), 0)).await.expect("an answer");
                assert_eq!(answer.status, 202, "{answer:?}");
            }
        });
    }
    clients.join_all().await;
    let placed = began.elapsed();
    service.until_done(ORDERS.into()).await;
    let done = began.elapsed();
    let rate = |took: Duration| f64::from(ORDERS) / took.as_secs_f64();
    println!("{ORDERS} orders: placed at {:.0} a second, done at {:.0} a second", rate(placed), rate(done));
    service.term().await.assert_code(0);
    place.assert_done_once(ORDERS.into()).await;
}

#[tokio::test]
#[ignore = "measures"]
async fn measured_an_idle_stop() {
    let mut took = Vec::new();
    for _ in 0..20 {
        let place = Place::new();
        let exit = place.start([]).await.term().await;
        exit.assert_code(0);
        took.push(exit.took);
    }
    took.sort();
    println!("idle, from SIGTERM to the end: median {:?}, most {:?}", took[10], took[19]);
}
