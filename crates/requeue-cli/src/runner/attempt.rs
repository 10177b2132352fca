//! One run of a key's command, from its slot's side.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use rustix::process::Signal;
use tokio::process::Child;
use tokio::sync::watch;

use crate::args;
use crate::capture::{self, Sink};
use crate::command::escaped;
use crate::given::Given;
use crate::groups::{self, Reaped};
use crate::input::Key;
use crate::joblog::Log;
use crate::lent::{Job, Loan};
use crate::output::Stream;
use crate::retries::Past;
use crate::run::Runner;
use crate::signals::Level;
use crate::spawn::{self, Run};
use crate::timeout::Watchdog;

/// How a run came out.
pub(crate) enum Outcome {
    Done,
    Failed {
        exit: i32,
        why: String,
    },
    /// It failed and always will.
    Hopeless {
        why: String,
    },
    /// Cut off by what ends the program: neither done nor failed.
    Unfinished,
}

/// A command that was started, and has ended.
struct Finished {
    status: io::Result<ExitStatus>,
    /// It was killed, as this had stopped it.
    starved: Option<Signal>,
    timed_out: bool,
    /// Its key was lost to others: it was ended, or should have been.
    lost: bool,
    /// Bytes that it was given to read.
    sent: u64,
    /// Bytes that it wrote, as far as they went through here.
    received: u64,
}

impl Finished {
    /// What the joblog says of it.
    fn log(&self) -> Log {
        let (exit, signal) = match &self.status {
            Ok(status) => (status.code().unwrap_or(0), status.signal().unwrap_or(0)),
            Err(_) => (125, 0),
        };
        // GNU parallel's number: the command may have ended with 0 when it was told to.
        let exit = if self.timed_out || self.lost { -1 } else { exit };
        Log { exit, signal, sent: self.sent, received: self.received }
    }
}

impl Runner {
    pub(crate) async fn attempt(&self, job: Job, slot: usize) {
        let Job { item, loan } = &job;
        let given = match self.unless_cut_off(self.given(&job)).await {
            Some(Ok(Some(given))) => given,
            Some(Ok(None)) => return self.pass_over(job.item),
            Some(Err(why)) => {
                let outcome = self.failure(item, why).await;
                return self.end(job, outcome).await;
            }
            None => return self.end(job, Outcome::Unfinished).await,
        };
        self.pace.started(item);
        let (past, adds) = match loan {
            Some(loan) => (Past { attempt: loan.attempt(), last_exit: None }, loan.adds()),
            None => (self.failing.past(item), self.pace.adds(item)),
        };
        let seq = self.seq.one_more();
        let run = Run { key: item, past, adds, slot, seq, given: &given, loan: loan.as_deref() };
        let outcome = if self.config.dry_run {
            let line = spawn::line(&self.config.template, item) + "\n";
            self.output.write(Stream::Stdout, run.seq, line.into_bytes()).await;
            Outcome::Done
        } else {
            self.run_command(run).await
        };
        let outcome = match (outcome, &self.things) {
            (Outcome::Done, Some(things)) => {
                match self.unless_cut_off(things.succeed(item)).await {
                    Some(Ok(())) => Outcome::Done,
                    Some(Err(why)) => self.failure(item, why).await,
                    None => Outcome::Unfinished,
                }
            }
            (outcome, _) => outcome,
        };
        self.end(job, outcome).await;
    }

    /// What a run of the key is given; nothing if there is no need for one any more.
    async fn given(&self, job: &Job) -> Result<Option<Given>, String> {
        if let Some(things) = &self.things {
            return things.begin(&job.item).await;
        }
        let env = match &job.loan {
            Some(loan) if loan.is_lost() => return Ok(None),
            Some(loan) => vec![("REQUEUE_EPOCH", loan.epoch().to_string())],
            None => Vec::new(),
        };
        let key = job.item.key();
        let stdin = match self.config.stdin {
            args::Stdin::None => None,
            args::Stdin::Key => Some(key[..].into()),
        };
        Ok(Some(Given { env, stdin, ..Given::default() }))
    }

