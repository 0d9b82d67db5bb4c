//! Databases that are shared, old, somebody else's, damaged or full.

use std::time::Duration;

use serde_json::json;
use winddown::testing::process::{Exit, Process, Signal};

use crate::client::Client;
use crate::service::{Place, Service, bare, eventually, order, skip};

/// Did not start: exit 1, the cause on standard error, and nothing left open.
#[track_caller]
fn assert_not_started(exit: &Exit, cause: &str) {
    exit.assert_code(1).assert_within(Duration::from_secs(20)).assert_line(cause);
    assert!(!exit.stdout.contains("ready"), "{exit}");
}

#[tokio::test]
async fn a_database_is_made_when_missing_and_taken_up_when_there() {
    let place = Place::new();
    assert!(!place.path("orders.db").exists());
    let service = place.start([]).await;
    service.place("a1", 0).await;
    service.until("a1", "done").await;
    service.term().await.assert_code(0);
    let service = place.start([]).await;
    assert_eq!(service.state("a1").await["state"], "done");
    assert_eq!(service.post(order("a1", 0)).await.status, 200);
    service.term().await.assert_code(0);
    place.assert_done_once(1).await;
}

#[tokio::test]
async fn two_processes_share_the_work_and_do_none_of_it_twice() {
    shared(&Place::new()).await;
}

/// Two processes at once, of which one is stopped in the middle.
pub async fn shared(place: &Place) {
    const EACH: u32 = 60;
    let one = place.start(["--workers", "4"]).await;
    let two = place.start(["--workers", "4"]).await;
    let placing = |service: &Service, name: &'static str| {
        let address = service.address;
        tokio::spawn(async move {
            let mut client = Client::connect(address).await.expect("a connection");
            for number in 0..EACH {
                // The first are long, so that they are seen at work.
                let work_ms = if number < 4 { 3_000 } else { 150 };
                let order = order(&format!("{name}{number}"), work_ms);
                let answer = client.post(order).await.expect("an answer");
                assert_eq!(answer.status, 202, "{answer:?}");
            }
        })
    };
    let placed = (placing(&one, "a"), placing(&two, "b"));
    // Both see all, and both work: more is under way than one of them has workers for.
    let busy = async || one.stats().await["working"].as_i64() > Some(4);
    eventually("both work", busy).await;
    placed.0.await.expect("placed");
    placed.1.await.expect("placed");
    assert_eq!(two.post(order("a0", 3_000)).await.status, 200);
    assert_eq!(two.post(order("a0", 3_001)).await.status, 409);
    // One of them stops in the middle, and the other does the rest.
    one.term().await.assert_code(0);
    two.until_done(u64::from(2 * EACH)).await;
    let stats = two.stats().await;
    assert_eq!((&stats["crashes"], &stats["dead"]), (&0.into(), &0.into()), "{stats}");
    two.term().await.assert_code(0);
    place.assert_done_once(i64::from(2 * EACH)).await;
    assert_eq!(place.number("SELECT sum(attempts) FROM orders").await, 0);
}

#[tokio::test]
async fn a_database_that_cannot_be_made_or_written_is_refused_with_the_cause() {
    let place = Place::new();
    let missing = format!("sqlite:{}", place.path("no/such/folder/orders.db").display());
    let exit = bare(["--listen", "127.0.0.1:0", "--database", &missing])
        .start()
        .await
        .expect("started")
        .wait()
        .await;
    assert_not_started(&exit, "unable to open database file");
    exit.assert_line(&missing);

    std::fs::write(place.path("text.db"), "this is no database, and longer than a header".repeat(100))
        .expect("a file");
    let text = format!("sqlite:{}", place.path("text.db").display());
    let exit =
        bare(["--listen", "127.0.0.1:0", "--database", &text]).start().await.expect("started").wait().await;
    assert_not_started(&exit, "not a database");

    // Read-only as the URL says it, since a superuser may write everywhere.
    let service = place.start([]).await;
    service.term().await.assert_code(0);
    let read_only = format!("{}?mode=ro", place.url());
    let exit = bare(["--listen", "127.0.0.1:0", "--database", &read_only])
        .start()
        .await
        .expect("started")
        .wait()
        .await;
    assert_not_started(&exit, "readonly database");
}

