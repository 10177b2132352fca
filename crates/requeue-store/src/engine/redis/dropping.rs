//! Drops queues.
//!
//! Each queue has a generation, which is a random number that is drawn when the queue is created. The record of the
//! queue has the generation, and each shard has it as a mark. Each script compares the mark with the generation that
//! its caller has opened. Therefore, no script operates on a dropped queue, even if a new queue has the same name.
//!
//! No script can access all shards of a cluster. Therefore, a drop consists of these steps:
//!
//! 1. The drop seals all shards: their marks then say that a drop is in progress, and scripts are refused. If the queue
//!    has keys that must be kept, the drop unseals the shards and ends.
//! 2. It raises the floor to the last token of the queue. The floor is a number that the fencing tokens of all later
//!    queues exceed.
//! 3. It marks the record. From now on, the queue is dropped.
//! 4. It removes the shards, the record, and the name in the list of queues.
//!
//! If a drop is interrupted before step 3, the shards stay sealed until another drop takes over, after [a time
//! limit](LIMIT). If it is interrupted after step 3, the next process that opens or drops the queue completes it.
//!
//! If a process opens the queue and finds a shard without a mark, it first writes a tentative mark, which no script
//! accepts. The process then reads the record again. It completes the mark only if the tentative mark still exists.
//! Therefore, a process that has read the record before a drop cannot mark the shards after the drop.
//!
//! A mark may be missing because the server has evicted it. The record then shows whether the queue was dropped. If the
//! record is also missing, the floor shows it: if any queue was dropped after this queue was opened, the floor has
//! risen.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::time::Instant;

use super::faults::unknown_format;
use super::names::{self, Identity, Shard};
use super::nodes::Nodes;
use super::opening::Record;
use super::values::{self, Values};
use super::walking::sum_counts;
use super::{Redis, epoch_of};
use crate::engine::Dropped;
use crate::types::error::{Answer, EngineError, Kind};
use crate::types::group::Grouping;
use crate::types::inspect::StateCounts;

/// The time limit of steps 1 and 2 together. After twice this time, drop.lua lets another drop take over.
const LIMIT: Duration = Duration::from_secs(5);

impl Redis {
    pub(super) async fn drop_named(&self, name: &str, keys_too: bool) -> Answer<Dropped> {
        let read = async {
            self.check(Some(name)).await?;
            self.read_record(name, None).await
        };
        let record = read.await.map_err(EngineError::of_a_read)?;
        let Some(record) = record else { return Ok(Dropped::Missing) };
        let Record { settings, shards: count, generation, is_dropping, .. } = record;
        // The names of a shard's Redis keys depend on whether the queue has groups.
        let grouping = settings.group_by.map(|_| Grouping::Add);
        let of = Arc::new(Identity { name: name.to_owned(), generation, floor: 0, grouping });
        let shards = names::shards(&of, count);
        if !keys_too && !is_dropping {
            // The keys are first counted without a seal. If the queue is not dropped, adds are then not interrupted.
            let counted = self.count_unsealed(&shards).await;
            let (counts, schedules) = counted.map_err(EngineError::of_a_read)?;
            if Dropped::keeps(&counts, schedules, keys_too) {
                return Ok(Dropped::Kept(counts, schedules));
            }
        }
        let nodes = Arc::clone(&self.nodes);
        // The drop runs in a separate task. Otherwise, shards could stay sealed if the caller is dropped.
        let dropping = tokio::spawn(async move {
            if is_dropping {
                // An earlier drop was interrupted after step 3.
                remove_queue(&nodes, &shards).await?;
                return Ok(Dropped::Yes(StateCounts::default()));
            }
            let dropped = seal_and_mark(&nodes, &shards, keys_too).await?;
            if matches!(dropped, Dropped::Yes(_)) {
                remove_queue(&nodes, &shards).await?;
            }
            Ok(dropped)
        });
        dropping.await.unwrap_or_else(|error| Err(EngineError::unsure(error)))
    }

    /// Returns the numbers of keys and schedules. The keys of a shard that another drop has sealed are not included.
    async fn count_unsealed(&self, shards: &[Shard]) -> Answer<(StateCounts, u64)> {
        let (mut counts, mut schedules) = (StateCounts::default(), 0);
        for shard in shards {
            schedules += count_schedules(&self.nodes, shard).await?;
            let counted = self.nodes.scripts.counts.on(shard);
            if let Ok(counted) = self.run_script(shard, &counted).await {
                counts =
                    sum_counts(counts, values::read_counts(&mut Values::from_array(counted)?)?);
            }
        }
        Ok((counts, schedules))
    }

