//! The `Until` family, compared with apimachinery's `wait_test.go`.
//!
//! A loop survives a panic inside `f`, so no assertion is inside `f`.
#![cfg(feature = "wait")]

mod wait_support;

use std::future::{Ready, pending, poll_fn, ready};
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use requeue::Time;
use requeue::clock::{Clock, FakeClock, SystemClock, sleep_until};
use requeue::wait::{
    self, Backoff, BackoffManager, JitteredBackoffManager, Period, backoff_until, jitter_source,
    jitter_until, non_sliding_until, until,
};
use wait_support::Stop;

const SECOND: Duration = Duration::from_secs(1);

/// `TestUntil`, `TestUntilWithContext`.
#[test]
fn until_never_runs_when_stopped_before_and_ends_when_stopped_later() {
    let (clock, stopped, mut runs) = (FakeClock::new(), Stop::stopped_before(), 0);
    clock.run(until(&clock, Duration::ZERO, stopped.stopped(), || count(&mut runs)));
    assert_eq!(runs, 0);

    let stop = Stop::default();
    clock.run(until(&clock, Duration::ZERO, stop.stopped(), || {
        runs += 1;
        stop.stop();
        async {}
    }));
    assert_eq!(runs, 1);
}

/// `TestNonSlidingUntil`, `TestNonSlidingUntilWithContext`.
#[test]
fn non_sliding_until_never_runs_when_stopped_before_and_ends_when_stopped_later() {
    let (clock, stopped, mut runs) = (FakeClock::new(), Stop::stopped_before(), 0);
    clock.run(non_sliding_until(&clock, Duration::ZERO, stopped.stopped(), || count(&mut runs)));
    assert_eq!(runs, 0);

    let stop = Stop::default();
    clock.run(non_sliding_until(&clock, Duration::ZERO, stop.stopped(), || {
        runs += 1;
        stop.stop();
        async {}
    }));
    assert_eq!(runs, 1);
}

/// `TestJitterUntil`, `TestJitterUntilWithContext`.
#[test]
fn jitter_until_never_runs_when_stopped_before_and_ends_when_stopped_later() {
    let (clock, stopped, mut runs) = (FakeClock::new(), Stop::stopped_before().stopped(), 0);
    clock.run(jitter_until(&clock, Duration::ZERO, 1.0, Period::Sliding, stopped, || {
        count(&mut runs)
    }));
    assert_eq!(runs, 0);

    let stop = Stop::default();
    clock.run(jitter_until(&clock, Duration::ZERO, 1.0, Period::Sliding, stop.stopped(), || {
        runs += 1;
        stop.stop();
        async {}
    }));
    assert_eq!(runs, 1);
}

/// `TestUntilReturnsImmediately`.
#[test]
fn until_returns_at_once_when_stopped_inside_of_f() {
    let (clock, stop, mut runs) = (FakeClock::new(), Stop::default(), 0);
    let start = clock.now();
    clock.run(until(&clock, 30 * SECOND, stop.stopped(), || {
        runs += 1;
        stop.stop();
        async {}
    }));
    assert_eq!((runs, clock.now()), (1, start));
}

/// `TestJitterUntilReturnsImmediately`.
#[test]
fn jitter_until_returns_at_once_when_stopped_inside_of_f() {
    let (clock, stop) = (FakeClock::new(), Stop::default());
    let start = clock.now();
    clock.run(jitter_until(
        &clock,
        30 * SECOND,
        1.0,
        Period::Sliding,
        stop.stopped(),
        async || stop.stop(),
    ));
    assert_eq!(clock.now(), start);
}

/// `TestJitterUntilNegativeFactor`.
#[test]
fn a_negative_jitter_factor_is_a_fixed_period() {
    let (clock, stop, mut runs) = (FakeClock::new(), Stop::default(), 0);
    let start = clock.now();
    clock.run(jitter_until(&clock, SECOND, -30.0, Period::Sliding, stop.stopped(), || {
        runs += 1;
        if runs == 2 {
            stop.stop();
        }
        async {}
    }));
    assert_eq!((runs, clock.now().since(start)), (2, SECOND));
}

#[test]
fn a_jittered_period_is_drawn_anew_for_each_round() {
    let (clock, stop) = (FakeClock::new(), Stop::default());
    let mut starts = Vec::new();
    clock.run(jitter_until(&clock, SECOND, 0.5, Period::Sliding, stop.stopped(), || {
        starts.push(clock.now());
        if starts.len() == 20 {
            stop.stop();
        }
        async {}
    }));
    let periods: Vec<_> = starts.windows(2).map(|pair| pair[1].since(pair[0])).collect();
    assert!(periods.iter().all(|period| (SECOND..SECOND * 3 / 2).contains(period)), "{periods:?}");
    assert!(periods.iter().any(|period| period != &periods[0]), "{periods:?}");
}

/// A run that only increments `runs`.
fn count(runs: &mut u32) -> Ready<()> {
    *runs += 1;
    ready(())
}

