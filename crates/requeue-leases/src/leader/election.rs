//! The election with client-go's algorithm, as a state machine without a clock and without a network.
//!
//! Invariant: no two replicas lead at the same time. A leader's right ends one renew deadline after its last successful
//! renewal was *sent*. The API server stored the renewal after it was sent, and a follower read it after it was stored.
//! The follower then waits for a whole lease duration, which is longer than the renew deadline. It takes over with a
//! write that fails if another replica has written since the read.
//!
//! Only the rates of the two clocks matter. The ratio of the faster rate to the slower rate must be less than the ratio
//! of the lease duration to the renew deadline. The clocks do not have to show the same time.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use requeue::Time;
use requeue::wait::{JitterSource, jitter};

use super::config::Config;
use super::lost::{End, LeadershipLost};
use crate::lease::Lease;
use crate::requests::{Answer, Call};
use crate::token::FencingToken;

/// One elector's part in an election. The caller passes the time, and makes the requests that the
/// election returns.
pub(crate) struct Election {
    config: Config,
    identity: String,
    jitter: JitterSource,
    seen: Option<Seen>,
    role: Role,
    plan: Plan,
    /// The request in flight.
    sent: Option<Plan>,
}

/// The Lease as last read, and the time at which its current record was first read.
struct Seen {
    lease: Lease,
    since: Time,
}

enum Role {
    Follower,
    Leader(Held),
    Ended(End),
}

struct Held {
    token: FencingToken,
    /// The time at which the last successful renewal was sent.
    renewed: Time,
    /// True if the last write met a conflict, after which the Lease was read immediately. After a second conflict, the
    /// next read waits for the retry period.
    conflicted: bool,
    /// The next write, which is `Hold` until a release is requested.
    write: Request,
}

