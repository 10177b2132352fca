//! Replays the operations on a queue, step by step.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use requeue::clock::FakeClock;
use requeue::{Builder, Completion, Get, Item, Order, Phase, Queue, Ticket, Time};
use requeue_conformance::{Sequence, Step};

use crate::differences::{Difference, Met};
use crate::drains::Drains;
use crate::limiters::limiter;
use crate::seen::{InOrder, Seen, Watched, Woken};
use crate::{Mismatch, nanos, same};

/// The choices between equivalent calls of requeue's API. They depend on the seed.
pub(crate) struct Style {
    /// True if deliveries are completed by their items, not by their keys.
    pub(crate) by_item: bool,
    pub(crate) own_order: bool,
    /// True if only the next operation after a jump of the clock detects due keys.
    pub(crate) looks_late: bool,
    /// True if metrics are recorded. Without metrics, the queue uses its fast paths.
    pub(crate) measured: bool,
    /// True if no operation happens at the moment when a key becomes due.
    pub(crate) unwatched: bool,
}

/// A delivery, as an item or a ticket, and the time of its start.
pub(crate) enum Held<'q> {
    Item(Item<'q, char>, Time),
    Ticket(Ticket, Time),
}

pub(crate) struct Run<'q, 't> {
    pub(crate) sequence: &'q Sequence<'t>,
    pub(crate) queue: &'q Queue<char>,
    pub(crate) clock: FakeClock,
    pub(crate) seen: Seen,
    pub(crate) style: Style,
    pub(crate) keys: Vec<char>,
    pub(crate) flows: bool,
    pub(crate) held: BTreeMap<char, Held<'q>>,
    pub(crate) getters: Vec<(Get<'q, char>, Arc<Woken>)>,
    pub(crate) drains: Drains<'q>,
    /// The deliveries of this step, with the time since the start of the step where it can differ.
    pub(crate) got: Vec<String>,
    pub(crate) ended: usize,
    /// The recorded values that are valid until a step changes them.
    pub(crate) expected: BTreeMap<&'t str, &'t str>,
    pub(crate) touched: Vec<char>,
    pub(crate) gauges: Option<&'t str>,
    /// The time from the due time of a key until the queue noticed it.
    pub(crate) late: BTreeMap<char, Duration>,
    /// The failures that client-go's limiter has counted for refused adds, and those of dropped keys.
    pub(crate) refused: BTreeMap<char, i64>,
    pub(crate) was_refused: bool,
    /// Keys with equal due times: in the order of their arrival, and as client-go delivered them.
    pub(crate) tied: Option<[Vec<char>; 2]>,
    /// The consecutive failures, as counted by this test. `stale` contains the tickets of completed deliveries.
    pub(crate) failures: BTreeMap<char, u32>,
    pub(crate) stale: BTreeMap<char, Ticket>,
    /// Set after a panic of a worker, or a `done` without a delivery. After that, the two queues differ.
    pub(crate) over: Option<Over>,
}

pub(crate) enum Over {
    Done(char),
    Dropped { key: char, runs: bool },
}

pub(crate) fn replay(sequence: &Sequence<'_>, met: &mut Met) -> Result<(), Mismatch> {
    let seed = sequence.seed;
    let drops = sequence.steps.iter().any(|step| step.did.starts_with("abandon"));
    let style = Style {
        by_item: drops || seed.is_multiple_of(2),
        own_order: seed.is_multiple_of(3),
        looks_late: seed % 5 < 2,
        measured: seed % 4 != 3,
        unwatched: seed % 7 < 2,
    };
    let (clock, seen) = (FakeClock::new(), Seen::default());
    let limits = match sequence.with.get("limiter").unwrap() {
        "none" => "default_controller",
        limits => limits,
    };
    let builder =
        Builder::client_go().clock(clock.clone()).limiter(Watched(limiter(limits), seen.clone()));
    let builder = match style.measured {
        true => builder.name("q").metrics_provider(Arc::new(seen.clone())),
        false => builder,
    };
    let builder = match style.own_order {
        true => builder.order(Order::Custom(Box::new(InOrder::new(&seen)))),
        false => builder,
    };
    let queue = builder.build().unwrap();
    let mut run = Run {
        sequence,
        queue: &queue,
        clock,
        seen,
        style,
        keys: sequence.with.list("keys").map(key).collect(),
        flows: sequence.with.get("time") == Some("flows"),
        held: BTreeMap::new(),
        getters: Vec::new(),
        drains: Drains::default(),
        got: Vec::new(),
        ended: 0,
        expected: BTreeMap::new(),
        touched: Vec::new(),
        gauges: None,
        late: BTreeMap::new(),
        refused: BTreeMap::new(),
        was_refused: false,
        tied: (sequence.kind == "ties").then(Default::default),
        failures: BTreeMap::new(),
        stale: BTreeMap::new(),
        over: None,
    };
    let replayed = (0..sequence.steps.len()).try_for_each(|at| run.step(at, met));
    // Items are completed, because a dropped item would count as a failure.
    for held in std::mem::take(&mut run.held).into_values() {
        if let Held::Item(item, _) = held {
            let _ = item.into_parts();
        }
    }
    replayed
}

pub(crate) fn key(text: &str) -> char {
    text.chars().next().unwrap()
}

impl<'q, 't> Run<'q, 't> {
    fn step(&mut self, at: usize, met: &mut Met) -> Result<(), Mismatch> {
        let step: &'q Step<'t> = &self.sequence.steps[at];
        self.got.clear();
        self.ended = 0;
        self.seen.reported().delay = None;
        let began = self.clock.now();

        let mut words = step.did.split(' ');
        let what = words.next().unwrap();
        let arg = words.next().unwrap_or_default();
        let after = || nanos(step.did.rsplit(' ').next().unwrap());
        match what {
            "add" => match at % 3 {
                0 => _ = self.queue.add(key(arg)),
                1 => _ = self.queue.add_ref(&key(arg)),
                _ => _ = self.queue.add_all([key(arg)]),
            },
            "add_after" => {
                if let Some([arrived, _]) = &mut self.tied {
                    arrived.push(key(arg));
                }
                self.queue.add_after(key(arg), after());
            }
            "add_rate_limited" => _ = self.queue.add_rate_limited(key(arg)),
            "forget" => self.queue.forget(&key(arg)),
            "get" => self.get(at),
            "wait" => self.getters.push((self.queue.get(), Woken::new())),
            "done" => self.done(at, key(arg))?,
            "retry" => match self.held.remove(&key(arg)).unwrap() {
                Held::Item(item, _) => item.retry(),
                ticket @ Held::Ticket(..) => {
                    self.queue.add_rate_limited(key(arg));
                    self.end(at, key(arg), ticket);
                }
            },
            "succeed" => match self.held.remove(&key(arg)).unwrap() {
                Held::Item(item, _) => item.succeed(),
                ticket @ Held::Ticket(..) => {
                    self.queue.forget(&key(arg));
                    self.end(at, key(arg), ticket);
                }
            },
            "later" => match self.held.remove(&key(arg)).unwrap() {
                Held::Item(item, _) => {
                    let state = self.queue.look_up(&*item).expect("a key in flight has a record");
                    if state.phase == Phase::InFlightDirty && after().is_zero() {
                        // A completion and an add in one step, between which the key is ready.
                        self.touched.push(key(arg));
                    }
                    item.complete(Completion::RequeueAfter(after()));
                }
                ticket @ Held::Ticket(..) => {
                    self.queue.forget(&key(arg));
                    self.queue.add_after(key(arg), after());
                    self.end(at, key(arg), ticket);
                }
            },
            "sleep" => self.sleep(at, after())?,
            "shut_down" => self.shut_down(at, met)?,
            "drain" => self.drains.start(self.queue),
            "abandon" => self.abandon(key(arg)),
            "take_all" => {
                while let Some(item) = self.queue.try_get() {
                    self.got.push(item.key().to_string());
                    let _ = item.into_parts();
                }
            }
            _ => panic!("an operation of no known kind: {}", step.line),
        }
        match what {
            "add_rate_limited" | "retry" => *self.failures.entry(key(arg)).or_default() += 1,
            "forget" | "succeed" | "later" => _ = self.failures.remove(&key(arg)),
            _ => {}
        }
        self.poll_getters(began, at);
        self.drains.poll();
        if self.over.is_some() {
            return self.compare_end(at, met);
        }
        self.compare(at, met)
    }

