//! The dashboard of a program that runs commands.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use requeue::{Added, CancelReason, CancelledRun, Item};
use requeue_http::{Builder, Control, Detail, FailedRun, Run, RunEnd, Site};

use crate::exit::Refusal;
use crate::input::{AddOptions, check_key};
use crate::key::Key;
use crate::output::log;
use crate::runner::Runner;
use crate::runner::outcome::Outcome;
use crate::runner::remote::{Job, Remote};
use crate::serve::{Listener, Page, store_site};

impl Runner {
    pub(super) async fn serve_page(self: &Arc<Self>, listener: Listener) -> Result<Page, Refusal> {
        let of = Arc::clone(self);
        let (title, output) = (self.page_title(), &self.output);
        if listener.has_tokens() && self.keys.leases.is_none() {
            // For a queue in memory, nothing shows log events until this point. The subcommands that use a store have
            // set this up before.
            log::show_on(output);
        }
        match self.keys.leases.as_ref().map(|leases| &leases.remote) {
            Some(Remote::Store(queue)) => {
                let site = store_site(queue).detail(move |key| of.slot_detail(key));
                listener.serve(title, self.dress_site(site), output).await
            }
            // With the server of another process, `requeue work` refuses a dashboard, so no listener is bound.
            Some(Remote::Server(_)) | None => {
                let site =
                    Site::builder(self.keys.queue.clone()).detail(move |key| of.key_detail(key));
                let site = site.control(RunControl(Arc::clone(self)));
                listener.serve(title, self.dress_site(site), output).await
            }
        }
    }

    /// Sets the parts of the dashboard that are the same for a queue in memory and in a store.
    fn dress_site<K>(self: &Arc<Self>, site: Builder<K>) -> Builder<K> {
        let of = Arc::clone(self);
        let site = site.jobs(self.config.commands.jobs, move || of.commands.groups.running_count());
        let site = match self.config.name {
            "run" => site.hint("Write keys to the input of this process, one per line."),
            "watch" => site.hint("Create or change an object that is watched."),
            // The site of a store sets its own hint.
            _ => site,
        };
        match &self.history {
            Some(history) => site.history(history),
            None => site,
        }
    }

    /// Returns the title of the dashboard, with the name of the command's program. Arguments and scripts are left out,
    /// because they may contain secrets.
    fn page_title(&self) -> String {
        let program = self.config.commands.template.fixed_program();
        let name = program.as_deref().and_then(|program| Path::new(program).file_name());
        match name.map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned()) {
            Some(name) => format!("requeue {} {name}", self.config.name),
            None => format!("requeue {}", self.config.name),
        }
    }

    fn slot_detail(&self, key: &[u8]) -> Detail {
        match self.commands.groups.slot_of(key) {
            Some(slot) => Detail::new().field("slot", slot),
            None => Detail::new(),
        }
    }

    /// Returns the properties of a key that this program tracks outside the queue.
    fn key_detail(&self, key: &[u8]) -> Detail {
        let past = self.keys.failing.past_of(key);
        let mut detail = self.slot_detail(key).attempt(past.attempt);
        if let Some(exit) = past.last_exit {
            detail = detail.field("last exit", exit);
        }
        detail
    }
}

/// Lets clients of the dashboard change the keys of a queue in memory, in the same way as records of the input do.
struct RunControl(Arc<Runner>);

#[async_trait]
impl Control<Key> for RunControl {
    fn add(&self, key: Key, delay: Option<Duration>, priority: i32) -> Result<Added, String> {
        let Self(runner) = self;
        check_key(&key).map_err(|why| why.to_string())?;
        runner.hooks.iter().try_for_each(|hooks| hooks.check_key(&key))?;
        // A client's request cannot wait for space as the reader thread does, so the add is refused.
        if runner.keys.queue.states().total() >= runner.keys.max_keys {
            return Err("the run has as many keys as it may hold (--max-keys)".to_owned());
        }
        if runner.is_stopping() {
            return Ok(Added::Refused);
        }
        let reason = Some(requeue::intern_reason("added by a client"));
        let options = AddOptions { after: delay, priority, reason, ..AddOptions::default() };
        Ok(runner.keys.add_key(&key, options))
    }

    fn cancel(&self, key: &Key) -> bool {
        let Self(runner) = self;
        let cancelled = runner.keys.cancel_key(key);
        if cancelled {
            runner.tally.cancelled.one_more();
        }
        // The reader thread may be waiting for the space that this key occupied.
        runner.keys.notify_changed();
        cancelled
    }

    fn cancel_running(&self, key: &Key) -> bool {
        self.0.keys.queue.cancel_running(key) == CancelledRun::Cancelled
    }

    fn run_now(&self, key: &Key, priority: i32) -> bool {
        // The failures of the key stay, because `failing` counts them and not the queue.
        Control::run_now(&self.0.keys.queue, key, priority)
    }

    async fn claim(&self) -> Result<Option<Item<'static, Key>>, String> {
        let Self(runner) = self;
        if runner.hooks.is_some() {
            return Err(format!("`requeue {}` runs its keys itself", runner.config.name));
        }
        let Some(job) = runner.keys.next_job().await else { return Ok(None) };
        runner.keys.record_start(&job);
        Ok(Some(job.item))
    }

    fn attempt(&self, item: &Item<'static, Key>) -> u32 {
        self.0.keys.failing.past_of(item).attempt
    }

    async fn end_run(&self, item: Item<'static, Key>, end: RunEnd) {
        let Self(runner) = self;
        let record = Run::new(self.attempt(&item));
        let (outcome, record) = match end {
            RunEnd::Succeeded => (Outcome::Succeeded, record),
            RunEnd::Released => (Outcome::Interrupted, record),
            RunEnd::Cancelled => (Outcome::Cancelled(CancelReason::Cancelled), record),
            RunEnd::Failed(FailedRun { error, exit_status, output, gives_up, .. }) => {
                let why = error.unwrap_or_else(|| "the run failed".to_owned());
                let (exit, said) = (Some(exit_status.unwrap_or(1)), String::new());
                let outcome = Outcome::Failed { exit, why, said, is_final: gives_up };
                (outcome, record.output(output.unwrap_or_default()))
            }
        };
        runner.end_run(Job { item, lease: None }, outcome, record).await;
        runner.note_run_end().await;
    }

    /// Pauses or resumes the starts of commands. Returns false without an effect if the program is stopping.
    fn set_paused(&self, paused: bool) -> bool {
        // A resume would restart the deliveries that the stop has paused.
        let runs = !self.0.is_stopping();
        match paused {
            true if runs => self.0.keys.queue.pause(),
            false if runs => self.0.keys.queue.resume(),
            _ => {}
        }
        runs
    }
}
