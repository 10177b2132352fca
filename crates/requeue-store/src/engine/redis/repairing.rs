//! Repairs shards from which keys were removed, for example by an eviction.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Redis;
use super::names::Shard;
use super::nodes::Nodes;
use super::values::{self, Health, Values};
use crate::engine::Place;
use crate::types::error::Answer;

/// The time until the next claim from a shard that is being repaired.
const SOON: Duration = Duration::from_millis(100);

/// The Redis keys that the repair walks, by their numbers in the scripts. The first one contains the rows, and the walk
/// restores their missing places. The others contain the places: low, normal and high priority, leases, re-adds in
/// flight, parked keys, and rows that were set aside.
const WALKED: [usize; 8] = [1, 2, 3, 4, 5, 6, 7, 11];

/// The Redis keys that the repair walks if the queue has groups. They include the ready keys. The last one contains the
/// number of keys in flight of each group.
const WALKED_WITH_GROUPS: [usize; 10] = [1, 2, 3, 4, 5, 6, 7, 11, 15, 16];

impl Redis {
    /// Starts the repair of a damaged shard. Returns the time until the shard may deliver keys again.
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
        // At most one task of this process repairs a shard. If several processes repair it at the same time, the repair
        // is slow, but correct.
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

/// Restores the places of rows that have none, and drops places that have no row, in short steps. Other processes can
/// use the shard at the same time, and can even repair it.
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
