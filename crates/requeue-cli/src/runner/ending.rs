//! Completes each run of a key, and ends the program. The outcomes are recorded in the queue, the summary and the
//! files.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use requeue::{CancelReason, Completion, Item};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::oneshot;

use crate::args::run as args;
use crate::key::{Key, escaped};
use crate::output::dead_letters::DeadLetter;
use crate::output::summary::counted;
use crate::process::signals::Level;
use crate::runner::Runner;
use crate::runner::launch::ReaderEnd;
use crate::runner::outcome::Outcome;
use crate::runner::remote::{ExpiredKeys, Job, Lease, Remote};
use crate::runner::retries::Verdict;
use crate::runner::retry_reports::Again;
use crate::serve::{History, Run};

impl Runner {
    /// Completes the delivery of `job` with the outcome of its run.
    pub(super) async fn end_run(&self, job: Job, outcome: Outcome, record: Run) {
        let Job { item, lease } = job;
        let record = match outcome.error() {
            Some(error) => record.error(error),
            None => record,
        };
        if let Some(lease) = lease {
            return self.end_lease(item, lease, outcome, record).await;
        }
        match outcome {
            Outcome::Interrupted => item.complete(Completion::Release),
            Outcome::Cancelled(reason) => {
                self.report_cancelled(item.key(), reason).await;
                self.keys.end_cancelled(item);
            }
            Outcome::Succeeded => {
                self.tally.runs.succeeded.one_more();
                let key = item.key().clone();
                self.keys.succeed(item);
                self.record_run(|history| history.succeeded(&key, record));
                self.halt_if_reached().await;
            }
            Outcome::Failed { exit: Some(exit), why, is_final: false, .. } => {
                self.tally.runs.failed.one_more();
                if self.hooks.as_ref().is_some_and(|hooks| hooks.is_new(&item)) {
                    // The queue contains a newer request for the key, which must not wait for the backoff of this run.
                    let (key, attempt) =
                        (item.key().clone(), self.keys.failing.past_of(&item).attempt);
                    self.keys.give_up(item);
                    self.record_run(|history| history.failed(&key, record));
                    return self.report_retry(&key, attempt, &why, Again::Added).await;
                }
                let key = item.key().clone();
                match self.keys.failing.count_failure(item, exit, self.keys.queue.now()) {
                    Verdict::Retried { attempt, delay } => {
                        self.record_run(|history| history.failed(&key, record));
                        self.report_retry(&key, attempt, &why, Again::After(delay)).await;
                    }
                    Verdict::GivenUp { item, attempts } => {
                        self.give_up(item, attempts, Some(exit), &why, record).await;
                    }
                }
            }
            Outcome::Failed { exit, why, .. } => {
                self.tally.runs.failed.one_more();
                let attempts = self.keys.failing.past_of(&item).attempt;
                self.give_up(item, attempts, exit, &why, record).await;
            }
        }
    }

    /// Counts a cancelled run, and reports it to the user. A restarted run is not reported.
    async fn report_cancelled(&self, key: &[u8], reason: CancelReason) {
        if reason == CancelReason::Restarted {
            self.tally.runs.restarted.one_more();
        } else {
            self.tally.cancelled.one_more();
            self.output.say(&format!("{}: cancelled", escaped(key))).await;
        }
    }

