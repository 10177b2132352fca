//! What is seen of a queue after a step, against what was seen of client-go's.

use std::time::Duration;

use requeue_conformance::Step;

use crate::differences::{Difference, Met};
use crate::limiters::delay;
use crate::queue::{Held, Over, Run, key};
use crate::{Mismatch, nanos, same};

impl<'q, 't> Run<'q, 't> {
    pub(crate) fn gauges_now(&self) -> String {
        let [unfinished, longest] = [self.queue.unfinished_work(), self.queue.longest_running()];
        format!("{},{}", unfinished.as_nanos(), longest.as_nanos())
    }

    /// The same from what we know ourselves.
    fn gauges_counted(&self) -> String {
        let now = self.clock.now();
        let ages = self.held.values().map(|held| match held {
            Held::Item(_, began) | Held::Ticket(_, began) => now.since(*began).as_nanos(),
        });
        format!("{},{}", ages.clone().sum::<u128>(), ages.max().unwrap_or(0))
    }

    pub(crate) fn compare(&mut self, at: usize, met: &mut Met) -> Result<(), Mismatch> {
        let step: &'q Step<'t> = &self.sequence.steps[at];
        let check = |name: &str, expected: String, got: String| {
            same(self.sequence, at, name, expected, got)
        };
        let text = |name: &str| step.saw.get(name).unwrap_or_default().to_owned();

        let theirs: Vec<_> = step.saw.list("got").collect();
        match &mut self.tied {
            Some([arrived, came]) if !theirs.is_empty() => {
                came.push(key(theirs[0]));
                let next = arrived[came.len() - 1].to_string();
                check("got", next, self.got.join(","))?;
                if came.len() == arrived.len() {
                    if came != arrived {
                        met.note(Difference::EqualDeadlinesComeInOrderOfArrival);
                    }
                    let [mut a, mut b] = [std::mem::take(arrived), std::mem::take(came)];
                    a.sort_unstable();
                    b.sort_unstable();
                    check("all of them", String::from_iter(b), String::from_iter(a))?;
                }
            }
            _ => check("got", theirs.join(","), self.got.join(","))?,
        }
        let ended = text("ended");
        check("ended", if ended.is_empty() { "0".into() } else { ended }, self.ended.to_string())?;

        for (name, value) in step.saw.iter() {
            if !["got", "ended", "delay", "drained", "queued", "worked", "unfinished", "touched"]
                .contains(&name)
            {
                let before = self.expected.insert(name, value).unwrap_or("0");
                if let Some(key_of) = name.strip_prefix("requeues.") {
                    self.note_refused(step, key(key_of), value, before);
                }
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

    /// client-go's limiter counts what the queue then refuses.
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
        let check = |name: &str, expected: String, got: String| {
            same(self.sequence, at, name, expected, got)
        };
        let known = |name: &str| (*self.expected.get(name).unwrap_or(&"0")).to_owned();
        let joined = |all: &[Duration]| {
            all.iter().map(|d| d.as_nanos().to_string()).collect::<Vec<_>>().join(",")
        };

        // Counted by the queue before it is asked for anything that would make it look.
        let queue = self.queue;
        check("len", known("len"), queue.len().to_string())?;
        check("depth", known("depth"), queue.depth().to_string())?;
        check("adds", known("adds"), queue.counts().adds.to_string())?;
        check("retries", known("retries"), queue.counts().retries.to_string())?;
        check("shut", known("shut"), u8::from(queue.shutting_down()).to_string())?;
        check("with workers", self.held.len().to_string(), queue.processing().to_string())?;
        check("recounted", self.gauges_counted(), self.gauges_now())?;
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
        let mut told = self.seen.told();
        check("hooked depth", known("depth"), told.depth.to_string())?;
        check("hooked adds", known("adds"), told.adds.to_string())?;
        check("hooked retries", known("retries"), told.retries.to_string())?;
        check("queued", joined(&queued), joined(&std::mem::take(&mut told.queued)))?;
        let worked = step.saw.get("worked").unwrap_or_default().to_owned();
        check("worked", worked, joined(&std::mem::take(&mut told.worked)))?;
        let touched = String::from_iter(std::mem::take(&mut self.touched));
        if self.style.own_order {
            check("touched", touched, String::from_iter(std::mem::take(&mut told.touched)))?;
        }
        let asked = told.delay;
        drop(told);

        if let Some(theirs) = step.saw.get("delay") {
            match asked {
                Some(ours) if !self.was_refused => {
                    check("delay", theirs.to_owned(), delay(ours, met))?;
                }
                // It has counted less by now. Nothing comes of the delay.
                Some(_) => {}
                None => {
                    check("shut", "1".to_owned(), known("shut"))?;
                    self.was_refused = true;
                    met.note(Difference::RefusedAddIsNoFailure);
                }
            }
        }
        for &key in &self.keys {
            let theirs: i64 = known(&format!("requeues.{key}")).parse().unwrap();
            let theirs = theirs - self.refused.get(&key).unwrap_or(&0);
            if self.sequence.with.get("layer") == Some("limited") {
                let ours = queue.num_requeues(&key).to_string();
                check(&format!("requeues.{key}"), theirs.to_string(), ours)?;
            }
        }
        self.drains.compare(self.sequence, at, queue, met)
    }

    pub(crate) fn compare_end(&mut self, at: usize, met: &mut Met) -> Result<(), Mismatch> {
        let step: &'q Step<'t> = &self.sequence.steps[at];
        let mut theirs: Vec<_> = step.saw.list("got").map(|got| key(got).to_string()).collect();
        match self.over {
            Some(Over::Done(key)) if step.did.starts_with("done") => {
                let theirs: usize = step.saw.get("len").unwrap().parse().unwrap();
                met.note(Difference::DoneNeedsAHandOut);
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
