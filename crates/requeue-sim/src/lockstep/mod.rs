//! Runs the state machine and the model side by side, step by step.

mod compare;
mod events;
mod finish;
mod groups;
mod setup;

use std::collections::BTreeSet;

use requeue_core::{
    Config, Cursor, Delivery, Ending, GroupId, Operation, Order, Queue, Ticket, Time,
};

use self::events::Told;
use self::setup::TestOrder;
pub use self::setup::{Mode, Setup};
use crate::model::{AddRequest, Model, Out, Ranking, Stack, Why};
use crate::{Key, Op};

/// The state machine and the model, and the state that their comparison needs.
pub struct Lockstep {
    setup: Setup,
    queue: Queue<Key>,
    model: Model<u32>,
    now: Time,
    /// Deliveries that are not completed.
    live: Vec<(Delivery<Key>, u32)>,
    /// The tickets of completed deliveries, by epoch, counted from 1.
    ended: Vec<Option<Ticket>>,
    /// The fuse of the next operation: see [`Op::Break`].
    fuse: Option<u32>,
    walk: Option<Walk>,
    /// The keys that will not run, as reported by each side.
    lost: [BTreeSet<u32>; 2],
    dropping: bool,
    went_back: bool,
    told: Told,
}

#[derive(Default)]
struct Walk {
    cursor: Cursor,
    found: BTreeSet<u32>,
    /// Keys that were known during the whole walk.
    expected: BTreeSet<u32>,
}

impl Lockstep {
    /// Creates two empty queues, at time 0.
    #[must_use]
    pub fn new(setup: Setup) -> Self {
        let order = match setup.rules.ranking {
            Ranking::Fifo => Order::Fifo,
            Ranking::Priority { oldest_every } => Order::Priority { oldest_every },
            Ranking::Stack { lossy } => Order::Custom(Box::new(TestOrder::new(Stack::new(lossy)))),
        };
        let config = Config {
            readd_policy: setup.rules.re_add,
            in_flight_policy: setup.rules.rerun,
            order,
            fair: setup.rules.fair,
            group_limit: setup.rules.limit,
            groups: setup.groups,
            pace: setup.rules.pace,
            track: setup.track,
            recording: setup.recording(),
        };
        Self {
            setup,
            queue: Queue::new(config),
            model: Model::new(&setup.rules),
            now: Time::ZERO,
            live: Vec::new(),
            ended: Vec::new(),
            fuse: None,
            walk: None,
            lost: [BTreeSet::new(), BTreeSet::new()],
            dropping: false,
            went_back: false,
            told: Told::default(),
        }
    }

    /// Returns all values that determine the future behaviour, to distinguish states. Times, and
    /// counts of failures and of adds, are capped.
    #[must_use]
    pub fn essence(&self, cap: u64) -> impl Ord + use<> {
        let asked = |(out, key): &(Delivery<Key>, u32)| (*key, out.asked.flags, out.asked.priority);
        let asked: Vec<_> = self.live.iter().map(asked).collect();
        (self.model.essence(self.now, cap), asked)
    }

    /// Returns the model.
    #[must_use]
    pub const fn model(&self) -> &Model<u32> {
        &self.model
    }

    /// Returns the present time.
    #[must_use]
    pub const fn now(&self) -> Time {
        self.now
    }

    /// Replays the recording of the queue, if it has one, and compares the state of the replay with the queue.
    ///
    /// # Panics
    ///
    /// Panics if the replay differs.
    pub fn replay(&self) {
        let loses_starts = self.went_back && self.setup.rules.pace.is_some();
        let has_lost = || self.queue.recording().is_some_and(|it| it.lost_events() > 0);
        if self.setup.records() && !(loses_starts && has_lost()) {
            let keys = (0..self.setup.keys).map(|key| (Key(key), self.setup.hash(key)));
            events::replay(&self.queue, keys, self.now);
        }
    }

    /// Applies `op` to both sides, and compares first their results and then their visible states.
    ///
    /// # Panics
    ///
    /// Panics if the two sides differ.
    pub fn step(&mut self, op: &Op) {
        self.apply(op);
        self.compare(0..self.setup.keys);
    }

