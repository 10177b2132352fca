//! Operations on the schedules of a queue.

use crate::api::queue::Queue;
use crate::client::schedules::fire;
use crate::client::shared::Shared;
use crate::engine::schedules::{Agenda, Scheduled};
use crate::types::calendar::Calendar;
use crate::types::error::{Failed, ReadError, UpdateError};
use crate::types::key::Key;
use crate::types::schedule::{Schedule, ScheduleInfo};

impl Queue {
    /// Stores a schedule for a key. The schedule adds the key again at each of its times.
    ///
    /// A key has at most one schedule, so this call replaces an earlier schedule. If the expression and the time zone,
    /// or the period, are the same as before, the times of the schedule do not change. Therefore, a program can repeat
    /// this call at each start. A schedule that was paused stays paused.
    ///
    /// At each time, one of the processes that claim keys of the queue adds the key. If the key is still ready or
    /// waiting at that time, the add is coalesced, and the key runs once. If several times pass while no process claims
    /// keys, the key is added once. The clock of the store determines the times.
    ///
    /// # Errors
    ///
    /// Returns an error if the period is shorter than a millisecond, an add of the key would be
    /// [invalid](crate::ErrorKind::Invalid), the store cannot be reached, or the queue was dropped.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the schedule may have been stored. Repeating the call is harmless.
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
    /// let queue = store.queue("reports").open().await?;
    /// use std::time::Duration;
    ///
    /// use requeue_store::Schedule;
    ///
    /// queue.schedule("daily", Schedule::cron("0 9 * * MON-FRI", "Europe/Berlin")?).await?;
    /// queue.schedule("pulse", Schedule::every(Duration::from_millis(10))).await?;
    /// let item = queue.get().await.expect("the queue is open");
    /// assert_eq!(item.as_str(), Some("pulse"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn schedule(
        &self,
        key: impl Into<Key>,
        schedule: Schedule,
    ) -> Result<(), UpdateError> {
        let Schedule { calendar, priority, group } = schedule;
        let (key, group) =
            self.shared.check_key(key.into(), group.as_deref()).map_err(UpdateError)?;
        if let Calendar::Every(period) = calendar {
            Calendar::every(period).map_err(|why| UpdateError(Failed::invalid(why)))?;
        }
        let (spec, zone) = calendar.to_texts();
        let (is_new, is_paused, next_at, error) = (true, false, 0, None);
        let schedule =
            Scheduled { key, spec, zone, priority, group, next_at, is_new, is_paused, error };
        let Shared { engine, place, .. } = &*self.shared;
        let stored = async {
            let Agenda { now, schedules } = engine.put_schedule(place, schedule).await?;
            for stored in schedules {
                if stored.is_new && stored.due_at().is_some() {
                    // If this step fails, or the process stops before it, another process computes the next time.
                    let _ = fire(&self.shared, &stored, now).await;
                }
            }
            Ok(())
        };
        stored.await.map_err(|fault| UpdateError::from_engine("the schedule was not stored", fault))
    }

    /// Returns a page of up to `limit` schedules, sorted by the bytes of their keys. The page begins after the key
    /// `after`.
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
    /// let queue = store.queue("reports").open().await?;
    /// use requeue_store::Schedule;
    ///
    /// queue.schedule("daily", Schedule::cron("@daily", "UTC")?).await?;
    /// let schedules = queue.schedules(None, 100).await?;
    /// assert_eq!((&*schedules[0].spec, schedules[0].zone.as_deref()), ("@daily", Some("UTC")));
    /// assert!(schedules[0].next.is_some_and(|next| next.as_secs() <= 86_400));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn schedules(
        &self,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<Vec<ScheduleInfo>, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let listed = engine.list_schedules(place, after, limit).await;
        let agendas = listed
            .map_err(|fault| ReadError::from_engine("the schedules were not listed", fault))?;
        let infos = agendas.into_iter().flat_map(|Agenda { now, schedules }| {
            schedules.into_iter().map(move |schedule| schedule.into_info(now))
        });
        let mut infos: Vec<_> = infos.collect();
        infos.sort_unstable_by(|one, other| one.key.cmp(&other.key));
        infos.truncate(limit);
        Ok(infos)
    }

    /// Returns the schedule of a key, or `None` if the key has no schedule.
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
    /// let queue = store.queue("reports").open().await?;
    /// use requeue_store::Schedule;
    ///
    /// queue.schedule("daily", Schedule::cron("@daily", "UTC")?).await?;
    /// assert!(queue.look_up_schedule("daily").await?.is_some_and(|info| info.spec == "@daily"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn look_up_schedule(
        &self,
        key: impl Into<Key>,
    ) -> Result<Option<ScheduleInfo>, ReadError> {
        let Shared { engine, place, .. } = &*self.shared;
        let found = engine.look_up_schedule(place, &key.into()).await;
        let Agenda { now, mut schedules } = found
            .map_err(|fault| ReadError::from_engine("the schedule was not looked up", fault))?;
        Ok(schedules.pop().map(|schedule| schedule.into_info(now)))
    }

    /// Removes the schedule of a key. Returns false if the key has no schedule. The key itself and its runs are not
    /// affected.
    ///
    /// # Errors
    ///
    /// Returns an error if the store cannot be reached, or the queue was dropped.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the schedule may have been removed. Repeating the call is harmless.
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
    /// let queue = store.queue("reports").open().await?;
    /// use requeue_store::Schedule;
    ///
    /// queue.schedule("daily", Schedule::cron("@daily", "UTC")?).await?;
    /// assert!(queue.unschedule("daily").await?);
    /// assert!(!queue.unschedule("daily").await?);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn unschedule(&self, key: impl Into<Key>) -> Result<bool, UpdateError> {
        let Shared { engine, place, .. } = &*self.shared;
        let removed = engine.remove_schedule(place, &key.into()).await;
        removed.map_err(|fault| UpdateError::from_engine("the schedule was not removed", fault))
    }

    /// Pauses the schedule of a key: the schedule adds nothing until the caller [resumes](Self::resume_schedule) it.
    /// Returns false if the key has no schedule.
    ///
    /// The store keeps the pause, even if this process stops.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`unschedule`](Self::unschedule).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the schedule may have been paused. Repeating the call is harmless.
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
    /// let queue = store.queue("reports").open().await?;
    /// use requeue_store::Schedule;
    ///
    /// queue.schedule("daily", Schedule::cron("@daily", "UTC")?).await?;
    /// assert!(queue.pause_schedule("daily").await?);
    /// assert!(queue.schedules(None, 1).await?[0].is_paused);
    /// queue.resume_schedule("daily").await?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub async fn pause_schedule(&self, key: impl Into<Key>) -> Result<bool, UpdateError> {
        let Shared { engine, place, .. } = &*self.shared;
        let paused = engine.pause_schedule(place, &key.into(), true).await;
        paused.map_err(|fault| UpdateError::from_engine("the schedule was not paused", fault))
    }

    /// Ends a [pause](Self::pause_schedule). The schedule skips the times that have passed during the pause. Returns
    /// false if the key has no schedule. If a process had refused the schedule, the next time is computed again.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`unschedule`](Self::unschedule).
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the schedule may have been resumed. Repeating the call is harmless.
    pub async fn resume_schedule(&self, key: impl Into<Key>) -> Result<bool, UpdateError> {
        let Shared { engine, place, .. } = &*self.shared;
        let resumed = engine.pause_schedule(place, &key.into(), false).await;
        resumed.map_err(|fault| UpdateError::from_engine("the schedule was not resumed", fault))
    }
}
