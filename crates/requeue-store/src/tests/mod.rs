//! What the front does with an engine: batches, waiters, leases, and what it says when the engine
//! fails. Time is tokio's, and passes only where everybody waits for it.

mod engine;
mod in_memory;
mod metering;

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::time::Instant;

use self::engine::{Memory, Mishap};
use crate::add::{Add, Added, EarlyAdd, Priority};
use crate::engine::{Engine, Place};
use crate::error::FinishError;
use crate::item::Item;
use crate::options::Options;
use crate::queue::Queue;

const SECOND: Duration = Duration::from_secs(1);

fn queue_with(engine: Memory, options: Options) -> (Arc<Memory>, Queue) {
    let engine = Arc::new(engine);
    let place = Place::new(1, "q", EarlyAdd::Replace);
    let queue = Queue::new(Arc::clone(&engine) as Arc<dyn Engine>, place, options);
    (engine, queue)
}

fn queue() -> (Arc<Memory>, Queue) {
    queue_with(Memory::new(), Options::default())
}

async fn get(queue: &Queue) -> Item {
    queue.get().await.expect("it is not shut down")
}

/// Lets all tasks do what they can without time passing.
async fn settle() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn what_comes_together_travels_together() {
    let (engine, queue) = queue();
    let gate = engine.gate.lock().await;
    // The first one is on its way; the others come meanwhile.
    let adds: Vec<_> = (0..100u32)
        .map(|n| {
            let queue = queue.clone();
            tokio::spawn(async move { queue.add((n % 50).to_string()).await })
        })
        .collect();
    settle().await;
    drop(gate);
    let mut new = 0;
    for add in adds {
        new += u32::from(add.await.expect("it ends").expect("it is added") == Added::New);
    }
    assert_eq!(new, 50);
    let batches = engine.batches();
    assert!(batches.len() <= 3, "{batches:?}");
    assert_eq!(engine.row("7").expect("it is there").asked.adds, 2);
}

#[tokio::test(start_paused = true)]
async fn adds_of_one_key_that_differ_happen_one_after_the_other() {
    let (engine, queue) = queue();
    let gate = engine.gate.lock().await;
    let later = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.add_after("a", SECOND).await })
    };
    settle().await;
    let other = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.add_with("a", Add::now().priority(Priority::High)).await })
    };
    settle().await;
    drop(gate);
    assert_eq!(later.await.expect("it ends").expect("it is added"), Added::New);
    assert_eq!(other.await.expect("it ends").expect("it is added"), Added::New);
    assert_eq!(get(&queue).await.priority(), Priority::High);
}

#[tokio::test(start_paused = true)]
async fn a_getter_is_woken_when_a_key_comes_and_when_one_is_due() {
    let (_, queue) = queue();
    let start = Instant::now();
    let getter = {
        let queue = queue.clone();
        tokio::spawn(async move { get(&queue).await })
    };
    settle().await;
    queue.add("a").await.expect("added");
    let item = getter.await.expect("it ends");
    assert_eq!((item.as_str(), start.elapsed()), (Some("a"), Duration::ZERO));
    item.succeed().await.expect("it is ours");

    queue.add_after("b", Duration::from_millis(300)).await.expect("added");
    assert_eq!(get(&queue).await.as_str(), Some("b"));
    // Tokio's timers go by milliseconds.
    assert!(start.elapsed() <= Duration::from_millis(302), "{:?}", start.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_message_that_is_lost_costs_a_poll() {
    let mut engine = Memory::new();
    engine.tells = false;
    let (_, queue) = queue_with(engine, Options::default());
    let start = Instant::now();
    let getter = {
        let queue = queue.clone();
        tokio::spawn(async move { get(&queue).await })
    };
    settle().await;
    queue.add("a").await.expect("added");
    let item = getter.await.expect("it ends");
    assert_eq!(item.as_str(), Some("a"));
    let waited = start.elapsed();
    assert!(Duration::from_millis(850) < waited && waited < Duration::from_millis(1150));
}

#[tokio::test(start_paused = true)]
async fn a_key_for_one_who_has_gone_is_put_back_and_has_not_failed() {
    let (engine, queue) = queue();
    let gate = engine.gate.lock().await;
    let getter = {
        let queue = queue.clone();
        tokio::spawn(async move { get(&queue).await })
    };
    settle().await;
    getter.abort();
    let add = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.add("a").await })
    };
    settle().await;
    drop(gate);
    add.await.expect("it ends").expect("added");
    let item = get(&queue).await;
    assert_eq!((item.as_str(), item.attempt()), (Some("a"), 1));
    // The same if it has been claimed by then.
    item.succeed().await.expect("it is ours");
    let mut getter = Box::pin(queue.get());
    assert!(polled(&mut getter).await.is_pending());
    queue.add("b").await.expect("added");
    settle().await;
    drop(getter);
    settle().await;
    let item = get(&queue).await;
    assert_eq!((item.as_str(), item.attempt(), item.adds()), (Some("b"), 1, 1));
}

