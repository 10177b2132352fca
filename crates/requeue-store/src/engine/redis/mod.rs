//! Redis or Valkey: one node, or a cluster.
//!
//! Each verb is a script, so that it happens as a whole, at one time of the server's, on one shard. A
//! queue has one shard on one node and several on a cluster, and each key is in one of them for good.
//! Of a shard there is a hash with a row for each key that has a state, sorted sets that say which keys
//! are due, held or parked, the number of the last hand-out, and a list with a token for who waits.
//!
//! # What a failover loses
//!
//! Replicas follow later. When a master dies, what it had acknowledged and they had not got yet is
//! lost: adds of about the last second at worst, unless `wait=N` had them on N replicas first; finishes,
//! so that a key is handed out again after its lease; and claims, so that a key may be handed out again
//! while its holder still works on it. That one's number is older then, so nothing it does has an effect
//! here, nor elsewhere where numbers are compared. Numbers rise all the same, whatever was lost: each is
//! at least the time of its server in microseconds, so clocks of servers that replace each other are to
//! be together to within the time that a failover takes.
//!
//! # Least rights
//!
//! For queues, keys `requeue:*` and the commands `evalsha`, `script|load`, `blpop`, `get`, `set`, `time`,
//! `exists`, `type`, `hset`, `hdel`, `hget`, `hlen`, `hmget`, `hscan`, `zadd`, `zrem`, `zrange`, `zrangebylex`,
//! `zrangebyscore`, `zscore`, `zcount`, `zcard`, `zscan`, `llen`, `lpush` and `ltrim`; on a cluster
//! `cluster|slots` and `cluster|info`, too, for `wait=N` `wait`, and for an address with a `/DB` `select`.
//! `migrate` needs no more. With `info`, servers that evict or do not persist are detected.
//!
//! With `unlink`, queues can be dropped, too.
//!
//! # Lost keys
//!
//! Evictions and deletions by hand can take parts of a shard. Each row has one place
//! in the sorted sets, so a script sees by their counts that some are gone: when a queue is opened, and
//! when a claim finds nothing. Then all rows are walked in short steps, and get back their places; places
//! without a row are dropped. Keys whose rows are gone are lost.

mod claiming;
mod dropping;
mod faults;
mod map;
mod names;
mod node;
mod nodes;
mod options;
mod reaching;
mod repairing;
mod requirements;
mod scripts;
#[cfg(test)]
mod tests;
mod values;
mod waking;
mod walking;

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, Value, cmd};
use tokio::sync::watch;

use self::faults::garbled;
use self::names::{Identity, Shard};
use self::node::Line;
use self::nodes::Nodes;
pub(crate) use self::options::Options;
use self::scripts::{CLOCK, Script, Scripts};
pub(crate) use self::values::read_row;
use self::values::{REPLACED, Values};
use self::waking::Waiting;
use crate::engine::damage::{Damage, Damaged};
use crate::engine::time::micros;
use crate::engine::{
    Answer, Ask, Claim, Claimed, Cursor, Dropped, End, Engine, Place, Renewed, Settings, Walked,
};
use crate::types::add::{Added, Cancelled, ParkedAdd, ReAdd};
use crate::types::error::{EngineError, Kind};
use crate::types::inspect::{Counts, Entry, QueueInfo, State};
use crate::types::key::Key;

/// Of what is kept.
const VERSION: &str = "1";
/// How many shards a queue has on a cluster, unless said.
const SHARDS: u16 = 16;
/// How often a queue that others drop and create meanwhile is tried to be opened.
const ATTEMPTS: u32 = 10;
/// How long replicas may take to get the adds that `wait` says they must.
const WAIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Redis {
    /// Where it was looked for.
    address: String,
    nodes: Arc<Nodes>,
    scripts: Arc<Scripts>,
    /// How many replicas are to have what is acknowledged.
    wait: u32,
    shards: u16,
    /// By their generations.
    queues: Mutex<HashMap<u64, Arc<Vec<Shard>>>>,
    /// By the numbers of their places.
    waiting: Mutex<HashMap<i64, Arc<Waiting>>>,
    places: AtomicI64,
    /// With which shard claims begin.
    turn: AtomicUsize,
}

