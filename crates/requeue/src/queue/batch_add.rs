//! Adds many keys under one hold of the lock. A panic leaves the accepted keys in the queue and
//! drops the others outside the lock.

use std::vec::IntoIter;

use requeue_core::{Add, Group, Operation};

use super::shared::{Shared, State};
use crate::Key;
use crate::ranked_mutex::RankedGuard;
use crate::sync::drop_quietly;

/// The number of keys by which prefetching runs ahead of the adds. It is about the number of reads
/// of memory that a processor can wait for at once.
const AHEAD: usize = 8;

/// Keys that are being added. If a key's `eq` panics, the lock is released as usual, so that
/// getters are woken for the keys that were added before. The other keys are dropped outside the
/// lock.
pub(super) struct BatchAdd<'q, K: Key> {
    shared: &'q Shared<K>,
    keys: IntoIter<(K, u64, Group)>,
    unused: Vec<K>,
    state: Option<RankedGuard<'q, State<K>>>,
}

impl<'q, K: Key> BatchAdd<'q, K> {
    /// Takes keys with their hashes and groups.
    pub(super) fn new(shared: &'q Shared<K>, keys: Vec<(K, u64, Group)>) -> Self {
        Self { shared, keys: keys.into_iter(), unused: Vec::new(), state: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.len() == 0
    }

    /// Returns the number of adds that were accepted, or `None` if the lock was refused.
    pub(super) fn add_all(&mut self) -> Option<usize> {
        let (state, now) = self.shared.lock_for(Operation::Add(&Add::now()), None).ok()?;
        let core = &mut self.state.insert(state).core;
        let mut count = 0;
        for (_, hash, _) in self.keys.as_slice().iter().take(AHEAD) {
            core.prefetch(*hash);
        }
        while let Some((key, hash, group)) = self.keys.next() {
            if let Some((_, hash, _)) = self.keys.as_slice().get(AHEAD - 1) {
                core.prefetch(*hash);
            }
            let (added, back) = core.add(key, hash, Add::now(), group, now);
            count += usize::from(added.is_accepted());
            if let Some(key) = back
                && std::mem::needs_drop::<K>()
            {
                self.unused.push(key);
            }
        }
        Some(count)
    }
}

impl<K: Key> Drop for BatchAdd<'_, K> {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.shared.release(state);
        }
        self.unused.drain(..).for_each(drop_quietly);
        self.keys.by_ref().for_each(|(key, ..)| drop_quietly(key));
    }
}