impl Held {
    /// Returns the end of a term whose Lease was deleted or has another holder. During a release,
    /// the cause is the release by this elector.
    fn end_without_lease(&self, lost: LeadershipLost) -> End {
        if self.write == Request::Release { End::Released } else { End::Lost(lost) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Request {
    Read,
    /// Create the Lease, take it over or renew it.
    Hold,
    Release,
}

/// A request, and the time at which it is due or was sent.
struct Plan {
    request: Request,
    at: Time,
}

/// The next step of the driver.
#[must_use]
#[derive(Debug)]
pub(crate) enum Step {
    /// Make this call. If there is no response by `until`, the call counts as failed.
    Call { call: Call, until: Time },
    /// Wait until this time.
    Wait(Time),
    /// The election has ended.
    Ended(End),
}

impl Election {
    pub(crate) fn new(config: Config, identity: String, jitter: JitterSource, now: Time) -> Self {
        let request = if config.only_create { Request::Hold } else { Request::Read };
        Self {
            config,
            identity,
            jitter,
            seen: None,
            role: Role::Follower,
            plan: Plan { request, at: now },
            sent: None,
        }
    }

    /// Returns the next step at `now`. `wall` is the time of day.
    ///
    /// If the previous call has no response yet, it counts as failed.
    pub(crate) fn poll(&mut self, now: Time, wall: Timestamp) -> Step {
        self.handle_answer(now, Answer::Failed);
        self.step_down_when_late(now);
        if let Role::Ended(end) = &self.role {
            return Step::Ended(end.clone());
        }
        // No wait or request may outlast the right, so that the leader learns in time that its
        // right has ended.
        let end = self.leading_until().unwrap_or(Time::NEVER);
        if now < self.plan.at {
            return Step::Wait(self.plan.at.min(end));
        }
        let request = self.plan.request;
        self.sent = Some(Plan { request, at: now });
        Step::Call {
            call: self.write_or_read(request, wall),
            until: (now + self.config.request_limit()).min(end),
        }
    }

    /// Handles the result of the call in flight.
    pub(crate) fn handle_answer(&mut self, now: Time, answer: Answer) {
        let Some(sent) = self.sent.take() else { return };
        self.step_down_when_late(now);
        match self.role {
            Role::Follower => self.handle_as_follower(sent, now, answer),
            Role::Leader(_) => self.handle_as_leader(sent, now, answer),
            Role::Ended(_) => {}
        }
    }

    /// Releases the Lease as soon as possible. The work of the leader must have ended.
    pub(crate) fn release(&mut self) {
        let Role::Leader(held) = &mut self.role else { return };
        // A planned read comes before the release, because its result decides whether there is a term to release.
        held.write = Request::Release;
        if self.plan.request == Request::Hold {
            self.plan = Plan { request: Request::Release, at: Time::ZERO };
        }
    }

    /// Renews now, without waiting for the retry period.
    pub(super) fn renew_now(&mut self) {
        // A time in the past makes the plan due at the next poll.
        self.plan.at = Time::ZERO;
    }

    /// Returns the token of the current term, or `None` if this elector does not lead.
    pub(crate) fn fencing_token(&self) -> Option<&FencingToken> {
        match &self.role {
            Role::Leader(held) => Some(&held.token),
            Role::Follower | Role::Ended(_) => None,
        }
    }

    /// Returns the time at which the last successful renewal was sent, and the time at which the
    /// right expires.
    pub(crate) fn right_times(&self) -> Option<(Time, Time)> {
        match &self.role {
            // The right counts from the time of sending, because the response may be late.
            Role::Leader(held) => Some((held.renewed, held.renewed + self.config.renew_deadline)),
            Role::Follower | Role::Ended(_) => None,
        }
    }

    fn leading_until(&self) -> Option<Time> {
        self.right_times().map(|(_renewed, until)| until)
    }

    /// Returns the holder of the Lease as last read.
    pub(super) fn holder(&self) -> Option<&str> {
        self.seen.as_ref().map(|seen| seen.lease.holder()).filter(|holder| !holder.is_empty())
    }

    fn write_or_read(&self, request: Request, wall: Timestamp) -> Call {
        let seconds = self.config.lease_seconds();
        match (request, &self.seen) {
            (Request::Read, _) => Call::Read(self.config.name.clone()),
            (Request::Hold | Request::Release, None) => Call::Create(Lease::new_object(
                &self.config.metadata,
                &self.identity,
                seconds,
                wall,
            )),
            (Request::Release, Some(Seen { lease, .. })) => Call::Replace(lease.as_released(wall)),
            (Request::Hold, Some(Seen { lease, .. })) => Call::Replace(match self.role {
                Role::Leader(_) => lease.as_renewed(seconds, wall),
                // The number is always new, so that no two terms of one Lease have the same number.
                Role::Follower | Role::Ended(_) => lease.taken_by(
                    &self.identity,
                    seconds,
                    lease.transitions().saturating_add(1),
                    wall,
                ),
            }),
        }
    }

    fn handle_as_follower(&mut self, sent: Plan, now: Time, answer: Answer) {
        match (sent.request, answer) {
            (Request::Read, Answer::Lease(lease)) => {
                self.see_lease(lease, now);
                if self.may_take() && self.is_free(now) {
                    return self.plan = Plan { request: Request::Hold, at: now };
                }
            }
            // The Lease may have been deleted without its leader's knowledge. A follower that has
            // seen a holder waits until the Lease would have expired.
            (Request::Read, Answer::NotFound) if self.is_free(now) => {
                self.seen = None;
                return self.plan = Plan { request: Request::Hold, at: now };
            }
            (_, Answer::Lease(lease)) => {
                let mine = lease.holder() == self.identity;
                let token = lease.fencing_token();
                self.see_lease(lease, now);
                // A late response gives no right to lead. The Lease nevertheless names this elector, which can take the
                // Lease over without a wait.
                if mine && now < sent.at + self.config.renew_deadline {
                    let held =
                        Held { token, renewed: sent.at, conflicted: false, write: Request::Hold };
                    self.role = Role::Leader(held);
                    let at = sent.at + self.config.retry_period;
                    return self.plan = Plan { request: Request::Hold, at };
                }
            }
            (_, Answer::NotFound | Answer::Conflict | Answer::Failed | Answer::Deleted) => {}
        }
        if self.config.only_create {
            return self.role = Role::Ended(End::Lost(LeadershipLost::Abandoned));
        }
        // Standbys that have seen the same renewal must not all poll at the same time. client-go uses the same factor.
        let pause = jitter(self.config.retry_period, 1.2, &mut self.jitter);
        self.plan = Plan { request: Request::Read, at: sent.at + pause };
    }

    fn handle_as_leader(&mut self, sent: Plan, now: Time, answer: Answer) {
        let Role::Leader(held) = &mut self.role else { return };
        let later = sent.at + self.config.retry_period;
        match (sent.request, answer) {
            (Request::Release, Answer::Lease(lease)) => {
                self.role = Role::Ended(End::Released);
                self.see_lease(lease, now);
            }
            (request, Answer::Lease(lease)) => {
                if lease.holder() != self.identity || lease.fencing_token() != held.token {
                    let by = lease.holder().to_owned();
                    self.role = Role::Ended(held.end_without_lease(LeadershipLost::Taken(by)));
                } else if request == Request::Read {
                    self.plan = Plan { request: held.write, at: now };
                } else {
                    // This line ensures safety. The right counts from the time at which the renewal was sent, and no
                    // other replica can have seen the renewal earlier.
                    held.renewed = sent.at;
                    held.conflicted = false;
                    let at = if held.write == Request::Hold { later } else { now };
                    self.plan = Plan { request: held.write, at };
                }
                self.see_lease(lease, now);
            }
            (Request::Read, Answer::NotFound) => {
                self.role = Role::Ended(held.end_without_lease(LeadershipLost::Deleted));
            }
            (Request::Hold | Request::Release, Answer::Conflict | Answer::NotFound) => {
                // The conflicting write is either an earlier write of this elector, whose response was lost, or another
                // client's change of a label. After the first conflict, a read follows immediately.
                let at = if held.conflicted { later } else { now };
                held.conflicted = !held.conflicted;
                self.plan = Plan { request: Request::Read, at };
            }
            (request, Answer::Conflict | Answer::Failed | Answer::Deleted) => {
                let request = if request == Request::Read { request } else { held.write };
                self.plan = Plan { request, at: later };
            }
        }
    }

    fn see_lease(&mut self, lease: Lease, now: Time) {
        let since = match &self.seen {
            // Only a change of the record shows that the holder is alive, and restarts the wait for the end of its
            // lease.
            Some(seen) if seen.lease.same_record(&lease) => seen.since,
            Some(_) | None => now,
        };
        self.seen = Some(Seen { lease, since });
    }

    /// Returns true if the last seen Lease has no holder, or has expired.
    fn is_free(&self, now: Time) -> bool {
        let Some(Seen { lease, since }) = &self.seen else { return true };
        let lease_duration =
            lease.duration_seconds().map_or(self.config.lease_duration, Duration::from_secs);
        // If this elector is the holder, the response to its write was lost, because no other elector has this
        // identity.
        let unheld = lease.holder().is_empty() || lease.holder() == self.identity;
        unheld || now >= *since + lease_duration
    }

    /// Returns true if this elector may take the last seen Lease. A Lease with the highest number has no further term,
    /// and must be deleted by hand. An elector never takes the object of a shard group.
    fn may_take(&self) -> bool {
        let is_last = |seen: &Seen| seen.lease.transitions() == i32::MAX;
        !self.is_of_group() && !self.seen.as_ref().is_some_and(is_last)
    }

    /// Returns true if the Lease that was last seen is the object of a shard group.
    pub(super) fn is_of_group(&self) -> bool {
        self.seen.as_ref().is_some_and(|seen| seen.lease.is_group())
    }

    fn step_down_when_late(&mut self, now: Time) {
        if self.leading_until().is_some_and(|end| now >= end) {
            let lost = LeadershipLost::RenewDeadline(self.config.renew_deadline);
            self.role = Role::Ended(End::Lost(lost));
        }
    }
}
