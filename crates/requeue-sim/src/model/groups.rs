//! Operations on the keys of one team.

use requeue_core::Ending;

use super::Model;

/// The number of keys of a team in each state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct TeamStates {
    /// Ready keys.
    pub ready: usize,
    /// Keys that wait, and are neither ready nor in flight.
    pub waiting: usize,
    /// The keys that wait and have failed. `waiting` does not include these keys.
    pub backing_off: usize,
    /// Keys in flight.
    pub in_flight: usize,
    /// Keys in flight that are dirty.
    pub dirty: usize,
}

impl<K: Ord + Clone> Model<K> {
    /// Pauses or resumes the deliveries of a team.
    pub fn pause_team(&mut self, team: u64, paused: bool) {
        if self.ending < Ending::ShutDown {
            self.queue.pause(team, paused);
        }
    }

    /// Returns true if a team is paused.
    pub fn is_team_paused(&self, team: u64) -> bool {
        self.queue.is_paused(team)
    }

    /// Returns true if the queue or one of its teams is paused.
    pub fn pauses_any(&self) -> bool {
        self.paused || self.queue.pauses_any()
    }

    /// Returns true if `key` is not delivered because the queue or its team is paused.
    pub(super) fn is_stopped(&self, key: &K) -> bool {
        self.paused || self.queue.is_paused(self.teams[key].id)
    }

    /// Returns the known keys of a team.
    pub fn members(&self, team: u64) -> Vec<K> {
        let teams = self.teams.iter().filter(|(_, of)| of.id == team);
        teams.map(|(key, _)| key.clone()).collect()
    }

    /// Withdraws all pending runs of the keys of a team. Returns the number of keys that had a pending run.
    pub fn cancel_team(&mut self, team: u64) -> usize {
        let keys = self.members(team).into_iter();
        keys.filter_map(|key| self.cancel(&key)).filter(|cancelled| cancelled.any()).count()
    }

    /// Cancels the runs in flight of the keys of a team. Returns the numbers of the deliveries that this call has
    /// cancelled, in ascending order.
    pub fn cancel_running_team(&mut self, team: u64) -> Vec<u64> {
        let mut epochs = Vec::new();
        for key in self.members(team) {
            if let (_, Some(epoch)) = self.cancel_running(&key) {
                epochs.push(epoch);
            }
        }
        epochs.sort_unstable();
        epochs
    }

    /// Returns the number of keys of a team in each state.
    pub fn team_states(&self, team: u64) -> TeamStates {
        let mut states = TeamStates::default();
        for key in self.members(team) {
            let dirty = self.dirty.contains(&key);
            match self.is_in_flight(&key) {
                true => {
                    states.in_flight += 1;
                    states.dirty += usize::from(dirty);
                }
                false if dirty => states.ready += 1,
                false if !self.waiting.contains_key(&key) => {}
                false if self.failures(&key) > 0 => states.backing_off += 1,
                false => states.waiting += 1,
            }
        }
        states
    }
}
