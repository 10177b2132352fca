//! Checks that the numbers of retries on the pages, which readers copy, suffice for an outage of a
//! minute.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use regex::Regex;
use requeue::Queue;
use requeue::clock::FakeClock;
use requeue::limiter::{BackoffLimiter, DEFAULT_BACKOFF};
use requeue_core::Time;
use requeue_core::limiter::RateLimiter;

const MINUTE: Duration = Duration::from_secs(60);

/// The delays of a controller, which equal the delays of controller-runtime.
const CONTROLLER: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(300));

/// Returns the shortest time after which a key that always fails has used `retries`.
fn shortest((base, max): (Duration, Duration), retries: u32) -> Duration {
    let exponential = |n: u32| base.saturating_mul(1 << n.min(31)).min(max);
    (0..retries).map(|n| exponential(n) / 2).sum()
}

fn pages(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a directory of the repository") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if path.is_dir() && !name.starts_with('.') && name != "target" && name != "node_modules" {
            pages(&path, found);
        } else if path.is_file() && name.ends_with(".md") {
            found.push(path);
        }
    }
}

/// Returns the delays in milliseconds or seconds that a block of code sets.
fn backoff_of(block: &str) -> Option<(Duration, Duration)> {
    let delay = r"Duration::from_(?:secs|(millis))\((\d+)\)";
    let pair = Regex::new(&format!(r"\(\s*{delay},\s*{delay}\s*\)")).expect("a valid pattern");
    let found = pair.captures(block)?;
    let delay = |unit: usize, number: usize| {
        let number = found[number].parse().expect("a number");
        match found.get(unit) {
            Some(_) => Duration::from_millis(number),
            None => Duration::from_secs(number),
        }
    };
    Some((delay(1, 2), delay(3, 4)))
}

#[test]
fn a_key_survives_an_outage_of_a_minute_with_the_retries_that_the_pages_show() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two levels up");
    let limits = Regex::new(r"(max_retries|max_failures)\((\d+)\)").expect("a valid pattern");
    let (mut files, mut checked, mut wrong) = (Vec::new(), 0, Vec::new());
    pages(root, &mut files);
    for file in files {
        let text = fs::read_to_string(&file).expect("a text");
        // Code is between two fences, so every second part is code.
        for block in text.split("```") {
            for limit in limits.captures_iter(block) {
                let number: u32 = limit[2].parse().expect("a number");
                let retries = if &limit[1] == "max_failures" { number - 1 } else { number };
                let delays = match backoff_of(block) {
                    // The example from client-go is exempt, because it gives up after five retries,
                    // in 155 ms.
                    _ if block.contains("client_go") => continue,
                    _ if block.contains("controller::Config") => CONTROLLER,
                    Some(delays) => delays,
                    None => DEFAULT_BACKOFF,
                };
                checked += 1;
                if shortest(delays, retries) < MINUTE {
                    wrong.push(format!("{}: {}", file.display(), &limit[0]));
                }
            }
        }
    }
    assert!(checked >= 5, "only {checked} limits were found");
    assert!(wrong.is_empty(), "given up within a minute: {wrong:#?}");
}

#[test]
fn delays_of_a_page_are_read_in_both_units() {
    let block = "backoff(Duration::from_millis(10), Duration::from_secs(300)).max_retries(7)";
    let delays = backoff_of(block).expect("two delays");
    assert_eq!(delays, (Duration::from_millis(10), Duration::from_secs(300)));
    assert!(shortest(delays, 7) < MINUTE && MINUTE < shortest(DEFAULT_BACKOFF, 7));
}

#[test]
fn the_default_backoff_is_the_one_of_the_contract() {
    let contract = include_str!("../../../docs/concepts/semantics.md");
    let (base, max) = DEFAULT_BACKOFF;
    let (controller, minutes) = (CONTROLLER.0.as_millis(), max.as_secs() / 60);
    let rule = format!(
        "from the base ({} s; {controller} ms in a controller)\n  to the maximum ({minutes} min)",
        base.as_secs()
    );
    assert!(contract.contains(&rule), "docs/concepts/semantics.md lacks: {rule}");

    let mut limiter = BackoffLimiter::default();
    let clock = FakeClock::new();
    let queue = Queue::builder().clock(clock.clone()).build().expect("the defaults are valid");
    queue.add("down");
    let (mut now, mut by_limiter) = (Time::ZERO, Duration::ZERO);
    for _ in 0..10 {
        let delay = limiter.delay(&"down", now);
        (now, by_limiter) = (now + delay, by_limiter + delay);
        queue.try_get().expect("its backoff is over").retry();
        clock.set(queue.next_due().expect("it backs off"));
    }
    let by_queue = clock.now().since(Time::ZERO);
    let least = shortest(DEFAULT_BACKOFF, 10);
    assert_eq!(least, Duration::from_millis(405_500), "7 to 14 min");
    for total in [by_limiter, by_queue] {
        assert!((least..=2 * least).contains(&total), "{total:?}");
    }
}