/// Returns the start times of the runs of a loop. The period is 100 ms, and each run takes `takes`
/// ms.
fn starts(sliding: Period, takes: u64) -> Vec<u128> {
    let ms = Duration::from_millis;
    let clock = FakeClock::new();
    let start = clock.now();
    let manager = JitteredBackoffManager::new(ms(100), 0.0, jitter_source());
    let stop = sleep_until(&clock, start + ms(391));
    let mut starts = Vec::new();
    clock.run(backoff_until(&clock, manager, sliding, stop, || {
        starts.push(clock.now().since(start).as_millis());
        sleep_until(&clock, clock.now() + ms(takes))
    }));
    starts
}

#[test]
fn a_sliding_period_starts_when_f_ends() {
    assert_eq!(starts(Period::Sliding, 30), [0, 130, 260, 390]);
}

#[test]
fn a_period_that_does_not_slide_starts_when_f_does() {
    assert_eq!(starts(Period::NonSliding, 30), [0, 100, 200, 300]);
}

#[test]
fn a_run_longer_than_the_period_is_followed_by_the_next_at_once() {
    assert_eq!(starts(Period::NonSliding, 150), [0, 150, 300]);
}

#[test]
fn a_stop_that_comes_together_with_the_timer_wins() {
    for sliding in [Period::Sliding, Period::NonSliding] {
        let (clock, mut runs) = (FakeClock::new(), 0);
        let stop = sleep_until(&clock, clock.now() + 2 * SECOND);
        clock.run(jitter_until(&clock, SECOND, 0.0, sliding, stop, || count(&mut runs)));
        assert_eq!(runs, 2, "at 0 and 1 s, and not at 2 s");
    }
}

/// The stop comes while the loop is late, after its timer has fired.
#[test]
fn a_stop_is_checked_before_every_run() {
    let (clock, stop, mut runs) = (FakeClock::new(), Stop::default(), 0);
    {
        let mut looped = pin!(until(&clock, SECOND, stop.stopped(), || count(&mut runs)));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(looped.as_mut().poll(&mut cx).is_pending());
        clock.advance(10 * SECOND);
        stop.stop();
        assert!(looped.as_mut().poll(&mut cx).is_ready());
    }
    assert_eq!(runs, 1);
}

/// `TestContextForChannel`.
#[test]
fn one_stop_ends_many_loops() {
    let (clock, stop) = (FakeClock::new(), Stop::default());
    let loops = (0..3).map(|_| Box::pin(until(&clock, SECOND, stop.stopped(), async || {})));
    let mut loops: Vec<_> = loops.collect();
    let mut cx = Context::from_waker(Waker::noop());
    assert!(loops.iter_mut().all(|looped| looped.as_mut().poll(&mut cx).is_pending()));
    stop.stop();
    assert!(loops.iter_mut().all(|looped| looped.as_mut().poll(&mut cx).is_ready()));
}

#[test]
fn a_loop_without_delays_lets_others_run() {
    let (clock, stop) = (FakeClock::new(), Stop::default());
    let (mut runs, mut turns) = (0, 0);
    {
        let mut looped = pin!(until(&clock, Duration::ZERO, stop.stopped(), || count(&mut runs)));
        clock.run(poll_fn(|cx| {
            turns += 1;
            if turns == 10 {
                stop.stop();
            }
            looped.as_mut().poll(cx)
        }));
    }
    assert_eq!((runs, turns), (9, 10));
}

#[test]
fn a_loop_has_one_timer_and_leaves_none_behind() {
    let (clock, mut armed_in_f) = (FakeClock::new(), Vec::new());
    {
        let mut looped = pin!(until(&clock, SECOND, pending::<()>(), || {
            armed_in_f.push(clock.armed());
            async {}
        }));
        for _ in 0..3 {
            let mut cx = Context::from_waker(Waker::noop());
            assert!(looped.as_mut().poll(&mut cx).is_pending());
            assert_eq!(clock.armed(), 1);
            clock.advance(SECOND);
        }
    }
    assert_eq!((armed_in_f, clock.armed()), (vec![0; 3], 0));
}

#[test]
fn a_period_without_end_waits_for_the_stop() {
    let (clock, mut runs) = (FakeClock::new(), 0);
    let stop = sleep_until(&clock, clock.now() + SECOND);
    clock.run(until(&clock, Duration::MAX, stop, || count(&mut runs)));
    assert_eq!(runs, 1);
}

#[test]
fn the_manager_is_asked_after_f_when_sliding_and_before_it_when_not() {
    struct Noted<'a>(&'a std::cell::RefCell<Vec<&'static str>>);
    impl BackoffManager for Noted<'_> {
        fn backoff(&mut self, _now: Time) -> Duration {
            self.0.borrow_mut().push("manager");
            SECOND
        }
    }
    let cases = [(Period::Sliding, ["f", "manager"]), (Period::NonSliding, ["manager", "f"])];
    for (sliding, expected) in cases {
        let (clock, stop, log) = (FakeClock::new(), Stop::default(), Default::default());
        clock.run(backoff_until(&clock, Noted(&log), sliding, stop.stopped(), async || {
            log.borrow_mut().push("f");
            stop.stop();
        }));
        assert_eq!(log.into_inner(), expected);
    }
}

