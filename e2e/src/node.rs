//! The processes of a server, which a test can kill, freeze and start again.

use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::sys::signal::{self, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::{Server, until};

/// A process of a [`Server`], or another process that belongs to a test. A test can do harm to the
/// process.
///
/// Harm to a process of the server affects all tests that share the server. Such a test uses
/// [`Server::exclusive`].
#[derive(Clone, Debug)]
pub struct Node<'a> {
    pub(crate) process: Arc<Process>,
    /// The server that must be ready before this process counts as started.
    pub(crate) part_of: Option<&'a Server>,
}

impl Node<'_> {
    /// Kills the process with SIGKILL, frozen or not, and waits until it has exited. From then on,
    /// its port refuses connections.
    ///
    /// # Panics
    /// Panics if the process is not running.
    pub async fn kill(&self) {
        self.process.end(Signal::SIGKILL).await;
    }

    /// Terminates the process with SIGTERM, and waits until it has exited. The API server then
    /// closes its watches and completes its requests.
    ///
    /// # Panics
    /// Panics if the process is not running, or does not stop within two minutes. A frozen process
    /// does not stop.
    pub async fn terminate(&self) -> ExitStatus {
        self.process.end(Signal::SIGTERM).await
    }

    /// Waits until the process has exited without a signal from the test.
    ///
    /// # Panics
    /// Panics if the process has not exited within two minutes.
    pub async fn ended(&self) -> ExitStatus {
        self.process.ended().await
    }

    /// Returns the exit status if the process has exited without a signal from the test.
    /// [`start`](Self::start) then cannot start it again.
    ///
    /// # Panics
    /// Panics if the status cannot be read.
    pub fn status(&self) -> Option<ExitStatus> {
        self.process.status()
    }

    /// Starts the process again with the same arguments. A process of the server has the same port
    /// and the same data. Then waits until the API server is ready.
    ///
    /// # Panics
    /// Panics if the process is running, or if the API server is not ready within two minutes.
    pub async fn start(&self) {
        self.process.start();
        if let Some(server) = self.part_of {
            server.ready().await;
        }
    }

    /// Calls [`kill`](Self::kill) and [`start`](Self::start).
    ///
    /// # Panics
    /// Panics if one of these calls panics.
    pub async fn restart(&self) {
        self.kill().await;
        self.start().await;
    }

    /// Freezes the process with SIGSTOP, and waits until it has stopped. Its connections stay open,
    /// and the system accepts new connections, but no request is answered.
    ///
    /// # Panics
    /// Panics if the process is not running, or is already frozen.
    pub fn freeze(&self) {
        self.process.freeze();
    }

    /// Lets the process continue after [`freeze`](Self::freeze).
    ///
    /// # Panics
    /// Panics if the process is not running.
    pub fn thaw(&self) {
        self.process.signal(Signal::SIGCONT);
    }

    /// Sends SIGUSR1 to the process, which determines the effect of the signal.
    ///
    /// # Panics
    /// Panics if the process is not running.
    pub fn notify(&self) {
        self.process.signal(Signal::SIGUSR1);
    }

    /// Returns the standard output and error of the process since its first start.
    pub fn log(&self) -> String {
        self.process.log()
    }
}

/// A process that can be started again with the same arguments.
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
    /// Creates a process in this process group, with a log in this directory.
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

    /// Panics if the process has exited although the test did not stop it.
    pub(crate) fn check(&self) {
        if let Some(child) = self.running().child.as_mut()
            && let Ok(Some(status)) = child.try_wait()
        {
            let log = fs::read(&self.log).unwrap_or_default();
            let log = String::from_utf8_lossy(&log[log.len().saturating_sub(4000)..]);
            panic!("{} has ended by itself, with {status}:\n{log}", self.name);
        }
    }

    fn status(&self) -> Option<ExitStatus> {
        let status = self.running().child.as_mut()?.try_wait();
        status.unwrap_or_else(|err| panic!("{}: {err}", self.name))
    }

    pub(crate) fn log(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn signal(&self, signal: Signal) -> Pid {
        let running = self.running();
        let Some(child) = running.child.as_ref() else { panic!("{} does not run", self.name) };
        // Process ids are below 2^22.
        let pid = Pid::from_raw(child.id() as i32);
        if let Err(err) = signal::kill(pid, signal) {
            panic!("{signal} to {}: {err}", self.name);
        }
        pid
    }

    fn freeze(&self) {
        self.check();
        let pid = self.signal(Signal::SIGSTOP);
        // The threads of the process stop one by one. The system reports when the last thread has
        // stopped.
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
        // `until` has set `ended`.
        ended.unwrap_or_default()
    }

    fn running(&self) -> MutexGuard<'_, Running> {
        // The data is valid even if a test has panicked while it held the lock.
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
