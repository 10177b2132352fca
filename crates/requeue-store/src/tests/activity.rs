//! Tests the activity and the signs of life that a process writes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::PoisonError;

use proptest::prelude::*;

use super::*;
use crate::engine::activity::{
    Merging, Part, Parts, Record, Recorded, Which, first_kept_apart, is_writable, minute_of,
};
use crate::engine::time::Micros;
use crate::types::activity::Activity;
use crate::types::error::EngineError;

/// The activity that the engine in memory stores.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    rows: BTreeMap<(i64, String), Part>,
    /// The results of the next writes, one for each write.
    mishaps: VecDeque<Mishap>,
}

impl Numbers {
    pub(super) fn record(&mut self, now: Micros, record: Record) -> Answer<Recorded> {
        let mishap = self.mishaps.pop_front().unwrap_or(Mishap::Fine);
        let current = minute_of(now);
        let minute = record.minute.unwrap_or(current);
        let is_written = is_writable(minute, current);
        if is_written && matches!(mishap, Mishap::Fine | Mishap::Unheard) {
            let Record { instance, worker, tally, .. } = record;
            let (instance, worker) = (instance.to_string(), worker.to_string());
            let key = (minute, instance.clone());
            self.rows.insert(key, Part { minute, instance, worker, at: now, tally });
        }
        match mishap {
            Mishap::Absent => return Err(EngineError::absent("nobody is there")),
            Mishap::Lost | Mishap::Unheard => return Err(EngineError::unsure("the line is cut")),
            _ => {}
        }
        let has_old = !self.read(now, Which::Old).parts.is_empty();
        Ok(Recorded { minute: current, is_written, has_old })
    }

    pub(super) fn read(&self, now: Micros, which: Which) -> Parts {
        let is_read = |part: &&Part| match which {
            Which::Since(since) => part.minute >= minute_of(now - since),
            Which::Old => {
                part.minute < first_kept_apart(minute_of(now)) && !part.instance.is_empty()
            }
            Which::Nothing => false,
        };
        Parts { now, parts: self.rows.values().filter(is_read).cloned().collect() }
    }

    pub(super) fn merge(&mut self, now: Micros, merging: Merging) {
        let Merging { minute, parts, mut tally } = merging;
        for (instance, _) in parts {
            self.rows.remove(&(minute, instance)).expect("only one process merges");
        }
        let merged = (minute, String::new());
        if let Some(before) = self.rows.get(&merged) {
            tally.merge(&before.tally);
        }
        let (instance, worker) = Default::default();
        self.rows.insert(merged, Part { minute, instance, worker, at: now, tally });
    }
}

fn numbers(engine: &Memory) -> std::sync::MutexGuard<'_, Numbers> {
    engine.numbers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a queue that is opened with the name of a worker.
fn worker() -> (Arc<Memory>, Queue) {
    let engine = Arc::new(Memory::new());
    let place = Place { worker: "other".into(), ..Place::new(1, "q", ReaddPolicy::Replace) };
    let queue = Queue::new(Arc::clone(&engine) as _, place, Options::default(), None);
    (engine, queue)
}

/// Returns the number of adds that the store has, without causing a write.
fn stored_adds(engine: &Memory) -> u64 {
    numbers(engine).rows.values().map(|part| part.tally.adds).sum()
}

async fn activity(queue: &Queue) -> Activity {
    queue.activity(3600 * SECOND).await.expect("read")
}

#[tokio::test(start_paused = true)]
async fn a_process_writes_what_it_has_done_after_seconds_and_at_its_end() {
    let (engine, queue) = queue();
    queue.add_all(["a", "a", "b"]).await.expect("added");
    assert_eq!(stored_adds(&engine), 0);
    tokio::time::sleep(7 * SECOND).await;
    assert_eq!(stored_adds(&engine), 3);
    queue.add("c").await.expect("added");
    queue.settled_soon().await;
    assert_eq!(stored_adds(&engine), 4, "the queue was shut down");
    queue.add("d").await.expect("added");
    drop(queue);
    settle().await;
    assert_eq!(stored_adds(&engine), 5, "the last handle was dropped");
}

#[tokio::test(start_paused = true)]
async fn a_jump_of_the_clock_is_recorded_once_and_only_at_workers() {
    let (engine, first) = worker();
    let place = Place { worker: "second".into(), ..Place::new(1, "q", ReaddPolicy::Replace) };
    let second = Queue::new(Arc::clone(&engine) as _, place, Options::default(), None);
    let jump = async || {
        tokio::time::sleep(30 * SECOND).await;
        *engine.jump.lock().expect("no panic") += 3600 * SECOND;
        tokio::time::sleep(30 * SECOND).await;
        engine.actions.lock().expect("no panic").len()
    };
    assert_eq!(jump().await, 0, "no process claims keys");
    first.add_all(["a", "b"]).await.expect("added");
    let held = [get(&first).await, get(&second).await];
    assert_eq!(jump().await, 1);
    let action = engine.actions.lock().expect("no panic")[0].clone();
    assert!(action.action == "clock-jump" && action.target.starts_with('+'), "{action:?}");
    assert!(["other", "second"].contains(&&*action.by), "{action:?}");
    *engine.jump.lock().expect("no panic") -= 3600 * SECOND;
    tokio::time::sleep(30 * SECOND).await;
    let actions = engine.actions.lock().expect("no panic").clone();
    assert!(actions.len() == 2 && actions[1].target.starts_with('-'), "{actions:?}");
    drop(held);
}

