//! Checks the failed runs that an engine stores.

use std::time::Duration;

use super::{BEGIN, LEASE, Rig, failing};
use crate::engine::row::LEASE_EXPIRED;
use crate::engine::time::micros;
use crate::engine::{Ask, Claim, Delivery, End, Failure, Finish, Place, Settings};
use crate::tests::Batches as _;
use crate::types::add::{Add, Added, Merge, Priority};
use crate::types::inspect::{Attempt, State, StateCounts};
use crate::types::key::Key;

pub(super) const SECOND: Duration = Duration::from_secs(1);
/// A text that has a character which PostgreSQL does not store, and control characters of terminals.
const ODD: &str = "a\u{0}b \u{1b}[31m\r\n\u{20ac}";

/// A queue that has one key at a time.
pub(super) struct Keys<'r> {
    pub(super) rig: &'r dyn Rig,
    pub(super) place: Place,
    pub(super) now: i64,
}

impl Keys<'_> {
    pub(super) async fn pass(&mut self, time: Duration) {
        self.now += micros(time);
        self.rig.set_time(self.now).await;
    }

    pub(super) async fn add(&self, key: &str, add: Add) -> Added {
        let added = self.rig.engine().add_keys(&self.place, vec![Ask::new(key, add)]).await;
        added.expect("added")[0]
    }

    pub(super) async fn claim(&self) -> Vec<Delivery> {
        let claim = Claim { max: 9, oldest: 0, lease: LEASE, expired: failing(), poll: LEASE };
        self.rig.engine().claim_keys(&self.place, claim).await.expect("claimed").items
    }

    pub(super) async fn finish(&self, out: &Delivery, how: Finish) {
        let end = End { key: out.key.clone(), epoch: out.epoch, how };
        let held = self.rig.engine().finish_deliveries(&self.place, vec![end]).await;
        assert_eq!(held.expect("finished"), [true]);
    }

    /// Claims the only ready key.
    pub(super) async fn take(&mut self) -> Delivery {
        self.pass(SECOND).await;
        let mut items = self.claim().await;
        assert_eq!(items.len(), 1);
        items.remove(0)
    }

    /// Adds a key, claims it, and fails its run.
    async fn fail(&mut self, key: &str, error: &str) {
        self.add(key, Add::now().merge(Merge::Exactly)).await;
        self.fail_again(error).await;
    }

    /// Claims the key, and fails its run.
    async fn fail_again(&mut self, error: &str) {
        let out = self.take().await;
        self.finish(&out, Finish::Retry(failing(), Failure::new(out.asked, error))).await;
    }

    async fn attempts(&self, key: &str) -> Vec<Attempt> {
        let read = self.rig.engine().read_attempts(&self.place, &Key::from(key)).await;
        read.expect("read")
    }

    async fn errors(&self, key: &str) -> Vec<String> {
        self.attempts(key).await.into_iter().map(|attempt| attempt.error).collect()
    }
}

/// Checks that an engine stores the last failures of a key until they are reset.
pub(crate) async fn check_attempts(rig: &dyn Rig, queue: &str) {
    check_attempts_with(rig, queue, Settings::default()).await;
}

