//! The state of a queue that the handles, items and tasks of one process share.

use std::fmt;
use std::sync::{Arc, Mutex};
#[cfg(feature = "prometheus")]
use std::time::Duration;

use requeue::metrics::{Sample, Scrape};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::client::activity::{Recorder, read_activity};
use crate::client::adding::Adding;
use crate::client::batcher::Lanes;
use crate::client::cache::Cache;
use crate::client::finishing::Finishing;
use crate::client::fleet::{self, Fleet};
use crate::client::leases::Leases;
use crate::client::look::{Look, read_look};
use crate::client::options::Options;
use crate::engine::{Ask, Engine, Place, lock};
use crate::types::activity::Activity;
use crate::types::add::{Add, Added};
use crate::types::error::{Answer, EngineError, Failed, ReadError};
use crate::types::group::{Grouping, invalid_name};
use crate::types::inspect::{Entry, StateCounts};
use crate::types::key::Key;

/// The interval between two counts for metrics.
#[cfg(feature = "prometheus")]
const BETWEEN_SCRAPES: Duration = Duration::from_secs(10);

/// A key and its group. The group is `None` if the queue has no groups.
pub(crate) type Member = (Key, Option<Arc<str>>);

pub(crate) struct Shared {
    pub(crate) engine: Arc<dyn Engine>,
    pub(crate) place: Arc<Place>,
    pub(crate) options: Options,
    /// The rule that assigns keys to groups, or `None` if the queue has no groups.
    pub(crate) grouping: Option<Grouping>,
    pub(crate) leases: Arc<Leases>,
    pub(crate) recorder: Arc<Recorder>,
    /// The drop of this guard stops the task of `recorder`.
    _recording: DropGuard,
    pub(crate) adding: Lanes<Adding>,
    pub(crate) finishing: Lanes<Finishing>,
    pub(crate) shutdown: watch::Sender<Shutdown>,
    pub(crate) counts: Arc<Cache<StateCounts>>,
    pub(crate) longest: Arc<Cache<Vec<Entry>>>,
    activity: Arc<Cache<Activity>>,
    look: Arc<Cache<Look>>,
    fleet: Arc<Mutex<Fleet>>,
}

impl Shared {
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        place: Place,
        options: Options,
        grouping: Option<Grouping>,
    ) -> Arc<Self> {
        let place = Arc::new(place);
        let leases = Leases::start_renewing(Arc::clone(&engine), Arc::clone(&place), options.lease);
        let closed = CancellationToken::new();
        let recorder = Recorder::start(
            Arc::clone(&engine),
            Arc::clone(&place),
            Arc::clone(&leases),
            closed.clone(),
        );
        Arc::new(Self {
            recorder,
            _recording: closed.drop_guard(),
            adding: Lanes::new(&engine, &place),
            finishing: Lanes::new(&engine, &place),
            engine,
            place,
            options,
            grouping,
            leases,
            // The channel stores the value even without a receiver. Therefore, a receiver that subscribes later sees
            // the shutdown.
            shutdown: watch::Sender::new(Shutdown::No),
            counts: Cache::new(),
            longest: Cache::new(),
            activity: Cache::new(),
            look: Cache::new(),
            fleet: Arc::default(),
        })
    }

    /// Stops deliveries, unless they are stopped already.
    pub(crate) fn stop_deliveries(&self, why: Shutdown) {
        self.shutdown.send_if_modified(|shutdown| {
            // If deliveries are already stopped, the first reason is kept, because waiting getters have already seen
            // it.
            let is_open = !shutdown.is_final();
            if is_open {
                *shutdown = why;
            }
            is_open
        });
    }

    /// Returns an error if the queue has no groups.
    pub(crate) fn check_groups(&self) -> Result<(), Failed> {
        match self.grouping {
            Some(_) => Ok(()),
            None => Err(Failed::invalid(format!(
                "the queue {:?} has no groups; create a queue with `group_by` or `--group-by`",
                self.place.name
            ))),
        }
    }

    /// Returns an error if the queue has no groups, or the name of the group is invalid.
    pub(crate) fn check_group(&self, name: &str) -> Result<(), Failed> {
        self.check_groups()?;
        invalid_name(name).map_or(Ok(()), |why| Err(Failed::invalid(why)))
    }

    /// Checks a key and its group. Returns them if both are valid. `group` is the group that the add names.
    pub(crate) fn check_key(&self, key: Key, group: Option<&str>) -> Result<Member, Failed> {
        let start = || Key::from(&key[..key.len().min(64)]);
        if key.is_too_long() {
            let (length, most) = (key.len(), Key::MAX_LENGTH);
            return Err(Failed::invalid(format!(
                "\"{}...\": the key has {length} bytes; at most {most} are allowed",
                start()
            )));
        }
        let found = match (&self.grouping, group) {
            (None, None) => Ok(None),
            (None, Some(group)) => Err(format!(
                "the add names the group {group:?}, and the queue {:?} has no groups; omit the group, or create a queue with `group_by` or `--group-by`",
                self.place.name
            )),
            (Some(grouping), group) => grouping.group_of(&key, group).map(Some),
        };
        match found {
            Ok(group) => Ok((key, group)),
            Err(why) => Err(Failed::invalid(format!("{:?}: {why}", start()))),
        }
    }

    /// Adds keys, and returns the answers in the order of the keys.
    pub(crate) async fn add_keys(&self, keys: Vec<Member>, add: Add) -> Answer<Vec<Added>> {
        let Shared { engine, place, adding, options, .. } = self;
        let deadline = Instant::now() + options.add_timeout;
        // Answers arrive in any order. `added` has them in the order of the caller's keys.
        let mut added = vec![None; keys.len()];
        // Engines insert keys faster in sorted order.
        let mut keys: Vec<(Member, usize)> = keys.into_iter().zip(0..).collect();
        keys.sort_unstable();
        let trace = options.current_trace(&add);
        let send = |((key, group), n): (Member, usize)| {
            let (reply, answered) = oneshot::channel();
            let shard = engine.shard_of(place, &key);
            let ask = Ask { group, trace: trace.clone(), ..Ask::new(key, add) };
            adding.put_wish(shard, Adding::new(ask, deadline, reply));
            (n, answered)
        };
        // The function sends all requests before it waits for the first answer, so that they share batches.
        let sent: Vec<_> = keys.into_iter().map(send).collect();
        let (mut failed, mut is_unsure) = (None, false);
        // The function reads all answers, even after a failure, because they show whether some of the keys were added.
        for (n, answered) in sent {
            match timeout_at(deadline, answered).await {
                Ok(Ok(Ok(answer))) => added[n] = Some(answer),
                Ok(Ok(Err(fault))) => {
                    is_unsure |= fault.kind.may_have_happened();
                    failed = Some(fault);
                }
                // A key without an answer may have been added, even if a later failure proves that another key was not
                // added.
                Ok(Err(_)) => {
                    is_unsure = true;
                    failed = Some(EngineError::unsure("the runtime of the queue has stopped"));
                }
                Err(_) => {
                    is_unsure = true;
                    failed = Some(EngineError::late());
                }
            }
        }
        match failed {
            Some(fault) if is_unsure || added.iter().any(Option::is_some) => {
                Err(fault.after_a_part())
            }
            Some(fault) => Err(fault),
            None => Ok(added.into_iter().flatten().collect()),
        }
    }

    /// The future does not keep the queue open.
    pub(crate) fn recent_counts(
        &self,
    ) -> impl Future<Output = Result<StateCounts, ReadError>> + Send + use<> {
        let (engine, place) = (Arc::clone(&self.engine), Arc::clone(&self.place));
        let counts = Arc::clone(&self.counts);
        async move {
            let counted = counts.get_or_query(async move { engine.count_keys(&place).await }).await;
            counted
                .map(|(counts, _)| counts)
                .map_err(|fault| ReadError::from_engine("the keys were not counted", fault))
        }
    }
}

