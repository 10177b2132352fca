//! Operations on the keys of one team.

use requeue_core::GroupId;

use super::{Lockstep, inside};
use crate::model::TeamStates;
use crate::{Key, Op};

impl Lockstep {
    /// Applies an operation on a team. The operation is skipped if the keys of the queue have no groups, because the
    /// model always has teams.
    pub(super) fn on_team(&mut self, op: &Op) {
        if !self.queue.has_groups() {
            return;
        }
        match *op {
            Op::PauseTeam(team, paused) => {
                let team = self.setup.team(team).id;
                match paused {
                    true => self.queue.pause_group(GroupId::new(team)),
                    false => self.queue.resume_group(GroupId::new(team)),
                }
                self.model.pause_team(team, paused);
                // The keys are returned in several steps, as in a shared queue.
                while inside(|| self.queue.return_skipped(GroupId::new(team), 2)) {}
            }
            Op::CancelTeam(team) if !self.dropping => {
                let team = self.setup.team(team).id;
                let (mut walk, mut keys, mut core) = (self.queue.walk(), Vec::<Key>::new(), 0);
                while !walk.is_over() {
                    let is_cancelled = |group: GroupId| group.id() == team;
                    let cancel = || self.queue.cancel_groups(is_cancelled, &mut walk, 3, &mut keys);
                    core += inside(cancel);
                }
                assert_eq!(core, self.model.cancel_team(team), "cancelled keys");
            }
            Op::CancelRunningTeam(team) => {
                let team = self.setup.team(team).id;
                let (mut walk, mut epochs) = (self.queue.walk(), Vec::new());
                while !walk.is_over() {
                    self.queue.cancel_running_group(GroupId::new(team), &mut walk, 3, &mut epochs);
                }
                epochs.sort_unstable();
                assert_eq!(epochs, self.model.cancel_running_team(team), "cancelled runs");
            }
            _ => {}
        }
    }

    /// Compares the visible state of each team.
    pub(super) fn compare_teams(&self) {
        if !self.queue.has_groups() || self.dropping {
            return;
        }
        for team in 0..self.setup.teams {
            let team = u64::from(team);
            let states = self.queue.group_states(GroupId::new(team));
            let core = TeamStates {
                ready: states.ready,
                waiting: states.waiting,
                backing_off: states.backing_off,
                in_flight: states.in_flight,
                dirty: states.dirty,
            };
            assert_eq!(core, self.model.team_states(team), "states of team {team}");
            let paused = self.queue.is_group_paused(GroupId::new(team));
            assert_eq!(paused, self.model.is_team_paused(team), "team {team} is paused");
        }
    }
}
