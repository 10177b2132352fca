//! Replays limiters without a queue.

use std::time::Duration;

use requeue::Time;
use requeue::clock::FakeClock;
use requeue::limiter::RateLimiter;
use requeue::limiter::{
    Bucket, ExponentialFailure, FastSlow, MaxOf, WithMaxWait, default_controller,
    default_item_based,
};
use requeue_conformance::{Sequence, call};

use crate::differences::{Difference, Met};
use crate::{Mismatch, nanos, same};

pub(crate) type Boxed = Box<dyn RateLimiter<char>>;

/// Creates a limiter from its name and parameters.
pub(crate) fn limiter(text: &str) -> Boxed {
    let (name, args) = call(text);
    let number = |at: usize| args[at].parse::<u32>().unwrap();
    match name {
        "exponential" => Box::new(ExponentialFailure::new(nanos(args[0]), nanos(args[1]))),
        "fast_slow" => Box::new(FastSlow::new(nanos(args[0]), nanos(args[1]), number(2))),
        "bucket" => Box::new(Bucket::new(args[0].parse().unwrap(), number(1))),
        "default_item_based" => Box::new(default_item_based()),
        "default_controller" => Box::new(default_controller()),
        "max_of" => Box::new(MaxOf::new(args.iter().map(|arg| limiter(arg)).collect())),
        "max_wait" => Box::new(WithMaxWait::new(Whole(limiter(args[1])), nanos(args[0]))),
        _ => panic!("a limiter of no known kind: {text}"),
    }
}

/// A wrapper that implements the trait for a boxed limiter.
struct Whole(Boxed);

impl RateLimiter<char> for Whole {
    fn delay(&mut self, key: &char, now: Time) -> Duration {
        self.0.delay(key, now)
    }

    fn forget(&mut self, key: &char) {
        self.0.forget(key);
    }

    fn num_requeues(&self, key: &char) -> u32 {
        self.0.num_requeues(key)
    }
}

/// Formats a delay as in client-go, where the longest delay is 292 years.
pub(crate) fn delay(ours: Duration, met: &mut Met) -> String {
    const LONGEST: u128 = i64::MAX as u128;
    if ours.as_nanos() > LONGEST {
        met.note(Difference::LongestDelayIsNever);
    }
    ours.as_nanos().min(LONGEST).to_string()
}

pub(crate) fn replay(sequence: &Sequence<'_>, met: &mut Met) -> Result<(), Mismatch> {
    let mut limiter = limiter(sequence.with.get("limiter").unwrap());
    let clock = FakeClock::new();
    for (at, step) in sequence.steps.iter().enumerate() {
        let mut words = step.did.split(' ');
        let (what, arg) = (words.next().unwrap(), words.next().unwrap());
        if what == "sleep" {
            clock.advance(nanos(arg));
            continue;
        }
        let key = arg.chars().next().unwrap();
        if what == "when" {
            let ours = delay(limiter.delay(&key, clock.now()), met);
            same(sequence, at, "delay", step.saw.get("delay").unwrap(), &ours)?;
        } else {
            limiter.forget(&key);
        }
        let requeues = limiter.num_requeues(&key).to_string();
        same(sequence, at, "requeues", step.saw.get("requeues").unwrap(), &requeues)?;
    }
    Ok(())
}