impl Shared {
    /// Reads the activity of all processes in the last hour. The future does not keep the queue open.
    pub(crate) fn recent_activity(
        &self,
    ) -> impl Future<Output = Result<Activity, ReadError>> + Send + use<> {
        let (engine, place) = (Arc::clone(&self.engine), Arc::clone(&self.place));
        let (recorder, fleet) = (Arc::clone(&self.recorder), Arc::clone(&self.fleet));
        let activity = Arc::clone(&self.activity);
        async move {
            let look = async move {
                recorder.record().await;
                let own = recorder.last_written().await;
                let read = read_activity(&*engine, &place, fleet::WINDOW).await?;
                lock(&fleet).note(&read, &own);
                Ok(read)
            };
            let read = activity.get_or_query(look).await;
            read.map(|(read, _)| read)
                .map_err(|fault| ReadError::from_engine("the numbers were not read", fault))
        }
    }
}

impl Shared {
    /// Reads the values that metrics show in addition to counts and activity. The future does not keep the queue open.
    pub(crate) fn recent_look(&self) -> impl Future<Output = Result<(), ReadError>> + Send + use<> {
        let (engine, place) = (Arc::clone(&self.engine), Arc::clone(&self.place));
        let (counts, look) = (Arc::clone(&self.counts), Arc::clone(&self.look));
        let has_groups = self.grouping.is_some();
        async move {
            let keys = counts.last_result().map_or(u64::MAX, |(counts, _)| counts.total());
            let read = async move { read_look(&*engine, &place, has_groups, keys).await };
            let read = look.get_or_query(read).await.map(drop);
            read.map_err(|fault| ReadError::from_engine("the state was not read", fault))
        }
    }
}

impl Scrape for Shared {
    fn scrape(&self) -> Option<Sample> {
        let (counts, age) = self.counts.last_result()?;
        let mut sample = self.place.meters.sample(counts, age, self.leases.run_ages());
        sample.fleet = lock(&self.fleet).total();
        if let Some((look, ago)) = self.look.last_result() {
            look.add_to(&mut sample, ago);
        }
        Some(sample)
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("place", &self.place).finish_non_exhaustive()
    }
}

/// The state of the shutdown of the queue in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Shutdown {
    No,
    WhenIdle,
    Now,
    /// This process has found that the queue was dropped.
    Dropped,
}

impl Shutdown {
    /// Returns true if the process no longer delivers keys.
    pub(crate) const fn is_final(self) -> bool {
        matches!(self, Self::Now | Self::Dropped)
    }
}

/// Counts the keys at regular intervals for the metrics, because a scrape cannot wait for a count. The task stops when
/// the last handle of the queue is dropped.
#[cfg(feature = "prometheus")]
pub(crate) async fn keep_counting(shared: std::sync::Weak<Shared>) {
    let begin = |shared: Arc<Shared>| {
        let (counting, reading) = (shared.recent_counts(), shared.recent_activity());
        let looking = shared.recent_look();
        let all = async move {
            let read = [counting.await.map(drop), reading.await.map(drop), looking.await];
            read.into_iter().collect::<Result<(), _>>()
        };
        (Arc::clone(&shared.place), all)
    };
    while let Some((place, counting)) = shared.upgrade().map(begin) {
        if let Err(error) = counting.await {
            // Other calls on the queue report an outage, so this message has only the level `debug`.
            let error = crate::types::error::chain(&error);
            tracing::debug!(queue = place.name, error, "the metrics were not updated");
        }
        tokio::time::sleep(BETWEEN_SCRAPES).await;
    }
}
