//! Notices that the clock of the store jumps. Leases then expire early or late, and due times and schedules shift.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use requeue_core::Shown;

use crate::engine::activity::Which;
use crate::engine::time::Micros;
use crate::engine::{Engine, Place, lock};
use crate::types::action::ActionRecord;

/// The name of the action that records a jump.
pub(crate) const JUMP: &str = "clock-jump";
/// A larger difference is a jump with each lease.
const MOST: Duration = Duration::from_secs(10);
/// A smaller difference is no jump, because clocks are also adjusted slowly.
const LEAST: Duration = Duration::from_secs(1);
/// The time for which a jump is recorded only once, although each worker notices it.
const ONCE: Duration = Duration::from_secs(60);

/// The clocks at one moment.
#[derive(Clone, Copy, Debug)]
struct Reading {
    store: Micros,
    /// The times of this process before and after the store was asked: by its monotonic clock, and by the runtime, whose
    /// clock a test can advance.
    asked: [Instant; 2],
    answered: [Instant; 2],
}

/// The last reading of the store's clock.
#[derive(Debug, Default)]
pub(crate) struct StoreClock(Mutex<Option<Reading>>);

impl StoreClock {
    /// Forgets the last reading, because the next one may be much later.
    pub(crate) fn forget(&self) {
        *lock(&self.0) = None;
    }

    /// Reads the clock of the store. Reports and returns a jump since the last reading.
    pub(crate) async fn check(
        &self,
        engine: &dyn Engine,
        place: &Place,
        lease: Duration,
    ) -> Option<Jump> {
        let asked = now();
        let read = engine.read_activity(place, Which::Nothing).await.ok()?;
        let reading = Reading { store: read.now, asked, answered: now() };
        let last = lock(&self.0).replace(reading)?;
        let jump = Jump(reading.jump_since(&last, (lease / 3).clamp(LEAST, MOST))?);
        let (queue, way) = (&place.name, if jump.0 > 0 { "ahead" } else { "back" });
        tracing::warn!(
            queue,
            "the clock of the store has jumped {way} by {}, or this machine was suspended; leases, due times and \
             schedules follow that clock",
            jump.shown()
        );
        Some(jump)
    }
}

/// A jump of the store's clock, in microseconds. A jump back is negative.
#[derive(Debug)]
pub(crate) struct Jump(Micros);

impl Jump {
    fn shown(&self) -> Shown {
        Shown(Duration::from_micros(self.0.unsigned_abs()))
    }

    /// Records the jump among the last actions, unless another worker has recorded a jump in the same direction.
    pub(crate) async fn record(&self, engine: &dyn Engine, place: &Place) {
        let sign = if self.0 > 0 { "+" } else { "-" };
        let record =
            ActionRecord::new(JUMP, &*place.worker).target(format!("{sign}{}", self.shown()));
        let noted = engine.last_actions(place).await.unwrap_or_default();
        // After a jump back, the records of earlier jumps lie in the future, so that their age is zero. A worker notices
        // a jump once, so a record of this worker is that of another jump.
        let is_noted = noted.iter().any(|done| {
            let is_recent = done.action == JUMP && done.ago < ONCE && *done.by != *place.worker;
            is_recent && done.target.starts_with(sign)
        });
        if !is_noted && record.refusal().is_none() {
            // The warning of `check` is the report if an older store refuses the record.
            let _ = engine.record_action(place, record).await;
        }
    }
}

fn now() -> [Instant; 2] {
    [Instant::now(), tokio::time::Instant::now().into_std()]
}

impl Reading {
    /// Returns the difference between the times that the store and this process have measured since an earlier reading, in
    /// microseconds, if it exceeds the bound. The answers of the store may take long.
    fn jump_since(&self, last: &Self, bound: Duration) -> Option<Micros> {
        let between = |from: [Instant; 2], to: [Instant; 2]| {
            let elapsed = |which: usize| to[which].saturating_duration_since(from[which]);
            [elapsed(0), elapsed(1)]
                .map(|time| Micros::try_from(time.as_micros()).unwrap_or(Micros::MAX))
        };
        let [least, most] =
            [between(last.answered, self.asked), between(last.asked, self.answered)];
        let (least, most) = (least[0].min(least[1]), most[0].max(most[1]));
        let passed = self.store.saturating_sub(last.store);
        let jump = if passed > most { passed - most } else { passed.saturating_sub(least).min(0) };
        (u128::from(jump.unsigned_abs()) > bound.as_micros()).then_some(jump)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_jump_is_a_difference_that_neither_clock_of_the_process_explains() {
        let begin = Instant::now();
        let at = |seconds: [u64; 2]| seconds.map(|time| begin + Duration::from_secs(time));
        let last = Reading { store: 0, asked: at([0, 0]), answered: at([1, 1]) };
        for (store, asked, answered, jump) in [
            (5, [5, 5], [5, 5], None),
            // The answer was late.
            (60, [5, 5], [60, 60], None),
            // The clock of the runtime is paused, or was advanced.
            (5, [5, 1], [5, 1], None),
            (3600, [5, 3600], [5, 3600], None),
            (15, [5, 5], [5, 5], None),
            (16, [5, 5], [5, 5], Some(11)),
            (3600, [5, 5], [6, 6], Some(3594)),
            (-6, [5, 5], [5, 5], None),
            (-7, [5, 5], [5, 5], Some(-11)),
        ] {
            let store = store * 1_000_000;
            let now = Reading { store, asked: at(asked), answered: at(answered) };
            let expected = jump.map(|jump: i64| jump * 1_000_000);
            assert_eq!(now.jump_since(&last, MOST), expected, "{store}");
        }
    }
}