#[tokio::test]
async fn a_row_that_cannot_be_read_is_set_aside_and_the_others_go_on() {
    let place = Place::new();
    let service = place.start(["--workers", "1", "--drain", "100ms"]).await;
    for id in ["a1", "a2", "a3", "a4"] {
        service.place(id, 10_000).await;
    }
    service.until("a1", "working").await;
    service.term().await.assert_code(0);
    place
        .execute(
            r#"UPDATE winddown_jobs SET payload = '{"id": "a2", ' WHERE id = 'a2';
               UPDATE winddown_jobs SET payload = '{"id": 7}' WHERE id = 'a3';
               UPDATE winddown_jobs SET payload = '{"id":"a1","items":["tea"]}' WHERE id = 'a1';
               UPDATE winddown_jobs SET payload = '{"id":"a4","items":["tea"]}' WHERE id = 'a4'"#,
        )
        .await;
    let service = place.start([]).await;
    for (id, state) in [("a1", "done"), ("a4", "done"), ("a2", "dead"), ("a3", "dead")] {
        service.until(id, state).await;
    }
    service.place("a5", 0).await;
    service.until("a5", "done").await;
    let stats = service.stats().await;
    assert_eq!((&stats["done"], &stats["dead"]), (&3.into(), &2.into()), "{stats}");
    service.term().await.assert_code(0).assert_line("corrupt row: payload");
    place.assert_done_once(3).await;
}

#[tokio::test]
async fn a_checkpoint_that_cannot_be_read_uses_up_its_attempts_and_nothing_else() {
    let place = Place::new();
    let service = place.start(["--workers", "1", "--drain", "100ms"]).await;
    service.place("a1", 10_000).await;
    service.until("a1", "working").await;
    service.term().await.assert_code(0);
    place.execute("UPDATE winddown_jobs SET checkpoint = 'nonsense' WHERE id = 'a1'").await;
    let service = place.start([]).await;
    service.place("a2", 0).await;
    service.until("a2", "done").await;
    assert_eq!(service.until("a1", "dead").await["attempts"], 3);
    service.term().await.assert_code(0);
}

#[tokio::test]
async fn a_table_of_another_layout_or_of_somebody_else_is_refused_and_left_alone() {
    for (change, cause) in [
        (
            "UPDATE winddown_jobs SET attempts = 0 WHERE id = 'winddown:queue'",
            "layout 0, and this version needs layout",
        ),
        ("DROP TABLE winddown_jobs; CREATE TABLE winddown_jobs (id TEXT, todo TEXT)", "is not a queue's"),
        ("ALTER TABLE winddown_jobs DROP COLUMN reason", "reason"),
        ("DROP TABLE orders; CREATE TABLE orders (id TEXT, price INTEGER)", "orders"),
        ("DROP TABLE effects; CREATE TABLE effects (what TEXT)", "effects"),
    ] {
        let place = Place::new();
        let service = place.start([]).await;
        service.term().await.assert_code(0);
        place.execute(change).await;
        let schema = "SELECT count(*) FROM sqlite_schema";
        let before = place.number(schema).await;
        let exit = place.fails([]).await;
        assert_not_started(&exit, cause);
        exit.assert_line("store");
        assert_eq!(place.number(schema).await, before, "{exit}");
    }
}

/// An order that takes more room than a small one may find left.
fn large(id: &str) -> String {
    json!({"id": id, "items": ["x".repeat(20_000)]}).to_string()
}

/// Places orders until that fails, and says how many were taken.
async fn fill(service: &Service) -> u32 {
    for number in 0..5_000 {
        let answer = service.post(large(&format!("o{number}"))).await;
        if answer.status != 202 {
            assert_eq!(answer.status, 500, "{answer:?}");
            answer.error();
            return number;
        }
    }
    panic!("the disk was never full");
}

