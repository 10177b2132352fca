//! Cuts or delays the connection to a server during an operation. The answer must agree with the state of the store.

mod operations;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use requeue_servers::{Language, Mishap, Point, Proxy};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};

pub(crate) use self::operations::Operation;
use self::operations::{CALLS, Said, Stand, call, ended};
use crate::{Add, Added, Item, Merge, Queue, ReaddPolicy, State, Store};

const HOUR: Duration = Duration::from_secs(3600);
/// A lease or time limit that expires during a test. It does not expire during one step, even on a slow machine.
const SHORT: Duration = Duration::from_secs(3);

type By = dyn Fn(&str, u16) -> String + Send + Sync;

/// The address and the protocol of a server.
pub(crate) struct Server {
    pub(crate) language: Language,
    pub(crate) port: u16,
    pub(crate) url: String,
    /// Returns the address with another port.
    pub(crate) by: Box<By>,
    /// Returns bytes that each request of an operation contains, and no other request contains.
    pub(crate) asked: fn(Operation) -> Vec<u8>,
}

/// Defines the tests of an engine. `$server` is an optional [`Server`].
macro_rules! tests {
    ($server:expr) => {
        #[tokio::test]
        async fn a_cut_anywhere_loses_nothing_and_is_told() {
            let Some(server) = $server else { return };
            cuts::everywhere(Box::leak(Box::new(server))).await;
        }

        #[tokio::test]
        async fn what_arrives_late_changes_nothing() {
            let Some(server) = $server else { return };
            cuts::late(Box::leak(Box::new(server))).await;
        }
    };
}
pub(crate) use tests;

/// A queue that is opened through a proxy, and the same queue without the proxy.
struct Rig {
    server: &'static Server,
    proxy: Proxy,
    queue: Queue,
    direct: Queue,
    item: Option<Item>,
}

impl Rig {
    async fn new(server: &'static Server, store: &Store, lease: Duration) -> Self {
        static NAMES: Mutex<u32> = Mutex::new(0);
        let name = {
            let mut names = NAMES.lock().expect("the mutex is not poisoned");
            *names += 1;
            format!("cut-{names}")
        };
        let poll = Duration::from_millis(100);
        // With `Replace`, an add replaces the due time of a key that backs off. Therefore, the next step receives the
        // key.
        let opening = store.queue(&name).readd_policy(ReaddPolicy::Replace);
        let direct = opening.poll(poll).open().await.expect("the queue opens");
        let proxy = Proxy::start(server.language, server.port);
        let behind = Store::connect(&(server.by)(&server.url, proxy.port())).await;
        let opening = behind.expect("the test has an item").queue(&name).lease(lease).poll(poll);
        // If no lease expires, the backoff is long, so that a failed key still waits when the test checks it.
        let backoff = if lease == SHORT { Duration::from_millis(1) } else { HOUR };
        let queue = opening.backoff(backoff, backoff).add_timeout(Duration::from_secs(20));
        let queue = queue.open().await.expect("the queue opens");
        Self { server, proxy, queue, direct, item: None }
    }

    async fn prepare(&mut self, operation: Operation) {
        if operation.before().is_some() {
            self.direct.add("a").await.expect("added");
        }
        match operation.before() {
            Some((State::Waiting, _)) => {
                let later = Add::after(HOUR).merge(Merge::Exactly);
                self.direct.add_with("a", later).await.expect("added");
            }
            Some((State::InFlight, _)) => self.item = self.queue.get().await,
            Some((State::Parked, _)) => {
                let item = self.direct.get().await.expect("the test has an item");
                item.give_up("no").await.expect("the lease is held");
            }
            _ => {}
        }
    }

    fn cut(&self, operation: Operation, point: Point) -> Mishap {
        self.proxy.cut(&(self.server.asked)(operation), point)
    }

    fn hold(&self, operation: Operation, point: Point) -> Mishap {
        self.proxy.hold(&(self.server.asked)(operation), point)
    }

    async fn stand(&self) -> Stand {
        let entry = self.direct.look_up("a").await.expect("looked up");
        entry.map(|entry| (entry.state, entry.failures))
    }

