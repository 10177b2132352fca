//! What is said, and what is true, when the connection is cut or held up in the middle of a verb: on
//! any engine that is reached by one.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use requeue_servers::{Language, Mishap, Point, Proxy};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};

use crate::{Add, Added, FinishError, Item, Queue, State, Store};

const HOUR: Duration = Duration::from_secs(3600);
/// For what has to run out.
const SHORT: Duration = Duration::from_secs(1);

type By = dyn Fn(&str, u16) -> String + Send + Sync;

/// Where it is, and how it is spoken to.
pub(crate) struct Server {
    pub(crate) language: Language,
    pub(crate) port: u16,
    pub(crate) url: String,
    /// The same, by another port.
    pub(crate) by: Box<By>,
    /// What is in each request of a verb, and in no other.
    pub(crate) asked: fn(Verb) -> Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Verb {
    Add,
    AddAll,
    Get,
    Succeed,
    Retry,
    RetryAfter,
    RequeueAfter,
    PutBack,
    Park,
    Cancel,
    Revive,
    Counts,
    Page,
    LookUp,
    Renew,
    /// Waits to be told of keys.
    Listen,
}

/// What is called. Nobody calls for the others.
const CALLS: [Verb; 14] = [
    Verb::Add,
    Verb::AddAll,
    Verb::Get,
    Verb::Succeed,
    Verb::Retry,
    Verb::RetryAfter,
    Verb::RequeueAfter,
    Verb::PutBack,
    Verb::Park,
    Verb::Cancel,
    Verb::Revive,
    Verb::Counts,
    Verb::Page,
    Verb::LookUp,
];

/// What a call says.
#[derive(PartialEq, Eq, Debug)]
enum Said {
    Added(Added),
    New(usize),
    Attempt(u32),
    Ended,
    Unsure,
    Cancelled(bool),
    Revived(bool),
    Seen,
    Failed,
}

/// A state, and failures.
type Stand = Option<(State, u32)>;

impl Verb {
    /// Where the key stands before it.
    const fn before(self) -> Stand {
        match self {
            Self::Add | Self::AddAll => None,
            Self::Get | Self::Cancel | Self::Counts | Self::Page | Self::LookUp | Self::Listen => {
                Some((State::Ready, 0))
            }
            Self::Revive => Some((State::Parked, 1)),
            _ => Some((State::Processing, 0)),
        }
    }

    /// And after it.
    const fn after(self) -> Stand {
        match self {
            Self::Succeed | Self::Cancel => None,
            Self::Add | Self::AddAll | Self::PutBack | Self::Revive => Some((State::Ready, 0)),
            Self::Counts | Self::Page | Self::LookUp => Some((State::Ready, 0)),
            Self::Get | Self::Renew | Self::Listen => Some((State::Processing, 0)),
            Self::Retry | Self::RetryAfter => Some((State::Waiting, 1)),
            Self::RequeueAfter => Some((State::Waiting, 0)),
            Self::Park => Some((State::Parked, 1)),
        }
    }

    /// Whether the library asks again by itself.
    const fn is_tried_again(self) -> bool {
        !matches!(self, Self::Cancel | Self::Revive | Self::Counts | Self::Page | Self::LookUp)
    }

