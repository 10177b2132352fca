//! Tests claims for the workers of other programs.

use super::*;
use crate::{Claims, Renewal, Resumed, Ticket};

const LEASE: Duration = Duration::from_secs(5);

async fn claim(queue: &Queue, worker: &str, max: usize) -> Claims {
    queue.claim_for(worker, LEASE, max, Duration::ZERO).await.expect("the name is valid")
}

/// Claims one key, and leaves it to another program.
async fn ticket(queue: &Queue) -> Ticket {
    let claims = claim(queue, "w", 1).await;
    let item = claims.items().next().expect("a key is ready");
    let ticket = Ticket { key: item.key().clone(), fencing_token: item.fencing_token() };
    claims.hand_over();
    ticket
}

async fn resume(queue: &Queue, ticket: &Ticket) -> Result<Item, Resumed> {
    match queue.resume_claim(ticket.clone()).await.expect("the store answers") {
        Resumed::Item(item) => Ok(*item),
        other => Err(other),
    }
}

#[tokio::test(start_paused = true)]
async fn a_claim_has_the_worker_and_the_lease_of_its_client() {
    let (engine, queue) = queue();
    queue.add_all(["a", "b", "c"]).await.expect("added");
    let own = get(&queue).await;
    let (first, second) = tokio::join!(claim(&queue, "one", 1), claim(&queue, "two", 5));
    let held = |claims: &Claims| claims.items().map(|item| item.to_string()).collect::<Vec<_>>();
    assert_eq!((held(&first), held(&second)), (vec!["b".to_owned()], vec!["c".to_owned()]));
    let row = |key| engine.row(key).expect("the key has a row");
    let workers = ["a", "b", "c"].map(|key| row(key).worker.expect("a worker").to_string());
    assert_eq!(workers, ["", "one", "two"]);
    first.hand_over();
    second.hand_over();
    assert_eq!(queue.leased(), 1, "other programs renew the other two leases");
    // The leases of the other programs expire, which is counted as a failure of each key.
    tokio::time::advance(LEASE).await;
    let again = get(&queue).await;
    assert_eq!(again.attempt(), 2);
    assert!(!own.is_lost());
    assert!(queue.claim_for("", LEASE, 1, SECOND).await.is_err(), "a worker has a name");
}

#[tokio::test(start_paused = true)]
async fn keys_that_are_not_handed_over_return_without_a_failure() {
    let (engine, queue) = queue();
    queue.add_all(["a", "b"]).await.expect("added");
    drop(claim(&queue, "w", 2).await);
    settle().await;
    let row = engine.row("a").expect("the key has a row");
    assert!(row.run.is_none() && row.failures == 0);
    // The client disconnects while the claim is in progress.
    let gate = engine.gate.lock().await;
    let mut waiting = Box::pin(claim(&queue, "w", 1));
    assert!(polled(&mut waiting).await.is_pending());
    settle().await;
    drop(waiting);
    drop(gate);
    settle().await;
    let item = get(&queue).await;
    assert_eq!((item.attempt(), item.as_str(), queue.leased()), (1, Some("a"), 1));
}

