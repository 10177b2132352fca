//! One run of a key: its command, and the hooks before and after the command.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use requeue::CancelReason;
use rustix::process::Signal;
use tempfile::SpooledTempFile;
use tokio::process::Child;
use tokio::sync::watch;

use crate::args::config::CommandConfig;
use crate::args::run as args;
use crate::duration::format_exact;
use crate::exit::Exit;
use crate::key::{Key, escaped};
use crate::output::Stream;
use crate::output::capture::{self, Sink};
use crate::output::joblog::Log;
use crate::process::command;
use crate::process::groups;
use crate::process::guardian::Guardian;
use crate::process::run_input::RunInput;
use crate::process::signals::Level;
use crate::process::spawn::{self, NewStdio, Run};
use crate::process::timeout::{Timer, Watchdog};
use crate::runner::Runner;
use crate::runner::order;
use crate::runner::outcome::Outcome;
use crate::runner::remote::Job;
use crate::serve;

/// The terminal codes that move the cursor to the first line and clear the screen. The user can still scroll to
/// earlier lines.
const CLEAR: &[u8] = b"\x1b[H\x1b[2J";

/// The result of a command that has exited.
struct Finished {
    status: io::Result<ExitStatus>,
    /// The signal that the terminal driver stopped the command with. Set if requeue killed the command because it
    /// tried to use the terminal.
    starved: Option<Signal>,
    timed_out: bool,
    /// True if this process lost the lease of the key while the command ran.
    lost: bool,
    /// The reason of the cancellation. Set if requeue terminated the command because its run was cancelled.
    cancelled: Option<CancelReason>,
    /// The number of bytes that requeue wrote to the command's standard input.
    sent: u64,
    /// The number of bytes of the command's output that passed through this process.
    received: u64,
    /// The last part of the command's standard error. Empty if neither a dashboard nor a remote queue shows it.
    stderr: String,
}

impl Finished {
    /// Returns the values of the joblog line for this run.
    fn joblog_entry(&self) -> Log {
        let (exit, signal) = match &self.status {
            Ok(status) => (status.code().unwrap_or(0), status.signal().unwrap_or(0)),
            Err(_) => (125, 0),
        };
        // The exit code is -1, as in GNU parallel. A command that requeue terminated may still exit with 0, which
        // would look like a success.
        let was_ended = self.timed_out || self.lost || self.cancelled.is_some();
        let exit = if was_ended { -1 } else { exit };
        Log { exit, signal, sent: self.sent, received: self.received }
    }
}

impl Runner {
    /// Runs the command of a delivered key, and completes the delivery.
    pub(super) async fn run_attempt(&self, mut job: Job, slot: usize) {
        let item = &job.item;
        let record = serve::Run::new(self.attempt_of(&job));
        let mut input = match self.unless_cut_off(self.prepare_input(&job)).await {
            Some(Ok(Some(input))) => input,
            // `prepare_input` found that the run is no longer needed.
            Some(Ok(None)) => return self.keys.succeed(job.item),
            Some(Err(why)) => {
                let outcome = self.report_failure(item, why).await;
                return self.end_run(job, outcome, record).await;
            }
            None => return self.end_run(job, Outcome::Interrupted, record).await,
        };
        let span = job.start_span();
        input.env.extend(span.env());
        let (past, adds) = self.keys.record_start(&job);
        let seq = self.commands.seq.one_more();
        let run = Run { key: item, past, adds, slot, seq, input: &input };
        if input.clears {
            self.output.write(Stream::Stdout, 0, CLEAR.to_vec()).await;
            // The code that clears the screen is flushed before the command starts, because the command may write
            // directly to the terminal.
            self.output.flush().await;
        }
        let (mut outcome, record, output) = if self.config.commands.dry_run {
            self.print_command(run).await;
            (Outcome::Succeeded, record, String::new())
        } else {
            self.run_command(run, &job, record).await
        };
        if let Some(lease) = &mut job.lease {
            lease.set_output(&output);
        }
        outcome.note_output(&output);
        let record = record.output(output);
        // The hook is called before the completion. Until the completion, no other run of the key can start, so the
        // hooks of one key never overlap.
        let outcome = match (outcome, &self.hooks) {
            (Outcome::Succeeded, Some(hooks)) => {
                match self.unless_cut_off(hooks.on_success(item)).await {
                    Some(Ok(())) => Outcome::Succeeded,
                    Some(Err(why)) => self.report_failure(item, why).await,
                    None => Outcome::Interrupted,
                }
            }
            (outcome, _) => outcome,
        };
        if let Outcome::Failed { exit, why, .. } = &outcome {
            span.fail(*exit, why);
        }
        drop(span);
        self.end_run(job, outcome, record).await;
    }

