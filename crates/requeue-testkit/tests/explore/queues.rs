//! Queues without Kubernetes: handlers with steps, and stores that several processes share.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use requeue::Queue;
use requeue::clock::TokioClock;
use requeue::limiter::BackoffLimiter;
use requeue::workers::{Action, Context, Error, Workers};
use requeue_store::StateCounts;
use requeue_testkit::explore::{Process, World, explore};
use requeue_testkit::invariants::Invariant;
use tokio::time::sleep;

use super::{SEEDS, assert_found};

/// An account outside: it remembers the payments, and refuses none.
type Account = Arc<Mutex<Vec<String>>>;

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Bug {
    None,
    /// The handler does not look whether an earlier run has paid.
    PaysTwice,
    /// The handler succeeds although a step has failed.
    IgnoresFailure,
}

async fn pay(
    process: Process,
    account: Account,
    invoice: String,
    bug: Bug,
) -> Result<Action, Error> {
    match process.step("look up the invoice").await {
        Err(_) if bug == Bug::IgnoresFailure => return Ok(Action::succeed()),
        found => found?,
    }
    let is_paid = account.lock().expect("no panic").contains(&invoice);
    if !is_paid || bug == Bug::PaysTwice {
        account.lock().expect("no panic").push(invoice);
    }
    process.step("mark it as paid").await?;
    Ok(Action::succeed())
}

const INVOICES: [&str; 3] = ["1", "2", "3"];

fn check_account(world: &World, account: &Account) {
    let mut paid = account.lock().expect("no panic").clone();
    paid.sort();
    if paid != INVOICES {
        world.violated("each invoice is paid once", format!("{paid:?}"));
    }
}

/// A store with two workers, which crash and are started again.
async fn stored(world: World, bug: Bug) {
    let queue = world.store().await.expect("a store").queue("invoices").open().await.expect("open");
    let account = Account::default();
    let paid = Arc::clone(&account);
    world.run_replicas(2, move |process| {
        let account = Arc::clone(&paid);
        async move {
            let queue = process
                .store()
                .queue("invoices")
                .open()
                .await
                .map_err(|error| error.to_string())?;
            let handler = move |key: requeue_store::Key, _: Context| {
                let invoice = key.as_str().expect("text").to_owned();
                pay(process.clone(), Arc::clone(&account), invoice, bug)
            };
            Workers::new(queue, handler).run().await;
            Ok::<_, String>(())
        }
    });
    for invoice in INVOICES {
        sleep(Duration::from_millis(world.draw(0..2_000))).await;
        queue.add(invoice).await.expect("the test's connection has no faults");
    }
    world
        .converges(async |_| match queue.counts().await {
            Ok(counts) if counts == StateCounts::default() => Ok(()),
            Ok(counts) => Err(format!("{counts:?}")),
            Err(error) => Err(error.to_string()),
        })
        .await;
    check_account(&world, &account);
}

/// A queue in memory. A crash loses its keys, and the program adds them again when it starts.
pub(crate) async fn in_memory(world: World, bug: Bug) {
    let account = Account::default();
    let paid = Arc::clone(&account);
    let seed = world.draw(0..u64::MAX);
    world.run(move |process| {
        let account = Arc::clone(&paid);
        async move {
            let limiter = BackoffLimiter::default().seed(seed);
            let queue = Queue::builder().clock(TokioClock::current()).limiter(limiter).build()?;
            for invoice in INVOICES {
                queue.add(invoice);
            }
            queue.close();
            let handler = move |invoice: &'static str, _: Context| {
                pay(process.clone(), Arc::clone(&account), invoice.to_owned(), bug)
            };
            Workers::new(queue, handler).run().await;
            Ok::<_, requeue::BuildError>(())
        }
    });
    world
        .converges(async |_| {
            let left = INVOICES.len() - account.lock().expect("no panic").len().min(INVOICES.len());
            if left == 0 { Ok(()) } else { Err(format!("{left} invoices are left")) }
        })
        .await;
    check_account(&world, &account);
}

#[test]
fn a_correct_handler_on_a_store_passes() {
    explore(SEEDS, |world| stored(world, Bug::None));
}

#[test]
fn a_correct_handler_in_memory_passes() {
    explore(SEEDS, |world| in_memory(world, Bug::None));
}

#[test]
fn a_second_payment_is_found() {
    let found = [Invariant::Custom("each invoice is paid once")];
    assert_found(&found, |world| stored(world, Bug::PaysTwice));
    assert_found(&found, |world| in_memory(world, Bug::PaysTwice));
}

#[test]
fn an_ignored_failure_is_found() {
    let found = [Invariant::Custom("each invoice is paid once")];
    assert_found(&found, |world| stored(world, Bug::IgnoresFailure));
    assert_found(&[Invariant::Converges], |world| in_memory(world, Bug::IgnoresFailure));
}
