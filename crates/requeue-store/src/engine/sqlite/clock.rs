//! Computes the time of a store file. This time is the same for all processes, even if the machine's clock is changed.
//!
//! The time of a file advances with the uptime of the machine, which no one can set. Only the first process after a
//! start of the machine reads the machine's clock. The time of a file never goes back.

use std::sync::Arc;
use std::time::SystemTime;

use rusqlite::{Connection, OptionalExtension, Result, params};

use crate::engine::time::Micros;

/// A restart of the machine can lose this much time, in microseconds. The time is stored again only after this
/// interval.
const FORGOTTEN: Micros = 1_000_000;

/// The maximum time, in microseconds, by which a file's time may be ahead of the machine's clock: 100 years. A file can
/// be ahead by decades if the machine's clock was wrong when the machine started.
const AHEAD: Micros = 100 * 365 * 24 * 3_600_000_000;

/// The maximum time, in microseconds, by which a reading may be behind the latest stored time, within one start of the
/// machine: a minute. A process may be suspended between its reading of the clock and its transaction.
const BEHIND: Micros = 60_000_000;

/// The time of the machine, from several sources.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Reading {
    /// Identifies the last start of the machine.
    pub(super) start: Arc<str>,
    /// The uptime of the machine, which does not depend on its clock.
    pub(super) running: Micros,
    /// The time of the machine's clock, which a user can set.
    pub(super) clock: Micros,
}

pub(super) type Clock = Arc<dyn Fn() -> Reading + Send + Sync>;

/// Returns a function that reads the sources of this machine. If the uptime is not available, the clock is read in its
/// place.
pub(super) fn of_machine() -> Clock {
    let start = boot_id();
    Arc::new(move || {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let clock = Micros::try_from(since.as_micros()).unwrap_or(Micros::MAX);
        let running = if start.is_empty() { clock } else { uptime_micros() };
        Reading { start: Arc::clone(&start), running, clock }
    })
}

#[cfg(target_os = "linux")]
fn boot_id() -> Arc<str> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().into()
}

#[cfg(target_os = "linux")]
fn uptime_micros() -> Micros {
    use rustix::time::{ClockId, clock_gettime};

    // `CLOCK_BOOTTIME` also advances while the machine is suspended.
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_nsec / 1000)
}

#[cfg(not(target_os = "linux"))]
fn boot_id() -> Arc<str> {
    "".into()
}

#[cfg(not(target_os = "linux"))]
fn uptime_micros() -> Micros {
    0
}

/// The state from which the time of a store file is computed.
#[derive(Clone, Debug, Default)]
pub(super) struct Time {
    start: String,
    /// The file's time at the last start of the machine.
    began: Micros,
    /// The latest stored time. The file's time was never much later.
    latest: Micros,
    /// True if the state in the file is implausible, and this state replaces it.
    is_replaced: bool,
}

impl Time {
    /// Reads the state. The caller has begun a transaction.
    ///
    /// An implausible state is ignored, and [`keep_time`](Self::keep_time) then replaces it. Otherwise, all leases
    /// could seem to have expired.
    pub(super) fn read(connection: &Connection, reading: &Reading) -> Result<Self> {
        let mut kept = connection.prepare_cached("select start, began, latest from clock")?;
        let kept = kept.query_row([], |row| {
            let (start, began, latest) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok(Self { start, began, latest, is_replaced: false })
        });
        let kept: Self = kept.optional()?.unwrap_or_default();
        let ignored = Self { is_replaced: true, ..Self::default() };
        if kept.now(reading) > reading.clock.saturating_add(AHEAD) {
            return Ok(ignored);
        }
        // With a greater value, the time would stand still until the machine's clock has reached that value.
        let latest = kept.latest.max(0);
        let is_known = *kept.start == *reading.start;
        let since = kept.began.saturating_add(reading.running);
        if is_known && since < latest.saturating_sub(BEHIND) {
            return Ok(Self { latest, ..ignored });
        }
        Ok(kept)
    }

    pub(super) fn now(&self, reading: &Reading) -> Micros {
        let now = match *self.start == *reading.start {
            true => self.began.saturating_add(reading.running),
            false => reading.clock,
        };
        // The time never goes back, even if the clock was set back before the last start of the machine.
        now.max(self.latest)
    }

    /// Stores the time `now` of this reading, unless the stored time is recent enough. `has_changed` is true if the
    /// transaction also writes other data.
    pub(super) fn keep_time(
        self,
        connection: &Connection,
        now: Micros,
        reading: &Reading,
        has_changed: bool,
    ) -> Result<()> {
        // A transaction that otherwise only reads must not write the time. The write would wait for the lock of the
        // file, and for the disk.
        let is_late = has_changed && now.saturating_sub(self.latest) >= FORGOTTEN;
        let is_known = *self.start == *reading.start;
        if is_known && !is_late {
            return Ok(());
        }
        let began = if is_known { self.began } else { now.saturating_sub(reading.running) };
        let sql = "insert or replace into clock (id, start, began, latest) values (1, ?1, ?2, ?3)";
        connection.prepare_cached(sql)?.execute(params![&*reading.start, began, now])?;
        if self.is_replaced {
            tracing::warn!(
                now,
                clock = reading.clock,
                "the file's time was replaced: another program has written one that no clock explains"
            );
        }
        Ok(())
    }
}
