//! Tests damaged rows, which another program has written and requeue cannot read. They must not affect other keys. The
//! tests of each engine write many such rows, and check them with these functions.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;

use crate::engine::damage::Damaged;
use crate::engine::{
    Ask, Asked, Backoff, Claim, Dropped, End, Engine, Failing, Failure, Finish, Place, Renewed,
    Settings,
};
use crate::tests::Batches as _;
use crate::types::add::{Add, Added};
use crate::types::error;
use crate::types::inspect::{State, StateCounts};
use crate::types::key::Key;

/// The key whose row the test overwrites.
pub(crate) const BAD: &str = "bad";

const STATES: [State; 5] =
    [State::Ready, State::Waiting, State::InFlight, State::Parked, State::Damaged];

/// The state of the key before the test overwrites its row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    Ready,
    Failed,
    Waiting,
    Parked,
    Running,
    Dirty,
    /// The key is in flight, and its lease has expired.
    Expired,
}

impl Kind {
    pub(crate) const ALL: [Self; 7] = [
        Self::Ready,
        Self::Failed,
        Self::Waiting,
        Self::Parked,
        Self::Running,
        Self::Dirty,
        Self::Expired,
    ];
}

/// Values for the columns of a row: the limits of types, and the numbers next to them.
pub(crate) const NUMBERS: [i64; 20] = [
    i64::MIN,
    i64::MIN + 1,
    -9_223_372_036_854_775,
    i32::MIN as i64,
    i16::MIN as i64,
    -2,
    -1,
    0,
    1,
    2,
    3,
    4,
    7,
    i16::MAX as i64,
    i32::MAX as i64,
    u32::MAX as i64,
    u32::MAX as i64 + 1,
    1 << 53,
    i64::MAX - 1,
    i64::MAX,
];

pub(crate) fn number(rng: &mut Rng) -> i64 {
    if rng.u8(..4) == 0 { rng.i64(..) } else { NUMBERS[rng.usize(..NUMBERS.len())] }
}

/// A queue that has a key in each state, and the key whose row the test overwrites.
pub(crate) struct Scene {
    engine: Arc<dyn Engine>,
    place: Place,
    /// The valid keys in flight.
    held: Vec<(Key, i64)>,
    bad_epoch: i64,
}

fn ask(key: &str, add: Add) -> Ask {
    Ask::new(key, add)
}

pub(crate) fn claim(max: usize, lease: Duration) -> Claim {
    let backoff = Backoff { base: Duration::ZERO, cap: Duration::ZERO, share: 1.0 };
    let expired = Failing { backoff, max_failures: None };
    Claim { max, oldest: 1, lease, expired, poll: Duration::ZERO }
}

const LEASE: Duration = Duration::from_secs(3600);

impl Scene {
    pub(crate) async fn new(engine: Arc<dyn Engine>, place: Place, kind: Kind) -> Self {
        let mut scene = Self { engine, place, held: Vec::new(), bad_epoch: 1 };
        let failure = Failure::new(Asked::default(), "no");
        let park = Finish::GiveUp(failure.clone());
        let again = Finish::RetryAfter(Duration::ZERO, None, failure);

        for key in ["parked", "running", "dirty"] {
            let epoch = scene.started(key, LEASE).await;
            match key {
                "parked" => scene.end(key, epoch, park.clone()).await,
                _ => scene.held.push((key.into(), epoch)),
            }
        }
        scene.add("dirty", Add::now()).await;
        match kind {
            Kind::Ready => scene.add(BAD, Add::now()).await,
            Kind::Waiting => scene.add(BAD, Add::after(LEASE)).await,
            Kind::Failed => {
                let epoch = scene.started(BAD, LEASE).await;
                scene.end(BAD, epoch, again).await;
            }
            Kind::Parked => {
                let epoch = scene.started(BAD, LEASE).await;
                scene.end(BAD, epoch, park).await;
            }
            Kind::Running => scene.bad_epoch = scene.started(BAD, LEASE).await,
            Kind::Dirty => {
                scene.bad_epoch = scene.started(BAD, LEASE).await;
                scene.add(BAD, Add::now()).await;
            }
            Kind::Expired => scene.bad_epoch = scene.started(BAD, Duration::ZERO).await,
        }
        scene.add("low", Add::now().priority(crate::Priority::Low)).await;
        scene.add("normal", Add::now()).await;
        scene.add("high", Add::now().priority(crate::Priority::High)).await;
        scene.add("later", Add::after(LEASE)).await;
        scene
    }

    async fn add(&self, key: &str, add: Add) {
        self.engine.add_keys(&self.place, vec![ask(key, add)]).await.expect("added");
    }

    async fn started(&self, key: &str, lease: Duration) -> i64 {
        self.add(key, Add::now()).await;
        let claimed = self.engine.claim_keys(&self.place, claim(1, lease)).await.expect("claimed");
        assert_eq!(claimed.items[0].key, Key::from(key));
        claimed.items[0].epoch
    }