    /// Runs all keys with two workers. Checks that both workers never have the same key at the same time, and that no
    /// key remains.
    async fn drain(mut self) {
        if let Some(item) = self.item.take() {
            // The lease may be lost, so the result is ignored.
            let _ = item.release().await;
        }
        self.direct.add_with("a", Add::now().revive()).await.expect("added");
        self.direct.resume().await.expect("resumed");
        let held = Arc::new(Mutex::new(BTreeSet::new()));
        let mut workers = JoinSet::new();
        for queue in [self.queue.clone(), self.direct.clone()] {
            let held = Arc::clone(&held);
            queue.shut_down_when_idle();
            workers.spawn(async move {
                while let Some(item) = queue.get().await {
                    let key = item.key().clone();
                    let of_all = || held.lock().expect("the mutex is not poisoned");
                    let is_alone = of_all().insert(key.clone());
                    assert!(is_alone, "{key} is with two at once");
                    tokio::task::yield_now().await;
                    // The key is removed from this set before the other worker can receive it.
                    of_all().remove(&key);
                    // If the lease is lost, the key is delivered again, so the result is ignored.
                    let _ = item.succeed().await;
                }
            });
        }
        workers.join_all().await;
        let left = self.direct.counts().await.expect("counted");
        assert_eq!(left, crate::StateCounts::default());
    }
}

/// Waits for an event of the proxy on another thread, so that the runtime is not blocked.
async fn wait(mishap: &Mishap, what: fn(&Mishap)) {
    let mishap = mishap.clone();
    spawn_blocking(move || what(&mishap)).await.expect("no panic");
}

/// Cuts the connection at a point of an operation. Checks the answer and the state of the key.
async fn cut(server: &'static Server, store: Store, operation: Operation, point: Point) -> Mishap {
    let lease = if operation == Operation::Get { SHORT } else { Duration::from_secs(30) };
    let mut rig = Rig::new(server, &store, lease).await;
    rig.prepare(operation).await;
    let mishap = rig.cut(operation, point);
    let (said, item) = call(operation, rig.queue.clone(), rig.item.take()).await;
    rig.item = item;
    wait(&mishap, Mishap::happened).await;
    let (done, again) = (point.is_done(), operation.is_tried_again());
    match operation.is_update() {
        // The process cannot know which part of the request has arrived.
        true => assert!(
            said == Said::MayHaveHappened || said == Said::Failed && !done,
            "{operation:?} {point:?}: {said:?}"
        ),
        false => assert_eq!(
            said,
            if again { operation.says(done) } else { Said::Failed },
            "{operation:?} {point:?}"
        ),
    }
    let stand = rig.stand().await;
    match &rig.item {
        // If the answer to a claim was lost, the delivery has failed.
        Some(item) => {
            let failures = u32::from(done && operation == Operation::Get);
            assert!(item.is_lost() || stand == Some((State::InFlight, failures)));
        }
        None if done || again => assert_eq!(stand, operation.after(), "{operation:?} {point:?}"),
        None => assert_eq!(stand, operation.before(), "{operation:?} {point:?}"),
    }
    if !again {
        let (said, item) = call(operation, rig.queue.clone(), rig.item.take()).await;
        rig.item = item;
        assert_eq!(said, operation.says(done), "{operation:?} {point:?}, once more");
        assert_eq!(rig.stand().await, operation.after());
    }
    rig.drain().await;
    mishap
}

/// Delays an operation at a point. Checks that it then completes normally.
async fn held_up(
    server: &'static Server,
    store: Store,
    operation: Operation,
    point: Point,
) -> Mishap {
    let mut rig = Rig::new(server, &store, Duration::from_secs(30)).await;
    rig.prepare(operation).await;
    let mishap = rig.hold(operation, point);
    let calling = tokio::spawn(call(operation, rig.queue.clone(), rig.item.take()));
    wait(&mishap, Mishap::happened).await;
    assert!(!calling.is_finished(), "{operation:?} was not held up at {point:?}");
    let expected = if point.is_done() { operation.after() } else { operation.before() };
    assert_eq!(rig.stand().await, expected, "{operation:?}, held up at {point:?}");
    mishap.release();
    let (said, item) = calling.await.expect("the task completes");
    rig.item = item;
    assert_eq!(said, operation.says(false), "{operation:?}, held up at {point:?}");
    assert_eq!(rig.stand().await, operation.after(), "{operation:?}, held up at {point:?}");
    rig.drain().await;
    mishap
}

