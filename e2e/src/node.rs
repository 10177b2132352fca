use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::signal::{self, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::{Server, until};

/// One of the processes of a [`Server`], or one of one's own beside it, to do harm to.
///
/// What is done to one of the server's is done to all tests that share the server:
/// [`Server::exclusive`].
#[derive(Clone, Debug)]
pub struct Node<'a> {
    pub(crate) process: Arc<Process>,
    /// What has to be ready before it counts as started.
    pub(crate) part_of: Option<&'a Server>,
}

impl Node<'_> {
    /// Kills it with SIGKILL, frozen or not, and waits until it is gone. Its port refuses
    /// connections from then on.
    ///
    /// # Panics
    /// When it does not run.
    pub async fn kill(&self) {
        self.process.end(Signal::SIGKILL).await;
    }

    /// Asks it to end, with SIGTERM, and waits until it is gone. The API server then closes its
    /// watches and finishes what it is at.
    ///
    /// # Panics
    /// When it does not run, or does not end in two minutes, which it can't while it is frozen.
    pub async fn terminate(&self) -> ExitStatus {
        self.process.end(Signal::SIGTERM).await
    }

    /// Waits until it has ended by itself.
    ///
    /// # Panics
    /// When it has not in two minutes.
    pub async fn ended(&self) -> ExitStatus {
        self.process.ended().await
    }

    /// Starts it again after it was killed or ended, as it was: a process of the server on the same
    /// port and with the same data. Waits then until the API server is ready.
    ///
    /// # Panics
    /// When it runs, or the API server is not ready within two minutes.
    pub async fn start(&self) {
        self.process.start();
        if let Some(server) = self.part_of {
            server.ready().await;
        }
    }

    /// [`kill`](Self::kill) and [`start`](Self::start).
    ///
    /// # Panics
    /// As they do.
    pub async fn restart(&self) {
        self.kill().await;
        self.start().await;
    }

    /// Stops it with SIGSTOP; when this returns, it stands still. Connections to it stay, and new
    /// ones are still accepted, by the system, but nothing answers.
    ///
    /// # Panics
    /// When it does not run, or is frozen.
    pub fn freeze(&self) {
        self.process.freeze();
    }

    /// Lets it go on after [`freeze`](Self::freeze).
    ///
    /// # Panics
    /// When it does not run.
    pub fn thaw(&self) {
        self.process.signal(Signal::SIGCONT);
    }

    /// What it has written so far, to its standard output and error, since it was first started.
    pub fn log(&self) -> String {
        self.process.log()
    }
}

/// A process that can be started again as it was.
#[derive(Debug)]
pub(crate) struct Process {
    name: String,
    log: PathBuf,
    running: Mutex<Running>,
}

#[derive(Debug)]
struct Running {
    command: Command,
    child: Option<Child>,
}

impl Process {
    /// In this process group, and with a log in this directory.
    pub(crate) fn new(name: &str, mut command: Command, group: i32, dir: &Path) -> Arc<Self> {
        command.stdin(Stdio::null()).process_group(group);
        let running = Mutex::new(Running { command, child: None });
        let log = dir.join(format!("{name}.log"));
        Arc::new(Self { name: name.to_owned(), log, running })
    }

    pub(crate) fn start(&self) {
        let mut running = self.running();
        assert!(running.child.is_none(), "{} runs", self.name);
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.unwrap_or_else(|err| panic!("{}: {err}", self.log.display()));
        let errors = log.try_clone().unwrap_or_else(|err| panic!("{}: {err}", self.log.display()));
        let started = running.command.stdout(log).stderr(errors).spawn();
        running.child = Some(started.unwrap_or_else(|err| panic!("{}: {err}", self.name)));
    }

    /// Panics when the process has ended without being told to.
    pub(crate) fn check(&self) {
        if let Some(child) = self.running().child.as_mut()
            && let Ok(Some(status)) = child.try_wait()
        {
            let log = fs::read(&self.log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log[log.len().saturating_sub(4000)..]);
            panic!("{} has ended by itself, with {status}:\n{log}", self.name);
        }
    }

    pub(crate) fn log(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn signal(&self, signal: Signal) -> Pid {
        let running = self.running();
        let Some(child) = running.child.as_ref() else { panic!("{} does not run", self.name) };
        // The numbers of processes are below 2^22.
        let pid = Pid::from_raw(child.id() as i32);
        if let Err(err) = signal::kill(pid, signal) {
            panic!("{signal} to {}: {err}", self.name);
        }
        pid
    }

    fn freeze(&self) {
        self.check();
        let pid = self.signal(Signal::SIGSTOP);
        // Its threads stop one by one; the system reports the last.
        let stopped = waitpid(pid, Some(WaitPidFlag::WUNTRACED));
        assert!(
            matches!(stopped, Ok(WaitStatus::Stopped(..))),
            "{} did not stop: {stopped:?}",
            self.name
        );
    }

    async fn end(&self, signal: Signal) -> ExitStatus {
        self.check();
        self.signal(signal);
        self.ended().await
    }

    async fn ended(&self) -> ExitStatus {
        let mut ended = None;
        until(&format!("{} has ended", self.name), async || {
            let child = &mut self.running().child;
            let status = child.as_mut().map(Child::try_wait);
            ended = match status {
                Some(Ok(status)) => status,
                other => panic!("{} is not ours to wait for: {other:?}", self.name),
            };
            if ended.is_some() {
                *child = None;
            }
            ended.is_some()
        })
        .await;
        // `until` has waited for that.
        ended.unwrap_or_default()
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        // A process is one however a test ended that looked at it.
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(child) = self.running().child.as_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