/// One poll.
pub(crate) async fn polled<T>(future: &mut (impl Future<Output = T> + Unpin)) -> Poll<T> {
    poll_fn(|cx| Poll::Ready(Pin::new(&mut *future).poll(cx))).await
}

#[tokio::test(start_paused = true)]
async fn a_batch_goes_to_one_getter_and_what_it_does_not_want_to_the_next() {
    let (_, queue) = queue();
    queue.add_all((0..10u32).map(|n| n.to_string())).await.expect("added");
    let many = queue.get_many(4).await;
    assert_eq!(many.len(), 4);
    assert_eq!(queue.get_many(100).await.len(), 6);
    assert_eq!(queue.get_many(0).await.len(), 0);
}

#[tokio::test(start_paused = true)]
async fn one_in_so_many_is_the_oldest_whatever_its_priority() {
    let (_, queue) = queue_with(Memory::new(), Options { oldest_every: 3, ..Options::default() });
    queue.add_with("old", Add::now().priority(Priority::Low)).await.expect("added");
    tokio::time::advance(SECOND).await;
    let high = Add::now().priority(Priority::High);
    queue.add_all_with(["a", "b", "c", "d"], high).await.expect("added");
    let mut order = Vec::new();
    for _ in 0..5 {
        let item = get(&queue).await;
        order.push(item.to_string());
        item.succeed().await.expect("it is ours");
    }
    assert_eq!(order, ["a", "b", "old", "c", "d"]);
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_as_long_as_the_item_is_held() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let item = get(&queue).await;
    for _ in 0..20 {
        tokio::time::advance(Duration::from_secs(9)).await;
        settle().await;
        assert!(!item.is_lost());
    }
    assert!(engine.row("a").expect("it is there").run.is_some());
    item.succeed().await.expect("it is ours");
    assert_eq!((engine.row("a"), queue.held()), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn a_lease_that_can_not_be_renewed_is_lost_before_the_engine_says_so() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let start = Instant::now();
    let item = get(&queue).await;
    engine.fail([Mishap::Silent, Mishap::Absent, Mishap::Absent]);
    item.lost().await;
    assert_eq!(start.elapsed().as_secs(), 30);
    assert!(matches!(item.succeed().await, Err(FinishError::Lost | FinishError::Unreachable(_))));
    // It has failed, and comes again.
    let item = get(&queue).await;
    assert_eq!((item.attempt(), item.epoch()), (2, 2));
    item.succeed().await.expect("it is ours");
}

#[tokio::test(start_paused = true)]
async fn who_has_lost_a_key_changes_nothing() {
    let (engine, queue) = queue();
    let (_, other) = {
        let place = Place::new(1, "q", EarlyAdd::Replace);
        let other = Queue::new(Arc::clone(&engine) as _, place, Options::default());
        ((), other)
    };
    queue.add("a").await.expect("added");
    let item = get(&queue).await;
    let gate = engine.gate.lock().await;
    tokio::time::advance(Duration::from_secs(31)).await;
    settle().await;
    drop(gate);
    let again = get(&other).await;
    assert!(again.epoch() > item.epoch() && item.is_lost());
    assert!(matches!(item.succeed().await, Err(FinishError::Lost | FinishError::Unreachable(_))));
    assert!(engine.row("a").expect("it is there").run.is_some());
    again.succeed().await.expect("it is ours");
}

#[tokio::test(start_paused = true)]
async fn an_item_that_is_dropped_has_failed() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    drop(get(&queue).await);
    let item = get(&queue).await;
    assert_eq!(item.attempt(), 2);
    item.retry("no luck").await.expect("it is ours");
    assert_eq!(engine.row("a").expect("it is there").error.as_deref(), Some("no luck"));
}