#[tokio::test]
async fn a_full_disk_is_answered_loses_nothing_and_does_not_keep_it_from_stopping() {
    let place = Place::new();
    let service = place.start([]).await;
    service.term().await.assert_code(0);
    // A file may not grow beyond this; ignored, the signal for that leaves the error.
    let limited = "trap '' XFSZ; ulimit -f 1024 || exit 9; exec \"$0\" \"$@\"";
    let orders = example();
    let limited = Process::new("sh").args(["-c", limited, &orders]).args([
        "--listen",
        "127.0.0.1:0",
        "--database",
        &place.url(),
        "--grace",
        "4s",
    ]);
    let service = Service::start(clean(limited)).await;
    let accepted = fill(&service).await;
    assert!(accepted > 0);
    let again = service.post(large("late")).await;
    assert_eq!(again.status, 500, "{again:?}");
    assert_eq!(service.get("/livez").await.status, 200);
    assert_eq!(service.get("/orders/o0").await.status, 200, "reading goes on");
    let exit = service.term().await;
    exit.assert_within(Duration::from_secs(4)).assert_line("stopped: SIGTERM");
    assert!(matches!(exit.code, Some(0 | 1)), "{exit}");
    for line in exit.stderr.lines() {
        assert!(line.matches("(code: ").count() <= 1, "each cause is said once: {line}");
    }

    let service = place.start(["--lease", "1s"]).await;
    service.until_done(u64::from(accepted)).await;
    service.term().await.assert_code(0);
    place.assert_done_once(i64::from(accepted)).await;
    // What could not write its effect has failed once; it was not given up for that.
    assert!(place.number("SELECT max(attempts) FROM orders").await <= 1);
}

#[tokio::test]
async fn a_disk_that_has_room_again_is_used_again() {
    let may = std::process::Command::new("unshare")
        .args(["-m", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"])
        .output();
    if !may.is_ok_and(|output| output.status.success()) {
        return skip(
            "no right to mount in a namespace of our own: the disk that has room again was not tried",
        );
    }
    let place = Place::new();
    std::fs::create_dir(place.path("disk")).expect("a folder");
    let disk = place.path("disk").display().to_string();
    let url = format!("sqlite:{disk}/orders.db");
    let small =
        "mount -t tmpfs -o size=24m none \"$0\" && head -c 22000000 /dev/zero >\"$0/ballast\" && exec \"$@\"";
    let orders = Process::new("unshare").args(["-m", "sh", "-c", small, &disk, &example()]);
    let service =
        Service::start(clean(orders.args(["--listen", "127.0.0.1:0", "--database", &url, "--grace", "4s"])))
            .await;
    let accepted = fill(&service).await;
    assert!(accepted > 0);
    let inside = format!("/proc/{}/root{disk}/ballast", service.running.id());
    std::fs::remove_file(inside).expect("the ballast");
    service.until_done(u64::from(accepted)).await;
    service.place("late", 0).await;
    service.until("late", "done").await;
    let stats = service.stats().await;
    assert_eq!((&stats["dead"], &stats["crashes"]), (&0.into(), &0.into()), "{stats}");
    service.term().await.assert_code(0);
}

#[tokio::test]
async fn a_database_that_is_locked_for_long_is_waited_for_and_does_not_hold_the_stop() {
    let place = Place::new();
    let service = place.start(["--grace", "3s"]).await;
    service.place("a1", 30_000).await;
    service.until("a1", "working").await;
    let lock = "import sqlite3,sys,time\nc=sqlite3.connect(sys.argv[1],isolation_level=None)\n\
                c.execute('BEGIN IMMEDIATE')\nprint('locked',flush=True)\ntime.sleep(60)";
    let file = place.path("orders.db").display().to_string();
    let locker = Process::new("python3").args(["-c", lock, &file]).ready_line("locked").start().await;
    let Ok(locker) = locker else {
        return skip("no python3: a database that is locked for long was not tried");
    };
    let exit = service.term().await;
    exit.assert_within(Duration::from_secs(3)).assert_line("a1");
    assert_eq!(exit.code, Some(1), "it could not be handed back, and that is said: {exit}");
    locker.signal(Signal::Kill);
    locker.wait().await;
    // It is not lost: its lease ends.
    assert_eq!(
        place.number("SELECT count(*) FROM winddown_jobs WHERE id = 'a1' AND state = 'active'").await,
        1
    );
}

/// Where the example lies, for programs that start it.
fn example() -> String {
    let exe = std::env::current_exe().expect("a path");
    let target = exe.ancestors().nth(2).expect("a target folder");
    target.join("examples/orders").display().to_string()
}

fn clean(process: Process) -> Process {
    ["WINDDOWN_GRACE", "WINDDOWN_PRESTOP", "KUBERNETES_SERVICE_HOST", "RUST_LOG"]
        .into_iter()
        .fold(process, Process::env_remove)
}
