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

/// The process groups of the commands in flight.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// The group of the command in each slot. A group is removed under the lock in which its leader is reaped. Until
    /// then, the system does not reuse the leader's process ID.
    running: Mutex<Vec<Option<Group>>>,
    /// The read lock is held while a command starts and is added to `running`. A signal to all commands takes the
    /// write lock. Otherwise, the signal would miss a command that is not in `running` yet.
    starting: RwLock<()>,
    /// The process that kills the commands if this process is killed.
    pub(crate) guardian: Option<Guardian>,
}

#[derive(Debug)]
struct Group {
    leader: Pid,
    key: Key,
    since: Instant,
    starved: Option<Signal>,
}

/// The exit status of a command. Also contains a signal if the command was killed because it tried to use the
/// terminal: the signal with which the terminal had stopped it.
pub(crate) type Reaped = (io::Result<ExitStatus>, Option<Signal>);

impl Groups {
    pub(crate) fn with_guardian(guardian: Option<Guardian>) -> Self {
        Self { guardian, ..Self::default() }
    }

    /// Starts the command of a slot, for the run with this number, and records its process group. The caller must call
    /// [`mark_over`](Self::mark_over) after the command has exited.
    pub(crate) fn start_command(
        &self,
        slot: usize,
        run: u64,
        key: &Key,
        command: &mut Command,
    ) -> io::Result<Child> {
        let _starting = self.starting.read();
        if let Some(guardian) = &self.guardian {
            // The start is recorded before the command is spawned. If this process is killed before the group is
            // recorded, the guardian then searches for the command.
            guardian.record_starting(slot, run)?;
        }
        let child = command.spawn().inspect_err(|_| self.mark_over(slot))?;
        if let Some(leader) = group_leader(&child) {
            if let Some(guardian) = &self.guardian {
                guardian.record_started(slot, run, leader);
            }
            // The read lock of `starting` is still held, so a signal to all commands waits until this entry exists.
            let mut groups = self.running.lock();
            if groups.len() < slot {
                groups.resize_with(slot, || None);
            }
            groups[slot - 1] =
                Some(Group { leader, key: key.clone(), since: Instant::now(), starved: None });
        }
        Ok(child)
    }

    /// Waits until the command of a slot has exited, and removes its group. Cancel safe.
    pub(crate) async fn wait_for_command(&self, slot: usize, child: &mut Child) -> Reaped {
        let mut wait = pin!(child.wait());
        poll_fn(|context| {
            // Signals are sent under the same lock as the leader is reaped. No signal can then reach a process that
            // has reused the ID.
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

    /// Suspends all commands while `stop` runs. No command starts in this time.
    pub(crate) fn stop_while(&self, stop: impl FnOnce()) {
        let _none_starts = self.starting.write();
        self.signal_all(Signal::TSTP);
        stop();
        self.signal_all(Signal::CONT);
    }

    /// Sends a terminating signal to the process group of the command in a slot.
    pub(crate) fn end_command(&self, slot: usize, signal: Signal) {
        if let Some(Some(group)) = self.running.lock().get(slot - 1) {
            end_group(group.leader, signal);
        }
    }

    /// Returns true if the command in a slot has exited, even if it has not been reaped.
    pub(crate) fn has_ended(&self, slot: usize) -> bool {
        // `NOWAIT` leaves the exit status, so that Tokio can read it.
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match self.running.lock().get(slot - 1) {
            Some(Some(group)) => matches!(waitid(WaitId::Pid(group.leader), ended), Ok(Some(_))),
            _ => true,
        }
    }

    /// Kills the commands that the terminal driver has stopped because they tried to use the terminal. Otherwise they
    /// would stay stopped forever, because no command gets the terminal.
    pub(crate) fn kill_starved(&self) {
        // The write lock waits until all starting commands are in `running`. One of them may already be stopped, and
        // its only SIGCHLD may be the one that led to this call.
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

    /// Returns the slot in which the command of a key runs.
    pub(crate) fn slot_of(&self, key: &[u8]) -> Option<usize> {
        let is_its = |group: &Option<Group>| group.as_ref().is_some_and(|group| *group.key == *key);
        self.running.lock().iter().position(is_its).map(|at| at + 1)
    }

    /// Returns the key of the command that has been running for the longest time, and this time.
    pub(crate) fn longest_run(&self) -> Option<(Key, Duration)> {
        let groups = self.running.lock();
        let first = groups.iter().flatten().min_by_key(|group| group.since)?;
        Some((first.key.clone(), first.since.elapsed()))
    }
}

/// Returns the process ID of a command, which is also the ID of its process group. Returns `None` if the command has
/// been reaped.
pub(crate) fn group_leader(child: &Child) -> Option<Pid> {
    child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)
}

/// Sends a terminating signal to a process group. The results are ignored. If one is an error, the group has no
/// members left.
pub(crate) fn end_group(group: Pid, signal: Signal) {
    let _ = kill_process_group(group, signal);
    // A stopped process handles a signal only after it is continued, so SIGCONT is also sent.
    let _ = kill_process_group(group, Signal::CONT);
}

/// Waits until a process group has no members. Its leader has already been reaped. The system does not reuse the ID of
/// a group that has members.
pub(crate) async fn wait_until_empty(group: Pid) {
    let mut pause = Duration::from_millis(5);
    while test_kill_process_group(group) != Err(Errno::SRCH) {
        if only_dead(group) {
            // A process whose first thread has exited looks like a zombie, although its other threads still run.
            // SIGKILL ends these threads too.
            end_group(group, Signal::KILL);
            return;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_millis(100));
    }
}

/// Returns true if all members of a process group are zombies. They can stay zombies, because in many containers no
/// process reaps orphans. Returns false on a system without `/proc`.
fn only_dead(group: Pid) -> bool {
    let is_there = std::fs::exists("/proc/self/stat").unwrap_or(false);
    let Ok(processes) = std::fs::read_dir("/proc") else { return false };
    is_there
        && !processes.flatten().any(|process| {
            let stat = std::fs::read(process.path().join("stat")).unwrap_or_default();
            // In the `stat` file, the name of the process comes before the state, and can contain any byte. The name
            // ends at the last parenthesis.
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
        // The process is now a zombie.
        let unseen = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(group), unseen).unwrap();
        assert_eq!(test_kill_process_group(group), Ok(()));
        assert!(only_dead(group));
        child.wait().unwrap();
    }

    /// Returns the live processes with this command line.
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
                    // While this lock is held, no task can reap one of these processes.
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