    /// Prints the command instead of running it, for `--dry-run`.
    async fn print_command(&self, run: Run<'_>) {
        let line = spawn::command_line(&self.config.commands.template, run.key) + "\n";
        match &self.keys.order {
            None => _ = self.output.write(Stream::Stdout, run.seq, line.into_bytes()).await,
            Some(_) => match order::printed_output(&line) {
                Ok(output) => self.write_kept(run, output).await,
                Err(error) => self.report_lost_output(run.key, &error).await,
            },
        }
    }

    /// Writes the whole output of a run that `--output group` has collected.
    async fn write_kept(&self, run: Run<'_>, output: [SpooledTempFile; 2]) {
        let written = match &self.keys.order {
            Some(order) => order.write_or_hold(&self.output, run.key, run.seq, output).await,
            None => {
                self.output.write_kept(run.seq, output).await;
                Ok(())
            }
        };
        if let Err(error) = written {
            self.report_lost_output(run.key, &error).await;
        }
    }

    async fn report_lost_output(&self, key: &Key, error: &io::Error) {
        self.report_failed(&format!("{}: output lost: {error}", escaped(key))).await;
    }

    fn attempt_of(&self, Job { item, lease }: &Job) -> u32 {
        match lease {
            Some(lease) => lease.attempt(),
            None => self.keys.failing.past_of(item).attempt,
        }
    }

    /// Returns the input of the command. Returns `None` if the run is no longer needed.
    async fn prepare_input(&self, Job { item, lease }: &Job) -> Result<Option<RunInput>, String> {
        if let Some(hooks) = &self.hooks {
            return hooks.prepare_run(item).await;
        }
        let env = match lease {
            // When the caller drops the lease, the delivery is completed.
            Some(lease) if lease.is_lost() || lease.is_cancelled() => return Ok(None),
            Some(lease) => {
                vec![("REQUEUE_FENCING_TOKEN", lease.fencing_token().to_string().into())]
            }
            None => Vec::new(),
        };
        let stdin = match self.config.commands.stdin {
            args::Stdin::None => None,
            args::Stdin::Key => Some(item.key()[..].into()),
        };
        Ok(Some(RunInput { env, stdin, ..RunInput::default() }))
    }

