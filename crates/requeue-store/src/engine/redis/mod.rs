//! The engine for Redis and Valkey, on a single node or a cluster.
//!
//! Each operation is a script. A script runs atomically on one shard, with one reading of the server's clock. A queue
//! has one shard on a single node, and several shards on a cluster. Each key belongs permanently to one shard.
//!
//! A shard consists of these Redis keys:
//!
//! - A hash with one row for each key that has a state.
//! - Sorted sets of the keys that are ready, waiting, in flight or parked.
//! - The last fencing token.
//! - A hash of the last failed runs of each key that fails.
//! - A list with a token for waiting processes.
//! - If the queue has groups: a sorted set of the ready keys in the order of the turns, and two hashes. The hashes have
//!   the number of keys in flight and the settings of each group. The group of a key is in the key's row. If the queue
//!   has no groups, scripts run no commands for groups.
//!
//! The schedules of a shard's keys are in a hash and a sorted set. A server that evicts keys may lose them. The
//! activity of each minute is in a hash and two sorted sets, in the slot of the queue's record.
//!
//! # Groups
//!
//! One script counts the keys of a group in flight and delivers further keys. Therefore, the limits are exact. After a
//! failover, they are exact except for lost writes. The script needs all keys of the group in one shard. If a pattern
//! extracts the groups, the group of a key determines its shard. If adds name the groups, the queue has one shard, even
//! if the address asks for more.
//!
//! # Data loss in a failover
//!
//! Replication is asynchronous. When a master fails, writes that it had acknowledged but not replicated are lost:
//!
//! - Adds: at worst, the adds of about the last second are lost, unless N replicas have confirmed them (`wait=N`).
//! - Completions: the key is delivered again after its lease has expired.
//! - Claims: a key may be delivered again while a worker still processes it. The fencing token of that worker is then
//!   lower, so its completion has no effect. Destinations that compare tokens also reject its writes.
//!
//! If replicas do not confirm an add in time, the engine sends the add again. The script recognizes the batch by its
//! receipt, which is a Redis key with the answers of the batch. The receipt is written together with the rows, and
//! expires when the batch can no longer be repeated. Therefore, a repeated add is counted once, even after a failover
//! to a replica that has the receipt.
//!
//! Fencing tokens grow even if writes are lost, because each token is at least the time of its server in microseconds.
//! The guarantee requires that the clocks of servers that replace each other differ by less than the duration of a
//! failover.
//!
//! # Minimum permissions
//!
//! Queues need the keys `requeue:*` and the commands `evalsha`, `script|load`, `blpop`, `get`, `set`, `time`, `exists`,
//! `type`, `hset`, `hdel`, `hget`, `hlen`, `hmget`, `hscan`, `zadd`, `zrem`, `zrange`, `zrangebylex`, `zrangebyscore`,
//! `zscore`, `zcount`, `zcard`, `zscan`, `llen`, `lpush` and `ltrim`. A cluster also needs `cluster|slots` and
//! `cluster|info`, `wait=N` needs `wait`, and an address with a `/DB` needs `select`. `migrate` needs no further
//! permissions. The permission for `info` makes requeue detect servers that evict or do not persist keys. Drops of
//! queues need `unlink`, and queues with groups need `zremrangebylex`.
//!
//! # Lost keys
//!
//! Evictions and manual deletions can remove parts of a shard. Each row has one place in the sorted sets, so a script
//! can detect missing parts by comparing counts. Scripts compare them when a queue is opened, and when a claim finds no
//! key. If parts are missing, a repair walks all rows in short steps, and restores their places. It drops places
//! without a row. Keys whose rows are missing are lost.
//!
//! In a queue with groups, claims deliver no key while the numbers of keys in flight are wrong, because claims could
//! not enforce the limits. Each script adds differences to these numbers. Therefore, their sum stays wrong until the
//! repair counts all keys in flight. A script that finds an impossible number makes the sum wrong. The regular look at
//! the schedules also makes the sum wrong, if the numbers do not add up to it.

mod actions;
mod activity;
mod claiming;
mod dropping;
mod faults;
mod groups;
mod map;
mod names;
mod node;
mod nodes;
mod opening;
mod options;
mod reaching;
mod repairing;
mod requirements;
mod schedules;
mod scripts;
mod sending;
#[cfg(test)]
mod tests;
mod values;
mod waking;
mod walking;

