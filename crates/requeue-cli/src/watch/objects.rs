//! The last seen state of each object. A deleted object is kept in this table until the run for its deletion has
//! succeeded or is given up.

use std::collections::HashMap;
use std::sync::Arc;

use kube::core::ObjectMeta;
use parking_lot::Mutex;

use crate::args::watch::On;
use crate::key::Key;
use crate::process::run_input::RunInput;

/// The last seen state of each object, by key.
#[derive(Debug)]
pub(crate) struct Objects {
    on: [bool; 2],
    /// True if the program adds missing finalizers. False with `--dry-run`.
    keeps: bool,
    known: Mutex<HashMap<Key, Known>>,
}

#[derive(Debug)]
struct Known {
    /// The object as JSON, which takes less memory than a parsed object. Commands receive the same bytes.
    json: Arc<[u8]>,
    state: State,
    /// The state at the start of the last run. `There` if that run was for an earlier object of the same name.
    ran: State,
    /// True if this program has removed its finalizer from an object in the state `Ending`.
    is_released: bool,
    /// True if a newer request for a run has arrived since the last run began.
    is_new: bool,
}

/// The state of an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub(crate) enum State {
    /// The object exists. No finalizer is used.
    There,
    /// The object exists without the finalizer. The finalizer must be added before the first run.
    Bare,
    /// The object exists, and has the finalizer.
    Kept,
    /// The object is being deleted, and still has the finalizer of this program.
    Ending,
    /// The object is being deleted. It has finalizers, but not that of this program.
    Leaving,
    /// The object was deleted.
    Gone,
    /// The object was deleted, or the selector no longer matches it. In the second case, it may still have the
    /// finalizer.
    Strayed,
}

impl State {
    /// Returns the state of an existing object. `finalizer` is the name of this program's finalizer, if it uses one.
    pub(crate) fn of_object(object: &ObjectMeta, finalizer: Option<&str>) -> Self {
        let Some(finalizer) = finalizer else { return Self::There };
        let has_it = object.finalizers.iter().flatten().any(|it| it == finalizer);
        match (object.deletion_timestamp.is_some(), has_it) {
            (false, false) => Self::Bare,
            (false, true) => Self::Kept,
            (true, true) => Self::Ending,
            (true, false) => Self::Leaving,
        }
    }

    /// Returns true if the watch no longer contains the object.
    const fn is_gone(self) -> bool {
        matches!(self, Self::Gone | Self::Strayed)
    }
}

/// The next step for an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wish {
    /// Add the finalizer.
    Keep,
    Run(On),
}

/// The result of [`Objects::begin_run`].
pub(crate) enum Begin {
    /// No run starts, because the finalizer must first be added to this object.
    Keep(Arc<[u8]>),
    Run(RunInput),
}

impl Objects {
    /// Creates the table. `on` lists the events for which commands run. If it is empty, commands run for all events.
    /// If `keeps` is false, no finalizer is added.
    pub(crate) fn new(on: &[On], keeps: bool) -> Self {
        let wants = |event| on.is_empty() || on.contains(&event);
        Self { on: [On::Apply, On::Delete].map(wants), keeps, known: Mutex::default() }
    }

    /// Records an object that a watch has reported.
    pub(crate) fn record_seen(&self, key: &[u8], json: Vec<u8>, state: State) {
        let mut known = self.known.lock();
        let mut now = Known {
            json: json.into(),
            state,
            ran: State::There,
            is_released: false,
            is_new: false,
        };
        if let Some(before) = known.get(key) {
            let begins_to_end = state == State::Ending && before.state != State::Ending;
            now.is_new = before.is_new || begins_to_end;
            // The run for the deletion has already begun. Its state is kept, so that this run is not repeated.
            if matches!(state, State::Ending | State::Leaving) && before.ran == State::Ending {
                (now.ran, now.is_released) = (before.ran, before.is_released);
            }
        }
        known.insert(key.into(), now);
    }

    /// Records that an object was deleted.
    pub(crate) fn record_gone(&self, key: &[u8]) {
        let mut known = self.known.lock();
        let Some(it) = known.get_mut(key) else { return };
        // The object is removed from the table if no run for its deletion is needed. The reason is one of these: such
        // runs are not wanted, the run has succeeded, or the object had no finalizer of this program.
        if !self.wants_event(On::Delete) || it.is_released || it.state == State::Leaving {
            known.remove(key);
            return;
        }
        it.state = match it.state {
            State::Bare | State::Kept | State::Ending => State::Strayed,
            _ => State::Gone,
        };
        if it.ran != State::Ending {
            it.ran = State::There;
        }
    }

