//! `ParallelizeUntil`, compared with client-go's `parallelizer_test.go`.
#![cfg(feature = "wait")]

use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use requeue::wait::parallelize_until;

fn never() -> bool {
    false
}

/// Returns how often each piece was processed.
fn visits(workers: usize, pieces: usize, chunk: usize) -> Vec<usize> {
    let seen: Vec<_> = (0..pieces).map(|_| AtomicUsize::new(0)).collect();
    parallelize_until(workers, pieces, chunk, never, |piece| {
        seen[piece].fetch_add(1, Ordering::Relaxed);
    });
    seen.into_iter().map(AtomicUsize::into_inner).collect()
}

/// `TestParallelizeUntil`.
#[test]
fn parallelize_until_does_each_piece_once() {
    for (pieces, workers, chunk) in [(1000, 10, 1), (1000, 10, 10), (1000, 10, 100), (999, 10, 13)]
    {
        let case = format!("pieces:{pieces},workers:{workers},chunkSize:{chunk}");
        assert_eq!(visits(workers, pieces, chunk), vec![1; pieces], "{case}");
    }
}

#[test]
fn odd_numbers_of_workers_pieces_and_chunks_do_no_harm() {
    assert_eq!(visits(4, 0, 1), []);
    assert_eq!(visits(0, 3, 0), [1; 3], "0 counts as 1");
    assert_eq!(visits(100, 3, 1), [1; 3], "more workers than pieces");
    assert_eq!(visits(2, 3, usize::MAX), [1; 3], "a chunk larger than all pieces");
}

#[test]
fn a_stop_leaves_the_pieces_that_have_not_begun() {
    let (stop, done) = (AtomicBool::new(false), AtomicUsize::new(0));
    parallelize_until(
        2,
        1000,
        10,
        || stop.load(Ordering::SeqCst),
        |_| {
            done.fetch_add(1, Ordering::SeqCst);
            stop.store(true, Ordering::SeqCst);
        },
    );
    let done = done.into_inner();
    assert!((1..=2).contains(&done), "at most one piece of each worker, but it was {done}");
}

#[test]
fn a_stop_that_has_come_already_means_no_piece_at_all() {
    let begun = AtomicUsize::new(0);
    parallelize_until(
        2,
        10,
        1,
        || true,
        |_| {
            begun.fetch_add(1, Ordering::Relaxed);
        },
    );
    assert_eq!(begun.into_inner(), 0);
}

#[test]
fn no_more_threads_are_used_than_there_are_workers_and_chunks() {
    for (workers, pieces, chunk, most) in [(1, 50, 1, 1), (3, 50, 1, 3), (8, 50, 25, 2)] {
        let threads = Mutex::new(HashSet::new());
        parallelize_until(workers, pieces, chunk, never, |_| {
            if let Ok(mut threads) = threads.lock() {
                threads.insert(thread::current().id());
            }
        });
        assert!(threads.into_inner().is_ok_and(|threads| threads.len() <= most));
    }
}
