//! Compares the state of a queue after each step with the recorded state of client-go's queue.

use std::fmt;
use std::time::Duration;

use requeue_conformance::Step;

use crate::differences::{Difference, Met};
use crate::limiters::delay;
use crate::queue::{Held, Over, Run, key};
use crate::{Mismatch, nanos, same};

/// Values that describe one step. All other values remain valid until they are recorded again.
const OF_A_STEP: [&str; 8] =
    ["got", "ended", "delay", "drained", "queued", "worked", "unfinished", "touched"];

impl<'q, 't> Run<'q, 't> {
    pub(crate) fn gauges_now(&self) -> String {
        let times = self.queue.sample().times;
        format!("{},{}", times.unfinished_work.as_nanos(), times.longest_running.as_nanos())
    }

    /// Computes the same gauges from the deliveries of this test.
    fn gauges_counted(&self) -> String {
        let now = self.clock.now();
        let ages = self.held.values().map(|held| match held {
            Held::Item(_, began) | Held::Ticket(_, began) => now.since(*began).as_nanos(),
        });
        format!("{},{}", ages.clone().sum::<u128>(), ages.max().unwrap_or(0))
    }

    fn check(
        &self,
        at: usize,
        name: &str,
        expected: impl fmt::Display,
        got: impl fmt::Display,
    ) -> Result<(), Mismatch> {
        same(self.sequence, at, name, expected, got)
    }

