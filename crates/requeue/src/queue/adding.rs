//! Adding many keys under one hold of the lock.

use std::vec::IntoIter;

use requeue_core::{Add, Group, Operation};

use super::shared::{Shared, State};
use crate::Key;
use crate::ranked_mutex::RankedGuard;
use crate::sync::drop_quietly;

/// How many keys ahead of an add the processor is told of: so many reads of memory it can wait for
/// at once.
const AHEAD: usize = 8;

/// Keys that are being added. Should a key's `eq` panic, the lock is released as ever, so that
/// whoever waits is woken for those that were added before, and the others are dropped outside it.
pub(super) struct Adding<'q, K: Key> {
    shared: &'q Shared<K>,
    keys: IntoIter<(K, u64, Group)>,
    unused: Vec<K>,
    state: Option<RankedGuard<'q, State<K>>>,
}

impl<'q, K: Key> Adding<'q, K> {
    /// Keys with their hashes and groups.
    pub(super) fn new(shared: &'q Shared<K>, keys: Vec<(K, u64, Group)>) -> Self {
        Self { shared, keys: keys.into_iter(), unused: Vec::new(), state: None }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.keys.len() == 0
    }

    /// How many the queue took; `None` if it can't be asked from here.
    pub(super) fn add_all(&mut self) -> Option<usize> {
        let now = self.shared.hinted_now();
        let (state, now) = self.shared.lock_for(Operation::Add(&Add::now()), now).ok()?;
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

impl<K: Key> Drop for Adding<'_, K> {
    fn drop(&mut self) {
        if let Some(state) = self.state.take() {
            self.shared.release(state);
        }
        self.unused.drain(..).for_each(drop_quietly);
        self.keys.by_ref().for_each(|(key, ..)| drop_quietly(key));
    }
}
