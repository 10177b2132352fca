//! The task that claims keys for all getters of a queue. At most one claim is in flight at a time.

use std::collections::VecDeque;
use std::future::pending;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep_until, timeout};

use crate::client::ahead::{Ahead, Unstarted};
use crate::client::item::Item;
use crate::client::leases::Renewer;
use crate::client::schedules::Timetable;
use crate::client::shared::{Shared, Shutdown};
use crate::engine::defaults::MAX_BATCH;
use crate::engine::outage::Part;
use crate::engine::retry_delay::RetryDelay;
use crate::engine::{Claim, Claimed, Place};
use crate::types::error::{Answer, EngineError, Kind};

/// A waiting getter, and the maximum number of keys that it takes.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) max: usize,
    /// The worker of another program, or `None` for a worker of this process.
    pub(crate) holder: Option<Holder>,
    /// The time after which the getter receives no key. At least one claim is made before.
    pub(crate) until: Option<Instant>,
    pub(crate) reply: oneshot::Sender<Unstarted>,
}

/// A getter at the desk.
#[derive(Debug)]
struct Getter {
    waiter: Waiter,
    stage: Stage,
}

/// The claims that a getter has seen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    New,
    /// A claim began after the arrival of the getter.
    Claiming,
    /// Such a claim found no key, or failed.
    Tried,
}

impl Getter {
    /// Returns the time at which the getter stops waiting.
    fn leaves_at(&self) -> Option<Instant> {
        self.waiter.until.filter(|_| self.stage == Stage::Tried)
    }
}

/// The worker of another program, and the duration of its leases.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) worker: Arc<str>,
    pub(crate) lease: Duration,
}

/// Claims keys for the getters that arrive through `come`, until the queue is shut down or its last handle is
/// dropped.
pub(crate) async fn serve_getters(shared: Weak<Shared>, mut come: mpsc::UnboundedReceiver<Waiter>) {
    // The task has only a weak handle, so that the queue closes when its user drops the last handle.
    let Some((mut wakes, mut shutdown, mut desk)) = shared.upgrade().map(|shared| {
        let (wakes, shutdown) =
            (shared.engine.subscribe_wakes(&shared.place), shared.shutdown.subscribe());
        (wakes, shutdown, Desk::new(&shared))
    }) else {
        return;
    };
    let mut claiming: Option<Claiming> = None;
    // The time of the next claim. A new getter or a change of `now` causes a claim immediately.
    let mut pause: Option<Instant> = None;
    let mut now = Shutdown::No;
    loop {
        // Other tasks that are ready to run may call `get`, and then share the claim.
        yield_now().await;
        while let Ok(waiter) = come.try_recv() {
            desk.admit_getter(waiter);
            pause = None;
        }
        desk.deliver_keys();
        desk.ahead.unclaim_late(Instant::now());
        // This call marks the value as seen, so that `changed` below waits for the next change.
        let before = std::mem::replace(&mut now, *shutdown.borrow_and_update());
        if now.is_final() {
            break;
        }
        pause = pause.filter(|_| now == before);
        desk.timetable.begin(|| shared.upgrade());
        if claiming.is_none() && pause.is_none() {
            desk.is_woken |= wakes.has_changed().unwrap_or(false);
            // This claim may miss keys that are added after this line. Their wakes cause another claim.
            wakes.mark_unchanged();
            let Some(shared) = shared.upgrade() else { return };
            claiming = desk.claim(&shared, now);
            if claiming.is_none() {
                desk.pass_wake_on(&shared);
            }
        }
        let listens = claiming.is_none() && desk.may_be_woken;
        tokio::select! {
            answer = answered(&mut claiming) => {
                // The future is removed, because a completed future must not be polled again.
                claiming = None;
                // A getter that arrived during the claim may know of keys that the claim did not find.
                let is_known = !desk.has_newcomers && now == answer.shutdown;
                pause = desk.answered(answer).filter(|_| is_known);
            }
            waiter = come.recv() => match waiter {
                Some(waiter) => {
                    desk.admit_getter(waiter);
                    pause = None;
                }
                None => break,
            },
            changed = shutdown.changed() => {
                if changed.is_err() {
                    break;
                }
            }
            () = next_wake(&mut wakes), if listens => {
                (desk.is_woken, desk.may_be_woken) = (true, false);
                pause = None;
            }
            () = wait_until(pause), if pause.is_some() => pause = None,
            () = wait_until(desk.ahead.overdue_at()) => {}
            () = wait_until(desk.next_leave()) => {}
            () = desk.timetable.changed() => {}
        }
    }
    // The keys of an abandoned claim would stay in flight until their leases expire.
    if claiming.is_some() {
        let answer = answered(&mut claiming).await;
        desk.answered(answer);
        desk.deliver_keys();
    }
    desk.is_woken |= wakes.has_changed().unwrap_or(false);
    if let Some(shared) = shared.upgrade() {
        shared.recorder.set_claims(false);
        desk.pass_wake_on(&shared);
    }
}

