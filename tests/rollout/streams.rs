//! HTTP/2: a stop below running streams.

use winddown::testing::process::Signal;

use crate::load::{Count, Load};
use crate::place::{Place, eventually, times};
use crate::replica::Replica;

#[tokio::test]
async fn a_stop_loses_no_stream_that_was_sent() {
    let stops = times(6, 60);
    let Some((streams, told)) = stop_below_streams(Signal::Term, stops).await else { return };
    assert_eq!(streams.failed, 0, "{} streams lost in {stops} stops\n{told}", streams.failed);
    println!("{stops} stops: 0 of {} streams lost", streams.sent);
}

/// What shows that the one above can fail.
#[tokio::test]
async fn a_stop_by_sigkill_loses_streams_and_they_are_counted() {
    let Some((streams, told)) = stop_below_streams(Signal::Kill, 1).await else { return };
    assert!(streams.failed > 0, "{told}");
}

/// Stops the process so often, each time below a load of its own, which its GOAWAY ends.
async fn stop_below_streams(signal: Signal, stops: u64) -> Option<(Count, String)> {
    let place = Place::with(&["h2load", "nice"]).await?;
    let mut replica = Replica::start(&place, 0, &["--unready", "0ms"]).await;
    let mut all = Count::default();
    for stop in 0..stops {
        let log = place.path(&format!("h2load{stop}.log"));
        let load = Load::streams(replica.address, &log).await;
        let streams =
            || std::fs::read(&log).map_or(0, |log| log.iter().filter(|&&byte| byte == b'\n').count());
        eventually("a hundred streams", async || streams() >= 100).await;
        load.assert_runs();
        replica.end(signal).await;
        let count = load.count().await;
        assert!(count.sent >= 100, "{}", count.told);
        all.sent += count.sent;
        all.failed += count.failed;
        all.told += &count.told;
        replica.again().await;
    }
    let code = if signal == Signal::Kill { None } else { Some(0) };
    let told = all.told.clone() + &replica.told();
    assert!(replica.exits.iter().all(|exit| exit.code == code), "{told}");
    Some((all, told))
}
