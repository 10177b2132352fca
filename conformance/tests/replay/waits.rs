//! Replays backoffs, the managers that reset them, and the loops that use them.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use requeue::Time;
use requeue::clock::{FakeClock, sleep_until};
use requeue::wait::{
    Backoff, BackoffManager, Error, ExponentialBackoffManager, JitterSource,
    JitteredBackoffManager, Period, Polling, backoff_until, exponential_backoff_until,
    jitter_until, poll_until,
};
use requeue_conformance::{Sequence, call};

use crate::differences::{Difference, Met};
use crate::{Mismatch, nanos, same};

const LONGEST: Duration = Duration::from_nanos(i64::MAX as u64);

fn backoff(text: &str) -> Backoff {
    let (name, args) = call(text);
    assert_eq!(name, "backoff", "{text}");
    Backoff {
        duration: nanos(args[0]),
        factor: args[1].parse().unwrap(),
        jitter: args[2].parse().unwrap(),
        steps: args[3].parse().unwrap(),
        cap: nanos(args[4]),
    }
}

pub(crate) fn backoffs(sequence: &Sequence<'_>, met: &mut Met) -> Result<(), Mismatch> {
    for (at, step) in sequence.steps.iter().enumerate() {
        let mut ours = backoff(step.did);
        let mut source = JitterSource::new(sequence.seed);
        for theirs in step.saw.list("steps") {
            let (base, jitter) = (ours.duration, ours.jitter);
            let delay = ours.step(&mut source);
            if theirs == "overflow" {
                let saturates = match ours.cap.is_zero() {
                    true => ours.duration > LONGEST,
                    false => ours.duration == ours.cap,
                };
                same(sequence, at, "stays the longest", true, saturates)?;
                met.note(Difference::BackoffSaturates);
                continue;
            }
            let shown = if jitter > 0.0 {
                let within = (base..=base.saturating_add(base.mul_f64(jitter))).contains(&delay);
                same(
                    sequence,
                    at,
                    &format!("{delay:?} of {base:?} within the jitter"),
                    true,
                    within,
                )?;
                base
            } else {
                delay
            };
            let ours = format!("{}/{}/{}", shown.as_nanos(), ours.duration.as_nanos(), ours.steps);
            same(sequence, at, "step", theirs, ours)?;
        }
    }
    Ok(())
}

pub(crate) fn managers(sequence: &Sequence<'_>, _met: &mut Met) -> Result<(), Mismatch> {
    for (at, step) in sequence.steps.iter().enumerate() {
        let source = JitterSource::new(sequence.seed);
        let mut now = Time::ZERO;
        let (name, args) = call(step.did);
        let mut manager: Box<dyn BackoffManager> = match name {
            "delay_with_reset" => {
                Box::new(backoff(args[1]).delay_with_reset(nanos(args[0]), now, source))
            }
            "exponential_manager" => Box::new(ExponentialBackoffManager::new(
                nanos(args[0]),
                nanos(args[1]),
                nanos(args[2]),
                args[3].parse().unwrap(),
                0.0,
                source,
            )),
            "jittered_manager" => Box::new(JitteredBackoffManager::new(
                nanos(args[0]),
                args[1].parse().unwrap(),
                source,
            )),
            _ => panic!("a manager of no known kind: {}", step.line),
        };
        for theirs in step.saw.list("delays") {
            let by = theirs.split('/').next().unwrap();
            now = now + nanos(by);
            let ours = format!("{by}/{}", manager.backoff(now).as_nanos());
            same(sequence, at, "delay after a time", theirs, ours)?;
        }
    }
    Ok(())
}

/// An error of the condition.
#[derive(PartialEq, Debug)]
struct Fails;

/// The runs of a loop's function: their durations, and the result of the last one.
struct Script<'a> {
    clock: &'a FakeClock,
    began: Time,
    took: Vec<Duration>,
    last: &'a str,
    starts: RefCell<Vec<Duration>>,
    stopped: Cell<bool>,
}

impl Script<'_> {
    async fn run(&self) -> Result<bool, Fails> {
        let now = self.clock.now();
        let n = self.starts.borrow().len();
        self.starts.borrow_mut().push(now.since(self.began));
        sleep_until(self.clock, now + self.took[n % self.took.len()]).await;
        match self.last {
            _ if n + 1 < self.took.len() => Ok(false),
            "true" => Ok(true),
            "error" => Err(Fails),
            _ => {
                self.stopped.set(true);
                Ok(false)
            }
        }
    }

    /// Returns true if a try, except for the last, took longer than the interval.
    fn was_late(&self, interval: Duration) -> bool {
        let starts = self.starts.borrow();
        let tries = starts.len().saturating_sub(1);
        (0..tries).any(|n| self.took[n % self.took.len()] > interval)
    }
}