    /// Removes a deleted object from the table. The caller is on standby, and the leader runs the command for the
    /// deletion.
    pub(crate) fn forget_object(&self, key: &[u8]) {
        self.known.lock().remove(key);
    }

    /// Returns the next step for an object. Returns `None` if no step is needed.
    pub(crate) fn next_wish(&self, key: &[u8]) -> Option<Wish> {
        self.wish_for(self.known.lock().get(key)?)
    }

    /// Records a newer request for a run of an object.
    pub(crate) fn is_wanted_anew(&self, key: &[u8]) {
        if let Some(known) = self.known.lock().get_mut(key) {
            known.is_new = true;
        }
    }

    /// Records that another object with the same name has replaced the object.
    pub(crate) fn is_another(&self, key: &[u8]) {
        if let Some(known) = self.known.lock().get_mut(key) {
            (known.ran, known.is_released) = (State::There, false);
        }
    }

    /// Returns true if a newer request has arrived since the last run of the object began.
    pub(crate) fn is_new(&self, key: &[u8]) -> bool {
        self.known.lock().get(key).is_some_and(|known| known.is_new)
    }

    /// Returns the keys of the objects that exist and for which `wanted` is true, in sorted order.
    pub(crate) fn existing_keys(&self, wanted: impl Fn(&Key) -> bool) -> Vec<Key> {
        let known = self.known.lock();
        let there = known.iter().filter(|(key, known)| !known.state.is_gone() && wanted(key));
        let mut keys: Vec<_> = there.map(|(key, _)| key.clone()).collect();
        keys.sort_unstable();
        keys
    }

    /// Begins a run. Returns `None` if no run is needed.
    pub(crate) fn begin_run(&self, key: &[u8]) -> Option<Begin> {
        let mut known = self.known.lock();
        let known = known.get_mut(key)?;
        let wish = self.wish_for(known)?;
        // A request after this point belongs to the next run.
        known.is_new = false;
        let event = match wish {
            Wish::Keep => return Some(Begin::Keep(Arc::clone(&known.json))),
            Wish::Run(On::Apply) => "apply",
            Wish::Run(On::Delete) => "delete",
        };
        known.ran = known.state;
        // Names of objects are UTF-8, so the conversion loses nothing.
        let key = String::from_utf8_lossy(key);
        let (namespace, name) = key.split_once('/').unwrap_or(("", &key));
        Some(Begin::Run(RunInput {
            env: vec![
                ("REQUEUE_EVENT", event.into()),
                ("REQUEUE_NAMESPACE", namespace.into()),
                ("REQUEUE_NAME", name.into()),
            ],
            stdin: Some(Arc::clone(&known.json)),
            ..RunInput::default()
        }))
    }

    /// Returns the state at the start of the last run, and the last seen object.
    pub(crate) fn last_run(&self, key: &[u8]) -> Option<(State, Arc<[u8]>)> {
        let known = self.known.lock();
        known.get(key).map(|known| (known.ran, Arc::clone(&known.json)))
    }

    /// Records that the last run has succeeded. A deleted object needs no further run.
    pub(crate) fn record_success(&self, key: &[u8]) {
        self.forget_gone(key);
        if let Some(known) = self.known.lock().get_mut(key) {
            known.is_released = known.ran == State::Ending;
        }
    }

    /// Removes a deleted object from the table after its run.
    pub(crate) fn forget_gone(&self, key: &[u8]) {
        let mut known = self.known.lock();
        if known.get(key).is_some_and(|it| it.state.is_gone() && it.ran != State::There) {
            known.remove(key);
        }
    }

    fn wish_for(&self, known: &Known) -> Option<Wish> {
        let event = match known.state {
            State::Bare if self.keeps => return Some(Wish::Keep),
            State::Leaving => return None,
            State::Ending if known.is_released => return None,
            State::There | State::Bare | State::Kept => On::Apply,
            State::Ending | State::Gone | State::Strayed => On::Delete,
        };
        self.wants_event(event).then_some(Wish::Run(event))
    }

