//! Makes a test fail when a program hangs, instead of waiting forever.

use std::process::{Child, Command};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A time that no test takes unless a program hangs.
pub(crate) const DEADLINE: Duration = Duration::from_secs(900);

/// Kills a program and all processes that it has started when they take too long, so that the test continues. A drop
/// also kills them, because the test has failed.
pub(crate) struct Limit {
    over: Option<Sender<()>>,
    /// The thread that kills the program. It returns true if it has killed the program.
    killer: Option<JoinHandle<bool>>,
}

impl Limit {
    pub(crate) fn of(child: &Child) -> Self {
        let (over, ended) = mpsc::channel();
        let program = Pid::from_child(child);
        let killer = thread::spawn(move || {
            let ended = ended.recv_timeout(DEADLINE);
            if ended.is_err() {
                kill_all(program);
            }
            ended == Err(RecvTimeoutError::Timeout)
        });
        Self { over: Some(over), killer: Some(killer) }
    }

    /// Ends the limit after the program has exited. Returns true if the program hung.
    #[must_use]
    pub(crate) fn was_reached(mut self) -> bool {
        let over = self.over.take().expect("it is there until now");
        // The killer may have returned.
        let _ = over.send(());
        self.killer.take().is_some_and(|killer| killer.join().expect("it does not panic"))
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        drop(self.over.take());
        let _ = self.killer.take().map(JoinHandle::join);
    }
}

/// Waits for the exit of a program. Returns true if it succeeded.
#[track_caller]
pub(crate) fn ends_well(mut child: Child) -> bool {
    let limit = Limit::of(&child);
    let status = child.wait().expect("it was started");
    assert!(!limit.was_reached(), "it hung");
    status.success()
}

/// Kills a process and its descendants, which have other process groups.
fn kill_all(program: Pid) {
    let ps = Command::new("ps").args(["-A", "-o", "pid=,ppid="]).output().expect("ps is there");
    let numbers = |line: &str| {
        let mut numbers = line.split_whitespace().map(|number| number.parse().ok());
        Some((Pid::from_raw(numbers.next()??)?, Pid::from_raw(numbers.next()??)?))
    };
    let text = String::from_utf8_lossy(&ps.stdout).into_owned();
    let processes: Vec<(Pid, Pid)> = text.lines().filter_map(numbers).collect();
    let mut family = vec![program];
    let mut at = 0;
    while let Some(&parent) = family.get(at) {
        family.extend(processes.iter().filter(|(_, of)| *of == parent).map(|(child, _)| *child));
        at += 1;
    }
    for process in family {
        // The process may have exited with its parent.
        let _ = kill_process(process, Signal::KILL);
    }
}

#[test]
fn what_hangs_is_killed_with_what_it_has_started() {
    let mut shell = Command::new("sh");
    let mut child = shell
        .args(["-c", "sleep 1000 & echo up; wait"])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut stdout, &mut String::new()).unwrap();
    drop(Limit::of(&child));
    // Both processes were killed.
    assert_eq!(std::io::Read::read_to_end(&mut stdout, &mut Vec::new()).unwrap(), 0);
    assert!(!child.wait().unwrap().success());
}
