//! The state of a site, which its routes share.

use std::sync::{Arc, Weak};
use std::time::Duration;

use prometheus_client::registry::Registry;
use requeue::metrics::Times;
use tokio::sync::{Semaphore, watch};
use tokio::time::MissedTickBehavior;

use crate::admin::Admin;
use crate::api::{Busy, Sample, Status, Summary};
use crate::hosts::Hosts;
use crate::params::Problem;
use crate::samples::Samples;
use crate::sections::MakeSection;
use crate::source::Source;
use crate::time::seconds;
use crate::turns::{Turn, Turns};

/// The time between two samples.
const EVERY: Duration = Duration::from_secs(1);

/// The workers of a queue.
pub(crate) struct Jobs {
    pub(crate) total: usize,
    pub(crate) busy: Box<dyn Fn() -> usize + Send + Sync>,
}

/// The settings of a site that do not depend on its queue.
pub(crate) struct Settings {
    pub(crate) jobs: Option<Jobs>,
    /// The example of an empty dashboard.
    pub(crate) hint: Option<String>,
    /// The longest time for which a key should be ready before a run.
    pub(crate) target: Option<Duration>,
    pub(crate) sections: Vec<MakeSection>,
    pub(crate) registry: Option<Arc<Registry>>,
    pub(crate) ready: Box<dyn Fn() -> bool + Send + Sync>,
    pub(crate) healthy: Box<dyn Fn() -> bool + Send + Sync>,
    pub(crate) hosts: Hosts,
    pub(crate) max_connections: usize,
}

/// A queue, and the settings and samples of its site.
pub(crate) struct SiteState {
    pub(crate) title: String,
    pub(crate) source: Box<dyn Source>,
    /// `None` if the site is read-only.
    pub(crate) admin: Option<Admin>,
    pub(crate) settings: Settings,
    pub(crate) samples: Samples,
    /// The start of the sampling, in seconds since 1970. The start identifies the process to the dashboard.
    pub(crate) started: f64,
    /// The summary of each second, as JSON.
    pub(crate) ticks: watch::Sender<Arc<str>>,
    pub(crate) ended: watch::Sender<bool>,
    /// A permit for each client of `/api/v1/events`.
    pub(crate) streams: Arc<Semaphore>,
    pub(crate) walks: Turns,
}

impl SiteState {
    /// Waits for a turn to search through keys.
    pub(crate) async fn take_turn(&self) -> Result<Turn<'_>, Problem> {
        // The turn is dropped with the request, so a client that disconnects frees it.
        self.walks.wait_turn().await.ok_or_else(|| Problem::busy("too many requests for keys"))
    }

    pub(crate) fn has_ended(&self) -> bool {
        *self.ended.borrow()
    }

    pub(crate) fn status(&self) -> Status {
        if self.has_ended() { Status::Ended } else { self.source.status() }
    }

    pub(crate) fn summary_json(&self) -> String {
        let gauges = self.source.read_gauges();
        let time = |read: fn(&Times) -> Duration| {
            gauges.keeps_times.then(|| seconds(read(&gauges.process.times)))
        };
        let (hour, workers) = self.source.recent_activity().unzip();
        let status = self.status();
        let pause = self.source.last_pause().filter(|_| status == Status::Paused);
        let paused_for = pause.as_ref().map(|pause| pause.ago);
        let (paused_by, paused_note) =
            pause.map_or((None, None), |pause| (Some(pause.by), pause.note));
        serde_json::to_string(&Summary {
            hour,
            workers,
            title: self.title.clone(),
            queue: self.source.name().map(str::to_owned),
            status,
            paused_by,
            paused_note,
            paused_for,
            started: self.started,
            now: Sample::new(&gauges, self.samples.last_minute(&gauges)),
            rates: self.samples.rates(),
            rate: self.source.rate(),
            given_up: gauges.process.given_up,
            panics: gauges.process.panics,
            times: gauges.keeps_times,
            oldest_ready: time(|times| times.oldest_ready),
            target: self.settings.target.map(seconds),
            longest_running: time(|times| times.longest_running),
            longest: self.source.longest_running(10),
            jobs: self
                .settings
                .jobs
                .as_ref()
                .map(|jobs| Busy { busy: (jobs.busy)(), total: jobs.total }),
        })
        // Serialization does not fail: the keys of all maps are strings.
        .unwrap_or_default()
    }

    /// Takes a sample, and sends it to event streams.
    pub(crate) fn take_sample(self: &Arc<Self>) {
        // Code of the user that shows keys may panic. In this case, the second has no sample.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let gauges = self.source.read_gauges();
            self.samples.push(Sample::new(&gauges, self.samples.last_minute(&gauges)));
            if self.ticks.receiver_count() > 0 {
                self.ticks.send_replace(self.summary_json().into());
            }
        }));
    }
}

/// Samples the site each second, until its end or until no handle is left.
pub(crate) async fn keep_sampling(site: Weak<SiteState>) {
    let mut interval = tokio::time::interval(EVERY);
    // After a suspension, one sample is enough.
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        // The reference is weak, because the sampling must not keep a site alive after its last handle is gone.
        let Some(site) = site.upgrade().filter(|site| !site.has_ended()) else { return };
        site.take_sample();
    }
}