/// Cuts or delays a renewal. Checks that the lease is valid after the next renewal.
async fn renewed(server: &'static Server, store: Store, point: Point, is_cut: bool) -> Mishap {
    let mut rig = Rig::new(server, &store, Duration::from_secs(9)).await;
    rig.prepare(Operation::Renew).await;
    let mishap =
        if is_cut { rig.cut(Operation::Renew, point) } else { rig.hold(Operation::Renew, point) };
    wait(&mishap, Mishap::happened).await;
    if is_cut {
        let next = rig.hold(Operation::Renew, Point::Answer);
        wait(&next, Mishap::happened).await;
        next.release();
        wait(&next, Mishap::answered).await;
    } else {
        mishap.release();
        wait(&mishap, Mishap::answered).await;
    }
    let item = rig.item.take().expect("the test has an item");
    let stand = rig.stand().await;
    assert!(!item.is_lost(), "{point:?}: the lease was renewed, {stand:?}");
    assert_eq!(stand, Operation::Renew.after(), "{point:?}");
    item.succeed().await.expect("the lease is held");
    rig.drain().await;
    mishap
}

/// Cuts the connection for notifications. Checks that a getter receives a key nevertheless.
async fn cut_listener(server: &'static Server, store: Store, point: Point) -> Mishap {
    let mut rig = Rig::new(server, &store, Duration::from_secs(30)).await;
    let mishap = rig.cut(Operation::Listen, point);
    // If the listener is connected, it must connect again.
    rig.proxy.close();
    rig.proxy.open();
    let calling = tokio::spawn(call(Operation::Listen, rig.queue.clone(), None));
    if !point.is_done() {
        wait(&mishap, Mishap::happened).await;
    }
    rig.direct.add("a").await.expect("added");
    let (said, item) = calling.await.expect("the task completes");
    assert_eq!(said, Said::Attempt(1), "{point:?}");
    rig.item = item;
    // In the meantime, another connection may have waited for notifications. It also receives the notification.
    wait(&mishap, Mishap::happened).await;
    rig.drain().await;
    mishap
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Deed {
    Cut,
    Held,
}

/// Returns all combinations of an operation, a point and a deed.
fn all() -> impl Iterator<Item = (Operation, Point, Deed)> {
    let operations = || CALLS.into_iter().chain([Operation::Renew, Operation::Listen]);
    let cuts = Point::ALL.into_iter().map(|point| (point, Deed::Cut));
    let holds = [(Point::Request, Deed::Held), (Point::Answer, Deed::Held)];
    cuts.chain(holds).flat_map(move |(point, deed)| {
        let operations = operations()
            .filter(move |&operation| deed == Deed::Cut || operation != Operation::Listen);
        operations.map(move |operation| (operation, point, deed))
    })
}

/// Cuts each operation at each point, and delays it at the points at which a delay has an effect. Prints how often each
/// case has occurred.
pub(crate) async fn everywhere(server: &'static Server) {
    let store = Store::connect(&server.url).await.expect("the test has an item");
    store.migrate().await.expect("the schema is created");
    // The number of concurrent tests is limited, because each test has separate connections.
    let turns = Arc::new(Semaphore::new(16));
    let mut doing = JoinSet::new();
    for (operation, point, deed) in all() {
        let (store, turns) = (store.clone(), Arc::clone(&turns));
        doing.spawn(async move {
            let _turn = turns.acquire().await.expect("the semaphore is never closed");
            let mishap = match (operation, deed) {
                (Operation::Renew, _) => renewed(server, store, point, deed == Deed::Cut).await,
                (Operation::Listen, _) => cut_listener(server, store, point).await,
                (_, Deed::Cut) => cut(server, store, operation, point).await,
                (_, Deed::Held) => held_up(server, store, operation, point).await,
            };
            (operation, point, deed, mishap.has_happened())
        });
    }
    let mut counted = BTreeMap::<_, u32>::new();
    while let Some(done) = doing.join_next().await {
        let (operation, point, deed, happened) = done.expect("no panic");
        *counted.entry((operation, point, deed)).or_default() += u32::from(happened);
    }
    for what in all() {
        let count = counted.get(&what).copied().unwrap_or(0);
        println!("{what:?}: {count}");
        assert!(count > 0, "{what:?}");
    }
}

/// Checks requests that arrive after their callers have stopped waiting.
pub(crate) async fn late(server: &'static Server) {
    let store = Store::connect(&server.url).await.expect("the test has an item");
    store.migrate().await.expect("the schema is created");

    // A completion arrives after its lease has expired and another worker has received the key.
    let mut rig = Rig::new(server, &store, SHORT).await;
    rig.prepare(Operation::Succeed).await;
    let held = rig.hold(Operation::Succeed, Point::Request);
    let ending = rig.item.take().expect("the test has an item");
    let ending = tokio::spawn(ended(async move { ending.succeed().await }));
    wait(&held, Mishap::happened).await;
    // These are more renewals than the process sends before the lease is lost.
    let renewals: Vec<Mishap> =
        (0..20).map(|_| rig.hold(Operation::Renew, Point::Request)).collect();
    assert_eq!(ending.await.expect("the task completes"), Said::Unsure);
    let again = rig.direct.get().await.expect("the queue is open");
    assert_eq!(again.attempt(), 2);
    renewals.iter().chain([&held]).for_each(Mishap::release);
    wait(&held, Mishap::answered).await;
    assert_eq!(rig.stand().await, Some((State::InFlight, 1)));
    again.succeed().await.expect("the lease is still held");
    rig.drain().await;

    // A claim arrives after its process has stopped waiting for the answer.
    let mut rig = Rig::new(server, &store, SHORT).await;
    rig.prepare(Operation::Get).await;
    let held = rig.hold(Operation::Get, Point::Request);
    let getting = tokio::spawn(call(Operation::Get, rig.queue.clone(), None));
    wait(&held, Mishap::happened).await;
    tokio::time::sleep(SHORT).await;
    held.release();
    let (said, item) = getting.await.expect("the task completes");
    assert!(matches!(said, Said::Attempt(1..=3)), "{said:?}");
    rig.item = item;
    rig.drain().await;

    // One add arrives after its time limit. Another add cannot be sent.
    let rig = Rig::new(server, &store, Duration::from_secs(30)).await;
    let url = (server.by)(&server.url, rig.proxy.port());
    let hasty = Store::connect(&url).await.expect("the test has an item");
    let hasty =
        hasty.queue(rig.queue.name()).add_timeout(SHORT).open().await.expect("the queue opens");
    let held = rig.hold(Operation::Add, Point::Request);
    let error = hasty.add("a").await.expect_err("the add is held up");
    assert!(error.may_have_happened(), "{error}");
    assert_eq!(rig.stand().await, None);
    held.release();
    wait(&held, Mishap::answered).await;
    assert_eq!(rig.stand().await, Some((State::Ready, 0)));
    let cut = rig.cut(Operation::Add, Point::Answer);
    let adding = tokio::spawn({
        let hasty = hasty.clone();
        async move { hasty.add("b").await }
    });
    wait(&cut, Mishap::happened).await;
    rig.proxy.close();
    match adding.await.expect("the task completes") {
        // The add was completed before the proxy was closed.
        Ok(added) => assert_eq!(added, Added::Coalesced),
        Err(error) => assert!(error.may_have_happened(), "{error}"),
    }
    assert!(rig.direct.look_up("b").await.expect("looked up").is_some());
    // The engine must first detect that its connections are closed.
    while hasty.counts().await.is_ok() {}
    let error = hasty.add("c").await.expect_err("the proxy is closed");
    assert!(rig.direct.look_up("c").await.expect("looked up").is_none());
    assert!(!error.may_have_happened(), "{error}");
    rig.proxy.open();
    assert_eq!(rig.queue.add("c").await.expect("the proxy is open again"), Added::New);
    rig.drain().await;
}