    /// Applies `op` to both sides, and compares their results. Returns the key that was delivered.
    ///
    /// # Panics
    ///
    /// Panics if the results differ.
    pub fn apply(&mut self, op: &Op) -> Option<u32> {
        // Apart from `End` and `CancelTeam`, only these operations remove a record. Each of them removes the record of
        // only one key.
        let touched = match *op {
            Op::Finish(which, _) => pick(&self.live, which).map(|live| live.1),
            Op::Cancel(key) | Op::Forget(key) | Op::Done(key) => Some(key % self.setup.keys),
            _ => None,
        };
        let handed_out = self.dispatch(op);
        if !matches!(op, Op::Break(_)) {
            self.fuse = None;
        }
        if self.setup.mode == Mode::Thrifty && !matches!(op, Op::Advance(_) | Op::GoBack(_)) {
            self.promote(usize::MAX);
        }
        if self.dropping {
            self.drop_some(1);
        }
        assert_eq!(self.queue.take_restarted(), self.model.take_restarted(), "restarted");
        self.told.listen(&self.queue, self.setup.rules.re_add);
        if let Some(walk) = &mut self.walk {
            if matches!(op, Op::End(_) | Op::CancelTeam(_)) {
                walk.expected.retain(|key| self.model.knows(key));
            } else if let Some(key) = touched.filter(|key| !self.model.knows(key)) {
                walk.expected.remove(&key);
            }
        }
        handed_out
    }

    fn dispatch(&mut self, op: &Op) -> Option<u32> {
        match *op {
            Op::Add(key, request) => self.add(key % self.setup.keys, &request),
            Op::Get => return self.get(),
            Op::Finish(which, how) => self.finish(which, how),
            Op::FinishStale(which, how) => self.finish_stale(which, how),
            Op::Detach(which) => {
                if let Some((out, _)) = pick(&self.live, which) {
                    let ticket = out.ticket;
                    assert!(self.queue.detach(&ticket));
                    assert!(self.model.detach(ticket.epoch()));
                }
            }
            Op::Seal(which) => {
                if let Some((out, _)) = pick(&self.live, which) {
                    let ticket = out.ticket;
                    assert_eq!(self.queue.seal(&ticket), self.model.seal(ticket.epoch()), "sealed");
                }
            }
            Op::CountStart(which, counts) => {
                if let Some((out, _)) = pick(&self.live, which) {
                    let (ticket, now) = (out.ticket, self.now);
                    match counts {
                        true => self.queue.count_start(&ticket, now),
                        false => self.queue.uncount_start(&ticket),
                    }
                    self.model.count_start(ticket.epoch(), counts, now);
                }
            }
            Op::Done(key) => self.done(key % self.setup.keys),
            Op::Cancel(key) => {
                let key = key % self.setup.keys;
                let hash = self.setup.hash(key);
                if self.dropping {
                    return None;
                }
                let by = Key(key);
                let core = inside(|| self.queue.cancel(&by, hash));
                let model = self.model.cancel(&key);
                assert_eq!(core.as_ref().map(|core| core.0), model, "cancelled");
                let gone = model.is_some() && !self.model.knows(&key);
                assert_eq!(core.and_then(|core| core.1).is_some(), gone, "key returned");
            }
            Op::CancelRunning(key) => {
                let key = key % self.setup.keys;
                let by = Key(key);
                let core = inside(|| self.queue.cancel_running(&by, self.setup.hash(key)));
                assert_eq!(core, self.model.cancel_running(&key), "cancelled run");
            }
            Op::PauseTeam(..) | Op::CancelTeam(_) | Op::CancelRunningTeam(_) => self.on_team(op),
            Op::Forget(key) => {
                let key = key % self.setup.keys;
                let knew = self.model.knows(&key);
                let by = Key(key);
                let core = inside(|| self.queue.forget(&by, self.setup.hash(key)));
                self.model.forget(&key);
                assert_eq!(core.is_some(), knew && !self.model.knows(&key), "key returned");
            }
            Op::FlushDebounced => self.flush_debounced(),
            Op::Promote(max) => self.promote(max),
            Op::Advance(by) => self.now = self.now + by,
            Op::GoBack(by) => {
                self.now = Time::ZERO + self.now.since(Time::ZERO + by);
                self.went_back = true;
            }
            Op::Pause(paused) => {
                match paused {
                    true => self.queue.pause(),
                    false => self.queue.resume(),
                }
                self.model.pause(paused);
            }
            Op::End(ending) => self.end(ending),
            Op::Page(limit) => self.page(limit),
            // With a custom order and a pace, a copy that panics may lose a key, so no copy panics
            // here.
            Op::Break(_) if self.setup.rules.pace.is_some() && self.has_order() => {}
            Op::Break(after) => self.fuse = Some(after),
        }
        None
    }