    /// What is said when it is done for the first time; and when it has been done before.
    fn says(self, was_done: bool) -> Said {
        match self {
            Self::Add => Said::Added(if was_done { Added::Coalesced } else { Added::New }),
            Self::AddAll => Said::New(if was_done { 0 } else { 3 }),
            Self::Get | Self::Listen => Said::Attempt(1 + u32::from(was_done)),
            Self::Cancel => Said::Cancelled(!was_done),
            Self::Revive => Said::Revived(!was_done),
            Self::Counts | Self::Page | Self::LookUp => Said::Seen,
            _ if was_done => Said::Unsure,
            _ => Said::Ended,
        }
    }
}

/// A queue behind a proxy, and a way past that.
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
            let mut names = NAMES.lock().expect("nobody panics with it");
            *names += 1;
            format!("cut-{names}")
        };
        let poll = Duration::from_millis(100);
        let direct = store.queue(&name).poll(poll).open().await.expect("it opens");
        let proxy = Proxy::start(server.language, server.port);
        let behind = Store::connect(&(server.by)(&server.url, proxy.port())).await;
        let opening = behind.expect("it is there").queue(&name).lease(lease).poll(poll);
        // Where nothing runs out, what has failed is to be seen.
        let backoff = if lease == SHORT { Duration::from_millis(1) } else { HOUR };
        let queue = opening.backoff(backoff, backoff).add_timeout(Duration::from_secs(20));
        let queue = queue.open().await.expect("it opens");
        Self { server, proxy, queue, direct, item: None }
    }

    async fn prepare(&mut self, verb: Verb) {
        if verb.before().is_some() {
            self.direct.add("a").await.expect("added");
        }
        match verb.before() {
            Some((State::Processing, _)) => self.item = self.queue.get().await,
            Some((State::Parked, _)) => {
                let item = self.direct.get().await.expect("it is there");
                item.park("no").await.expect("it is ours");
            }
            _ => {}
        }
    }

    fn cut(&self, verb: Verb, point: Point) -> Mishap {
        self.proxy.cut(&(self.server.asked)(verb), point)
    }

    fn hold(&self, verb: Verb, point: Point) -> Mishap {
        self.proxy.hold(&(self.server.asked)(verb), point)
    }

    async fn stand(&self) -> Stand {
        let entry = self.direct.look_up("a").await.expect("looked up");
        entry.map(|entry| (entry.state, entry.failures))
    }

    /// All there is is handed out and ended, by two at once, and nothing is left.
    async fn drain(mut self) {
        if let Some(item) = self.item.take() {
            // It may have been lost.
            let _ = item.put_back().await;
        }
        self.direct.add_with("a", Add::now().revive()).await.expect("added");
        let held = Arc::new(Mutex::new(BTreeSet::new()));
        let mut workers = JoinSet::new();
        for queue in [self.queue.clone(), self.direct.clone()] {
            let held = Arc::clone(&held);
            queue.shut_down_when_idle();
            workers.spawn(async move {
                while let Some(item) = queue.get().await {
                    let key = item.key().clone();
                    let of_all = || held.lock().expect("nobody panics with it");
                    let is_alone = of_all().insert(key.clone());
                    assert!(is_alone, "{key} is with two at once");
                    tokio::task::yield_now().await;
                    // Before it is another's.
                    of_all().remove(&key);
                    // It may have been lost, and comes again.
                    let _ = item.succeed().await;
                }
            });
        }
        workers.join_all().await;
        let left = self.direct.counts().await.expect("counted");
        assert_eq!(left, crate::Counts::default());
    }
}

/// Waits for it beside all else.
async fn wait(mishap: &Mishap, what: fn(&Mishap)) {
    let mishap = mishap.clone();
    spawn_blocking(move || what(&mishap)).await.expect("it happens");
}

async fn ended(ended: impl Future<Output = Result<(), FinishError>>) -> Said {
    match ended.await {
        Ok(()) => Said::Ended,
        Err(FinishError::Unsure) => Said::Unsure,
        Err(error) => panic!("{error}"),
    }
}

/// What a verb says; with the item, if it gives one.
async fn call(verb: Verb, queue: Queue, item: Option<Item>) -> (Said, Option<Item>) {
    let its = || item.expect("it is there");
    let said = match verb {
        Verb::Add => Said::Added(queue.add("a").await.expect("added in the end")),
        Verb::AddAll => Said::New(queue.add_all(["a", "b", "c"]).await.expect("added in the end")),
        Verb::Get | Verb::Listen => {
            let item = queue.get().await.expect("it is not shut down");
            return (Said::Attempt(item.attempt()), Some(item));
        }
        Verb::Succeed => ended(its().succeed()).await,
        Verb::Retry => ended(its().retry("no")).await,
        Verb::RetryAfter => ended(its().retry_after(HOUR, "no")).await,
        Verb::RequeueAfter => ended(its().requeue_after(HOUR)).await,
        Verb::PutBack => ended(its().put_back()).await,
        Verb::Park => ended(its().park("no")).await,
        Verb::Cancel => queue.cancel("a").await.map_or(Said::Failed, |c| Said::Cancelled(c.any())),
        Verb::Revive => queue.revive("a").await.map_or(Said::Failed, Said::Revived),
        Verb::Counts => match queue.counts().await {
            Ok(counts) => {
                assert_eq!((counts.ready, counts.processing), (1, 0));
                Said::Seen
            }
            Err(_) => Said::Failed,
        },
        Verb::Page => match queue.snapshot(None, None, 9).await {
            Ok(page) => {
                assert_eq!((page.len(), page[0].key.as_str()), (1, Some("a")));
                Said::Seen
            }
            Err(_) => Said::Failed,
        },
        Verb::LookUp => match queue.look_up("a").await {
            Ok(found) => {
                assert!(found.is_some());
                Said::Seen
            }
            Err(_) => Said::Failed,
        },
        Verb::Renew => unreachable!("nobody calls for it"),
    };
    (said, None)
}

