//! Reads of a queue: the numbers of keys, single keys, and pages of keys.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use requeue::metrics::{Sample, Scrape};

use crate::api::queue::Queue;
use crate::client::activity::read_activity;
use crate::client::shared::Shared;
use crate::engine::{Cursor, SORTED_KEYS, activity};
use crate::types::activity::Activity;
use crate::types::error::{Failed, ReadError};
use crate::types::inspect::{Attempt, Entry, Part, Standing, State, StateCounts};
use crate::types::key::Key;
use crate::types::rate::{Rate, Throttle};
#[cfg(doc)]
use crate::types::schedule::ScheduleInfo;

/// The maximum number of keys in flight that one read returns. The longest runs are selected from these keys.
const RUNNING: usize = 256;
/// The time for which the store keeps the activity of a minute.
const KEPT: Duration = Duration::from_secs(60 * activity::KEPT.unsigned_abs());
/// The maximum number of keys in flight that an explanation names.
const EXPLAINED: usize = 10;

impl Queue {
    /// Counts the keys in each state. The call reads all keys of the queue.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or the queue was dropped.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped: the call changes nothing.
    pub async fn counts(&self) -> Result<StateCounts, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let counted = engine.count_keys(place).await;
        counted.map_err(|fault| ReadError::from_engine("the keys were not counted", fault))
    }

    /// Returns the entry of a key. Returns `None` if the key has no state, for example because it was never added, or
    /// because its last run succeeded.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or the queue was dropped.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped: the call changes nothing.
    pub async fn look_up(&self, key: impl Into<Key>) -> Result<Option<Entry>, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let mut found = match engine.look_up(place, &key.into()).await {
            Ok(found) => Vec::from_iter(found),
            Err(fault) => return Err(ReadError::from_engine("the key was not looked up", fault)),
        };
        self.note_pause(&mut found).await?;
        Ok(found.pop())
    }

    /// Returns up to three of the last consecutive failures of a key, the newest first.
    ///
    /// When a worker completes a failed run, the store also records the run as an attempt. When the failures of a key
    /// are reset, or the key leaves the queue, the store removes the key's attempts. The store keeps about the last
    /// 10,000 attempts of each queue; in Redis, of each shard.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or the queue was dropped.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped: the call changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// let queue = store.queue("mail").worker("host-1").open().await?;
    /// queue.add("alice").await?;
    /// let mut item = queue.get().await.expect("the queue is open");
    /// item.set_exit_status(7);
    /// item.set_output("smtp: no route to host");
    /// item.give_up("exit status 7").await?;
    /// let attempts = queue.attempts("alice").await?;
    /// assert_eq!((attempts[0].exit_status, attempts[0].worker.as_deref()), (Some(7), Some("host-1")));
    /// assert_eq!(attempts[0].output.as_deref(), Some("smtp: no route to host"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn attempts(&self, key: impl Into<Key>) -> Result<Vec<Attempt>, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let read = engine.read_attempts(place, &key.into()).await;
        read.map_err(|fault| ReadError::from_engine("the attempts were not read", fault))
    }

    /// Returns true if the queue is [paused](Self::pause).
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or the queue was dropped.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped: the call changes nothing.
    pub async fn is_paused(&self) -> Result<bool, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let is_paused = engine.is_paused(place).await;
        is_paused
            .map_err(|fault| ReadError::from_engine("the state of the queue was not read", fault))
    }

    /// Returns the [rate](crate::OpenOptions::rate) of all starts of the queue, or `None` if the queue has no rate.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or the queue was dropped.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped: the call changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// let queue = store.queue("mail").rate("10/s".parse()?).open().await?;
    /// assert_eq!(queue.rate().await?, Some("10/s".parse()?));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn rate(&self) -> Result<Option<Rate>, ReadError> {
        Ok(self.read_rate().await?.map(|throttle| throttle.rate))
    }

    /// Returns the rate of the queue, and the time until it permits the next start. The time is zero if the rate permits
    /// a start now.
    #[doc(hidden)] // For `requeue-http`.
    pub async fn rate_and_next_start(&self) -> Result<Option<(Rate, Duration)>, ReadError> {
        Ok(self.read_rate().await?.map(|Throttle { rate, next_start }| (rate, next_start)))
    }

    async fn read_rate(&self) -> Result<Option<Throttle>, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let throttle = engine.read_rate(place).await;
        throttle.map_err(|fault| ReadError::from_engine("the rate was not read", fault))
    }

    async fn note_pause(&self, entries: &mut [Entry]) -> Result<(), ReadError> {
        let is_ready = |entry: &Entry| entry.state == State::Ready;
        // A pause affects ready keys only, so most reads need no second request.
        if entries.iter().any(is_ready) && self.is_paused().await? {
            entries.iter_mut().for_each(|entry| entry.paused = is_ready(entry));
        }
        Ok(())
    }

    /// Returns a page of up to `limit` keys in `state`, or in any state with `None`. The keys are sorted by their
    /// bytes. The page begins after the key `after`.
    ///
    /// To walk over all pages, pass the last key of each page as `after` for the next page. The walk returns a key
    /// exactly once if the key is in the state throughout the walk.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or the queue was dropped.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped: the call changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// use requeue_store::State;
    ///
    /// let queue = store.queue("mail").open().await?;
    /// queue.add_all(["alice", "bob", "carol"]).await?;
    /// let page = queue.snapshot(State::Ready, None, 2).await?;
    /// let rest = queue.snapshot(State::Ready, page.last().map(|entry| &entry.key), 2).await?;
    /// assert_eq!((page.len(), rest[0].key.as_str()), (2, Some("carol")));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn snapshot(
        &self,
        state: impl Into<Option<State>>,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<Entry>, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let page = engine.read_page(place, state.into(), after, limit).await;
        let mut page =
            page.map_err(|fault| ReadError::from_engine("the keys were not listed", fault))?;
        self.note_pause(&mut page).await?;
        Ok(page)
    }

    /// Returns the next part of a walk over the keys in `state`. The walk begins if `from` is `None`, and otherwise
    /// continues at `from`. The walk returns a key at least once if the key is in the state throughout the walk.
    ///
    /// A large queue on Redis does not keep its keys in order, so the walk scans them. Each part of the scan has about
    /// 500 keys, and takes equally long at each position. In other queues, the keys are in order, and a part has up to
    /// `limit` keys.
    ///
    /// # Errors
    ///
    /// Returns an error if `from` is not [a position](Part::is_position), the store cannot be reached, or the queue was
    /// dropped.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped: the call changes nothing.
    #[doc(hidden)] // Only `requeue-http` needs this item.
    pub async fn walk_entries(
        &self,
        state: Option<State>,
        from: Option<&[u8]>,
        limit: usize,
    ) -> Result<Part, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let (after, place_in_scan) = match from {
            None => (None, None),
            Some(from) => (Part::key_before(from), Part::place_in_scan(from)),
        };
        let scans = match from {
            // In these states, engines store the keys in order, or the sets of keys are small.
            None if matches!(state, Some(State::InFlight | State::Parked)) => false,
            None => engine.scans() && self.recent_counts().await?.total() > SORTED_KEYS,
            Some(_) => place_in_scan.is_some() && engine.scans(),
        };
        if !scans {
            if from.is_some() && after.is_none() {
                return Err(ReadError(Failed::invalid("not a position of a walk")));
            }
            let page = self.snapshot(state, after.as_ref(), limit).await?;
            return Ok(Part::of_page(page, limit));
        }
        let from = place_in_scan.map(|(shard, at)| Cursor { shard, at });
        let scanned = engine.scan_entries(place, state, from).await;
        let (mut entries, next) =
            scanned.map_err(|fault| ReadError::from_engine("the keys were not listed", fault))?;
        self.note_pause(&mut entries).await?;
        Ok(Part::of_scan(entries, next.map(|next| (next.shard, next.at))))
    }

    /// Returns one line of text that explains the state of a key: see [`Entry::explain`]. If a ready key is held back
    /// by a rate, or by the limit or a pause of its group, the text names the reason. If the reason is a rate, the text
    /// has the time until the next start. If the reason is a limit, the text has up to ten keys of the group in flight,
    /// and their workers. If the key has a schedule, the text contains the time of the next add by the schedule: see
    /// [`ScheduleInfo::explain`].
    ///
    /// If the key is ready and has a group, the engine reads all keys of the group.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or the queue was dropped.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped: the call changes nothing.
    pub async fn explain(&self, key: impl Into<Key>) -> Result<String, ReadError> {
        let key = key.into();
        let mut text = match self.look_up(&key).await? {
            Some(entry) => self.explain_entry(&entry).await?,
            None => format!("{key}: not in the queue"),
        };
        if let Some(schedule) = self.look_up_schedule(key).await? {
            text.push_str("; ");
            text.push_str(&schedule.explain());
        }
        Ok(text)
    }

    /// Explains an entry of this queue, as [`explain`](Self::explain) does, without its schedule.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`explain`](Self::explain).
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped: the call changes nothing.
    #[doc(hidden)] // Only `requeue-cli` shows the times of the entry.
    pub async fn explain_entry(&self, entry: &Entry) -> Result<String, ReadError> {
        let standing = match entry.state == State::Ready && !entry.paused {
            true => self.read_standing(entry.group.as_deref()).await?,
            false => None,
        };
        Ok(entry.explain_in_group(standing.as_ref()))
    }

    /// Returns the reason why the ready keys of a group are held back. If the reason is the limit, the result also has
    /// the first keys of the group in flight. Returns `None` in two cases: the queue has no groups and no rate holds
    /// its keys back, or the group no longer has keys.
    async fn read_standing(&self, group: Option<&str>) -> Result<Option<Standing>, ReadError> {
        let of_queue = self.read_rate().await?.filter(Throttle::permits_none);
        let Some(group) = group else { return Ok(of_queue.map(Standing::AtRate)) };
        let Some(info) = self.group(group).info().await? else { return Ok(None) };
        if info.is_paused {
            return Ok(Some(Standing::Paused));
        }
        let in_flight = info.counts.in_flight;
        let Some(limit) = info.limit.filter(|&limit| in_flight >= limit.into()) else {
            let of_group = info.rate.zip(info.next_start);
            let of_group = of_group.map(|(rate, next_start)| Throttle { rate, next_start });
            let of_group = of_group.filter(Throttle::permits_none);
            return Ok(Some(match (of_group, of_queue) {
                (None, None) => Standing::Eligible { limit: info.limit, in_flight },
                (Some(of_group), Some(of_queue)) if of_group.next_start < of_queue.next_start => {
                    Standing::AtRate(of_queue)
                }
                (Some(of_group), _) => Standing::AtGroupRate(of_group),
                (None, Some(of_queue)) => Standing::AtRate(of_queue),
            }));
        };
        let (mut first, mut after) = (Vec::new(), None);
        let most = usize::try_from(in_flight).unwrap_or(EXPLAINED).min(EXPLAINED);
        loop {
            let page = self.snapshot(State::InFlight, after.as_ref(), RUNNING).await?;
            after = page.last().filter(|_| page.len() >= RUNNING).map(|entry| entry.key.clone());
            let of_group = page.into_iter().filter(|entry| entry.group.as_deref() == Some(group));
            first.extend(of_group.take(most - first.len()));
            if after.is_none() || first.len() == most {
                return Ok(Some(Standing::AtLimit { limit, in_flight, first }));
            }
        }
    }

    /// Returns the activity of the queue in the last `since`, for each minute and over all processes. Also returns the
    /// workers that are alive. `since` is at most 7 days, because the store removes older numbers.
    ///
    /// - Every process writes its numbers about every 5 seconds, when it [settles](Self::settled), and when it drops
    ///   its last handle of the queue. A process that is killed loses the numbers since its last write. This call first
    ///   writes the numbers of this process.
    /// - The store counts an event in the minute in which its process writes it, or in the minute before, by the
    ///   engine's clock.
    /// - About every 10 seconds, a worker records that it is alive. It counts as alive until 30 seconds after its last
    ///   record.
    /// - Adds made in SQL, and the work of processes of earlier versions, are not counted.
    ///
    /// # Errors
    ///
    /// Returns an error if `since` exceeds 7 days, the store cannot be reached, or the queue was dropped.
    ///
    /// Returns an error if `since` exceeds 7 days, the store cannot be reached, or the queue was dropped.
    ///
    /// If the future is dropped, the numbers of this process may be written later.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// let queue = store.queue("mail").worker("mailer").open().await?;
    /// queue.add_all(["alice", "bob"]).await?;
    /// queue.get().await.expect("the queue is open").succeed().await?;
    ///
    /// let hour = queue.activity(Duration::from_secs(3600)).await?;
    /// let total = hour.total();
    /// assert_eq!((total.adds, total.starts, total.successes), (2, 1, 1));
    /// assert_eq!(hour.workers[0].name, "mailer");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn activity(&self, since: Duration) -> Result<Activity, ReadError> {
        if since > KEPT {
            return Err(ReadError(Failed::invalid(format!(
                "a time of {since:?} is too long: a store keeps the numbers of 7 days"
            ))));
        }
        self.shared.recorder.record().await;
        let Shared { engine, place, .. } = &*self.shared;
        let read = read_activity(&**engine, place, since).await;
        read.map_err(|fault| ReadError::from_engine("the numbers were not read", fault))
    }

    /// Returns the [`activity`](Self::activity) of the last hour from a cache. Times in the result are relative to the
    /// last read of the store. The call reads the store as often as [`recent_counts`](Self::recent_counts) does. After
    /// this call, [`sample`](Self::sample) includes the work of all processes.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`recent_counts`](Self::recent_counts).
    ///
    /// # Cancel safety
    ///
    /// The behaviour is the same as that of [`recent_counts`](Self::recent_counts).
    #[doc(hidden)] // Only `requeue-http` needs this item.
    pub async fn recent_activity(&self) -> Result<Activity, ReadError> {
        self.shared.recent_activity().await
    }

    /// Returns recent [counts](Self::counts) from a cache. The engine counts again after an interval. The interval
    /// depends on the shorter of the last two counts, so that one slow answer of the store does not cause a long
    /// interval:
    ///
    /// - If the shorter count took up to 0.6 s, the interval is fifty times as long as the count, and at least 1 s.
    /// - If it took up to 7.5 s, the interval is 30 s.
    /// - If it took longer, the interval is four times as long as the count.
    ///
    /// Therefore, counts of similar durations use at most a fifth of the engine's time, for any number of callers. If
    /// each count takes up to 0.6 s, they use at most a fiftieth. Counts with very different durations, and counts that
    /// reach their time limit, can use more of the engine's time.
    ///
    /// A caller that arrives during a count waits for its result. [`sample`](Self::sample) returns the last counts and
    /// their age without waiting.
    ///
    /// # Errors
    ///
    /// Returns an error if this count, or the last count, failed. A count fails if it takes over a minute. After a
    /// failure, the next count begins after 1 s to 10 s. If several consecutive counts take too long, the intervals are
    /// one minute, two minutes and then four minutes. On SQLite, a count that takes too long still runs to its end.
    ///
    /// # Cancel safety
    ///
    /// A count continues even if its callers are dropped.
    #[doc(hidden)] // Only `requeue-http` needs this item.
    pub async fn recent_counts(&self) -> Result<StateCounts, ReadError> {
        self.shared.recent_counts().await
    }

    /// Reads whether the queue is paused, and which ready keys their groups hold back, as often as
    /// [`recent_counts`](Self::recent_counts) counts. After this call, [`sample`](Self::sample) includes these values.
    ///
    /// # Errors
    ///
    /// As [`recent_counts`](Self::recent_counts).
    ///
    /// # Cancel safety
    ///
    /// As [`recent_counts`](Self::recent_counts).
    #[doc(hidden)] // For `requeue-http`.
    pub async fn recent_look(&self) -> Result<(), ReadError> {
        self.shared.recent_look().await
    }

    /// Returns recent entries of the keys in flight, the longest runs first. The call reads the store as often as
    /// [`recent_counts`](Self::recent_counts) does. The durations in an entry are adjusted to the time of this call.
    ///
    /// If more than 256 keys are in flight, the call selects the runs from the first 256 keys, sorted by their bytes.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`recent_counts`](Self::recent_counts).
    ///
    /// # Cancel safety
    ///
    /// The behaviour is the same as that of [`recent_counts`](Self::recent_counts).
    #[doc(hidden)] // Only `requeue-http` needs this item.
    pub async fn recent_longest(&self) -> Result<Vec<Entry>, ReadError> {
        let Shared { engine, place, longest, .. } = &*self.shared;
        let (engine, place) = (Arc::clone(engine), Arc::clone(place));
        // If the caller is dropped, the query continues. Therefore, the future owns its handles.
        let look = async move {
            let running = engine.read_page(&place, Some(State::InFlight), None, RUNNING);
            let mut running = running.await?;
            running.sort_by_key(|entry| Reverse(entry.since));
            Ok(running)
        };
        let longest = longest.get_or_query(look).await;
        let (mut longest, age) =
            longest.map_err(|fault| ReadError::from_engine("the keys were not listed", fault))?;
        for Entry { since, due, bound, lease, .. } in &mut longest {
            *since = since.map(|since| since.saturating_add(age));
            for until in [due, bound, lease] {
                *until = until.map(|until| until.saturating_sub(age));
            }
        }
        Ok(longest)
    }

    /// Returns the values of the queue's metrics. Returns `None` before the first call of
    /// [`recent_counts`](Self::recent_counts).
    ///
    /// The numbers of keys include all processes. They are from the last `recent_counts`, and `counts_age` is their
    /// age. The other values describe this process:
    ///
    /// - A completion is counted when the worker sends it, even if the store refuses it. As in the store, a success
    ///   after the expiry of the lease is counted as a failure. A run whose worker was killed is not counted.
    /// - Adds are counted in this process, including delayed adds.
    /// - `enqueued` is the number of adds that gave a key its pending run. A delayed add is counted immediately. A
    ///   retry or a requeue is not counted, because another process may deliver the key. In contrast, a queue in memory
    ///   counts a key when it becomes ready.
    /// - `given_up` is the number of keys that failed for the last time in this process, because they were given up or
    ///   reached the limit of failures. If such a key was added during its last run, it is not parked. It runs again,
    ///   and its failures are reset. `given_up` also includes the keys that claims of this process have parked.
    ///
    /// # Examples
    ///
    /// ```
    /// # use requeue_store::Store;
    /// # let dir = tempfile::tempdir()?;
    /// # let url = format!("sqlite:{}", dir.path().join("queues.db").display());
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// # let store = Store::connect(&url).await?;
    /// # store.migrate().await?;
    /// let queue = store.queue("mail").open().await?;
    /// queue.add_all(["alice", "bob"]).await?;
    /// assert_eq!(queue.sample(), None);
    /// queue.recent_counts().await?;
    /// assert_eq!(queue.sample().map(|sample| sample.depth), Some(2));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[doc(hidden)] // Only `requeue-http` needs this item.
    #[must_use]
    pub fn sample(&self) -> Option<Sample> {
        self.shared.scrape()
    }
}
