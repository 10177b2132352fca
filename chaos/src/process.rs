//! Starts and stops the worker processes, and reads their output.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::event::{Event, now};
use crate::report::{Fault, Repairs};
use crate::worker::Failed;

/// A worker process. The process is killed when this value is dropped.
pub(crate) struct Process {
    pub(crate) number: u32,
    child: Child,
    said: Receiver<Said>,
}

/// The output of a process.
#[derive(Debug, Default)]
pub(crate) struct Said {
    pub(crate) events: Vec<Event>,
    /// The fault of the process's clock, if any.
    pub(crate) clock: Option<Fault>,
    pub(crate) repairs: Repairs,
}

/// Returns the path of libfaketime, which shifts the clock of a program.
pub(crate) fn faketime() -> Option<PathBuf> {
    let dirs = std::fs::read_dir("/usr/lib").into_iter().flatten().filter_map(Result::ok);
    dirs.map(|dir| dir.path().join("faketime/libfaketimeMT.so.1")).find(|path| path.is_file())
}

impl Process {
    /// Starts `PROGRAM worker URL SEED`, with a shifted clock if `library` is given.
    pub(crate) fn start(
        program: &Path,
        number: u32,
        [url, seed]: [&str; 2],
        faketime: Option<(&Path, Fault)>,
    ) -> Result<Self, Failed> {
        let mut command = Command::new(program);
        command.args(["worker", url, seed]).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some((library, fault)) = faketime {
            let offset = if fault == Fault::Ahead { "+3600" } else { "-3600" };
            // The clock of the events stays correct.
            command.env("LD_PRELOAD", library).env("FAKETIME", offset);
            command.env("DONT_FAKE_MONOTONIC", "1");
        }
        let began = now();
        let mut child = command.spawn()?;
        let Some(out) = child.stdout.take() else { return Err("it has no output".into()) };
        let (sender, said) = channel();
        std::thread::spawn(move || {
            // The send fails if the receiver was dropped.
            let _ = sender.send(read(number, out, began));
        });
        Ok(Self { number, child, said })
    }

    pub(crate) fn signal(&self, signal: Signal) -> Result<(), Failed> {
        Ok(kill(Pid::from_raw(self.child.id().cast_signed()), signal)?)
    }

    /// Tells the process to add no more keys, and to work until nothing is left.
    pub(crate) fn let_go(&mut self) {
        drop(self.child.stdin.take());
    }

    /// Waits for the end of the process, and returns its output.
    pub(crate) fn end(mut self) -> Result<Said, Failed> {
        self.child.wait()?;
        Ok(self.said.recv()?)
    }

    /// Returns true if the process exits before the deadline.
    pub(crate) async fn ends_by(&mut self, deadline: Instant) -> Result<bool, Failed> {
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                self.child.kill()?;
                return Ok(false);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(true)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The kill fails if the process has exited.
        let _ = self.child.kill();
        let _ = self.child.wait();
        // libfaketime does not remove these files if its process was killed.
        for left in ["faketime_shm_", "sem.faketime_sem_"] {
            let _ = std::fs::remove_file(format!("/dev/shm/{left}{}", self.child.id()));
        }
    }
}

fn read(number: u32, out: ChildStdout, began: u64) -> Said {
    let mut said = Said::default();
    for line in BufReader::new(out).lines().map_while(Result::ok) {
        if let Some(clocks) = line.strip_prefix("clocks ") {
            said.clock = clock(clocks, began);
        } else if let Some(repair) = line.strip_prefix("repaired ") {
            let numbers: Vec<u64> = repair.split(' ').map_while(|n| n.parse().ok()).collect();
            if let [restored, lost] = numbers[..] {
                said.repairs.restored += restored;
                said.repairs.lost += lost;
            }
        } else {
            said.events.extend(Event::parse(number, &line));
        }
    }
    said
}

/// Returns the line with which a process reports its clocks.
pub(crate) fn clocks() -> String {
    format!("clocks {} {}\n", unix(), now())
}

/// Returns the time in nanoseconds by which the machine's clock is ahead of the shared clock.
pub(crate) fn clock_ahead() -> u64 {
    u64::try_from(since_1970().as_nanos()).unwrap_or(u64::MAX).saturating_sub(now())
}

fn unix() -> u64 {
    since_1970().as_secs()
}

fn since_1970() -> Duration {
    SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default()
}

/// Returns the fault of the clock of a process that reports this line.
fn clock(said: &str, began: u64) -> Option<Fault> {
    let (its, shared) = said.split_once(' ')?;
    let shared: u64 = shared.parse().ok()?;
    assert!((began..=now()).contains(&shared), "the clock that all share: {began} {said}");
    let off = its.parse::<u64>().ok()?.cast_signed() - unix().cast_signed();
    match off {
        3000.. => Some(Fault::Ahead),
        ..-3000 => Some(Fault::Behind),
        _ => None,
    }
}