/// The connection is cut in the middle of the verb, there.
async fn cut(server: &'static Server, store: Store, verb: Verb, point: Point) -> Mishap {
    let lease = if verb == Verb::Get { SHORT } else { Duration::from_secs(30) };
    let mut rig = Rig::new(server, &store, lease).await;
    rig.prepare(verb).await;
    let mishap = rig.cut(verb, point);
    let (said, item) = call(verb, rig.queue.clone(), rig.item.take()).await;
    rig.item = item;
    wait(&mishap, Mishap::happened).await;
    let (done, again) = (point.is_done(), verb.is_tried_again());
    assert_eq!(said, if again { verb.says(done) } else { Said::Failed }, "{verb:?} {point:?}");
    let stand = rig.stand().await;
    match &rig.item {
        // One that nobody was told of has failed.
        Some(item) => assert!(item.is_lost() || stand == Some((State::Processing, done.into()))),
        None if done || again => assert_eq!(stand, verb.after(), "{verb:?} {point:?}"),
        None => assert_eq!(stand, verb.before(), "{verb:?} {point:?}"),
    }
    if !again {
        let (said, _) = call(verb, rig.queue.clone(), None).await;
        assert_eq!(said, verb.says(done), "{verb:?} {point:?}, once more");
        assert_eq!(rig.stand().await, verb.after());
    }
    rig.drain().await;
    mishap
}

/// The verb is held up there, and goes on as if nothing had been.
async fn held_up(server: &'static Server, store: Store, verb: Verb, point: Point) -> Mishap {
    let mut rig = Rig::new(server, &store, Duration::from_secs(30)).await;
    rig.prepare(verb).await;
    let mishap = rig.hold(verb, point);
    let calling = tokio::spawn(call(verb, rig.queue.clone(), rig.item.take()));
    wait(&mishap, Mishap::happened).await;
    assert!(!calling.is_finished(), "{verb:?} was not held up at {point:?}");
    let expected = if point.is_done() { verb.after() } else { verb.before() };
    assert_eq!(rig.stand().await, expected, "{verb:?}, held up at {point:?}");
    mishap.release();
    let (said, item) = calling.await.expect("it ends");
    rig.item = item;
    assert_eq!(said, verb.says(false), "{verb:?}, held up at {point:?}");
    assert_eq!(rig.stand().await, verb.after(), "{verb:?}, held up at {point:?}");
    rig.drain().await;
    mishap
}

/// A renewal is cut or held up, and the lease goes on by the next.
async fn renewed(server: &'static Server, store: Store, point: Point, is_cut: bool) -> Mishap {
    let mut rig = Rig::new(server, &store, Duration::from_secs(6)).await;
    rig.prepare(Verb::Renew).await;
    let mishap = if is_cut { rig.cut(Verb::Renew, point) } else { rig.hold(Verb::Renew, point) };
    wait(&mishap, Mishap::happened).await;
    if is_cut {
        let next = rig.hold(Verb::Renew, Point::Answer);
        wait(&next, Mishap::happened).await;
        next.release();
        wait(&next, Mishap::answered).await;
    } else {
        mishap.release();
        wait(&mishap, Mishap::answered).await;
    }
    let item = rig.item.take().expect("it was there");
    let stand = rig.stand().await;
    assert!(!item.is_lost(), "{point:?}: the lease was renewed, {stand:?}");
    assert_eq!(stand, Verb::Renew.after(), "{point:?}");
    item.succeed().await.expect("it is ours");
    rig.drain().await;
    mishap
}

/// Who waits to be told of keys is cut off, and hears of one all the same.
async fn told(server: &'static Server, store: Store, point: Point) -> Mishap {
    let mut rig = Rig::new(server, &store, Duration::from_secs(30)).await;
    let mishap = rig.cut(Verb::Listen, point);
    // Who listens already does it anew.
    rig.proxy.close();
    rig.proxy.open();
    let calling = tokio::spawn(call(Verb::Listen, rig.queue.clone(), None));
    if !point.is_done() {
        wait(&mishap, Mishap::happened).await;
    }
    rig.direct.add("a").await.expect("added");
    let (said, item) = calling.await.expect("it ends");
    assert_eq!(said, Said::Attempt(1), "{point:?}");
    rig.item = item;
    // Another may have been waiting for this one meanwhile, who is told as well.
    wait(&mishap, Mishap::happened).await;
    rig.drain().await;
    mishap
}

/// How often what befell which verb where.
pub(crate) type Counted = BTreeMap<(Verb, Point), u32>;

