//! A Redis with a replica, and a Sentinel that watches over the two.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::redis_server::Redis;

const SOON: Duration = Duration::from_secs(60);

pub struct Watched {
    pub master: Redis,
    pub replica: Redis,
    sentinel: Child,
    port: u16,
}

// === impl Watched ===

impl Watched {
    /// All three, once the replica is in step and known to the Sentinel.
    pub async fn start() -> Watched {
        let at = free_port();
        let master = server(at, &["--repl-diskless-sync-delay", "0"]);
        let of = format!("127.0.0.1 {at}");
        let replica = server(free_port(), &["--replicaof", &of]);
        // In step before the Sentinel first asks: it asks again only after 10 s.
        let began = Instant::now();
        while !is_linked(&replica).await {
            assert!(began.elapsed() < SOON, "the replica is not in step");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let port = free_port();
        let file = replica.folder().join("sentinel.conf");
        let conf = format!(
            "port {port}\nbind 127.0.0.1\ndir {}\nsentinel monitor crew {of} 1\nsentinel down-after-milliseconds crew 500\n\
             sentinel failover-timeout crew 2000\n",
            replica.folder().display()
        );
        std::fs::write(&file, conf).unwrap();
        let log = std::fs::File::create(replica.folder().join("sentinel.log")).unwrap();
        let mut command = Command::new("redis-server");
        let command =
            command.arg(&file).arg("--sentinel").stdin(Stdio::null()).stdout(log).stderr(Stdio::null());
        let sentinel = command.spawn().expect("redis-server, which `scripts/test` installs");
        let watched = Watched { master, replica, sentinel, port };
        let began = Instant::now();
        while !watched.is_known().await {
            assert!(began.elapsed() < SOON, "no replica is known: {}", watched.log());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        watched
    }

    pub fn url(&self) -> String {
        format!("redis+sentinel://127.0.0.1:{}/crew/0", self.port)
    }

    /// Until all that was written is with the replica.
    pub async fn replicated(&self) {
        let mut connection = self.master.connection().await;
        // WAIT counts what its own connection has written.
        let _: () = redis::cmd("SET").arg("mark").arg(1).query_async(&mut connection).await.unwrap();
        let replicas: u32 = redis::cmd("WAIT").arg(1).arg(30_000).query_async(&mut connection).await.unwrap();
        assert_eq!(replicas, 1);
    }

    async fn is_known(&self) -> bool {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
        let Ok(mut sentinel) = client.get_multiplexed_async_connection().await else { return false };
        let known: redis::RedisResult<Vec<redis::Value>> =
            redis::cmd("SENTINEL").arg("replicas").arg("crew").query_async(&mut sentinel).await;
        known.is_ok_and(|known| known.len() == 1)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.replica.folder().join("sentinel.log")).unwrap_or_default()
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        let _ = self.sentinel.kill();
        let _ = self.sentinel.wait();
    }
}

async fn is_linked(replica: &Redis) -> bool {
    let mut connection = replica.connection().await;
    let info: String = redis::cmd("INFO").arg("replication").query_async(&mut connection).await.unwrap();
    info.contains("master_link_status:up")
}

/// One that listens on this port too, since a Sentinel speaks of servers by address.
fn server(port: u16, args: &[&str]) -> Redis {
    let port = port.to_string();
    let mut all = vec!["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"];
    all.extend(args);
    Redis::start_with(&all)
}

/// One that nothing listens on at this moment.
fn free_port() -> u16 {
    let free = std::net::TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
    free.unwrap().port()
}