    /// What this comes to, unless it is cut off as commands are.
    async fn unless_cut_off<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        let mut level = self.level.subscribe();
        tokio::select! {
            // A command that was told to end may have done so with 0, and is not to be believed.
            biased;
            _ = level.wait_for(|&level| level >= Level::Terminating) => None,
            it = future => Some(it),
        }
    }

    /// A run has failed for want of what is done here around its command. That has said nothing of
    /// it.
    async fn failure(&self, key: &Key, why: String) -> Outcome {
        self.output.say(&format!("{}: {why}", escaped(key))).await;
        Outcome::Failed { exit: 125, why }
    }

    async fn run_command(&self, run: Run<'_>) -> Outcome {
        let mut level = self.level.subscribe();
        let Some(child) = self.spawn(run, &mut level).await else { return Outcome::Unfinished };
        let (at, start) = (SystemTime::now(), Instant::now());
        let (ended, log) = match child {
            Ok(child) => {
                let finished = self.finish(child, run, level).await;
                self.tally.run_seconds.add(start.elapsed());
                let log = finished.log();
                (self.outcome(run, finished).await, log)
            }
            Err(error) if spawn::is_hopeless(&error) => {
                (Outcome::Hopeless { why: error.to_string() }, Log::exit(126))
            }
            Err(error) => {
                // The numbers a shell has for these.
                let exit = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
                (Outcome::Failed { exit, why: error.to_string() }, Log::exit(exit))
            }
        };
        if let Some(joblog) = &self.joblog {
            let command = spawn::line(&self.config.template, run.key);
            if let Err(error) = joblog.write(run.seq, at, start.elapsed(), log, &command) {
                self.fail(&format!("--joblog: {error}")).await;
            }
        }
        ended
    }

    /// Starts the command; waits while there is no room for another process or file. `None` if no
    /// more are to be started.
    async fn spawn(
        &self,
        run: Run<'_>,
        level: &mut watch::Receiver<Level>,
    ) -> Option<io::Result<Child>> {
        let mut command = spawn::command(&self.config, run);
        if self.config.verbose {
            let line = spawn::line(&self.config.template, run.key) + "\n";
            self.output.write(Stream::Stderr, 0, line.into_bytes()).await;
            // Before anything that the command writes there itself.
            self.output.flush().await;
        }
        let mut pause = Duration::from_millis(10);
        let mut by_shell = false;
        loop {
            if *level.borrow_and_update() != Level::Running {
                return None;
            }
            match self.groups.start(run.slot, run.seq, run.key, &mut command) {
                Err(error) if spawn::is_shortage(&error) => {
                    if !self.was_short.swap(true, Ordering::Relaxed) {
                        let why = "no further command can be started for now";
                        self.output.say(&format!("{why}: {error}")).await;
                    }
                    let _ = tokio::time::timeout(pause, level.changed()).await;
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
                Err(error) if spawn::is_of_no_kind(&error) && !by_shell => {
                    by_shell = true;
                    command = spawn::command_by_shell(&self.config, run);
                }
                child => {
                    self.tally.runs.one_more();
                    return Some(child);
                }
            }
        }
    }

    /// Waits for the process, passes on what it writes, and ends it where that is due.
    ///
    /// The run is over when the process is, even if something that it left behind holds its pipes.
    async fn finish(
        &self,
        mut child: Child,
        run: Run<'_>,
        level: watch::Receiver<Level>,
    ) -> Finished {
        let group = groups::leader(&child);
        let limits = self.config.limits;
        let lost = run.loan.map(Loan::lost);
        let mut watchdog = Watchdog::new(limits, &self.clock, &self.groups, run.slot, level, lost);
        let (mut out, mut err) = (self.sink(Stream::Stdout, run), self.sink(Stream::Stderr, run));
        let (exit, exited) = watch::channel(false);
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());

        let process = async {
            let reaped = tokio::select! {
                reaped = self.groups.wait(run.slot, &mut child) => reaped,
                never = watchdog.watch_for_ever() => match never {},
            };
            if let Some(group) = group {
                watchdog.clear(group).await;
            }
            self.groups.over(run.slot);
            exit.send_replace(true);
            reaped
        };
        let pipes = async {
            tokio::join!(
                capture::feed(stdin, run.given.stdin.as_deref(), exited.clone()),
                out.copy(stdout, exited.clone()),
                err.copy(stderr, exited.clone()),
            )
        };
        // Nobody may be reading what it wrote.
        let pipes = async {
            tokio::select! {
                ended = pipes => Some(ended),
                () = self.killing(exited.clone()) => None,
            }
        };
        let (Reaped { status, starved }, ended) = tokio::join!(process, pipes);
        let mut sent = 0;
        if let Some((fed, out, err)) = ended {
            sent = fed;
            if let Err(error) = out.and(err) {
                self.fail(&format!("{}: its output is lost: {error}", escaped(run.key))).await;
            }
        }
        let received = out.received + err.received;
        if let (Some(out), Some(err)) = (out.into_kept(), err.into_kept()) {
            tokio::select! {
                () = self.output.write_kept(run.seq, out, err) => {}
                () = self.killing(exited) => {}
            }
        }
        let lost = run.loan.is_some_and(Loan::is_lost);
        Finished { status, starved, timed_out: watchdog.timed_out(), lost, sent, received }
    }

    fn sink(&self, stream: Stream, run: Run<'_>) -> Sink<'_> {
        let tag = self.config.tag.as_ref().map(|tag| tag.of(run.key));
        let sink = Sink::new(&self.output, stream, run.seq).tag(tag);
        if self.config.output == args::Output::Group { sink.keep() } else { sink }
    }

    /// Waits until a run has ended, and all are to be killed.
    async fn killing(&self, mut exited: watch::Receiver<bool>) {
        let _ = exited.wait_for(|&exited| exited).await;
        let _ = self.level.subscribe().wait_for(|&level| level == Level::Killing).await;
    }

    async fn outcome(&self, run: Run<'_>, finished: Finished) -> Outcome {
        let Finished { status, starved, timed_out, lost, .. } = finished;
        let status = match status {
            Ok(status) if status.success() && !timed_out && !lost => return Outcome::Done,
            Ok(status) => status,
            Err(error) => return Outcome::Failed { exit: 125, why: error.to_string() },
        };
        let signal = status.signal();
        let exit = status.code().or(signal.map(|signal| 128 + signal)).unwrap_or(125);
        if exit == 128 + Signal::PIPE.as_raw() && self.finds_stdout_closed() {
            return Outcome::Unfinished;
        }
        let level = *self.level.borrow();
        if level >= Level::Terminating {
            return Outcome::Unfinished;
        }
        if lost {
            return Outcome::Failed { exit, why: "it was lost to others".to_owned() };
        }
        if let Some(signal) = starved {
            let name = if signal == Signal::TTIN { "SIGTTIN" } else { "SIGTTOU" };
            let why = format!("stopped as it wants the terminal ({name}), which no command gets");
            self.output.say(&format!("{}: {why}; killed", escaped(run.key))).await;
            return Outcome::Failed { exit: 128 + signal.as_raw(), why };
        }
        if timed_out {
            self.tally.timed_out.one_more();
            let limit = self.config.limits.timeout.unwrap_or_default();
            // The number that `timeout` has for it.
            return Outcome::Failed { exit: 124, why: format!("timed out after {limit:?}") };
        }
        let of_our_signal = self.signal.get().is_some_and(|&signal| exit == 128 + signal);
        if level == Level::Stopping && of_our_signal {
            return Outcome::Unfinished;
        }
        Outcome::Failed { exit, why: status.to_string() }
    }

    /// Says what went wrong here, and has the program fail in the end.
    async fn fail(&self, why: &str) {
        self.tally.failed.store(true, Ordering::Relaxed);
        self.output.say(why).await;
    }
}