#[tokio::test(start_paused = true)]
async fn after_so_many_failures_a_key_is_parked_until_it_is_revived() {
    let options = Options { max_failures: Some(2), ..Options::default() };
    let (_, queue) = queue_with(Memory::new(), options);
    queue.add("a").await.expect("added");
    for attempt in 1..=2 {
        let item = get(&queue).await;
        assert_eq!(item.attempt(), attempt);
        item.retry(format!("no {attempt}")).await.expect("it is ours");
    }
    let parked = queue.parked(None, 10).await.expect("a page");
    assert_eq!((parked.len(), parked[0].error.as_deref()), (1, Some("no 2")));
    assert_eq!(queue.add("a").await.expect("an answer"), Added::Parked);
    assert!(queue.revive("a").await.expect("revived"));
    let item = get(&queue).await;
    assert_eq!((item.attempt(), queue.revive("a").await.expect("an answer")), (1, false));
    // Something else is wanted of it by now: it begins anew.
    queue.add("a").await.expect("added");
    item.park("never").await.expect("it is ours");
    let item = get(&queue).await;
    item.park("never").await.expect("it is ours");
    assert_eq!(queue.add_with("a", Add::now().revive()).await.expect("an answer"), Added::New);
}

#[tokio::test(start_paused = true)]
async fn an_add_is_tried_until_its_time_is_over() {
    let (engine, queue) = queue();
    engine.fail([Mishap::Absent, Mishap::Lost, Mishap::Absent]);
    assert_eq!(queue.add("a").await.expect("added at last"), Added::New);
    // It has happened, and is answered as once more.
    engine.fail([Mishap::Unheard]);
    assert_eq!(queue.add("b").await.expect("added"), Added::Coalesced);

    let always = |mishap| std::iter::repeat_n(mishap, 1000);
    engine.fail(always(Mishap::Absent));
    let error = queue.add("c").await.expect_err("nobody is there");
    assert!(!error.may_have_happened(), "{error}");
    assert_eq!(error.to_string(), "the key was not added: nobody is there");
    engine.fail([Mishap::Unheard].into_iter().chain(always(Mishap::Absent)));
    let error = queue.add("d").await.expect_err("nobody is there");
    assert!(engine.row("d").is_none() && !error.may_have_happened(), "of the thousand before");
}

#[tokio::test(start_paused = true)]
async fn an_add_says_whether_it_may_have_happened() {
    for (mishap, unsure) in [(Mishap::Lost, true), (Mishap::Silent, true), (Mishap::Absent, false)]
    {
        let (engine, queue) = queue();
        engine.fail([mishap].into_iter().chain(std::iter::repeat_n(Mishap::Absent, 1000)));
        let start = Instant::now();
        let error = queue.add("a").await.expect_err("nobody is there");
        assert_eq!(error.may_have_happened(), unsure, "{mishap:?}: {error}");
        assert!(start.elapsed() <= Duration::from_secs(30), "{mishap:?}");
    }
    let (engine, queue) = queue();
    engine.fail([Mishap::Refused]);
    let error = queue.add("a").await.expect_err("it is not allowed");
    assert_eq!(error.to_string(), "the key was not added: it is not allowed");
    let error = queue.add(vec![b'x'; 5000]).await.expect_err("it is too long");
    assert!(
        error.to_string().ends_with("...\": a key of 5000 bytes; 2048 are the most"),
        "{error}"
    );
}

#[tokio::test(start_paused = true)]
async fn an_end_is_tried_as_long_as_the_lease_lasts() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let item = get(&queue).await;
    engine.fail([Mishap::Absent, Mishap::Lost, Mishap::Absent]);
    item.succeed().await.expect("it is ours");
    assert_eq!(engine.row("a"), None);

    queue.add("a").await.expect("added");
    let item = get(&queue).await;
    engine.fail([Mishap::Unheard]);
    assert!(matches!(item.succeed().await, Err(FinishError::Unsure)));

    queue.add("a").await.expect("added");
    let (start, item) = (Instant::now(), get(&queue).await);
    engine.fail(std::iter::repeat_n(Mishap::Absent, 1000));
    let error = item.succeed().await.expect_err("nobody is there");
    assert!(matches!(error, FinishError::Unreachable(_)), "{error}");
    assert!(start.elapsed() <= Duration::from_secs(30));
}

