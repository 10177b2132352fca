//! The requests and watches between the replicas and the server. Messages can be delayed or lost.

use super::{Answered, Event, Planted, Real, SECOND, What, World, nanos};
use crate::requests::{Answer, Call};

impl World {
    /// Returns the delay of a message. In most cases it is short. With the probability `slow`, it
    /// can exceed the request's time limit.
    pub(super) fn delay(&mut self, slow: u32) -> Real {
        let limit = nanos(self.config.request_limit());
        let most = if self.chance(slow) { limit * 2 } else { SECOND / 20 };
        self.random.u64(1000..most)
    }

    pub(super) fn send(&mut self, who: usize, of: usize, what: What) {
        self.numbers += 1;
        let number = self.numbers;
        let cut_off = self.is_cut_off(who);
        let replica = self.replica(who);
        replica.calls[of] = number;
        let epoch = replica.epoch;
        let (lost, slow) = (replica.lost, replica.slow);
        if !cut_off && !self.chance(lost) {
            let at = self.now + self.delay(slow);
            self.at(at, Event::Arrives { who, epoch, number, what });
        }
    }

    /// Executes a request at the server. The replica that sent it may have crashed in the meantime.
    pub(super) fn serve(&mut self, event: Event) {
        match event {
            Event::Arrives { who, epoch, number, what } => {
                let answer = match what {
                    What::Group(Call::Read(name))
                        if self.planted == Some(Planted::NoFreshRead)
                            && name != "web"
                            && self.runs(who, epoch) =>
                    {
                        let shown = self.replica(who).shown.get(&name).cloned();
                        Answered::Group(shown.map_or(Answer::NotFound, Answer::Lease))
                    }
                    What::Group(call) => Answered::Group(self.server.call(call)),
                    What::Election(call) => Answered::Election(self.server.call(call)),
                };
                if !self.runs(who, epoch) {
                    return;
                }
                let (lost, slow) = (self.replica(who).lost, self.replica(who).slow);
                if !self.is_cut_off(who) && !self.chance(lost) {
                    let at = self.now + self.delay(slow);
                    self.at(at, Event::Answered { who, epoch, number, answer });
                }
            }
            Event::ListArrives { who, epoch, watch } => {
                if !self.runs(who, epoch) || self.replica(who).watch != watch {
                    return;
                }
                if self.is_cut_off(who) {
                    let at = self.now + SECOND / 2;
                    return self.at(at, Event::ListArrives { who, epoch, watch });
                }
                let slow = self.replica(who).slow;
                let at = self.now + self.delay(slow);
                for event in self.server.list() {
                    self.at(at, Event::Watched { who, epoch, watch, event });
                }
                let replica = self.replica(who);
                (replica.watching, replica.delivered) = (true, at);
            }
            _ => {}
        }
    }

    /// Sends the new events of the server to all watches, in the order of the events.
    pub(super) fn broadcast(&mut self) {
        for event in std::mem::take(&mut self.server.events) {
            for who in 0..self.replicas.len() {
                let Some(replica) = &self.replicas[who] else { continue };
                if !replica.watching {
                    continue;
                }
                let (epoch, watch, lags) = (replica.epoch, replica.watch, replica.lags);
                let delivered = replica.delivered;
                let cut_off = if self.faults { replica.cut_off_until } else { 0 };
                let lag = if self.chance(lags) {
                    self.random.u64(..nanos(self.config.lease_duration) * 2)
                } else {
                    self.random.u64(1000..SECOND / 20)
                };
                let at = (self.now + lag).max(delivered).max(cut_off);
                self.replica(who).delivered = at;
                let event = event.clone();
                self.at(at, Event::Watched { who, epoch, watch, event });
            }
        }
    }

    fn is_cut_off(&mut self, who: usize) -> bool {
        self.faults && self.now < self.replica(who).cut_off_until
    }
}