/// Waits until this time, or forever with `None`.
async fn wait_until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

/// Waits for a wake. If the engine has stopped sending wakes, this never returns, and the task relies on
/// polling.
async fn next_wake(wakes: &mut watch::Receiver<u64>) {
    if wakes.changed().await.is_err() {
        pending().await
    }
}

type Claiming = Pin<Box<dyn Future<Output = Answered> + Send>>;

async fn answered(claiming: &mut Option<Claiming>) -> Answered {
    match claiming {
        Some(claiming) => claiming.await,
        None => pending().await,
    }
}

/// The keys of a claim.
struct Found {
    items: Vec<Item>,
    /// The time until another key can be ready.
    next: Option<Duration>,
    is_paused: bool,
    schedule_in: Option<Duration>,
    is_rated: bool,
}

/// The result of a claim.
struct Answered {
    found: Answer<Found>,
    /// The state of the shutdown at the beginning of the claim.
    shutdown: Shutdown,
    /// The number of keys that the claim asked for, and the duration of the claim.
    max: usize,
    took: Duration,
    /// The longest pause after the claim.
    poll: Duration,
    /// The worker of another program for which the claim was made.
    holder: Option<Holder>,
}

/// The getters, and the keys that were claimed for them.
struct Desk {
    waiters: VecDeque<Getter>,
    ahead: Ahead,
    timetable: Timetable,
    /// True if a getter has arrived since the last claim began.
    has_newcomers: bool,
    /// True if the last claim has found no key, and no wake has come since then.
    may_be_woken: bool,
    /// True if no claim since the last wake has succeeded.
    is_woken: bool,
    delay: RetryDelay,
    /// The number of keys claimed since the last complete round of `oldest_every`.
    round: u32,
    every: u32,
}

impl Desk {
    fn new(shared: &Shared) -> Self {
        Self {
            waiters: VecDeque::new(),
            ahead: Ahead::new(&shared.options),
            timetable: Timetable::new(
                shared.engine.shard_count(&shared.place),
                shared.options.poll,
            ),
            has_newcomers: false,
            may_be_woken: false,
            is_woken: false,
            delay: RetryDelay::new(),
            round: 0,
            every: shared.options.oldest_every,
        }
    }

    fn admit_getter(&mut self, waiter: Waiter) {
        self.waiters.push_back(Getter { waiter, stage: Stage::New });
        self.has_newcomers = true;
    }

    fn deliver_keys(&mut self) {
        let now = Instant::now();
        self.waiters.retain(|getter| {
            !getter.waiter.reply.is_closed() && getter.leaves_at().is_none_or(|until| until > now)
        });
        while !self.ahead.is_empty()
            && let Some(waiter) = self.next_waiter(None)
        {
            let items = self.ahead.take(waiter.max, Instant::now());
            // If the getter has been dropped, the drop of `items` returns the keys.
            let _ = waiter.reply.send(items);
        }
    }

