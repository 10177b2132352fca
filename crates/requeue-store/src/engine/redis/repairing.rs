//! Repairs shards from which keys were removed, for example by a server that evicts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Redis;
use super::names::Shard;
use super::nodes::Nodes;
use super::values::{self, Health, Stored, Values};
use crate::engine::Place;
use crate::types::error::Answer;
use crate::types::group::Grouping;
use crate::types::key::Key;

/// The delay before a shard that is being repaired is asked for keys again.
const SOON: Duration = Duration::from_millis(100);

/// The number of the Redis key that has the rows.
const ROWS: usize = 1;

/// The Redis keys that are walked, by their numbers in the scripts. The first one has the rows, and the
/// walk restores missing places of them. The others have the places: low, normal and high priority,
/// leases, re-adds in flight, parked keys, rows that were set aside.
const WALKED: [usize; 8] = [1, 2, 3, 4, 5, 6, 7, 11];

/// The same in queues with groups. First, the keys that are ready or in flight, with their groups: without a pattern, their
/// walk restores the groups of keys that were lost. Last, the groups of keys.
const WALKED_WITH_GROUPS: [usize; 11] = [15, 16, 1, 2, 3, 4, 5, 6, 7, 11, 17];

impl Redis {
    /// Starts the repair of a damaged shard. Returns the time until it may have keys.
    pub(super) fn start_repair(
        &self,
        queue: &Place,
        shards: &Arc<Vec<Shard>>,
        number: usize,
        health: Health,
    ) -> Option<Duration> {
        let Health::Damaged(dropped) = health else { return None };
        let nodes = Arc::clone(&self.nodes);
        let (queue, shards) = (queue.name.clone(), Arc::clone(shards));
        report_repair(&queue, 0, dropped);
        // At most one task of this process repairs a shard. Repairs by other processes are harmless, but
        // slow.
        if !shards[number].is_repaired.swap(true, Ordering::Relaxed) {
            tokio::spawn(async move {
                let shard = &shards[number];
                if let Err(fault) = repair_shard(&nodes, &queue, shard).await {
                    tracing::warn!(queue, error = %fault.source, "the repair of a damaged \
                        shard failed, and will be retried");
                }
                shard.is_repaired.store(false, Ordering::Relaxed);
            });
        }
        Some(SOON)
    }
}

/// Restores the places of rows, and drops places that have no row, in short steps. Others may use and even
/// repair the shard at the same time.
pub(super) async fn repair_shard(nodes: &Arc<Nodes>, queue: &str, shard: &Shard) -> Answer<()> {
    let (mut restored, mut dropped) = (0, 0);
    let grouping = shard.queue.grouping.as_ref();
    let walks: &[usize] = if grouping.is_some() { &WALKED_WITH_GROUPS } else { &WALKED };
    // The places of a key that has moved since the loss are those of a key in no group, so a pattern comes before them.
    let restoring = grouping.map(|by| match by {
        Grouping::Pattern(_) => walks[0],
        Grouping::Add => ROWS,
    });
    for &walked in walks {
        if restoring == Some(walked) {
            restore_groups(nodes, shard).await?;
        }
        let mut cursor = b"0".to_vec();
        loop {
            let mut command = nodes.scripts.repair.on(shard);
            command.arg(walked).arg(&cursor);
            let step = nodes.run_script(shard.slot, &command).await?;
            let mut step = Values::from_array(step)?;
            cursor = step.bytes()?;
            restored += step.number::<u64>()?;
            dropped += step.number::<u64>()?;
            for damaged in values::set_aside(step.next_value()?)? {
                damaged.report_set_aside(queue);
            }
            if cursor == b"0" {
                break;
            }
        }
    }
    report_repair(queue, restored, dropped);
    Ok(())
}

/// Restores the groups of keys that have lost them, as far as the keys show them. The others are in no group.
pub(super) async fn restore_groups(nodes: &Arc<Nodes>, shard: &Shard) -> Answer<()> {
    let mut cursor = b"0".to_vec();
    loop {
        let mut walk = nodes.scripts.walk.on(shard);
        walk.arg("all").arg(&cursor);
        let mut step = Values::from_array(nodes.run_script(shard.slot, &walk).await?)?;
        cursor = step.bytes()?;
        // The time is not used.
        step.next_value()?;
        let mut regroup = nodes.scripts.regroup.on(shard);
        let mut is_needed = false;
        while !step.is_empty() {
            let key = Key::from(step.bytes()?);
            if Stored::next(&mut step, true)?.group.is_none() {
                let pattern = shard.queue.grouping.as_ref();
                let group = pattern.and_then(|pattern| pattern.group_of(&key, None).ok());
                regroup.arg(&*key).arg(group.as_deref().unwrap_or_default());
                is_needed = true;
            }
        }
        if is_needed {
            nodes.run_script(shard.slot, &regroup).await?;
        }
        if cursor == b"0" {
            return Ok(());
        }
    }
}

fn report_repair(queue: &str, restored: u64, dropped: u64) {
    if restored + dropped > 0 {
        tracing::warn!(
            queue,
            restored,
            lost = dropped,
            "the server has lost parts of the queue: keys were evicted or \
             deleted; check its maxmemory-policy"
        );
    }
}
