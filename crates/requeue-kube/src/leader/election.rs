//! The algorithm: client-go's, without a clock and without a network.
//!
//! Why no two lead at once: a leader's right ends a renew deadline after its last good renewal was
//! *sent*. That renewal was written no earlier, and read by a follower no earlier than that, who
//! then waits for a whole lease, which is longer. It takes over by a write that fails if anyone has
//! written in between. Only the rates of the two clocks matter: that lease over renew deadline is
//! more than the one runs faster than the other. They need not agree on what time it is.

use std::time::Duration;

use k8s_openapi::jiff::Timestamp;
use requeue::Time;
use requeue::wait::{JitterSource, jitter};
use serde_json::Value;

use super::config::Config;
use super::fence::Token;
use super::leadership::LeadershipLost;
use super::lease::Lease;

/// One elector's part in an election. It is told the time, and says what to ask of the API server.
pub(super) struct Election {
    config: Config,
    identity: String,
    jitter: JitterSource,
    seen: Option<Seen>,
    role: Role,
    plan: Plan,
    /// The request that is under way.
    sent: Option<Sent>,
}

/// The Lease last read, and when its record was first read as it is.
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
    token: Token,
    /// When the last good renewal was sent.
    renewed: Time,
    /// A write has met another's, and the Lease was read anew: the next such waits its turn.
    conflicted: bool,
    /// What is written next: `Hold`, until it is to be released.
    write: Ask,
}

impl Held {
    /// What it is that the Lease was found in other hands: our release, when we were at it.
    fn gone(&self, lost: LeadershipLost) -> End {
        if self.write == Ask::Release { End::Released } else { End::Lost(lost) }
    }
}

/// How an elector's part is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum End {
    Released,
    Lost(LeadershipLost),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ask {
    Read,
    /// Create, take over or renew.
    Hold,
    Release,
}

/// What is asked next, and when.
struct Plan {
    ask: Ask,
    at: Time,
}

struct Sent {
    ask: Ask,
    at: Time,
}

/// What to do now.
#[must_use]
#[derive(Debug)]
pub(super) enum Step {
    /// Make this call. What has not been answered by then counts as failed.
    Call { call: Call, until: Time },
    /// Nothing, until then.
    Wait(Time),
    /// Nothing any more.
    Ended(End),
}

#[derive(Clone, Debug)]
pub(super) enum Call {
    Get,
    Create(Value),
    /// The `resourceVersion` in it is the precondition.
    Replace(Value),
}

/// What came of a call.
#[derive(Clone, Debug)]
pub(super) enum Answer {
    Lease(Lease),
    NotFound,
    /// Another has written, or created it.
    Conflict,
    /// Refused, unreachable or too late. What was to be written may be written all the same.
    Failed,
}

impl Election {
    pub(super) fn new(config: Config, identity: String, jitter: JitterSource, now: Time) -> Self {
        Self {
            config,
            identity,
            jitter,
            seen: None,
            role: Role::Follower,
            plan: Plan { ask: Ask::Read, at: now },
            sent: None,
        }
    }

    /// What to do at `now`, of which `wall` is the time of day.
    ///
    /// Who asks again without having answered has given the call up: it counts as failed.
    pub(super) fn poll(&mut self, now: Time, wall: Timestamp) -> Step {
        self.answer(now, Answer::Failed);
        self.step_down_when_late(now);
        if let Role::Ended(end) = &self.role {
            return Step::Ended(end.clone());
        }
        let end = self.leading_until().unwrap_or(Time::NEVER);
        if now < self.plan.at {
            return Step::Wait(self.plan.at.min(end));
        }
        let ask = self.plan.ask;
        self.sent = Some(Sent { ask, at: now });
        Step::Call {
            call: self.call(ask, wall),
            until: (now + self.config.request_limit()).min(end),
        }
    }

    /// What came of the call that is under way.
    pub(super) fn answer(&mut self, now: Time, answer: Answer) {
        let Some(sent) = self.sent.take() else { return };
        self.step_down_when_late(now);
        match self.role {
            Role::Follower => self.follow(sent, now, answer),
            Role::Leader(_) => self.lead(sent, now, answer),
            Role::Ended(_) => {}
        }
    }

    /// Gives the Lease back, as soon as may be. For a leader that has let go of all its work.
    pub(super) fn release(&mut self) {
        let Role::Leader(held) = &mut self.role else { return };
        held.write = Ask::Release;
        if self.plan.ask == Ask::Hold {
            self.plan = Plan { ask: Ask::Release, at: Time::ZERO };
        }
    }

    /// Renews without waiting for its time.
    pub(super) fn hurry(&mut self) {
        self.plan.at = Time::ZERO;
    }

    /// Of the term that this one leads in, as things are; `None` when it does not.
    pub(super) fn token(&self) -> Option<&Token> {
        match &self.role {
            Role::Leader(held) => Some(&held.token),
            Role::Follower | Role::Ended(_) => None,
        }
    }

    /// When the last good renewal was sent, and until when it is good.
    pub(super) fn times(&self) -> Option<(Time, Time)> {
        match &self.role {
            Role::Leader(held) => Some((held.renewed, held.renewed + self.config.renew_deadline)),
            Role::Follower | Role::Ended(_) => None,
        }
    }

