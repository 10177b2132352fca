//! Checks the completed runs that an engine stores with a key.

use std::time::Duration;

use requeue::CancelledRun;
use requeue::history::Ended;

use super::attempts::{Keys, SECOND};
use super::{BEGIN, LEASE, Rig, failing};
use crate::engine::{Delivery, Failure, Finish, Settings};
use crate::types::add::Add;
use crate::types::inspect::{CompletedRun, State};
use crate::types::key::Key;

const KEY: &str = "a";

/// The fields of a [`CompletedRun`], with all times in milliseconds.
type Run = (Ended, bool, u32, u128, u128, Option<u128>);

impl Keys<'_> {
    async fn past(&self) -> Vec<CompletedRun> {
        let entry = self.rig.engine().look_up(&self.place, &Key::from(KEY)).await;
        entry.expect("read").map(|entry| entry.past_runs).unwrap_or_default()
    }

    /// Returns the completed runs of the key, the oldest first.
    async fn runs(&self) -> Vec<Run> {
        let run = |run: CompletedRun| {
            let CompletedRun { how, lease_expired, adds, ended, took, queued } = run;
            let [ended, took] = [ended, took].map(|time| time.as_millis());
            (how, lease_expired, adds, ended, took, queued.map(|queued| queued.as_millis()))
        };
        self.past().await.into_iter().map(run).collect()
    }

    async fn end(&mut self, out: &Delivery, how: Finish) {
        // A claim takes less than a millisecond.
        self.pass(LEASE / 2).await;
        self.finish(out, how).await;
    }
}

/// Checks that an engine stores the last runs of a key as long as the key stays, unless the process keeps no past.
pub(crate) async fn check_past(rig: &dyn Rig, queue: &str, settings: Settings) {
    let place = rig.engine().open_queue(queue, settings).await.expect("the queue opens");
    let mut keys = Keys { rig, place, now: BEGIN };
    rig.set_time(BEGIN).await;
    let failure = |out: &Delivery, took| {
        let failure = Failure::new(out.asked, "no");
        Failure { took, ..failure }
    };

    // After its first success, the key is no longer in the queue.
    keys.add(KEY, Add::now()).await;
    let out = keys.take().await;
    keys.end(&out, Finish::Succeed).await;
    assert_eq!(keys.runs().await, []);

    // A run that has not started is not in the past.
    keys.add(KEY, Add::now()).await;
    let out = keys.take().await;
    keys.finish(&out, Finish::Unclaim(out.asked, out.queued)).await;
    assert_eq!(keys.runs().await, []);

    // The worker reports the duration of the run. It is more precise than the time since the claim.
    keys.add(KEY, Add::now()).await;
    let out = keys.take().await;
    let took = Some(Duration::from_micros(100));
    keys.end(&out, Finish::Retry(failing(), failure(&out, took))).await;
    let mut expected = vec![(Ended::Retried, false, 2, 0, 0, Some(2000))];
    assert_eq!(keys.runs().await, expected);

    // Because of an add during the run, the engine does not know how long the key was ready.
    let out = keys.take().await;
    keys.pass(LEASE / 4).await;
    keys.add(KEY, Add::now()).await;
    keys.end(&out, Finish::Succeed).await;
    expected[0].3 = 1000;
    expected.push((Ended::Succeeded, false, 2, 0, 0, None));
    assert_eq!(keys.runs().await, expected);

    let out = keys.take().await;
    keys.end(&out, Finish::RequeueAfter(2 * SECOND, out.asked.priority)).await;
    keys.pass(SECOND).await;
    let out = keys.take().await;
    keys.end(&out, Finish::Release(out.asked)).await;
    let out = keys.take().await;
    // The lease expires, which is a failure.
    keys.pass(3 * SECOND).await;
    assert_eq!(keys.claim().await, []);
    let last: Vec<_> =
        keys.runs().await.into_iter().skip(2).map(|run| (run.0, run.1, run.4)).collect();
    let ours =
        [(Ended::Requeued, false, 0), (Ended::Released, false, 0), (Ended::Retried, true, 3000)];
    assert_eq!(last, ours, "{out:?}");

    let out = keys.take().await;
    keys.end(&out, Finish::GiveUp(failure(&out, None))).await;
    let last = keys.runs().await.pop().map(|run| run.0);
    assert_eq!(last, Some(Ended::Parked));
    let revived = rig.engine().make_ready(&keys.place, vec![KEY.into()], State::Parked).await;
    assert_eq!(revived.expect("revived"), [Some(true)]);
    let known = keys.runs().await.len();
    assert!(known >= 5, "a revival keeps the past");

    let out = keys.take().await;
    keys.add(KEY, Add::now()).await;
    keys.end(&out, Finish::GiveUp(failure(&out, None))).await;
    assert_eq!(keys.runs().await.pop().map(|run| run.0), Some(Ended::GivenUp));

    let out = keys.take().await;
    let cancelled = rig.engine().cancel_running(&keys.place, &KEY.into()).await;
    assert_eq!(cancelled.expect("answered"), CancelledRun::Cancelled);
    keys.add(KEY, Add::now()).await;
    keys.end(&out, Finish::Cancelled).await;
    assert_eq!(keys.runs().await.pop().map(|run| run.0), Some(Ended::Cancelled));

    // New runs replace the oldest ones.
    for _ in 0..20 {
        let out = keys.take().await;
        keys.end(&out, Finish::Retry(failing(), failure(&out, None))).await;
    }
    let known = keys.runs().await;
    assert!((5..12).contains(&known.len()), "{known:?}");
    assert!(known.iter().all(|run| run.0 == Ended::Retried), "{known:?}");

    // A process that keeps no past does not change the past of a key.
    keys.place.keeps_past = false;
    let before = keys.past().await.len();
    for how in [Finish::Release(out.asked), Finish::Retry(failing(), failure(&out, None))] {
        let out = keys.take().await;
        keys.end(&out, how).await;
    }
    let out = keys.take().await;
    keys.add(KEY, Add::now()).await;
    keys.end(&out, Finish::Succeed).await;
    let out = keys.take().await;
    keys.pass(SECOND).await;
    assert_eq!(keys.claim().await, [], "the lease of {out:?} expires");
    let runs = keys.past().await;
    assert_eq!(runs.len(), before);
    assert!(runs.iter().all(|run| run.ended >= 4 * SECOND), "{runs:?}");
    let out = keys.take().await;
    keys.end(&out, Finish::Succeed).await;
    assert_eq!(keys.runs().await, []);
}