#[tokio::test(start_paused = true)]
async fn a_queue_that_is_shut_down_hands_out_no_more() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let item = get(&queue).await;
    let getter = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.get().await })
    };
    settle().await;
    queue.shut_down();
    assert!(getter.await.expect("it ends").is_none());
    assert!(queue.is_shut_down() && queue.get().await.is_none());
    assert_eq!(queue.add("b").await.expect("it is the others' queue, too"), Added::New);
    item.succeed().await.expect("it is ours");
    assert!(engine.row("b").is_some());
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_never_answered_is_made_again() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    engine.fail([Mishap::Silent, Mishap::Absent]);
    assert_eq!(get(&queue).await.attempt(), 1);
}

#[tokio::test(start_paused = true)]
async fn of_a_long_error_the_beginning_is_kept() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    get(&queue).await.retry("\u{20ac}".repeat(3000)).await.expect("it is ours");
    let error = engine.row("a").and_then(|row| row.error).expect("it has one");
    assert_eq!(error, "\u{20ac}".repeat(1365));
}

#[tokio::test(start_paused = true)]
async fn with_its_last_handle_its_tasks_end() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let item = get(&queue).await;
    drop(queue);
    settle().await;
    item.succeed().await.expect("it is ours");
    settle().await;
    assert_eq!(Arc::strong_count(&engine), 1);
}

#[test]
fn no_backoff_is_too_long() {
    let failing = crate::engine::Failing {
        backoff: crate::engine::Backoff { base: Duration::MAX, cap: Duration::MAX, share: 1.0 },
        max_failures: None,
    };
    let ask = crate::engine::Ask { key: "a".into(), add: Add::now(), adds: u32::MAX };
    let (mut row, _) = crate::row::Row::add(None, &ask, EarlyAdd::Hold, 5);
    let _ = row.claim(&ask.key, 1, SECOND, 5);
    let row = row.expire(failing, EarlyAdd::Hold, 6).expect("it comes back");
    assert_eq!(row.at, Some(crate::time::NEVER));
}

#[tokio::test(start_paused = true)]
async fn it_says_where_a_key_stands() {
    let (_, queue) = queue();
    let explained = async |key: &str| queue.explain(key).await.expect("looked up");
    assert_eq!(explained("a").await, "a: nothing is to be done");
    queue.add_after("a", SECOND).await.expect("added");
    assert_eq!(explained("a").await, "a: waits 1s more");
    tokio::time::advance(SECOND).await;
    assert_eq!(explained("a").await, "a: ready for 0ns");
    let item = get(&queue).await;
    assert_eq!(explained("a").await, "a: with a worker for 0ns, its lease for 30s more");
    queue.add("a").await.expect("added");
    let dirty = "a: with a worker for 0ns, its lease for 30s more, and runs once more afterwards";
    assert_eq!(explained("a").await, dirty);
    item.succeed().await.expect("it is ours");
    get(&queue).await.park("no such thing").await.expect("it is ours");
    assert_eq!(explained("a").await, "a: parked since 0ns, after a failure: no such thing");
}

#[tokio::test(start_paused = true)]
async fn it_is_not_idle_while_another_works() {
    let mut engine = Memory::new();
    // As an engine that does not know when leases run out.
    engine.knows_leases = false;
    let (engine, queue) = queue_with(engine, Options::default());
    queue.add("a").await.expect("added");
    let item = get(&queue).await;
    queue.shut_down_when_idle();
    let getter = {
        let queue = queue.clone();
        tokio::spawn(async move { queue.get().await })
    };
    tokio::time::advance(SECOND).await;
    settle().await;
    assert!(!queue.is_shut_down());
    item.succeed().await.expect("it is ours");
    assert!(getter.await.expect("it ends").is_none());
    assert!(engine.row("a").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_keeps_nobody_from_hearing_of_the_loss() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    queue.add("b").await.expect("added");
    // Something is held before, so that renewals are at other times than this lease's end.
    let first = get(&queue).await;
    tokio::time::advance(Duration::from_secs(3)).await;
    let start = Instant::now();
    let item = get(&queue).await;
    let gate = engine.gate.lock().await;
    item.lost().await;
    assert_eq!(start.elapsed().as_secs(), 30);
    drop(gate);
    assert!(matches!(item.succeed().await, Err(FinishError::Lost)));
    assert!(first.is_lost());
}

#[tokio::test(start_paused = true)]
async fn an_end_that_may_have_happened_is_not_said_to_have_failed() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let item = get(&queue).await;
    engine.fail([Mishap::Unheard].into_iter().chain(std::iter::repeat_n(Mishap::Absent, 1000)));
    assert!(matches!(item.succeed().await, Err(FinishError::Unsure)));
}

