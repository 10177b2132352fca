//! Schedules: the times at which the store adds a key again.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use requeue_core::Shown;

use crate::types::add::Priority;
use crate::types::calendar::{Calendar, Cron};
use crate::types::error::{Failed, UpdateError};
use crate::types::key::Key;

/// The times at which the store adds a key again: see [`Queue::schedule`](crate::Queue::schedule).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use requeue_store::{Priority, Schedule};
///
/// let weekdays = Schedule::cron("0 9 * * MON-FRI", "Europe/Berlin")?;
/// let often = Schedule::every(Duration::from_secs(300)).priority(Priority::Low);
/// # Ok::<(), requeue_store::UpdateError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a schedule does nothing until it is given to a queue"]
pub struct Schedule {
    pub(crate) calendar: Calendar,
    pub(crate) priority: Priority,
    pub(crate) group: Option<Arc<str>>,
}

impl Schedule {
    /// Creates a schedule from a cron expression of five fields and the name of a time zone in the IANA database.
    ///
    /// The fields are minute, hour, day of the month, month and day of the week. If the expression restricts both
    /// fields for days, a day needs to match only one of them. The names from `@hourly` to `@yearly` are also
    /// expressions.
    ///
    /// If a change of the clocks skips a time of day, the schedule uses the first instant after the skipped period. If
    /// the clock shows a time of day twice, the schedule uses it once. With `*` for the hours, the expression means
    /// each hour that passes, so no hour is skipped or repeated.
    ///
    /// The data of time zones comes from the system. If the system has none, as in many containers, the data comes from
    /// this program.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`Invalid`](crate::ErrorKind::Invalid) if the expression is invalid or has no date
    /// within four years, such as the 30th of February, or if the time zone is unknown.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue_store::Schedule;
    ///
    /// let nightly = Schedule::cron("30 2 * * *", "America/New_York")?;
    /// let error = Schedule::cron("0 0 30 2 *", "UTC").expect_err("there is no such date");
    /// assert!(error.to_string().contains("it has no date within four years"));
    /// # Ok::<(), requeue_store::UpdateError>(())
    /// ```
    pub fn cron(expression: &str, zone: &str) -> Result<Self, UpdateError> {
        let cron = Cron::parse(expression, zone);
        let cron = cron.map_err(|why| UpdateError(Failed::invalid(why)))?;
        Ok(Self::new(Calendar::Cron(cron)))
    }

    /// Creates a schedule with one time in each period. The first period begins when the store receives the schedule.
    /// The minimum period is one millisecond.
    pub const fn every(period: Duration) -> Self {
        Self::new(Calendar::Every(period))
    }

    /// Creates a schedule from the texts that [`ScheduleInfo`] shows. They are a cron expression and its time zone, or
    /// `every` and a period. The default time zone is UTC.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`Invalid`](crate::ErrorKind::Invalid) if [`cron`](Self::cron) would refuse the
    /// expression, the period is invalid or shorter than a millisecond, or a period has a time zone.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue_store::Schedule;
    ///
    /// let often = Schedule::parse("every 5m", None)?;
    /// let daily = Schedule::parse("@daily", Some("Europe/Berlin"))?;
    /// # Ok::<(), requeue_store::UpdateError>(())
    /// ```
    pub fn parse(spec: &str, zone: Option<&str>) -> Result<Self, UpdateError> {
        let calendar = Calendar::parse(spec, zone.unwrap_or(Calendar::default_zone(spec)));
        calendar.map(Self::new).map_err(|why| UpdateError(Failed::invalid(why)))
    }

    const fn new(calendar: Calendar) -> Self {
        Self { calendar, priority: Priority::Normal, group: None }
    }

    /// Sets the priority of the adds that the schedule makes.
    pub const fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the group of the adds that the schedule makes, in a queue whose [adds name the
    /// groups](crate::GroupBy::Add).
    pub fn group(mut self, group: impl Into<Arc<str>>) -> Self {
        self.group = Some(group.into());
        self
    }
}

/// A key with its schedule: see [`Queue::schedules`](crate::Queue::schedules).
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ScheduleInfo {
    /// The key that the schedule adds.
    pub key: Key,
    /// The cron expression, or `every` and the period: `every 5m`.
    pub spec: String,
    /// The time zone of the cron expression, or `None` for a period.
    pub zone: Option<String>,
    /// The time until the next add, or zero if the add is overdue. It is `None` if the schedule is paused, or no worker
    /// has computed the next time yet.
    pub next: Option<Duration>,
    /// The time of the next add by the clock of the store, which may differ from the clock of this process.
    pub next_at: Option<SystemTime>,
    /// True if the schedule adds nothing, because it is [paused](crate::Queue::pause_schedule) or a worker has refused
    /// it.
    pub is_paused: bool,
    /// The reason why a worker has refused the schedule. Either the schedule was stored with SQL and is invalid, or the
    /// worker does not know its time zone.
    pub error: Option<String>,
    /// The priority of the adds that the schedule makes.
    pub priority: Priority,
    /// The group of the adds that the schedule makes, or `None` if the queue has no groups.
    pub group: Option<String>,
}

impl ScheduleInfo {
    /// Returns a text with the time of the next add, or with the reason why the schedule adds nothing.
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
    /// queue.pause_schedule("daily").await?;
    /// let info = queue.look_up_schedule("daily").await?.expect("it has a schedule");
    /// assert_eq!(info.explain(), "its schedule is paused");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn explain(&self) -> String {
        match (&self.error, self.next) {
            (Some(why), _) => format!("its schedule was refused: {why}"),
            (None, _) if self.is_paused => "its schedule is paused".to_owned(),
            (None, Some(next)) if next.is_zero() => "its schedule is due".to_owned(),
            (None, Some(next)) => format!("its schedule adds it in {}", Shown(next)),
            (None, None) => {
                "its schedule waits for a worker, which computes its next time".to_owned()
            }
        }
    }
}
