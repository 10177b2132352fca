//! The list of waiting getters, and the wakes that they have received.
//!
//! The lock of the queue guards the list. When a getter is woken, it leaves the list. It then has a
//! *wake* until it checks for a key, is dropped, or times out. It then returns the wake, and the
//! queue wakes as many getters as there are keys. If a key is ready and a getter is in the list, at
//! least one getter has been woken and has not yet checked.

use std::task::Waker;

/// How a getter waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// As a task. After the wake, its runtime polls it at some later time, or never.
    Task,
    /// As a parked thread. It checks for a key directly after the wake.
    Thread,
}

const NONE: u32 = u32::MAX;

struct Waiter {
    kind: Kind,
    /// True if the getter returns `None` only when this result is final.
    until_final: bool,
    state: State,
    prev: u32,
    next: u32,
}

enum State {
    Listed(Waker),
    /// The getter has the wake with this number: it was woken, or it spins.
    Woken(u64),
    Vacant,
}

/// The index of a getter in the table of waiters.
#[derive(Debug, PartialEq, Eq, Clone, Copy)]
pub(crate) struct Place(u32);

pub(crate) struct Waiters {
    all: Vec<Waiter>,
    vacant: Vec<u32>,
    head: u32,
    tail: u32,
    listed: u32,
    threads: u32,
    /// The number of wakes that getters have received so far.
    given: u64,
    /// The number of the latest wake that was returned. Earlier wakes are treated as returned even
    /// if they were not: a getter that was overtaken may never check, and must not block others.
    returned: u64,
    /// The number of the latest wake that a task has received.
    to_task: u64,
    /// The number of the latest wake that a thread has received.
    to_thread: u64,
    /// The thread that spins, if any. At most one thread spins.
    spinner: Option<Place>,
    /// The thread that waits for the next deadline on behalf of all getters, and the time until
    /// which it sleeps.
    leader: Option<(Place, crate::Time)>,
}

impl Waiters {
    pub(crate) const fn new() -> Self {
        Self {
            all: Vec::new(),
            vacant: Vec::new(),
            head: NONE,
            tail: NONE,
            listed: 0,
            threads: 0,
            given: 0,
            returned: 0,
            to_task: 0,
            to_thread: 0,
            spinner: None,
            leader: None,
        }
    }

