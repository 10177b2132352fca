//! Claims keys from the shards of a queue.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{Instant, timeout};

use super::names::Shard;
use super::node::Line;
use super::values::{self, Health, ShardClaim, Values};
use super::{Redis, completion_flags, epoch_of};
use crate::engine::outage::Part;
use crate::engine::time::micros;
use crate::engine::{Claim, Claimed, Place, lock};
use crate::types::error::{Answer, EngineError, Kind};

/// The timeout of a claim. If the answer arrives later, its keys stay in flight until their leases expire.
const CLAIMING: Duration = Duration::from_secs(3);
/// The time in which replicas should confirm a claim, if `wait` is set. Without the confirmation, the claim is valid
/// nevertheless, but later claims wait for it.
const WAIT: Duration = Duration::from_millis(200);
/// The timeout of a request for the number of keys that can be claimed from a shard.
const PEEKING: Duration = Duration::from_secs(1);
/// The interval after which a shard that did not answer is asked again.
const RESTING: Duration = Duration::from_secs(2);

impl Redis {
    async fn claim_of(
        &self,
        queue: &Place,
        shards: &Arc<Vec<Shard>>,
        number: usize,
        claim: Claim,
    ) -> Answer<Claimed> {
        let Claim { max, oldest, lease, expired, .. } = claim;
        let mut command = self.nodes.scripts.claim.on(&shards[number]);
        command.arg(max).arg(oldest).arg(micros(lease)).arg(completion_flags(queue));
        command.arg(values::expired_words(&expired.nth(number + 1))).arg(shards.len());
        command.arg(&*queue.worker);
        let has_groups = queue.group_by.is_some();
        let rounds = has_groups.then(|| lock(&shards[number].turns).next_rounds());
        if let Some(rounds) = &rounds {
            values::push_rounds(&mut command, rounds);
        }
        let line = (Line::WaitingClaims, WAIT);
        let run = self.run_and_wait(&shards[number], &command, line);
        let (answer, replicas) =
            in_time(CLAIMING, &shards[number], run).await.inspect_err(|fault| {
                queue.note_failure(Part::Shard(number), fault);
            })?;
        queue.note_answer(|| Part::Shard(number));
        let ShardClaim { mut claimed, at, health, needs_search, visited } =
            values::read_claimed(answer, has_groups)?;
        if let Some(rounds) = rounds {
            let mut turns = lock(&shards[number].turns);
            if claimed.is_rated {
                turns.note_rate();
            }
            claimed.is_rated |= turns.has_rates();
            if needs_search {
                turns.forget_search();
            }
            if let Some(visited) = visited {
                let count = claimed.items.len();
                let is_searching = turns.note_visited(visited, count, max);
                claimed.next = turns.next_claim(is_searching, count, at, claimed.next);
            } else {
                turns.return_rounds(rounds);
            }
        }
        claimed.next = self.start_repair(queue, shards, number, health).or(claimed.next);
        if !claimed.items.is_empty() && replicas < self.wait {
            tracing::debug!(
                queue = queue.name,
                replicas,
                "fewer replicas than requested have confirmed claims"
            );
        }
        for item in &mut claimed.items {
            // Shards count tokens independently. Two shards may have used the same token.
            item.epoch = epoch_of(item.epoch, number, shards.len());
        }
        Ok(claimed)
    }

    /// Asks how many keys can be claimed from a shard, without claiming them.
    async fn peek_shard(
        &self,
        queue: &Place,
        shards: &Arc<Vec<Shard>>,
        number: usize,
    ) -> Answer<Peeked> {
        let shard = &shards[number];
        let command = self.nodes.scripts.peek.on(shard);
        let run = self.run_script(shard, &command);
        let found = in_time(PEEKING, shard, run).await;
        let found = found.inspect_err(|fault| queue.note_failure(Part::Shard(number), fault))?;
        queue.note_answer(|| Part::Shard(number));
        let mut found = Values::from_array(found)?;
        let (due, next) = (found.number::<u32>()? as usize, found.time_if_any()?);
        let health = if found.is_true()? { Health::Damaged(0) } else { Health::Good };
        let schedule_in = found.time_if_any()?;
        let next = self.start_repair(queue, shards, number, health).or(next);
        Ok(Peeked { due, rest: Claimed { next, schedule_in, ..Claimed::default() } })
    }

    /// Claims from one shard, and also from other shards that have keys if the first shard has too few. A shard that
    /// does not answer does not delay the others. The engine asks such a shard again at intervals, to detect when it
    /// answers again.
    pub(super) async fn claim_shards(
        &self,
        queue: &Place,
        begin: usize,
        claim: Claim,
    ) -> Answer<Claimed> {
        let shards = self.shards_of(queue)?;
        let count = shards.len();
        let mut others: Vec<usize> = (0..count).map(|n| (begin + n) % count).collect();
        // Shards that did not answer are skipped. A claim from such a shard would delay the getters until its timeout.
        let well = others.iter().position(|&number| lock(&shards[number].silent).is_none());
        let mut all = Gathered::default();
        if let Some(first) = well {
            let first = others.remove(first);
            all.take_part(self.claim_of(queue, &shards, first, claim).await);
            if others.is_empty() || all.claimed.items.len() >= claim.max {
                return all.into_claimed();
            }
            others.retain(|&number| {
                lock(&shards[number].silent).is_none_or(|since| since.elapsed() > RESTING)
            });
        }
        let peeked = others.iter().map(|&number| self.peek_shard(queue, &shards, number));
        let peeked = join_all(peeked).await;
        if queue.group_by.is_some() {
            let claims = self.claim_others_by_turns(queue, &shards, &others, peeked, claim, all);
            return claims.await;
        }
        // All shards together must not deliver more keys than the claim requests.
        let (mut left, mut oldest) = (claim.max - all.claimed.items.len(), claim.oldest);
        oldest = oldest.saturating_sub(all.claimed.items.len());
        let mut claims = Vec::new();
        for (&number, peeked) in others.iter().zip(peeked) {
            let due = match peeked {
                Ok(Peeked { due, rest }) if due == 0 || left == 0 => {
                    all.take_part(Ok(rest));
                    continue;
                }
                Ok(Peeked { due, .. }) => due.min(left),
                Err(fault) => {
                    all.take_part(Err(fault));
                    continue;
                }
            };
            let part = Claim { max: due, oldest: oldest.min(due), ..claim };
            claims.push(self.claim_of(queue, &shards, number, part));
            left -= due;
            oldest -= part.oldest;
        }
        for claimed in join_all(claims).await {
            all.take_part(claimed);
        }
        all.into_claimed()
    }
}

