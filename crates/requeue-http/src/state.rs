//! The state of a site, which its routes share.

use std::sync::{Arc, Weak};
use std::time::Duration;

use prometheus_client::registry::Registry;
use requeue::metrics::Times;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::MissedTickBehavior;

use crate::access::Access;
use crate::api::{Busy, Sample, Status, Summary};
use crate::hosts::Hosts;
use crate::params::Problem;
use crate::samples::Samples;
use crate::sections::MakeSection;
use crate::source::Source;
use crate::time::{seconds, unix_time};
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
    /// The example that an empty dashboard shows.
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

/// The title, the tokens and the settings of a site, without its queue.
#[derive(Clone)]
pub(crate) struct Frame {
    /// The title, or `None` for the name of the queue.
    pub(crate) title: Option<String>,
    pub(crate) access: Arc<Access>,
    pub(crate) settings: Arc<Settings>,
}

/// The limits of a server, which all its sites share.
#[derive(Clone)]
pub(crate) struct Limits {
    /// The permits for clients of `/api/v1/events`.
    streams: Arc<Semaphore>,
    /// A permit for each response with a recording.
    recordings: Arc<Semaphore>,
    /// A permit for each claim, which may wait for keys.
    claims: Arc<Semaphore>,
    walks: Arc<Turns>,
}

impl Limits {
    pub(crate) fn new(max_connections: usize) -> Self {
        // Half of the other half of the connections is reserved for searches and short requests.
        let streams = Arc::new(Semaphore::new(max_connections.div_ceil(2)));
        let claims = Arc::new(Semaphore::new(max_connections.div_ceil(4)));
        let recordings = Arc::new(Semaphore::new(2));
        Self { streams, recordings, claims, walks: Arc::new(Turns::new(max_connections)) }
    }
}

/// A queue, and the settings and samples of its site.
pub(crate) struct SiteState {
    pub(crate) title: String,
    pub(crate) source: Box<dyn Source>,
    pub(crate) access: Arc<Access>,
    pub(crate) settings: Arc<Settings>,
    /// True if the site is below a page of all queues.
    pub(crate) is_below: bool,
    pub(crate) samples: Samples,
    /// The start of the sampling, in seconds since 1970. The start identifies the process to the dashboard.
    pub(crate) started: f64,
    /// The summary of each second, as JSON.
    pub(crate) ticks: watch::Sender<Arc<str>>,
    pub(crate) ended: watch::Sender<bool>,
    limits: Limits,
}

impl SiteState {
    /// Starts the site of a queue, and samples the queue each second. `limits` are the limits of the server, if the
    /// site is below a page of all queues.
    pub(crate) fn start(
        source: Box<dyn Source>,
        frame: Frame,
        limits: Option<Limits>,
    ) -> Arc<Self> {
        let Frame { title, access, settings } = frame;
        let title = title.or_else(|| source.name().map(str::to_owned));
        let is_below = limits.is_some();
        let state = Arc::new(Self {
            title: title.unwrap_or_else(|| "requeue".to_owned()),
            source,
            access,
            limits: limits.unwrap_or_else(|| Limits::new(settings.max_connections)),
            settings,
            is_below,
            samples: Samples::default(),
            started: unix_time(),
            ticks: watch::Sender::new(Arc::from("")),
            ended: watch::Sender::new(false),
        });
        // The first sample is taken here, because otherwise the dashboard would be empty for a second.
        state.take_sample();
        tokio::spawn(keep_sampling(Arc::downgrade(&state)));
        state
    }

    /// Ends the site, and notifies its dashboards.
    pub(crate) fn end(self: &Arc<Self>) {
        // Open dashboards show this last sample after the end.
        self.take_sample();
        self.ended.send_replace(true);
    }

    /// Returns the permit for one event stream, or `None` if there are too many streams.
    pub(crate) fn begin_stream(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.limits.streams).try_acquire_owned().ok()
    }

    /// Returns the permit for one claim, or `None` if too many claims wait.
    pub(crate) fn begin_claim(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.limits.claims).try_acquire_owned().ok()
    }

    /// Returns the right to one recording; `None` if there are too many.
    pub(crate) fn begin_recording(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.limits.recordings).try_acquire_owned().ok()
    }

    /// Waits for a turn to search through keys.
    pub(crate) async fn take_turn(&self) -> Result<Turn<'_>, Problem> {
        // The turn is dropped with the request, so that a client that disconnects frees it.
        self.limits
            .walks
            .wait_turn()
            .await
            .ok_or_else(|| Problem::busy("too many requests for keys"))
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
        let (rate, at_rate) = self.source.rate().unzip();
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
            rate,
            at_rate: at_rate.unwrap_or_default(),
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
        // Serialization does not fail, because the keys of all maps are strings.
        .unwrap_or_default()
    }

    /// Takes a sample, and sends it to event streams.
    pub(crate) fn take_sample(self: &Arc<Self>) {
        // User code that shows keys may panic. Then this second has no sample.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let gauges = self.source.read_gauges();
            self.samples.push(Sample::new(&gauges, self.samples.last_minute(&gauges)));
            if self.ticks.receiver_count() > 0 {
                self.ticks.send_replace(self.summary_json().into());
            }
        }));
    }
}

/// Samples the site each second, until the site has ended or no handle is left.
async fn keep_sampling(site: Weak<SiteState>) {
    let mut interval = tokio::time::interval(EVERY);
    // After a suspension, only one sample is taken.
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        // The reference is weak, because the sampling must not keep a site alive after its last handle was dropped.
        let Some(site) = site.upgrade().filter(|site| !site.has_ended()) else { return };
        site.take_sample();
    }
}
