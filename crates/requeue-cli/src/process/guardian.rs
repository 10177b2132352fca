//! The guardian, a second process. If `requeue` is killed, the guardian kills the commands that `requeue` leaves
//! behind. The next `requeue` then never runs a key whose earlier command is still running.
//!
//! A process cannot catch SIGKILL. `requeue` therefore starts a second process of this program, the guardian, before
//! its first command. A `requeue` without keys starts no guardian, and so takes half the time. The guardian waits for
//! the end of a pipe that only its parent holds open. When the parent has exited, the guardian sends SIGKILL to the
//! process groups of the commands in flight. Both processes share a table of these groups in memory. Each command
//! costs three writes of 16 bytes. The guardian sleeps until its parent has exited.
//!
//! The parent can be killed after it starts a command and before it writes the command's process ID to the table. The
//! table then contains only the number of the run. In this case, the guardian searches for a group leader with that
//! number in its environment. The guardian misses no process. Before exec, a new process holds the pipe open. After
//! exec, it has the number in its environment.
//!
//! The alternative was `PR_SET_PDEATHSIG`. Without `unsafe`, a helper program would have to make this setting and then
//! execute the command. This costs one more exec of a large program for each command. The kernel ties the setting to
//! the thread that forked, not to its process. The setting affects neither children of the command nor set-uid
//! programs.
//!
//! If the guardian is killed, its parent starts another guardian. Commands are left behind only if both are killed at
//! the same time. `kill -9 %1`, `pkill` and `killall` do not kill both, because the guardian has another process group
//! and another name.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, getpgid, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};

use crate::exit::Exit;

/// The name of the guardian in lists of processes. It does not contain "requeue", so that `pkill -9 -f requeue` does
/// not also kill the guardian.
const NAME: &str = "kills-commands-left-by";

/// The environment variable of commands with the process ID of `requeue`.
pub(crate) const PARENT: &str = "REQUEUE_PID";
/// The environment variable of commands with the number of the run.
pub(crate) const RUN: &str = "REQUEUE_SEQ";

/// The maximum number of guardians that a process starts, one after the other.
const MOST_STARTS: u32 = 10;

/// The guardian, as its parent sees it.
#[derive(Debug)]
pub(crate) struct Guardian {
    table: Table,
    process: Mutex<Process>,
}

#[derive(Debug, Default)]
struct Process {
    /// The process of the guardian. Its standard input is the pipe.
    child: Option<Child>,
    starts: u32,
}

