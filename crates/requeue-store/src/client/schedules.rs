//! Fires the schedules of a queue: adds their keys, and computes their next times.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, timeout};

use crate::client::shared::Shared;
use crate::engine::outage::Part;
use crate::engine::schedules::{Agenda, Firing, Scheduled};
use crate::engine::time::{Micros, until};
use crate::types::calendar::Calendar;
use crate::types::error::{Answer, EngineError, Kind};

/// The number of schedules that one request returns.
const PAGE: usize = 64;
/// The pause after a failure, and before a schedule whose key is locked is tried again.
const PAUSE: Duration = Duration::from_secs(1);

type Work = Pin<Box<dyn Future<Output = Option<Duration>> + Send>>;

/// The next time at which this process looks at schedules.
#[derive(Default)]
pub(crate) struct Timetable {
    due_at: Option<Instant>,
    firing: Option<Work>,
}

impl Timetable {
    /// Records the time until a schedule is due, which a claim or a request for schedules has returned.
    ///
    /// The earliest time counts. A claim and a request for schedules overlap, so each may miss a schedule that the
    /// other has found. A time that has become wrong costs one request, which returns the right time.
    pub(crate) fn note_due(&mut self, time: Option<Duration>) {
        let due_at = time.and_then(|time| Instant::now().checked_add(time));
        self.due_at = self.due_at.into_iter().chain(due_at).min();
    }

    /// Begins to fire if a schedule is due.
    pub(crate) fn begin(&mut self, shared: impl FnOnce() -> Option<Arc<Shared>>) {
        if self.firing.is_none()
            && self.due_at.is_some_and(|at| at <= Instant::now())
            && let Some(shared) = shared()
        {
            self.due_at = None;
            self.firing = Some(Box::pin(async move { fire_due(&shared).await }));
        }
    }

    /// Waits until a schedule is due, or until due schedules are fired.
    pub(crate) async fn changed(&mut self) {
        match (&mut self.firing, self.due_at) {
            (Some(firing), _) => {
                let next = firing.await;
                // A finished future must not be polled again.
                self.firing = None;
                self.note_due(next);
            }
            (None, Some(at)) => tokio::time::sleep_until(at).await,
            (None, None) => std::future::pending().await,
        }
    }
}

/// Fires the schedules that are due. Returns the time until the next schedule is due, if any.
async fn fire_due(shared: &Shared) -> Option<Duration> {
    let Shared { engine, place, options, .. } = shared;
    let fired = timeout(options.lease, fire_page(shared)).await;
    match fired.unwrap_or_else(|_| Err(EngineError::late())) {
        Ok(next) => next,
        // The next claim reports the drop.
        Err(fault) if fault.kind == Kind::Dropped => None,
        Err(fault) => {
            place.note_failure(Part::all_shards(&**engine, place), &fault);
            Some(PAUSE)
        }
    }
}

async fn fire_page(shared: &Shared) -> Answer<Option<Duration>> {
    let agendas = shared.engine.next_schedules(&shared.place, PAGE).await?;
    let mut next: Option<Duration> = None;
    let mut sooner = |time: Duration| next = Some(next.map_or(time, |next| next.min(time)));
    let schedules = agendas.into_iter().flat_map(|Agenda { now, schedules }| {
        schedules.into_iter().map(move |schedule| (now, schedule))
    });
    for (now, schedule) in schedules {
        match schedule.due_at() {
            Some(at) if at <= now => match fire(shared, &schedule, now).await {
                // The schedule has another time now, or another process has changed it. The next page shows that time.
                Ok(_) => sooner(Duration::ZERO),
                Err(fault) if fault.kind == Kind::Locked => sooner(PAUSE),
                Err(fault) => return Err(fault),
            },
            Some(at) => sooner(until(now, at)),
            None => {}
        }
    }
    Ok(next)
}

/// Fires a schedule that was read at the time `now`. Returns false if another process has changed the schedule.
pub(crate) async fn fire(shared: &Shared, was: &Scheduled, now: Micros) -> Answer<bool> {
    let calendar = Calendar::parse(&was.spec, &was.zone);
    let next = calendar.and_then(|calendar| calendar.next_after(was.next_at, now));
    let firing = match next {
        Ok(next) => Firing::Next(next),
        Err(why) => {
            let (queue, key) = (&shared.place.name, &was.key);
            tracing::warn!(queue, %key, why, "the schedule was refused, and adds nothing until it is changed or resumed");
            Firing::Refused(why)
        }
    };
    shared.engine.fire_schedule(&shared.place, was, firing).await
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);
    const SOON: Duration = Duration::from_millis(10);

    #[tokio::test(start_paused = true)]
    async fn a_claim_tells_of_a_schedule_that_is_stored_while_others_are_read() {
        for read in [None, Some(HOUR)] {
            let firing: Option<Work> = Some(Box::pin(ready(read)));
            let mut timetable = Timetable { due_at: None, firing };
            timetable.note_due(Some(SOON));
            timetable.changed().await;
            let start = Instant::now();
            assert!(timetable.firing.is_none());
            timeout(2 * SOON, timetable.changed()).await.expect("the schedule is due");
            // A claim that began before the schedule was stored does not hide it.
            timetable.note_due(read);
            assert_eq!(timetable.due_at, Some(start + SOON));
        }
    }
}
