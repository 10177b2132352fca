//! What one who leads has in hand.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use requeue::Time;
use tokio::sync::{Notify, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::clock::Clock;
use super::election::End;
use super::fence::{Fence, Token};
use crate::metrics::MasterStatus;

/// The right to lead, for one term.
///
/// It is cheap to clone, and each clone says that something still runs: the lease is released only
/// once all of them are gone. Who only wants to look takes a [`Status`](super::Status).
///
/// ```no_run
/// # use requeue_kube::leader::Leadership;
/// # async fn work() {}
/// async fn lead(leadership: Leadership) {
///     while leadership.is_leading() {
///         tokio::select! {
///             () = work() => {}
///             // Hand out no more.
///             () = leadership.stopping() => break,
///         }
///     }
/// }
/// ```
#[derive(Clone)]
pub struct Leadership {
    pub(super) token: Arc<Token>,
    pub(super) shared: Arc<Shared>,
    pub(super) _hold: Arc<DropGuard>,
}

/// What the election, those who lead and those who look have in common.
pub(super) struct Shared {
    /// Namespace and name.
    pub(super) lease: String,
    pub(super) identity: String,
    pub(super) lease_duration: Duration,
    pub(super) clock: Clock,
    pub(super) view: watch::Sender<View>,
    /// Asks for a renewal, or tells of a wish to release.
    pub(super) wake: Notify,
    /// Every [`Leadership`] is gone.
    pub(super) let_go: CancellationToken,
    pub(super) gauge: OnceLock<MasterStatus>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// Who holds the Lease, as far as is known.
    pub(super) holder: Option<String>,
    pub(super) led: Option<Led>,
}

/// A term that has begun, and may be over.
#[derive(Clone, Debug, Default)]
pub(super) struct Led {
    /// When the last good renewal was sent.
    pub(super) renewed: Time,
    pub(super) until: Time,
    /// When it was told to stop.
    pub(super) stopping: Option<Time>,
    /// The lease is given back, or about to be.
    pub(super) released: bool,
    pub(super) lost: Option<LeadershipLost>,
    /// All has been told of its end.
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
        view.led.as_ref().is_some_and(|led| !led.is_over() && self.clock.now() < led.until)
    }

    pub(super) fn show_leading(&self, leading: bool) {
        if let Some(gauge) = self.gauge.get() {
            gauge.set(leading);
        }
    }

    /// Tells of the end of the term; only the first is heard.
    pub(super) fn end(&self, end: &End) {
        let mut first = false;
        self.change(|led| {
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

    /// Changes what is known of the term, if there is one, and wakes who waits for that.
    pub(super) fn change(&self, change: impl FnOnce(&mut Led)) {
        self.view.send_modify(|view| {
            if let Some(led) = &mut view.led {
                change(led);
            }
        });
    }

    /// Waits until this can be said of the term.
    pub(super) async fn when<T>(&self, mut what: impl FnMut(&Led) -> Option<T>) -> T {
        let mut view = self.view.subscribe();
        loop {
            let it = view.borrow_and_update().led.as_ref().and_then(&mut what);
            if let Some(it) = it {
                return it;
            }
            // The sender is ours.
            let _ = view.changed().await;
        }
    }
}

impl Leadership {
    /// Whether this process leads at this moment, by a clock that goes on in a suspended machine.
    ///
    /// It is exact, and costs one look at the clock: ask before each piece of work. What happens
    /// between the answer and a write that was based on it is for the [`fence`](Self::fence).
    #[must_use]
    pub fn is_leading(&self) -> bool {
        self.shared.is_leading()
    }

    /// As [`is_leading`](Self::is_leading), for `?`.
    ///
    /// # Errors
    ///
    /// Why this process does not lead. A [`Leadership`] is for one term: there is no second.
    pub fn check(&self) -> Result<(), LeadershipLost> {
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

    /// Which term this is.
    #[must_use]
    pub fn token(&self) -> &Token {
        &self.token
    }

    /// Has the API server refuse late writes of earlier terms.
    #[must_use]
    pub fn fence(&self) -> Fence {
        Fence::new(self.clone())
    }

    /// Waits until no more work is to be begun: leading is to stop, or is over.
    ///
    /// What is under way may end meanwhile, for the lease is still renewed, until it is
    /// [`lost`](Self::lost).
    ///
    /// # Cancel safety
    ///
    /// It can be dropped and called again.
    pub async fn stopping(&self) {
        self.shared.when(|led| (led.stopping.is_some() || led.is_over()).then_some(())).await;
    }

    /// Waits until leading is over, whatever is under way: all of it has to be dropped.
    ///
    /// # Cancel safety
    ///
    /// It can be dropped and called again.
    pub async fn lost(&self) -> LeadershipLost {
        self.shared.when(|led| led.lost.clone()).await
    }

    /// Renews the lease now, and returns once that has been done: this process has led at some
    /// moment since the call.
    ///
    /// # Errors
    ///
    /// Leading is over.
    ///
    /// # Cancel safety
    ///
    /// It can be dropped; the lease is renewed all the same.
    pub async fn confirm(&self) -> Result<(), LeadershipLost> {
        let since = self.shared.clock.now();
        self.shared.wake.notify_one();
        self.shared
            .when(|led| match &led.lost {
                Some(lost) => Some(Err(lost.clone())),
                None if led.released => Some(Err(LeadershipLost::Abandoned)),
                None => (led.renewed >= since).then_some(Ok(())),
            })
            .await
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("lease", &self.shared.lease)
            .field("token", &self.token)
            .field("leading", &self.is_leading())
            .finish()
    }
}

/// Leading is over, and not because it was asked to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeadershipLost {
    /// No renewal got through for this long since the last good one was sent.
    RenewDeadline(Duration),
    /// The Lease is held by another, or by nobody when this is empty.
    Taken {
        /// The other's identity.
        by: String,
    },
    /// The Lease was deleted.
    Deleted,
    /// The elector was dropped, or has released the lease.
    Abandoned,
}

impl fmt::Display for LeadershipLost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("leadership lost: ")?;
        match self {
            Self::RenewDeadline(deadline) => {
                write!(f, "the lease was not renewed for {deadline:?}")
            }
            Self::Taken { by } if by.is_empty() => f.write_str("someone has released the lease"),
            Self::Taken { by } => write!(f, "the lease is held by {by:?}"),
            Self::Deleted => f.write_str("the lease was deleted"),
            Self::Abandoned => f.write_str("the lease is no longer renewed"),
        }
    }
}

impl std::error::Error for LeadershipLost {}
