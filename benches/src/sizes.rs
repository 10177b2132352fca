//! What a queue takes of the memory, and what it keeps.

use std::time::Duration;

use requeue_core::{Add, Config, Finish, Group, Queue, Time};

use crate::Scale;
use crate::cycles::{LONG, plain};
use crate::heap::{cost_of, live};
use crate::keys::hash;

/// All tables of memory.
pub fn run(scale: &Scale) {
    let until = 2 * scale.million;
    println!("bytes per u64 key, as asked of the allocator");
    println!("  {:<44}{:>9}{:>9}", "keys", "queued", "delayed");
    let (queued, delayed) = (growth(Add::now(), until), growth(Add::after(LONG), until));
    for keys in (1..=20).map(|part| until * part / 20) {
        println!("  {keys:<44}{:>9.2}{:>9.2}", queued[keys - 1], delayed[keys - 1]);
    }
    let worst = |each: &[f64]| each[until / 20 - 1..].iter().copied().fold(0.0, f64::max);
    println!("  {:<44}{:>9.2}{:>9.2}", "the worst of all counts", worst(&queued), worst(&delayed));
    println!();

    println!("bytes kept of {} u64 keys that were handed out and done", scale.million);
    kept("all of them", scale.million, None);
    kept("all but the first, which waits for an hour", scale.million, Some(0));
    kept("all but the last, which waits for an hour", scale.million, Some(scale.million - 1));
    println!();

    const QUEUES: usize = 10_000;
    let (queues, bytes) = cost_of(|| -> Vec<requeue::Queue<u64>> {
        (0..QUEUES).filter_map(|_| plain().ok()).collect()
    });
    println!("bytes per empty queue, of {}", queues.len());
    println!("  {:<44}{:>9}", "new", bytes / QUEUES);
    let ((), more) = cost_of(|| {
        for queue in &queues {
            queue.add(1);
            if let Some(item) = queue.try_get() {
                item.succeed();
            }
        }
    });
    println!("  {:<44}{:>9}", "after a key", (bytes + more) / QUEUES);
    println!();
}

/// Bytes per key, at every count.
fn growth(add: Add, until: usize) -> Vec<f64> {
    let mut each = vec![0.0; until];
    let start = live();
    let mut queue = Queue::new(Config::default());
    for (key, each) in (0..).zip(&mut each) {
        let _ = queue.add(key, hash(&key), add, Group::default(), Time::ZERO);
        *each = (live() - start) as f64 / (key + 1) as f64;
    }
    each
}

fn kept(what: &str, keys: usize, waits: Option<usize>) {
    let start = live();
    let mut queue = Queue::new(Config::default());
    for key in 0..keys {
        let delay = if Some(key) == waits { LONG } else { Duration::ZERO };
        let key = key as u64;
        let _ = queue.add(key, hash(&key), Add::after(delay), Group::default(), Time::ZERO);
    }
    let peak = live() - start;
    while let Some(out) = queue.get(Time::ZERO) {
        let _ = queue.finish(&out.ticket, Finish::Succeed, Time::ZERO);
    }
    println!("  {what:<44}{:>9} of {peak}", live() - start);
}
