//! The election, which has client-go's algorithm, as a state machine. It has no clock and sends no requests.
//!
//! The invariant is that no two replicas lead at the same time. A leader's right ends one renew deadline after it has
//! *sent* its last successful renewal. The API server stored this renewal after it was sent, and a follower read it
//! after it was stored. From its read on, the follower waits for a whole lease duration, which is longer than the renew
//! deadline. It then takes over by a write that fails if another replica has written the Lease since the read.
//!
//! The two clocks need not show the same time. Only their rates matter. The faster rate divided by the slower rate must
//! be less than the lease duration divided by the renew deadline.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use requeue::Time;
use requeue::wait::{JitterSource, jitter};

use super::config::Config;
use super::lost::{End, LeadershipLost};
use crate::lease::Lease;
use crate::requests::{Answer, Call};
use crate::token::FencingToken;

/// The participation of one elector in an election. The caller tells it the time, sends the requests that it returns,
/// and passes on their results.
pub(crate) struct Election {
    config: Config,
    identity: String,
    jitter: JitterSource,
    seen: Option<Seen>,
    role: Role,
    plan: Plan,
    /// The request in flight, with the time at which it was sent.
    sent: Option<Plan>,
}

/// The Lease that this elector has read last, and the time at which it first read the present record.
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
    /// The time at which this elector sent its last successful renewal.
    renewed: Time,
    /// True if the last write had a conflict, after which the Lease is read immediately. After a second conflict in a
    /// row, the elector waits for the retry period before it reads the Lease.
    conflicted: bool,
    /// The next write. It is `Hold` until the caller asks for a release.
    write: Request,
}

impl Held {
    /// Returns the end of a term whose Lease was deleted, or has another holder. If this elector was releasing the
    /// Lease, this is the result of the release, and not a loss.
    fn end_without_lease(&self, lost: LeadershipLost) -> End {
        if self.write == Request::Release { End::Released } else { End::Lost(lost) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Request {
    Read,
    /// Creates the Lease, takes it over, or renews it.
    Hold,
    Release,
}

/// A request, with the time at which it must be sent or was sent.
struct Plan {
    request: Request,
    at: Time,
}

/// The next step that the driver must take.
#[must_use]
#[derive(Debug)]
pub(crate) enum Step {
    /// Make this call. If there is no response by `until`, the call has failed.
    Call { call: Call, until: Time },
    /// Wait until this time, and then poll again.
    Wait(Time),
    /// The election has ended. There is no further step.
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

    /// Returns the next step at the time `now`. `wall` is the time of day for the fields of the Lease.
    ///
    /// If the result of the previous call was not passed to [`handle_answer`](Self::handle_answer), that call is
    /// treated as failed.
    pub(crate) fn poll(&mut self, now: Time, wall: Timestamp) -> Step {
        self.handle_answer(now, Answer::Failed);
        self.step_down_when_late(now);
        if let Role::Ended(end) = &self.role {
            return Step::Ended(end.clone());
        }
        // No wait and no request lasts longer than the leader's right, so that the leader learns in time that its right
        // has ended.
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

    /// Makes the next write release the Lease. The work of the leader must have ended before.
    pub(crate) fn release(&mut self) {
        let Role::Leader(held) = &mut self.role else { return };
        // If the next request is a read, the read comes before the release, because it may show that the term has
        // ended.
        held.write = Request::Release;
        if self.plan.request == Request::Hold {
            self.plan = Plan { request: Request::Release, at: Time::ZERO };
        }
    }

    /// Makes the next renewal due now, instead of after the retry period.
    pub(super) fn renew_now(&mut self) {
        // A plan for a time in the past is due at the next poll.
        self.plan.at = Time::ZERO;
    }

    /// Returns the token of this elector's term, or `None` if this elector does not lead.
    pub(crate) fn fencing_token(&self) -> Option<&FencingToken> {
        match &self.role {
            Role::Leader(held) => Some(&held.token),
            Role::Follower | Role::Ended(_) => None,
        }
    }

    /// Returns the time at which this elector sent its last successful renewal, and the time at which its right
    /// therefore ends.
    pub(crate) fn right_times(&self) -> Option<(Time, Time)> {
        match &self.role {
            // The right begins when the renewal is sent, not when its response arrives. A late response therefore does
            // not lengthen the right.
            Role::Leader(held) => Some((held.renewed, held.renewed + self.config.renew_deadline)),
            Role::Follower | Role::Ended(_) => None,
        }
    }

    fn leading_until(&self) -> Option<Time> {
        self.right_times().map(|(_renewed, until)| until)
    }

    /// Returns the holder in the Lease that was read last, or `None` if it has no holder.
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
                // Each term gets a new number, even if the same elector takes its own Lease again. No two terms of one
                // Lease therefore have the same number.
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
            // The Lease may have been deleted while its leader still leads. A follower that has seen the holder waits
            // until the Lease would have expired. It then creates the Lease.
            (Request::Read, Answer::NotFound) if self.is_free(now) => {
                self.seen = None;
                return self.plan = Plan { request: Request::Hold, at: now };
            }
            (_, Answer::Lease(lease)) => {
                let mine = lease.holder() == self.identity;
                let token = lease.fencing_token();
                self.see_lease(lease, now);
                // If the response comes too late, this elector has no right to lead. The Lease still names it as the
                // holder, so it can take over its own Lease without a wait.
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
        // The wait is random, because several standbys that have seen the same renewal must not read at the same time.
        // client-go uses the same factor of 1.2.
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
                    // The safety of the election depends on this line. The right begins when the renewal was sent, and
                    // no other replica can have read the renewal before that time.
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
                // The conflicting write was made either by this elector, whose earlier response was lost, or by another
                // client, which has for example changed a label. After the first conflict, the elector reads the Lease
                // immediately.
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
            // If the record has not changed, the holder has not renewed the Lease, and the wait for the end of the
            // lease continues. A change of another field does not restart the wait.
            Some(seen) if seen.lease.same_record(&lease) => seen.since,
            Some(_) | None => now,
        };
        self.seen = Some(Seen { lease, since });
    }

    /// Returns true if the Lease that was read last has no holder, or has expired.
    fn is_free(&self, now: Time) -> bool {
        let Some(Seen { lease, since }) = &self.seen else { return true };
        let lease_duration =
            lease.duration_seconds().map_or(self.config.lease_duration, Duration::from_secs);
        // No other elector has this identity. If the Lease names this elector as its holder, the response to an earlier
        // write was lost.
        let unheld = lease.holder().is_empty() || lease.holder() == self.identity;
        unheld || now >= *since + lease_duration
    }

    /// Returns true if this elector may take the Lease that it has read last. If the number of the term is the highest
    /// possible one, no further term can begin, and a user must delete the Lease. An elector never takes the object of
    /// a shard group.
    fn may_take(&self) -> bool {
        let is_last = |seen: &Seen| seen.lease.transitions() == i32::MAX;
        !self.is_of_group() && !self.seen.as_ref().is_some_and(is_last)
    }

    /// Returns true if the Lease that was read last is the object of a shard group.
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
