//! What a request costs a server over sockets, beside plain `axum::serve`: by the processor's time of server processes.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

use axum::Router;
use axum::routing::{Route, get};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use winddown::server::tower::InFlightLayer;
use winddown::{BoxError, Budget, ShutdownCoordinator, server, signal};

use crate::measure::{cpu, median};

/// The first is what the others are compared with, in pairs.
const WAYS: [(&str, &str); 4] = [
    ("axum", "plain axum::serve"),
    ("nothing", "with a layer that does nothing"),
    ("layer", "with the layer"),
    ("ours", "server::axum::serve"),
];
const CONNECTIONS: usize = 16;
const REQUEST: &[u8] = b"GET / HTTP/1.1\r\nhost: bench\r\n\r\n";

/// A server in a process of its own, which ends with this one.
struct Server {
    child: Child,
    addr: SocketAddr,
}

/// Prints what each way costs a request. Reported and not judged: a few percent are the machine's own.
pub fn print(quick: bool) {
    let (rounds, requests) = if quick { (5, 200) } else { (25, 400) };
    println!(
        "\nA request over sockets ({CONNECTIONS} kept connections, processor time of the server's process)"
    );
    match measure(rounds, requests) {
        Ok(()) => {}
        Err(error) => println!("  NOT MEASURED: {error}"),
    }
}

/// The program as a server: says its address, and serves until its standard input ends.
pub fn serve(way: &str) -> ExitCode {
    match try_serve(way) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn measure(rounds: usize, requests: usize) -> Result<(), BoxError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let servers: Vec<Server> = WAYS.iter().map(|(way, _)| Server::start(way)).collect::<Result<_, _>>()?;
    let mut times = vec![Vec::new(); WAYS.len()];
    // The first round warms up.
    for round in 0..=rounds {
        for (n, server) in servers.iter().enumerate() {
            let cost = runtime.block_on(server.cost(requests))?;
            if round > 0 {
                times[n].push(cost);
            }
        }
    }
    println!("{:<34} {:>11} {:>7} {:>10}", "", "a request", "ratio", "of pairs");
    for (n, (_, name)) in WAYS.iter().enumerate() {
        let mut ratios: Vec<f64> = times[n].iter().zip(&times[0]).map(|(ours, plain)| ours / plain).collect();
        ratios.sort_by(f64::total_cmp);
        // Half of what the middle half of the pairs spreads over.
        let spread = (ratios[ratios.len() * 3 / 4] - ratios[ratios.len() / 4]) / 2.0;
        let time = median(times[n].clone());
        println!("{name:<34} {time:>8.2} µs {:>7.2} {:>10}", median(ratios), format!("± {spread:.2}"));
    }
    Ok(())
}

// === impl Server ===

impl Server {
    fn start(way: &str) -> Result<Self, BoxError> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["serve", way])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut addr = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut addr)?;
        }
        Ok(Server { child, addr: addr.trim().parse()? })
    }

    /// Microseconds a request.
    async fn cost(&self, requests: usize) -> Result<f64, BoxError> {
        let mut connections = Vec::new();
        for _ in 0..CONNECTIONS {
            let mut stream = TcpStream::connect(self.addr).await?;
            stream.set_nodelay(true)?;
            // Accepted, and as long as all that follow.
            let length = first(&mut stream).await?;
            connections.push((stream, length));
        }
        let before = self.cpu()?;
        let mut asking = JoinSet::new();
        for (stream, length) in connections {
            asking.spawn(ask(stream, length, requests));
        }
        while let Some(asked) = asking.join_next().await {
            asked??;
        }
        let taken = self.cpu()? - before;
        Ok(taken.as_secs_f64() * 1e6 / (CONNECTIONS * requests) as f64)
    }

    fn cpu(&self) -> io::Result<Duration> {
        let mut clock = 0;
        // SAFETY: writes to the place that it is given, and to nothing else.
        match unsafe { libc::clock_getcpuclockid(self.child.id() as libc::pid_t, &mut clock) } {
            0 => Ok(cpu(clock)),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

async fn first(stream: &mut TcpStream) -> io::Result<usize> {
    stream.write_all(REQUEST).await?;
    let mut answer = Vec::new();
    while !answer.ends_with(b"\r\n\r\nhello") {
        if stream.read_buf(&mut answer).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(answer.len())
}

async fn ask(mut stream: TcpStream, length: usize, requests: usize) -> io::Result<()> {
    let mut answer = vec![0; length];
    for _ in 0..requests {
        stream.write_all(REQUEST).await?;
        stream.read_exact(&mut answer).await?;
    }
    Ok(())
}

#[tokio::main]
async fn try_serve(way: &str) -> Result<(), BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    println!("{}", listener.local_addr()?);
    io::stdout().flush()?;
    std::thread::spawn(|| {
        let _ = io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let app = Router::new().route("/", get(async || "hello"));
    let mut shutdown = ShutdownCoordinator::new(Budget::default(), signal::none())?;
    match way {
        "axum" => axum::serve(listener, app).await?,
        "nothing" => axum::serve(listener, app.layer(tower_layer::layer_fn(|route: Route| route))).await?,
        "layer" => axum::serve(listener, app.layer(InFlightLayer::new(shutdown.gate("http")))).await?,
        _ => {
            shutdown.add(server::axum::serve("http", listener, app));
            shutdown.run().await;
        }
    }
    Ok(())
}