    /// Completes a run whose key is leased. If the remote queue does not record the outcome in time, the key runs
    /// again.
    async fn end_lease(
        &self,
        item: Item<'static, Key>,
        lease: Lease,
        outcome: Outcome,
        record: Run,
    ) {
        let (attempts, priority) = (lease.attempt(), lease.priority());
        let recorded = tokio::select! {
            // The completion is polled first. If the remote queue has already recorded the outcome, that result is
            // used, even if the second after a kill has passed.
            biased;
            recorded = lease.complete(&outcome) => recorded,
            () = self.wait_after_kill() => Err("outcome not recorded in time; the key runs again".to_owned()),
        };
        let key = item.key().clone();
        // A key leaves the local queue after its run in any case, because only the remote queue retries it.
        item.succeed();
        let (is_recorded, is_parked) = (recorded.is_ok(), recorded == Ok(true));
        if let Err(why) = recorded {
            self.output.say(&format!("{}: {why}", escaped(&key))).await;
        }
        match outcome {
            Outcome::Interrupted => _ = self.tally.unfinished.one_more(),
            Outcome::Cancelled(reason) => self.report_cancelled(&key, reason).await,
            Outcome::Succeeded if is_recorded => {
                self.record_run(|history| history.succeeded(&key, record));
                self.tally.runs.succeeded.one_more();
                self.halt_if_reached().await;
            }
            // The remote queue has not recorded the success, so it will run the key again.
            Outcome::Succeeded => _ = self.tally.runs.failed.one_more(),
            Outcome::Failed { exit, why, is_final, .. } => {
                self.tally.runs.failed.one_more();
                self.record_run(|history| match is_parked {
                    true => history.gave_up(&key, record),
                    false => history.failed(&key, record),
                });
                if is_parked {
                    let letter = DeadLetter { attempts, exit, why: &why, priority };
                    self.report_parked(&key, letter).await;
                } else if is_recorded {
                    let retries = self.config.failures.retries;
                    let is_last = is_final || retries.is_some_and(|retries| attempts > retries);
                    let again = if is_last { Again::Added } else { Again::Backoff };
                    self.report_retry(&key, attempts, &why, again).await;
                }
            }
        }
    }

    /// Reports each key that a claim parks, until `done` is notified. Keys that were parked before that notification
    /// are still reported.
    pub(super) async fn report_expired(
        self: Arc<Self>,
        mut expired: ExpiredKeys,
        mut done: oneshot::Receiver<()>,
    ) {
        loop {
            let found = tokio::select! {
                // The channel is polled before `done`, so that all keys in the channel are reported first.
                biased;
                found = expired.recv() => found,
                _ = &mut done => None,
            };
            let Some((key, attempts, why)) = found else { return };
            let record = Run::new(attempts);
            self.record_run(|history| history.gave_up(&key, record.error(&why)));
            let letter = DeadLetter { attempts, exit: None, why: &why, priority: 0 };
            self.report_parked(&key, letter).await;
        }
    }

    async fn report_parked(&self, key: &Key, letter: DeadLetter<'_>) {
        self.tally.given_up.one_more();
        let written = self.files.dead_letters.write_letter(key, letter);
        let fate = ("parked after", " (`requeue revive` runs it again)");
        self.report_given_up(key, fate, letter, written).await;
    }

    /// Records a run for the dashboard. The caller must complete the delivery of the key first.
    fn record_run(&self, record: impl FnOnce(&History)) {
        if let Some(history) = &self.history {
            record(history);
        }
    }

    async fn give_up(
        &self,
        item: Item<'static, Key>,
        attempts: u32,
        exit: Option<i32>,
        why: &str,
        record: Run,
    ) {
        self.tally.given_up.one_more();
        let remedy = self.hooks.as_ref().map_or("", |hooks| hooks.on_give_up(&item));
        // If the program is stopping, it does not run the key again, so the hint is left out.
        let remedy = if self.must_halt() || self.is_stopping() { "" } else { remedy };
        let letter = DeadLetter { attempts, exit, why, priority: item.priority() };
        // The dead letter is written before the key leaves the queue. If the program is killed between the two steps,
        // the key is not lost.
        let written = self.files.dead_letters.write_letter(&item, letter);
        let key = item.key().clone();
        self.keys.give_up(item);
        self.record_run(|history| history.gave_up(&key, record));
        self.report_given_up(&key, ("given up after", remedy), letter, written).await;
    }

    /// Reports a key that was given up, and tells the user the next step.
    async fn report_given_up(
        &self,
        key: &Key,
        (fate, remedy): (&str, &str),
        letter: DeadLetter<'_>,
        written: io::Result<()>,
    ) {
        let DeadLetter { attempts, why, .. } = letter;
        let key = escaped(key);
        let attempts = counted(attempts.into(), "attempt");
        self.output.say(&format!("{key}: {fate} {attempts}: {why}{remedy}")).await;
        if let Err(error) = written {
            self.report_failed(&format!("--dead-letter: {key}: {error}")).await;
        }
        self.halt_if_reached().await;
    }

