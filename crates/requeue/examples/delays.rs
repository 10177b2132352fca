//! Delays and backoff on a fake clock. Minutes pass immediately, and each run prints the same
//! output.

use std::time::Duration;

use requeue::clock::FakeClock;
use requeue::limiter::ExponentialFailure;
use requeue::{Add, Merge, Queue};

const SECOND: Duration = Duration::from_secs(1);

fn main() -> Result<(), requeue::BuildError> {
    let clock = FakeClock::new();
    let start = clock.now();
    let queue = Queue::builder()
        .clock(clock.clone())
        .limiter(ExponentialFailure::new(10 * SECOND, 300 * SECOND))
        .build()?;
    let say = |what: &str| println!("{:>4} s  {what}", clock.now().since(start).as_secs());

    queue.add_after("report", 60 * SECOND);
    queue.add_after("report", 20 * SECOND);
    say(&format!("report, added for 60 s and for 20 s: {}", queue.explain("report")));
    queue.add_with("typing", Add::after(5 * SECOND).merge(Merge::Latest));
    clock.advance(4 * SECOND);
    queue.add_with("typing", Add::after(5 * SECOND).merge(Merge::Latest));
    say(&format!("typing, added twice, each time for 5 s later: {}", queue.explain("typing")));

    queue.add("deploy");
    queue.try_get().expect("it is ready").retry();
    say(&format!("deploy failed: {}", queue.explain("deploy")));
    say(&format!("deploy is added again: {:?}, until the backoff is over", queue.add("deploy")));

    // The loop advances the clock until no key waits. In this time, `deploy` fails twice more.
    while queue.waiting() > 0 {
        clock.advance(SECOND);
        while let Some(item) = queue.try_get() {
            if *item == "deploy" && item.attempt() < 4 {
                let attempt = item.attempt();
                item.retry();
                say(&format!("deploy fails in attempt {attempt}: {}", queue.explain("deploy")));
            } else {
                say(&format!("{} runs, for {} adds", *item, item.adds()));
                item.succeed();
            }
        }
    }
    Ok(())
}
