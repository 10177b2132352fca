//! The trace contexts of the keys of a queue in memory. They are not in the records, because few
//! keys have a context.

use std::borrow::Borrow;
use std::collections::HashMap;
use std::time::SystemTime;

use requeue_core::Ticket;
use requeue_core::history::Subject;

use super::context::{MAX_LINKS, Origin, Origins};
use super::{Cause, Waited};
use crate::ranked_mutex::{Rank, RankedMutex};
use crate::sync::{drop_quietly, quietly};

/// The maximum number of contexts of one key, for its pending run and for the run after that.
const MAX_KEPT: usize = 2 * (1 + MAX_LINKS);

/// The contexts of the adds that no run has served yet.
///
/// The map uses the hashes that the queue has computed before it acquired its lock. Keys with the
/// same hash share an entry.
pub(crate) struct Traces<K> {
    keys: RankedMutex<HashMap<Subject, Vec<OfKey<K>>>>,
}

/// A key, with the contexts of its adds.
type OfKey<K> = (K, Vec<Kept>);

struct Kept {
    origin: Origin,
    /// The number of the last delivery of the queue before this add. Only a later delivery serves
    /// the add: if the key is in flight, the add belongs to its next run.
    after: u64,
    /// The time at which the wait began.
    since: SystemTime,
}

/// The contexts of a run, and the wait before it.
#[derive(Clone, Debug)]
pub(crate) struct Taken {
    pub(crate) origins: Origins,
    pub(crate) waited: Waited,
}

impl<K: Eq> Traces<K> {
    pub(crate) fn new() -> Self {
        Self { keys: RankedMutex::new(HashMap::new()) }
    }

    /// Stores the context of an add. `after` is the number of the last delivery before this add.
    /// Returns the key if it is not stored.
    pub(crate) fn keep(&self, key: K, subject: Subject, origin: Origin, after: u64) -> Option<K> {
        let since = origin.at;
        self.update(key, subject, |all| {
            if all.len() < MAX_KEPT {
                all.push(Kept { origin, after, since });
            }
        })
    }

    /// Stores the contexts of the delivery of `ticket` for the next run of the key. They come
    /// before the contexts of later adds.
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

    /// Removes and returns the contexts of the adds that the delivery of `ticket` serves.
    pub(crate) fn take(&self, key: &K, ticket: &Ticket) -> Option<Taken> {
        let (subject, mut gone) = (Subject::of_ticket(ticket), None);
        let mut keys = self.keys.lock(Some(Rank::Traces)).ok()?;
        // The `eq` of a key is user code, so its panics are caught.
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

    /// Removes the contexts of `key`, because its pending runs were cancelled.
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

/// Removes a key and its contexts, and returns them.
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