    /// Returns the floor. Each queue that is created later has greater fencing tokens.
    pub(super) async fn read_floor(&self) -> Answer<i64> {
        let get = redis::cmd("GET").arg(names::FLOOR).to_owned();
        match self.nodes.run_command(names::slot(names::FLOOR), &get).await? {
            Value::Nil => Ok(0),
            floor => values::number(floor),
        }
    }

    /// Restores the mark of a shard that has lost it. Returns an error if the queue was dropped.
    pub(super) async fn restore_mark(&self, shard: &Shard) -> Answer<()> {
        let of = &shard.queue;
        if self.was_dropped(of).await? {
            return Err(EngineError::dropped(&of.name));
        }
        let mut check = self.nodes.scripts.check.on(shard);
        check.arg(0);
        let record = self.read_record(&of.name, None).await?;
        let settings = record.map(|record| record.settings).unwrap_or_default();
        check.arg(values::rate_word(settings.rate));
        if of.grouping.is_some() {
            check.arg(values::limit_word(settings.group_limit));
        }
        self.nodes.run_script(shard.slot, &check).await?;
        if self.was_dropped(of).await? {
            // The queue was dropped after its record was read. If this step fails, a tentative mark remains. It has no
            // effect.
            let _ = self.complete_mark(shard, "forget").await;
            return Err(EngineError::dropped(&of.name));
        }
        // If the mark is not completed, the caller's script finds no mark again, and the caller restores the mark
        // again.
        self.complete_mark(shard, "confirm").await.map(drop)
    }

    /// Completes a tentative mark, or removes it, as `what` says. Returns true if the shard then has the mark of its
    /// queue.
    pub(super) async fn complete_mark(&self, shard: &Shard, what: &str) -> Answer<bool> {
        let mut command = self.nodes.scripts.mark.on(shard);
        command.arg(what);
        let marked = self.nodes.run_script(shard.slot, &command).await?;
        Ok(values::number(marked)? == 1)
    }

    async fn was_dropped(&self, of: &Identity) -> Answer<bool> {
        Ok(match self.read_record(&of.name, None).await? {
            Some(record) => record.generation != of.generation || record.is_dropping,
            None => self.read_floor().await? > of.floor,
        })
    }
}

async fn count_schedules(nodes: &Arc<Nodes>, shard: &Shard) -> Answer<u64> {
    let mut answer = Values::from_array(run_step(nodes, shard, "schedules", 0).await?)?;
    answer.next_value()?;
    answer.number()
}

/// Performs steps 1 to 3 of a drop.
async fn seal_and_mark(nodes: &Arc<Nodes>, shards: &[Shard], keys_too: bool) -> Answer<Dropped> {
    let name = fastrand::u64(1..=i64::MAX.unsigned_abs());
    let began = Instant::now();
    let decided = match seal_shards(nodes, shards, name).await {
        Ok((counts, schedules, _)) if Dropped::keeps(&counts, schedules, keys_too) => {
            Ok(Dropped::Kept(counts, schedules))
        }
        Ok((counts, _, last_epoch)) => {
            let marked = mark_record(nodes, &shards[0].queue, last_epoch, began).await;
            marked.map(|()| Dropped::Yes(counts))
        }
        Err(fault) => Err(fault),
    };
    // If it is unknown whether the record is marked, the shards stay sealed, and another drop decides.
    let is_open = match &decided {
        Ok(dropped) => !matches!(dropped, Dropped::Yes(_)),
        Err(fault) => !fault.kind.may_have_happened(),
    };
    if is_open {
        for shard in shards {
            // If this shard fails, the other shards must be unsealed nevertheless.
            if let Err(fault) = run_step(nodes, shard, "unseal", name).await {
                let (queue, error) = (&shard.queue.name, fault.source);
                tracing::warn!(queue, %error, "a shard could not be unsealed: \
                    drop the queue again");
            }
        }
    }
    decided
}

/// Seals all shards. Returns the numbers of keys and schedules, and the last fencing token.
async fn seal_shards(
    nodes: &Arc<Nodes>,
    shards: &[Shard],
    name: u64,
) -> Answer<(StateCounts, u64, i64)> {
    let (mut all, mut schedules, mut last_epoch) = (StateCounts::default(), 0, 0);
    for (number, shard) in shards.iter().enumerate() {
        let answer = run_step(nodes, shard, "seal", name).await;
        // This error need not be `Unsure`, because the later unseal shows whether the shard was sealed.
        let answer = answer.map_err(|fault| EngineError { kind: Kind::Absent, ..fault })?;
        let mut answer = Values::from_array(answer)?;
        if answer.number::<u8>()? == 0 {
            return Err(EngineError::absent("another process is dropping the queue"));
        }
        last_epoch = last_epoch.max(epoch_of(answer.number()?, number, shards.len()));
        all = sum_counts(all, values::read_counts(&mut answer)?);
        schedules += answer.number::<u64>()?;
    }
    Ok((all, schedules, last_epoch))
}