    /// Returns the last recorded value of `name`.
    fn known(&self, name: &str) -> &'t str {
        self.expected.get(name).copied().unwrap_or("0")
    }

    pub(crate) fn compare(&mut self, at: usize, met: &mut Met) -> Result<(), Mismatch> {
        let step: &'q Step<'t> = &self.sequence.steps[at];
        let theirs: Vec<_> = step.saw.list("got").collect();
        match self.tied.take() {
            Some(tied) => self.compare_tied(at, &theirs, tied, met)?,
            None => self.check(at, "got", theirs.join(","), self.got.join(","))?,
        }
        self.check(at, "ended", step.saw.get("ended").unwrap_or("0"), self.ended)?;
        for (name, value) in step.saw.iter().filter(|(name, _)| !OF_A_STEP.contains(name)) {
            let before = self.expected.insert(name, value).unwrap_or("0");
            if let Some(key_of) = name.strip_prefix("requeues.") {
                self.note_refused(step, key(key_of), value, before);
            }
        }
        self.touched.extend(step.saw.list("touched").map(key));
        let next = self.sequence.steps.get(at + 1).map_or("sleep", |next| next.did);
        if self.style.looks_late
            && !self.flows
            && step.did.starts_with("sleep")
            && !next.starts_with("sleep")
            && self.getters.is_empty()
            && theirs.is_empty()
        {
            return Ok(());
        }
        self.compare_state(at, &theirs, met)
    }

    /// Compares keys with equal due times. requeue delivers them in the order of their arrival. client-go must deliver
    /// the same keys in any order.
    fn compare_tied(
        &mut self,
        at: usize,
        theirs: &[&str],
        [mut arrived, mut came]: [Vec<char>; 2],
        met: &mut Met,
    ) -> Result<(), Mismatch> {
        if let Some(theirs) = theirs.first() {
            self.check(at, "got", arrived[came.len()], self.got.join(","))?;
            came.push(key(theirs));
            if came.len() == arrived.len() {
                if came != arrived {
                    met.note(Difference::EqualDeadlinesComeInOrderOfArrival);
                }
                arrived.sort_unstable();
                came.sort_unstable();
                self.check(
                    at,
                    "all of them",
                    String::from_iter(&came),
                    String::from_iter(&arrived),
                )?;
                (arrived, came) = Default::default();
            }
        }
        self.tied = Some([arrived, came]);
        Ok(())
    }

    /// Counts the failures of adds that client-go's limiter counts and its queue then refuses.
    fn note_refused(&mut self, step: &Step<'_>, key: char, now: &str, before: &str) {
        let [now, before] = [now, before].map(|n| n.parse::<i64>().unwrap());
        let by_key = step.did.starts_with("add_rate_limited")
            || step.did.starts_with("retry") && !self.style.by_item;
        if now == 0 {
            self.refused.remove(&key);
        } else if self.queue.shutting_down() && by_key {
            *self.refused.entry(key).or_default() += now - before;
        }
    }

    fn compare_state(&mut self, at: usize, theirs: &[&str], met: &mut Met) -> Result<(), Mismatch> {
        let step: &'q Step<'t> = &self.sequence.steps[at];

        let queue = self.queue;
        self.check(at, "len", self.known("len"), queue.len())?;
        self.check(at, "depth", self.known("depth"), queue.sample().depth)?;
        self.check(at, "adds", self.known("adds"), queue.totals().enqueued)?;
        self.check(at, "retries", self.known("retries"), queue.totals().retries)?;
        self.check(at, "shut", self.known("shut"), u8::from(queue.shutting_down()))?;
        self.check(at, "with workers", self.held.len(), queue.states().in_flight)?;
        for (key, ticket) in &self.stale {
            let done = queue.done_ticket(ticket.clone());
            self.check(at, &format!("done of a stale ticket of {key}"), false, done)?;
        }
        if !queue.shutting_down() {
            for key in &self.keys {
                let counted = self.failures.get(key).copied().unwrap_or(0);
                self.check(at, &format!("failures of {key}"), counted, queue.failures(key))?;
            }
        }

        if self.style.measured {
            self.compare_metrics(at, theirs, met)?;
        }
        let mut reported = self.seen.reported();
        let touched = String::from_iter(std::mem::take(&mut self.touched));
        if self.style.own_order {
            self.check(
                at,
                "touched",
                touched,
                String::from_iter(std::mem::take(&mut reported.touched)),
            )?;
        }
        let asked = reported.delay;
        drop(reported);

        if let Some(theirs) = step.saw.get("delay") {
            match asked {
                Some(ours) if !self.was_refused => {
                    self.check(at, "delay", theirs, delay(ours, met))?;
                }
                // At this point, requeue's limiter has recorded fewer failures. The delay has no effect.
                Some(_) => {}
                None => {
                    self.check(at, "shut", "1", self.known("shut"))?;
                    self.was_refused = true;
                    met.note(Difference::RefusedAddIsNoFailure);
                }
            }
        }
        for &key in &self.keys {
            let theirs: i64 = self.known(&format!("requeues.{key}")).parse().unwrap();
            let counted = theirs;
            let mut theirs = counted - self.refused.get(&key).unwrap_or(&0);
            if theirs > 0 && queue.shutting_down() && queue.failures(&key) == 0 {
                // The run that would have followed the failures was dropped.
                self.refused.insert(key, counted);
                theirs = 0;
                met.note(Difference::DroppedKeyIsForgotten);
            }
            if self.sequence.with.get("layer") == Some("limited") {
                let ours = queue.num_requeues(&key);
                self.check(at, &format!("requeues.{key}"), theirs, ours)?;
            }
        }
        self.drains.compare(self.sequence, at, queue, met)
    }

    fn compare_metrics(
        &mut self,
        at: usize,
        theirs: &[&str],
        met: &mut Met,
    ) -> Result<(), Mismatch> {
        let step: &'q Step<'t> = &self.sequence.steps[at];
        let joined = |all: &[Duration]| {
            all.iter().map(|d| d.as_nanos().to_string()).collect::<Vec<_>>().join(",")
        };
        self.check(at, "recounted", self.gauges_counted(), self.gauges_now())?;
        if self.gauges.is_some_and(|gauges| gauges != self.gauges_now()) {
            met.note(Difference::GaugesAreRightWhenAsked);
        }

        let mut queued: Vec<Duration> = step.saw.list("queued").map(nanos).collect();
        for (queued, key_of) in queued.iter_mut().zip(theirs) {
            if let Some(late) = self.late.remove(&key(key_of)) {
                *queued -= late;
                met.note(Difference::QueuedFromWhenItWasSeenDue);
            }
        }
        let mut reported = self.seen.reported();
        self.check(at, "hooked depth", self.known("depth"), reported.depth)?;
        self.check(at, "hooked adds", self.known("adds"), reported.adds)?;
        self.check(at, "hooked retries", self.known("retries"), reported.retries)?;
        self.check(at, "queued", joined(&queued), joined(&std::mem::take(&mut reported.queued)))?;
        let worked = step.saw.get("worked").unwrap_or_default().to_owned();
        self.check(at, "worked", worked, joined(&std::mem::take(&mut reported.worked)))?;
        Ok(())
    }

    pub(crate) fn compare_end(&mut self, at: usize, met: &mut Met) -> Result<(), Mismatch> {
        let step: &'q Step<'t> = &self.sequence.steps[at];
        let mut theirs: Vec<_> = step.saw.list("got").map(|got| key(got).to_string()).collect();
        match self.over {
            Some(Over::Done(key)) if step.did.starts_with("done") => {
                let theirs: usize = step.saw.get("len").unwrap().parse().unwrap();
                met.note(Difference::DoneNeedsADelivery);
                same(
                    self.sequence,
                    at,
                    &format!("len without a second {key}"),
                    theirs - 1,
                    self.queue.len(),
                )
            }
            Some(Over::Done(key)) => {
                let last = theirs.iter().rposition(|got| *got == key.to_string()).unwrap();
                theirs.remove(last);
                same(self.sequence, at, "got", theirs.join(","), self.got.join(","))
            }
            Some(Over::Dropped { key, runs }) if step.did == "take_all" => {
                if runs {
                    theirs.push(key.to_string());
                    met.note(Difference::DroppedItemHasFailed);
                }
                theirs.sort_unstable();
                self.got.sort_unstable();
                same(self.sequence, at, "got, in any order", theirs.join(","), self.got.join(","))
            }
            _ => Ok(()),
        }
    }
}