    /// Returns true if the limit of `--halt` is reached.
    fn must_halt(&self) -> bool {
        let (done, given_up) = (self.tally.runs.succeeded.get(), self.tally.given_up.get());
        self.config.failures.halt.is_some_and(|halt| halt.is_reached(done, given_up))
    }

    async fn halt_if_reached(&self) {
        let Some(halt) = self.config.failures.halt else { return };
        let (done, given_up) = (self.tally.runs.succeeded.get(), self.tally.given_up.get());
        // Several slots can reach the limit at the same time. Only the first one reports it.
        if self.must_halt() && !self.tally.halted.swap(true, Ordering::Relaxed) {
            self.stop(halt.level);
            self.output
                .say(&format!("halted: {} succeeded, {given_up} given up", counted(done, "key")))
                .await;
        }
    }

    /// Adds the keys that have not completed to the summary. The caller must ensure that no command is in flight.
    pub(super) async fn count_unfinished(&self, reader_end: ReaderEnd) {
        let Some(leases) = &self.keys.leases else {
            // The shutdown takes about a second for a million keys, so it runs as a blocking call.
            let keys = tokio::task::block_in_place(|| self.keys.queue.shut_down().len());
            return self.tally.unfinished.add(keys);
        };
        // The reader thread may still be adding keys to the store. It will stop, because the program is ending.
        let _ = reader_end.await;
        leases.release_all().await;
        if leases.remote.has_failed() {
            self.tally.mark_failed();
        }
        self.keys.queue.shut_down();
    }

    /// Returns true if standard output is closed, and then also stops the program. A closed output explains why
    /// SIGPIPE killed a command.
    pub(super) fn finds_stdout_closed(&self) -> bool {
        let inherits = self.config.commands.output == args::Output::Inherit;
        let closed = self.output.is_closed().is_some() || (inherits && is_broken(&io::stdout()));
        if closed {
            self.stop_without_stdout();
        }
        closed
    }

    /// Stops the program because standard output is closed.
    pub(super) fn stop_without_stdout(&self) {
        self.stop.cut_off();
        self.stop(Level::Stopping);
    }

    /// Returns true if standard output was closed while keys still had to run.
    pub(super) fn is_cut_off(&self) -> bool {
        let is_from_input = self.keys.leases.is_none() && self.hooks.is_none();
        let all_done =
            is_from_input && self.keys.has_input_ended() && self.tally.unfinished.get() == 0;
        self.stop.is_cut_off() && !all_done
    }

    /// Reports the keys that have not completed and that no store contains.
    pub(super) async fn report_unfinished(&self) {
        let unfinished = self.tally.unfinished.get();
        if unfinished == 0 || self.keys.leases.is_some() {
            return;
        }
        let next_step = match &self.hooks {
            Some(hooks) => hooks.after_cut_off(),
            None => "--store sqlite:FILE would have kept them for a later run",
        };
        let keys = counted(unfinished, "unfinished key");
        self.output.say(&format!("{keys}: {next_step}")).await;
    }

    /// Reports that the program stopped because standard output was closed.
    pub(super) async fn report_cut_off(&self) {
        let next_step = match (&self.keys.leases, &self.hooks) {
            (Some(leases), _) => match leases.remote {
                Remote::Store(_) => "the store keeps its keys",
                Remote::Server(_) => "the server keeps its keys",
            },
            (None, Some(hooks)) => hooks.after_cut_off(),
            _ => "--store sqlite:FILE keeps keys for a later run",
        };
        self.output
            .say(&format!("standard output was closed before all keys were done; {next_step}"))
            .await;
    }
}

/// Returns true if `fd` is a pipe without a reader.
fn is_broken(fd: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(fd, PollFlags::OUT)];
    poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().contains(PollFlags::ERR)
}