impl Guardian {
    /// Creates the table. [`start_once`](Self::start_once) starts the process of the guardian.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { table: Table::new()?, process: Mutex::default() })
    }

    /// Starts the guardian at the first call. The caller must call this before it starts a command.
    pub(crate) fn start_once(&self) -> io::Result<()> {
        let mut process = self.process.lock();
        if process.starts > 0 { Ok(()) } else { self.start_another(&mut process) }
    }

    /// Starts another guardian if the last one has exited. After too many starts, returns an error once, and then does
    /// nothing.
    pub(crate) fn restart_if_dead(&self) -> io::Result<()> {
        let mut process = self.process.lock();
        let runs = |child: &mut Child| !matches!(child.try_wait(), Ok(Some(_)));
        if process.starts == 0
            || process.starts > MOST_STARTS
            || process.child.as_mut().is_some_and(runs)
        {
            return Ok(());
        }
        self.start_another(&mut process)
    }

    fn start_another(&self, process: &mut Process) -> io::Result<()> {
        // The number of starts is increased before the start. A start that always fails is then not repeated forever.
        process.starts += 1;
        if process.starts > MOST_STARTS {
            return Err(io::Error::other(format!("its process died {MOST_STARTS} times")));
        }
        // The guardian gets its own process group, so that it does not receive signals that are sent to the group of
        // its parent.
        let child = Command::new(this_program()?)
            .arg0(NAME)
            .arg(std::process::id().to_string())
            .stdin(Stdio::piped())
            // The table is passed as standard output, because exec closes all descriptors except the standard streams.
            .stdout(self.table.0.try_clone()?)
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        process.child = Some(child);
        Ok(())
    }

    /// Records that the slot is about to start the command of this run.
    pub(crate) fn record_starting(&self, slot: usize, run: u64) -> io::Result<()> {
        self.table.set_entry(slot, run, None)
    }

    /// Records that the command of this run has started, with the leader of its process group.
    pub(crate) fn record_started(&self, slot: usize, run: u64, leader: Pid) {
        // `record_starting` has created the entry, so this write needs no memory and does not fail.
        let _ = self.table.set_entry(slot, run, Some(leader));
    }

    /// Records that the slot's run is over. The guardian then no longer kills the processes of this run.
    pub(crate) fn record_over(&self, slot: usize) {
        let _ = self.table.set_entry(slot, FREE, None);
    }

    /// Stops the guardian if no command is in flight, and waits until it has exited. Without the wait, it could stay a
    /// zombie in a container whose first process does not wait for orphans.
    pub(crate) fn end_if_idle(&self) {
        let is_idle = self.table.used_entries().is_ok_and(|entries| entries.is_empty());
        let child = self.process.lock().child.take_if(|_| is_idle);
        if let Some(mut child) = child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the file of this program, even if another file is now at its path.
fn this_program() -> io::Result<PathBuf> {
    let this = Path::new("/proc/self/exe");
    if this.exists() { Ok(this.to_owned()) } else { std::env::current_exe() }
}

/// The table of the commands in flight, with an entry for each slot. `requeue` and the guardian share its memory.
#[derive(Debug)]
struct Table(File);

/// The number in the entry of a free slot. Runs are numbered from 1.
const FREE: u64 = 0;

/// The size of an entry in bytes. An entry consists of 8 bytes for the number of the run, 4 bytes for the process ID
/// of the leader, and 4 unused bytes. The process ID is 0 until the command has started. No entry crosses a page, so a
/// parent that is killed during a write cannot leave half an entry.
const SIZE: usize = 16;

impl Table {
    #[cfg(target_os = "linux")]
    fn new() -> io::Result<Self> {
        // The table is a file in memory, because a read-only system may have no directory for temporary files.
        let memory = rustix::fs::memfd_create(c"requeue", rustix::fs::MemfdFlags::CLOEXEC)?;
        Ok(Self(memory.into()))
    }

    #[cfg(not(target_os = "linux"))]
    fn new() -> io::Result<Self> {
        tempfile::tempfile().map(Self)
    }

    /// Writes the entry of a slot. Slots are numbered from 1.
    fn set_entry(&self, slot: usize, run: u64, leader: Option<Pid>) -> io::Result<()> {
        let mut entry = [0; SIZE];
        entry[..8].copy_from_slice(&run.to_ne_bytes());
        entry[8..12].copy_from_slice(&Pid::as_raw(leader).to_ne_bytes());
        self.0.write_all_at(&entry, ((slot - 1) * SIZE) as u64)
    }

    /// Returns the number of each run in flight. If the command of the run has started, also returns the process ID of
    /// its leader.
    fn used_entries(&self) -> io::Result<Vec<(u64, Option<Pid>)>> {
        let mut bytes = vec![0; usize::try_from(self.0.metadata()?.len()).unwrap_or(0)];
        self.0.read_exact_at(&mut bytes, 0)?;
        let decode = |entry: &[u8]| {
            let (run, rest) = entry.split_first_chunk()?;
            let leader = Pid::from_raw(i32::from_ne_bytes(*rest.first_chunk()?));
            Some((u64::from_ne_bytes(*run), leader)).filter(|&(run, _)| run != FREE)
        };
        Ok(bytes.chunks_exact(SIZE).filter_map(decode).collect())
    }
}

/// Does the guardian's work if this process was started as a guardian, and returns when the parent has exited.
/// Otherwise, returns `None` immediately.
pub(crate) fn guard_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    args.next().filter(|name| name == NAME)?;
    Some(match guard_parent(args.next()) {
        Ok(()) => Exit::Done.into(),
        // The parent has exited, so no one would read a message.
        Err(_) => Exit::Failure.into(),
    })
}

fn guard_parent(parent: Option<OsString>) -> io::Result<()> {
    // A service manager sends these signals to all processes of a service. The guardian ignores them, because only the
    // parent responds to them.
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2] {
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    let parent = parent.and_then(|parent| parent.into_string().ok()).unwrap_or_default();
    let table = Table(io::stdout().as_fd().try_clone_to_owned()?.into());
    wait_for_end(io::stdin().lock())?;
    kill_commands(&table, &parent)
}