    async fn end(&self, key: &str, epoch: i64, how: Finish) {
        let ends = vec![End { key: key.into(), epoch, how }];
        assert_eq!(
            self.engine.finish_deliveries(&self.place, ends).await.expect("completed"),
            [true]
        );
    }

    /// Reads pages of all keys, counts all keys, and walks over all keys.
    async fn looks(&self, how: &str) -> StateCounts {
        let (engine, place) = (&self.engine, &self.place);
        for state in STATES.map(Some).into_iter().chain([None]) {
            let page = engine.read_page(place, state, None, 100).await;
            let page = page.unwrap_or_else(|error| panic!("{how}: {}", error.source));
            for entry in page {
                let _ = entry.explain();
                assert!(state.is_none_or(|state| entry.state == state || entry.key == BAD.into()));
            }
            let mut from = None;
            loop {
                let walked = engine.walk_keys(place, state, from, 3).await;
                let walked = walked.unwrap_or_else(|error| panic!("{how}: {}", error.source));
                from = walked.next;
                if from.is_none() {
                    break;
                }
            }
        }
        engine.count_keys(place).await.unwrap_or_else(|error| panic!("{how}: {}", error.source))
    }

    async fn is_damaged(&self, how: &str) -> bool {
        let found = self.engine.look_up(&self.place, &BAD.into()).await;
        let found = found.unwrap_or_else(|error| panic!("{how}: {}", error.source));
        let Some(entry) = found else { return false };
        if entry.state == State::Damaged {
            assert!(entry.error.is_some_and(|error| !error.is_empty()), "{how}");
            return true;
        }
        false
    }

    /// Checks that all valid ready keys are delivered. Also checks that all other operations on valid keys succeed in
    /// one batch with the bad key. Returns true if the bad key was damaged, and the reports of the claims.
    pub(crate) async fn check(&self, how: &str) -> (bool, Vec<Damaged>) {
        let (engine, place) = (&self.engine, &self.place);
        let is_damaged = self.is_damaged(how).await;
        self.looks(how).await;
        engine.is_idle(place).await.unwrap_or_else(|error| panic!("{how}: {}", error.source));

        let (mut delivered, mut reported) = (Vec::new(), Vec::new());
        for _ in 0..8 {
            let claimed = engine.claim_keys(place, claim(9, LEASE)).await;
            let claimed = claimed.unwrap_or_else(|error| panic!("{how}: {}", error.source));
            delivered.extend(claimed.items.into_iter().map(|out| (out.key, out.epoch)));
            reported.extend(claimed.damaged);
        }
        let names: BTreeSet<String> = delivered.iter().map(|(key, _)| key.to_string()).collect();
        for key in ["high", "low", "normal"] {
            assert!(names.contains(key), "{how}: {key} is not delivered, but {names:?}");
        }
        assert!(!is_damaged || !names.contains(BAD), "{how}: a damaged key is delivered");
        assert!(reported.iter().all(|damaged| damaged.key == BAD.into()), "{how}: {reported:?}");
        assert!(reported.len() <= 1, "{how}: {reported:?}");
        assert_eq!(self.is_damaged(how).await, is_damaged && !names.contains(BAD), "{how}");
        let counts = self.looks(how).await;
        assert_eq!(
            (counts.parked.max(1), counts.dirty.max(1)),
            (counts.parked, counts.dirty),
            "{how}"
        );
        if !reported.is_empty() {
            assert_eq!(counts.damaged, 1, "{how}");
        }

        let bad = (Key::from(BAD), self.bad_epoch);
        let held = [std::slice::from_ref(&bad), &self.held].concat();
        let renewed = engine.renew_leases(place, held, LEASE).await;
        let renewed = renewed.unwrap_or_else(|error| panic!("{how}: {}", error.source));
        assert_eq!(renewed[1..3], [Renewed::Yes; 2], "{how}");
        assert!(!is_damaged || renewed[0] == Renewed::Lost, "{how}");

        let revived =
            engine.make_ready(place, vec![BAD.into(), "parked".into()], State::Parked).await;
        let revived = revived.unwrap_or_else(|error| panic!("{how}: {}", error.source));
        assert_eq!(revived[1], Some(true), "{how}");
        assert!(!is_damaged || revived[0] == Some(false), "{how}");

        let delivered = delivered.into_iter().filter(|(key, _)| *key != BAD.into());
        let all: Vec<_> = [bad].into_iter().chain(self.held.clone()).chain(delivered).collect();
        for (n, how_to_end) in [
            Finish::Release(Asked::default()),
            Finish::RequeueAfter(LEASE, crate::Priority::Normal),
            Finish::Succeed,
        ]
        .into_iter()
        .enumerate()
        {
            // The first parts have two keys each. The bad key is skipped, because it is in each batch.
            let part = all.iter().skip(1).skip(2 * n).take(if n == 2 { 9 } else { 2 });
            let ends: Vec<End> = all[..1]
                .iter()
                .chain(part)
                .map(|(key, epoch)| End {
                    key: key.clone(),
                    epoch: *epoch,
                    how: how_to_end.clone(),
                })
                .collect();
            let ended = engine.finish_deliveries(place, ends).await;
            let ended = ended.unwrap_or_else(|error| panic!("{how}: {}", error.source));
            assert!(ended[1..].iter().all(|ended| *ended), "{how}: {ended:?}");
            // An engine may accept the success of the bad key's run, because a success removes the row.
            assert!(!is_damaged || !ended[0] || n == 2, "{how}");
        }
        (is_damaged, reported)
    }

