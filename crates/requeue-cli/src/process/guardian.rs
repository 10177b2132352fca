//! The guardian, a second process. If `requeue` is killed, the guardian kills its commands, so that the next `requeue`
//! does not run a key that is still running.
//!
//! SIGKILL cannot be caught. `requeue` therefore starts a second process of this program, the guardian, before the
//! first command of a run. A run without keys does not start the guardian, and so takes half the time. The guardian
//! waits for the end of a pipe that only its parent keeps open. The guardian then sends SIGKILL to the process groups
//! of the commands in flight. Both processes share a table of these groups in memory. A command costs three writes of
//! 16 bytes, and the guardian sleeps until its parent has exited.
//!
//! The parent can be killed after it starts a command and before it writes the command's process ID to the table. The
//! table then contains only the number of the run, and the guardian searches for a group leader with that number in its
//! environment. The guardian misses no process. Before exec, a process keeps the pipe open. After exec, the process has
//! the number in its environment.
//!
//! The alternative was `PR_SET_PDEATHSIG`. Without `unsafe`, a helper program would have to make this setting and then
//! execute the command, which is one more exec of a large program for each command. The setting belongs to the thread
//! that forked, not to the process. The setting reaches neither children of the command nor set-uid programs.
//!
//! If the guardian is killed, its parent starts another guardian. Only a kill of both at the same time leaves commands
//! behind. `kill -9 %1`, `pkill` and `killall` do not do that, because the guardian has another process group and
//! another name.

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

/// The name of the guardian in lists of processes. The name does not contain "requeue", so that `pkill -9 -f requeue`
/// does not kill both processes.
const NAME: &str = "kills-commands-left-by";

/// The variable with the process ID of `requeue`, in the environment of commands.
pub(crate) const PARENT: &str = "REQUEUE_PID";
/// The variable with the number of the run.
pub(crate) const RUN: &str = "REQUEUE_SEQ";

/// The maximum number of guardians that a run starts, one after the other.
const MOST_STARTS: u32 = 10;

/// The parent's side.
#[derive(Debug)]
pub(crate) struct Guardian {
    table: Table,
    process: Mutex<Process>,
}

#[derive(Debug, Default)]
struct Process {
    /// The guardian, whose standard input is the pipe.
    child: Option<Child>,
    starts: u32,
}

