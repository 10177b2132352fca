//! The reasons of the adds that a run serves.

use requeue_core::{KeyReasons, Reason, Reasons};

use super::Model;

/// The maximum number of distinct reasons of a run.
const MOST: usize = 8;

/// The reason of an add.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Why {
    /// The number of the reason.
    pub reason: u16,
    /// The cause, as a number.
    pub cause: Option<u8>,
}

/// The adds with a reason that a run serves, in order. An add for a ninth reason is `None`.
pub(super) type Adds = Vec<Option<Why>>;

/// The visible reasons of a run: the number of each reason, its adds, its first and its last cause; and the number of
/// other adds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct SeenReasons(Vec<(u16, u32, Option<u8>, Option<u8>)>, u32);

/// Adds `why` to the adds of a run.
fn push(adds: &mut Adds, why: Option<Why>) {
    let mut reasons: Vec<u16> = adds.iter().flatten().map(|why| why.reason).collect();
    reasons.sort_unstable();
    reasons.dedup();
    let has_room = |why: &Why| reasons.len() < MOST || reasons.contains(&why.reason);
    adds.push(why.filter(has_room));
}

impl SeenReasons {
    fn of_adds(adds: &Adds) -> Self {
        let mut seen = Self::default();
        for why in adds.iter().flatten() {
            if seen.0.iter().any(|(reason, ..)| *reason == why.reason) {
                continue;
            }
            let same = || adds.iter().flatten().filter(|add| add.reason == why.reason);
            let mut causes = same().filter_map(|add| add.cause);
            let (first, last) = (causes.next(), same().filter_map(|add| add.cause).next_back());
            seen.0.push((why.reason, same().count() as u32, first, last));
        }
        seen.1 = adds.iter().filter(|add| add.is_none()).count() as u32;
        seen
    }

    /// Returns the reasons of a run of a queue, whose causes are numbers.
    ///
    /// # Panics
    ///
    /// Panics if a cause is not a number.
    #[must_use]
    pub fn of_queue(reasons: &Reasons) -> Self {
        let number = |cause: &std::sync::Arc<str>| cause.parse().expect("a number");
        let counts = reasons.iter().map(|count| {
            let causes = [&count.first, &count.last].map(|cause| cause.as_ref().map(number));
            (count.reason.number(), count.adds, causes[0], causes[1])
        });
        Self(counts.collect(), reasons.others())
    }

    /// Returns the reasons of both runs of a key: the run in flight, and the pending run.
    #[must_use]
    pub fn of_key(reasons: &KeyReasons) -> [Self; 2] {
        [&reasons.running, &reasons.pending].map(Self::of_queue)
    }
}

impl Why {
    /// Returns the reason of a queue.
    pub(crate) fn to_reason(self) -> Reason {
        Reason::new(self.reason).unwrap_or_else(|| panic!("{self:?} is out of range"))
    }
}

impl<K: Ord + Clone> Model<K> {
    /// Adds the reason of an add to the next run of `key`.
    pub(super) fn note_reason(&mut self, key: &K, why: Option<Why>) {
        if why.is_some() {
            push(&mut self.reasons.entry(key.clone()).or_default()[1], why);
        }
    }

    /// The pending run begins.
    pub(super) fn start_reasons(&mut self, key: &K) {
        if let Some([running, pending]) = self.reasons.get_mut(key) {
            *running = std::mem::take(pending);
        }
    }

    /// The run has ended. If it is repeated, the next run has its reasons before those of later adds.
    pub(super) fn end_reasons(&mut self, key: &K, is_repeated: bool) {
        if let Some([running, pending]) = self.reasons.get_mut(key) {
            let run = std::mem::take(running);
            if is_repeated {
                let later = std::mem::replace(pending, run);
                later.into_iter().for_each(|why| push(pending, why));
            }
        }
    }

    /// Returns the reasons of the run in flight and of the pending run of `key`.
    pub fn see_reasons(&self, key: &K) -> [SeenReasons; 2] {
        let reasons = self.reasons.get(key).cloned().unwrap_or_default();
        reasons.map(|adds| SeenReasons::of_adds(&adds))
    }
}