    /// Returns the result of `future`. Returns `None` if the program begins to terminate commands before `future`
    /// completes.
    async fn unless_cut_off<T>(&self, future: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            // The stop is polled first. A command that requeue has terminated may exit with 0 although it did not
            // finish its work.
            biased;
            () = self.stop.wait_for_level(Level::Terminating) => None,
            it = future => Some(it),
        }
    }

    /// Reports a run that failed inside requeue, before or after its command ran.
    async fn report_failure(&self, key: &Key, why: String) -> Outcome {
        self.output.say(&format!("{}: {why}", escaped(key))).await;
        self.failed_outcome(125, why)
    }

    fn failed_outcome(&self, exit: i32, why: String) -> Outcome {
        let is_final = self.config.failures.fatal.contain(exit);
        Outcome::Failed { exit: Some(exit), why, said: String::new(), is_final }
    }

    /// Runs the command. Returns the outcome of the run, its record for the dashboard, and the last part of the
    /// command's standard error.
    async fn run_command(
        &self,
        run: Run<'_>,
        job: &Job,
        mut record: serve::Run,
    ) -> (Outcome, serve::Run, String) {
        let mut output = String::new();
        let mut level = self.stop.subscribe();
        let Some(child) = self.spawn_child(run, &mut level).await else {
            return (Outcome::Interrupted, record, output);
        };
        let (at, start) = (SystemTime::now(), Instant::now());
        let (outcome, log) = match child {
            Ok(child) => {
                let mut finished = self.wait_for_child(child, run, job, level).await;
                record = record.took(start.elapsed());
                output = std::mem::take(&mut finished.stderr);
                self.tally.runs.durations.add(start.elapsed());
                let log = finished.joblog_entry();
                (self.outcome_of(run, finished).await, log)
            }
            Err(error) => {
                let (outcome, exit) = match command::exit_of(&error) {
                    Some(exit) => (self.without_program(run.key, exit).await, exit as i32),
                    None if spawn::is_hopeless(&error) => {
                        let why = error.to_string();
                        let said = String::new();
                        (Outcome::Failed { exit: None, why, said, is_final: true }, 126)
                    }
                    None => (self.failed_outcome(126, error.to_string()), 126),
                };
                (outcome, Log { exit, ..Log::default() })
            }
        };
        if let Some(joblog) = &self.files.joblog {
            let command = spawn::command_line(&self.config.commands.template, run.key);
            if let Err(error) = joblog.write_run(run.seq, at, start.elapsed(), log, &command) {
                self.report_failed(&format!("--joblog: {error}")).await;
            }
        }
        (outcome, record, output)
    }

    /// Returns the outcome of a run whose program does not exist or cannot be executed. The command is not retried. If
    /// the program path does not depend on the key, all other keys would fail in the same way. In that case, requeue
    /// stops without giving up any key.
    async fn without_program(&self, key: &Key, exit: Exit) -> Outcome {
        let template = &self.config.commands.template;
        let program = template.program_for(key);
        let why = match command::locate_program(&program) {
            Ok(_) if exit == Exit::NotFound => {
                let program = escaped(program.as_bytes());
                let why =
                    "its interpreter or loader was not found; for a script, see its first line";
                format!("{program}: {why}")
            }
            _ => command::why_not(&program, exit),
        };
        // With `requeue files`, a build may replace the program. The next change of a file then starts the program
        // again, so requeue keeps running.
        if template.fixed_program().is_none() || self.config.name == "files" {
            let exit = Some(exit as i32);
            return Outcome::Failed { exit, why, said: String::new(), is_final: true };
        }
        if self.stop.no_program.set(exit).is_ok() {
            self.output.say(&format!("{why}; no new commands are started")).await;
        }
        self.stop(Level::Stopping);
        Outcome::Interrupted
    }

    /// Starts the command. If the system has no free process or file descriptor, tries again until it has one. Returns
    /// `None` if the program begins to stop.
    async fn spawn_child(
        &self,
        run: Run<'_>,
        level: &mut watch::Receiver<Level>,
    ) -> Option<io::Result<Child>> {
        let CommandConfig { template, output, verbose, .. } = &self.config.commands;
        let stdio: NewStdio = match output {
            args::Output::Lines | args::Output::Group => Stdio::piped,
            args::Output::Inherit => Stdio::inherit,
            args::Output::None => Stdio::null,
        };
        let mut command = spawn::build_command(template, stdio, run);
        if *verbose {
            let line = spawn::command_line(template, run.key) + "\n";
            self.output.write(Stream::Stderr, 0, line.into_bytes()).await;
            // The command line is flushed before the command starts, so that it precedes the output of the command.
            self.output.flush().await;
        }
        // The guardian starts before the command. A guardian that starts later would not know the command's process
        // group.
        self.ensure_guardian(Guardian::start_once).await;
        let mut pause = Duration::from_millis(10);
        let mut by_shell = false;
        loop {
            // `borrow_and_update` marks the level as seen. The later `changed` then waits for the next change of the
            // level.
            if *level.borrow_and_update() != Level::Running {
                return None;
            }
            match self.commands.groups.start_command(run.slot, run.seq, run.key, &mut command) {
                Err(error) if spawn::is_shortage(&error) => {
                    if !self.commands.was_short.swap(true, Ordering::Relaxed) {
                        let why = "no command can be started, retrying";
                        self.output.say(&format!("{why}: {error}")).await;
                    }
                    let _ = tokio::time::timeout(pause, level.changed()).await;
                    // A shortage usually lasts until other commands exit. More frequent attempts would not help.
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
                // execvp also runs a script without a `#!` line through the shell.
                Err(error) if spawn::is_of_no_kind(&error) && !by_shell => {
                    by_shell = true;
                    command = spawn::command_by_shell(template, stdio, run);
                }
                child => {
                    self.tally.runs.started.one_more();
                    return Some(child);
                }
            }
        }
    }

    /// Waits until the process exits, copies its output, and terminates the process at its time limit.
    ///
    /// The run is over when the process itself has exited, even if a child of the process still holds the pipes open.
    async fn wait_for_child(
        &self,
        mut child: Child,
        run: Run<'_>,
        Job { item, lease }: &Job,
        level: watch::Receiver<Level>,
    ) -> Finished {
        let group = groups::group_leader(&child);
        let (limits, groups) = (self.config.commands.limits, &self.commands.groups);
        let cancelled: Timer<'_> = match &lease {
            Some(lease) => Box::pin(lease.stopped()),
            None => {
                let cancelled = item.cancelled();
                Box::pin(async move { _ = cancelled.await })
            }
        };
        let mut watchdog =
            Watchdog::new(limits, &self.commands.clock, groups, run.slot, level, cancelled);
        let (mut out, mut err) =
            (self.new_sink(Stream::Stdout, run), self.new_sink(Stream::Stderr, run));
        let (exit, exited) = watch::channel(false);
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());

        let process = async {
            let reaped = tokio::select! {
                reaped = groups.wait_for_command(run.slot, &mut child) => reaped,
                never = watchdog.watch_forever() => match never {},
            };
            if let Some(group) = group {
                watchdog.end_rest(group).await;
            }
            // From this point, the guardian does not kill the processes that the command deliberately left running.
            groups.mark_over(run.slot);
            exit.send_replace(true);
            reaped
        };
        let pipes = async {
            tokio::join!(
                capture::feed_stdin(stdin, run.input.stdin.as_deref(), exited.clone()),
                out.copy_stream(stdout, exited.clone()),
                err.copy_stream(stderr, exited.clone()),
            )
        };
        // A reader of the output that has stopped reading must not delay the end of the run after the kill.
        let pipes = async {
            tokio::select! {
                ended = pipes => Some(ended),
                () = self.exited_and_killing(exited.clone()) => None,
            }
        };
        let ((status, starved), ended) = tokio::join!(process, pipes);
        let mut sent = 0;
        if let Some((fed, out, err)) = ended {
            sent = fed;
            if let Err(error) = out.and(err) {
                self.report_lost_output(run.key, &error).await;
            }
        }
        let (received, stderr) = (out.received + err.received, err.tail());
        if let (Some(out), Some(err)) = (out.kept, err.kept) {
            tokio::select! {
                () = self.write_kept(run, [out, err]) => {}
                () = self.exited_and_killing(exited) => {}
            }
        }
        let lost = lease.as_ref().is_some_and(|lease| lease.is_lost());
        let cancelled = (watchdog.was_cancelled && !lost).then(|| match lease {
            Some(_) => CancelReason::Cancelled,
            None => item.cancel_reason().unwrap_or(CancelReason::Cancelled),
        });
        let timed_out = watchdog.timed_out;
        Finished { status, starved, timed_out, lost, cancelled, sent, received, stderr }
    }

    fn new_sink(&self, stream: Stream, run: Run<'_>) -> Sink<'_> {
        let tag = self.config.commands.tag.as_ref().map(|tag| tag.text_for(run.key));
        let keeps_all = self.config.commands.output == args::Output::Group;
        let is_shown = self.history.is_some() || self.keys.leases.is_some();
        let keeps_tail = stream == Stream::Stderr && is_shown;
        Sink::new(&self.output, stream, run.seq, tag, keeps_all, keeps_tail)
    }

    /// Waits until the process of a run has exited and the level is `Killing`.
    async fn exited_and_killing(&self, mut exited: watch::Receiver<bool>) {
        let _ = exited.wait_for(|&exited| exited).await;
        self.stop.wait_for_level(Level::Killing).await;
    }

    async fn outcome_of(&self, run: Run<'_>, finished: Finished) -> Outcome {
        let Finished { status, starved, timed_out, lost, cancelled, .. } = finished;
        let was_ended = timed_out || lost || cancelled.is_some();
        let status = match status {
            Ok(status) if status.success() && !was_ended => return Outcome::Succeeded,
            Ok(status) => status,
            Err(error) => return self.failed_outcome(125, error.to_string()),
        };
        let signal = status.signal();
        let exit = status.code().or(signal.map(|signal| 128 + signal)).unwrap_or(125);
        if exit == 128 + Signal::PIPE.as_raw() && self.finds_stdout_closed() {
            return Outcome::Interrupted;
        }
        let level = self.stop.level();
        // Requeue itself has terminated the command, so the exit code says nothing about the command's work.
        if level >= Level::Terminating {
            return Outcome::Interrupted;
        }
        if let Some(reason) = cancelled {
            return Outcome::Cancelled(reason);
        }
        // Another worker may already run the key. The remote queue accepts only that worker's outcome.
        if lost {
            return self
                .failed_outcome(exit, "lease lost: another worker may have the key".to_owned());
        }
        if let Some(signal) = starved {
            let name = if signal == Signal::TTIN { "SIGTTIN" } else { "SIGTTOU" };
            let why = format!("stopped by {name}: it wants the terminal, which no command gets");
            self.output.say(&format!("{}: {why}; killed", escaped(run.key))).await;
            return self.failed_outcome(128 + signal.as_raw(), why);
        }
        if timed_out {
            self.tally.runs.timed_out.one_more();
            let limit = self.config.commands.limits.timeout.unwrap_or_default();
            // 124 is the exit code of the `timeout` program at a time limit.
            return self.failed_outcome(124, format!("timed out after {}", format_exact(limit)));
        }
        let of_our_signal = self.stop.signal.get().is_some_and(|signal| exit == 128 + signal);
        // On Ctrl-C, a terminal also sends the signal to the command. The command may therefore have died of the
        // signal that stops requeue.
        if level == Level::Stopping && of_our_signal {
            return Outcome::Interrupted;
        }
        self.failed_outcome(exit, status.to_string())
    }
}