    // --- Operations
    // -------------------------------------------------------------------------------

    fn get(&mut self, at: usize) {
        let now = self.clock.now();
        let item = match at % 3 {
            0 => self.queue.try_get(),
            1 => self.queue.get_many(1).now().pop(),
            _ => {
                let mut get = pin!(self.queue.get());
                match get.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                    Poll::Ready(item) => item,
                    Poll::Pending => return,
                }
            }
        };
        match item {
            Some(item) => self.hold(item, now, at),
            None => {
                // Only a getter that may wait shows whether the queue is shut down.
                let mut get = pin!(self.queue.get());
                let poll = get.as_mut().poll(&mut Context::from_waker(Waker::noop()));
                self.ended += usize::from(matches!(poll, Poll::Ready(None)));
            }
        }
    }

    fn hold(&mut self, item: Item<'q, char>, began: Time, at: usize) {
        let (now, key) = (self.clock.now(), *item.key());
        let moment = match now.since(began).as_nanos() {
            passed if self.flows && passed > 0 => format!("@{passed}"),
            _ => String::new(),
        };
        self.got.push(format!("{key}{moment}"));
        let held = match self.style.by_item {
            true => Held::Item(item, now),
            false => Held::Ticket(item.into_parts().1, now),
        };
        let other = self.held.insert(key, held);
        assert!(other.is_none(), "{key} is in flight twice in step {at}");
    }

