//! Claims keys from queues with groups. The groups take turns, and a claim skips a group that has reached its limit.
//!
//! The index `keys_turns` contains only ready keys, so groups without ready keys cost nothing. If a row is written
//! before its key is due, `is_due` is 0. The first claim after the due time sets it to 1.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{OptionalExtension, Result, named_params, params};

use super::rows::{COLUMNS, read_row};
use super::thread::Work;
use crate::engine::row::Row;
use crate::engine::time::{Micros, until};
use crate::engine::turns::{Bands, Round, Turn, Visited, turns_each};
use crate::engine::{Claim, Delivery, GroupChange, Place, lock};
use crate::types::add::Priority;
use crate::types::inspect::{GroupInfo, StateCounts};
use crate::types::key::Key;

/// The maximum number of keys that one claim marks as due.
const MARKED: i64 = 256;

/// A group that a claim visits.
struct Candidate {
    turn: Turn,
    /// True if the group comes from the ring. False if the claim has looked the group up.
    is_first: bool,
    weight: u32,
    /// The limit of the group's keys in flight. It is 0 if the group is paused, and `None` if the group has no limit.
    limit: Option<u32>,
    is_rated: bool,
}

impl Work<'_> {
    /// Claims keys in the order of turns. Also returns the time until another key may become ready.
    pub(super) fn claim_turns(
        &self,
        queue: &Place,
        claim: &Claim,
        has_rates: bool,
    ) -> Result<(Vec<Delivery>, Option<Duration>)> {
        self.mark_due(queue)?;
        if has_rates {
            lock(&queue.turns).note_rate();
        }
        let rounds = lock(&queue.turns).next_rounds();
        let mut candidates = Bands::default();
        let mut visited: Bands<Visited> = Bands::default();
        for (band, round) in rounds.iter().enumerate() {
            (candidates[band], visited[band]) = self.find_candidates(queue, band, round)?;
        }
        let mut items = Vec::new();
        // Keys with a low priority must not wait forever. Therefore, a part of the claim is for the priority of the
        // oldest key.
        let oldest = claim.oldest.min(claim.max);
        let aging = if oldest > 0 { self.oldest_band(queue, &candidates)? } else { None };
        let bands = (0..candidates.len()).rev().map(|band| (band, claim.max));
        for (band, most) in aging.map(|band| (band, oldest)).into_iter().chain(bands) {
            // The claim moves to a lower priority only when no visited group can deliver another key of this priority.
            let mut is_found = true;
            while is_found && items.len() < most && !candidates[band].is_empty() {
                let groups = std::mem::take(&mut candidates[band]);
                let (before, most) = (items.len(), most - items.len());
                candidates[band] =
                    self.visit_groups(queue, band, groups, most, claim, &mut items)?;
                is_found = items.len() > before;
            }
        }
        for (visited, open) in visited.iter_mut().zip(candidates) {
            let (next, last): (Vec<_>, Vec<_>) = open.into_iter().partition(|open| open.is_first);
            visited.next = next.into_iter().map(|open| open.turn).collect();
            visited.last = last.into_iter().map(|open| open.turn.group).collect();
        }
        let is_searching = lock(&queue.turns).note_visited(visited, items.len(), claim.max);
        let next = if items.len() == claim.max {
            None
        } else if is_searching {
            Some(Duration::ZERO)
        } else {
            let delayed = self.next_delayed(queue)?;
            let rated = if has_rates { self.next_by_rate(queue)? } else { None };
            let next = delayed.into_iter().chain(self.next_lease(queue)?).chain(rated).min();
            next.map(|at| until(self.now, at))
        };
        Ok((items, next))
    }

    /// Marks the keys whose due time has passed, so that lookups of groups find them.
    fn mark_due(&self, queue: &Place) -> Result<()> {
        let sql = "update keys set is_due = 1 where queue = ?1 and key in ( \
                       select key from keys indexed by keys_delayed \
                       where queue = ?1 and state = 0 and is_due = 0 and grp is not null and at <= ?2 \
                       order by at limit ?3)";
        self.connection.prepare_cached(sql)?.execute(params![queue.id, self.now, MARKED])?;
        Ok(())
    }

    fn next_delayed(&self, queue: &Place) -> Result<Option<Micros>> {
        let sql = "select min(at) from keys indexed by keys_delayed \
                   where queue = ?1 and state = 0 and is_due = 0 and grp is not null";
        self.connection.prepare_cached(sql)?.query_row([queue.id], |row| row.get(0))
    }

    /// Returns the groups of a round that may deliver keys, with their settings. Also returns the progress of the
    /// lookup.
    fn find_candidates(
        &self,
        queue: &Place,
        band: usize,
        round: &Round,
    ) -> Result<(Vec<Candidate>, Visited)> {
        let found = self.look_up_groups(queue, band, round)?;
        let is_complete = found.len() < round.more;
        let cursor = found.last().filter(|_| !is_complete).cloned();
        if round.more > 0 && found.is_empty() {
            // No group has a ready key of this priority. The named groups need no visit either, because a wake names a
            // group for all priorities.
            return Ok((Vec::new(), Visited { is_complete, ..Visited::default() }));
        }
        let mut known = HashSet::new();
        let sql = "select weight, case when paused then 0 else coalesce(most, group_limit) end, \
                       groups.rate is not null \
                   from (select group_limit from queues where id = ?1) \
                   left join groups on queue = ?1 and name = ?2";
        let mut settings = self.connection.prepare_cached(sql)?;
        let mut candidates = Vec::new();
        let first = round.first.iter().map(|turn| (true, turn.clone()));
        let found = found.into_iter().map(|group| (false, Turn::from(group)));
        for (is_first, turn) in first.chain(found) {
            if known.insert(Arc::clone(&turn.group)) {
                let key = params![queue.id, turn.group];
                let (weight, limit, is_rated) = settings.query_row(key, |row| {
                    let weight: Option<u32> = row.get(0)?;
                    Ok((weight.unwrap_or(1), row.get(1)?, row.get(2)?))
                })?;
                candidates.push(Candidate { turn, is_first, weight, limit, is_rated });
            }
        }
        // While its limit or rate permits no key, a group that was looked up must not take a place in the ring.
        let mut open = Vec::new();
        for candidate in candidates {
            let may_deliver = match candidate.limit {
                Some(0) => false,
                Some(_) | None if !candidate.is_first => self.room_of(queue, &candidate, 1)? > 0,
                Some(_) | None => true,
            };
            open.extend(may_deliver.then_some(candidate));
        }
        Ok((open, Visited { cursor, is_complete, ..Visited::default() }))
    }

    /// Returns the groups that have ready keys of a priority. The groups after `round.after` come first, sorted by
    /// name, and the other groups follow.
    fn look_up_groups(&self, queue: &Place, band: usize, round: &Round) -> Result<Vec<Arc<str>>> {
        let sql = "select grp from keys indexed by keys_turns \
                   where queue = ?1 and state = 0 and is_due = 1 and priority = ?2 and grp >= ?3 \
                   order by grp limit 1";
        let mut next = self.connection.prepare_cached(sql)?;
        let priority = Priority::ALL[band].number();
        let mut found = Vec::new();
        let mut is_second_pass = round.after.is_none();
        let mut from = round.after.as_deref().map(following).unwrap_or_default();
        while found.len() < round.more {
            let name: Option<Arc<str>> =
                next.query_row(params![queue.id, priority, from], |row| row.get(0)).optional()?;
            let is_end = round.after.is_some() && is_second_pass && name > round.after;
            match name.filter(|_| !is_end) {
                Some(name) => {
                    from = following(&name);
                    found.push(name);
                }
                None if is_second_pass => break,
                None => (is_second_pass, from) = (true, String::new()),
            }
        }
        Ok(found)
    }

    /// Returns the priority of the oldest key, among the first ready keys of these groups.
    fn oldest_band(
        &self,
        queue: &Place,
        candidates: &Bands<Vec<Candidate>>,
    ) -> Result<Option<usize>> {
        let sql = "select min(at) from keys indexed by keys_turns \
                   where queue = ?1 and state = 0 and is_due = 1 and priority = ?2 and grp = ?3";
        let mut head = self.connection.prepare_cached(sql)?;
        let mut oldest: Option<(Micros, usize)> = None;
        for (band, candidates) in candidates.iter().enumerate() {
            for candidate in candidates {
                if self.room_of(queue, candidate, 1)? == 0 {
                    continue;
                }
                let key = params![queue.id, Priority::ALL[band].number(), candidate.turn.group];
                let at: Option<Micros> = head.query_row(key, |row| row.get(0))?;
                oldest = oldest.into_iter().chain(at.map(|at| (at, band))).min();
            }
        }
        Ok(oldest.map(|(_, band)| band))
    }

    /// Returns how many keys of the group its limit and its rate permit to start now, up to `wanted`.
    fn room_of(&self, queue: &Place, group: &Candidate, wanted: usize) -> Result<usize> {
        let wanted = match group.is_rated {
            true => self.permitted_by_rate(queue, &group.turn.group, wanted)?,
            false => wanted,
        };
        let Some(limit) = group.limit else { return Ok(wanted) };
        let sql = "select count(*) from (select 1 from keys indexed by keys_of_group \
                   where queue = ?1 and state = 1 and grp = ?2 limit ?3)";
        let mut count = self.connection.prepare_cached(sql)?;
        let running: u32 =
            count.query_row(params![queue.id, group.turn.group, limit], |row| row.get(0))?;
        Ok(wanted.min((limit - running) as usize))
    }

    /// Delivers up to `most` keys of a priority, in the order of the turns of `groups`. Returns the groups that may
    /// have more keys. In the result, `is_first` is true for groups whose turns are not over. The other groups are at
    /// the end.
    fn visit_groups(
        &self,
        queue: &Place,
        band: usize,
        groups: Vec<Candidate>,
        most: usize,
        claim: &Claim,
        items: &mut Vec<Delivery>,
    ) -> Result<Vec<Candidate>> {
        let each = turns_each(most, groups.iter().map(|group| (group.weight, group.turn.used)));
        let (mut found, mut open, mut over) = (Vec::new(), Vec::new(), Vec::new());
        for (place, mut group) in groups.into_iter().enumerate() {
            let wanted = most - found.len();
            if wanted == 0 {
                open.push(group);
                continue;
            }
            let (used, weight) = (group.turn.used as usize, group.weight as usize);
            let turn = each.saturating_mul(weight).saturating_sub(used).max(1);
            let room = self.room_of(queue, &group, turn.min(wanted))?;
            let keys = self.first_of_group(queue, band, &group.turn.group, room)?;
            let count = keys.len();
            if group.is_rated {
                self.use_up_rate(queue, &group.turn.group, count)?;
            }
            let place_of = |(n, key)| ((used + n) / weight, place, key);
            found.extend(keys.into_iter().enumerate().map(place_of));
            if count == turn.min(wanted) {
                // The claim may be full before the group's turn is over.
                group.is_first = count < turn;
                let used = if group.is_first { used + count } else { 0 };
                group.turn.used = u32::try_from(used).unwrap_or(u32::MAX);
                if group.is_first { open.push(group) } else { over.push(group) }
            }
        }
        // A claim may visit a priority again. In this case, no group may have two consecutive turns.
        open.append(&mut over);
        // Workers take the keys of a claim in this order, so the order must be that of the turns.
        found.sort_by_key(|&(turn, place, _)| (turn, place));
        for (_, _, (key, row)) in found {
            items.push(self.deliver_key(queue, &key, row, claim.lease)?);
        }
        Ok(open)
    }

    /// Returns the ready keys of a group and a priority, the oldest first.
    fn first_of_group(
        &self,
        queue: &Place,
        band: usize,
        group: &str,
        limit: usize,
    ) -> Result<Vec<(Key, Row)>> {
        let sql = format!(
            "select {} from keys indexed by keys_turns where queue = ?1 and state = 0 \
             and is_due = 1 and priority = ?2 and grp = ?3 order by at limit ?4",
            *COLUMNS
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let key = params![queue.id, Priority::ALL[band].number(), group, to_sql(limit)];
        let found = statement.query_map(key, read_row)?;
        found.collect()
    }

    pub(super) fn change_group(
        &self,
        queue: &Place,
        group: &str,
        change: GroupChange,
    ) -> Result<()> {
        let (column, value) = match change {
            GroupChange::Limit(limit) => ("most", limit),
            GroupChange::Weight(weight) => ("weight", Some(weight)),
            GroupChange::Paused(paused) => ("paused", Some(paused.into())),
            GroupChange::Rate(rate) => return self.set_group_rate(queue, group, rate),
        };
        let sql = format!(
            "insert into groups (queue, name, {column}) values (?1, ?2, ?3) \
             on conflict do update set {column} = ?3"
        );
        self.connection.execute(&sql, params![queue.id, group, value]).map(drop)
    }

    pub(super) fn set_group_limit(&self, queue: &Place, limit: Option<u32>) -> Result<()> {
        let sql = "update queues set group_limit = ?2 where id = ?1";
        self.connection.execute(sql, params![queue.id, limit]).map(drop)
    }

    pub(super) fn list_groups(
        &self,
        queue: &Place,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<GroupInfo>> {
        // The query reads the keys twice: first to find the names of the page, and then to count the keys of these
        // groups.
        let sql = format!(
            "with names (name) as materialized ( \
                 select name from groups where queue = :queue and name >= :from \
                 union select grp from keys where queue = :queue and grp >= :from \
                 order by name limit :limit \
             ), counted (name, ready, waiting, in_flight, dirty, parked, oldest) as ( \
                 select grp, {}, max(:now - since) filter (where state = 0 and at <= :now) \
                 from keys where queue = :queue and grp in names group by grp \
             ) \
             select coalesce(ready, 0), coalesce(waiting, 0), coalesce(in_flight, 0), coalesce(dirty, 0), \
                 coalesce(parked, 0), coalesce(oldest, 0), names.name, coalesce(most, group_limit), \
                 coalesce(weight, 1), coalesce(groups.paused, 0), groups.rate, groups.next_at \
             from names join queues on queues.id = :queue \
             left join counted on counted.name = names.name \
             left join groups on groups.queue = :queue and groups.name = names.name \
             order by names.name",
            StateCounts::columns(":now")
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let params = named_params! {
            ":queue": queue.id,
            ":now": self.now,
            ":from": after.map(following).unwrap_or_default(),
            ":limit": to_sql(limit),
        };
        let groups = statement.query_map(params, |row| {
            let oldest_ready = until(0, row.get(5)?);
            let throttle = self.read_gate(row, 10)?.map(|gate| gate.throttle(self.now));
            Ok(GroupInfo {
                counts: StateCounts { oldest_ready, ..StateCounts::read(row)? },
                name: row.get(6)?,
                limit: row.get(7)?,
                weight: row.get(8)?,
                is_paused: row.get(9)?,
                rate: throttle.map(|throttle| throttle.rate),
                next_start: throttle.map(|throttle| throttle.next_start),
            })
        })?;
        groups.collect()
    }
}

fn to_sql(limit: usize) -> i64 {
    limit.try_into().unwrap_or(i64::MAX)
}

/// Returns a text that is greater than `name`, but less than each name of a group that is greater than `name`.
fn following(name: &str) -> String {
    // The names of groups contain no control characters, so no name has this character.
    format!("{name}\u{1}")
}
