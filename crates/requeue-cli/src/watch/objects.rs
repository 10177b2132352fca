//! The objects that there are, and were.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::flags::On;
use crate::given::{Given, Later, Things};
use crate::input::Key;

/// The objects by key, as they were last seen. What is gone stays until a run for that has
/// succeeded, or is given up.
#[derive(Debug)]
pub(crate) struct Objects {
    on: [bool; 2],
    known: Mutex<HashMap<Key, Known>>,
}

#[derive(Debug)]
struct Known {
    /// As JSON: shorter than in parts, and what a command is given.
    json: Arc<[u8]>,
    is_gone: bool,
    /// It was gone, and has not been seen since, when its last run began.
    ran_gone: bool,
    /// Something else is wanted of it since its last run began.
    is_new: bool,
}

impl Objects {
    /// To be run for on these events.
    pub(crate) fn new(on: &[On]) -> Self {
        let wants = |event| on.is_empty() || on.contains(&event);
        Self { on: [On::Apply, On::Delete].map(wants), known: Mutex::default() }
    }

    /// Whether there is a run for this event.
    pub(crate) const fn wants(&self, on: On) -> bool {
        self.on[on as usize]
    }

    /// An object was seen.
    pub(crate) fn seen(&self, key: &[u8], json: Vec<u8>) {
        let mut known = self.lock();
        let is_new = known.get(key).is_some_and(|known| known.is_new);
        let now = Known { json: json.into(), is_gone: false, ran_gone: false, is_new };
        known.insert(key.into(), now);
    }

    /// An object is gone.
    pub(crate) fn gone(&self, key: &[u8]) {
        let mut known = self.lock();
        if !self.wants(On::Delete) {
            known.remove(key);
        } else if let Some(known) = known.get_mut(key) {
            (known.is_gone, known.ran_gone) = (true, false);
        }
    }

    /// Something else is wanted of an object.
    pub(crate) fn is_wanted_anew(&self, key: &[u8]) {
        if let Some(known) = self.lock().get_mut(key) {
            known.is_new = true;
        }
    }

    /// The keys of those that are there and `wanted`, in order.
    pub(crate) fn keys(&self, wanted: impl Fn(&Key) -> bool) -> Vec<Key> {
        let known = self.lock();
        let there = known.iter().filter(|(key, known)| !known.is_gone && wanted(key));
        let mut keys: Vec<_> = there.map(|(key, _)| key.clone()).collect();
        keys.sort_unstable();
        keys
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Key, Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn given(&self, key: &[u8]) -> Option<Given> {
        let mut known = self.lock();
        let known = known.get_mut(key)?;
        let event = if known.is_gone { On::Delete } else { On::Apply };
        if !self.wants(event) {
            return None;
        }
        (known.ran_gone, known.is_new) = (known.is_gone, false);
        // It is the name of an object, which is text.
        let key = String::from_utf8_lossy(key);
        let (namespace, name) = key.split_once('/').unwrap_or(("", &key));
        let event = if known.is_gone { "delete" } else { "apply" };
        Some(Given {
            env: vec![
                ("REQUEUE_EVENT", event.to_owned()),
                ("REQUEUE_NAMESPACE", namespace.to_owned()),
                ("REQUEUE_NAME", name.to_owned()),
            ],
            stdin: Some(Arc::clone(&known.json)),
        })
    }

    /// Nothing more is to be done for what was gone.
    fn forget_gone(&self, key: &[u8]) {
        let mut known = self.lock();
        if known.get(key).is_some_and(|known| known.is_gone && known.ran_gone) {
            known.remove(key);
        }
    }
}

impl Things for Objects {
    fn begin<'a>(&'a self, key: &'a [u8]) -> Later<'a, Result<Option<Given>, String>> {
        Box::pin(async { Ok(self.given(key)) })
    }

    fn succeed<'a>(&'a self, key: &'a [u8]) -> Later<'a, Result<(), String>> {
        Box::pin(async {
            self.forget_gone(key);
            Ok(())
        })
    }

    fn give_up(&self, key: &[u8]) {
        self.forget_gone(key);
    }

    fn is_new(&self, key: &[u8]) -> bool {
        self.lock().get(key).is_some_and(|known| known.is_new)
    }
}