/// What the server keeps of a queue beside its keys.
struct Record {
    settings: Settings,
    shards: u16,
    /// It was made now.
    is_new: bool,
    /// This call made the record.
    is_made: bool,
    generation: u64,
    /// It is gone, but for what its drop has yet to remove.
    is_dropping: bool,
}

impl Redis {
    pub(crate) async fn connect(options: Options) -> Result<Self, EngineError> {
        let seeds = options.seeds.clone();
        match Self::connect_with(options, CLOCK).await {
            Ok(engine) => Ok(engine),
            Err(fault) => Err(reaching::explained(&seeds, fault).await),
        }
    }

    /// `clock` is a function `now` in Lua.
    async fn connect_with(options: Options, clock: &str) -> Result<Self, EngineError> {
        // The driver has none of its own; another one that the program has chosen stays.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let Options { seeds, wait, shards, accepts_eviction } = options;
        let addresses: Vec<_> = seeds.iter().map(|seed| seed.addr().to_string()).collect();
        let nodes = Nodes::find(&seeds, accepts_eviction).await?;
        let shards = shards.unwrap_or(if nodes.is_cluster() { SHARDS } else { 1 });
        Ok(Self {
            address: addresses.join(","),
            nodes,
            scripts: Arc::new(Scripts::new(clock)),
            wait,
            shards,
            queues: Mutex::default(),
            waiting: Mutex::default(),
            places: AtomicI64::new(0),
            turn: AtomicUsize::new(0),
        })
    }

    fn shards_of(&self, queue: &Place) -> Result<Arc<Vec<Shard>>, EngineError> {
        let shards = lock(&self.queues).get(&queue.generation).map(Arc::clone);
        shards.ok_or_else(|| EngineError::refused("the queue has not been opened"))
    }

    /// The shards of the queue, and which of them has the key.
    fn find(&self, queue: &Place, key: &Key) -> Result<(Arc<Vec<Shard>>, usize), EngineError> {
        let shards = self.shards_of(queue)?;
        let number = names::shard_of(key, shards.len());
        Ok((shards, number))
    }

    async fn run(
        &self,
        shard: &Shard,
        script: &Script,
        command: &Cmd,
    ) -> Result<Value, EngineError> {
        let mut answered = self.nodes.run(shard.slot, command, Some(script)).await;
        // A server that evicts may remove the mark again at once.
        for _ in 0..ATTEMPTS {
            if !answered.as_ref().is_err_and(|fault| fault.kind == Kind::Dropped) {
                break;
            }
            Box::pin(self.restore_mark(shard)).await?;
            answered = self.nodes.run(shard.slot, command, Some(script)).await;
        }
        answered.map_err(|fault| dropping::named(shard, fault))
    }

    /// The same, and how many replicas have it after this long at most.
    async fn run_and_wait(
        &self,
        shard: &Shard,
        script: &Script,
        command: &Cmd,
        (line, limit): (Line, Duration),
    ) -> Result<(Value, u32), EngineError> {
        if self.wait == 0 {
            return Ok((self.run(shard, script, command).await?, 0));
        }
        let mut wait = cmd("WAIT");
        wait.arg(self.wait).arg(limit.as_millis() as u64);
        let commands = [command, &wait];
        let mut sent = self.nodes.send(shard.slot, line, &commands, Some(script)).await;
        for _ in 0..ATTEMPTS {
            if !sent.as_ref().is_err_and(|fault| fault.kind == Kind::Dropped) {
                break;
            }
            Box::pin(self.restore_mark(shard)).await?;
            sent = self.nodes.send(shard.slot, line, &commands, Some(script)).await;
        }
        let mut answers = sent.map_err(|fault| dropping::named(shard, fault))?;
        let replicas = answers.pop().ok_or_else(garbled).and_then(values::number)?;
        let replicas = replicas.try_into().map_err(|_| garbled())?;
        Ok((answers.pop().ok_or_else(garbled)?, replicas))
    }