#[tokio::test(start_paused = true)]
async fn a_claim_waits_for_a_key_and_makes_at_least_one_request() {
    let (engine, queue) = queue();
    let waiting = tokio::spawn({
        let queue = queue.clone();
        async move { queue.claim_for("w", LEASE, 1, 60 * SECOND).await.expect("valid") }
    });
    settle().await;
    queue.add("a").await.expect("added");
    assert_eq!(waiting.await.expect("no panic").items().len(), 1);

    // If no key is ready, the claim returns after its timeout. The longer wait of another claim does not delay it.
    settle().await;
    let item = get(&queue).await;
    let mut longer = Box::pin(queue.claim_for("other", LEASE, 1, 60 * SECOND));
    assert!(polled(&mut longer).await.is_pending());
    let start = Instant::now();
    let none = queue.claim_for("w", LEASE, 1, SECOND).await.expect("valid");
    assert_eq!((none.items().len(), start.elapsed()), (0, SECOND));
    drop(longer);
    item.release().await.expect("the lease is held");

    // The store needs more time than the client waits.
    let gate = engine.gate.lock().await;
    let mut slow = Box::pin(claim(&queue, "w", 1));
    assert!(polled(&mut slow).await.is_pending());
    tokio::time::advance(SECOND).await;
    settle().await;
    drop(gate);
    assert_eq!(slow.await.items().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn each_process_can_renew_and_complete_a_claim_once() {
    let (engine, first) = queue();
    let place = Place::new(1, "q", ReaddPolicy::Replace);
    let second =
        Queue::new(Arc::clone(&engine) as Arc<dyn Engine>, place, Options::default(), None);
    let add = Add::now().flags(6).priority(crate::Priority::High);
    first.add_with("a", add).await.expect("added");
    let claimed = ticket(&first).await;
    drop(first);
    let unknown = Ticket { fencing_token: u64::MAX, ..claimed.clone() };
    let renewed =
        second.renew_claims(&[claimed.clone(), unknown.clone()], 60 * SECOND, SECOND).await;
    assert_eq!(renewed, [Renewal::Renewed, Renewal::Lost]);
    tokio::time::advance(2 * LEASE).await;

    let mut item = resume(&second, &claimed).await.expect("the lease is held");
    assert_eq!((item.attempt(), second.leased()), (1, 1));
    let held = resume(&second, &claimed).await;
    assert!(matches!(held, Err(Resumed::Held)), "another request ends the claim: {held:?}");
    item.set_error("no answer");
    item.complete(Completion::RetryAfter(SECOND)).await.expect("the lease is held");
    for ticket in [&claimed, &unknown] {
        let over = resume(&second, ticket).await;
        assert!(matches!(over, Err(Resumed::Over(Some(_)))), "{over:?}");
    }
    // This process did not know the flags and the priority of the adds. The next run has them nevertheless.
    tokio::time::advance(SECOND).await;
    let item = get(&second).await;
    let found = (item.attempt(), item.adds(), item.flags(), item.priority());
    assert_eq!(found, (2, 1, 6, crate::Priority::High));
    item.succeed().await.expect("the lease is held");
    let over = resume(&second, &claimed).await;
    assert!(matches!(over, Err(Resumed::Over(None))), "{over:?}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_is_over_when_its_lease_expires() {
    let (_, queue) = queue();
    queue.add("a").await.expect("added");
    let claimed = ticket(&queue).await;
    tokio::time::advance(LEASE).await;
    let renewed = queue.renew_claims(std::slice::from_ref(&claimed), LEASE, SECOND).await;
    assert_eq!(renewed, [Renewal::Lost]);
    let item = resume(&queue, &claimed).await.expect("no claim has found the expired lease");
    assert!(matches!(item.succeed().await, Err(CompleteError::Lost)));
    let item = get(&queue).await;
    assert_eq!(item.attempt(), 2);
    assert!(matches!(resume(&queue, &claimed).await, Err(Resumed::Over(Some(_)))));
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_run_is_known_from_the_renewal_and_at_the_end() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let claimed = ticket(&queue).await;
    let cancelled = queue.cancel_running("a").await.expect("answered");
    assert_eq!(cancelled, crate::CancelledRun::Cancelled);
    let renewed = queue.renew_claims(std::slice::from_ref(&claimed), LEASE, SECOND).await;
    assert_eq!(renewed, [Renewal::Cancelled]);
    let item = resume(&queue, &claimed).await.expect("the lease is held");
    assert!(item.cancel_reason().is_some());
    item.complete(Completion::Cancelled).await.expect("the lease is held");
    assert_eq!(engine.row("a"), None);
}

#[tokio::test(start_paused = true)]
async fn the_lease_of_a_client_is_not_shortened() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let lease = 3600 * SECOND;
    let claims = queue.claim_for("w", lease, 1, SECOND).await.expect("valid");
    let until = || engine.row("a").and_then(|row| row.run).map(|run| run.lease_until);
    let before = until();
    // The answer to the client takes longer than the interval of this process's renewals.
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!((until(), claims.items().len()), (before, 1));
    claims.hand_over();
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_answered_too_late_returns_its_keys() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let gate = engine.gate.lock().await;
    let mut waiting = Box::pin(claim(&queue, "w", 1));
    assert!(polled(&mut waiting).await.is_pending());
    settle().await;
    tokio::time::advance(LEASE + SECOND).await;
    settle().await;
    drop(gate);
    let _ = waiting.await;
    let item = get(&queue).await;
    assert_eq!(
        (item.attempt(), item.as_str()),
        (1, Some("a")),
        "the store was slow, not the worker"
    );
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_the_store_does_not_answer_is_unknown() {
    let (engine, queue) = queue();
    queue.add("a").await.expect("added");
    let claimed = ticket(&queue).await;
    let gate = engine.gate.lock().await;
    let unknown = Ticket { fencing_token: u64::MAX, ..claimed.clone() };
    let renewed = queue.renew_claims(&[claimed, unknown], LEASE, SECOND).await;
    let late = "the store did not answer in time".to_owned();
    assert_eq!(renewed, [Renewal::Unknown(late), Renewal::Lost]);
    drop(gate);
}