use std::collections::HashMap;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use redis::Value;
use requeue::CancelledRun;
use tokio::sync::watch;

use self::faults::unknown_format;
use self::names::Shard;
use self::node::Line;
use self::nodes::Nodes;
pub(crate) use self::options::Options;
use self::scripts::{CLOCK, Script, Scripts};
pub(crate) use self::values::read_row;
use self::values::{REPLACED, Stored, Values};
use self::waking::{Waiting, return_token};
use crate::engine::activity::{Merging, Parts, Record, Recorded, Which};
use crate::engine::attempts::last_attempts;
use crate::engine::damage::Damaged;
use crate::engine::receipts::{Attempts, Receipt, Receipts};
use crate::engine::schedules::{Agenda, Firing, Scheduled};
use crate::engine::time::micros;
use crate::engine::{
    Answers, Ask, Claim, Claimed, Cursor, Dropped, End, Engine, GroupChange, Place, Renewed,
    Scanned, Settings, Tried, Walked, lock,
};
use crate::types::action::ActionRecord;
use crate::types::add::{Added, ReaddPolicy};
use crate::types::error::{Answer, EngineError, Kind};
use crate::types::inspect::GroupInfo;
use crate::types::inspect::{Attempt, Entry, QueueInfo, State, StateCounts};
use crate::types::key::Key;
use crate::types::rate::{Rate, Throttle};

/// The default number of shards of a queue on a cluster.
const SHARDS: u16 = 16;
/// The time in which replicas must confirm adds if `wait` is set.
const WAIT: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(crate) struct Redis {
    /// The hosts and ports of the seeds, separated by commas, for messages.
    address: String,
    nodes: Arc<Nodes>,
    /// The number of replicas that must have a write before it is acknowledged.
    wait: u32,
    shards: u16,
    /// The shards of the open queues, by the generation of the queue.
    queues: Mutex<HashMap<u64, Arc<Vec<Shard>>>>,
    /// The wakes of each open queue, by the number of its place.
    waiting: Mutex<HashMap<i64, Arc<Waiting>>>,
    places: AtomicI64,
    receipts: Receipts,
    /// A counter that selects the shard with which the next claim begins.
    turn: AtomicUsize,
}

impl Redis {
    pub(crate) async fn connect(options: Options) -> Answer<Self> {
        let seeds = options.seeds.clone();
        match Self::connect_with(options, CLOCK).await {
            Ok(engine) => Ok(engine),
            Err(fault) => Err(reaching::explain_failure(&seeds, fault).await),
        }
    }

    /// Connects to the store, with a given clock. `clock` is the text of a Lua function `now`.
    async fn connect_with(options: Options, clock: &str) -> Answer<Self> {
        // The driver does not choose a TLS provider. If the program has already installed one, `install_default` fails,
        // and the driver uses that provider.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let Options { seeds, wait, shards, accepts_eviction } = options;
        let addresses: Vec<_> = seeds.iter().map(|seed| seed.addr().to_string()).collect();
        let nodes = Nodes::find(&seeds, accepts_eviction, Scripts::new(clock)).await?;
        let shards = shards.unwrap_or(if nodes.is_cluster() { SHARDS } else { 1 });
        Ok(Self {
            address: addresses.join(","),
            nodes,
            wait,
            shards,
            queues: Mutex::default(),
            waiting: Mutex::default(),
            places: AtomicI64::new(0),
            receipts: Receipts::default(),
            turn: AtomicUsize::new(0),
        })
    }

    fn shards_of(&self, queue: &Place) -> Answer<Arc<Vec<Shard>>> {
        let shards = lock(&self.queues).get(&queue.generation).map(Arc::clone);
        shards.ok_or_else(|| EngineError::refused("the queue has not been opened"))
    }

    /// Returns the shards of the queue, and the number of the shard to which the key belongs.
    fn shard_with(&self, queue: &Place, key: &Key) -> Answer<(Arc<Vec<Shard>>, usize)> {
        let shards = self.shards_of(queue)?;
        let number = names::shard_of(&shards[0].queue, key, shards.len());
        Ok((shards, number))
    }

