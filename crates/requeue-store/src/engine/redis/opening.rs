//! Opens queues, creates them and lists them.
//!
//! On a cluster, the record of a queue and its shards are on several nodes, so no script can read all of them.
//! Therefore, a process that opens the queue reads the record, marks the shards, and reads the record again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::{Value, cmd};

use super::dropping::Mark;
use super::faults::unknown_format;
use super::names::{Identity, Shard};
use super::values::{self, Values};
use super::{Redis, dropping, names, repairing};
use crate::engine::{Place, Settings, lock};
use crate::types::add::{ParkedAdd, ReaddPolicy};
use crate::types::error::{Answer, EngineError, newer_schema, older_schema};
use crate::types::group::{GroupBy, Grouping};
use crate::types::inspect::QueueInfo;
use crate::types::rate::Rate;

/// The version of the data. It must change if scripts of older programs cannot read the new data.
const VERSION: &str = "2";
/// The version before groups. This program can also read the rows of that version.
const WITHOUT_GROUPS: &str = "1";
/// Changes the version from the one that this program has read. The script changes nothing if a newer program has
/// changed the version in the meantime.
const UPGRADE: &str =
    "if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('SET', KEYS[1], ARGV[2]) end";
/// The maximum number of attempts to open a queue while other processes drop and create it.
const ATTEMPTS: u32 = 10;

/// The data of a queue, except its keys.
pub(super) struct Record {
    pub(super) settings: Settings,
    pub(super) shards: u16,
    /// True if no process has marked all shards since the record was created.
    pub(super) is_new: bool,
    /// True if this call has created the record.
    pub(super) is_made: bool,
    pub(super) generation: u64,
    /// True if the queue was dropped, but some of its Redis keys may still exist.
    pub(super) is_dropping: bool,
}

impl Redis {
    async fn version(&self) -> Answer<Option<String>> {
        let mut get = cmd("GET");
        get.arg(names::SCHEMA);
        match self.nodes.run_command(names::slot(names::SCHEMA), &get).await? {
            Value::Nil => Ok(None),
            Value::BulkString(version) => Ok(Some(String::from_utf8_lossy(&version).into_owned())),
            _ => Err(unknown_format()),
        }
    }

    /// Returns an error if the server has no data, or data of another version.
    pub(super) async fn check(&self, queue: Option<&str>) -> Answer<()> {
        let refuse = |why: &str| Err(EngineError::refused(format!("{}: {why}", self.address)));
        match self.version().await?.as_deref() {
            Some(VERSION) => Ok(()),
            None if self.has_record_of(queue).await? => refuse(&format!(
                "it has the queue, but not the key {:?}: the server has evicted or lost it, or \
                 it was deleted; run `requeue store init` or call `Store::migrate` to \
                 create it again",
                names::SCHEMA
            )),
            None => refuse(crate::types::error::UNPREPARED),
            Some(WITHOUT_GROUPS) => refuse(
                &older_schema(
                    WITHOUT_GROUPS,
                    VERSION,
                    "run `requeue store init`, or call `Store::migrate`",
                )
                .source
                .to_string(),
            ),
            Some(other) => refuse(&newer_schema(other, VERSION).source.to_string()),
        }
    }

    async fn has_record_of(&self, queue: Option<&str>) -> Answer<bool> {
        let Some((key, slot)) = queue.map(names::queue) else { return Ok(false) };
        let mut exists = cmd("EXISTS");
        let found = self.nodes.run_command(slot, exists.arg(key)).await?;
        Ok(values::number(found)? > 0)
    }

    pub(super) async fn migrate_version(&self) -> Answer<()> {
        let (mut set, mut upgrade) = (cmd("SET"), cmd("EVAL"));
        let write = match self.version().await?.as_deref() {
            None => set.arg(names::SCHEMA).arg(VERSION).arg("NX"),
            Some(WITHOUT_GROUPS) => {
                upgrade.arg(UPGRADE).arg(1).arg(names::SCHEMA).arg(WITHOUT_GROUPS).arg(VERSION)
            }
            // A server whose memory is full refuses the write, but may already have the version.
            Some(_) => return self.check(None).await,
        };
        self.nodes.run_command(names::slot(names::SCHEMA), write).await?;
        self.check(None).await
    }