    async fn version(&self) -> Result<Option<String>, EngineError> {
        let mut get = cmd("GET");
        get.arg(names::SCHEMA);
        match self.nodes.run(names::slot(names::SCHEMA), &get, None).await? {
            Value::Nil => Ok(None),
            Value::BulkString(version) => Ok(Some(String::from_utf8_lossy(&version).into_owned())),
            _ => Err(garbled()),
        }
    }

    /// Whether there is a schema of this version, where this queue is to be.
    async fn check(&self, queue: Option<&str>) -> Result<(), EngineError> {
        let refuse = |why: &str| Err(EngineError::refused(format!("{}: {why}", self.address)));
        match self.version().await?.as_deref() {
            Some(VERSION) => Ok(()),
            None if self.has_record_of(queue).await? => refuse(&format!(
                "it has the queue, but not the key {:?}: the server has evicted or lost it, or \
                 it was deleted; `requeue store init` or `Store::migrate` makes it again",
                names::SCHEMA
            )),
            None => refuse(crate::types::error::UNPREPARED),
            Some(other) => {
                refuse(&format!("its version is {other:?}, and this program's {VERSION}"))
            }
        }
    }

    async fn has_record_of(&self, queue: Option<&str>) -> Result<bool, EngineError> {
        let Some((key, slot)) = queue.map(names::queue) else { return Ok(false) };
        let mut exists = cmd("EXISTS");
        let found = self.nodes.run(slot, exists.arg(key), None).await?;
        Ok(values::number(found)? > 0)
    }

    async fn migrated(&self) -> Result<(), EngineError> {
        // A server that is full sets nothing, but has it.
        if self.version().await?.is_none() {
            let mut set = cmd("SET");
            set.arg(names::SCHEMA).arg(VERSION).arg("NX");
            self.nodes.run(names::slot(names::SCHEMA), &set, None).await?;
        }
        self.check(None).await
    }

    /// The record of the queue, which is made with `settings`, if any are given.
    async fn settings(
        &self,
        name: &str,
        settings: Option<Settings>,
    ) -> Result<Option<Record>, EngineError> {
        let (key, slot) = names::queue(name);
        let mut open = self.scripts.open.with(&[key]);
        if let Some(Settings { re_add, parked_add }) = settings {
            open.arg(u8::from(re_add == ReAdd::Hold)).arg(self.shards);
            open.arg(u8::from(parked_add == ParkedAdd::Keep));
            // Of as many bits as a number of Redis has, and not 0.
            open.arg(fastrand::u64(1..=i64::MAX.unsigned_abs()));
        }
        let answer = self.nodes.run(slot, &open, Some(&self.scripts.open)).await?;
        if matches!(&answer, Value::Array(said) if said.first() == Some(&Value::Nil)) {
            return Ok(None);
        }
        let mut said = Values::of(answer)?;
        let (held, count) = (said.number::<u8>()?, said.number::<u16>()?);
        let new = said.number::<u8>()?;
        let re_add = if held == 1 { ReAdd::Hold } else { ReAdd::Replace };
        let keeps = said.number::<u8>()? == 1;
        let parked_add = if keeps { ParkedAdd::Keep } else { ParkedAdd::Revive };
        if !(1..=names::MOST).contains(&count) {
            return Err(EngineError::refused(format!(
                "{}: {count} shards are too many",
                self.address
            )));
        }
        let settings = Settings { re_add, parked_add };
        let (generation, is_dropping) = (said.number()?, said.number::<u8>()? == 1);
        let (is_new, is_made) = (new > 0, new == 2);
        Ok(Some(Record { settings, shards: count, is_new, is_made, generation, is_dropping }))
    }

