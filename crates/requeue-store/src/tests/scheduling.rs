//! Checks that the processes of a queue fire its schedules. The tests of each engine call these functions.

use std::time::{Duration, Instant, SystemTime};

use tokio::time::timeout;

use crate::api::queue::Queue;
use crate::api::store::Store;
use crate::engine::schedules::Scheduled;
use crate::tests::get;
use crate::types::add::Priority;
use crate::types::error::ErrorKind;
use crate::types::schedule::{Schedule, ScheduleInfo};

/// The time limit for each wait.
const LATEST: Duration = Duration::from_secs(900);
const LEASE: Duration = Duration::from_secs(3600);
/// The interval of polls. No test waits for a poll.
const POLL: Duration = Duration::from_secs(3600);
const PERIOD: Duration = Duration::from_millis(10);
const TIMES: u32 = 10;

async fn open(store: &Store, name: &str) -> Queue {
    let opening = store.queue(name).poll(POLL).lease(LEASE).claim_ahead(0);
    opening.open().await.expect("the queue opens")
}

async fn list(queue: &Queue) -> Vec<ScheduleInfo> {
    queue.schedules(None, 10).await.expect("listed")
}

/// Schedules keys in one process, and takes them in two processes.
pub(crate) async fn check_schedules(worker: &Store, other: &Store, name: &str) {
    let (queue, other_queue) = (open(worker, name).await, open(other, name).await);
    let getter = queue.clone();
    let waiting = tokio::spawn(async move { get(&getter).await });
    let began = Instant::now();
    let pulse = Schedule::every(PERIOD).priority(Priority::High);
    other_queue.schedule("pulse", pulse).await.expect("stored");
    let item = timeout(LATEST, waiting).await.expect("the key is added");
    let item = item.expect("no panic");
    assert_eq!(item.as_str(), Some("pulse"));
    item.succeed().await.expect("the lease is held");
    // After its first claim, each process knows the schedule. Either of them fires it, even if only the other process
    // waits for keys.
    for n in 1..TIMES {
        let waiting = if n % 2 == 0 { &queue } else { &other_queue };
        let item = timeout(LATEST, get(waiting)).await.expect("the key comes back");
        item.succeed().await.expect("the lease is held");
    }
    // The clocks of the store and of the test may differ a little.
    assert!(
        began.elapsed() >= PERIOD * (TIMES - 1),
        "two processes have added the key for one time"
    );

    assert!(other_queue.pause_schedule("pulse").await.expect("paused"));
    let [info] = &list(&queue).await[..] else { panic!("one schedule") };
    assert_eq!((&*info.spec, info.zone.as_deref()), ("every 10ms", None));
    assert_eq!((info.is_paused, info.next, info.priority), (true, None, Priority::High));
    let daily = Schedule::cron("0 9 * * MON-FRI", "Europe/Berlin").expect("valid");
    queue.schedule("daily", daily.clone()).await.expect("stored");
    queue.schedule("pulse", daily).await.expect("changed");
    let infos = list(&other_queue).await;
    let [daily, pulse] = &infos[..] else { panic!("two schedules: {infos:?}") };
    assert!(daily.next.is_some_and(|next| next <= Duration::from_secs(3 * 86_400 + 3_600)));
    let at = daily.next_at.and_then(|at| at.duration_since(SystemTime::UNIX_EPOCH).ok());
    // The schedule is for 9 o'clock in Berlin. The time in Berlin is one or two hours ahead of UTC.
    assert!(at.is_some_and(|at| [7, 8].map(|h| h * 3600).contains(&(at.as_secs() % 86_400))));
    assert_eq!(at.map(|at| at.subsec_micros()), Some(0));
    assert_eq!((&*pulse.spec, pulse.zone.as_deref()), ("0 9 * * MON-FRI", Some("Europe/Berlin")));
    assert!(pulse.is_paused, "a change keeps the pause");
    let page = queue.schedules(Some(&daily.key), 10).await.expect("listed");
    assert_eq!(page.iter().map(|info| &info.key).collect::<Vec<_>>(), [&pulse.key]);

    let explained = async |key: &str| queue.explain(key).await.expect("explained");
    let said = explained("daily").await;
    assert!(said.starts_with("daily: not in the queue; its schedule adds it in "), "{said}");
    queue.add_after("daily", LEASE).await.expect("added");
    let said = explained("daily").await;
    assert!(
        said.starts_with("daily: due in 59m ") || said.starts_with("daily: due in 1h"),
        "{said}"
    );
    assert!(said.contains("; its schedule adds it in "), "{said}");
    queue.cancel("daily").await.expect("cancelled");
    // Before the pause, the schedule may have added the key once more.
    queue.cancel("pulse").await.expect("cancelled");
    assert_eq!(explained("pulse").await, "pulse: not in the queue; its schedule is paused");
    assert_eq!(queue.look_up_schedule("none").await.expect("answered"), None);
    let found = queue.look_up_schedule("pulse").await.expect("answered").expect("it is there");
    assert_eq!((found.key, found.spec), (pulse.key.clone(), pulse.spec.clone()));

    for key in ["daily", "pulse"] {
        assert!(queue.unschedule(key).await.expect("removed"));
        assert!(!queue.unschedule(key).await.expect("removed before"));
    }
    assert!(!queue.resume_schedule("pulse").await.expect("answered"));
    let error = queue.schedule("zero", Schedule::every(Duration::ZERO)).await.expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("invalid period 0ns of a schedule"), "{error}");
    assert_eq!(list(&queue).await, []);
    check_refusal(&queue, &other_queue).await;

    worker.force_drop_queue(name).await.expect("dropped");
    other_queue.schedules(None, 10).await.expect_err("the queue was dropped");
    assert_eq!(list(&open(worker, name).await).await, []);
}

/// Checks a schedule whose times no process can compute. The store keeps the reason until the schedule is changed.
async fn check_refusal(queue: &Queue, other_queue: &Queue) {
    let spec = "0 9 * * someday".to_owned();
    let (key, zone) = ("odd".into(), "UTC".to_owned());
    let (priority, group, error) = (Priority::Normal, None, None);
    let (next_at, is_new, is_paused) = (0, true, false);
    let odd = Scheduled { key, spec, zone, priority, group, next_at, is_new, is_paused, error };
    let getter = queue.clone();
    let waiting = tokio::spawn(async move { get(&getter).await });
    let shared = &other_queue.shared;
    shared.engine.put_schedule(&shared.place, odd).await.expect("stored");
    let refused = async {
        loop {
            if let [info @ ScheduleInfo { error: Some(why), is_paused: true, next: None, .. }] =
                &list(other_queue).await[..]
            {
                assert_eq!(info.explain(), format!("its schedule was refused: {why}"));
                break why.clone();
            }
        }
    };
    let why = timeout(LATEST, refused).await.expect("a process that waits refuses it");
    assert!(why.starts_with(r#"invalid cron expression "0 9 * * someday": "#), "{why}");
    other_queue.schedule("odd", Schedule::every(PERIOD)).await.expect("changed");
    let item = timeout(LATEST, waiting).await.expect("the key is added").expect("no panic");
    assert!(list(queue).await.iter().all(|info| info.error.is_none() && !info.is_paused));
    item.succeed().await.expect("the lease is held");
}