    /// Runs a script that changes keys of one shard in a state. The answer for a key is true if the script has changed
    /// it.
    async fn changed(
        &self,
        script: &Script,
        queue: &Place,
        keys: Vec<Key>,
        state: Option<State>,
    ) -> Answers<bool> {
        let Some(first) = keys.first() else { return Ok(Vec::new()) };
        let (shards, number) = self.shard_with(queue, first)?;
        let mut command = script.on(&shards[number]);
        command.arg(values::name_of(state));
        keys.iter().for_each(|key| _ = command.arg(&**key));
        let answer = self.run_script(&shards[number], &command).await?;
        values::to_changed(answer, keys.len())
    }
}

/// Converts a fencing token of a shard to one of the queue. The results for different shards differ.
fn epoch_of(epoch: i64, number: usize, count: usize) -> i64 {
    // A queue has at most 256 shards.
    epoch.saturating_mul(count as i64).saturating_add(number as i64)
}

fn hold_flag(queue: &Place) -> u8 {
    u8::from(queue.readd_policy == ReaddPolicy::Hold)
}

/// Encodes the settings of completions: see `read_flags` in rows.lua.
fn completion_flags(queue: &Place) -> u8 {
    hold_flag(queue) + 2 * u8::from(queue.keeps_past)
}

#[async_trait]
impl Engine for Redis {
    async fn migrate_schema(&self) -> Answer<()> {
        self.migrate_version().await
    }

    async fn open_queue(&self, name: &str, settings: Settings) -> Answer<Place> {
        async move { self.open_named(name, Some(settings)).await?.ok_or_else(unknown_format) }.await
    }

    async fn find_queue(&self, name: &str) -> Answer<Option<Place>> {
        self.open_named(name, None).await
    }

    async fn drop_queue(&self, name: &str, keys_too: bool) -> Answer<Dropped> {
        self.drop_named(name, keys_too).await
    }

    async fn list_queues(&self) -> Answer<Vec<QueueInfo>> {
        self.list_all().await
    }

    fn shard_count(&self, queue: &Place) -> usize {
        self.shards_of(queue).map_or(1, |shards| shards.len())
    }

    fn shard_of(&self, queue: &Place, key: &Key) -> usize {
        self.shard_with(queue, key).map_or(0, |(_, number)| number)
    }

    async fn send_adds(
        &self,
        queue: &Place,
        asks: Vec<Ask>,
        attempts: &mut Attempts,
        _: Tried,
    ) -> Answers<Added> {
        let Some(first) = asks.first() else { return Ok(Vec::new()) };
        let (shards, number) = self.shard_with(queue, &first.key)?;
        let (shard, script) = (&shards[number], &self.nodes.scripts.add);
        let is_first = attempts.is_first();
        // Without `wait`, a batch is rarely sent again, so it has no receipt.
        let receipt = (self.wait > 0).then(|| self.receipts.for_attempt(attempts));
        let mut command = match receipt {
            Some(Receipt { name, .. }) => script.on_also(shard, &shard.receipt(name)),
            None => script.on(shard),
        };
        command.arg(hold_flag(queue));
        asks.iter().for_each(|ask| values::push_add(&mut command, ask, queue));
        if let Some(Receipt { number, lasts, .. }) = receipt {
            command.arg(number).arg(lasts.as_millis() as u64);
        }
        let line = (Line::WaitingAdds, WAIT);
        let (answer, replicas) = self.run_and_wait(shard, &command, line).await?;
        // The master has the write, but a failover may lose it. The caller sends the batch again.
        if replicas < self.wait {
            let wanted = self.wait;
            let source = format!("only {replicas} of {wanted} replicas have confirmed it").into();
            return Err(EngineError { kind: Kind::Unconfirmed, source });
        }
        // If there were several attempts, the first one may still arrive, and must then find its receipt.
        if let Some(receipt) = receipt.filter(|_| is_first) {
            self.receipts.put_back(receipt);
        }
        let digits = values::to_digits(answer, asks.len())?;
        for (ask, _) in asks.iter().zip(&digits).filter(|(_, digit)| **digit == REPLACED) {
            let why = "the row could not be read".to_owned();
            Damaged { key: ask.key.clone(), why }.report_replaced(&queue.name);
        }
        digits.into_iter().map(|digit| values::to_added(digit).map(Some)).collect()
    }