impl Guardian {
    /// Creates the table. [`start`](Self::start_once) starts the process.
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self { table: Table::new()?, process: Mutex::default() })
    }

    /// Starts the guardian on the first call. The caller must call this before each command.
    pub(crate) fn start_once(&self) -> io::Result<()> {
        let mut process = self.process.lock();
        if process.starts > 0 { Ok(()) } else { self.start_another(&mut process) }
    }

    /// Starts another guardian if the first guardian has exited. After too many starts, returns an error once, and then
    /// does nothing.
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
        // The start is counted before it is tried, so that a failing start is not repeated forever.
        process.starts += 1;
        if process.starts > MOST_STARTS {
            return Err(io::Error::other(format!("its process died {MOST_STARTS} times")));
        }
        // The guardian must not receive signals to the process group of its parent.
        let child = Command::new(this_program()?)
            .arg0(NAME)
            .arg(std::process::id().to_string())
            .stdin(Stdio::piped())
            // The table is the guardian's standard output, because exec closes all other descriptors.
            .stdout(self.table.0.try_clone()?)
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        process.child = Some(child);
        Ok(())
    }

    /// Records that the command of this slot and run is about to start.
    pub(crate) fn record_starting(&self, slot: usize, run: u64) -> io::Result<()> {
        self.table.set_entry(slot, run, None)
    }

    /// Records that the command has started, with its group.
    pub(crate) fn record_started(&self, slot: usize, run: u64, leader: Pid) {
        // The entry exists, so the write needs no memory and does not fail.
        let _ = self.table.set_entry(slot, run, Some(leader));
    }

    /// Records that the slot's run is over, so that the guardian no longer kills its processes.
    pub(crate) fn record_over(&self, slot: usize) {
        let _ = self.table.set_entry(slot, FREE, None);
    }

    /// Stops the guardian if no command is in flight, and waits for its exit. The wait is needed because not every
    /// container has a first process that waits for orphans.
    pub(crate) fn end_if_idle(&self) {
        let is_idle = self.table.used_entries().is_ok_and(|entries| entries.is_empty());
        let child = self.process.lock().child.take_if(|_| is_idle);
        if let Some(mut child) = child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Returns the file of this program, even if its path has been replaced.
fn this_program() -> io::Result<PathBuf> {
    let this = Path::new("/proc/self/exe");
    if this.exists() { Ok(this.to_owned()) } else { std::env::current_exe() }
}

/// The commands in flight, by slot. Two processes share this table in memory.
#[derive(Debug)]
struct Table(File);

/// The run of a free slot. Runs are numbered from 1.
const FREE: u64 = 0;

/// The size of an entry in bytes: 8 bytes for the run, 4 for the leader, which is 0 until the command has started, and
/// 4 unused bytes. No entry crosses a page, so a kill of the parent cannot leave half of an entry.
const SIZE: usize = 16;

impl Table {
    #[cfg(target_os = "linux")]
    fn new() -> io::Result<Self> {
        // The table is in memory, because a read-only system may have no directory for temporary files.
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

    /// Returns the runs in flight, with the leader of each run whose command has started.
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

/// If this process was started as a guardian, runs as one until its parent has exited. Otherwise, returns `None`
/// immediately.
pub(crate) fn guard_if_asked() -> Option<ExitCode> {
    let mut args = std::env::args_os();
    args.next().filter(|name| name == NAME)?;
    Some(match guard_parent(args.next()) {
        Ok(()) => Exit::Done.into(),
        // The parent has exited, so a message would reach no one.
        Err(_) => Exit::Failure.into(),
    })
}

fn guard_parent(parent: Option<OsString>) -> io::Result<()> {
    // A service manager sends these signals to all its processes. The guardian ignores them, because only the parent
    // acts on them.
    for signal in [SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2] {
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    let parent = parent.and_then(|parent| parent.into_string().ok()).unwrap_or_default();
    let table = Table(io::stdout().as_fd().try_clone_to_owned()?.into());
    wait_for_end(io::stdin().lock())?;
    kill_commands(&table, &parent)
}

/// Waits until all writers have closed the pipe.
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

/// Kills the commands that the parent has left behind.
fn kill_commands(table: &Table, parent: &str) -> io::Result<()> {
    let mut starting = Vec::new();
    for (run, leader) in table.used_entries()? {
        match leader {
            Some(leader) => kill_group(leader),
            None => starting.push(run),
        }
    }
    // An exec closes the pipe shortly before it sets the environment, so several attempts are needed. A command that
    // failed to start is never found.
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

/// Kills a group. Ignores errors, because a group without members needs no signal.
fn kill_group(leader: Pid) {
    let _ = kill_process_group(leader, Signal::KILL);
}

/// Finds the groups of a run of this parent by the environment of their leaders.
fn leaders_of(parent: &str, run: u64) -> Vec<Pid> {
    let wanted = [format!("{PARENT}={parent}"), format!("{RUN}={run}")];
    let Ok(processes) = std::fs::read_dir("/proc") else { return Vec::new() };
    let leader = |process: std::fs::DirEntry| {
        let pid = process.file_name().to_str()?.parse().ok().and_then(Pid::from_raw)?;
        let environment = std::fs::read(process.path().join("environ")).ok()?;
        let has =
            |it: &String| environment.split(|&byte| byte == 0).any(|own| own == it.as_bytes());
        // Children inherit the environment of the command, but do not lead its group.
        (wanted.iter().all(has) && getpgid(Some(pid)) == Ok(pid)).then_some(pid)
    };
    processes.flatten().filter_map(leader).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    /// Starts a long command in a separate group, as a run of the parent "p".
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

    /// The parent is killed between the start of a command and its entry.
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