/// Everything is cut everywhere, and held up where that is another thing.
pub(crate) async fn everywhere(server: &'static Server) -> [Counted; 2] {
    let store = Store::connect(&server.url).await.expect("it is there");
    store.migrate().await.expect("the schema is made");
    // Each has connections of its own.
    let turns = Arc::new(Semaphore::new(16));
    let mut all = JoinSet::new();
    for point in Point::ALL {
        for verb in CALLS.into_iter().chain([Verb::Renew, Verb::Listen]) {
            let holds = matches!(point, Point::Request | Point::Answer) && verb != Verb::Listen;
            for is_cut in if holds { &[true, false][..] } else { &[true] } {
                let (store, turns) = (store.clone(), Arc::clone(&turns));
                all.spawn(async move {
                    let _turn = turns.acquire().await.expect("it is never closed");
                    let mishap = match verb {
                        Verb::Renew => renewed(server, store, point, *is_cut).await,
                        Verb::Listen => told(server, store, point).await,
                        _ if *is_cut => cut(server, store, verb, point).await,
                        _ => held_up(server, store, verb, point).await,
                    };
                    (verb, point, *is_cut, mishap.has_happened())
                });
            }
        }
    }
    let mut counted = [Counted::new(), Counted::new()];
    while let Some(done) = all.join_next().await {
        let (verb, point, is_cut, happened) = done.expect("it goes well");
        *counted[usize::from(!is_cut)].entry((verb, point)).or_default() += u32::from(happened);
    }
    let verbs = CALLS.into_iter().chain([Verb::Renew, Verb::Listen]);
    for (verb, point) in verbs.flat_map(|verb| Point::ALL.map(|point| (verb, point))) {
        assert!(counted[0].get(&(verb, point)).is_some_and(|&n| n > 0), "{verb:?} {point:?}");
    }
    assert_eq!(counted[1].len(), 2 * (CALLS.len() + 1));
    counted
}

/// What is still on its way when nobody waits for it any more.
pub(crate) async fn late(server: &'static Server) {
    let store = Store::connect(&server.url).await.expect("it is there");
    store.migrate().await.expect("the schema is made");

    // The end of a run arrives when its lease is over, and another has the key.
    let mut rig = Rig::new(server, &store, SHORT).await;
    rig.prepare(Verb::Succeed).await;
    let held = rig.hold(Verb::Succeed, Point::Request);
    let ending = rig.item.take().expect("it is there");
    let ending = tokio::spawn(ended(async move { ending.succeed().await }));
    wait(&held, Mishap::happened).await;
    // More than are made before it is lost.
    let renewals: Vec<Mishap> = (0..20).map(|_| rig.hold(Verb::Renew, Point::Request)).collect();
    assert_eq!(ending.await.expect("it ends"), Said::Unsure);
    let again = rig.direct.get().await.expect("it is not shut down");
    assert_eq!(again.attempt(), 2);
    renewals.iter().chain([&held]).for_each(Mishap::release);
    wait(&held, Mishap::answered).await;
    assert_eq!(rig.stand().await, Some((State::Processing, 1)));
    again.succeed().await.expect("it is ours still");
    rig.drain().await;

    // A claim arrives when who made it has given it up.
    let mut rig = Rig::new(server, &store, SHORT).await;
    rig.prepare(Verb::Get).await;
    let held = rig.hold(Verb::Get, Point::Request);
    let getting = tokio::spawn(call(Verb::Get, rig.queue.clone(), None));
    wait(&held, Mishap::happened).await;
    tokio::time::sleep(SHORT).await;
    held.release();
    let (said, item) = getting.await.expect("it ends");
    assert!(matches!(said, Said::Attempt(1..=3)), "{said:?}");
    rig.item = item;
    rig.drain().await;

    // An add arrives when its time is over; or can't be made at all.
    let rig = Rig::new(server, &store, Duration::from_secs(30)).await;
    let url = (server.by)(&server.url, rig.proxy.port());
    let hasty = Store::connect(&url).await.expect("it is there");
    let hasty = hasty.queue(rig.queue.name()).add_timeout(SHORT).open().await.expect("it opens");
    let held = rig.hold(Verb::Add, Point::Request);
    let error = hasty.add("a").await.expect_err("it is held up");
    assert!(error.may_have_happened(), "{error}");
    assert_eq!(rig.stand().await, None);
    held.release();
    wait(&held, Mishap::answered).await;
    assert_eq!(rig.stand().await, Some((State::Ready, 0)));
    let cut = rig.cut(Verb::Add, Point::Answer);
    let adding = tokio::spawn({
        let hasty = hasty.clone();
        async move { hasty.add("b").await }
    });
    wait(&cut, Mishap::happened).await;
    rig.proxy.close();
    match adding.await.expect("it ends") {
        // It was quicker than that.
        Ok(added) => assert_eq!(added, Added::Coalesced),
        Err(error) => assert!(error.may_have_happened(), "{error}"),
    }
    assert!(rig.direct.look_up("b").await.expect("looked up").is_some());
    // It has to be told of the end of its connections.
    while hasty.counts().await.is_ok() {}
    let error = hasty.add("c").await.expect_err("nobody is let in");
    assert!(rig.direct.look_up("c").await.expect("looked up").is_none());
    assert!(!error.may_have_happened(), "{error}");
    rig.proxy.open();
    assert_eq!(rig.queue.add("c").await.expect("it is open again"), Added::New);
    rig.drain().await;
}