    /// Polls the getters that were woken, and no others.
    fn poll_getters(&mut self, began: Time, step: usize) {
        while let Some(at) = self.getters.iter().position(|(_, woken)| woken.take()) {
            let (get, woken) = &mut self.getters[at];
            let waker = woken.waker();
            if let Poll::Ready(item) = pin!(get).poll(&mut Context::from_waker(&waker)) {
                drop(self.getters.remove(at));
                match item {
                    Some(item) => self.hold(item, began, step),
                    None => self.ended += 1,
                }
            }
        }
    }

    fn end(&mut self, at: usize, key: char, held: Held<'q>) {
        if let Held::Ticket(ticket, _) = &held {
            self.stale.insert(key, ticket.clone());
        }
        let ended = match held {
            Held::Item(item, _) => {
                item.done();
                true
            }
            Held::Ticket(ticket, _) if at.is_multiple_of(2) => self.queue.done_ticket(ticket),
            Held::Ticket(..) => self.queue.done(&key),
        };
        assert!(ended, "{key} was in flight, and cannot be completed in step {at}");
    }

    fn done(&mut self, at: usize, key: char) -> Result<(), Mismatch> {
        if let Some(held) = self.held.remove(&key) {
            self.end(at, key, held);
            return Ok(());
        }
        if self.queue.look_up(&key).is_some_and(|entry| entry.phase == Phase::Ready) {
            self.over = Some(Over::Done(key));
        }
        let done = self.queue.done(&key);
        same(self.sequence, at, "done of what nobody has", false, done)
    }

    fn sleep(&mut self, at: usize, d: Duration) -> Result<(), Mismatch> {
        let began = self.clock.now();
        let target = began + d;
        let compares = self.over.is_none() && self.style.measured;
        let tick = self.sequence.steps[at].saw.get("unfinished").filter(|_| compares);
        let mut tick = tick.map(|gauges| {
            let (gauges, after) = gauges.split_once('@').unwrap_or((gauges, ""));
            (gauges, if after.is_empty() { target } else { began + nanos(after) })
        });
        self.gauges = tick.map_or(self.gauges, |(gauges, _)| Some(gauges));
        if self.flows && self.style.unwatched && self.getters.is_empty() {
            self.note_late(target);
            tick = tick.filter(|(_, moment)| *moment == target);
        } else if self.flows {
            while let Some(next) = self.next_moment(tick.map(|(_, at)| at)).filter(|t| *t < target)
            {
                self.clock.set(next);
                self.poll_getters(began, at);
                if let Some((gauges, _)) = tick.take_if(|(_, moment)| *moment == next) {
                    same(self.sequence, at, "unfinished", gauges, self.gauges_now())?;
                }
                let _ = self.queue.len();
            }
        }
        self.clock.set(target);
        self.poll_getters(began, at);
        match tick {
            Some((gauges, _)) => same(self.sequence, at, "unfinished", gauges, self.gauges_now()),
            None => Ok(()),
        }
    }

    /// Returns the next time at which a key becomes due, or the gauges are read. If a getter waits, this is the time of
    /// the clock's alarm, so that a missing alarm is detected.
    fn next_moment(&self, tick: Option<Time>) -> Option<Time> {
        let due = match self.getters.is_empty() {
            true => self.entries().filter_map(|(_, _, due)| due).min(),
            false => self.clock.next_alarm(),
        };
        let tick = tick.filter(|tick| *tick > self.clock.now());
        due.into_iter().chain(tick).min()
    }

    fn entries(&self) -> impl Iterator<Item = (char, Phase, Option<Time>)> + '_ {
        self.keys.iter().filter_map(|key| {
            let entry = self.queue.look_up(key)?;
            Some((*key, entry.phase, entry.due))
        })
    }

    /// Records keys that become due in the meantime. They become ready, or dirty, at the next operation.
    fn note_late(&mut self, target: Time) {
        let late: Vec<_> = self
            .entries()
            .filter(|(_, phase, _)| matches!(phase, Phase::Idle | Phase::InFlight))
            .filter_map(|(key, _, due)| Some((key, due.filter(|due| *due < target)?)))
            .map(|(key, due)| (key, target.since(due)))
            .collect();
        self.late.extend(late);
    }

    fn shut_down(&mut self, at: usize, met: &mut Met) -> Result<(), Mismatch> {
        let waits: String = self
            .entries()
            .filter(|(_, phase, due)| {
                due.is_some() && !matches!(phase, Phase::Ready | Phase::InFlightDirty)
            })
            .map(|(key, _, _)| key)
            .collect();
        let mut dropped = self.queue.shut_down();
        dropped.sort_unstable();
        if !dropped.is_empty() {
            met.note(Difference::WhatWaitsAtAShutdownIsReturned);
        }
        same(self.sequence, at, "returned", waits, String::from_iter(dropped))
    }

    fn abandon(&mut self, key: char) {
        drop(self.held.remove(&key));
        let entry = self.queue.look_up(&key).expect("the key is retried");
        let day = self.clock.now() + Duration::from_secs(24 * 3600);
        let runs = entry.phase == Phase::Ready || entry.due.is_some_and(|due| due <= day);
        self.over = Some(Over::Dropped { key, runs });
    }
}