    async fn claim_keys(&self, queue: &Place, claim: Claim) -> Answer<Claimed> {
        let waiting = lock(&self.waiting).get(&queue.id).map(Arc::clone);
        let woken = waiting.as_ref().and_then(|waiting| waiting.shard());
        // Successive claims begin with different shards, so that no shard's keys starve.
        let begin = woken.unwrap_or_else(|| self.turn.fetch_add(1, Ordering::Relaxed));
        let claimed = self.claim_shards(queue, begin, claim).await;
        if let Some(waiting) = waiting {
            // A failed claim also counts as empty. The task that waits for tokens then has time to find the new server
            // of the shard.
            let is_waited_for = !claim.poll.is_zero();
            let is_empty = claimed.as_ref().map_or(true, |claimed| claimed.items.is_empty());
            waiting.want_tokens(is_waited_for && is_empty);
        }
        claimed
    }

    /// Pauses or resumes one shard after another.
    async fn set_paused(&self, queue: &Place, paused: bool) -> Answer<()> {
        for (n, shard) in self.shards_of(queue)?.iter().enumerate() {
            let mut command = self.nodes.scripts.pause.on(shard);
            command.arg(u8::from(paused));
            let ran = self.run_script(shard, &command).await;
            // If a shard after the first one fails, the earlier shards are already changed.
            ran.map_err(|fault| if n > 0 { fault.after_a_part() } else { fault })?;
        }
        Ok(())
    }

    /// Returns true if at least one shard is paused. If a pause or a resume is interrupted, only some of the shards may
    /// be paused.
    async fn is_paused(&self, queue: &Place) -> Answer<bool> {
        for shard in &*self.shards_of(queue)? {
            let found = self.run_script(shard, &self.nodes.scripts.is_paused.on(shard)).await?;
            if values::number(found)? == 1 {
                return Ok(true);
            }
        }
        Ok(false)
    }

    async fn change_group(&self, queue: &Place, group: &str, change: GroupChange) -> Answer<()> {
        self.change_group_setting(queue, Some(group), change).await
    }

    async fn set_group_limit(&self, queue: &Place, limit: Option<u32>) -> Answer<()> {
        self.set_default_limit(queue, limit).await
    }

    async fn read_rate(&self, queue: &Place) -> Answer<Option<Throttle>> {
        self.read_queue_rate(queue).await
    }

    async fn set_rate(&self, queue: &Place, rate: Option<Rate>) -> Answer<()> {
        self.set_queue_rate(queue, rate, "always").await.map(drop)
    }

    async fn set_first_rate(&self, queue: &Place, rate: Rate) -> Answer<Rate> {
        let stored = self.set_queue_rate(queue, Some(rate), "first").await?;
        Ok(stored.unwrap_or(rate))
    }

    async fn list_groups(
        &self,
        queue: &Place,
        after: Option<&str>,
        limit: usize,
    ) -> Answer<Vec<GroupInfo>> {
        self.list_all_groups(queue, after, limit).await
    }

    async fn record_activity(&self, queue: &Place, record: Record) -> Answer<Recorded> {
        self.store_activity(queue, record).await
    }

    async fn read_activity(&self, queue: &Place, which: Which) -> Answer<Parts> {
        self.read_parts(queue, which).await
    }

    async fn merge_activity(&self, queue: &Place, merging: Merging) -> Answer<bool> {
        self.merge_parts(queue, merging).await
    }

    async fn record_action(&self, queue: &Place, action: ActionRecord) -> Answer<()> {
        self.store_action(queue, action).await
    }

    async fn last_actions(&self, queue: &Place) -> Answer<Vec<ActionRecord>> {
        self.read_actions(queue).await
    }

    async fn put_schedule(&self, queue: &Place, schedule: Scheduled) -> Answer<Agenda> {
        self.store_schedule(queue, schedule).await
    }

    async fn remove_schedule(&self, queue: &Place, key: &Key) -> Answer<bool> {
        self.change_schedule(queue, key, "remove").await
    }