    /// The generation of another queue that a shard has as its mark.
    async fn other_mark(&self, shards: &[Shard]) -> Result<Option<u64>, EngineError> {
        for shard in shards {
            let get = cmd("GET").arg(shard.generation()).to_owned();
            if let Value::BulkString(mark) = self.nodes.run(shard.slot, &get, None).await? {
                let (mark, _) = dropping::owner(&String::from_utf8_lossy(&mark))?;
                if mark != shard.queue.generation {
                    return Ok(Some(mark));
                }
            }
        }
        Ok(None)
    }

    /// The queue, which is made with these settings, if any are given.
    async fn opened(
        &self,
        name: &str,
        settings: Option<Settings>,
    ) -> Result<Option<Place>, EngineError> {
        self.check(Some(name)).await?;
        if settings.is_some() {
            // First, so that every queue that is there is listed.
            dropping::list(&self.nodes, &self.scripts, name).await?;
        }
        let (mut is_lost, mut was_made) = (false, false);
        let mut attempts = 0..ATTEMPTS;
        let (settings, shards) = loop {
            if attempts.next().is_none() {
                return Err(EngineError::absent("others drop and create the queue all the time"));
            }
            let Some(record) = self.settings(name, settings).await? else {
                return Ok(None);
            };
            let Record { settings, shards: count, generation, is_new, is_made, is_dropping } =
                record;
            was_made |= is_made;
            let floor = self.floor().await?;
            let of = Arc::new(Identity { name: name.to_owned(), generation, floor });
            let shards = Arc::new(names::shards(&of, count));
            if is_dropping {
                // Somebody is at it, or was killed.
                dropping::remove(&self.nodes, &self.scripts, &shards).await?;
                continue;
            }
            if is_new {
                // Again: a drop of the queue before may have removed the name meanwhile.
                dropping::list(&self.nodes, &self.scripts, name).await?;
                if let Some(mark) = self.other_mark(&shards).await? {
                    // The record is lost, and the queue is not. Before any shard gets a mark, so that all
                    // get the same one.
                    is_lost = true;
                    let adopted = ["adopt".to_owned(), mark.to_string()];
                    dropping::record(&self.nodes, &self.scripts, &of, &adopted).await?;
                    continue;
                }
            }
            let mut others = None;
            for shard in &*shards {
                match self.checked(shard, count).await? {
                    Checked::Ours { was_there } => is_lost |= was_there && was_made,
                    Checked::Others(mark) => others = others.or(Some(mark)),
                }
            }
            match others {
                None => {
                    if is_new {
                        let confirm = ["confirm".to_owned()];
                        dropping::record(&self.nodes, &self.scripts, &of, &confirm).await?;
                    }
                    // A drop meanwhile has removed the marks, or the record.
                    let now = self.settings(name, None).await?;
                    if now.is_some_and(|now| now.generation == generation && !now.is_dropping) {
                        break (settings, shards);
                    }
                }
                // Another process has marked a shard meanwhile: look again.
                Some(_) if is_new => {}
                Some(other) => {
                    let now = self.settings(name, None).await?;
                    if now.is_some_and(|now| now.generation == generation && !now.is_new) {
                        // A failover has brought it back.
                        let left = Identity { generation: other, ..(*of).clone() };
                        let left = names::shards(&Arc::new(left), count);
                        dropping::remove_shards(&self.nodes, &self.scripts, &left).await?;
                    }
                }
            }
        };
        let count = shards.len();
        if is_lost {
            tracing::warn!(
                queue = name,
                shards = count,
                ?settings,
                "the server has lost the record of the queue; it was made again, with these settings"
            );
        }
        let generation = shards[0].queue.generation;
        lock(&self.queues).entry(generation).or_insert(shards);
        let id = self.places.fetch_add(1, Ordering::Relaxed);
        Ok(Some(Place { generation, ..Place::new(id, name, settings) }))
    }

