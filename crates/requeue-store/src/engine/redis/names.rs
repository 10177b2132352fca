//! The names of a queue's Redis keys, and the shard of each key.

use std::fmt::Write;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use crc16::{State, XMODEM};
use tokio::time::Instant;

use crate::engine::turns::Turns;
use crate::types::group::Grouping;
use crate::types::key::Key;

/// The number of slots of a cluster.
const SLOTS: u16 = 16384;
/// The maximum number of shards of a queue.
pub(super) const MAX_SHARDS: u16 = 256;

/// The Redis key with the version of the data of all queues.
pub(super) const SCHEMA: &str = "requeue:schema";

/// The Redis key of the floor, a number that grows with each drop. Queues that are created later have greater fencing
/// tokens.
pub(super) const FLOOR: &str = "requeue:dropped";

/// The Redis key of a hash with the names of all queues. On a cluster, no other Redis key lists them.
pub(super) const QUEUES: &str = "requeue:queues";

/// Identifies one of the successive queues that have the same name.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) name: String,
    /// A random number that is drawn when the queue is created.
    pub(super) generation: u64,
    /// The floor at the time at which this process opened the queue.
    pub(super) floor: i64,
    /// The rule that assigns keys to groups, or `None` if the queue has no groups.
    pub(super) grouping: Option<Grouping>,
}

/// A part of a queue. A shard lies on one node of a cluster, and each script operates on one shard.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) slot: u16,
    pub(super) queue: Arc<Identity>,
    /// The Redis keys of the shard, in the order that the scripts use. The last four exist only in a queue with groups.
    pub(super) keys: Vec<String>,
    /// The time at which the shard stopped answering claims. Until it answers, claims skip it.
    pub(super) silent: Mutex<Option<Instant>>,
    /// True while this process repairs the shard.
    pub(super) is_repaired: AtomicBool,
    /// The turns of the groups in the claims of this process.
    pub(super) turns: Mutex<Turns>,
}

impl Shard {
    pub(super) fn rows(&self) -> &str {
        &self.keys[0]
    }

    pub(super) fn wake(&self) -> &str {
        &self.keys[8]
    }

    pub(super) fn paused(&self) -> &str {
        &self.keys[12]
    }

    /// Returns the Redis key of a receipt. This Redis key expires, and is not a part of the shard.
    pub(super) fn receipt(&self, name: u64) -> String {
        let rows = self.rows();
        let start = rows.rfind(':').map_or(rows, |end| &rows[..end]);
        format!("{start}:receipt:{name:x}")
    }

    /// Returns the Redis keys of the schedules. Only drops, and the scripts that change schedules, use them.
    pub(super) fn schedules(&self) -> [String; 2] {
        let rows = self.rows();
        let start = rows.rfind(':').map_or(rows, |end| &rows[..end]);
        ["schedules", "schedule-times"].map(|part| format!("{start}:{part}"))
    }

    /// Returns the Redis key of the mark, which has the generation.
    pub(super) fn generation(&self) -> &str {
        &self.keys[9]
    }
}

/// The parts of a shard that only a queue with groups has.
const GROUP_PARTS: [&str; 4] = ["turns", "in-flight", "group-settings", "freed"];

/// Returns all shards of a queue. They are distributed evenly over the slots of a cluster.
pub(super) fn shards(of: &Arc<Identity>, count: u16) -> Vec<Shard> {
    let queue = encode_name(&of.name);
    let shard = |number: u16| {
        let slots = SLOTS / count;
        let mut tags = (0u32..).map(|draw| format!("{queue}/{number}.{draw}"));
        // A tag is suitable with the probability 1 / `count`.
        let tag = tags.find(|tag| (slot(tag) / slots).min(count - 1) == number);
        let tag = tag.unwrap_or_else(|| queue.clone());
        // The name contains the generation. Therefore, a process that waits for a token of a dropped queue cannot take
        // a token of a later queue.
        let wake = format!("{}:wake", of.generation);
        let parts = [
            "rows",
            "low",
            "normal",
            "high",
            "leases",
            "again",
            "parked",
            "epoch",
            &wake,
            "generation",
            "aside",
            "cancelled",
            "paused",
            "attempts",
        ];
        let parts = parts.iter().chain(of.grouping.iter().flat_map(|_| &GROUP_PARTS));
        let keys = parts.map(|part| format!("requeue:{{{tag}}}:{part}")).collect();
        let (silent, is_repaired, turns) = Default::default();
        Shard { slot: slot(&tag), queue: Arc::clone(of), keys, silent, is_repaired, turns }
    };
    (0..count).map(shard).collect()
}

/// Returns the number of a key's shard. If a pattern extracts the groups, all keys of a group are in one shard, so that
/// the group can have a limit.
pub(super) fn shard_of(queue: &Identity, key: &Key, count: usize) -> usize {
    let hash = |text: &[u8]| usize::from(State::<XMODEM>::calculate(text)) % count;
    match &queue.grouping {
        _ if count == 1 => 0,
        // A key whose group is invalid cannot be added, so its shard has no effect.
        Some(grouping @ Grouping::Pattern(_)) => {
            grouping.group_of(key, None).map_or(0, |group| hash(group.as_bytes()))
        }
        Some(Grouping::Add) | None => hash(key),
    }
}

/// Returns the Redis key of the queue's record, and its slot.
pub(super) fn queue(queue: &str) -> (String, u16) {
    let tag = encode_name(queue);
    (format!("requeue:{{{tag}}}:queue"), slot(&tag))
}

/// Returns the Redis keys of the queue's record, its activity, and the operators' actions. All of them have the same
/// slot.
pub(super) fn with_activity(record: String) -> [String; 5] {
    let start = record.trim_end_matches("queue");
    let [parts, times, minutes, actions] =
        ["activity", "activity-times", "activity-minutes", "actions"]
            .map(|part| format!("{start}{part}"));
    [record, parts, times, minutes, actions]
}

/// Returns a Redis key and its slot. Its value changes when a run of the queue is cancelled.
pub(super) fn cancels(queue: &str) -> (String, u16) {
    let tag = encode_name(queue);
    (format!("requeue:{{{tag}}}:cancels"), slot(&tag))
}

/// Returns the slot of a Redis key, or of all Redis keys that have `tag` between braces.
pub(super) fn slot(tag: &str) -> u16 {
    State::<XMODEM>::calculate(tag.as_bytes()) % SLOTS
}

/// Encodes the name of a queue, so that it has no character with a special meaning in Redis keys.
fn encode_name(name: &str) -> String {
    name.bytes().fold(String::with_capacity(name.len()), |mut encoded, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => {
                encoded.push(char::from(byte));
            }
            // Writing to a string cannot fail.
            _ => _ = write!(encoded, "%{byte:02X}"),
        }
        encoded
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_harmless_and_differ() {
        let (key, _) = queue("a{b} c/\u{1}ä%");
        assert_eq!(key, "requeue:{a%7Bb%7D%20c%2F%01%C3%A4%25}:queue");
        assert_eq!(slot("foo"), 12182, "the result of `CLUSTER KEYSLOT foo`");
    }

    #[test]
    fn shards_share_the_slots_evenly() {
        for count in [1, 3, 16, 256] {
            let orders =
                Identity { name: "orders".to_owned(), generation: 1, floor: 0, grouping: None };
            let shards = shards(&Arc::new(orders), count);
            assert_eq!(shards.len(), usize::from(count));
            for (number, shard) in shards.iter().enumerate() {
                let part = (shard.slot / (SLOTS / count)).min(count - 1);
                assert_eq!(usize::from(part), number, "of {count}");
            }
        }
    }
}
