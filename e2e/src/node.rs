use std::fmt;
use std::fs::{self, OpenOptions};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::sys::signal::{self, Signal};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::{Server, until};

/// One of the processes of a [`Server`], to do harm to.
///
/// What is done to it is done to all tests that share the server: such a test starts its own.
#[derive(Clone, Copy)]
pub struct Node<'a> {
    pub(crate) server: &'a Server,
    pub(crate) process: &'a Process,
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
    pub async fn terminate(&self) {
        self.process.end(Signal::SIGTERM).await;
    }

    /// Starts it again after it was killed or ended, on the same port and with the same data, and
    /// waits until the API server is ready.
    ///
    /// # Panics
    /// When it runs, or the API server is not ready within two minutes.
    pub async fn start(&self) {
        self.process.start();
        self.server.ready().await;
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
}

impl fmt::Debug for Node<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Node").field(&self.process.name).finish()
    }
}

/// A process that can be started again as it was.
#[derive(Debug)]
pub(crate) struct Process {
    pub(crate) name: &'static str,
    pub(crate) program: PathBuf,
    pub(crate) args: Vec<String>,
    /// The process group, which is led by the keeper.
    pub(crate) group: i32,
    pub(crate) log: PathBuf,
    pub(crate) child: Mutex<Option<Child>>,
}

impl Process {
    pub(crate) fn start(&self) {
        let mut child = self.child();
        assert!(child.is_none(), "{} runs", self.name);
        let log = OpenOptions::new().create(true).append(true).open(&self.log);
        let log = log.unwrap_or_else(|err| panic!("{}: {err}", self.log.display()));
        let errors = log.try_clone().unwrap_or_else(|err| panic!("{}: {err}", self.log.display()));
        let started = Command::new(&self.program)
            .arg(self.name)
            .args(&self.args)
            .stdin(Stdio::null())
            .stdout(log)
            .stderr(errors)
            .process_group(self.group)
            .spawn();
        *child = Some(started.unwrap_or_else(|err| panic!("{}: {err}", self.program.display())));
    }

    /// Panics when the process has ended without being told to.
    pub(crate) fn check(&self) {
        if let Some(child) = self.child().as_mut()
            && let Ok(Some(status)) = child.try_wait()
        {
            panic!("{} has ended by itself, with {status}:\n{}", self.name, self.last_words());
        }
    }

    /// The end of its log.
    pub(crate) fn last_words(&self) -> String {
        let log = fs::read(&self.log).unwrap_or_default();
        String::from_utf8_lossy(&log[log.len().saturating_sub(4000)..]).into_owned()
    }

    fn signal(&self, signal: Signal) -> Pid {
        let child = self.child();
        let Some(child) = child.as_ref() else { panic!("{} does not run", self.name) };
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

    async fn end(&self, signal: Signal) {
        self.check();
        self.signal(signal);
        until(&format!("{} has ended", self.name), async || {
            let mut child = self.child();
            let gone = match child.as_mut() {
                Some(child) => !matches!(child.try_wait(), Ok(None)),
                None => true,
            };
            if gone {
                *child = None;
            }
            gone
        })
        .await;
    }

    pub(crate) fn child(&self) -> MutexGuard<'_, Option<Child>> {
        // A child is one however a test ended that looked at it.
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