pub(crate) async fn check_attempts_with(rig: &dyn Rig, queue: &str, settings: Settings) {
    let engine = rig.engine();
    let place = engine.open_queue(queue, settings).await.expect("the queue opens");
    let place = Place { worker: "w/1".into(), ..place };
    let mut keys = Keys { rig, place, now: BEGIN };
    keys.pass(SECOND).await;
    assert_eq!(keys.attempts("a").await, []);

    keys.add("a", Add::now()).await;
    let [out] = &keys.claim().await[..] else { panic!("the key is ready") };
    assert_eq!(keys.attempts("a").await, []);
    let failure = Failure {
        took: Some(7 * SECOND),
        exit_status: Some(-9),
        output: ODD.to_owned(),
        ..Failure::new(out.asked, ODD)
    };
    keys.finish(out, Finish::Retry(failing(), failure)).await;
    keys.pass(3 * SECOND).await;
    let attempts = keys.attempts("a").await;
    let [first] = &attempts[..] else { panic!("one attempt: {attempts:?}") };
    let shown = |text: &str| text.replace('\0', "\u{fffd}");
    assert_eq!((first.number, first.ended, first.took), (1, 3 * SECOND, 7 * SECOND));
    assert_eq!((first.worker.as_deref(), first.exit_status), (Some("w/1"), Some(-9)));
    assert_eq!(shown(&first.error), shown(ODD));
    assert_eq!(shown(first.output.as_deref().expect("an output")), shown(ODD));
    let entry = engine.look_up(&keys.place, &"a".into()).await.expect("looked up");
    assert_eq!(entry.expect("the key waits").failed, Some(3 * SECOND));

    // Completions of other kinds neither add nor remove an attempt.
    let [out] = &keys.claim().await[..] else { panic!("the key is ready") };
    keys.finish(out, Finish::Release(out.asked)).await;
    assert_eq!(keys.attempts("a").await.len(), 1);
    // The lease of the second attempt expires.
    assert_eq!(keys.claim().await.len(), 1);
    keys.pass(SECOND).await;
    keys.claim().await;
    let attempts = keys.attempts("a").await;
    let [expired, _] = &attempts[..] else { panic!("two attempts: {attempts:?}") };
    assert_eq!((expired.number, expired.ended, expired.took), (2, Duration::ZERO, SECOND));
    assert_eq!((expired.error.as_str(), expired.worker.as_deref()), (LEASE_EXPIRED, Some("w/1")));
    assert_eq!((expired.exit_status, &expired.output), (None, &None));
    keys.fail_again("third").await;
    keys.fail_again("fourth").await;
    keys.fail_again("fifth").await;
    assert_eq!(keys.errors("a").await, ["fifth", "fourth", "third"]);
    let numbers: Vec<_> = keys.attempts("a").await.iter().map(|attempt| attempt.number).collect();
    assert_eq!(numbers, [5, 4, 3]);
    // An add has reset the failures of the key, so it has no attempts. Its next failures replace the earlier rows.
    keys.fail("a", "first again").await;
    assert_eq!(keys.errors("a").await, ["first again"]);
    keys.fail_again("second again").await;
    assert_eq!(keys.errors("a").await, ["second again", "first again"]);

    check_ends(&mut keys).await;
}

/// Checks that the attempts of a key are removed when its failures are reset. At the end, no key has failures.
async fn check_ends(keys: &mut Keys<'_>) {
    let engine = keys.rig.engine();
    let out = keys.take().await;
    keys.finish(&out, Finish::GiveUp(Failure::new(out.asked, "given up"))).await;
    assert_eq!(keys.errors("a").await, ["given up", "second again", "first again"]);
    let revived = engine.make_ready(&keys.place, vec!["a".into()], State::Parked).await;
    assert_eq!(revived.expect("revived"), [Some(true)]);
    assert_eq!(keys.errors("a").await, [""; 0]);
    keys.fail_again("b").await;
    assert_eq!(keys.errors("a").await, ["b"]);
    let out = keys.take().await;
    keys.finish(&out, Finish::Succeed).await;
    assert_eq!(keys.errors("a").await, [""; 0]);

    keys.fail("parked", "no").await;
    let out = keys.take().await;
    keys.finish(&out, Finish::GiveUp(Failure::new(out.asked, "given up"))).await;
    assert_eq!(keys.add("parked", Add::now()).await, Added::Revived);
    assert_eq!(keys.errors("parked").await, [""; 0]);
    let out = keys.take().await;
    keys.finish(&out, Finish::Cancelled).await;

    keys.fail("succeeds and runs again", "no").await;
    let out = keys.take().await;
    keys.add("succeeds and runs again", Add::now()).await;
    keys.finish(&out, Finish::Succeed).await;
    assert_eq!(keys.errors("succeeds and runs again").await, [""; 0]);
    let out = keys.take().await;
    keys.finish(&out, Finish::Succeed).await;

    keys.fail("is requeued", "no").await;
    let out = keys.take().await;
    keys.finish(&out, Finish::RequeueAfter(Duration::ZERO, Priority::High)).await;
    assert_eq!(keys.errors("is requeued").await, [""; 0]);
    let out = keys.take().await;
    assert_eq!(
        out.asked.priority,
        Priority::High,
        "the next run has the priority of the completion"
    );
    keys.finish(&out, Finish::Succeed).await;

    keys.fail("is given up and runs again", "no").await;
    let out = keys.take().await;
    keys.add("is given up and runs again", Add::now()).await;
    keys.finish(&out, Finish::GiveUp(Failure::new(out.asked, "given up"))).await;
    assert_eq!(keys.errors("is given up and runs again").await, [""; 0]);
    let out = keys.take().await;
    keys.finish(&out, Finish::Succeed).await;

    for is_running in [false, true] {
        keys.fail("is cancelled", "no").await;
        assert_eq!(keys.errors("is cancelled").await, ["no"]);
        let running = if is_running { Some(keys.take().await) } else { None };
        engine.cancel_keys(&keys.place, vec!["is cancelled".into()], None).await.expect("answered");
        assert_eq!(keys.errors("is cancelled").await, [""; 0]);
        if let Some(out) = running {
            keys.finish(&out, Finish::Succeed).await;
        }
    }
    assert_eq!(engine.count_keys(&keys.place).await.expect("counted"), StateCounts::default());
}

