//! HAProxy and nginx, each with a configuration of its own, in front of replicas.

use std::net::SocketAddr;
use std::path::PathBuf;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use winddown::testing::process::{Process, Running};

use crate::place::{Place, ask, eventually, program};
use crate::replica::Replica;

pub struct Haproxy {
    pub front: SocketAddr,
    socket: PathBuf,
    running: Running,
}

pub struct Nginx {
    pub front: SocketAddr,
    log: PathBuf,
    running: Running,
}

/// The end of what was logged.
const SHOWN: usize = 60;

// === impl Haproxy ===

impl Haproxy {
    /// Nothing is repeated, and nothing sent elsewhere: what a server drops, a client sees.
    pub async fn start(place: &Place, replicas: &[Replica], backend: &str) -> Haproxy {
        let front = place.address(14);
        let socket = place.path("haproxy.sock");
        // An answer to a check may take its time on a busy machine; else it has 100 ms, and all servers may seem down at once.
        let mut config = format!(
            "global\n  log stdout format raw local0\n  stats socket {} mode 600 level operator\n\
             defaults\n  mode http\n  log global\n  option httplog\n  option dontlog-normal\n  retries 0\n  \
             timeout connect 10s\n  timeout check 5s\n  timeout client 60s\n  timeout server 60s\n\
             frontend front\n  bind {front}\n  default_backend orders\n\
             backend orders\n  balance roundrobin\n  option httpchk GET /readyz\n  {backend}\n",
            socket.display()
        );
        for (number, replica) in replicas.iter().enumerate() {
            config +=
                &format!("  server orders{number} {} check inter 100ms fall 1 rise 1\n", replica.address);
        }
        let file = place.path("haproxy.cfg");
        std::fs::write(&file, config).expect("a configuration");
        let haproxy = Process::new(program("haproxy").expect("haproxy")).args(["-db", "-f"]).arg(file);
        let running = haproxy.start().await.unwrap_or_else(|error| panic!("{error:?}"));
        let haproxy = Haproxy { front, socket, running };
        for number in 0..replicas.len() {
            haproxy.until_up(number).await;
        }
        haproxy
    }

    /// Waits until it says that this replica is up.
    pub async fn until_up(&self, number: usize) {
        let up = async || self.stat(&format!("orders{number}"), "status").await.is_some_and(|is| is == "UP");
        eventually(&format!("orders{number} is up"), up).await;
    }

    /// How many requests it was sent.
    pub async fn requests(&self) -> u64 {
        let requests = self.stat("FRONTEND", "req_tot").await;
        requests.and_then(|requests| requests.parse().ok()).expect("requests are counted")
    }

    /// Waits until it was sent so many requests more.
    pub async fn until_requests(&self, more: u64) {
        let wanted = self.requests().await + more;
        eventually(&format!("{more} requests more"), async || self.requests().await >= wanted).await;
    }

    /// What went wrong, and which servers were up and down.
    pub fn log(&self) -> String {
        last_lines("haproxy", &(self.running.stdout() + &self.running.stderr()))
    }

    /// One field of its statistics, which are a table with names in the first line.
    async fn stat(&self, server: &str, field: &str) -> Option<String> {
        let mut stream = UnixStream::connect(&self.socket).await.ok()?;
        stream.write_all(b"show stat\n").await.ok()?;
        let mut stats = String::new();
        stream.read_to_string(&mut stats).await.ok()?;
        let mut rows = stats.lines().map(|line| line.trim_start_matches("# ").split(','));
        let column = rows.next()?.position(|name| name == field)?;
        let mut row = rows.find(|row| row.clone().nth(1) == Some(server))?;
        row.nth(column).map(str::to_owned)
    }
}

// === impl Nginx ===

impl Nginx {
    /// What is safe to repeat is sent to the next server where one fails.
    pub async fn start(place: &Place, replicas: &[Replica]) -> Nginx {
        let front = place.address(14);
        let log = place.path("nginx.log");
        // A server that failed is asked again at once: with the default, `max_fails=1 fail_timeout=10s`, the restart of the
        // next replica within ten seconds leaves nginx with none.
        let servers: String =
            replicas.iter().map(|replica| format!("server {} max_fails=0; ", replica.address)).collect();
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .iter()
            .map(|name| format!("{name}_temp_path {}; ", place.path(name).display()))
            .collect();
        let config = format!(
            "daemon off; worker_processes 1; pid {pid}; error_log {log} error;\n\
             events {{ worker_connections 1024; }}\n\
             http {{\n  {temporary}\n  keepalive_requests 1000000;\n\
             map $status $failed {{ ~^2 0; default 1; }}\n\
             log_format failed '$time_local $request: $status from $upstream_addr: $upstream_status';\n\
             access_log {log} failed if=$failed;\n\
             upstream orders {{ {servers} keepalive 16; }}\n\
             server {{ listen {front}; location = /nginx {{ stub_status; }} location / {{\n\
             proxy_pass http://orders; proxy_http_version 1.1; proxy_set_header Connection \"\";\n\
             proxy_next_upstream error timeout; }} }}\n}}\n",
            pid = place.path("nginx.pid").display(),
            log = log.display(),
        );
        let file = place.path("nginx.conf");
        std::fs::write(&file, config).expect("a configuration");
        let nginx = Process::new(program("nginx").expect("nginx")).arg("-e").arg(&log);
        let nginx = nginx.arg("-p").arg(place.path("")).arg("-c").arg(file);
        let running = nginx.start().await.unwrap_or_else(|error| panic!("{error:?}"));
        let nginx = Nginx { front, log, running };
        eventually("nginx listens", async || nginx.counted().await.is_some()).await;
        nginx
    }

    /// Waits until it was sent so many requests more.
    pub async fn until_requests(&self, more: u64) {
        let wanted = self.counted().await.expect("nginx counts") + more;
        let sent = async || self.counted().await.is_some_and(|requests| requests >= wanted);
        eventually(&format!("{more} requests more"), sent).await;
    }

    /// What went wrong: also what it repeated, so that no client saw it.
    pub fn log(&self) -> String {
        last_lines("nginx", &std::fs::read_to_string(&self.log).unwrap_or_default())
    }

    /// Of three numbers in one line the last, under `server accepts handled requests`.
    async fn counted(&self) -> Option<u64> {
        assert!(!self.running.has_ended(), "nginx ended: {}{}", self.running.stderr(), self.log());
        let request = "GET /nginx HTTP/1.1\r\nhost: test\r\nconnection: close\r\n\r\n";
        let status = ask(self.front, request).await.ok()?;
        let (_, numbers) = status.split_once("handled requests")?;
        numbers.split_whitespace().nth(2)?.parse().ok()
    }
}

fn last_lines(of: &str, log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let shown = lines[lines.len().saturating_sub(SHOWN)..].join("\n");
    format!("--- {of}, the last of {} lines:\n{shown}\n", lines.len())
}
