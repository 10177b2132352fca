//! The dashboard of a run.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use requeue_http::{Builder, Detail, Site};

use crate::exit::Refusal;
use crate::runner::Runner;
use crate::serve::{Listener, Page};

impl Runner {
    pub(super) async fn serve(self: &Arc<Self>, listener: Listener) -> Result<Page, Refusal> {
        let of = Arc::clone(self);
        let (title, output) = (self.title(), &self.output);
        match self.keys.leases() {
            #[cfg(feature = "store")]
            Some(leases) => {
                let site = leases.remote().page().detail(move |key| of.slot(key));
                listener.serve(title, self.dress(site), output).await
            }
            _ => {
                let site =
                    Site::builder(self.keys.queue().clone()).detail(move |key| of.detail(key));
                listener.serve(title, self.dress(site), output).await
            }
        }
    }

    /// Sets the parts of the dashboard that do not depend on the kind of the queue.
    fn dress<K>(self: &Arc<Self>, site: Builder<K>) -> Builder<K> {
        let of = Arc::clone(self);
        let site = site.jobs(self.config.commands.jobs, move || of.commands.groups.running());
        let site = match self.config.name {
            "run" => site.hint("Write keys to the input of this process, one per line."),
            "watch" => site.hint("Create or change an object that is watched."),
            // The site of a store has a hint of its own.
            _ => site,
        };
        match &self.history {
            Some(history) => site.history(history),
            None => site,
        }
    }

    /// Returns the title: the name of the program, without arguments and scripts, which may contain secrets.
    fn title(&self) -> String {
        let program = self.config.commands.template.fixed_program();
        let name = program.as_deref().and_then(|program| Path::new(program).file_name());
        match name.map(|name| String::from_utf8_lossy(name.as_bytes()).into_owned()) {
            Some(name) => format!("requeue {} {name}", self.config.name),
            None => format!("requeue {}", self.config.name),
        }
    }

    fn slot(&self, key: &[u8]) -> Detail {
        match self.commands.groups.slot(key) {
            Some(slot) => Detail::new().field("slot", slot),
            None => Detail::new(),
        }
    }

    /// Returns the properties of a key that the queue does not have.
    fn detail(&self, key: &[u8]) -> Detail {
        let past = self.keys.past(key);
        let mut detail = self.slot(key).attempt(past.attempt);
        if let Some(exit) = past.last_exit {
            detail = detail.field("last exit", exit);
        }
        detail
    }
}