/// Checks that a drop of the queue removes the failures of its keys.
pub(crate) async fn check_drop(rig: &dyn Rig, queue: &str) {
    let engine = rig.engine();
    let place = engine.open_queue(queue, Settings::default()).await.expect("the queue opens");
    let mut keys = Keys { rig, place, now: BEGIN };
    keys.pass(SECOND).await;
    keys.fail("a", "no").await;
    engine.drop_queue(queue, true).await.expect("dropped");
    keys.place = engine.open_queue(queue, Settings::default()).await.expect("the queue opens");
    assert_eq!(keys.errors("a").await, [""; 0]);
}

/// Checks that the number of a queue's failures is limited, and that the oldest failures are removed first.
pub(crate) async fn check_bound(rig: &dyn Rig, queue: &str) {
    // Each key fails once for each slot of its attempts.
    const KEYS: usize = 3600;
    // Each read takes some time, so the test reads only each tenth key.
    const READ: usize = 10;
    let (engine, claimed_at_once) = (rig.engine(), 240);
    let place = engine.open_queue(queue, Settings::default()).await.expect("the queue opens");
    let names: Vec<Key> = (0..KEYS).map(|n| Key::from(format!("{n:04}"))).collect();
    rig.set_time(BEGIN).await;
    for names in names.chunks(claimed_at_once) {
        let asks = names.iter().map(|name| Ask::new(name.clone(), Add::now())).collect();
        engine.add_keys(&place, asks).await.expect("added");
    }
    let lease = 1000 * SECOND;
    let claim = Claim { max: claimed_at_once, oldest: 0, lease, expired: failing(), poll: lease };
    let mut now = BEGIN;
    for _ in 0..3 * KEYS / claimed_at_once {
        now += micros(SECOND);
        rig.set_time(now).await;
        let items = engine.claim_keys(&place, claim).await.expect("claimed").items;
        assert_eq!(items.len(), claimed_at_once);
        let how =
            |out: &Delivery| Finish::RetryAfter(SECOND / 2, None, Failure::new(out.asked, "no"));
        let ends =
            items.into_iter().map(|out| End { how: how(&out), key: out.key, epoch: out.epoch });
        engine.finish_deliveries(&place, ends.collect()).await.expect("finished");
    }
    let mut kept = [0, 0, 0];
    for name in names.iter().step_by(READ) {
        for attempt in engine.read_attempts(&place, name).await.expect("read") {
            kept[attempt.number as usize - 1] += 1;
        }
    }
    let [first, second, third] = kept;
    // Without the limit, there would be 10,800 failures.
    assert!((8_500..=10_600).contains(&(READ * (first + second + third))), "{kept:?}");
    assert!(third > KEYS / READ * 9 / 10, "{kept:?}");
}
