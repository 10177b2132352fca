//! The leader's handle of its term, and the state that elector, term and status share.

use std::sync::{Arc, OnceLock};

use prometheus_client::metrics::gauge::Gauge;
use requeue::Time;
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::config::Config;
use super::lost::{End, LeadershipLost};
use crate::clock::Clock;
use crate::token::FencingToken;

/// The right to lead, for one term.
///
/// The handle is cheap to clone. Each clone means that some work still runs, so the lease is released only when all
/// clones are dropped. For read access only, use a [`Status`](super::Status).
///
/// ```no_run
/// # use requeue_leases::leader::Leadership;
/// # async fn work() {}
/// async fn lead(leadership: Leadership) {
///     while leadership.is_leading() {
///         tokio::select! {
///             () = work() => {}
///             // Start no more work.
///             () = leadership.stopping() => break,
///         }
///     }
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Leadership {
    pub(super) token: Arc<FencingToken>,
    pub(super) shared: Arc<Shared>,
    pub(super) _hold: Arc<DropGuard>,
}

/// The state that the election, the leader's work and the observers share.
#[derive(Debug)]
pub(super) struct Shared {
    /// The namespace and the name of the Lease.
    pub(super) lease: String,
    pub(super) identity: String,
    pub(super) config: Config,
    pub(super) clock: Clock,
    pub(super) view: watch::Sender<View>,
    /// Requests a renewal or a release.
    pub(super) wake: Notify,
    /// This token is cancelled when every [`Leadership`] is dropped.
    pub(super) let_go: CancellationToken,
    pub(super) gauge: OnceLock<Gauge>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// The holder of the Lease as last read.
    pub(super) holder: Option<String>,
    pub(super) led: Option<Led>,
}

/// A term that has begun, and may have ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Led {
    /// The time at which the last successful renewal was sent.
    pub(super) renewed: Time,
    pub(super) until: Time,
    /// The time at which the leader was asked to stop.
    pub(super) stopping: Option<Time>,
    /// True if the lease is released, or if the release has begun.
    pub(super) released: bool,
    pub(super) lost: Option<LeadershipLost>,
    /// True if the end of the term was reported.
    pub(super) ended: bool,
}

impl Led {
    fn is_over(&self) -> bool {
        self.released || self.lost.is_some()
    }
}

impl Shared {
    pub(super) fn is_leading(&self) -> bool {
        let view = self.view.borrow();
        // The clock is read after the right. Otherwise, a right that ends between the two reads would look valid.
        view.led.as_ref().is_some_and(|led| !led.is_over() && self.clock.now() < led.until)
    }

    pub(super) fn show_leading(&self, leading: bool) {
        if let Some(gauge) = self.gauge.get() {
            gauge.set(leading.into());
        }
    }

    /// Reports the end of the term. Only the first call has an effect.
    pub(super) fn end_term(&self, end: &End) {
        let mut first = false;
        self.change_term(|led| {
            // Two callers report the end of a term: the task that renews the lease, and the drop of
            // the term.
            first = !led.ended;
            led.ended = true;
            match end {
                End::Lost(lost) if first => led.lost = Some(lost.clone()),
                End::Lost(_) | End::Released => {}
            }
        });
        if first {
            tracing::info!(lease = self.lease, identity = self.identity, ?end, "stopped leading");
            self.show_leading(false);
        }
    }

    /// Changes the state of the term, if any, and wakes the tasks that wait for a change.
    pub(super) fn change_term(&self, change: impl FnOnce(&mut Led)) {
        self.view.send_modify(|view| {
            if let Some(led) = &mut view.led {
                change(led);
            }
        });
    }

    /// Waits until `what` returns a value for the state of the term.
    pub(super) async fn wait_for<T>(&self, mut what: impl FnMut(&Led) -> Option<T>) -> T {
        let mut view = self.view.subscribe();
        loop {
            // The state is marked as seen before the check, so a change after the check wakes this
            // loop.
            let it = view.borrow_and_update().led.as_ref().and_then(&mut what);
            if let Some(it) = it {
                return it;
            }
            // The wait cannot fail, because the sender is in `self`.
            let _ = view.changed().await;
        }
    }
}

