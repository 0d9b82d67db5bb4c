//! In place: the next process listens on the same port beside the one before, which then ends.

use std::time::Duration;

use winddown::testing::process::{Exit, Signal};

use crate::load::Load;
use crate::place::{Place, times};
use crate::replica::Replica;

/// Nobody has to notice that it is not ready: what a client sends next to either process is served.
const ARGS: [&str; 3] = ["--reuse-port", "--unready", "0ms"];

/// Between two restarts. A client that the one process leaves to the next comes back after a second, when it sends its SYN
/// again; restarts in a quicker row would find no load. That there was some is seen by what each process held at its end.
const BETWEEN: Duration = Duration::from_millis(1_300);

#[tokio::test]
async fn a_restart_in_place_fails_no_request_on_connections_that_are_kept() {
    let Some(place) = Place::with(&["wrk", "hey", "nice"]).await else { return };
    let replica = Replica::start(&place, 0, &ARGS).await;
    let loads = [Load::get(replica.address, &[]).await, Load::post(replica.address, &[]).await];
    restart(replica, loads).await;
}

#[tokio::test]
async fn a_restart_in_place_fails_no_request_on_connections_of_their_own() {
    let Some(place) = Place::with(&["wrk", "hey", "nice"]).await else { return };
    let replica = Replica::start(&place, 0, &ARGS).await;
    let gets = Load::get(replica.address, &["connection: close"]).await;
    let posts = Load::post(replica.address, &["-disable-keepalive"]).await;
    restart(replica, [gets, posts]).await;
}

/// Eight restarts and more, each under load.
async fn restart(mut replica: Replica, loads: [Load; 2]) {
    let restarts = times(8, 50);
    for _ in 0..restarts {
        tokio::time::sleep(BETWEEN).await;
        replica.replace(Signal::Term).await;
        loads.iter().for_each(Load::assert_runs);
    }
    let [gets, posts] = loads;
    let (gets, posts) = (gets.end().await, posts.end().await);
    // An order that comes after intake has stopped is refused in words: it is to be placed again. Nothing else may fail.
    let failed = gets.failed + posts.failed - posts.refused;
    let told = format!("{}{}{}", gets.told, posts.told, replica.told());
    assert_eq!(failed, 0, "{failed} requests failed in {restarts} restarts\n{told}");
    assert!(gets.sent >= 10 * restarts && posts.sent >= restarts, "{restarts} restarts\n{told}");
    let held: u64 = replica.exits.iter().map(held).sum();
    assert!(held >= restarts, "{held} connections held in {restarts} restarts\n{told}");
    assert_eq!(replica.exits.len() as u64, restarts);
    for exit in &replica.exits {
        exit.assert_code(0);
    }
    assert_eq!(replica.cuts(), [""; 0], "{told}");
    let refused = posts.refused;
    println!("{restarts} restarts: 0 of {} GET and {} POST failed, {refused} refused", gets.sent, posts.sent);
}

/// How many connections it had when it was asked to stop: out of `gate http: 10 held + 1 let in = …`.
fn held(exit: &Exit) -> u64 {
    let gate = exit.lines.iter().find_map(|line| line.text.trim().strip_prefix("gate http: "));
    let held = gate.and_then(|gate| gate.split_once(" held")).and_then(|(held, _)| held.parse().ok());
    held.unwrap_or_else(|| panic!("no count: {exit}"))
}