    /// Returns true if no getter is in the list.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.listed == 0
    }

    /// Returns true if a thread is spinning.
    #[inline]
    pub(crate) const fn is_spinning(&self) -> bool {
        self.spinner.is_some()
    }

    /// Lets a new getter on a thread spin, if no other getter spins. A spinning getter has a wake,
    /// because it checks for a key soon. No other getter is therefore woken for a key that it can
    /// take.
    pub(crate) fn start_spinning(
        &mut self,
        place: &mut Option<Place>,
        kind: Kind,
        until_final: bool,
    ) -> bool {
        if self.is_spinning() || place.is_some() || kind == Kind::Task {
            return false;
        }
        self.given += 1;
        self.to_thread = self.given;
        *place = Some(self.insert_waiter(kind, until_final, State::Woken(self.given)));
        self.spinner = *place;
        true
    }

    fn insert_waiter(&mut self, kind: Kind, until_final: bool, state: State) -> Place {
        let waiter = Waiter { kind, until_final, state, prev: NONE, next: NONE };
        if let Some(at) = self.vacant.pop() {
            self.all[at as usize] = waiter;
            return Place(at);
        }
        self.all.push(waiter);
        Place(self.all.len() as u32 - 1)
    }

    /// Ends the spinning of a getter. Returns true if it was spinning.
    fn stop_spinning(&mut self, at: u32) -> bool {
        self.spinner.take_if(|spinner| *spinner == Place(at)).is_some()
    }

    /// Adds a getter to the list. If it was woken and found no key, it goes to the head of the
    /// list. Returns its old waker, which the caller drops outside the lock.
    pub(crate) fn list_waiter(
        &mut self,
        place: &mut Option<Place>,
        kind: Kind,
        until_final: bool,
        waker: Waker,
    ) -> Option<Waker> {
        let Some(Place(at)) = *place else {
            let Place(at) = self.insert_waiter(kind, until_final, State::Listed(waker));
            self.link_waiter(at, false);
            *place = Some(Place(at));
            return None;
        };
        let is_new = self.stop_spinning(at);
        match std::mem::replace(&mut self.all[at as usize].state, State::Listed(waker)) {
            State::Listed(old) => Some(old),
            State::Woken(wake) => {
                self.give_back(wake);
                self.link_waiter(at, !is_new);
                None
            }
            State::Vacant => None,
        }
    }

    /// Returns true if the getter is in the list, with a waker that wakes the same task as `waker`.
    pub(crate) fn is_listed_with(&self, place: Option<Place>, waker: &Waker) -> bool {
        place.is_some_and(|Place(at)| match &self.all[at as usize].state {
            State::Listed(listed) => listed.will_wake(waker),
            State::Woken(_) | State::Vacant => false,
        })
    }

    /// Removes a getter that no longer waits. Returns its waker, which the caller drops outside the
    /// lock.
    pub(crate) fn remove_waiter(&mut self, place: &mut Option<Place>) -> Option<Waker> {
        let Place(at) = place.take()?;
        if self.leader.is_some_and(|(leader, _)| leader == Place(at)) {
            self.leader = None;
        }
        self.stop_spinning(at);
        let state = std::mem::replace(&mut self.all[at as usize].state, State::Vacant);
        let waker = match state {
            State::Listed(waker) => {
                self.unlink_waiter(at);
                Some(waker)
            }
            State::Woken(wake) => {
                self.give_back(wake);
                None
            }
            State::Vacant => None,
        };
        self.vacant.push(at);
        // When the last getter leaves, the memory is freed if there were many getters.
        if self.vacant.len() == self.all.len() && self.all.capacity() > 64 {
            self.all = Vec::new();
            self.vacant = Vec::new();
        }
        waker
    }

    /// Wakes enough getters for `keys` keys, which is the number of keys that can be delivered now.
    #[inline]
    pub(crate) fn wake_for(&mut self, keys: usize, wakes: &mut Wakes) {
        while keys > 0 && self.head != NONE {
            let out = self.given - self.returned;
            // The runtime may poll a woken task late or never. One additional wake prevents this
            // task from blocking a key.
            let spare = u64::from(self.to_task > self.returned);
            let enough = match self.all[self.head as usize].kind {
                // Waking a thread costs more than adding a key, so threads wake each other in a
                // chain: each thread that takes a key wakes the next one if more keys are ready.
                Kind::Thread => 1,
                // For tasks, such a chain would be slow, because each task would have to wait for
                // its poll.
                Kind::Task => keys as u64,
            };
            if out >= enough + spare {
                break;
            }
            self.wake_at(self.head, wakes);
        }
        // A woken thread always checks, but a woken task may never check. If only tasks were woken,
        // the first waiting thread is woken too.
        if keys > 0 && self.has_threads() && self.to_thread <= self.returned {
            let first = self.first_thread();
            self.wake_at(first, wakes);
        }
    }

    /// Returns the latest wake of a task, if the caller must watch over it because the task may
    /// never use it. This is the case if a key is ready, another getter is in the list, and neither
    /// this wake nor a later one has been returned.
    #[inline]
    pub(crate) const fn unused_wake(&self, keys: usize) -> Option<u64> {
        let only_tasks_come = self.to_task > self.returned && self.to_thread <= self.returned;
        if keys > 0 && self.head != NONE && only_tasks_come { Some(self.to_task) } else { None }
    }

    /// Returns the first thread in the list. The list must contain a thread.
    fn first_thread(&self) -> u32 {
        let mut at = self.head;
        while at != NONE && self.all[at as usize].kind != Kind::Thread {
            at = self.all[at as usize].next;
        }
        at
    }

    /// Wakes all getters. If `until_final_too` is false, wakes only those that do not wait for a
    /// final `None`.
    pub(crate) fn wake_all(&mut self, until_final_too: bool, wakes: &mut Wakes) {
        let mut at = self.head;
        while at != NONE {
            let next = self.all[at as usize].next;
            if until_final_too || !self.all[at as usize].until_final {
                self.wake_at(at, wakes);
            }
            at = next;
        }
    }

    fn wake_at(&mut self, at: u32, wakes: &mut Wakes) {
        self.given += 1;
        match self.all[at as usize].kind {
            Kind::Task => self.to_task = self.given,
            Kind::Thread => self.to_thread = self.given,
        }
        self.unlink_waiter(at);
        let state = std::mem::replace(&mut self.all[at as usize].state, State::Woken(self.given));
        if let State::Listed(waker) = state {
            wakes.push(waker);
        }
    }

    /// Marks this wake and all earlier wakes as returned.
    pub(crate) fn give_back(&mut self, wake: u64) {
        self.returned = self.returned.max(wake);
    }

    // --- The leader ------------------------------------------------------------------------------

    /// Makes the thread at `place` the leader, if there is no other leader. Returns true if the
    /// thread is the leader.
    pub(crate) fn become_leader(&mut self, place: Option<Place>, until: crate::Time) -> bool {
        match (self.leader, place) {
            (Some((leader, _)), _) if Some(leader) != place => false,
            (_, Some(place)) => {
                self.leader = Some((place, until));
                true
            }
            (_, None) => false,
        }
    }

    /// Returns true if a parked thread is in the list.
    pub(crate) const fn has_threads(&self) -> bool {
        self.threads > 0
    }

    /// Returns the waker of the thread that must check at `due`, if this thread must be woken to
    /// learn the new time. It is the leader, if the leader sleeps beyond `due`. If there is no
    /// leader, it is a thread that becomes the leader.
    pub(crate) fn keep_time(&self, due: crate::Time) -> Option<Waker> {
        if !self.has_threads() {
            return None;
        }
        let place = match self.leader {
            Some((_, until)) if until <= due => return None,
            Some((place, _)) => place.0,
            None => self.first_thread(),
        };
        match &self.all.get(place as usize)?.state {
            State::Listed(waker) => Some(waker.clone()),
            // A leader that is awake checks without being woken.
            State::Woken(_) | State::Vacant => None,
        }
    }

    // --- The list --------------------------------------------------------------------------------

    fn link_waiter(&mut self, at: u32, first: bool) {
        self.listed += 1;
        self.threads += u32::from(self.all[at as usize].kind == Kind::Thread);
        let (prev, next) = if first { (NONE, self.head) } else { (self.tail, NONE) };
        let waiter = &mut self.all[at as usize];
        (waiter.prev, waiter.next) = (prev, next);
        match prev {
            NONE => self.head = at,
            prev => self.all[prev as usize].next = at,
        }
        match next {
            NONE => self.tail = at,
            next => self.all[next as usize].prev = at,
        }
    }

    fn unlink_waiter(&mut self, at: u32) {
        self.listed -= 1;
        let waiter = &self.all[at as usize];
        let (prev, next) = (waiter.prev, waiter.next);
        self.threads -= u32::from(waiter.kind == Kind::Thread);
        match prev {
            NONE => self.head = next,
            prev => self.all[prev as usize].next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => self.all[next as usize].prev = prev,
        }
    }
}

