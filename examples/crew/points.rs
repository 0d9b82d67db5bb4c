//! Places at which the process ends or freezes itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};
use winddown::BoxError;

#[derive(Clone, Default)]
pub struct Points(Vec<Arc<Point>>);

struct Point {
    name: String,
    at: u32,
    passed: AtomicU32,
    signal: Signal,
}

// === impl Points ===

impl Points {
    /// As in `ack.before:2:kill`.
    pub fn add(&mut self, text: &str) -> Result<(), BoxError> {
        let parts: Vec<&str> = text.split(':').collect();
        let [name, at, signal] = parts[..] else {
            return Err(format!("{text:?} is not POINT:N:kill or POINT:N:stop").into());
        };
        let signal = match signal {
            "kill" => Signal::KILL,
            "stop" => Signal::STOP,
            _ => return Err(format!("{signal:?} is neither kill nor stop").into()),
        };
        let point = Point { name: name.to_owned(), at: at.parse()?, passed: AtomicU32::new(0), signal };
        self.0.push(Arc::new(point));
        Ok(())
    }

    pub fn pass(&self, name: &str) {
        for point in self.0.iter().filter(|point| point.name == name) {
            if point.passed.fetch_add(1, Ordering::SeqCst) + 1 == point.at {
                eprintln!("point {name}");
                let _ = kill_process(getpid(), point.signal);
                // The signal may be taken by another thread, a moment later: nothing goes on here until then.
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}
