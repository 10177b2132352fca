//! The process groups of the commands in flight.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process_group, test_kill_process_group, waitid,
};
use tokio::process::{Child, Command};

use crate::key::Key;
use crate::process::guardian::Guardian;

/// The groups of the commands in flight.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// The groups by slot. A group is removed when a wait returns its leader. Until then, the process ID cannot be
    /// reused.
    running: Mutex<Vec<Option<Group>>>,
    /// Locked for reading from the start of a command until it is listed, and for writing to reach all commands.
    /// Otherwise, a command that is not listed yet would be missed.
    starting: RwLock<()>,
    /// The process that kills the groups if this process is killed.
    pub(crate) guardian: Option<Guardian>,
}

#[derive(Debug)]
struct Group {
    leader: Pid,
    key: Key,
    since: Instant,
    starved: Option<Signal>,
}

/// The status of an exited leader. If it was killed because it tried to use the terminal, also the signal that had
/// stopped it.
pub(crate) type Reaped = (io::Result<ExitStatus>, Option<Signal>);

impl Groups {
    pub(crate) fn with_guardian(guardian: Option<Guardian>) -> Self {
        Self { guardian, ..Self::default() }
    }

    /// Starts the command of a slot, for the run with this number, and lists its group. The caller must call
    /// [`over`](Self::mark_over) after the end of the command.
    pub(crate) fn start_command(
        &self,
        slot: usize,
        run: u64,
        key: &Key,
        command: &mut Command,
    ) -> io::Result<Child> {
        let _starting = self.starting.read();
        if let Some(guardian) = &self.guardian {
            // The start is recorded first. If this process is then killed before the command is listed, the guardian
            // looks for the command.
            guardian.record_starting(slot, run)?;
        }
        let child = command.spawn().inspect_err(|_| self.mark_over(slot))?;
        if let Some(leader) = group_leader(&child) {
            if let Some(guardian) = &self.guardian {
                guardian.record_started(slot, run, leader);
            }
            // The read lock is still held, so a signal to all commands waits for this entry.
            let mut groups = self.running.lock();
            if groups.len() < slot {
                groups.resize_with(slot, || None);
            }
            groups[slot - 1] =
                Some(Group { leader, key: key.clone(), since: Instant::now(), starved: None });
        }
        Ok(child)
    }

    /// Waits for the command of a slot, and removes it from the list. Cancel safe.
    pub(crate) async fn wait_for_command(&self, slot: usize, child: &mut Child) -> Reaped {
        let mut wait = pin!(child.wait());
        poll_fn(|context| {
            // Signals are sent under the same lock, so that no signal is sent to a reused process ID.
            let mut groups = self.running.lock();
            wait.as_mut().poll(context).map(|status| {
                let group = groups.get_mut(slot - 1).and_then(Option::take);
                (status, group.and_then(|group| group.starved))
            })
        })
        .await
    }

    /// Marks the run in a slot as over, even if processes of its group still exist.
    pub(crate) fn mark_over(&self, slot: usize) {
        if let Some(guardian) = &self.guardian {
            guardian.record_over(slot);
        }
    }

    pub(crate) fn signal_all(&self, signal: Signal) {
        for group in self.running.lock().iter().flatten() {
            let _ = kill_process_group(group.leader, signal);
        }
    }

    /// Stops all groups while `stop` runs, and starts no command during this time.
    pub(crate) fn stop_while(&self, stop: impl FnOnce()) {
        let _none_starts = self.starting.write();
        self.signal_all(Signal::TSTP);
        stop();
        self.signal_all(Signal::CONT);
    }

    /// Sends a terminating signal to the process group of a slot's command.
    pub(crate) fn end_command(&self, slot: usize, signal: Signal) {
        if let Some(Some(group)) = self.running.lock().get(slot - 1) {
            end_group(group.leader, signal);
        }
    }

    /// Returns true if the command of a slot has exited, even if it has not been waited for.
    pub(crate) fn has_ended(&self, slot: usize) -> bool {
        // `NOWAIT` leaves the exit status for tokio.
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match self.running.lock().get(slot - 1) {
            Some(Some(group)) => matches!(waitid(WaitId::Pid(group.leader), ended), Ok(Some(_))),
            _ => true,
        }
    }

    /// Kills the groups that have stopped because they tried to use the terminal. Such groups would wait forever,
    /// because no command gets the terminal.
    pub(crate) fn kill_starved(&self) {
        // The write lock waits for starting commands. Such a command may have stopped, and only one SIGCHLD reports
        // this.
        drop(self.starting.write());
        for group in self.running.lock().iter_mut().flatten() {
            let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
            let Ok(Some(status)) = waitid(WaitId::Pid(group.leader), stopped) else { continue };
            let wanted = [Signal::TTIN, Signal::TTOU]
                .into_iter()
                .find(|signal| status.stopping_signal() == Some(signal.as_raw()));
            if let Some(signal) = wanted {
                group.starved = Some(signal);
                end_group(group.leader, Signal::KILL);
            }
        }
    }

    /// Returns the number of commands in flight.
    pub(crate) fn running_count(&self) -> usize {
        self.running.lock().iter().flatten().count()
    }