/// The wakers that must be called after the lock is released.
#[must_use]
pub(crate) struct Wakes {
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Wakes {
    pub(crate) const fn new() -> Self {
        Self { first: None, more: Vec::new() }
    }

    pub(crate) fn push(&mut self, waker: Waker) {
        match &self.first {
            None => self.first = Some(waker),
            Some(_) => self.more.push(waker),
        }
    }

    #[inline]
    pub(crate) fn wake_each(self) {
        if let Some(first) = self.first {
            crate::sync::quietly(|| first.wake());
            for waker in self.more {
                crate::sync::quietly(|| waker.wake());
            }
        }
    }
}

#[cfg(all(test, not(requeue_loom)))]
mod tests {
    mod model;

    use super::*;
    use std::sync::Arc;
    use std::task::Wake;

    struct Sleeper;

    impl Wake for Sleeper {
        fn wake(self: Arc<Self>) {}
    }

    fn woken(waiters: &mut Waiters, keys: usize) -> usize {
        let mut wakes = Wakes::new();
        waiters.wake_for(keys, &mut wakes);
        usize::from(wakes.first.is_some()) + wakes.more.len()
    }

    #[test]
    fn one_thread_spins_and_no_other_is_woken_for_the_key_that_it_can_take() {
        let mut waiters = Waiters::new();
        let (mut parked, mut spinner, mut third, mut task) = (None, None, None, None);
        waiters.list_waiter(&mut parked, Kind::Thread, false, Waker::noop().clone());
        assert!(!waiters.start_spinning(&mut task, Kind::Task, false));
        assert!(waiters.start_spinning(&mut spinner, Kind::Thread, false));
        assert!(!waiters.start_spinning(&mut third, Kind::Thread, false));
        assert_eq!(woken(&mut waiters, 1), 0);

        // The spinning thread has taken its key and runs the handler, so the next key needs another
        // getter.
        waiters.remove_waiter(&mut spinner);
        assert!(!waiters.is_spinning());
        assert_eq!(woken(&mut waiters, 1), 1);
    }

    #[test]
    fn a_thread_that_has_spun_in_vain_waits_behind_earlier_getters() {
        let mut waiters = Waiters::new();
        let (mut first, mut spinner) = (None, None);
        let waker = Waker::from(Arc::new(Sleeper));
        waiters.list_waiter(&mut first, Kind::Thread, false, waker.clone());
        assert!(waiters.start_spinning(&mut spinner, Kind::Thread, false));
        waiters.list_waiter(&mut spinner, Kind::Thread, false, waker.clone());
        assert!(!waiters.is_spinning());
        assert_eq!(woken(&mut waiters, 1), 1);
        assert!(!waiters.is_listed_with(first, &waker));
        assert!(waiters.is_listed_with(spinner, &waker));
    }

    #[test]
    fn threads_wake_each_other_in_a_chain_however_many_keys_there_are() {
        let mut waiters = Waiters::new();
        let mut places = [None; 16];
        for place in &mut places {
            waiters.list_waiter(place, Kind::Thread, false, Waker::noop().clone());
        }
        let woken_by_adds: usize = (1..=100).map(|keys| woken(&mut waiters, keys)).sum();
        assert_eq!(woken_by_adds, 1, "the adds wake one thread");
        for (keys, place) in (1..=100).rev().zip(&mut places[..15]) {
            waiters.remove_waiter(place);
            assert_eq!(woken(&mut waiters, keys), 1, "a thread that takes a key wakes the next");
        }
        waiters.remove_waiter(&mut places[15]);
        assert_eq!(woken(&mut waiters, 85), 0);
    }
}