    /// Delivers the keys that were claimed for a worker of another program. Its remaining keys return to the store.
    fn deliver_to_holder(&mut self, holder: &Holder, items: Vec<Item>) {
        let mut items = Unstarted::new(items);
        while items.items().len() > 0
            && let Some(waiter) = self.next_waiter(Some(holder))
        {
            let _ = waiter.reply.send(items.take(waiter.max));
        }
    }

    /// Removes the first getter of this worker.
    fn next_waiter(&mut self, holder: Option<&Holder>) -> Option<Waiter> {
        let is_next = |getter: &Getter| getter.waiter.holder.as_ref() == holder;
        let at = self.waiters.iter().position(is_next)?;
        self.waiters.remove(at).map(|getter| getter.waiter)
    }

    /// Returns the next time at which a getter stops waiting.
    fn next_leave(&self) -> Option<Instant> {
        self.waiters.iter().filter_map(Getter::leaves_at).min()
    }

    /// Records that the last claim has found no key, or has failed.
    fn note_in_vain(&mut self) {
        for getter in self.waiters.iter_mut().filter(|getter| getter.stage == Stage::Claiming) {
            getter.stage = Stage::Tried;
        }
    }

    /// Begins a claim if keys are wanted. The claim is for the worker of the first getter, because a claim stores one
    /// worker with its keys. If the claim finds no key, no other getter would find one.
    fn claim(&mut self, shared: &Arc<Shared>, shutdown: Shutdown) -> Option<Claiming> {
        let holder = self.waiters.front().and_then(|getter| getter.waiter.holder.clone());
        let waited_for = self.waiters.iter().filter(|getter| getter.waiter.holder == holder);
        let waited_for = waited_for.map(|getter| getter.waiter.max).fold(0, usize::saturating_add);
        let ahead = match &holder {
            None => self.ahead.wanted_keys(Instant::now()),
            Some(_) => 0,
        };
        let max = waited_for.saturating_add(ahead).min(MAX_BATCH);
        if max == 0 {
            return None;
        }
        if holder.is_none() {
            self.ahead.note_claim();
        }
        for getter in self.waiters.iter_mut().filter(|getter| getter.stage == Stage::New) {
            getter.stage = Stage::Claiming;
        }
        shared.recorder.set_claims(true);
        self.has_newcomers = false;
        let options = &shared.options;
        // The pause is at most a lease, because another process may die with keys in flight of which this process does
        // not know. The next poll finds these keys.
        let poll = options.poll.min(options.lease).mul_f64(0.9 + fastrand::f64() / 5.0);
        // The number of rounds of `every` that the next `max` keys complete.
        let oldest = ((u64::from(self.round) + max as u64) / u64::from(self.every)) as usize;
        let lease = holder.as_ref().map_or(options.lease, |holder| holder.lease);
        let expired = options.failing_rules();
        let is_waited_for = waited_for > 0;
        let asked = if is_waited_for { poll } else { Duration::ZERO };
        let claim = Claim { max, oldest, lease, expired, poll: asked };
        let may_end = is_waited_for && shutdown == Shutdown::WhenIdle;
        let shared = Arc::clone(shared);
        Some(Box::pin(async move {
            // Leases count from before the request. The engine grants leases later, so this process never relies on a
            // lease for too long.
            let since = Instant::now();
            let found = self::claim(&shared, claim, holder.as_ref(), since).await;
            let took = since.elapsed();
            // The query for remaining work costs a request, so it is sent only if the claim has found no key and
            // expects none.
            if may_end
                && let Ok(Found { items, next: None, schedule_in, .. }) = &found
                && items.is_empty()
                // A schedule that is due must add its key first.
                && schedule_in.is_none_or(|time| !time.is_zero())
                && is_idle(&shared).await
            {
                shared.stop_deliveries(Shutdown::Now);
            }
            Answered { found, shutdown, max, took, poll, holder }
        }))
    }

    /// Passes a wake on to another process, if this process does not need it because its getters were dropped or have
    /// received their keys.
    fn pass_wake_on(&mut self, shared: &Shared) {
        if std::mem::take(&mut self.is_woken) {
            shared.engine.pass_wake_on(&shared.place);
        }
    }