    async fn pause_schedule(&self, queue: &Place, key: &Key, paused: bool) -> Answer<bool> {
        self.change_schedule(queue, key, if paused { "pause" } else { "resume" }).await
    }

    async fn look_up_schedule(&self, queue: &Place, key: &Key) -> Answer<Agenda> {
        self.find_schedule(queue, key).await
    }

    async fn list_schedules(
        &self,
        queue: &Place,
        after: Option<&Key>,
        limit: usize,
    ) -> Answer<Vec<Agenda>> {
        self.scan_schedules(queue, after, limit).await
    }

    async fn next_schedules(&self, queue: &Place, shard: usize, limit: usize) -> Answer<Agenda> {
        self.read_next_schedules(queue, shard, limit).await
    }

    async fn fire_schedule(&self, queue: &Place, was: &Scheduled, firing: Firing) -> Answer<bool> {
        self.fire_stored(queue, was, firing).await
    }

    async fn send_completions(&self, queue: &Place, ends: Vec<End>, _: Tried) -> Answers<bool> {
        let Some(first) = ends.first() else { return Ok(Vec::new()) };
        let (shards, number) = self.shard_with(queue, &first.key)?;
        let mut command = self.nodes.scripts.finish.on(&shards[number]);
        command.arg(completion_flags(queue));
        for end in &ends {
            values::push_completion(&mut command, end, end.epoch / shards.len() as i64);
        }
        let answer = self.run_script(&shards[number], &command).await?;
        values::to_changed(answer, ends.len())
    }

    async fn renew_leases(
        &self,
        queue: &Place,
        held: Vec<(Key, i64)>,
        lease: Duration,
    ) -> Answer<Vec<Renewed>> {
        let Some((first, _)) = held.first() else { return Ok(Vec::new()) };
        let (shards, number) = self.shard_with(queue, first)?;
        let mut command = self.nodes.scripts.renew.on(&shards[number]);
        command.arg(micros(lease));
        for (key, epoch) in &held {
            command.arg(&**key).arg(epoch / shards.len() as i64);
        }
        let answer = self.run_script(&shards[number], &command).await?;
        let renewed = |digit| match digit {
            b'1' => Renewed::Yes,
            b'2' => Renewed::Cancelled,
            _ => Renewed::Lost,
        };
        Ok(values::to_digits(answer, held.len())?.into_iter().map(renewed).collect())
    }

    async fn cancel_keys(
        &self,
        queue: &Place,
        keys: Vec<Key>,
        only: Option<State>,
    ) -> Answers<bool> {
        self.changed(&self.nodes.scripts.cancel, queue, keys, only).await
    }

    async fn cancel_running(&self, queue: &Place, key: &Key) -> Answer<CancelledRun> {
        let (shards, number) = self.shard_with(queue, key)?;
        let mut command = self.nodes.scripts.cancel_running.on(&shards[number]);
        command.arg(&**key);
        let cancelled = self.run_script(&shards[number], &command).await?;
        let cancelled = match values::number(cancelled)? {
            0 => return Ok(CancelledRun::NotInFlight),
            1 => CancelledRun::Cancelled,
            _ => CancelledRun::AlreadyCancelled,
        };
        // Processes renew their leases when this value changes. It expires after all of them have read it.
        let (signal, slot) = names::cancels(&queue.name);
        let mut set = redis::cmd("SET");
        set.arg(signal).arg(fastrand::u64(1..=i64::MAX.unsigned_abs())).arg("EX").arg(60);
        if let Err(fault) = self.nodes.run_command(slot, &set).await {
            // A server whose memory is full refuses the value. The run is cancelled nevertheless, but its worker is
            // notified later.
            let (queue, error) = (&queue.name, fault.source);
            tracing::warn!(queue, %error, "a run was cancelled, and its worker learns of it only \
                    by the next renewal of its lease");
        }
        Ok(cancelled)
    }

    async fn cancel_signal(&self, queue: &Place) -> Answer<u64> {
        let (signal, slot) = names::cancels(&queue.name);
        let mut get = redis::cmd("GET");
        match self.nodes.run_command(slot, get.arg(signal)).await? {
            Value::Nil => Ok(0),
            found => Ok(values::number(found)?.unsigned_abs()),
        }
    }