/// Waits until no process holds the other end of the pipe open.
fn wait_for_end(mut pipe: impl Read) -> io::Result<()> {
    loop {
        match pipe.read(&mut [0]) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Kills the commands that the parent left behind.
fn kill_commands(table: &Table, parent: &str) -> io::Result<()> {
    let mut starting = Vec::new();
    for (run, leader) in table.used_entries()? {
        match leader {
            Some(leader) => kill_group(leader),
            None => starting.push(run),
        }
    }
    // An exec closes the pipe shortly before the new environment is visible, so several searches are needed. A command
    // that failed to start is never found, so the number of searches is limited.
    for _ in 0..20 {
        starting.retain(|&run| {
            let leaders = leaders_of(parent, run);
            leaders.iter().copied().for_each(kill_group);
            leaders.is_empty()
        });
        if starting.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Kills a process group. The result is ignored. If it is an error, the group has no members left.
fn kill_group(leader: Pid) {
    let _ = kill_process_group(leader, Signal::KILL);
}

/// Returns the leaders of the process groups of a run. Searches for processes whose environment contains the parent
/// and the number of the run.
fn leaders_of(parent: &str, run: u64) -> Vec<Pid> {
    let wanted = [format!("{PARENT}={parent}"), format!("{RUN}={run}")];
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let leader = |process: std::fs::DirEntry| {
        let pid = process.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        let environment = std::fs::read(process.path().join("environ")).ok()?;
        let has =
            |it: &String| environment.split(|&byte| byte == 0).any(|own| own == it.as_bytes());
        // Children inherit the environment of the command, but only the command leads the group.
        (wanted.iter().all(has) && getpgid(Some(pid)) == Ok(pid)).then_some(pid)
    };
    processes.flatten().filter_map(leader).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    /// Starts a long command in its own process group, in the same way as the parent "p" would start the run.
    fn command(run: u64) -> Child {
        let mut sleep = Command::new("sleep");
        sleep.arg("1000").env(PARENT, "p").env(RUN, run.to_string());
        sleep.stdin(Stdio::null()).process_group(0).spawn().unwrap()
    }

    #[test]
    fn an_entry_is_read_as_it_was_written() {
        let table = Table::new().unwrap();
        assert_eq!(table.used_entries().unwrap(), []);
        let (starting, started) = ((7, None), (u64::MAX, Some(Pid::INIT)));
        for (slot, (run, leader)) in [(1, starting), (3, started)] {
            table.set_entry(slot, run, leader).unwrap();
        }
        assert_eq!(table.used_entries().unwrap(), [starting, started]);
        table.set_entry(1, FREE, None).unwrap();
        assert_eq!(table.used_entries().unwrap(), [started]);
    }

    #[test]
    fn what_is_in_flight_is_killed_and_nothing_else() {
        let guardian = Guardian::new().unwrap();
        let [mut listed, mut over] = [1, 2].map(command);
        for (slot, child) in [(1, &listed), (2, &over)] {
            guardian.record_starting(slot, slot as u64).unwrap();
            guardian.record_started(slot, slot as u64, Pid::from_child(child));
        }
        guardian.record_over(2);
        kill_commands(&guardian.table, "p").unwrap();
        assert_eq!(listed.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        assert_eq!(over.try_wait().unwrap(), None);
        over.kill().unwrap();
        over.wait().unwrap();
    }

    /// Simulates a parent that is killed after it starts a command and before it writes the command's process ID.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_command_that_is_not_listed_yet_is_found_by_its_run() {
        let guardian = Guardian::new().unwrap();
        let [mut starting, mut another] = [3, 33].map(command);
        guardian.record_starting(1, 3).unwrap();
        kill_commands(&guardian.table, "another").unwrap();
        assert_eq!(starting.try_wait().unwrap(), None);
        kill_commands(&guardian.table, "p").unwrap();
        assert_eq!(starting.wait().unwrap().signal(), Some(Signal::KILL.as_raw()));
        assert_eq!(another.try_wait().unwrap(), None);
        another.kill().unwrap();
        another.wait().unwrap();
    }
}