    /// Checks that an add of the bad key, in a batch with other keys, replaces its row. The key then runs.
    pub(crate) async fn check_add(&self, how: &str) {
        let (engine, place) = (&self.engine, &self.place);
        let is_damaged = self.is_damaged(how).await;
        let asks = ["later", BAD, "new"].map(|key| ask(key, Add::now())).to_vec();
        let added = engine.add_keys(place, asks).await;
        let added = added.unwrap_or_else(|error| panic!("{how}: {}", error.source));
        assert_eq!((added[0], added[2]), (Added::New, Added::New), "{how}");
        if !is_damaged {
            return;
        }
        assert_eq!(added[1], Added::New, "{how}");
        let mut delivered = BTreeSet::new();
        for _ in 0..8 {
            let claimed = engine.claim_keys(place, claim(9, LEASE)).await;
            let claimed = claimed.unwrap_or_else(|error| panic!("{how}: {}", error.source));
            for out in claimed.items {
                let ends =
                    vec![End { key: out.key.clone(), epoch: out.epoch, how: Finish::Succeed }];
                let ended = engine.finish_deliveries(place, ends).await;
                assert_eq!(ended.expect("completed"), [true], "{how}: {}", out.key);
                assert!(delivered.insert(out.key.to_string()), "{how}: {} twice", out.key);
            }
        }
        assert!(delivered.contains(BAD) && delivered.contains("new"), "{how}: {delivered:?}");
        assert!(engine.look_up(place, &BAD.into()).await.expect("looked up").is_none(), "{how}");
        assert_eq!(self.looks(how).await.damaged, 0, "{how}");
    }

    /// Checks that a drop counts damaged keys as it counts other keys, and removes all their data.
    pub(crate) async fn check_drop(&self, how: &str) {
        let (engine, place) = (&self.engine, &self.place);
        let counts = self.looks(how).await;
        let expected = |found: StateCounts| {
            assert_eq!(StateCounts { oldest_ready: counts.oldest_ready, ..found }, counts, "{how}");
        };
        let dropped = engine.drop_queue(&place.name, false).await;
        match dropped.unwrap_or_else(|error| panic!("{how}: {}", error.source)) {
            Dropped::Kept(found, 0) => expected(found),
            other => panic!("{how}: {other:?}"),
        }
        let dropped = engine.drop_queue(&place.name, true).await;
        match dropped.unwrap_or_else(|error| panic!("{how}: {}", error.source)) {
            Dropped::Yes(found) => expected(found),
            other => panic!("{how}: {other:?}"),
        }
        let error = engine
            .add_keys(place, vec![ask(BAD, Add::now())])
            .await
            .expect_err("the queue was dropped");
        assert_eq!(error.kind, error::Kind::Dropped, "{how}");
        let settings = Settings {
            readd_policy: place.readd_policy,
            parked_add: place.parked_add,
            ..Settings::default()
        };
        let later = engine.open_queue(&place.name, settings).await.expect("the queue is created");
        assert!(engine.look_up(&later, &BAD.into()).await.expect("looked up").is_none(), "{how}");
        assert_eq!(
            engine.count_keys(&later).await.expect("counted"),
            StateCounts::default(),
            "{how}"
        );
    }

    /// Makes one of the final checks, chosen at random.
    pub(crate) async fn check_end(&self, rng: &mut Rng, how: &str) {
        match rng.u8(..3) {
            0 => self.check_add(how).await,
            1 => self.check_cancel(how).await,
            _ => self.check_drop(how).await,
        }
    }

    /// Checks that a cancel of the bad key, in a batch with another key, removes all its data.
    pub(crate) async fn check_cancel(&self, how: &str) {
        let (engine, place) = (&self.engine, &self.place);
        let is_damaged = self.is_damaged(how).await;
        let keys: Vec<Key> = vec![BAD.into(), "later".into()];
        if is_damaged {
            let only = Some(State::Ready);
            let cancelled =
                engine.cancel_keys(place, vec![BAD.into()], only).await.expect("cancelled");
            assert_eq!(cancelled, [Some(false)], "{how}");
        }
        let cancelled = engine.cancel_keys(place, keys, None).await;
        let cancelled = cancelled.unwrap_or_else(|error| panic!("{how}: {}", error.source));
        assert_eq!(cancelled[1], Some(true), "{how}");
        if is_damaged {
            assert_eq!(cancelled[0], Some(true), "{how}");
            let left = engine.look_up(place, &BAD.into()).await.expect("looked up");
            assert!(left.is_none(), "{how}: {left:?}");
            assert_eq!(self.looks(how).await.damaged, 0, "{how}");
        }
    }
}
