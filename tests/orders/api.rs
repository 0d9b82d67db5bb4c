//! What a client is answered.

use std::time::Duration;

use serde_json::{Value, json};
use winddown::testing::process::Signal;

use crate::service::{Place, eventually, order};

#[track_caller]
fn keys(json: &Value) -> Vec<&str> {
    json.as_object().unwrap_or_else(|| panic!("no object: {json}")).keys().map(String::as_str).collect()
}

#[tokio::test]
async fn an_order_is_stored_once_and_told_of_in_six_words() {
    let place = Place::new();
    let service = place.start([]).await;
    let placed = service.post(r#"{"id": "a1", "items": ["tea"], "work_ms": 300}"#).await;
    assert_eq!(placed.status, 202, "{placed:?}");
    assert_eq!(placed.header("content-type"), Some("application/json"));
    let done = service.until("a1", "done").await;
    let whole = json!({"id": "a1", "state": "done", "steps": ["reserve", "charge", "ship"],
                       "attempts": 0, "interruptions": 0, "crashes": 0});
    assert_eq!(done, whole);
    let text = service.get("/orders/a1").await.body;
    let places: Vec<_> = ["id", "state", "steps", "attempts", "interruptions", "crashes"]
        .map(|key| text.find(&format!("\"{key}\":")))
        .to_vec();
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{text}");

    // The same in other words is the same order.
    let again = service.post(r#"{"work_ms":300,"items":["tea"],"id":"a1"}"#).await;
    assert_eq!((again.status, again.json()), (200, whole));
    for other in [order("a1", 301), r#"{"id": "a1", "items": ["tea", "milk"], "work_ms": 300}"#.to_owned()] {
        let other = service.post(other).await;
        assert_eq!(other.status, 409, "{other:?}");
        assert!(other.error().contains("id"), "{other:?}");
    }
    let zero = service.post(r#"{"id": "a2", "items": ["tea"]}"#).await;
    assert_eq!(zero.status, 202, "{zero:?}");
    assert_eq!(service.post(order("a2", 0)).await.status, 200, "0 where it is left out");
    service.until_done(2).await;
    service.term().await.assert_code(0);
    place.assert_done_once(2).await;
}

#[tokio::test]
async fn what_is_no_order_is_refused_with_the_reason() {
    let place = Place::new();
    let service = place.start([]).await;
    let long = format!(r#"{{"id": "{}", "items": ["tea"]}}"#, "x".repeat(300));
    let control = r#"{"id": "a\u0000b", "items": ["tea"]}"#;
    for (body, says) in [
        ("", "EOF"),
        ("tea, please", "expected"),
        (r#"{"id": "a1", "items": ["tea"]"#, "EOF"),
        (r#"{"id": "a1", "items": ["tea"]} {}"#, "trailing"),
        ("[]", "invalid"),
        ("null", "invalid"),
        (r#"{"items": ["tea"]}"#, "`id`"),
        (r#"{"id": "a1"}"#, "`items`"),
        (r#"{"id": 7, "items": ["tea"]}"#, "integer `7`"),
        (r#"{"id": "a1", "items": "tea"}"#, "string"),
        (r#"{"id": "a1", "items": [7]}"#, "integer `7`"),
        (r#"{"id": "a1", "items": []}"#, "items"),
        (r#"{"id": "a1", "items": ["tea"], "work_ms": "300"}"#, "string"),
        (r#"{"id": "a1", "items": ["tea"], "work_ms": -1}"#, "-1"),
        (r#"{"id": "a1", "items": ["tea"], "work_ms": 1.5}"#, "1.5"),
        (r#"{"id": "a1", "items": ["tea"], "fail": 4294967296}"#, "4294967296"),
        (r#"{"id": "a1", "items": ["tea"], "colour": "red"}"#, "`colour`"),
        (r#"{"id": "a1", "id": "a2", "items": ["tea"]}"#, "duplicate"),
        (r#"{"id": "", "items": ["tea"]}"#, "id"),
        (&long, "id"),
        (control, "id"),
        (r#"{"id": "winddown:queue", "items": ["tea"]}"#, "id"),
    ] {
        let answer = service.post(body).await;
        assert_eq!(answer.status, 400, "{body}: {answer:?}");
        assert!(answer.error().contains(says), "{body}: {answer:?}");
    }
    let binary = service.post(b"\xff\xfe{}").await;
    assert_eq!(binary.status, 400, "{binary:?}");
    binary.error();
    let unknown = service.get("/orders/nobody").await;
    assert_eq!(unknown.status, 404, "{unknown:?}");
    assert!(unknown.error().contains("nobody"), "{unknown:?}");
    assert_eq!(service.get("/orders/nobody/events").await.status, 404);
    assert_eq!(service.get("/nowhere").await.status, 404);
    let stats = service.stats().await;
    assert_eq!(stats["accepted"], 0, "{stats}");
    service.term().await.assert_code(0);
    assert_eq!(place.number("SELECT count(*) FROM orders").await, 0);
}

#[tokio::test]
async fn a_body_may_have_64_kib_and_not_one_byte_more() {
    let place = Place::new();
    let service = place.start([]).await;
    let of = |id: &str, length: usize| {
        let empty = json!({"id": id, "items": [""]}).to_string().len();
        json!({"id": id, "items": ["x".repeat(length - empty)]}).to_string()
    };
    let fits = service.post(of("a1", 65_536)).await;
    assert_eq!(fits.status, 202, "{fits:?}");
    for length in [65_537, 1_000_000] {
        let over = service.post(of("a2", length)).await;
        assert_eq!(over.status, 413, "{over:?}");
        over.error();
    }
    service.until_done(1).await;
    service.term().await.assert_code(0);
}

#[tokio::test]
async fn ids_of_all_kinds_are_found_again() {
    let place = Place::new();
    let service = place.start([]).await;
    for (id, path) in
        [("a/b", "a%2Fb"), ("tee für zwei", "tee%20f%C3%BCr%20zwei"), ("50%", "50%25"), ("'; --", "';%20--")]
    {
        service.place(id, 0).await;
        let done = service.until(path, "done").await;
        assert_eq!(done["id"], id);
    }
    for path in ["/orders/%ff", "/orders/%ff/events"] {
        let refused = service.connect().await.get(path).await.expect("an answer");
        assert_eq!(refused.status, 400, "{refused:?}");
        refused.error();
    }
    service.term().await.assert_code(0);
}

#[tokio::test]
async fn after_intake_has_stopped_an_order_is_refused_and_the_rest_is_served() {
    let place = Place::new();
    let service = place.start(["--grace", "20s"]).await;
    service.place("a1", 2_500).await;
    service.until("a1", "working").await;
    // Connections that are idle are kept for a moment. The line is written just before the phase is over, so that the first of
    // them may still be let in; what they send is no order, and leaves nothing behind.
    let mut kept = Vec::new();
    for _ in 0..20 {
        let mut client = service.connect().await;
        assert_eq!(client.get("/livez").await.expect("an answer").status, 200);
        kept.push(client);
    }
    service.running.signal(Signal::Term);
    service.running.wait_for_line("intake.stopped").await.expect("the line");
    let mut refused = None;
    for client in &mut kept {
        let answer = client.post("no order").await.expect("an answer on a kept connection");
        if answer.status != 400 {
            refused = Some(answer);
            break;
        }
    }
    let refused = refused.expect("an answer after intake has stopped");
    assert_eq!(refused.status, 503, "{refused:?}");
    let retry = refused.header("retry-after").and_then(|after| after.parse::<u32>().ok());
    assert!(retry.is_some_and(|after| after >= 1), "{refused:?}");
    refused.error();
    let exit = service.running.wait().await;
    exit.assert_code(0).assert_line("1 finished + 0 handed back");
    drop(kept);
    place.assert_done_once(1).await;
    assert_eq!(place.number("SELECT count(*) FROM orders").await, 1);
}

#[tokio::test]
async fn probes_and_orders_are_served_while_unready() {
    let place = Place::new();
    let service = place.start(["--grace", "10s", "--unready", "1500ms", "--drain", "5s"]).await;
    assert_eq!(service.get("/livez").await.status, 200);
    assert_eq!(service.get("/readyz").await.status, 200);
    service.running.signal(Signal::Term);
    eventually("not ready", async || service.get("/readyz").await.status == 503).await;
    assert_eq!(service.get("/livez").await.status, 200);
    let late = service.post(order("late", 0)).await;
    assert_eq!(late.status, 202, "{late:?}");
    assert_eq!(late.header("connection"), Some("close"), "{late:?}");
    assert_eq!(service.state("late").await["state"], "accepted", "nothing is pulled any more");
    let exit = service.running.wait().await;
    exit.assert_code(0);
    assert!(exit.took >= Duration::from_millis(1_500), "{exit}");

    let service = place.start([]).await;
    let late = service.until("late", "done").await;
    assert_eq!(late["interruptions"], 0, "it was never begun");
    service.term().await.assert_code(0);
}

/// The JSON of one event, which must be one `data:` line.
#[track_caller]
fn event(chunk: &str) -> Value {
    let data = chunk.strip_prefix("data:").and_then(|data| data.strip_suffix("\n\n"));
    let data = data.unwrap_or_else(|| panic!("no event: {chunk:?}"));
    serde_json::from_str(data).unwrap_or_else(|error| panic!("{error}: {chunk:?}"))
}

#[tokio::test]
async fn events_tell_each_change_once_and_end_when_the_order_is_done() {
    let place = Place::new();
    let service = place.start([]).await;
    service.place("a1", 1_500).await;
    let mut client = service.connect().await;
    let head = client.begin("GET", "/orders/a1/events", b"").await.expect("an answer");
    assert_eq!((head.status, head.header("content-type")), (200, Some("text/event-stream")), "{head:?}");
    let mut events = Vec::new();
    while let Some(chunk) = client.chunk().await.expect("ended by its final chunk") {
        events.push(event(&chunk));
    }
    let steps = |count: usize| Value::from(["reserve", "charge", "ship"][..count].to_vec());
    events.retain(|event| event["state"] != "accepted");
    let seen: Vec<_> = events.iter().map(|event| (event["state"].clone(), event["steps"].clone())).collect();
    let wanted: Vec<(Value, Value)> = vec![
        ("working".into(), steps(0)),
        ("working".into(), steps(1)),
        ("working".into(), steps(2)),
        ("done".into(), steps(3)),
    ];
    assert_eq!(seen, wanted);
    assert_eq!(keys(&events[0]).len(), 6);
    // The connection is as good as before.
    let again = client.get("/orders/a1").await.expect("an answer");
    assert_eq!(again.json()["state"], "done");
    let mut over = service.connect().await;
    over.begin("GET", "/orders/a1/events", b"").await.expect("an answer");
    assert!(over.chunk().await.expect("a chunk").is_some());
    assert!(over.chunk().await.expect("the final chunk").is_none(), "one event, and the end");
    service.term().await.assert_code(0);
}

#[tokio::test]
async fn events_end_cleanly_at_the_stop() {
    let place = Place::new();
    let service = place.start(["--grace", "10s", "--drain", "300ms"]).await;
    service.place("a1", 30_000).await;
    service.until("a1", "working").await;
    let mut client = service.connect().await;
    client.begin("GET", "/orders/a1/events", b"").await.expect("an answer");
    assert_eq!(event(&client.chunk().await.expect("a chunk").expect("an event"))["state"], "working");
    service.running.signal(Signal::Term);
    while client.chunk().await.expect("ended by its final chunk").is_some() {}
    let exit = service.running.wait().await;
    exit.assert_code(0).assert_within(Duration::from_secs(2)).assert_line("1 handed back");
    assert!(!exit.stderr.contains(" cut ("), "{exit}");
}

#[tokio::test]
async fn an_attempt_that_fails_is_repeated_and_the_third_is_the_last() {
    failing(Place::new()).await;
}

/// Orders that fail once, twice and each time.
pub async fn failing(place: Place) {
    let service = place.start([]).await;
    let fails = |id: &str, fail: u32| json!({"id": id, "items": ["tea"], "fail": fail}).to_string();
    for (id, fail) in [("f1", 1), ("f2", 2), ("f3", 3)] {
        assert_eq!(service.post(fails(id, fail)).await.status, 202);
    }
    let mut client = service.connect().await;
    client.begin("GET", "/orders/f3/events", b"").await.expect("an answer");
    for (id, attempts) in [("f1", 1), ("f2", 2)] {
        let done = service.until(id, "done").await;
        assert_eq!((&done["attempts"], &done["interruptions"]), (&attempts.into(), &0.into()), "{done}");
    }
    let dead = service.until("f3", "dead").await;
    assert_eq!((&dead["attempts"], &dead["steps"]), (&3.into(), &json!([])), "{dead}");
    let mut last = Value::Null;
    while let Some(chunk) = client.chunk().await.expect("ended by its final chunk") {
        last = event(&chunk);
    }
    assert_eq!(last, dead);
    let mut stats = service.stats().await;
    let letter = stats["dead_letters"][0].as_object_mut().expect("a dead letter");
    assert!(letter.remove("age_ms").is_some_and(|age| age.is_u64()));
    let letter = json!({"id": "f3", "reason": "attempt 3 of 3 that fail",
                        "attempts": 3, "interruptions": 0, "crashes": 0});
    assert_eq!(
        stats,
        json!({"accepted": 0, "working": 0, "done": 2, "dead": 1, "interruptions": 0, "crashes": 0,
               "outbox": 0, "oldest_ms": null, "dead_letters": [letter]})
    );
    // Dead is told to who places it again.
    let again = service.post(fails("f3", 3)).await;
    assert_eq!((again.status, &again.json()["state"]), (200, &"dead".into()));

    // It may be retried, and then has all of its attempts again; what is not dead has nothing to be retried.
    for (id, status) in [("f1", 404), ("nobody", 404), ("%ff", 400), ("f3", 202)] {
        let path = format!("/orders/{id}/retry");
        let answer = service.connect().await.request("POST", &path, b"").await.expect("an answer");
        assert_eq!(answer.status, status, "{id}: {answer:?}");
        if status == 202 {
            let retried = answer.json();
            assert!(retried["state"] != "dead" && retried["attempts"] != 3, "{answer:?}");
        } else {
            answer.error();
        }
    }
    assert_eq!(service.until("f3", "dead").await["attempts"], 3);
    service.term().await.assert_code(0);
    place.assert_done_once(2).await;
}
