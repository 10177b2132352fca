//! What the keys of a queue are called, and on which shard a key of its is.

use std::fmt::Write;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use crc16::{State, XMODEM};
use tokio::time::Instant;

use crate::types::key::Key;

/// How many parts a cluster has to give to its nodes.
const SLOTS: u16 = 16384;
/// How many shards a queue may have.
pub(super) const MOST: u16 = 256;

/// The version of what is kept, for all queues.
pub(super) const SCHEMA: &str = "requeue:schema";

/// A number that all epochs of queues exceed that are created from now on. It rises with each drop.
pub(super) const FLOOR: &str = "requeue:dropped";

/// A hash with the names of all queues: on a cluster, nothing else lists them.
pub(super) const QUEUES: &str = "requeue:queues";

/// One of the queues that had this name, one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    pub(super) name: String,
    /// Drawn when it is created.
    pub(super) generation: u64,
    /// [`FLOOR`], as it was when this process opened the queue.
    pub(super) floor: i64,
}

/// A part of a queue: what a script works on, and what a node of a cluster has as a whole.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) slot: u16,
    pub(super) queue: Arc<Identity>,
    /// In the order in which the scripts know them.
    pub(super) keys: [String; 11],
    /// Since when it has not answered one who claims; nothing is claimed there before it has.
    pub(super) silent: Mutex<Option<Instant>>,
    /// Whether this process is repairing it.
    pub(super) is_repaired: AtomicBool,
}

impl Shard {
    pub(super) fn rows(&self) -> &str {
        &self.keys[0]
    }

    pub(super) fn wake(&self) -> &str {
        &self.keys[8]
    }

    /// The key of the mark that names the generation.
    pub(super) fn generation(&self) -> &str {
        &self.keys[9]
    }
}

/// All of a queue. The slots of a cluster are dealt to them evenly.
pub(super) fn shards(of: &Arc<Identity>, count: u16) -> Vec<Shard> {
    let queue = encoded(&of.name);
    let shard = |number: u16| {
        let slots = SLOTS / count;
        let mut tags = (0u32..).map(|draw| format!("{queue}/{number}.{draw}"));
        // Each draw has one chance in `count`.
        let tag = tags.find(|tag| (slot(tag) / slots).min(count - 1) == number);
        let tag = tag.unwrap_or_else(|| queue.clone());
        // Whoever waits for a token of a dropped queue takes none of a later one.
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
        ];
        let keys = parts.map(|part| format!("requeue:{{{tag}}}:{part}"));
        let (silent, is_repaired) = (Mutex::default(), AtomicBool::new(false));
        Shard { slot: slot(&tag), queue: Arc::clone(of), keys, silent, is_repaired }
    };
    (0..count).map(shard).collect()
}

/// The shard of a key.
pub(super) fn shard_of(key: &Key, count: usize) -> usize {
    usize::from(State::<XMODEM>::calculate(key)) % count
}

/// What is said of a queue as a whole, and its slot.
pub(super) fn queue(queue: &str) -> (String, u16) {
    let tag = encoded(queue);
    (format!("requeue:{{{tag}}}:queue"), slot(&tag))
}

/// The slot of all keys with this between braces in their name, or of the key that is this.
pub(super) fn slot(tag: &str) -> u16 {
    State::<XMODEM>::calculate(tag.as_bytes()) % SLOTS
}

/// Whatever a queue is called, nothing that means something in the names of keys.
fn encoded(name: &str) -> String {
    name.bytes().fold(String::with_capacity(name.len()), |mut encoded, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'_' | b'-' => {
                encoded.push(char::from(byte));
            }
            // Writing to a string can't fail.
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
        assert_eq!(slot("foo"), 12182, "as `CLUSTER KEYSLOT foo` says");
    }

    #[test]
    fn shards_share_the_slots_evenly() {
        for count in [1, 3, 16, 256] {
            let orders = Identity { name: "orders".to_owned(), generation: 1, floor: 0 };
            let shards = shards(&Arc::new(orders), count);
            assert_eq!(shards.len(), usize::from(count));
            for (number, shard) in shards.iter().enumerate() {
                let part = (shard.slot / (SLOTS / count)).min(count - 1);
                assert_eq!(usize::from(part), number, "of {count}");
            }
        }
    }
}
