//! Changes the settings of groups, and lists groups.
//!
//! Each shard of a queue has the settings of all groups. If a pattern extracts the groups, all keys of a group are in
//! one shard. Otherwise, the queue has only one shard. Therefore, the script of a claim can enforce the limits.
//!
//! A server that evicts keys can lose the settings of groups. The next process that opens the queue restores the limit
//! of the queue. The weights and the separate limits are lost, until a user sets them again.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use super::names::Shard;
use super::values::{self, Values};
use super::{Redis, dropping};
use crate::engine::gate::Gate;
use crate::engine::time::Micros;
use crate::engine::{GroupChange, Place};
use crate::types::error::{Answer, EngineError};
use crate::types::inspect::GroupInfo;
use crate::types::inspect::{Entry, State, StateCounts};
use crate::types::key::Key;
use crate::types::rate::{Rate, Throttle};

/// The name under which the scripts store the settings of the queue, in the same form as those of a group.
const DEFAULT: &[u8] = b"\x01";

impl Redis {
    /// Changes a setting of a group, or of the queue if `group` is `None`. Changes one shard after another.
    pub(super) async fn change_group_setting(
        &self,
        queue: &Place,
        group: Option<&str>,
        change: GroupChange,
    ) -> Answer<()> {
        let (setting, value) = match change {
            GroupChange::Limit(limit) => ("limit", values::limit_word(limit)),
            GroupChange::Weight(weight) => ("weight", weight.to_string()),
            GroupChange::Paused(paused) => ("paused", u8::from(paused).to_string()),
            GroupChange::Rate(rate) => ("rate", values::rate_word(rate)),
        };
        for (n, shard) in self.shards_of(queue)?.iter().enumerate() {
            let mut command = self.nodes.scripts.change_group.on(shard);
            command.arg(group.map(|group| format!(".{group}")).unwrap_or_default());
            command.arg(setting).arg(&value);
            let ran = self.run_script(shard, &command).await;
            // If a shard after the first one fails, the earlier shards are already changed.
            ran.map_err(|fault| if n > 0 { fault.after_a_part() } else { fault })?;
        }
        Ok(())
    }

    /// Sets the limit for groups without a separate limit. The record of the queue also has this limit, so that a shard
    /// that has lost it can be restored.
    pub(super) async fn set_default_limit(&self, queue: &Place, limit: Option<u32>) -> Answer<()> {
        let shards = self.shards_of(queue)?;
        // This step fails if the queue was dropped. Therefore, the shards are changed before the record.
        self.change_group_setting(queue, None, GroupChange::Limit(limit)).await?;
        let limit = limit.map(|limit| limit.to_string()).unwrap_or_default();
        let recorded =
            dropping::record(&self.nodes, &shards[0].queue, &["group_limit".to_owned(), limit])
                .await;
        recorded.map_err(|fault| fault.after_a_part())
    }

    pub(super) async fn read_queue_rate(&self, queue: &Place) -> Answer<Option<Throttle>> {
        let shards = self.shards_of(queue)?;
        // A queue with several shards cannot have a rate.
        let [shard] = &shards[..] else { return Ok(None) };
        let read = self.run_script(shard, &self.nodes.scripts.read_rate.on(shard)).await?;
        let mut read = Values::from_array(read)?;
        let (now, stored) = (read.number()?, read.text_if_any()?);
        let gate = stored.and_then(|stored| Gate::from_stored(&stored, now));
        Ok(gate.map(|gate| gate.throttle(now)))
    }

    /// Sets the rate of a queue with one shard. The starts of several shards could not be counted exactly. The record
    /// of the queue also has the rate. If `when` is "first", an existing rate is not changed. Returns the rate that the
    /// queue has after the call.
    pub(super) async fn set_queue_rate(
        &self,
        queue: &Place,
        rate: Option<Rate>,
        when: &str,
    ) -> Answer<Option<Rate>> {
        let shards = self.shards_of(queue)?;
        let [shard] = &shards[..] else {
            return Err(EngineError::refused(format!(
                "the queue {:?} has {} shards, and only a queue with one shard can have a rate; create a queue with \
                 `rate`, or give its groups rates",
                queue.name,
                shards.len()
            )));
        };
        let mut command = self.nodes.scripts.set_rate.on(shard);
        command.arg(values::rate_word(rate)).arg(when);
        let stored = values::to_text(self.run_script(shard, &command).await?)?;
        let rate = Rate::from_stored(&stored);
        let recorded = async {
            self.record_rate(shard, rate).await?;
            self.record_queue_rate(queue, rate).await
        };
        recorded.await.map_err(|fault| fault.after_a_part())
    }

    /// Writes the rate that claims use into the record of the queue, which now has the rate `recorded`. The change is
    /// repeated until both are equal, because another process may change the rate in the meantime. Returns the rate.
    pub(super) async fn record_queue_rate(
        &self,
        queue: &Place,
        mut recorded: Option<Rate>,
    ) -> Answer<Option<Rate>> {
        let shards = self.shards_of(queue)?;
        loop {
            let rate = self.read_queue_rate(queue).await?.map(|throttle| throttle.rate);
            if rate == recorded {
                return Ok(rate);
            }
            self.record_rate(&shards[0], rate).await?;
            recorded = rate;
        }
    }

    /// Restores the rate from the record of the queue if the server has lost the rate.
    pub(super) async fn restore_rate(&self, shard: &Shard) -> Answer<()> {
        match self.read_record(&shard.queue.name, None).await? {
            Some(record) if record.settings.rate.is_some() => self.restore_mark(shard).await,
            _ => Ok(()),
        }
    }

    async fn record_rate(&self, shard: &Shard, rate: Option<Rate>) -> Answer<()> {
        let change = ["rate".to_owned(), values::rate_word(rate)];
        dropping::record(&self.nodes, &shard.queue, &change).await
    }

