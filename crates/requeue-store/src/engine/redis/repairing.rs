//! Repairs shards from which keys were removed, for example by a server that evicts.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Redis;
use super::names::Shard;
use super::nodes::Nodes;
use super::values::{self, Health, Values};
use crate::engine::Place;
use crate::types::error::Answer;

/// The delay before the next claim from a shard that is being repaired.
const SOON: Duration = Duration::from_millis(100);

/// The Redis keys that are walked, by their numbers in the scripts. The first key contains the rows, whose missing
/// places the walk restores. The others contain the places: low, normal and high priority, leases, re-adds in flight,
/// parked keys, and rows that were set aside.
const WALKED: [usize; 8] = [1, 2, 3, 4, 5, 6, 7, 11];

/// The Redis keys that are walked in queues with groups. They also contain the ready keys, and lastly the numbers of
/// keys in flight by group.
const WALKED_WITH_GROUPS: [usize; 10] = [1, 2, 3, 4, 5, 6, 7, 11, 15, 16];

impl Redis {
    /// Starts the repair of a damaged shard. Returns the time until the shard may deliver keys.
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
        // At most one task of this process repairs a shard. Repairs by several processes at the same time are harmless,
        // but slow.
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

/// Restores the places of rows, and drops places that have no row, in short steps. Other processes can use and even
/// repair the shard at the same time.
pub(super) async fn repair_shard(nodes: &Arc<Nodes>, queue: &str, shard: &Shard) -> Answer<()> {
    let (mut restored, mut dropped) = (0, 0);
    let has_groups = shard.queue.grouping.is_some();
    let walks: &[usize] = if has_groups { &WALKED_WITH_GROUPS } else { &WALKED };
    for &walked in walks {
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
