//! The link between a queue and its trace contexts: from an add to the spans of the wait and the
//! run.

use std::borrow::Borrow;

use requeue_core::history::Subject;
use requeue_core::{self as core, Add, Added, Delivery, Finish, Phase};

use super::item::Item;
use super::shared::{Shared, State};
use crate::sync::quietly;
use crate::trace::{Cause, Delivered, Origin, RunSpan, Taken};
use crate::{CancelReason, Key};

impl<K: Key> Shared<K> {
    /// Returns the current trace context, if the queue creates spans and there is such a context.
    #[inline]
    pub(super) fn current_origin(&self) -> Option<Origin> {
        self.traces.as_ref().and_then(|_| Origin::current())
    }

    /// Stores the context of an add, for the run that will serve it. Returns the key if it is not
    /// stored. The caller drops it without the lock.
    pub(super) fn keep_origin(
        &self,
        state: &State<K>,
        (key, hash): (K, u64),
        add: &Add,
        added: Added,
        origin: Origin,
    ) -> Option<K> {
        let Some(traces) = self.traces.as_ref().filter(|_| added.is_accepted()) else {
            return Some(key);
        };
        let cause = match added {
            Added::Dirty => Some(Cause::InFlight),
            Added::BackingOff => Some(Cause::Backoff),
            _ if add.is_delayed() && !add.is_retry() => Some(Cause::Debounce),
            _ if add.is_delayed() => Some(Cause::Delay),
            _ if state.core.pace().is_some() => {
                // The `eq` of a key is user code, so its panics are caught.
                let phase = quietly(|| state.core.phase(&key, hash)).flatten();
                (phase == Some(Phase::Idle)).then_some(Cause::Pace)
            }
            _ => None,
        };
        let after = state.core.totals().deliveries;
        traces.keep(key, Subject::key(hash), origin.with_cause(cause), after)
    }

    pub(super) fn take_traced(&self, delivery: &Delivery<K>) -> Option<Box<Taken>> {
        let taken = self.traces.as_ref()?.take(&delivery.key, &delivery.ticket)?;
        Some(Box::new(taken))
    }

    /// Stores the contexts of a run for its next run. The key must still be in flight.
    #[inline]
    pub(super) fn pass_traces_on(
        &self,
        key: &K,
        ticket: &core::Ticket,
        taken: Option<Box<Taken>>,
        how: &Finish,
    ) {
        let (Some(traces), Some(taken)) = (&self.traces, taken) else { return };
        let cause = match how {
            Finish::RetryAfter { .. } => Some(Cause::Backoff),
            Finish::ReleaseAfter { .. } => Some(Cause::Delay),
            Finish::Release { .. } => None,
            Finish::Cancelled { .. }
                if self.cancel_reason(ticket) == Some(CancelReason::Restarted) =>
            {
                None
            }
            _ => return,
        };
        traces.pass_on(key.clone(), ticket, *taken, cause);
    }

    /// Removes the contexts of `key`, which has this hash.
    pub(super) fn forget_traces<Q>(&self, key: &Q, hash: u64)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        if let Some(traces) = &self.traces {
            traces.forget(key, Subject::key(hash));
        }
    }
}

impl<K: Key> Item<'_, K> {
    /// Starts the span of the run, and creates the spans of the wait before it. Returns `None`
    /// unless the queue [creates spans](crate::Builder::traces).
    ///
    /// Each call creates these spans again. Workers call this method themselves.
    #[must_use]
    pub fn start_span(&self) -> Option<RunSpan> {
        let owner = self.traced_queue()?;
        let delivered = Delivered {
            queue: owner.name.as_deref(),
            attempt: self.attempt(),
            adds: self.adds(),
            queued: self.queued(),
        };
        let taken = self.taken.as_deref();
        let blocked_times = |_| Some(owner.lock().ok()?.core.blocked_times(&self.ticket));
        let blocked = taken.and_then(blocked_times).unwrap_or_default();
        Some(RunSpan::start_taken(delivered, taken, &blocked))
    }
}
