//! The threads that read, await and reap a process, whatever the test's runtime does meanwhile.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use rustix::process::{Pid, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid};
use tokio::sync::watch;

use super::exit::{Exit, Line, Stream};
use super::running::Signal;

/// A child process with its output so far; killed and reaped when dropped.
pub(super) struct Watch {
    pid: Pid,
    shared: Arc<Shared>,
    reaper: Option<JoinHandle<()>>,
    stalled: Option<ChildStderr>,
}

struct Shared {
    state: Mutex<State>,
    changed: watch::Sender<()>,
}

pub(super) struct State {
    started: Instant,
    first_signal: Option<Instant>,
    streams: [Output; 2],
    pub(super) lines: Vec<Line>,
    ended: Option<(ExitStatus, Instant)>,
}

#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    /// How many of the bytes are in lines already.
    in_lines: usize,
    open: bool,
}

/// Kills the group where the test itself is gone: the pipe ends with whoever holds its other end.
struct Guard {
    helper: Child,
    _held: Option<ChildStdin>,
}

// === impl Watch ===

impl Watch {
    pub(super) fn start(command: &mut Command, stalled_stderr: bool) -> io::Result<Self> {
        let mut child = command.spawn()?;
        let started = Instant::now();
        let pid = Pid::from_child(&child);
        let guard = Guard::over(pid);

        let stalled = if stalled_stderr { child.stderr.take() } else { None };
        let streams = [Output::new(child.stdout.is_some()), Output::new(child.stderr.is_some())];
        let state = State { started, first_signal: None, streams, lines: Vec::new(), ended: None };
        let shared = Arc::new(Shared { state: Mutex::new(state), changed: watch::Sender::new(()) });

        if let Some(stdout) = child.stdout.take() {
            let shared = shared.clone();
            thread::spawn(move || shared.read(Stream::Stdout, stdout));
        }
        if let Some(stderr) = child.stderr.take() {
            let shared = shared.clone();
            thread::spawn(move || shared.read(Stream::Stderr, stderr));
        }
        let reaper = thread::spawn({
            let shared = shared.clone();
            move || shared.reap(child, guard)
        });
        Ok(Watch { pid, shared, reaper: Some(reaper), stalled })
    }

    pub(super) fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    pub(super) fn signal(&self, signal: Signal) -> bool {
        let mut state = self.state();
        if state.ended.is_none() {
            state.first_signal.get_or_insert_with(Instant::now);
        }
        self.send(&state, signal)
    }

    /// A kill that is nobody's request to stop: it starts no clock.
    pub(super) fn kill(&self) {
        self.send(&self.state(), Signal::Kill);
    }

    /// The reaper takes the same lock to reap, so until the end is in the state the number is still this process's.
    fn send(&self, state: &State, signal: Signal) -> bool {
        state.ended.is_none() && kill_process(self.pid, signal.to_rustix()).is_ok()
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.shared.changed.subscribe()
    }

    pub(super) fn fill_stalled(&self) -> io::Result<()> {
        let Some(pipe) = &self.stalled else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "standard error is read: see `stalled_stderr`",
            ));
        };
        // Opened again by its name in /proc, a pipe's reading end gives a writing one.
        let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
        let sender = tokio::net::unix::pipe::OpenOptions::new().open_sender(path)?;
        // Written to without tokio, which would first have to be told that there is room.
        let mut sender = File::from(sender.into_nonblocking_fd()?);
        for chunk in [&[b'\n'; 4096][..], b"\n"] {
            loop {
                match sender.write(chunk) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.kill();
        if let Some(reaper) = self.reaper.take() {
            let _ = reaper.join();
        }
    }
}

// === impl Shared ===

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, stream: Stream, mut from: impl Read) {
        let mut buffer = [0; 8192];
        loop {
            let read = match from.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other.unwrap_or(0),
            };
            self.state().take_in(stream, &buffer[..read]);
            self.changed.send_replace(());
            if read == 0 {
                return;
            }
        }
    }

    /// Sees the end without reaping, so that the end's time is right and the number stays taken until the lock is held.
    fn reap(&self, mut child: Child, guard: Option<Guard>) {
        let pid = Pid::from_child(&child);
        while let Err(rustix::io::Errno::INTR) =
            waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
        {}
        let at = Instant::now();
        drop(guard);

        let mut state = self.state();
        // No group is left where the process was alone in it.
        let _ = kill_process_group(pid, Signal::Kill.to_rustix());
        let status = child.wait().unwrap_or(ExitStatus::from_raw(0x7f00));
        state.ended = Some((status, at));
        drop(state);
        self.changed.send_replace(());
    }
}

// === impl State ===

impl State {
    /// How it ended and when, once that is known.
    pub(super) fn ended(&self) -> Option<(ExitStatus, Instant)> {
        self.ended
    }

    /// Whether all that will ever be written has been read.
    pub(super) fn is_read(&self) -> bool {
        self.streams.iter().all(|output| !output.open)
    }

    pub(super) fn bytes(&self, stream: Stream) -> &[u8] {
        &self.streams[stream as usize].bytes
    }

    pub(super) fn exit(&mut self, (status, at): (ExitStatus, Instant)) -> Exit {
        let took = at.saturating_duration_since(self.first_signal.unwrap_or(self.started));
        let lines = std::mem::take(&mut self.lines);
        Exit::new(status, took, self.bytes(Stream::Stdout), self.bytes(Stream::Stderr), lines)
    }

    /// Nothing taken in means that the stream has ended: what is left is a line without an end.
    fn take_in(&mut self, stream: Stream, read: &[u8]) {
        let at = self.started.elapsed();
        let output = &mut self.streams[stream as usize];
        output.bytes.extend_from_slice(read);
        while let Some(text) = output.next_line() {
            self.lines.push(Line { at, stream, text });
        }
        if read.is_empty() {
            output.open = false;
            let rest = String::from_utf8_lossy(&output.bytes[output.in_lines..]).into_owned();
            output.in_lines = output.bytes.len();
            if !rest.is_empty() {
                self.lines.push(Line { at, stream, text: rest });
            }
        }
    }
}

// === impl Output ===

impl Output {
    fn new(open: bool) -> Self {
        Output { open, ..Output::default() }
    }

    fn next_line(&mut self) -> Option<String> {
        let rest = &self.bytes[self.in_lines..];
        let end = rest.iter().position(|&byte| byte == b'\n')?;
        let text = String::from_utf8_lossy(&rest[..end]).trim_end_matches('\r').to_owned();
        self.in_lines += end + 1;
        Some(text)
    }
}

// === impl Guard ===

impl Guard {
    /// Where there is no `sh` there is no guard, and a test that is killed leaves its process behind.
    fn over(group: Pid) -> Option<Self> {
        let mut helper = Command::new("sh")
            .args(["-c", "read -r _; kill -s KILL -- \"-$0\""])
            .arg(group.as_raw_nonzero().to_string())
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let _held = helper.stdin.take();
        Some(Guard { helper, _held })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // Before the pipe ends: told by it, the helper would kill.
        let _ = self.helper.kill();
        let _ = self.helper.wait();
    }
}