    /// Returns true if commands run for this event.
    const fn wants_event(&self, on: On) -> bool {
        self.on[on as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &[u8] = b"ns/a";

    fn objects(states: &[State]) -> Objects {
        let objects = Objects::new(&[], true);
        states.iter().for_each(|&state| objects.record_seen(KEY, Vec::new(), state));
        objects
    }

    fn runs(objects: &Objects) -> bool {
        matches!(objects.begin_run(KEY), Some(Begin::Run(_)))
    }

    #[test]
    fn what_is_new_waits_to_be_tried_again_where_it_could_not_be_kept() {
        let objects = objects(&[State::Bare]);
        objects.is_wanted_anew(KEY);
        assert!(matches!(objects.begin_run(KEY), Some(Begin::Keep(_))));
        assert!(!objects.is_new(KEY), "a failure is this run's own");
    }

    #[test]
    fn what_leaves_the_selection_while_it_ends_is_let_go_after_its_run() {
        for state in [State::Bare, State::Kept, State::Ending] {
            let objects = objects(&[state]);
            objects.record_gone(KEY);
            assert!(runs(&objects));
            assert!(matches!(objects.last_run(KEY), Some((State::Strayed, _))), "{state:?}");
            objects.record_success(KEY);
            assert_eq!(objects.last_run(KEY), None);
        }
    }

    #[test]
    fn an_object_that_is_let_go_is_not_run_for_again_before_that_is_seen() {
        let objects = objects(&[State::Kept, State::Ending]);
        assert!(objects.is_new(KEY) && runs(&objects));
        // The object changes while its command runs.
        objects.record_seen(KEY, Vec::new(), State::Ending);
        assert!(matches!(objects.last_run(KEY), Some((State::Ending, _))));
        objects.record_success(KEY);
        assert_eq!(objects.next_wish(KEY), None);
        for state in [State::Ending, State::Leaving] {
            objects.record_seen(KEY, Vec::new(), state);
            assert_eq!(objects.next_wish(KEY), None);
        }
        objects.record_gone(KEY);
        assert!(objects.known.lock().is_empty());
    }

    #[test]
    fn an_object_that_is_gone_during_the_run_for_its_end_has_had_it() {
        let objects = objects(&[State::Ending]);
        assert!(runs(&objects));
        objects.record_gone(KEY);
        objects.record_success(KEY);
        assert!(objects.known.lock().is_empty());
    }

    #[test]
    fn another_object_of_the_name_has_an_end_of_its_own() {
        let objects = objects(&[State::Ending]);
        assert!(runs(&objects));
        objects.record_success(KEY);
        objects.record_seen(KEY, Vec::new(), State::Ending);
        objects.is_another(KEY);
        assert_eq!(objects.next_wish(KEY), Some(Wish::Run(On::Delete)));
    }

    #[test]
    fn what_is_given_up_before_its_end_is_neither_let_go_nor_forgotten() {
        let objects = objects(&[State::Ending]);
        assert!(runs(&objects));
        objects.forget_gone(KEY);
        assert_eq!(objects.next_wish(KEY), Some(Wish::Run(On::Delete)));
    }

    #[test]
    fn a_run_that_began_for_something_else_settles_nothing() {
        for (before, after) in [(State::Kept, State::Strayed), (State::There, State::Gone)] {
            let objects = objects(&[before]);
            assert!(runs(&objects));
            objects.record_gone(KEY);
            assert_eq!(objects.known.lock()[KEY].state, after);
            objects.record_success(KEY);
            assert_eq!(objects.next_wish(KEY), Some(Wish::Run(On::Delete)));
        }
        let objects = objects(&[State::Kept]);
        assert!(runs(&objects));
        objects.record_seen(KEY, Vec::new(), State::Ending);
        objects.record_success(KEY);
        assert_eq!(objects.next_wish(KEY), Some(Wish::Run(On::Delete)));
    }

    #[test]
    fn without_the_finalizer_when_it_leaves_there_was_nothing_to_end() {
        let objects = objects(&[State::Leaving]);
        objects.record_gone(KEY);
        assert!(objects.known.lock().is_empty());
        let new = Objects::new(&[On::Delete], true);
        new.record_seen(KEY, Vec::new(), State::Bare);
        assert_eq!(new.next_wish(KEY), Some(Wish::Keep));
        new.record_gone(KEY);
        assert_eq!(new.next_wish(KEY), Some(Wish::Run(On::Delete)));
    }
}
