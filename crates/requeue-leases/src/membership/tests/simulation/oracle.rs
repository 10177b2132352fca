//! The conditions that must hold all the time, and the conditions that must hold after all faults
//! have stopped.

use std::sync::Arc;
use std::time::Duration;

use super::{Event, Planted, Real, World, nanos};
use crate::leader::election::Election;
use crate::membership::assignment::GroupLease;
use crate::testing::lease;

impl World {
    /// Updates the set of shards on which this replica acts. Checks that no other replica acts on
    /// one of them.
    pub(super) fn look(&mut self, who: usize) {
        let Some(replica) = &self.replicas[who] else { return };
        let until =
            replica.election.as_ref().and_then(Election::right_times).map(|(_, until)| until);
        let until = until.map_or(0, |until| self.real(who, until));
        let overstays = self.planted == Some(Planted::OverstaysRight);
        let planted = self.planted;
        let replica = self.replicas[who].as_mut().expect("it was there");
        let mut acting = 0_u64;
        let mut tokens = Vec::new();
        for shard in 0..self.layout.count {
            if let Some(number) = replica.group.acting_number(shard)
                && self.now < until
            {
                acting |= 1 << shard;
                if replica.acting & 1 << shard == 0 {
                    tokens.push((shard, number));
                }
            }
        }
        if planted == Some(Planted::ActsUntilResponse) && replica.calls[0] != 0 {
            acting |= replica.acting;
        }
        acting |= replica.undrained;
        if replica.leaving && planted != Some(Planted::ReleasesEarly) {
            acting = 0;
        }
        if planted == Some(Planted::ReleasesEarly) && replica.stopping {
            acting |= replica.acting;
        }
        (replica.acting, replica.until_real) = (acting, until.max(replica.until_real));
        if overstays {
            replica.until_real = replica.until_real.max(until + nanos(self.config.lease_duration));
        } else if until != 0 {
            replica.until_real = until;
        }
        let (member, until) = (Arc::clone(&replica.member), replica.until_real);
        let uid = replica.group.group().map(|group| group.uid().to_owned()).unwrap_or_default();
        for (shard, number) in tokens {
            let token = self.tokens.entry((uid.clone(), shard)).or_insert((0, Arc::clone(&member)));
            assert!(
                number > token.0 || (number == token.0 && token.1 == member),
                "{member} has number {number} of shard {shard}, after {token:?}"
            );
            *token = (number, Arc::clone(&member));
        }
        if self.now < until {
            for other in (0..self.replicas.len()).filter(|other| *other != who) {
                let Some(other) = &self.replicas[other] else { continue };
                let both = acting & other.acting;
                assert!(
                    both == 0 || self.now >= other.until_real,
                    "{member} and {} both act on shards {both:#b} at {:?}",
                    other.member,
                    Duration::from_nanos(self.now)
                );
            }
        }
        self.refresh();
    }

    /// Updates, for each shard, the time for which no replica has acted on it.
    pub(super) fn refresh(&mut self) {
        let running =
            self.replicas.iter().flatten().filter(|replica| self.now < replica.until_real);
        let acting = running.fold(0, |all, replica| all | replica.acting);
        for (shard, unheld) in self.unheld.iter_mut().enumerate() {
            if acting & 1 << shard == 0 {
                unheld.get_or_insert(self.now);
            } else if let Some(since) = unheld.take() {
                self.longest_gap = self.longest_gap.max(self.now - since);
            }
        }
    }

    /// Runs the simulation without faults until its state must be stable, and then checks this
    /// state.
    pub(super) fn calm(&mut self, duration: Real, members: usize) {
        self.longest_gap = 0;
        self.run_until(self.now + duration);
        self.refresh();
        let now = self.now;
        let running: Vec<_> = self.replicas.iter().flatten().collect();
        assert_eq!(running.len(), members);
        let loads: Vec<_> =
            running.iter().map(|replica| replica.acting.count_ones() as usize).collect();
        let count = self.layout.count;
        assert!(
            self.unheld.iter().all(Option::is_none)
                && loads
                    .iter()
                    .all(|load| (count / members..=count.div_ceil(members)).contains(load)),
            "{count} shards are distributed as {loads:?} at {:?}",
            Duration::from_nanos(now)
        );
        assert_eq!(self.server.leases.len(), members + 1, "Leases are left");
        let group = lease(&self.server.leases["web"]);
        let group = GroupLease::from_lease(group).unwrap();
        for (shard, slot) in group.assignment.slots().iter().enumerate() {
            let holder =
                running.iter().find(|replica| Some(&replica.member) == slot.holder.as_ref());
            assert!(holder.is_some_and(|replica| replica.acting & 1 << shard != 0));
        }
    }

    /// Starts a replica several times. Each time, it crashes before it has renewed its Lease.
    pub(super) fn crash_loop(&mut self) {
        let who = self.replicas.len();
        self.replicas.push(None);
        self.longest_gap = 0;
        let (moves, created) = (self.moves, self.server.created);
        for _ in 0..5 {
            self.at(self.now, Event::Start(who));
            // The replica runs for one retry period by the fastest clock. It therefore crashes
            // before its first renewal.
            self.run_until(self.now + nanos(self.config.retry_period) * 1000 / self.rates);
            self.replicas[who] = None;
            self.refresh();
            let pause = self.random.u64(..nanos(self.config.lease_duration));
            self.run_until(self.now + pause);
        }
        assert!(self.server.created > created, "no Lease was created");
        let (moves, gap) = (self.moves - moves, Duration::from_nanos(self.longest_gap));
        assert_eq!((moves, gap), (0, Duration::ZERO), "moves and gaps in a crash loop");
    }
}