    async fn make_ready(&self, queue: &Place, keys: Vec<Key>, from: State) -> Answers<bool> {
        async move { self.changed(&self.nodes.scripts.revive, queue, keys, Some(from)).await }.await
    }

    async fn walk_keys(
        &self,
        queue: &Place,
        state: Option<State>,
        from: Option<Cursor>,
        limit: usize,
    ) -> Answer<Walked> {
        self.walk_step(queue, state, from, limit).await
    }

    fn scans(&self) -> bool {
        true
    }

    async fn scan_entries(
        &self,
        queue: &Place,
        state: Option<State>,
        from: Option<Cursor>,
    ) -> Answer<Scanned> {
        self.scan_step(queue, state, from).await
    }

    async fn look_up(&self, queue: &Place, key: &Key) -> Answer<Option<Entry>> {
        let (shards, number) = self.shard_with(queue, key)?;
        let mut command = self.nodes.scripts.look_up.on(&shards[number]);
        command.arg(&**key);
        let answer = self.run_script(&shards[number], &command).await?;
        let mut answer = Values::from_array(answer)?;
        let now = answer.number()?;
        let epoch = |epoch| epoch_of(epoch, number, shards.len());
        let stored = Stored::next(&mut answer, queue.group_by.is_some()).ok();
        Ok(stored.map(|stored| stored.to_entry(key.clone(), epoch, now)))
    }

    async fn read_attempts(&self, queue: &Place, key: &Key) -> Answer<Vec<Attempt>> {
        let (shards, number) = self.shard_with(queue, key)?;
        let mut command = self.nodes.scripts.read_attempts.on(&shards[number]);
        command.arg(&**key);
        let answer = self.run_script(&shards[number], &command).await?;
        let mut answer = Values::from_array(answer)?;
        let now = answer.number()?;
        let has_groups = queue.group_by.is_some();
        let row = answer.bytes().ok().map(|packed| Stored::without_run(packed, has_groups));
        let mut kept = Vec::new();
        while !answer.is_empty() {
            let value = answer.bytes().ok();
            kept.extend(value.and_then(|value| values::read_failed(&value)));
        }
        Ok(last_attempts(kept, row.map_or(0, |row| row.failures()), now))
    }

    async fn read_page(
        &self,
        queue: &Place,
        state: Option<State>,
        after: Option<&Key>,
        limit: usize,
    ) -> Answer<Vec<Entry>> {
        self.read_pages(queue, state, after, limit).await
    }

    async fn count_keys(&self, queue: &Place) -> Answer<StateCounts> {
        self.count_all(queue).await
    }

    async fn is_idle(&self, queue: &Place) -> Answer<bool> {
        self.has_no_work(queue).await
    }

    fn subscribe_wakes(&self, queue: &Place) -> watch::Receiver<u64> {
        let waiting = Arc::new(Waiting::new());
        let woken = waiting.subscribe();
        if let Ok(shards) = self.shards_of(queue) {
            // Wakes need not name groups, because the scripts of claims read the names of changed groups.
            shards.iter().for_each(|shard| lock(&shard.turns).hear_wakes());
            waiting.begin(&self.nodes, &shards);
        }
        let mut all = lock(&self.waiting);
        // The entries of queues that this process has closed are removed.
        all.retain(|_, waiting| !waiting.is_over());
        all.insert(queue.id, waiting);
        woken
    }

    fn pass_wake_on(&self, queue: &Place) {
        let waiting = lock(&self.waiting).get(&queue.id).map(Arc::clone);
        let (Some(waiting), Ok(shards)) = (waiting, self.shards_of(queue)) else { return };
        // Otherwise, this process could take the token again.
        waiting.want_tokens(false);
        // After a failed claim, it is not known from which shard the token came.
        let numbers = waiting.shard().map_or(0..shards.len(), |number| number..number + 1);
        let nodes = Arc::clone(&self.nodes);
        tokio::spawn(async move {
            for number in numbers {
                return_token(&nodes, &shards[number]).await;
            }
        });
    }

    fn max_batches(&self) -> usize {
        if self.nodes.is_cluster() { 8 } else { 2 }
    }
}