impl Redis {
    /// Claims from the shards `others` of a queue with groups. The limits of groups may hold back many of the ready
    /// keys of a shard, so the claim does not rely on the number of its keys. Each round of claims divides the wanted
    /// keys among the shards that were not visited yet.
    async fn claim_others_by_turns(
        &self,
        queue: &Place,
        shards: &Arc<Vec<Shard>>,
        others: &[usize],
        peeked: Vec<Answer<Peeked>>,
        claim: Claim,
        mut all: Gathered,
    ) -> Answer<Claimed> {
        let mut open = VecDeque::new();
        for (&number, peeked) in others.iter().zip(peeked) {
            match peeked {
                Ok(Peeked { due: 0, rest }) => all.take_part(Ok(rest)),
                Ok(_) => open.push_back(number),
                Err(fault) => all.take_part(Err(fault)),
            }
        }
        let mut was_cut = false;
        while !open.is_empty() && all.claimed.items.len() < claim.max {
            let before = all.claimed.items.len();
            let mut left = claim.max - before;
            let (mut oldest, each) =
                (claim.oldest.saturating_sub(before), left.div_ceil(open.len()));
            let mut claims = Vec::new();
            while let Some(number) = open.front().copied().filter(|_| left > 0) {
                open.pop_front();
                let max = each.min(left);
                let part = Claim { max, oldest: oldest.min(max), ..claim };
                claims.push(async move { (max, self.claim_of(queue, shards, number, part).await) });
                left -= max;
                oldest -= part.oldest;
            }
            for (max, claimed) in join_all(claims).await {
                was_cut |= claimed.as_ref().is_ok_and(|claimed| claimed.items.len() == max);
                all.take_part(claimed);
            }
        }
        let mut claimed = all.into_claimed()?;
        if was_cut && claimed.items.len() < claim.max {
            // A shard may have more keys than its share of the claim, so the process claims again immediately.
            claimed.next = Some(Duration::ZERO);
        }
        Ok(claimed)
    }
}

/// The contents of a shard, read without a claim.
struct Peeked {
    /// The number of keys that can be claimed.
    due: usize,
    /// The result for the shard if the claim takes none of these keys.
    rest: Claimed,
}

/// The combined results of the shards.
#[derive(Default)]
struct Gathered {
    claimed: Claimed,
    answered: bool,
    fault: Option<EngineError>,
}

impl Gathered {
    fn take_part(&mut self, claimed: Answer<Claimed>) {
        match claimed {
            Ok(Claimed { items, next, damaged, parked, is_paused, schedule_in, is_rated }) => {
                let all = &mut self.claimed;
                all.is_paused |= is_paused;
                all.is_rated |= is_rated;
                all.items.extend(items);
                all.damaged.extend(damaged);
                all.parked.extend(parked);
                all.next = all.next.into_iter().chain(next).min();
                all.schedule_in = all.schedule_in.into_iter().chain(schedule_in).min();
                self.answered = true;
            }
            Err(fault) => {
                let is_dropped = |fault: &EngineError| fault.kind == Kind::Dropped;
                self.fault = self.fault.take().filter(is_dropped).or(Some(fault));
            }
        }
    }

    /// Returns the combined result. The failure of a shard is returned only if no other shard has answered. The queue
    /// counts as paused only if no shard has delivered a key. Otherwise, the client would return these keys to the
    /// store, and claim them again immediately.
    fn into_claimed(self) -> Answer<Claimed> {
        let Self { claimed, answered, fault } = self;
        let has_items = !claimed.items.is_empty();
        match fault {
            Some(fault) if !answered || fault.kind == Kind::Dropped && !has_items => Err(fault),
            // The failure of a shard was already reported.
            Some(_) | None => Ok(Claimed { is_paused: claimed.is_paused && !has_items, ..claimed }),
        }
    }
}

/// Runs a request with the timeout `limit`. Records whether the shard has answered.
async fn in_time<T>(
    limit: Duration,
    shard: &Shard,
    ran: impl Future<Output = Answer<T>>,
) -> Answer<T> {
    let ran = timeout(limit, ran).await;
    let ran = ran.unwrap_or_else(|_| Err(EngineError::late()));
    // The value is the time of the last failure. After an interval from this time, the shard is asked again.
    *lock(&shard.silent) = ran.is_err().then(Instant::now);
    ran
}