    /// Returns the slot in which a key runs.
    pub(crate) fn slot_of(&self, key: &[u8]) -> Option<usize> {
        let is_its = |group: &Option<Group>| group.as_ref().is_some_and(|group| *group.key == *key);
        self.running.lock().iter().position(is_its).map(|at| at + 1)
    }

    /// Returns the key whose run has taken the longest so far, and the duration of that run.
    pub(crate) fn longest_run(&self) -> Option<(Key, Duration)> {
        let groups = self.running.lock();
        let first = groups.iter().flatten().min_by_key(|group| group.since)?;
        Some((first.key.clone(), first.since.elapsed()))
    }
}

/// Returns the process ID of a command that has not been waited for, which is also the ID of its group.
pub(crate) fn group_leader(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

/// Sends a terminating signal to a group. Ignores errors, because a group without members needs no signal.
pub(crate) fn end_group(group: Pid, signal: Signal) {
    let _ = kill_process_group(group, signal);
    // The group is continued, because a stopped process handles the signal only when it continues.
    let _ = kill_process_group(group, Signal::CONT);
}

/// Waits until a group without a leader has no members. As long as the group has members, its ID is not reused.
pub(crate) async fn wait_until_empty(group: Pid) {
    let mut pause = Duration::from_millis(5);
    while test_kill_process_group(group) != Err(Errno::SRCH) {
        if only_dead(group) {
            // SIGKILL is sent, because a process whose first thread has exited looks like a zombie but is alive.
            end_group(group, Signal::KILL);
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Returns true if all members of a group are zombies. In many containers, no process waits for zombies. Without
/// `/proc`, the result is always false.
fn only_dead(group: Pid) -> bool {
    let is_there = std::fs::exists("/proc/self/stat").unwrap_or(false);
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    is_there
        && !processes.flatten().any(|process| {
            let stat = std::fs::read(process.path().join("stat")).unwrap_or_default();
            // The name of the process precedes the state, and can contain any byte.
            let after_name = stat.rsplit(|&byte| byte == b')').next().unwrap_or_default();
            let mut fields = std::str::from_utf8(after_name).unwrap_or_default().split_whitespace();
            let (state, of_group) = (fields.next(), fields.nth(1));
            let is_member = of_group.and_then(|of| of.parse().ok()) == Some(group.as_raw_pid());
            is_member && !matches!(state, Some("Z" | "X"))
        })
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Command, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    #[test]
    fn members_that_are_dead_are_told_from_the_living() {
        let mut sleep = Command::new("sleep");
        let mut child = sleep.arg("1000").stdin(Stdio::null()).process_group(0).spawn().unwrap();
        let group = Pid::from_child(&child);
        assert!(!only_dead(group));
        kill_process_group(group, Signal::KILL).unwrap();
        // The process is a zombie now.
        let unseen = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(group), unseen).unwrap();
        assert_eq!(test_kill_process_group(group), Ok(()));
        assert!(only_dead(group));
        child.wait().unwrap();
    }

    /// Returns the live processes that run this command line.
    fn running(line: &str) -> Vec<Pid> {
        let ps = Command::new("ps").args(["-A", "-o", "pid=,stat=,args="]).output().unwrap();
        let number = |process: &str| {
            let mut fields = process.split_whitespace();
            let (number, state) = (fields.next()?, fields.next()?);
            let is_it = !state.starts_with('Z') && fields.eq(line.split(' '));
            is_it.then(|| number.parse().ok().and_then(Pid::from_raw))?
        };
        String::from_utf8_lossy(&ps.stdout).lines().filter_map(number).collect()
    }

    #[test]
    fn whatever_has_started_is_listed_when_all_are_stopped() {
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
        let (groups, is_over) = (Groups::default(), AtomicBool::new(false));
        let seconds = format!("1000.{}", std::process::id());
        std::thread::scope(|scope| {
            for slot in 1..=4 {
                let (groups, runtime, seconds) = (&groups, &runtime, &seconds);
                let is_over = &is_over;
                scope.spawn(move || {
                    let _runtime = runtime.enter();
                    while !is_over.load(Ordering::Relaxed) {
                        let mut sleep = tokio::process::Command::new("sleep");
                        sleep.arg(seconds).process_group(0);
                        let key = Key::from(&b"k"[..]);
                        let mut child = groups.start_command(slot, 1, &key, &mut sleep).unwrap();
                        groups.end_command(slot, Signal::KILL);
                        runtime.block_on(groups.wait_for_command(slot, &mut child)).0.unwrap();
                    }
                });
            }
            let line = format!("sleep {seconds}");
            let mut unlisted = Vec::new();
            for _ in 0..100 {
                groups.stop_while(|| {
                    // While the lock is held, no task waits for one of these processes.
                    let listed = groups.running.lock();
                    let leads = |pid: &Pid| listed.iter().flatten().any(|it| it.leader == *pid);
                    unlisted.extend(running(&line).into_iter().filter(|pid| !leads(pid)));
                });
            }
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(unlisted, []);
        });
    }
}
