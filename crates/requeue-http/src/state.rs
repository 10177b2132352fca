//! The state of a site, which the handlers of its routes share.

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

/// The time between two samples of the queue.
const EVERY: Duration = Duration::from_secs(1);

/// The number of workers of a program, and a function that returns the number of busy workers.
pub(crate) struct Jobs {
    pub(crate) total: usize,
    pub(crate) busy: Box<dyn Fn() -> usize + Send + Sync>,
}

/// The settings of a site that apply to any queue.
pub(crate) struct Settings {
    pub(crate) jobs: Option<Jobs>,
    /// The example of an add that a dashboard without keys shows.
    pub(crate) hint: Option<String>,
    /// The longest time for which a key should wait for a worker after it has become ready.
    pub(crate) target: Option<Duration>,
    pub(crate) sections: Vec<MakeSection>,
    pub(crate) registry: Option<Arc<Registry>>,
    pub(crate) ready: Box<dyn Fn() -> bool + Send + Sync>,
    pub(crate) healthy: Box<dyn Fn() -> bool + Send + Sync>,
    pub(crate) hosts: Hosts,
    pub(crate) max_connections: usize,
}

/// The title, the tokens and the settings of a site.
#[derive(Clone)]
pub(crate) struct Frame {
    /// The title, or `None` if the title is the name of the queue.
    pub(crate) title: Option<String>,
    pub(crate) access: Arc<Access>,
    pub(crate) settings: Arc<Settings>,
}

/// The limits on expensive requests to a server. If the server shows several queues, their sites
/// share these limits.
#[derive(Clone)]
pub(crate) struct Limits {
    /// One permit for each open stream of `/api/v1/events`.
    streams: Arc<Semaphore>,
    /// One permit for each response that contains a recording.
    recordings: Arc<Semaphore>,
    /// One permit for each claim. A claim may occupy its connection while it waits for keys.
    claims: Arc<Semaphore>,
    walks: Arc<Turns>,
}

impl Limits {
    pub(crate) fn new(max_connections: usize) -> Self {
        // Streams can take half of the connections, and claims a quarter. The remaining quarter
        // is for searches and short requests.
        let streams = Arc::new(Semaphore::new(max_connections.div_ceil(2)));
        let claims = Arc::new(Semaphore::new(max_connections.div_ceil(4)));
        let recordings = Arc::new(Semaphore::new(2));
        Self { streams, recordings, claims, walks: Arc::new(Turns::new(max_connections)) }
    }
}

/// The state of the site of one queue: the queue, the settings and the samples.
pub(crate) struct SiteState {
    pub(crate) title: String,
    pub(crate) source: Box<dyn Source>,
    pub(crate) access: Arc<Access>,
    pub(crate) settings: Arc<Settings>,
    /// True if the server shows all queues of a store, and this site is below the page with
    /// their table.
    pub(crate) is_below: bool,
    pub(crate) samples: Samples,
    /// The time at which the sampling started, in seconds since 1970. The dashboard recognizes a
    /// restart of the process by this time.
    pub(crate) started: f64,
    /// Sends the summary of each second, as JSON, to the event streams.
    pub(crate) ticks: watch::Sender<Arc<str>>,
    pub(crate) ended: watch::Sender<bool>,
    limits: Limits,
}

impl SiteState {
    /// Starts the site of a queue, and a task that samples the queue each second. If the server
    /// shows all queues of a store, `limits` are the limits of the server.
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
        // The first sample is taken immediately, because the dashboard would otherwise be empty
        // for a second.
        state.take_sample();
        tokio::spawn(keep_sampling(Arc::downgrade(&state)));
        state
    }

    /// Shuts the site down, and notifies the open dashboards.
    pub(crate) fn end(self: &Arc<Self>) {
        // Open dashboards continue to show this last sample.
        self.take_sample();
        self.ended.send_replace(true);
    }

    /// Returns the permit for one event stream, or `None` if too many streams are open.
    pub(crate) fn begin_stream(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.limits.streams).try_acquire_owned().ok()
    }

    /// Returns the permit for one claim, or `None` if too many claims are waiting.
    pub(crate) fn begin_claim(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.limits.claims).try_acquire_owned().ok()
    }

    /// Returns the permit for one recording, or `None` if too many recordings are being sent.
    pub(crate) fn begin_recording(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.limits.recordings).try_acquire_owned().ok()
    }

    /// Waits until the request may search through keys.
    pub(crate) async fn take_turn(&self) -> Result<Turn<'_>, Problem> {
        // The turn is part of the request's future. If the client disconnects, the future is
        // dropped, which frees the turn.
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

    /// Takes a sample of the queue, and sends the summary to event streams.
    pub(crate) fn take_sample(self: &Arc<Self>) {
        // The functions of the user that show keys may panic. In this case, the sample of this
        // second is missing.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let gauges = self.source.read_gauges();
            self.samples.push(Sample::new(&gauges, self.samples.last_minute(&gauges)));
            if self.ticks.receiver_count() > 0 {
                self.ticks.send_replace(self.summary_json().into());
            }
        }));
    }
}

/// Samples the site each second, until it is shut down or its last handle is dropped.
async fn keep_sampling(site: Weak<SiteState>) {
    let mut interval = tokio::time::interval(EVERY);
    // If the machine was suspended, the missed samples are not repeated.
    interval.set_missed_tick_behavior(MissedTickBehavior::Skip);
    loop {
        interval.tick().await;
        // The task holds a weak reference between samples, so that it does not keep the site
        // alive.
        let Some(site) = site.upgrade().filter(|site| !site.has_ended()) else { return };
        site.take_sample();
    }
}
