//! The memory of an idle queue. The test measures the memory of the whole process, so it is the
//! only test of this binary.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "tests say what they expect by unwrapping it")]

use requeue::Queue;
use requeue::clock::SystemClock;

/// Returns the resident memory of this process, in bytes.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split(' ').nth(1).unwrap().parse().unwrap();
    // A page has 4096 bytes on all tested machines. If pages are larger, the test permits more
    // memory per queue than intended.
    pages * 4096
}

fn queue() -> Queue<u64> {
    Queue::builder().clock(SystemClock).build().unwrap()
}

const QUEUES: usize = 10_000;

#[test]
fn ten_thousand_idle_queues_cost_less_than_a_kibibyte_each() {
    let mut queues = Vec::with_capacity(QUEUES);
    // The result must not include memory that is allocated once, or the pages of the vector.
    queues.resize_with(QUEUES / 100, queue);
    queues.clear();
    let before = resident();
    queues.resize_with(QUEUES, queue);
    let each = resident().saturating_sub(before) / QUEUES;
    println!("{each} bytes each, empty");
    assert!(each < 1024, "an empty queue takes {each} bytes");

    // A queue that was used briefly, and is empty again, must use little memory.
    for queue in &queues {
        queue.add(1);
        queue.try_get().unwrap().succeed();
    }
    let each = resident().saturating_sub(before) / QUEUES;
    assert!(each < 2048, "a queue that is empty again takes {each} bytes");
    println!("{each} bytes each, after use");
}