    fn add(&mut self, key: u32, request: &AddRequest) {
        let (hash, team) = (self.setup.hash(key), self.setup.team(key));
        let group = GroupId::new(team.id).weight(team.weight);
        let add = request.to_add();
        let needs = self.queue.needs_now(Operation::Add(&add));
        let now = self.queue_now(needs);
        let knew = self.model.knows(&key);
        let by = Key(key);
        let refuses = self.queue.refuses(&by, hash);
        let by_reference = key.is_multiple_of(2);
        let added = self.attempt(|queue| {
            let known = if by_reference { queue.add_known(&by, hash, &add, now) } else { None };
            match known {
                Some(added) => ((added, Some(by)), true),
                None => match request.why.and_then(|why| why.cause) {
                    Some(cause) => {
                        let cause = cause.to_string().into();
                        (queue.add_caused_by(by, hash, add, Some(&cause), group, now), false)
                    }
                    None => (queue.add(by, hash, add, group, now), false),
                },
            }
        });
        let Some(((core, back), was_known)) = added else { return };
        // If the key is known, an add by reference stores no cause.
        let why = request.why.map(|why| Why { cause: why.cause.filter(|_| !was_known), ..why });
        let request = AddRequest { why, ..*request };
        let model = self.model.add(&key, team, &request, self.now);
        assert_eq!(core, model, "result");
        assert_eq!(refuses, !core.is_accepted(), "refuses");
        assert_eq!(back.is_none(), !was_known && !knew && core.is_accepted(), "key kept");
    }

    /// Flushes one slot at a time, because the keys become ready in the order of their slots, and
    /// the model has no slots.
    fn flush_debounced(&mut self) {
        let (mut walk, now) = (self.queue.walk(), self.now);
        while !walk.is_over() {
            let waits = |queue: &Queue<Key>, key| {
                let by = Key(key);
                let entry = inside(|| queue.look_up(&by, self.setup.hash(key)));
                entry.is_some_and(|entry| entry.bound.is_some())
            };
            let mut keys: Vec<_> =
                (0..self.setup.keys).filter(|&key| waits(&self.queue, key)).collect();
            let flushed = inside(|| self.queue.flush_debounced(&mut walk, 1, now));
            keys.retain(|&key| !waits(&self.queue, key));
            assert_eq!(keys.len(), flushed, "flushed keys");
            for key in keys {
                assert!(self.model.flush_debounced(&key, now), "{key} is flushed");
            }
        }
        let left = (0..self.setup.keys).find(|key| self.model.flush_debounced(key, now));
        assert_eq!(left, None, "a key that was not flushed");
    }

    fn get(&mut self) -> Option<u32> {
        let now = self.queue_now(self.queue.needs_now(Operation::Get));
        let setup = self.setup;
        let has_order = self.has_order();
        let taken = self.attempt(|queue| {
            let mut dropped = Vec::new();
            loop {
                if !has_order {
                    break (queue.get(now), dropped);
                }
                let popped = queue.get_by_order(now, |key| setup.hash(key.0));
                dropped.extend(popped.dropped);
                if !popped.again {
                    break (popped.item, dropped);
                }
            }
        });
        let Some((core, dropped)) = taken else {
            // If every due key is ready, the clone of the delivered key has panicked. The order had
            // returned all its keys before, and the queue could deliver none of them.
            if has_order && self.queue.next_due().is_none_or(|due| due > self.now) {
                self.model.ask_order_in_vain();
            }
            return None;
        };
        drop(dropped);
        let model = self.model.get(self.now);
        let core_out = core.as_ref().map(|out| Out {
            key: out.key.0,
            epoch: out.ticket.epoch(),
            asked: out.asked,
            failures: out.failures,
            queued: out.queued.unwrap_or_default(),
        });
        let model = model.map(|out| Out { queued: self.if_tracked(out.queued), ..out });
        assert_eq!(core_out, model, "delivery");
        let out = core?;
        let key = out.key.0;
        self.refuses_tickets_before(out.ticket.epoch());
        self.live.push((out, key));
        self.sweep_pace();
        Some(key)
    }

    fn promote(&mut self, max: usize) {
        let now = self.now;
        let Some(core) = self.attempt(|queue| queue.promote(now, max)) else { return };
        let model = self.model.promote(self.now, max);
        assert!(core == model || self.setup.mode == Mode::Thrifty, "made ready");
    }

