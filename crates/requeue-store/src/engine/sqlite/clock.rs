//! What time it is in a file: the same for all processes, whatever happens to the machine's clock.
//!
//! Time goes on as the machine runs, which nobody can set. Only who comes first after a start of it
//! asks its clock how late it is by then; and no earlier than it was.

use std::sync::Arc;
use std::time::SystemTime;

use rusqlite::{Connection, OptionalExtension, Result, params};

use crate::engine::time::Micros;

/// How much of the time before a start may be forgotten at it.
const FORGOTTEN: Micros = 1_000_000;

/// What the machine says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Reading {
    /// Which of its starts was the last.
    pub(super) start: Arc<str>,
    /// Since when it has been running, by whatever else than its clock.
    pub(super) running: Micros,
    /// By its clock, which may be set.
    pub(super) clock: Micros,
}

pub(super) type Clock = Arc<dyn Fn() -> Reading + Send + Sync>;

/// This machine's. Where it doesn't say how long it has been running, by its clock.
pub(super) fn of_machine() -> Clock {
    let start = start();
    Arc::new(move || {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        let clock = Micros::try_from(since.as_micros()).unwrap_or(Micros::MAX);
        let running = if start.is_empty() { clock } else { running() };
        Reading { start: Arc::clone(&start), running, clock }
    })
}

#[cfg(target_os = "linux")]
fn start() -> Arc<str> {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().into()
}

#[cfg(target_os = "linux")]
fn running() -> Micros {
    use rustix::time::{ClockId, clock_gettime};

    // It goes on while the machine is suspended.
    let time = clock_gettime(ClockId::Boottime);
    time.tv_sec.saturating_mul(1_000_000).saturating_add(time.tv_nsec / 1000)
}

#[cfg(not(target_os = "linux"))]
fn start() -> Arc<str> {
    "".into()
}

#[cfg(not(target_os = "linux"))]
fn running() -> Micros {
    0
}

/// What a file knows of it.
#[derive(Clone, Debug, Default)]
pub(super) struct Time {
    start: String,
    /// What time it was when the machine was started.
    began: Micros,
    /// How late it has been, or little later.
    latest: Micros,
}

impl Time {
    /// In a transaction.
    pub(super) fn of(connection: &Connection) -> Result<Self> {
        let mut kept = connection.prepare_cached("select start, began, latest from clock")?;
        let kept = kept.query_row([], |row| {
            Ok(Self { start: row.get(0)?, began: row.get(1)?, latest: row.get(2)? })
        });
        Ok(kept.optional()?.unwrap_or_default())
    }

    pub(super) fn now(&self, reading: &Reading) -> Micros {
        let now = match *self.start == *reading.start {
            true => self.began.saturating_add(reading.running),
            false => reading.clock,
        };
        now.max(self.latest)
    }

    /// Keeps that it is `now` by this reading, if there is a reason to: `has_changed` says whether
    /// something is to be written anyway.
    pub(super) fn keep(
        self,
        connection: &Connection,
        now: Micros,
        reading: &Reading,
        has_changed: bool,
    ) -> Result<()> {
        let is_late = has_changed && now.saturating_sub(self.latest) >= FORGOTTEN;
        let is_known = *self.start == *reading.start;
        if is_known && !is_late {
            return Ok(());
        }
        let began = if is_known { self.began } else { now.saturating_sub(reading.running) };
        let sql = "insert or replace into clock (id, start, began, latest) values (1, ?1, ?2, ?3)";
        connection.prepare_cached(sql)?.execute(params![&*reading.start, began, now])?;
        Ok(())
    }
}