    /// Returns the record of the queue. Creates the record if it does not exist and there are `settings`.
    pub(super) async fn read_record(
        &self,
        name: &str,
        settings: Option<Settings>,
    ) -> Answer<Option<Record>> {
        let (key, slot) = names::queue(name);
        let mut open = self.nodes.scripts.open.with(&[key]);
        if let Some(Settings { readd_policy, parked_add, group_by, group_limit, rate }) = settings {
            // If adds name the groups, the group of a key cannot be computed from the key, so the queue needs a single
            // shard. A rate also needs a single shard, which counts all starts.
            let is_single = group_by.as_deref() == Some("") || rate.is_some();
            let shards = if is_single { 1 } else { self.shards };
            open.arg(u8::from(readd_policy == ReaddPolicy::Hold)).arg(shards);
            open.arg(u8::from(parked_add == ParkedAdd::Keep));
            // The generation is a number from 1 to 2⁶³ - 1, which Redis can represent as an integer.
            open.arg(fastrand::u64(1..=i64::MAX.unsigned_abs()));
            open.arg(values::rate_word(rate)).arg(group_by.as_deref()).arg(group_limit);
        }
        let answer = self.nodes.run_script(slot, &open).await?;
        if matches!(&answer, Value::Array(said) if said.first() == Some(&Value::Nil)) {
            return Ok(None);
        }
        let mut said = Values::from_array(answer)?;
        let (holds, count, new) = (said.is_true()?, said.number()?, said.number::<u8>()?);
        let flags = Settings::from_flags(holds, !said.is_true()?);
        if !(1..=names::MAX_SHARDS).contains(&count) {
            return Err(EngineError::refused(format!(
                "{}: the record of the queue is invalid: it has {count} \
                 shards, and 1 to 256 are allowed",
                self.address
            )));
        }
        let (generation, is_dropping) = (said.number()?, said.is_true()?);
        let (is_new, is_made) = (new > 0, new == 2);
        let group_by = said.text_if_any()?.map(Arc::from);
        let group_limit = said.number_if_any()?;
        let rate = said.text_if_any()?.and_then(|rate| Rate::from_stored(&rate));
        let settings = Settings { group_by, group_limit, rate, ..flags };
        Ok(Some(Record { settings, shards: count, is_new, is_made, generation, is_dropping }))
    }

    /// Returns the generation of another queue if a shard has the mark of that queue.
    async fn other_mark(&self, shards: &[Shard]) -> Answer<Option<u64>> {
        for shard in shards {
            let get = cmd("GET").arg(shard.generation()).to_owned();
            if let Value::BulkString(mark) = self.nodes.run_command(shard.slot, &get).await? {
                let (mark, kind) = dropping::parse_mark(&String::from_utf8_lossy(&mark))?;
                if mark != shard.queue.generation && kind != Mark::Tentative {
                    return Ok(Some(mark));
                }
            }
        }
        Ok(None)
    }

    /// Opens the queue. Creates the queue if it does not exist and there are `settings`.
    pub(super) async fn open_named(
        &self,
        name: &str,
        settings: Option<Settings>,
    ) -> Answer<Option<Place>> {
        self.check(Some(name)).await?;
        if settings.is_some() {
            // The name is listed before the queue is created, so that each existing queue is listed.
            dropping::list_name(&self.nodes, name).await?;
        }
        let (mut is_lost, mut was_made) = (false, false);
        let mut attempts = 0..ATTEMPTS;
        let (recorded, shards, rate) = loop {
            if attempts.next().is_none() {
                return Err(EngineError::absent(
                    "other processes drop and create the queue repeatedly; try again later",
                ));
            }
            let Some(record) = self.read_record(name, settings.clone()).await? else {
                return Ok(None);
            };
            let Record { ref settings, shards: count, generation, is_new, is_made, is_dropping } =
                record;
            was_made |= is_made;
            // The floor is read before the marks. If the queue is dropped after this read, the floor rises, and no mark
            // of this queue is restored.
            let floor = self.read_floor().await?;
            let grouping = parse_grouping(settings)?;
            let of = Arc::new(Identity { name: name.to_owned(), generation, floor, grouping });
            let shards = Arc::new(names::shards(&of, count));
            if is_dropping {
                // An earlier drop was interrupted after its third step.
                dropping::remove_queue(&self.nodes, &shards).await?;
                continue;
            }
            if is_new {
                // The name is listed again. After it was first listed, a drop of the previous queue may have removed
                // it.
                dropping::list_name(&self.nodes, name).await?;
                if let Some(mark) = self.other_mark(&shards).await? {
                    // The record was lost, but the shards were not. The record adopts their generation before any shard
                    // is marked, so that all shards have the same mark.
                    is_lost = true;
                    let adopted = ["adopt".to_owned(), mark.to_string()];
                    dropping::record(&self.nodes, &of, &adopted).await?;
                    continue;
                }
            }
            let marked = self.mark_all(name, &record, &of, &shards).await?;
            is_lost |= marked.had_data && was_made;
            if marked.is_complete {
                break (settings.clone(), shards, marked.rate);
            }
        };
        let count = shards.len();
        if is_lost {
            tracing::warn!(
                queue = name,
                shards = count,
                settings = ?recorded,
                "the server has lost the record of the queue; it was \
                 created again with these settings"
            );
        }
        let generation = shards[0].queue.generation;
        // If another handle has opened the queue, its shards are kept, because they have a state, such as a repair in
        // progress.
        lock(&self.queues).entry(generation).or_insert(shards);
        let id = self.places.fetch_add(1, Ordering::Relaxed);
        let settings = Settings { rate, ..recorded.clone() };
        let mut place = Place { generation, ..Place::new(id, name, settings) };
        if rate != recorded.rate {
            // A process that has changed the rate may not have changed the record yet.
            place.rate = self.record_queue_rate(&place, recorded.rate).await?;
        }
        Ok(Some(place))
    }

