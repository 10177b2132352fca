//! The leader's handle of its term, and the state that the elector, the term and the status share.

use std::sync::{Arc, OnceLock};

use prometheus_client::metrics::gauge::Gauge;
use requeue::Time;
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::config::Config;
use super::lost::{End, LeadershipLost};
use crate::clock::Clock;
use crate::token::FencingToken;

/// The right to lead during one term.
///
/// A clone is cheap. While a clone exists, the elector assumes that some work still runs. It releases the lease only
/// when all clones were dropped. To read the state of the election, use a [`Status`](super::Status) instead.
///
/// ```no_run
/// # use requeue_leases::leader::Leadership;
/// # async fn work() {}
/// async fn lead(leadership: Leadership) {
///     while leadership.is_leading() {
///         tokio::select! {
///             () = work() => {}
///             // The leader was asked to stop, so it starts no more work.
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

/// The state that the elector, the leader's work and the observers share.
#[derive(Debug)]
pub(super) struct Shared {
    /// The Lease in messages, as `namespace/name`.
    pub(super) lease: String,
    pub(super) identity: String,
    pub(super) config: Config,
    pub(super) clock: Clock,
    pub(super) view: watch::Sender<View>,
    /// Wakes the driver, so that it renews or releases the Lease.
    pub(super) wake: Notify,
    /// This token is cancelled when every clone of the [`Leadership`] was dropped.
    pub(super) let_go: CancellationToken,
    pub(super) gauge: OnceLock<Gauge>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// The holder in the Lease that was read last. `None` if the Lease has no holder.
    pub(super) holder: Option<String>,
    pub(super) led: Option<Led>,
}

/// The state of a term that has begun, and that may have ended.
#[derive(Clone, Debug, Default)]
pub(super) struct Led {
    /// The time at which this process sent its last successful renewal.
    pub(super) renewed: Time,
    pub(super) until: Time,
    /// The time at which the leader was first asked to stop.
    pub(super) stopping: Option<Time>,
    /// True if the Lease was released, or is about to be released.
    pub(super) released: bool,
    pub(super) lost: Option<LeadershipLost>,
    /// True if the end of the term was logged and published.
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
        // The end of the right is read first, and the clock second. In the other order, the right could end between the
        // two reads, and would still look valid.
        view.led.as_ref().is_some_and(|led| !led.is_over() && self.clock.now() < led.until)
    }

    pub(super) fn show_leading(&self, leading: bool) {
        if let Some(gauge) = self.gauge.get() {
            gauge.set(leading.into());
        }
    }

    /// Reports the end of the term, at most once. Further calls have no effect.
    pub(super) fn end_term(&self, end: &End) {
        let mut first = false;
        self.change_term(|led| {
            // The task that renews the Lease and the drop of the term may both report the end.
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

    /// Changes the state of the term, and wakes the tasks that wait for a change. Does nothing before the term has
    /// begun.
    pub(super) fn change_term(&self, change: impl FnOnce(&mut Led)) {
        self.view.send_modify(|view| {
            if let Some(led) = &mut view.led {
                change(led);
            }
        });
    }

    /// Waits until `what` returns a value for the present state of the term.
    pub(super) async fn wait_for<T>(&self, mut what: impl FnMut(&Led) -> Option<T>) -> T {
        let mut view = self.view.subscribe();
        loop {
            // The state is marked as seen before it is checked. A change after the check therefore wakes this loop.
            let it = view.borrow_and_update().led.as_ref().and_then(&mut what);
            if let Some(it) = it {
                return it;
            }
            // The wait fails only if the sender is dropped, and `self` owns the sender.
            let _ = view.changed().await;
        }
    }
}

impl Leadership {
    /// Returns true if this process leads at this moment. The clock also advances while the machine is suspended.
    ///
    /// The result is exact, and the call only reads the clock. Call this method before each piece of work. Between this
    /// call and a write, the right may still end. The [`fence`](Self::fence) protects against this.
    #[must_use]
    pub fn is_leading(&self) -> bool {
        self.shared.is_leading()
    }

    /// Returns the reason why this process no longer leads. A [`Leadership`] belongs to one term, so an error is final.
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

    /// Returns the time at which the right to lead ends if no further renewal succeeds. Returns `None` if the term has
    /// ended.
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

    /// Waits until the leader must start no more work. This is so when it was asked to stop, or when the term has
    /// ended.
    ///
    /// Work in progress may continue until the lease is [`lost`](Self::lost), because the lease is still renewed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing is lost, and the method can be called again.
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
    /// The caller must then drop all work in progress.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, nothing is lost, and the method can be called again.
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

    /// Renews the lease without waiting for the next regular renewal, and waits for the result.
    ///
    /// If the method succeeds, this process was the leader at a time after the call began.
    ///
    /// # Errors
    ///
    /// Returns an error if the term has ended.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the lease is renewed nevertheless.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # use requeue_leases::leader::{Leadership, LeadershipLost};
    /// async fn read_as_leader(leadership: &Leadership) -> Result<(), LeadershipLost> {
    ///     // From now on, each read returns objects that are not older than the beginning of this term.
    ///     leadership.confirm().await
    /// }
    /// ```
    pub async fn confirm(&self) -> Result<(), LeadershipLost> {
        // The clock is read before the renewal is requested. A renewal that was sent earlier does not prove that this
        // process leads now.
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