async fn mark_record(
    nodes: &Arc<Nodes>,
    of: &Identity,
    last_epoch: i64,
    began: Instant,
) -> Answer<()> {
    let mut raise = nodes.scripts.floor.with(&[names::FLOOR.to_owned()]);
    raise.arg(last_epoch);
    let raised = nodes.run_script(names::slot(names::FLOOR), &raise);
    raised.await.map_err(|fault| EngineError { kind: Kind::Absent, ..fault })?;
    // Another drop may have taken over and removed the seals, and adds may have succeeded after that.
    if began.elapsed() > LIMIT {
        return Err(EngineError::absent("the shards did not answer in time"));
    }
    record(nodes, of, &["drop".to_owned()]).await
}

/// Performs step 4 of a drop. Several processes can do this at the same time.
pub(super) async fn remove_queue(nodes: &Arc<Nodes>, shards: &[Shard]) -> Answer<()> {
    // The shards are removed before the record. If the process crashed in between without a record, no process would
    // find the remaining shards.
    remove_shards(nodes, shards).await?;
    let Some(Shard { queue: of, .. }) = shards.first() else { return Ok(()) };
    record(nodes, of, &["remove".to_owned()]).await?;
    let mut remove = redis::cmd("HDEL");
    remove.arg(names::QUEUES).arg(&of.name);
    nodes.run_command(names::slot(names::QUEUES), &remove).await?;
    // Another process may have created the queue again. In this case, its name must be in the list.
    let (key, slot) = names::queue(&of.name);
    let exists = redis::cmd("EXISTS").arg(key).to_owned();
    if values::number(nodes.run_command(slot, &exists).await?)? > 0 {
        list_name(nodes, &of.name).await?;
    }
    Ok(())
}

pub(super) async fn remove_shards(nodes: &Arc<Nodes>, shards: &[Shard]) -> Answer<()> {
    for shard in shards {
        run_step(nodes, shard, "remove", 0).await?;
    }
    Ok(())
}

async fn run_step(nodes: &Arc<Nodes>, shard: &Shard, what: &str, name: u64) -> Answer<Value> {
    let mut command = nodes.scripts.drop.on_schedules(shard);
    command.arg(what).arg(name);
    nodes.run_script(shard.slot, &command).await
}

/// Changes the record of a queue. Does nothing if the record has another generation than `of`.
pub(super) async fn record(nodes: &Arc<Nodes>, of: &Identity, what: &[String]) -> Answer<()> {
    let (key, slot) = names::queue(&of.name);
    let mut command = nodes.scripts.record.with(&names::with_activity(key));
    command.arg(of.generation).arg(what);
    nodes.run_script(slot, &command).await.map(drop)
}

/// Adds a queue to the list of all queues.
pub(super) async fn list_name(nodes: &Arc<Nodes>, name: &str) -> Answer<()> {
    let mut list = nodes.scripts.list.with(&[names::QUEUES.to_owned()]);
    list.arg(name);
    nodes.run_script(names::slot(names::QUEUES), &list).await.map(drop)
}

/// The state of a mark.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mark {
    /// A process that opens the queue has written the mark, and has not completed it yet.
    Tentative,
    Complete,
    /// A drop is in progress, or was interrupted.
    Sealed,
}

/// Parses a mark. Returns its generation and its state.
pub(super) fn parse_mark(mark: &str) -> Answer<(u64, Mark)> {
    let (generation, kind) = match (mark.strip_prefix('-'), mark.strip_prefix('?')) {
        (Some(sealed), _) => (sealed.split(' ').next().unwrap_or(sealed), Mark::Sealed),
        (_, Some(tentative)) => (tentative, Mark::Tentative),
        _ => (mark, Mark::Complete),
    };
    Ok((generation.parse().map_err(|_| unknown_format())?, kind))
}

/// Adds the name of the queue to the error about a dropped queue, because the server's error does not contain it.
pub(super) fn name_dropped(shard: &Shard, fault: EngineError) -> EngineError {
    match fault.kind {
        Kind::Dropped => EngineError::dropped(&shard.queue.name),
        _ => fault,
    }
}