    fn leading_until(&self) -> Option<Time> {
        self.times().map(|(_renewed, until)| until)
    }

    /// Who holds the Lease, as far as is known.
    pub(super) fn holder(&self) -> Option<&str> {
        self.seen.as_ref().map(|seen| seen.lease.holder()).filter(|holder| !holder.is_empty())
    }

    fn call(&self, ask: Ask, wall: Timestamp) -> Call {
        let seconds = self.config.lease_seconds();
        match (ask, &self.seen) {
            (Ask::Read, _) => Call::Get,
            (Ask::Hold | Ask::Release, None) => {
                Call::Create(Lease::create(&self.config.name, &self.identity, seconds, wall))
            }
            (Ask::Release, Some(Seen { lease, .. })) => Call::Replace(lease.release(wall)),
            (Ask::Hold, Some(Seen { lease, .. })) => Call::Replace(match self.role {
                Role::Leader(_) => lease.renew(seconds, wall),
                // Always a new number, so that no two terms of one Lease have the same.
                Role::Follower | Role::Ended(_) => {
                    lease.take(&self.identity, seconds, lease.transitions().saturating_add(1), wall)
                }
            }),
        }
    }

    fn follow(&mut self, sent: Sent, now: Time, answer: Answer) {
        match (sent.ask, answer) {
            (Ask::Read, Answer::Lease(lease)) => {
                self.see(lease, now);
                if self.is_free(now) {
                    return self.plan = Plan { ask: Ask::Hold, at: now };
                }
            }
            // Deleted, perhaps, while its leader does not know: who has seen it waits it out.
            (Ask::Read, Answer::NotFound) if self.is_free(now) => {
                self.seen = None;
                return self.plan = Plan { ask: Ask::Hold, at: now };
            }
            (_, Answer::Lease(lease)) => {
                let (mine, token) = (lease.holder() == self.identity, lease.token());
                self.see(lease, now);
                // An answer that comes too late is no right to lead, but the Lease is ours to take.
                if mine && now < sent.at + self.config.renew_deadline {
                    let held =
                        Held { token, renewed: sent.at, conflicted: false, write: Ask::Hold };
                    self.role = Role::Leader(held);
                    let at = sent.at + self.config.retry_period;
                    return self.plan = Plan { ask: Ask::Hold, at };
                }
            }
            (_, Answer::NotFound | Answer::Conflict | Answer::Failed) => {}
        }
        let pause = jitter(self.config.retry_period, 1.2, &mut self.jitter);
        self.plan = Plan { ask: Ask::Read, at: sent.at + pause };
    }

    fn lead(&mut self, sent: Sent, now: Time, answer: Answer) {
        let Role::Leader(held) = &mut self.role else { return };
        let later = sent.at + self.config.retry_period;
        match (sent.ask, answer) {
            (Ask::Release, Answer::Lease(lease)) => {
                self.role = Role::Ended(End::Released);
                self.see(lease, now);
            }
            (ask, Answer::Lease(lease)) => {
                if lease.holder() != self.identity || lease.token() != held.token {
                    let by = lease.holder().to_owned();
                    self.role = Role::Ended(held.gone(LeadershipLost::Taken { by }));
                } else if ask == Ask::Read {
                    self.plan = Plan { ask: held.write, at: now };
                } else {
                    (held.renewed, held.conflicted) = (sent.at, false);
                    let at = if held.write == Ask::Hold { later } else { now };
                    self.plan = Plan { ask: held.write, at };
                }
                self.see(lease, now);
            }
            (Ask::Read, Answer::NotFound) => {
                self.role = Role::Ended(held.gone(LeadershipLost::Deleted));
            }
            (Ask::Hold | Ask::Release, Answer::Conflict | Answer::NotFound) => {
                // Our own write whose answer was lost, or someone's of a label: once, read at once.
                let at = if held.conflicted { later } else { now };
                held.conflicted = !held.conflicted;
                self.plan = Plan { ask: Ask::Read, at };
            }
            (ask, Answer::Conflict | Answer::Failed) => {
                let ask = if ask == Ask::Read { ask } else { held.write };
                self.plan = Plan { ask, at: later };
            }
        }
    }

    fn see(&mut self, lease: Lease, now: Time) {
        let since = match &self.seen {
            Some(seen) if seen.lease.same_record(&lease) => seen.since,
            Some(_) | None => now,
        };
        self.seen = Some(Seen { lease, since });
    }

    /// Whether a follower may take the Lease that was last seen.
    fn is_free(&self, now: Time) -> bool {
        let Some(Seen { lease, since }) = &self.seen else { return true };
        let lease_duration =
            lease.duration_seconds().map_or(self.config.lease_duration, Duration::from_secs);
        // Held by us: of a write whose answer was lost. The identity is nobody else's.
        let unheld = lease.holder().is_empty() || lease.holder() == self.identity;
        // The last number there is has no next: that Lease has to be deleted.
        lease.transitions() < i32::MAX && (unheld || now >= *since + lease_duration)
    }

    fn step_down_when_late(&mut self, now: Time) {
        if self.leading_until().is_some_and(|end| now >= end) {
            let lost = LeadershipLost::RenewDeadline(self.config.renew_deadline);
            self.role = Role::Ended(End::Lost(lost));
        }
    }
}