    /// Marks all shards with the generation of the record. If another process changes the record or the marks in the
    /// meantime, the result is not complete, and the caller tries again.
    async fn mark_all(
        &self,
        name: &str,
        record: &Record,
        of: &Arc<Identity>,
        shards: &[Shard],
    ) -> Answer<Marked> {
        let (mut others, mut damaged, mut had_data, mut rate) = (None, Vec::new(), false, None);
        for shard in shards {
            match self.check_shard(shard, record).await? {
                Checked::Ours { was_there, is_damaged, rate: found } => {
                    had_data |= was_there;
                    rate = rate.or(found);
                    damaged.extend(is_damaged.then_some(shard));
                }
                Checked::Others(mark) => others = others.or(Some(mark)),
            }
        }
        let incomplete = Ok(Marked { had_data, is_complete: false, rate: None });
        if let Some(other) = others {
            // If the queue is new, another process has marked the shard at the same time.
            if !record.is_new {
                let now = self.read_record(name, None).await?;
                if now.is_some_and(|now| now.generation == record.generation && !now.is_new) {
                    // After a failover, a shard of a dropped queue exists again. That queue may have had groups.
                    let grouping = Some(Grouping::Add);
                    let left = Identity { generation: other, grouping, ..(**of).clone() };
                    let left = names::shards(&Arc::new(left), record.shards);
                    dropping::remove_shards(&self.nodes, &left).await?;
                }
            }
            return incomplete;
        }
        // The record is read again, because a drop may have removed the record or the marks in the meantime.
        let now = self.read_record(name, None).await?;
        let is_there = |now: Record| now.generation == record.generation && !now.is_dropping;
        if !now.is_some_and(is_there) {
            for shard in shards {
                // If the removal fails, a tentative mark remains. It has no effect.
                let _ = self.complete_mark(shard, "forget").await;
            }
            return incomplete;
        }
        let mut is_marked = true;
        for shard in shards {
            // If a shard has lost its mark, the loop continues nevertheless. The next attempt then finds the other
            // marks complete.
            is_marked &= self.complete_mark(shard, "confirm").await?;
        }
        if !is_marked {
            return incomplete;
        }
        if record.is_new {
            let confirm = ["confirm".to_owned()];
            dropping::record(&self.nodes, of, &confirm).await?;
        }
        for shard in damaged {
            repairing::repair_shard(&self.nodes, name, shard).await?;
        }
        Ok(Marked { had_data, is_complete: true, rate })
    }

