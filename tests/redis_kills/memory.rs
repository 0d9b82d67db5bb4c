//! What is left when all is done.

use std::collections::BTreeSet;

use super::crew::limits::times;
use super::crew::{QUEUE, Scene, duty, eventually, term};
use super::redis_server::Redis;

/// What the kernel says that a process has in memory, in KiB.
fn resident_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

async fn keys(redis: &Redis) -> BTreeSet<String> {
    let mut connection = redis.connection().await;
    redis::cmd("KEYS").arg("*").query_async(&mut connection).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_of_a_million_jobs_but_what_is_dead_or_counted() {
    let rounds = times(4, 20);
    let each = times(5_000, 50_000);
    let redis = Redis::start();
    let scene = Scene::on(&redis).await;
    let crew = scene.crew("first").args(["--concurrency", "64", "--stamps", "none"]).start().await.unwrap();
    let mut memory = Vec::new();
    let mut of_the_server = Vec::new();
    let mut number = 0;
    for _ in 0..rounds {
        let from = number;
        scene.push_from(from, each, |_| duty("nothing", &[])).await;
        number += each;
        scene.until_done().await;
        memory.push(resident_kib(crew.id()));
        of_the_server.push(redis_used(&redis).await);
    }
    let ended = term(crew).await;
    ended.exit.assert_code(0);
    assert_eq!(ended.count("acked"), number);
    eprintln!("{number} jobs; worker {memory:?} KiB, server {of_the_server:?} B");
    // The first round warms it up; an eighth of a KiB a job would be seen at once.
    let (warm, last) = (memory[0], memory[memory.len() - 1]);
    assert!(last < warm + warm / 4 + 2_048, "the worker grew: {memory:?} KiB");
    let (warm, last) = (of_the_server[0], of_the_server[of_the_server.len() - 1]);
    assert!(last < warm + warm / 4 + 1_000_000, "the server grew: {of_the_server:?} B");
    let left = keys(&redis).await;
    let mine = |name: &str| format!("{{{QUEUE}}}:{name}");
    let may_stay: BTreeSet<String> = ["epoch", "layout", "state", "wake"].map(mine).into();
    assert!(left.is_subset(&may_stay), "{left:?}");
    eventually("the counts are those of an empty queue", async || {
        let counts = scene.counts().await;
        (counts.pending, counts.scheduled, counts.active, counts.dead) == (0, 0, 0, 0)
    })
    .await;
}

async fn redis_used(redis: &Redis) -> u64 {
    let mut connection = redis.connection().await;
    let info: String = redis::cmd("INFO").arg("memory").query_async(&mut connection).await.unwrap();
    let used = info.lines().find_map(|line| line.strip_prefix("used_memory_dataset:")).unwrap();
    used.trim().parse().unwrap()
}
