//! The example, started in a folder of its own.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{Connection, SqliteConnection};
use tempfile::TempDir;
use winddown::testing::process::{Exit, Process, Running, Signal};

use crate::client::{Answer, Client};
use crate::redis_server::Redis;

#[path = "../support/limits.rs"]
mod limits;

use limits::eventually_within;
pub use limits::times;

/// Far more than anything here takes on a slow machine.
const SOON: Duration = Duration::from_secs(60);

/// A folder with a database, which outlives the processes that use it, and perhaps a queue beside it.
pub struct Place {
    folder: TempDir,
    redis: Option<Redis>,
}

pub struct Service {
    pub running: Running,
    pub address: SocketAddr,
}

/// The same numbers each time.
pub struct Random(pub u64);

pub fn order(id: &str, work_ms: u64) -> String {
    json!({"id": id, "items": ["tea"], "work_ms": work_ms}).to_string()
}

/// Looks again and again, for as long as is bearable.
pub async fn eventually(what: &str, look: impl AsyncFnMut() -> bool) {
    eventually_within(SOON, what, look).await;
}

/// For what this machine does not let us do: never silently.
pub fn skip(why: &str) {
    eprintln!("SKIPPED: {why}");
    if let Some(file) = std::env::var_os("WINDDOWN_SKIPS") {
        use std::io::Write;
        let file = std::fs::OpenOptions::new().create(true).append(true).open(file);
        let _ = file.and_then(|mut file| writeln!(file, "orders: {why}"));
    }
}

// === impl Place ===

impl Place {
    pub fn new() -> Place {
        Place { folder: tempfile::tempdir().expect("a folder"), redis: None }
    }

    /// With the jobs in a Redis of its own, which keeps them on disk.
    pub fn with_redis() -> Place {
        let redis = Redis::start_with(&["--save", "", "--appendonly", "yes", "--appendfsync", "always"]);
        Place { redis: Some(redis), ..Place::new() }
    }

    pub fn redis(&mut self) -> &mut Redis {
        self.redis.as_mut().expect("a place with Redis")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn url(&self) -> String {
        format!("sqlite:{}", self.path("orders.db").display())
    }

    /// The program with its database and any free port, and without what the machine says of its own stops.
    pub fn orders<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Process {
        let orders = bare(args).args(["--listen", "127.0.0.1:0", "--database", &self.url()]);
        match &self.redis {
            Some(redis) => orders.args(["--queue", &redis.url()]),
            None => orders,
        }
    }

    pub async fn start<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Service {
        Service::start(self.orders(args)).await
    }

    /// Runs it to its end, which is to come by itself.
    pub async fn fails<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Exit {
        self.orders(args).start().await.expect("started").wait().await
    }

    /// One number out of the database.
    pub async fn number(&self, sql: &str) -> i64 {
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql.to_owned()))
            .fetch_one(&mut self.database().await)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    pub async fn execute(&self, sql: &str) {
        let done =
            sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned())).execute(&mut self.database().await).await;
        done.unwrap_or_else(|error| panic!("{sql}: {error}"));
    }

    /// Holds the lock that a write needs, until it is dropped.
    pub async fn lock(&self) -> SqliteConnection {
        let mut connection = self.database().await;
        sqlx::raw_sql("BEGIN IMMEDIATE").execute(&mut connection).await.expect("the lock");
        connection
    }

    /// Each of so many orders done, with each of its effects, once.
    pub async fn assert_done_once(&self, orders: i64) {
        assert_eq!(self.number("SELECT count(*) FROM orders WHERE done = 1").await, orders);
        assert_eq!(self.number("SELECT count(*) FROM effects").await, 3 * orders);
        let pairs = "SELECT count(*) FROM (SELECT DISTINCT order_id, step FROM effects)";
        assert_eq!(self.number(pairs).await, 3 * orders);
    }

    /// The file of `--report FILE`, its ledgers checked.
    pub fn report(&self, name: &str) -> Value {
        let text = std::fs::read_to_string(self.path(name)).expect("a report");
        let report: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        for gate in report["gates"].as_array().expect("gates") {
            let count = |key: &str| gate[key].as_u64().unwrap_or_else(|| panic!("{key}: {gate}"));
            let cut: u64 = gate["cut"].as_object().expect("cut").values().filter_map(Value::as_u64).sum();
            let sum = count("finished") + count("handed_back") + cut + count("lost");
            assert_eq!(count("held") + count("let_in"), sum, "{gate}");
        }
        report
    }

    async fn database(&self) -> SqliteConnection {
        let options = SqliteConnectOptions::from_str(&self.url()).expect("a URL");
        SqliteConnection::connect_with(&options.busy_timeout(Duration::from_secs(30)))
            .await
            .expect("a database")
    }
}

/// The program with these arguments only.
pub fn bare<'a>(args: impl IntoIterator<Item = &'a str>) -> Process {
    ["WINDDOWN_GRACE", "WINDDOWN_PRESTOP", "KUBERNETES_SERVICE_HOST", "RUST_LOG"]
        .into_iter()
        .fold(Process::example("orders"), Process::env_remove)
        .args(args)
}

// === impl Service ===

impl Service {
    pub async fn start(process: Process) -> Service {
        let running = process.ready_line("ready").start().await.unwrap_or_else(|error| panic!("{error:?}"));
        let address = running.stdout().lines().find_map(|line| {
            line.strip_prefix("listening on http://").and_then(|address| address.parse().ok())
        });
        Service { address: address.expect("the line `listening on http://ADDR` before `ready`"), running }
    }

    pub async fn connect(&self) -> Client {
        Client::connect(self.address).await.expect("a connection")
    }

    /// On a connection of its own.
    pub async fn get(&self, path: &str) -> Answer {
        self.connect().await.get(path).await.unwrap_or_else(|error| panic!("GET {path}: {error}"))
    }

    /// On a connection of its own.
    pub async fn post(&self, order: impl AsRef<[u8]>) -> Answer {
        self.connect().await.post(order).await.expect("an answer")
    }

    /// Places an order that is new.
    pub async fn place(&self, id: &str, work_ms: u64) {
        let answer = self.post(order(id, work_ms)).await;
        assert_eq!(answer.status, 202, "{answer:?}");
    }

    pub async fn state(&self, id: &str) -> Value {
        let answer = self.get(&format!("/orders/{id}")).await;
        assert_eq!(answer.status, 200, "{answer:?}");
        answer.json()
    }

    pub async fn stats(&self) -> Value {
        self.get("/stats").await.json()
    }

    pub async fn until(&self, id: &str, state: &str) -> Value {
        eventually(&format!("{id} is {state}"), async || self.state(id).await["state"] == state).await;
        self.state(id).await
    }

    pub async fn until_done(&self, orders: u64) {
        let done = async || {
            let stats = self.stats().await;
            assert_eq!(stats["dead"], 0, "given up, and never done: {stats}");
            stats["done"] == orders
        };
        eventually(&format!("{orders} done"), done).await;
    }

    /// Asks it to stop, and waits until it has.
    pub async fn term(self) -> Exit {
        self.running.signal(Signal::Term);
        self.running.wait().await
    }
}

// === impl Random ===

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}