    /// Lists groups with the number of their keys in each state. A shard has no index of keys by group, so the function
    /// reads all keys of the queue.
    pub(super) async fn list_all_groups(
        &self,
        queue: &Place,
        after: Option<&str>,
        limit: usize,
    ) -> Answer<Vec<GroupInfo>> {
        let shards = self.shards_of(queue)?;
        let mut listing = Listing { after, limit, found: BTreeMap::new() };
        let mut settings = BTreeMap::new();
        let mut at = 0;
        for shard in &*shards {
            let mut cursor = b"0".to_vec();
            loop {
                let (next, now, keys) = self.scan_shard(shard, None, &cursor).await?;
                for (key, stored) in keys {
                    let entry = stored.to_entry(key, |epoch| epoch, now);
                    if let Some(group) = listing.group(entry.group.as_deref().unwrap_or_default()) {
                        group.note_key(&entry);
                    }
                }
                (cursor, at) = (next, now);
                if cursor == b"0" {
                    break;
                }
            }
            self.read_settings(shard, at, &mut settings).await?;
        }
        let default = settings.remove(DEFAULT).unwrap_or_default().limit;
        for group in settings.keys() {
            listing.group(&String::from_utf8_lossy(group));
        }
        let infos = listing.found.into_iter().map(|(name, Group { counts, .. })| {
            let Setting { limit, weight, is_paused, gate } =
                settings.get(name.as_bytes()).copied().unwrap_or_default();
            let throttle = gate.map(|gate| gate.throttle(at));
            GroupInfo {
                name: name.to_string(),
                counts,
                limit: limit.or(default),
                weight,
                is_paused,
                rate: throttle.map(|throttle| throttle.rate),
                next_start: throttle.map(|throttle| throttle.next_start),
            }
        });
        Ok(infos.collect())
    }

    /// Reads the settings of all groups. All shards have the same settings, with two exceptions. A change may be in
    /// progress. In addition, only the shard of a group knows the time of the next start that the group's rate permits.
    async fn read_settings(
        &self,
        shard: &Shard,
        now: Micros,
        settings: &mut BTreeMap<Vec<u8>, Setting>,
    ) -> Answer<()> {
        let mut cursor = b"0".to_vec();
        loop {
            let mut command = self.nodes.scripts.list_settings.on(shard);
            command.arg(&cursor);
            let mut step = Values::from_array(self.run_script(shard, &command).await?)?;
            cursor = step.bytes()?;
            let mut found = Values::from_array(step.next_value()?)?;
            while !found.is_empty() {
                let (group, text) = (found.bytes()?, found.bytes()?);
                let mut setting = Setting::parse(&String::from_utf8_lossy(&text), now);
                let known = settings.get(&group).and_then(|known| known.gate);
                let known = known.filter(|known| Some(known.next_at) > setting.next_start());
                setting.gate = known.or(setting.gate);
                settings.insert(group, setting);
            }
            if cursor == b"0" {
                return Ok(());
            }
        }
    }
}

/// The settings of a group.
#[derive(Clone, Copy, Debug)]
struct Setting {
    limit: Option<u32>,
    weight: u32,
    is_paused: bool,
    /// The rate of the group, and the time of its next start.
    gate: Option<Gate>,
}

impl Setting {
    /// Parses the settings as the scripts do. If a setting is invalid, its default is used.
    fn parse(text: &str, now: Micros) -> Self {
        let mut words = text.splitn(4, ' ');
        let limit = words.next().and_then(|limit| limit.parse().ok());
        let weight = words.next().and_then(|weight| weight.parse().ok()).unwrap_or(1);
        let is_paused = words.next() == Some("1");
        let gate = words.next().and_then(|gate| Gate::from_stored(gate, now));
        Self { limit, weight, is_paused, gate }
    }

    fn next_start(&self) -> Option<Micros> {
        self.gate.map(|gate| gate.next_at)
    }
}

impl Default for Setting {
    fn default() -> Self {
        Self { limit: None, weight: 1, is_paused: false, gate: None }
    }
}

/// A page of groups that follow a name.
struct Listing<'a> {
    after: Option<&'a str>,
    limit: usize,
    found: BTreeMap<Arc<str>, Group>,
}

#[derive(Default)]
struct Group {
    counts: StateCounts,
    /// The keys that were counted. A scan may return a key twice, so each key is counted once.
    keys: HashSet<Key>,
}

impl Listing<'_> {
    /// Returns the group with this name, or `None` if it is not on this page.
    fn group(&mut self, name: &str) -> Option<&mut Group> {
        if self.limit == 0 || self.after.is_some_and(|after| name <= after) {
            return None;
        }
        if !self.found.contains_key(name) {
            let is_full = self.found.len() >= self.limit;
            if is_full && self.found.last_key_value().is_some_and(|(last, _)| name > &**last) {
                return None;
            }
            if is_full {
                self.found.pop_last();
            }
            self.found.insert(name.into(), Group::default());
        }
        self.found.get_mut(name)
    }
}

impl Group {
    fn note_key(&mut self, entry: &Entry) {
        if !self.keys.insert(entry.key.clone()) {
            return;
        }
        let counts = &mut self.counts;
        let count = match entry.state {
            State::Ready => {
                let ready = entry.since.unwrap_or_default();
                counts.oldest_ready = counts.oldest_ready.max(ready);
                &mut counts.ready
            }
            State::Waiting => &mut counts.waiting,
            State::InFlight => &mut counts.in_flight,
            State::Parked => &mut counts.parked,
            State::Damaged => &mut counts.damaged,
        };
        *count += 1;
        counts.dirty += u64::from(entry.dirty);
    }
}
