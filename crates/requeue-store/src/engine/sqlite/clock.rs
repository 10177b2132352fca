//! Computes the time for a store file. It is the same for all processes, even if the clock of the machine is
//! changed.
//!
//! The time of a file advances with the uptime of the machine, which cannot be changed. Only the first process after a
//! start of the machine reads the machine's clock. The time never goes back.

use std::sync::Arc;
use std::time::SystemTime;

use rusqlite::{Connection, OptionalExtension, Result, params};

use crate::engine::time::Micros;

/// The maximum time, in microseconds, that a restart of the machine can lose.
const FORGOTTEN: Micros = 1_000_000;

/// The maximum time, in microseconds, by which a file's time may be ahead of the machine's clock: 100 years. A file may
/// be ahead by decades if the machine's clock was wrong at its start.
const AHEAD: Micros = 100 * 365 * 24 * 3_600_000_000;

/// The maximum time, in microseconds, by which a reading may be behind the latest stored time of the same machine
/// start: a minute. A process may be suspended between its reading of the clock and its transaction.
const BEHIND: Micros = 60_000_000;

/// A reading of the machine's sources of time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Reading {
    /// The identifier of the machine's last start.
    pub(super) start: Arc<str>,
    /// The uptime of the machine, from a source other than its clock.
    pub(super) running: Micros,
    /// The clock of the machine, which may be set.
    pub(super) clock: Micros,
}

pub(super) type Clock = Arc<dyn Fn() -> Reading + Send + Sync>;

/// Returns the sources of this machine. If the uptime is not available, the clock replaces it.
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

    // This clock also advances while the machine is suspended.
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

/// The state of the time in a store file.
#[derive(Clone, Debug, Default)]
pub(super) struct Time {
    start: String,
    /// The time of the last start of the machine.
    began: Micros,
    /// The latest time that was stored. The time of the file has not been much later.
    latest: Micros,
    /// True if the state in the file is ignored.
    is_replaced: bool,
}

impl Time {
    /// Reads the state. The caller has begun a transaction.
    ///
    /// Ignores an implausible state, which [`keep_time`](Self::keep_time) then replaces. With such a state, all leases
    /// would have expired.
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
        // With a later start value, the time would stand still until the machine's clock has reached that value.
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
        // Time never goes back, even if the clock was set back before the last start of the machine.
        now.max(self.latest)
    }

    /// Stores the time `now` of this reading, if necessary. `has_changed` is true if the transaction also writes other
    /// data.
    pub(super) fn keep_time(
        self,
        connection: &Connection,
        now: Micros,
        reading: &Reading,
        has_changed: bool,
    ) -> Result<()> {
        // A transaction that only reads must not write the time, because the write would wait for the lock and for the
        // disk.
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