#[tokio::test]
async fn no_time_is_too_long() {
    let store = crate::Store::connect("sqlite::memory:").await.expect("it opens");
    store.migrate().await.expect("the schema is made");
    let (most, opening) = (Duration::MAX, store.queue("q"));
    let queue = opening.lease(most).poll(most).add_timeout(most).backoff(most, most);
    let queue = queue.open().await.expect("it opens");
    queue.add_after("later", most).await.expect("added");
    queue.add("a").await.expect("added");
    get(&queue).await.retry_after(most, "no").await.expect("it is ours");
}

#[tokio::test(start_paused = true)]
async fn a_key_that_somebody_has_locked_holds_up_no_other() {
    let (engine, queue) = queue();
    let add = |key: &'static str, add: Add| {
        let queue = queue.clone();
        tokio::spawn(async move { queue.add_with(key, add).await })
    };
    engine.set_locked("b", true);
    let start = Instant::now();
    let [a, b, c] = ["a", "b", "c"].map(|key| add(key, Add::now()));
    for other in [a, c] {
        assert_eq!(other.await.expect("it ends").expect("added"), Added::New);
    }
    // One that comes later waits as well, and in no other's way.
    let [again, high] = [Add::now(), Add::now().priority(Priority::High)].map(|how| add("b", how));
    settle().await;
    engine.batches();
    queue.add("d").await.expect("added");
    assert_eq!((engine.batches(), start.elapsed()), (vec![1], Duration::ZERO));
    tokio::time::advance(SECOND).await;
    assert!(!b.is_finished() && !again.is_finished());
    engine.set_locked("b", false);
    assert_eq!(b.await.expect("it ends").expect("added"), Added::New);
    assert_eq!(again.await.expect("it ends").expect("added"), Added::Coalesced);
    assert_eq!(high.await.expect("it ends").expect("added"), Added::Coalesced);
    assert_eq!(engine.row("b").expect("it is there").asked.adds, 3);
    assert!(start.elapsed() < 2 * SECOND, "{:?}", start.elapsed());
    // It is as any other again.
    engine.batches();
    queue.add("b").await.expect("added");
    assert_eq!(engine.batches(), [1]);

    engine.set_locked("e", true);
    let all = tokio::spawn({
        let queue = queue.clone();
        async move { queue.add_all(["e", "f"]).await }
    });
    settle().await;
    assert!(engine.row("f").is_some() && !all.is_finished());
    engine.set_locked("e", false);
    assert_eq!(all.await.expect("it ends").expect("added"), 2);
}

#[tokio::test(start_paused = true)]
async fn an_add_of_a_key_that_stays_locked_has_not_happened() {
    let (engine, queue) = queue();
    engine.set_locked("a", true);
    let start = Instant::now();
    let all = queue.add_all(["a"]).await.expect_err("it is locked");
    for error in [all, queue.add("a").await.expect_err("it is locked")] {
        assert!(error.to_string().ends_with("added: somebody has the key locked"), "{error}");
        assert!(!error.may_have_happened());
    }
    assert!(start.elapsed() <= Duration::from_secs(60));
    settle().await;
    engine.set_locked("a", false);
    assert_eq!(queue.add("a").await.expect("added"), Added::New);
}

#[tokio::test(start_paused = true)]
async fn what_is_being_ended_is_kept_until_it_has_ended() {
    let (engine, queue) = queue();
    queue.add_all(["a", "b"]).await.expect("added");
    let (a, b) = (get(&queue).await, get(&queue).await);
    engine.set_locked("a", true);
    let ending = tokio::spawn(a.succeed());
    b.succeed().await.expect("it is ours");
    assert_eq!((engine.row("b"), queue.held()), (None, 0));
    // Far longer than a lease.
    for _ in 0..20 {
        tokio::time::advance(Duration::from_secs(9)).await;
        settle().await;
    }
    assert!(!ending.is_finished());
    engine.set_locked("a", false);
    ending.await.expect("it ends").expect("it is ours still");
    assert_eq!(engine.row("a"), None);
}