    /// Checks a shard, repairs it and marks it as this queue's.
    async fn checked(&self, shard: &Shard, count: u16) -> Result<Checked, EngineError> {
        let mut check = self.scripts.check.on(shard);
        check.arg(shard.queue.floor / i64::from(count) + 1);
        let checked = self.nodes.run(shard.slot, &check, Some(&self.scripts.check)).await?;
        let mut checked = Values::of(checked)?;
        let was_there = checked.number::<u8>()? == 1;
        let is_damaged = checked.number::<u8>()? == 1;
        let mark = String::from_utf8(checked.bytes()?).map_err(|_| garbled())?;
        match dropping::owner(&mark)? {
            (generation, is_sealed) if generation == shard.queue.generation => {
                if is_sealed {
                    return Err(EngineError::absent(format!(
                        "a drop of the queue {:?} is in progress, or was interrupted: \
                         drop it again to complete it",
                        shard.queue.name
                    )));
                }
            }
            (other, _) => return Ok(Checked::Others(other)),
        }
        if is_damaged {
            let name = &shard.queue.name;
            repairing::repair(&self.nodes, &self.scripts, name, shard).await?;
        }
        if self.wait > 0 {
            // Whether it may be asked for at all.
            self.nodes.run(shard.slot, cmd("WAIT").arg(0).arg(1), None).await?;
        }
        Ok(Checked::Ours { was_there })
    }

    async fn listed(&self) -> Result<Vec<QueueInfo>, EngineError> {
        self.check(None).await?;
        let (mut queues, mut cursor) = (BTreeMap::new(), b"0".to_vec());
        loop {
            let mut scan = cmd("HSCAN");
            scan.arg(names::QUEUES).arg(&cursor);
            let found = self.nodes.run(names::slot(names::QUEUES), &scan, None).await?;
            let mut found = Values::of(found)?;
            cursor = found.bytes()?;
            let mut names = Values::of(found.value()?)?;
            while !names.is_empty() {
                let name = String::from_utf8(names.bytes()?).map_err(|_| garbled())?;
                names.value()?;
                // An opener may have ended between listing the queue and making it.
                if let Some(info) = self.info(&name).await? {
                    queues.insert(name, info);
                }
            }
            if cursor == b"0" {
                return Ok(queues.into_values().collect());
            }
        }
    }

    async fn info(&self, name: &str) -> Result<Option<QueueInfo>, EngineError> {
        let record = self.settings(name, None).await?.filter(|record| !record.is_dropping);
        let Some(record) = record else { return Ok(None) };
        let Record { settings, shards: count, generation, .. } = record;
        let Settings { re_add, parked_add } = settings;
        let of = Arc::new(Identity { name: name.to_owned(), generation, floor: 0 });
        let mut is_empty = true;
        for shard in names::shards(&of, count) {
            // A hash is there if it has something.
            let exists = cmd("EXISTS").arg(shard.rows()).to_owned();
            is_empty &= values::number(self.nodes.run(shard.slot, &exists, None).await?)? == 0;
            if !is_empty {
                break;
            }
        }
        Ok(Some(QueueInfo { name: name.to_owned(), re_add, parked_add, is_empty }))
    }
}

/// Whose a shard is.
enum Checked {
    Ours {
        was_there: bool,
    },
    /// Of another generation.
    Others(u64),
}

/// The queue's epoch for an epoch of a shard: no two shards have the same.
fn epoch_of(epoch: i64, number: usize, count: usize) -> i64 {
    // A queue has 256 shards at most.
    epoch.saturating_mul(count as i64).saturating_add(number as i64)
}