pub(crate) fn loops(sequence: &Sequence<'_>, met: &mut Met) -> Result<(), Mismatch> {
    for (at, step) in sequence.steps.iter().enumerate() {
        let clock = FakeClock::new();
        let mut words = step.did.split(' ');
        let (name, args) = call(words.next().unwrap());
        let with = requeue_conformance::Fields::of(step.did);
        let script = Script {
            clock: &clock,
            began: clock.now(),
            took: with.list("took").map(nanos).collect(),
            last: with.get("last").unwrap(),
            starts: RefCell::default(),
            stopped: Cell::new(false),
        };
        let result = one_loop(&script, name, &args, nanos(with.get("stop").unwrap()));
        let ours = [
            script
                .starts
                .borrow()
                .iter()
                .map(|d| d.as_nanos().to_string())
                .collect::<Vec<_>>()
                .join(","),
            clock.now().since(script.began).as_nanos().to_string(),
            result.to_owned(),
        ];
        let theirs = ["starts", "end", "result"].map(|name| step.saw.get(name).unwrap().to_owned());
        if name == "poll" && ours != theirs {
            let [interval, timeout] = [nanos(args[0]), nanos(args[1])];
            let stop = nanos(with.get("stop").unwrap());
            let promised = polled_here(&script, [interval, timeout, stop], args[2] == "true");
            same(sequence, at, "starts, end and result", promised.join(" "), ours.join(" "))?;
            if ours[0] != theirs[0] {
                same(sequence, at, "a try was late", true, script.was_late(interval))?;
                met.note(Difference::PollCountsFromItsLastTry);
            } else {
                // Both happened during one try, the timeout first.
                let first = Duration::ZERO < timeout && timeout < stop.min(nanos(&ours[1]));
                same(sequence, at, "the time was up first", true, first)?;
                same(sequence, at, "end", &theirs[1], &ours[1])?;
                same(
                    sequence,
                    at,
                    "result",
                    "timeout cancelled",
                    format!("{} {}", theirs[2], ours[2]),
                )?;
                met.note(Difference::StopWinsOverATimeout);
            }
            continue;
        }
        for (name, (theirs, ours)) in
            ["starts", "end", "result"].iter().zip(theirs.iter().zip(&ours))
        {
            same(sequence, at, name, theirs, ours)?;
        }
    }
    Ok(())
}

/// Computes the promised behaviour of `poll_until`. Each interval counts from the start of a try,
/// whereas client-go's ticker is independent of the tries. A stop takes precedence over a timeout.
fn polled_here(
    script: &Script<'_>,
    [interval, timeout, stop]: [Duration; 3],
    immediate: bool,
) -> [String; 3] {
    let deadline = if timeout.is_zero() { Duration::MAX } else { timeout };
    let (mut starts, mut now, mut next) = (Vec::new(), Duration::ZERO, interval);
    let mut stop = stop;
    let mut tries = immediate;
    let result = loop {
        if tries {
            let n = starts.len();
            starts.push(now.as_nanos().to_string());
            next = now + interval;
            now += script.took[n % script.took.len()];
            match script.last {
                _ if n + 1 < script.took.len() => {}
                "true" => break "ok",
                "error" => break "error",
                _ => stop = stop.min(now),
            }
        }
        tries = true;
        let then = now.max(next.min(deadline));
        if stop <= then {
            now = now.max(stop);
            break "cancelled";
        }
        now = then;
        if deadline <= now {
            break "timeout";
        }
    };
    [starts.join(","), now.as_nanos().to_string(), result.to_owned()]
}

fn one_loop(script: &Script<'_>, name: &str, args: &[&str], stop: Duration) -> &'static str {
    let (clock, source) = (script.clock, JitterSource::new(1));
    let at = script.began + stop;
    let stop = async {
        let mut time = pin!(sleep_until(clock, at));
        poll_fn(|cx| match script.stopped.get() {
            true => Poll::Ready(()),
            false => time.as_mut().poll(cx),
        })
        .await;
    };
    let truth = |arg: &str| arg == "true";
    let period = |arg| if truth(arg) { Period::Sliding } else { Period::NonSliding };
    let beat = async || _ = script.run().await;
    let condition = || script.run();
    let polled = match name {
        "jitter_until" => {
            clock.run(jitter_until(clock, nanos(args[0]), 0.0, period(args[1]), stop, beat));
            Ok(())
        }
        "backoff_until" => {
            let hour = Duration::from_secs(3600);
            let (initial, max, factor) = (nanos(args[0]), nanos(args[1]), args[2].parse().unwrap());
            let manager = ExponentialBackoffManager::new(initial, max, hour, factor, 0.0, source);
            clock.run(backoff_until(clock, manager, period(args[3]), stop, beat));
            Ok(())
        }
        "poll" => {
            let mut polling = Polling::every(nanos(args[0]));
            if args[1] != "0" {
                polling = polling.timeout(nanos(args[1]));
            }
            if truth(args[2]) {
                polling = polling.immediate();
            }
            clock.run(poll_until(clock, polling, stop, condition))
        }
        "delays_until" => {
            let mut polling = Polling::with(backoff(args[0]).delay_func(source));
            if truth(args[1]) {
                polling = polling.immediate();
            }
            if truth(args[2]) {
                polling = polling.sliding();
            }
            clock.run(poll_until(clock, polling, stop, condition))
        }
        "exponential_backoff" => {
            let backoff = backoff(args[0]);
            clock.run(exponential_backoff_until(clock, backoff, Time::NEVER, stop, condition))
        }
        _ => panic!("a loop of no known kind: {name}"),
    };
    match polled {
        Ok(()) => "ok",
        Err(Error::Condition(Fails)) => "error",
        Err(Error::Cancelled) => "cancelled",
        Err(Error::Timeout) => "timeout",
    }
}