impl Leadership {
    /// Returns true if this process leads at this moment, by a clock that also counts while the
    /// machine is suspended.
    ///
    /// The result is exact, and costs one read of the clock. Call this method before each piece of
    /// work. For the time between the call and a write, use the [`fence`](Self::fence).
    #[must_use]
    pub fn is_leading(&self) -> bool {
        self.shared.is_leading()
    }

    /// Returns the reason why this process does not lead. A [`Leadership`] belongs to one term, so the result is final.
    pub(crate) fn check(&self) -> Result<(), LeadershipLost> {
        if self.is_leading() {
            return Ok(());
        }
        let view = self.shared.view.borrow();
        Err(match &view.led {
            Some(Led { lost: Some(lost), .. }) => lost.clone(),
            Some(Led { renewed, until, released: false, .. }) => {
                LeadershipLost::RenewDeadline(until.since(*renewed))
            }
            Some(_) | None => LeadershipLost::Abandoned,
        })
    }

    /// Returns the fencing token of this term.
    #[must_use]
    pub fn fencing_token(&self) -> &FencingToken {
        &self.token
    }

    /// Returns the time at which the right to lead ends without a further renewal, or `None` if the
    /// term has ended.
    pub(crate) fn right_until(&self) -> Option<Time> {
        let view = self.shared.view.borrow();
        view.led.as_ref().filter(|led| !led.is_over()).map(|led| led.until)
    }

    pub(crate) fn now(&self) -> Time {
        self.shared.clock.now()
    }

    /// Returns a handle that does not delay the release of the lease.
    pub(crate) fn clone_uncounted(&self) -> Self {
        Self { _hold: Arc::new(CancellationToken::new().drop_guard()), ..self.clone() }
    }

    /// Waits until the leader must start no more work, because it was asked to stop or because the
    /// term has ended.
    ///
    /// Work in progress can complete, because the lease is still renewed, until it is
    /// [`lost`](Self::lost).
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped, and the method called again.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use requeue_leases::leader::Leadership;
    /// # async fn work() {}
    /// async fn lead(leadership: Leadership) {
    ///     tokio::select! {
    ///         () = leadership.stopping() => {}
    ///         () = work() => {}
    ///     }
    /// }
    /// ```
    pub async fn stopping(&self) {
        self.shared.wait_for(|led| (led.stopping.is_some() || led.is_over()).then_some(())).await;
    }

    /// Waits until the lease is lost.
    ///
    /// All work in progress must then be dropped.
    ///
    /// # Cancel safety
    ///
    /// The future can be dropped, and the method called again.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use requeue_leases::leader::{Leadership, LeadershipLost};
    /// # async fn work() {}
    /// async fn lead(leadership: Leadership) -> Result<(), LeadershipLost> {
    ///     tokio::select! {
    ///         biased;
    ///         lost = leadership.lost() => Err(lost),
    ///         () = work() => Ok(()),
    ///     }
    /// }
    /// ```
    pub async fn lost(&self) -> LeadershipLost {
        self.shared.wait_for(|led| led.lost.clone()).await
    }

    /// Renews the lease now, and waits for the result.
    ///
    /// If the call succeeds, this process was the leader at some time after the start of the call.
    ///
    /// # Errors
    ///
    /// Returns an error if the term has ended.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lease is still renewed.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use requeue_leases::leader::{Leadership, LeadershipLost};
    /// async fn read_as_leader(leadership: &Leadership) -> Result<(), LeadershipLost> {
    ///     // Objects that are read from now on are not older than this process's term.
    ///     leadership.confirm().await
    /// }
    /// ```
    pub async fn confirm(&self) -> Result<(), LeadershipLost> {
        // The clock is read before the request, because a renewal that was sent earlier proves
        // nothing about the time of this call.
        let since = self.shared.clock.now();
        self.shared.wake.notify_one();
        self.shared
            .wait_for(|led| match &led.lost {
                Some(lost) => Some(Err(lost.clone())),
                None if led.released => Some(Err(LeadershipLost::Abandoned)),
                None => (led.renewed >= since).then_some(Ok(())),
            })
            .await
    }
}