    /// Returns the time until which no key can be claimed, or `None` to claim again immediately.
    fn answered(&mut self, answer: Answered) -> Option<Instant> {
        let Answered { found, shutdown: _, max, took, poll, holder } = answer;
        let wait = match found {
            Ok(Found { items, next, is_paused, schedule_in, is_rated }) => {
                self.timetable.note_due(schedule_in);
                self.is_woken = false;
                self.delay = RetryDelay::new();
                let count = items.len();
                self.may_be_woken = count == 0;
                if count == 0 {
                    self.note_in_vain();
                }
                let round = u64::from(self.round) + count as u64;
                self.round = (round % u64::from(self.every)) as u32;
                match &holder {
                    None => self.ahead.note_claimed(took, items, max, is_rated),
                    Some(holder) => self.deliver_to_holder(holder, items),
                }
                if is_paused {
                    self.ahead.return_unclaimed();
                }
                // After a claim that has found keys, the task claims again immediately, because more keys may be ready.
                // The next claim also learns when a rate permits a start.
                (count == 0).then(|| next.map_or(poll, |next| next.min(poll)))
            }
            // The engine has already reported the failure.
            Err(_) => {
                self.may_be_woken = true;
                self.note_in_vain();
                Some(self.delay.wait())
            }
        };
        wait.map(|wait| Instant::now() + wait)
    }
}

/// Returns true if no work is left in any process.
async fn is_idle(shared: &Shared) -> bool {
    let Shared { engine, place, options, .. } = shared;
    let is_idle = timeout(options.lease, engine.is_idle(place)).await;
    is_idle.unwrap_or_else(|_| Err(EngineError::late())).unwrap_or_else(|fault| {
        place.note_failure(Part::all_shards(&**engine, place), &fault);
        false
    })
}

async fn claim(
    shared: &Arc<Shared>,
    claim: Claim,
    holder: Option<&Holder>,
    since: Instant,
) -> Answer<Found> {
    let engine = &*shared.engine;
    let place = match holder {
        None => Arc::clone(&shared.place),
        Some(Holder { worker, .. }) => {
            Arc::new(Place { worker: Arc::clone(worker), ..Place::clone(&shared.place) })
        }
    };
    let place = &place;
    // The lease that a client requested is not the timeout, because all getters of this process wait for this claim.
    let own_lease = shared.options.lease;
    let claimed = timeout(own_lease, engine.claim_keys(place, claim)).await;
    let claimed = claimed.unwrap_or_else(|_| Err(EngineError::late()));
    let claimed = claimed.inspect_err(|fault| {
        if fault.kind == Kind::Dropped {
            tracing::warn!(queue = place.name, "{}: deliveries stop", fault.source);
            shared.stop_deliveries(Shutdown::Dropped);
        } else {
            place.note_failure(Part::all_shards(engine, place), fault);
        }
    })?;
    place.note_answer(|| Part::all_shards(engine, place));
    claimed.damaged.iter().for_each(|damaged| damaged.report_set_aside(&place.name));
    place.meters.count_parked(claimed.parked.len() as u64);
    claimed.parked.iter().for_each(|parked| place.report_parked(parked));
    let Claimed { items, next, is_paused, schedule_in, is_rated, .. } = claimed;
    let renewer = if holder.is_some() { Renewer::Client } else { Renewer::ThisProcess };
    let is_late = since.elapsed() >= claim.lease;
    // The engine decides whether the lease of a late key has expired. This deadline only limits the attempts to return
    // the key.
    let deadline = if is_late { Instant::now() + own_lease } else { since + claim.lease };
    // Each delivery has a new number, so this process cannot hold it already.
    let hold = |out| Item::hold(Arc::clone(shared), out, deadline, renewer);
    let items = items.into_iter().filter_map(hold);
    if is_late {
        items.for_each(Item::return_unclaimed);
        return Err(EngineError::late());
    }
    let items = items.collect();
    Ok(Found { items, next, is_paused, schedule_in, is_rated })
}
