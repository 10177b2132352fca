//! The driver of an [`Election`], which connects it with a clock and an API server.

use std::sync::Arc;

use super::election::{Election, Step};
use super::leadership::{Led, Shared};
use super::lost::End;
use crate::requests::{Answer, Requests};
use crate::simulation::now;
use crate::token::FencingToken;

pub(super) struct Driver {
    pub(super) election: Election,
    pub(super) requests: Requests,
    pub(super) shared: Arc<Shared>,
    /// True if the driver has logged that the Lease belongs to a shard group.
    pub(super) has_reported: bool,
}

impl Driver {
    /// Reads the Lease repeatedly, and takes it when it is free. Returns when this process leads. Returns `None` if the
    /// elector has only one attempt, and this attempt has failed.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, a request in flight is treated as failed.
    pub(super) async fn acquire(&mut self) -> Option<FencingToken> {
        loop {
            let ended = self.take_step().await.is_some();
            let token = self.election.fencing_token();
            if ended || token.is_some() {
                return token.cloned();
            }
        }
    }

    /// Renews the Lease until the term ends: the term is lost, or the Lease is released on request.
    pub(super) async fn hold_lease(&mut self) -> End {
        loop {
            if let Some(end) = self.take_step().await {
                return end;
            }
        }
    }

    async fn take_step(&mut self) -> Option<End> {
        let clock = &self.shared.clock;
        match self.election.poll(clock.now(), now()) {
            Step::Call { call, until } => {
                let answer = tokio::select! {
                    biased;
                    // If the response to a write comes too late, the write may still be executed. The next write then
                    // has a conflict, and the election reads the Lease again.
                    answer = self.requests.make_call(call) => answer,
                    () = clock.sleep_until(until) => {
                        tracing::warn!(lease = self.shared.lease, "a request of the leader election timed out");
                        Answer::Failed
                    }
                };
                self.election.handle_answer(clock.now(), answer);
                self.publish_state();
                None
            }
            Step::Wait(at) => {
                tokio::select! {
                    biased;
                    () = clock.sleep_until(at) => {}
                    () = self.shared.wake.notified() => self.handle_wake(),
                }
                None
            }
            Step::Ended(end) => Some(end),
        }
    }

    /// Handles a wake, which asks the election to renew the Lease now or to release it.
    fn handle_wake(&mut self) {
        // A wake carries no value, and several wakes can become one. The state of the term shows what to do.
        let release = self.shared.view.borrow().led.as_ref().is_some_and(|led| led.released);
        if release { self.election.release() } else { self.election.renew_now() }
    }

    fn publish_state(&mut self) {
        if self.election.is_of_group() && !std::mem::replace(&mut self.has_reported, true) {
            tracing::error!(
                lease = self.shared.lease,
                "the Lease is the object of a shard group, so this process cannot become the leader: \
                 use another name for the election or the group, or delete the Lease if the group is \
                 no longer used"
            );
        }
        let holder = self.election.holder().map(str::to_owned);
        let times = self.election.right_times();
        // One update changes the holder and the right, so that no observer sees a new holder with an earlier right.
        self.shared.view.send_modify(|view| {
            if view.holder != holder {
                tracing::info!(lease = self.shared.lease, leader = ?holder, "the lease has another holder");
                view.holder = holder;
            }
            if let Some((renewed, until)) = times {
                let led = view.led.get_or_insert_with(Led::default);
                led.renewed = renewed;
                led.until = until;
            }
        });
    }
}
