//! What is said, and what is true, when the connection is cut or held up in the middle of a verb: on
//! any engine that is reached by one.

mod verbs;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use requeue_servers::{Language, Mishap, Point, Proxy};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, spawn_blocking};

pub(crate) use self::verbs::Verb;
use self::verbs::{CALLS, Said, Stand, call, ended};
use crate::{Add, Added, Item, Queue, ReAdd, State, Store};

const HOUR: Duration = Duration::from_secs(3600);
/// A lease or a limit that has to run out, but not while a slow machine makes one step.
const SHORT: Duration = Duration::from_secs(3);

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

/// The tests of an engine, of which `$server` is an optional [`Server`].
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
        // An add ends a backoff, so that the next step has the key.
        let opening = store.queue(&name).re_add(ReAdd::Replace);
        let direct = opening.poll(poll).open().await.expect("it opens");
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
                item.give_up("no").await.expect("it is ours");
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
            let _ = item.release().await;
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
    let mut rig = Rig::new(server, &store, Duration::from_secs(9)).await;
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

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Deed {
    Cut,
    Held,
}

/// All there is to do.
fn all() -> impl Iterator<Item = (Verb, Point, Deed)> {
    let verbs = || CALLS.into_iter().chain([Verb::Renew, Verb::Listen]);
    let cuts = Point::ALL.into_iter().map(|point| (point, Deed::Cut));
    let holds = [(Point::Request, Deed::Held), (Point::Answer, Deed::Held)];
    cuts.chain(holds).flat_map(move |(point, deed)| {
        let verbs = verbs().filter(move |&verb| deed == Deed::Cut || verb != Verb::Listen);
        verbs.map(move |verb| (verb, point, deed))
    })
}

/// Everything is cut everywhere, and held up where that is another thing. Says how often.
pub(crate) async fn everywhere(server: &'static Server) {
    let store = Store::connect(&server.url).await.expect("it is there");
    store.migrate().await.expect("the schema is made");
    // Each has connections of its own.
    let turns = Arc::new(Semaphore::new(16));
    let mut doing = JoinSet::new();
    for (verb, point, deed) in all() {
        let (store, turns) = (store.clone(), Arc::clone(&turns));
        doing.spawn(async move {
            let _turn = turns.acquire().await.expect("it is never closed");
            let mishap = match (verb, deed) {
                (Verb::Renew, _) => renewed(server, store, point, deed == Deed::Cut).await,
                (Verb::Listen, _) => told(server, store, point).await,
                (_, Deed::Cut) => cut(server, store, verb, point).await,
                (_, Deed::Held) => held_up(server, store, verb, point).await,
            };
            (verb, point, deed, mishap.has_happened())
        });
    }
    let mut counted = BTreeMap::<_, u32>::new();
    while let Some(done) = doing.join_next().await {
        let (verb, point, deed, happened) = done.expect("it goes well");
        *counted.entry((verb, point, deed)).or_default() += u32::from(happened);
    }
    for what in all() {
        let count = counted.get(&what).copied().unwrap_or(0);
        println!("{what:?}: {count}");
        assert!(count > 0, "{what:?}");
    }
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
