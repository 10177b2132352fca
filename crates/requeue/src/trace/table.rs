//! The trace contexts of the keys of a queue in memory. They are outside of the records, because
//! few keys have a context.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::time::SystemTime;

use requeue_core::Ticket;
use requeue_core::history::Subject;

use super::context::{MAX_LINKS, Origin, Origins};
use super::{Cause, Waited};
use crate::ranked_mutex::{Rank, RankedMutex};
use crate::sync::{drop_quietly, quietly};

/// The maximum number of contexts of a key, for its pending run and the run after the pending run.
const MAX_KEPT: usize = 2 * (1 + MAX_LINKS);

/// The contexts of adds that no run has served yet.
///
/// The queue has hashed the keys before it takes its lock, and keys with the same hash share an entry.
pub(crate) struct Traces<K> {
    keys: RankedMutex<HashMap<Subject, Vec<OfKey<K>>>>,
}

/// A key and the contexts of its adds.
type OfKey<K> = (K, Vec<Kept>);

struct Kept {
    origin: Origin,
    /// The number of the queue's last delivery before the add. Only a later delivery serves the add, because an add of
    /// a key in flight belongs to the next run.
    after: u64,
    /// The beginning of the wait.
    since: SystemTime,
}

/// The contexts of a run, and the beginning of its wait.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) origins: Origins,
    pub(crate) waited: Waited,
}

impl<K: Eq> Traces<K> {
    pub(crate) fn new() -> Self {
        Self { keys: RankedMutex::new(HashMap::new()) }
    }

    /// Keeps the context of an add that came after the queue's delivery `after`. Returns the key if it is not needed.
    pub(crate) fn keep(&self, key: K, subject: Subject, origin: Origin, after: u64) -> Option<K> {
        let since = origin.at;
        self.update(key, subject, |all| {
            if all.len() < MAX_KEPT {
                all.push(Kept { origin, after, since });
            }
        })
    }

    /// Keeps the contexts of the delivery with this ticket for the next run, as the contexts of the first
    /// adds of that run.
    pub(crate) fn pass_on(&self, key: K, ticket: &Ticket, taken: Taken, cause: Option<Cause>) {
        let (since, after) = (SystemTime::now(), ticket.epoch());
        let unused = self.update(key, Subject::of_ticket(ticket), |all| {
            let passed = taken.origins.iter().cloned();
            let passed = passed.map(|origin| origin.with_cause(cause));
            let passed = passed.map(|origin| Kept { origin, after, since });
            all.splice(..0, passed);
            all.truncate(MAX_KEPT);
        });
        drop_quietly(unused);
    }

    /// Takes the contexts of the delivery of `key` with this ticket.
    pub(crate) fn take(&self, key: &K, ticket: &Ticket) -> Option<Taken> {
        let (subject, mut gone) = (Subject::of_ticket(ticket), None);
        let mut keys = self.keys.lock(Some(Rank::Traces)).ok()?;
        // The comparison of a key is user code.
        let served: Vec<Kept> = quietly(|| {
            let same = keys.get_mut(&subject)?;
            let (_, all) = same.iter_mut().find(|(of, _)| of == key)?;
            let served = all.extract_if(.., |kept| kept.after < ticket.epoch()).collect();
            if all.is_empty() {
                gone = remove(&mut keys, &subject, key);
            }
            Some(served)
        })
        .flatten()?;
        drop(keys);
        drop_quietly(gone);
        let (since, cause) = served.first().map(|kept| (kept.since, kept.origin.cause))?;
        let origins = Origins::new(served.into_iter().map(|kept| kept.origin).collect())?;
        Some(Taken { origins, waited: Waited { since, cause } })
    }

    /// Forgets the contexts of `key`, whose pending runs were cancelled.
    pub(crate) fn forget<Q>(&self, key: &Q, subject: Subject)
    where
        K: Borrow<Q>,
        Q: Eq + ?Sized,
    {
        let Ok(mut keys) = self.keys.lock(Some(Rank::Traces)) else { return };
        let gone = quietly(|| remove(&mut keys, &subject, key));
        drop(keys);
        drop_quietly(gone);
    }

    fn update(&self, key: K, subject: Subject, change: impl FnOnce(&mut Vec<Kept>)) -> Option<K> {
        let Ok(mut keys) = self.keys.lock(Some(Rank::Traces)) else { return Some(key) };
        quietly(|| {
            let same = keys.entry(subject).or_default();
            match same.iter_mut().find(|(of, _)| *of == key) {
                Some((_, all)) => {
                    change(all);
                    Some(key)
                }
                None => {
                    let mut all = Vec::new();
                    change(&mut all);
                    same.push((key, all));
                    None
                }
            }
        })
        .flatten()
    }
}

/// Removes a key with its contexts.
fn remove<K, Q>(
    keys: &mut HashMap<Subject, Vec<OfKey<K>>>,
    subject: &Subject,
    key: &Q,
) -> Option<OfKey<K>>
where
    K: Borrow<Q>,
    Q: Eq + ?Sized,
{
    let same = keys.get_mut(subject)?;
    let place = same.iter().position(|(of, _)| of.borrow() == key)?;
    let gone = same.swap_remove(place);
    if same.is_empty() {
        keys.remove(subject);
    }
    Some(gone)
}
