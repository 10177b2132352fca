//! A line-by-line port of client-go's queue: the queued keys in order, the dirty keys, and the keys
//! in flight.

use std::collections::{HashSet, VecDeque};
use std::hint::black_box;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;

use super::several::{self, Shared};
use super::single::{self, Subject};
use super::{Contestant, contended};
use crate::keys::Key;
use crate::protocol::{Answer, Request, Scenario};

/// client-go's three collections, with a mutex and a condition variable.
#[derive(Debug)]
pub(super) struct ThreeSets;

impl Contestant for ThreeSets {
    const NAME: &'static str = "three-sets";
    const SCENARIOS: &'static [Scenario] = &[
        Scenario::Cycle,
        Scenario::AddQueued,
        Scenario::FillDrain,
        Scenario::Threads,
        Scenario::HandOver,
        Scenario::Memory,
    ];

    fn round<K: Key>(request: &Request) -> Option<Answer> {
        let make = Queue::<K>::default;
        Some(match request.scenario {
            Scenario::Cycle => single::cycle(make(), request),
            Scenario::AddQueued => single::add_queued(make(), request),
            Scenario::FillDrain => single::fill_drain(make(), request),
            Scenario::Threads => return contended::threads(&Queue::<u64>::default(), request),
            Scenario::HandOver => several::hand_over(&make(), request),
            Scenario::Memory => single::memory(make, request),
            _ => return None,
        })
    }
}

struct State<K> {
    queue: VecDeque<K>,
    dirty: HashSet<K, RandomState>,
    processing: HashSet<K, RandomState>,
    shutting_down: bool,
}

struct Queue<K> {
    shared: Arc<(Mutex<State<K>>, Condvar)>,
}

impl<K> Default for Queue<K> {
    fn default() -> Self {
        let state = State {
            queue: VecDeque::new(),
            dirty: HashSet::default(),
            processing: HashSet::default(),
            shutting_down: false,
        };
        Self { shared: Arc::new((Mutex::new(state), Condvar::new())) }
    }
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K: Key> Queue<K> {
    fn lock(&self) -> MutexGuard<'_, State<K>> {
        self.shared.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, key: &K) {
        let mut state = self.lock();
        if state.shutting_down || state.dirty.contains(key) {
            return;
        }
        state.dirty.insert(key.clone());
        if state.processing.contains(key) {
            return;
        }
        state.queue.push_back(key.clone());
        self.shared.1.notify_one();
    }

    fn get(&self) -> Option<K> {
        let mut state = self.lock();
        while state.queue.is_empty() && !state.shutting_down {
            state = self.shared.1.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let key = state.queue.pop_front()?;
        state.processing.insert(key.clone());
        state.dirty.remove(&key);
        Some(key)
    }

    fn done(&self, key: &K) {
        let mut state = self.lock();
        state.processing.remove(key);
        if state.dirty.contains(key) {
            state.queue.push_back(key.clone());
            self.shared.1.notify_one();
        }
    }
}

impl<K: Key> Subject<K> for Queue<K> {
    fn add(&mut self, key: &K) {
        self.put(key);
    }

    fn take(&mut self) {
        if let Some(key) = self.get() {
            black_box(&key);
            self.done(&key);
        }
    }
}

impl<K: Key> Shared<K> for Queue<K> {
    fn add(&self, key: &K) {
        self.put(key);
    }

    fn work(&self, mut each: impl FnMut(&K)) {
        while let Some(key) = self.get() {
            each(&key);
            self.done(&key);
        }
    }

    fn close(&self) {
        self.lock().shutting_down = true;
        self.shared.1.notify_all();
    }
}