    /// Checks a shard, and writes a tentative mark if it has no mark.
    async fn check_shard(&self, shard: &Shard, record: &Record) -> Answer<Checked> {
        let mut check = self.nodes.scripts.check.on(shard);
        check.arg(shard.queue.floor / i64::from(record.shards) + 1);
        check.arg(values::rate_word(record.settings.rate));
        if shard.queue.grouping.is_some() {
            check.arg(values::limit_word(record.settings.group_limit));
        }
        let checked = self.nodes.run_script(shard.slot, &check).await?;
        let mut checked = Values::from_array(checked)?;
        let was_there = checked.number::<u8>()? == 1;
        let is_damaged = checked.number::<u8>()? == 1;
        let mark = String::from_utf8(checked.bytes()?).map_err(|_| unknown_format())?;
        let rate = Rate::from_stored(&checked.text()?);
        match dropping::parse_mark(&mark)? {
            (generation, kind) if generation == shard.queue.generation => {
                if kind == Mark::Sealed {
                    return Err(EngineError::absent(format!(
                        "a drop of the queue {:?} is in progress, or was interrupted: \
                         drop it again to complete it",
                        shard.queue.name
                    )));
                }
            }
            (other, _) => return Ok(Checked::Others(other)),
        }
        if self.wait > 0 {
            // This request checks that the client has the permission for `WAIT`.
            self.nodes.run_command(shard.slot, cmd("WAIT").arg(0).arg(1)).await?;
        }
        Ok(Checked::Ours { was_there, is_damaged, rate })
    }

    pub(super) async fn list_all(&self) -> Answer<Vec<QueueInfo>> {
        self.check(None).await?;
        let (mut queues, mut cursor) = (BTreeMap::new(), b"0".to_vec());
        loop {
            let mut scan = cmd("HSCAN");
            scan.arg(names::QUEUES).arg(&cursor);
            let found = self.nodes.run_command(names::slot(names::QUEUES), &scan).await?;
            let mut found = Values::from_array(found)?;
            cursor = found.bytes()?;
            let mut names = Values::from_array(found.next_value()?)?;
            while !names.is_empty() {
                let name = String::from_utf8(names.bytes()?).map_err(|_| unknown_format())?;
                names.next_value()?;
                // The queue may be missing if a process stopped after it had listed the name.
                if let Some(info) = self.queue_info(&name).await? {
                    queues.insert(name, info);
                }
            }
            if cursor == b"0" {
                return Ok(queues.into_values().collect());
            }
        }
    }

    async fn queue_info(&self, name: &str) -> Answer<Option<QueueInfo>> {
        let record = self.read_record(name, None).await?.filter(|record| !record.is_dropping);
        let Some(record) = record else { return Ok(None) };
        let Record { settings, shards: count, generation, .. } = record;
        let of = Identity { name: name.to_owned(), generation, floor: 0, grouping: None };
        let of = Arc::new(of);
        let (mut is_empty, mut is_paused) = (true, false);
        for shard in names::shards(&of, count) {
            // Redis removes a hash that has no entries.
            let exists = cmd("EXISTS").arg(shard.rows()).to_owned();
            is_empty &= values::number(self.nodes.run_command(shard.slot, &exists).await?)? == 0;
            let paused = cmd("GET").arg(shard.paused()).to_owned();
            let paused = self.nodes.run_command(shard.slot, &paused).await?;
            is_paused |=
                matches!(paused, Value::BulkString(text) if is_paused_by(&text, generation));
            if !is_empty && is_paused {
                break;
            }
        }
        Ok(Some(settings.into_info(name.to_owned(), is_empty, is_paused)))
    }
}

/// Returns true if the text says that the queue of this generation is paused: see `standing` in shard.lua.
fn is_paused_by(text: &[u8], generation: u64) -> bool {
    text.split(|&byte| byte == b' ').next() == Some(generation.to_string().as_bytes())
}

/// Returns the rule that assigns keys to groups, or `None` if the queue has no groups.
pub(super) fn parse_grouping(settings: &Settings) -> Answer<Option<Grouping>> {
    let by = settings.group_by.as_deref().map(GroupBy::from_stored);
    let grouping = by.as_ref().map(Grouping::new).transpose();
    grouping
        .map_err(|why| EngineError::refused(format!("the record of the queue is invalid: {why}")))
}

/// The result of an attempt to mark all shards of a queue.
struct Marked {
    /// True if a shard already had data of this generation.
    had_data: bool,
    is_complete: bool,
    /// The rate that claims use.
    rate: Option<Rate>,
}

/// Says whether a shard belongs to this queue.
enum Checked {
    Ours {
        was_there: bool,
        is_damaged: bool,
        rate: Option<Rate>,
    },
    /// The shard has the mark of another generation. The value is this generation.
    Others(u64),
}