/// Returns the delays of a loop with `manager`, measured by the clock of the loop.
fn delays(manager: impl BackoffManager, rounds: usize) -> Vec<Duration> {
    let (clock, stop, mut starts) = (FakeClock::new(), Stop::default(), Vec::new());
    clock.run(backoff_until(&clock, manager, Period::Sliding, stop.stopped(), || {
        starts.push(clock.now());
        if starts.len() > rounds {
            stop.stop();
        }
        async {}
    }));
    starts.windows(2).map(|pair| pair[1].since(pair[0])).collect()
}

/// `TestJitterBackoffManagerWithRealClock`.
#[test]
fn a_jittered_backoff_manager_without_jitter_waits_its_period() {
    let ms = Duration::from_millis;
    assert_eq!(delays(JitteredBackoffManager::new(ms(1), 0.0, jitter_source()), 5), [ms(1); 5]);
}

/// `TestExponentialBackoffManagerWithRealClock`.
#[test]
fn an_exponential_backoff_manager_waits_longer_and_longer() {
    let (ms, hour) = (Duration::from_millis, Duration::from_secs(3600));
    let source = jitter_source();
    let manager = wait::ExponentialBackoffManager::new(ms(1), ms(10), hour, 2.0, 0.0, source);
    assert_eq!(delays(manager, 7), [1, 2, 4, 8, 10, 10, 10].map(ms));
}

/// `TestBackoffDelayWithResetWithRealClockJitter`.
#[test]
fn a_backoff_that_is_always_reset_waits_its_duration() {
    let ms = Duration::from_millis;
    let backoff = Backoff { duration: ms(1), ..Backoff::default() };
    let manager = backoff.delay_with_reset(Duration::ZERO, Time::ZERO, jitter_source());
    assert_eq!(delays(manager, 5), [ms(1); 5]);
}

/// `TestBackoffDelayWithResetWithRealClockExponential`.
#[test]
fn a_backoff_with_a_far_reset_waits_longer_and_longer() {
    let (ms, hour) = (Duration::from_millis, Duration::from_secs(3600));
    let backoff = Backoff { duration: ms(1), cap: ms(10), factor: 2.0, jitter: 0.0, steps: 10 };
    let manager = backoff.delay_with_reset(hour, FakeClock::new().now(), jitter_source());
    assert_eq!(delays(manager, 7), [1, 2, 4, 8, 10, 10, 10].map(ms));
}

#[test]
fn loops_are_send_where_their_inputs_are_whatever_f_borrows() {
    fn check<T: Send>(_: T) {}
    let (clock, stop, mut runs) = (FakeClock::new(), Stop::default(), 0);
    check(until(&clock, SECOND, stop.stopped(), || count(&mut runs)));
    check(wait::forever(&clock as &dyn Clock, SECOND, async || assert!(clock.armed() < 2)));
    check(async move {
        let (mut runs, clock) = (String::new(), &clock);
        non_sliding_until(clock, SECOND, stop.stopped(), || {
            runs.push('.');
            async { sleep_until(clock, clock.now() + SECOND).await }
        })
        .await;
    });
    check(async {
        let clock = SystemClock;
        let mut backoff = Backoff::default();
        let polled = wait::exponential_backoff(&clock, backoff, || {
            backoff.steps += 1;
            async {
                sleep_until(&clock, clock.now()).await;
                Err::<bool, ()>(())
            }
        });
        polled.await
    });
}

#[cfg(feature = "tokio")]
#[tokio::test(start_paused = true)]
async fn a_loop_can_be_spawned_and_obeys_a_paused_runtime() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    let clock = requeue::clock::TokioClock::current();
    let runs = Arc::new(AtomicU32::new(0));
    let looped = tokio::spawn({
        let (clock, runs) = (clock.clone(), Arc::clone(&runs));
        async move {
            let stop = tokio::time::sleep(SECOND * 3600);
            until(&clock, SECOND, stop, async || {
                runs.fetch_add(1, Ordering::Relaxed);
                sleep_until(&clock, clock.now() + SECOND).await;
            })
            .await;
        }
    });
    assert!(looped.await.is_ok());
    assert_eq!(runs.load(Ordering::Relaxed), 1800);
}

/// The run never completes. Dropping the loop disarms the alarm for which the run waits.
#[test]
fn dropping_a_loop_drops_the_run_it_is_in() {
    let clock = FakeClock::new();
    {
        let run = async || sleep_until(&clock, clock.now() + SECOND).await;
        let mut looped = pin!(until(&clock, SECOND, pending::<()>(), run));
        let polled = looped.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(polled, Poll::Pending));
        assert_eq!(clock.armed(), 1);
    }
    assert_eq!(clock.armed(), 0);
}