impl Queue {
    async fn settled_soon(&self) {
        self.shut_down();
        self.settled().await;
    }
}

#[tokio::test(start_paused = true)]
async fn two_processes_show_the_same_numbers_and_workers() {
    let (engine, other) = worker();
    let place = Place::new(1, "q", ReaddPolicy::Replace);
    let queue = Queue::new(engine, place, Options::default(), None);
    queue.add_all(["a", "b", "c"]).await.expect("added");
    get(&other).await.retry("no").await.expect("the lease is held");
    let item = get(&other).await;
    tokio::time::sleep(15 * SECOND).await;

    let (shown, by_other) = (activity(&queue).await, activity(&other).await);
    assert_eq!((shown.period, &shown.minutes), (by_other.period, &by_other.minutes));
    let total = shown.total();
    assert_eq!((total.adds, total.starts, total.failures, total.successes), (3, 2, 1, 0));
    assert_eq!((total.queued.count(), total.worked.count()), (2, 1));
    let running = shown.workers.iter().map(|worker| (&*worker.name, worker.running.len()));
    assert_eq!(running.collect::<Vec<_>>(), [("other", 1)], "the first process gets no keys");
    queue.recent_counts().await.expect("counted");
    queue.recent_activity().await.expect("read");
    let fleet = queue.sample().and_then(|sample| sample.fleet).expect("read");
    assert_eq!((fleet.workers, fleet.longest_running), (1, 15 * SECOND));
    assert_eq!(shown.workers[0].running[0].key, *item.key());

    item.succeed().await.expect("the lease is held");
    tokio::time::sleep(600 * SECOND).await;
    let idle = activity(&queue).await;
    assert_eq!((idle.workers.len(), idle.total().successes), (1, 1));
    assert!(idle.workers[0].seen < 12 * SECOND, "{idle:?}");
    other.settled_soon().await;
    assert_eq!(activity(&queue).await.workers, []);
}

#[tokio::test(start_paused = true)]
async fn a_worker_is_alive_until_half_a_minute_after_its_last_sign() {
    let (engine, queue) = worker();
    queue.add("a").await.expect("added");
    let _item = get(&queue).await;
    activity(&queue).await;
    numbers(&engine).mishaps = std::iter::repeat_n(Mishap::Absent, 1_000).collect();
    for (time, alive) in [(29, 1), (2, 0)] {
        tokio::time::sleep(time * SECOND).await;
        assert_eq!(activity(&queue).await.workers.len(), alive);
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_was_stopped_for_hours_changes_no_earlier_minute() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    activity(&queue).await;
    let before = numbers(&engine).rows.clone();
    queue.add("b").await.expect("added");
    tokio::time::advance(7 * 3600 * SECOND).await;
    let minutes = activity(&queue).await.minutes;
    assert_eq!(minutes.iter().map(|minute| minute.tally.adds).collect::<Vec<_>>(), [1]);
    assert!(minutes[0].ago < 60 * SECOND, "{minutes:?}");
    let first = before.values().next().map(|part| part.tally.clone());
    assert_eq!(numbers(&engine).rows.values().next().map(|part| part.tally.clone()), first);
    assert_eq!(stored_adds(&engine), 2);
}

#[tokio::test(start_paused = true)]
async fn a_time_that_is_not_kept_is_refused() {
    let (_, queue) = queue();
    let week = 7 * 24 * 3600 * SECOND;
    queue.activity(week).await.expect("read");
    let error = queue.activity(week + SECOND).await.expect_err("it is too long");
    assert_eq!(error.kind(), crate::ErrorKind::Invalid);
    assert_eq!(
        error.to_string(),
        "a time of 604801s is too long: a store keeps the numbers of 7 days"
    );
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(200) })]

    #[test]
    fn writes_that_fail_count_nothing_twice(
        steps in prop::collection::vec((0..4usize, 1..50u64, 0..200u64), 1..40)
    ) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().expect("the runtime is built");
        runtime.block_on(async {
            let (engine, queue) = queue();
            let (mut adds, mut abandoned) = (0, 0);
            for (mishap, number, pause) in steps {
                let mishap = [Mishap::Fine, Mishap::Absent, Mishap::Lost, Mishap::Unheard][mishap];
                queue.add_all((0..number).map(|n| n.to_string())).await.expect("added");
                adds += number;
                if matches!(mishap, Mishap::Lost | Mishap::Unheard) {
                    // If the row was not written, these adds are lost, because the minute of the row is over.
                    abandoned += adds - stored_adds(&engine);
                }
                numbers(&engine).mishaps = [mishap].into();
                tokio::time::sleep(Duration::from_secs(pause)).await;
                assert!(stored_adds(&engine) <= adds, "no add counts twice");
            }
            numbers(&engine).mishaps.clear();
            queue.settled_soon().await;
            let stored = stored_adds(&engine);
            assert!(stored <= adds && stored + abandoned >= adds, "{stored} of {adds}, {abandoned}");
        });
    }
}
