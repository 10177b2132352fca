//! Checks that the trace contexts of adds reach the worker.

use std::sync::Arc;
use std::time::Duration;

use super::{BEGIN, Rig};
use crate::engine::{Ask, Backoff, Claim, Delivery, End, Failing, Failure, Finish, Settings};
use crate::tests::Batches as _;
use crate::types::add::Add;
use crate::types::inspect::State;

/// Checks that trace contexts stay with a run until it succeeds. Engines do not interpret the contexts, so they pass
/// them on unchanged.
pub(crate) async fn check_traces(rig: &dyn Rig, name: &str) {
    check_traces_with(rig, name, None).await;
    check_traces_with(rig, &format!("{name}-groups"), Some("g".into())).await;
}

async fn check_traces_with(rig: &dyn Rig, name: &str, group: Option<Arc<str>>) {
    let engine = rig.engine();
    let group_by = group.as_ref().map(|_| "".into());
    let settings = Settings { group_by, ..Settings::default() };
    let queue = engine.open_queue(name, settings).await.expect("the queue opens");
    let add = async |trace: Option<&str>| {
        let (group, trace) = (group.clone(), trace.map(Arc::from));
        let ask = Ask { group, trace, ..Ask::new("a", Add::now()) };
        engine.add_keys(&queue, vec![ask]).await.expect("added");
    };
    let backoff = Backoff { base: Duration::ZERO, cap: Duration::ZERO, share: 1.0 };
    let expired = Failing { backoff, max_failures: None };
    let lease = Duration::from_secs(30);
    let claim = Claim { max: 1, oldest: 0, lease, expired, poll: lease };
    let mut now = BEGIN;
    let mut claimed = async || {
        now += 100_000_000;
        rig.set_time(now).await;
        engine.claim_keys(&queue, claim).await.expect("claimed").items.remove(0)
    };
    let end = async |out: &Delivery, how| {
        let end = End { key: out.key.clone(), epoch: out.epoch, how };
        assert_eq!(engine.finish_deliveries(&queue, vec![end]).await.expect("finished"), [true]);
    };
    let long = "x".repeat(2000);
    for trace in [None, Some("1"), Some("2"), Some(&*long), None] {
        add(trace).await;
    }
    let out = claimed().await;
    assert_eq!((out.trace.as_deref(), out.failed), (Some("1\n2"), None));
    add(Some("3")).await;
    end(&out, Finish::Retry(expired, Failure::new(out.asked, "no"))).await;
    let out = claimed().await;
    assert_eq!(out.trace.as_deref(), Some("1\n2\n3"));
    assert_eq!(out.failed, Some(Duration::from_secs(100)));
    add(Some("4")).await;
    // The lease expires, which is a failure.
    let out = claimed().await;
    assert_eq!(out.trace.as_deref(), Some("1\n2\n3\n4"));
    end(&out, Finish::Unclaim(out.asked, out.queued)).await;
    let out = claimed().await;
    assert_eq!(out.trace.as_deref(), Some("1\n2\n3\n4"));
    add(Some("5")).await;
    end(&out, Finish::Succeed).await;
    let out = claimed().await;
    assert_eq!(out.trace.as_deref(), Some("5"));
    end(&out, Finish::Succeed).await;
    add(Some("6")).await;
    let out = claimed().await;
    end(&out, Finish::GiveUp(Failure::new(out.asked, "no"))).await;
    let revived = engine.make_ready(&queue, vec!["a".into()], State::Parked).await;
    assert_eq!(revived.expect("revived"), [Some(true)]);
    let out = claimed().await;
    assert_eq!(out.trace.as_deref(), Some("6"));
    end(&out, Finish::Succeed).await;
    add(Some("7")).await;
    assert_eq!(
        engine.cancel_keys(&queue, vec!["a".into()], None).await.expect("cancelled"),
        [Some(true)]
    );
    add(None).await;
    assert_eq!(claimed().await.trace, None);
}