fn held(queue: &Place) -> u8 {
    u8::from(queue.re_add == ReAdd::Hold)
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine for Redis {
    fn migrate(&self) -> Answer<'_, ()> {
        Box::pin(self.migrated())
    }

    fn open<'a>(&'a self, name: &'a str, settings: Settings) -> Answer<'a, Place> {
        Box::pin(async move { self.opened(name, Some(settings)).await?.ok_or_else(garbled) })
    }

    fn find<'a>(&'a self, name: &'a str) -> Answer<'a, Option<Place>> {
        Box::pin(self.opened(name, None))
    }

    fn drop_queue<'a>(&'a self, name: &'a str, keys_too: bool) -> Answer<'a, Dropped> {
        Box::pin(self.dropped(name, keys_too))
    }

    fn queues(&self) -> Answer<'_, Vec<QueueInfo>> {
        Box::pin(self.listed())
    }

    fn shards(&self, queue: &Place) -> usize {
        self.shards_of(queue).map_or(1, |shards| shards.len())
    }

    fn shard(&self, queue: &Place, key: &Key) -> usize {
        self.find(queue, key).map_or(0, |(_, number)| number)
    }

    fn add<'a>(&'a self, queue: &'a Place, asks: Vec<Ask>) -> Answer<'a, Vec<Added>> {
        Box::pin(async move {
            let Some(first) = asks.first() else { return Ok(Vec::new()) };
            let (shards, number) = self.find(queue, &first.key)?;
            let mut command = self.scripts.add.on(&shards[number]);
            command.arg(held(queue));
            asks.iter().for_each(|ask| values::ask(&mut command, ask, queue));
            let line = (Line::WaitingAdds, WAIT);
            let ran = self.run_and_wait(&shards[number], &self.scripts.add, &command, line).await;
            let (answer, replicas) = ran?;
            if replicas < self.wait {
                let wanted = self.wait;
                return Err(EngineError::unsure(format!(
                    "{replicas} of {wanted} replicas have it"
                )));
            }
            let digits = values::digits(answer, asks.len())?;
            for (ask, _) in asks.iter().zip(&digits).filter(|(_, digit)| **digit == REPLACED) {
                let damage = Damage::new("it could not be read");
                Damaged { key: ask.key.clone(), damage }.report_replaced(&queue.name);
            }
            digits.into_iter().map(values::added).collect()
        })
    }

    fn claim<'a>(&'a self, queue: &'a Place, claim: Claim) -> Answer<'a, Claimed> {
        Box::pin(async move {
            let waiting = lock(&self.waiting).get(&queue.id).map(Arc::clone);
            let woken = waiting.as_ref().and_then(|waiting| waiting.shard());
            let begin = woken.unwrap_or_else(|| self.turn.fetch_add(1, Ordering::Relaxed));
            let claimed = self.claimed(queue, begin, claim).await;
            if let Some(waiting) = waiting {
                // Also where it can't be claimed: who waits for tokens is not held to be quick, and
                // finds out who serves the shard by now.
                let is_waited_for = !claim.poll.is_zero();
                let is_empty = claimed.as_ref().map_or(true, |claimed| claimed.items.is_empty());
                waiting.want(is_waited_for && is_empty);
            }
            claimed
        })
    }

    fn finish<'a>(&'a self, queue: &'a Place, ends: Vec<End>) -> Answer<'a, Vec<bool>> {
        Box::pin(async move {
            let Some(first) = ends.first() else { return Ok(Vec::new()) };
            let (shards, number) = self.find(queue, &first.key)?;
            let mut command = self.scripts.finish.on(&shards[number]);
            command.arg(held(queue));
            for end in &ends {
                values::end(&mut command, end, end.epoch / shards.len() as i64);
            }
            let answer = self.run(&shards[number], &self.scripts.finish, &command).await?;
            let digits = values::digits(answer, ends.len())?;
            Ok(digits.into_iter().map(|digit| digit == b'1').collect())
        })
    }

    fn renew<'a>(
        &'a self,
        queue: &'a Place,
        held: Vec<(Key, i64)>,
        lease: Duration,
    ) -> Answer<'a, Vec<Renewed>> {
        Box::pin(async move {
            let Some((first, _)) = held.first() else { return Ok(Vec::new()) };
            let (shards, number) = self.find(queue, first)?;
            let mut command = self.scripts.renew.on(&shards[number]);
            command.arg(micros(lease));
            for (key, epoch) in &held {
                command.arg(&**key).arg(epoch / shards.len() as i64);
            }
            let answer = self.run(&shards[number], &self.scripts.renew, &command).await?;
            let renewed = |digit| if digit == b'1' { Renewed::Yes } else { Renewed::Lost };
            Ok(values::digits(answer, held.len())?.into_iter().map(renewed).collect())
        })
    }

    fn cancel<'a>(
        &'a self,
        queue: &'a Place,
        keys: Vec<Key>,
        only: Option<State>,
    ) -> Answer<'a, Vec<Option<Cancelled>>> {
        Box::pin(async move {
            let Some(first) = keys.first() else { return Ok(Vec::new()) };
            let (shards, number) = self.find(queue, first)?;
            let mut command = self.scripts.cancel.on(&shards[number]);
            command.arg(values::name_of(only));
            keys.iter().for_each(|key| _ = command.arg(&**key));
            let answer = self.run(&shards[number], &self.scripts.cancel, &command).await?;
            values::cancelled(answer, keys.len())
        })
    }

    fn revive<'a>(&'a self, queue: &'a Place, keys: Vec<Key>) -> Answer<'a, Vec<Option<bool>>> {
        Box::pin(async move {
            let Some(first) = keys.first() else { return Ok(Vec::new()) };
            let (shards, number) = self.find(queue, first)?;
            let mut command = self.scripts.revive.on(&shards[number]);
            keys.iter().for_each(|key| _ = command.arg(&**key));
            let answer = self.run(&shards[number], &self.scripts.revive, &command).await?;
            let digits = values::digits(answer, keys.len())?;
            Ok(digits.into_iter().map(|digit| Some(digit == b'1')).collect())
        })
    }

    fn walk<'a>(
        &'a self,
        queue: &'a Place,
        state: Option<State>,
        from: Option<Cursor>,
        limit: usize,
    ) -> Answer<'a, Walked> {
        Box::pin(self.walked(queue, state, from, limit))
    }

    fn look_up<'a>(&'a self, queue: &'a Place, key: &'a Key) -> Answer<'a, Option<Entry>> {
        Box::pin(async move {
            let (shards, number) = self.find(queue, key)?;
            let mut command = self.scripts.look_up.on(&shards[number]);
            command.arg(&**key);
            let answer = self.run(&shards[number], &self.scripts.look_up, &command).await?;
            let mut answer = Values::of(answer)?;
            let now = answer.number()?;
            match answer.value()? {
                Value::BulkString(packed) => {
                    let epoch = |epoch| epoch_of(epoch, number, shards.len());
                    Ok(Some(values::seen(key.clone(), &packed, epoch, now)))
                }
                _ => Ok(None),
            }
        })
    }

    fn page<'a>(
        &'a self,
        queue: &'a Place,
        state: Option<State>,
        after: Option<&'a Key>,
        limit: usize,
    ) -> Answer<'a, Vec<Entry>> {
        Box::pin(self.paged(queue, state, after, limit))
    }

    fn counts<'a>(&'a self, queue: &'a Place) -> Answer<'a, Counts> {
        Box::pin(self.counted(queue))
    }

    fn wakes(&self, queue: &Place) -> watch::Receiver<u64> {
        let waiting = Arc::new(Waiting::new());
        let woken = waiting.subscribe();
        if let Ok(shards) = self.shards_of(queue) {
            waiting.begin(&self.nodes, &self.scripts, &shards);
        }
        let mut all = lock(&self.waiting);
        all.retain(|_, waiting| !waiting.is_over());
        all.insert(queue.id, waiting);
        woken
    }

    fn breadth(&self) -> usize {
        if self.nodes.is_cluster() { 8 } else { 2 }
    }
}
