//! The desired assignment of shards to members. It is even, and needs as few moves as possible.
//!
//! The result depends only on the present assignment and the live members. All replicas that see the same state
//! therefore compute the same result. If there are n members, each gets ⌊shards/n⌋ or ⌈shards/n⌉ shards. Only surplus
//! shards and shards without a live holder move. Rendezvous hashing selects the surplus shards and their new holders.
//! Rendezvous hashing alone would not be even enough: one of four members would often get 22 of 64 shards, 38 % more
//! than its share.
//!
//! After some of the moves, the desired holders of the other shards are still the same. Members can therefore move
//! their shards at different times, and still reach the same assignment.

use std::sync::Arc;

use super::assignment::{Assignment, Slot};
use crate::range::fnv1a;

/// Returns the desired holder of each shard. If there are no members, all holders are `None`. `live` must be sorted.
pub(super) fn desired_holders(assignment: &Assignment, live: &[Arc<str>]) -> Vec<Option<Arc<str>>> {
    debug_assert!(live.is_sorted(), "all replicas use the same order");
    let slots = assignment.slots();
    if live.is_empty() {
        return vec![None; slots.len()];
    }
    let quotas = member_quotas(slots, live);
    let scores = Scores::new(live);
    let mut to: Vec<Option<usize>> = vec![None; slots.len()];
    let mut free = quotas.clone();
    // Each member keeps the shards for which it has the highest scores, up to its quota.
    for (member, name) in live.iter().enumerate() {
        let mut own: Vec<_> =
            (0..slots.len()).filter(|shard| held_by(&slots[*shard], name)).collect();
        // If two shards have the same score, the lower number comes first. All replicas therefore sort alike.
        own.sort_by_key(|shard| (std::cmp::Reverse(scores.score_of(member, *shard)), *shard));
        own.truncate(quotas[member]);
        free[member] -= own.len();
        own.into_iter().for_each(|shard| to[shard] = Some(member));
    }
    for shard in 0..slots.len() {
        let to = &mut to[shard];
        if to.is_none() {
            let candidates = (0..live.len()).filter(|member| free[*member] > 0);
            *to = candidates.max_by_key(|member| scores.score_of(*member, shard));
            if let Some(member) = *to {
                free[member] -= 1;
            }
        }
    }
    debug_assert!(free.iter().all(|free| *free == 0), "every quota is used");
    to.into_iter().map(|member| member.map(|member| Arc::clone(&live[member]))).collect()
}

fn held_by(slot: &Slot, name: &str) -> bool {
    slot.holder.as_deref() == Some(name)
}

/// Returns the number of shards that each member should have. The sum is the number of all shards.
fn member_quotas(slots: &[Slot], live: &[Arc<str>]) -> Vec<usize> {
    let share = slots.len() / live.len();
    let extra = slots.len() % live.len();
    let has_extra = |name: &str| slots.iter().filter(|slot| held_by(slot, name)).count() > share;
    // If the shards cannot be divided evenly, some members get one more. These are first the members that already have
    // more, so that fewer shards move.
    let (mut order, others): (Vec<_>, Vec<_>) =
        (0..live.len()).partition(|member| has_extra(&live[*member]));
    order.extend(others);
    let mut quotas = vec![share; live.len()];
    order.into_iter().take(extra).for_each(|member| quotas[member] += 1);
    debug_assert_eq!(quotas.iter().sum::<usize>(), slots.len());
    quotas
}

/// The hashes of the members, from which rendezvous hashing computes a score for each member and shard.
struct Scores(Vec<u64>);

impl Scores {
    fn new(live: &[Arc<str>]) -> Self {
        Self(live.iter().map(|name| fnv1a(name.as_bytes())).collect())
    }

    fn score_of(&self, member: usize, shard: usize) -> u64 {
        mix_bits(self.0[member] ^ mix_bits(shard as u64))
    }
}

/// Returns the result of SplitMix64's last step. FNV-1a alone would give similar names similar high bits.
fn mix_bits(value: u64) -> u64 {
    let value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(members: std::ops::Range<usize>) -> Vec<Arc<str>> {
        members.map(|member| Arc::from(format!("web-{member:02}"))).collect()
    }

    fn moves(assignment: &Assignment, desired: &[Option<Arc<str>>]) -> Vec<usize> {
        let slots = assignment.slots();
        (0..slots.len()).filter(|shard| slots[*shard].holder != desired[*shard]).collect()
    }

    fn apply(assignment: &mut Assignment, live: &[Arc<str>]) -> usize {
        let desired = desired_holders(assignment, live);
        let moves = moves(assignment, &desired);
        for shard in &moves {
            assignment.set_holder(*shard, desired[*shard].clone());
        }
        moves.len()
    }

    fn loads(assignment: &Assignment, live: &[Arc<str>]) -> Vec<usize> {
        let count = |name| assignment.slots().iter().filter(|slot| held_by(slot, name)).count();
        live.iter().map(|name| count(name)).collect()
    }

    #[test]
    fn each_member_has_its_share_and_a_join_or_a_leave_moves_no_more_than_one_share() {
        for count in [1, 2, 64, 1024] {
            let mut assignment = Assignment::new(count);
            assert_eq!(apply(&mut assignment, &names(0..1)), count);
            for members in 2..12_usize {
                assert!(apply(&mut assignment, &names(0..members)) <= count / members);
                let loads = loads(&assignment, &names(0..members));
                assert_eq!(loads.iter().sum::<usize>(), count);
                assert!(
                    loads
                        .iter()
                        .all(|load| (count / members..=count.div_ceil(members)).contains(load))
                );
            }
            for first in 1..11_usize {
                let moved = apply(&mut assignment, &names(first..11));
                assert!(moved <= count.div_ceil(11 - first + 1), "{moved} of {count}");
            }
        }
    }

    #[test]
    fn a_member_with_the_desired_shards_keeps_them_all() {
        let mut assignment = Assignment::new(64);
        for members in 1..20 {
            apply(&mut assignment, &names(0..members));
            assert_eq!(apply(&mut assignment, &names(0..members)), 0);
        }
    }

    /// Members move their shards at different times, so the result must not depend on the order of the moves.
    #[test]
    fn each_move_leaves_the_other_moves_unchanged() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..300 {
            let mut assignment = Assignment::new(1 << random.usize(0..7));
            let all = names(0..8);
            let mut some = || -> Vec<_> {
                let some = all.iter().filter(|_| random.bool()).cloned().collect::<Vec<_>>();
                if some.is_empty() { all[..1].to_vec() } else { some }
            };
            apply(&mut assignment, &some());
            apply(&mut assignment, &some());
            let live = some();
            let target = desired_holders(&assignment, &live);
            let mut left = moves(&assignment, &target);
            random.shuffle(&mut left);
            for shard in left {
                assignment.set_holder(shard, target[shard].clone());
                assert_eq!(desired_holders(&assignment, &live), target);
            }
        }
    }

    /// Replicas with different versions of this crate may be in one group, and must compute the same assignment.
    #[test]
    fn the_scores_are_those_of_all_versions() {
        let scores = Scores::new(&names(0..2));
        let of = |member, shard| scores.score_of(member, shard);
        assert_eq!(
            [of(0, 0), of(0, 1), of(1, 0), of(1, 1)],
            [
                0xfc0d_8092_dff9_c4c2,
                0x596f_5578_4eea_1827,
                0x9133_382c_4429_fd0e,
                0xddd0_8898_44f5_2fee,
            ]
        );
    }
}