    fn end(&mut self, ending: Ending) {
        let begins = self.model.ending() < Ending::ShutDown && ending == Ending::ShutDown;
        self.queue.end(ending);
        let lost = self.model.end(ending);
        if begins {
            self.lost[1].extend(lost);
            self.dropping = true;
            if self.setup.mode != Mode::Lazy {
                self.drop_some(3);
                while self.dropping {
                    self.drop_some(1);
                }
            }
        }
    }

    fn drop_some(&mut self, max: usize) {
        let mut keys = Vec::new();
        let more = inside(|| self.queue.drop_some(max, &mut keys));
        for key in keys {
            let lazy = self.setup.mode == Mode::Lazy;
            assert!(self.lost[0].insert(key.0) || lazy, "{key:?} was dropped twice");
            if lazy && self.queue.look_up(&key, self.setup.hash(key.0)).is_none() {
                // The key was also ready, and its ready run has completed. The failures of the key
                // are removed with the delayed run.
                assert!(!self.model.is_pending(&key.0) && !self.model.is_in_flight(&key.0));
                self.model.forget(&key.0);
                self.walk.iter_mut().for_each(|walk| _ = walk.expected.remove(&key.0));
            }
        }
        if !more {
            self.dropping = false;
            let [core, model] = &self.lost;
            // A key that was also ready may have run before its delayed run is dropped.
            let lazy = self.setup.mode == Mode::Lazy && core.is_superset(model);
            assert!(lazy || core == model, "keys that will not run: {core:?}, not {model:?}");
        }
    }

    fn page(&mut self, limit: usize) {
        let known = || (0..self.setup.keys).filter(|key| self.model.knows(key)).collect();
        let walk = self.walk.get_or_insert_with(|| Walk { expected: known(), ..Walk::default() });
        let cursor = walk.cursor;
        let fuse = self.fuse.take().unwrap_or(u32::MAX);
        // A copy that panics affects only the caller, and not the queue.
        let Some(page) = Key::with_fuse(fuse, || self.queue.page(cursor, limit)) else { return };
        assert!(self.setup.hashes.is_some() || page.entries.len() <= limit.max(1), "limit");
        for entry in &page.entries {
            let key = entry.key.0;
            assert_eq!(Some(entry), self.queue.look_up(&Key(key), self.setup.hash(key)).as_ref());
            assert!(walk.found.insert(key), "a walk visited {key} twice");
        }
        match page.next {
            Some(next) => {
                assert!(next > walk.cursor, "a cursor advances");
                walk.cursor = next;
            }
            None => {
                for key in &walk.expected {
                    assert!(walk.found.contains(key), "a walk did not visit {key}");
                }
                self.walk = None;
            }
        }
    }

    /// Applies an operation to the queue. Returns `None` if a key's clone panicked during the operation. In this case,
    /// the only possible effect is that due keys have become ready.
    fn attempt<T>(&mut self, f: impl FnOnce(&mut Queue<Key>) -> T) -> Option<T> {
        let Some(fuse) = self.fuse.take() else { return Some(inside(|| f(&mut self.queue))) };
        let done = Key::with_fuse(fuse, || f(&mut self.queue));
        if done.is_none() {
            if self.setup.rules.pace.is_some() {
                self.model.promote(self.now, 256);
                return done;
            }
            let ripened = self.model.waiting().saturating_sub(self.queue.waiting());
            self.model.promote(self.now, ripened);
        }
        done
    }

    /// Forgets starts that no longer count. With many keys, the queue forgets only some starts.
    fn sweep_pace(&mut self) {
        let mut keys = Vec::new();
        if self.setup.rules.pace.is_none() {
            return;
        }
        if self.setup.keys > 64 {
            self.queue.sweep_pace(self.now, &mut keys);
            return;
        }
        let left = self.model.sweep(self.now);
        for _ in 0..64 {
            self.queue.sweep_pace(self.now, &mut keys);
        }
        assert_eq!(self.queue.paced_keys(), left, "keys with starts");
    }

    const fn has_order(&self) -> bool {
        matches!(self.setup.rules.ranking, Ranking::Stack { .. })
    }

    fn queue_now(&self, needed: bool) -> Time {
        if needed || self.setup.mode != Mode::Thrifty { self.now } else { Time::ZERO }
    }
}

fn inside<T>(f: impl FnOnce() -> T) -> T {
    Key::none_dropped(f)
}

fn pick<T>(list: &[T], which: usize) -> Option<&T> {
    list.get(which % list.len().max(1))
}
