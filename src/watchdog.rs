//! The last way out: leaves the process when nothing else does, and says what was stuck.

use std::io::Write;
use std::sync::mpsc;
use std::time::Duration;

/// The exit code when the watchdog had to leave, as `timeout(1)` has it.
pub(crate) const EXIT_CODE: u8 = 124;

/// How long standard error may take the last words. A pipe that nobody reads takes none, and must not hold the exit.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Makes the words and writes them to standard error, as far as both are done in time.
///
/// On a thread of its own, since a write to a full pipe blocks for ever and so does waiting for another writer's lock.
/// Asking `poll` first would not do: it tells of one write's worth of room, and not of the lock.
pub(crate) fn say(words: impl Iterator<Item = String> + Send + 'static) {
    in_time(move || {
        for words in words {
            let mut err = std::io::stderr().lock();
            let _ = err.write_all(words.as_bytes());
            let _ = err.flush();
        }
    });
}

/// Flushes standard output, as far as it takes that in time: another thread may hold its lock.
pub(crate) fn flush() {
    in_time(|| {
        let _ = std::io::stdout().flush();
    });
}

/// `_exit`: no destructor and no thread can hold it.
pub(crate) fn leave(code: u8) -> ! {
    signal_hook::low_level::exit(i32::from(code))
}

fn in_time(write: impl FnOnce() + Send + 'static) {
    let (done, is_done) = mpsc::channel();
    let writer = std::thread::Builder::new().name("winddown-words".to_owned()).spawn(move || {
        write();
        let _ = done.send(());
    });
    if writer.is_ok() {
        let _ = is_done.recv_timeout(LAST_WORDS);
    }
}

/// What is in flight below a headline, a line each with the mark before it.
pub(crate) fn list(head: &str, mark: &str, in_flight: &[String]) -> String {
    let nothing = if in_flight.is_empty() { "  nothing that is known is still in flight\n" } else { "" };
    format!("winddown: {head}\n{nothing}{}", lines(mark, in_flight))
}

pub(crate) fn lines(mark: &str, lines: &[String]) -> String {
    lines.iter().map(|line| format!("  {mark}{line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_names_each_on_a_line_of_its_own() {
        let list = list("leaving", "stuck: ", &["task a".to_owned(), "order o-1".to_owned()]);
        assert_eq!(list, "winddown: leaving\n  stuck: task a\n  stuck: order o-1\n");
    }
}
