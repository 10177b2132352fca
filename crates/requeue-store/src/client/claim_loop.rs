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
    /// The worker of another program that receives the keys, or `None` if a worker of this process receives them.
    pub(crate) holder: Option<Holder>,
    /// The time at which the getter stops waiting. Before it stops, at least one claim is sent for it.
    pub(crate) until: Option<Instant>,
    pub(crate) reply: oneshot::Sender<Unstarted>,
}

/// A getter that waits at the [`Desk`].
#[derive(Debug)]
struct Getter {
    waiter: Waiter,
    stage: Stage,
}

/// The progress of the claims for a getter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    New,
    /// A claim began after the getter had arrived.
    Claiming,
    /// A claim that began after the arrival found no key, or failed.
    Tried,
}

impl Getter {
    /// Returns the time at which the getter stops waiting.
    fn leaves_at(&self) -> Option<Instant> {
        self.waiter.until.filter(|_| self.stage == Stage::Tried)
    }
}

/// The worker of another program, and the lease duration that this program requested.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) worker: Arc<str>,
    pub(crate) lease: Duration,
}

/// Claims keys for the getters that arrive through `come`, until the queue is shut down or its last handle is dropped.
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
    // The time of the next claim. A new getter or a change of the shutdown state causes a claim immediately.
    let mut pause: Option<Instant> = None;
    let mut now = Shutdown::No;
    loop {
        // Tasks that are ready to run may call `get` during this yield. The next claim then also serves them.
        yield_now().await;
        while let Ok(waiter) = come.try_recv() {
            desk.admit_getter(waiter);
            pause = None;
        }
        desk.deliver_keys();
        desk.ahead.unclaim_late(Instant::now());
        // `borrow_and_update` marks the value as seen, so that `changed` below waits for the next change.
        let before = std::mem::replace(&mut now, *shutdown.borrow_and_update());
        if now.is_final() {
            break;
        }
        pause = pause.filter(|_| now == before);
        desk.timetable.begin(|| shared.upgrade());
        if claiming.is_none() && pause.is_none() {
            desk.is_woken |= wakes.has_changed().unwrap_or(false);
            // The claim may miss a key that is added after this line. The wake of that key then causes another claim.
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
                // The future has completed. It is removed, because a completed future must not be polled again.
                claiming = None;
                // A getter that arrived during the claim may expect a key that the claim did not find.
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
    // If the task abandoned a claim, the claimed keys would stay in flight until their leases expire.
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

/// Waits until `time`, or forever if `time` is `None`.
async fn wait_until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}

/// Waits for a wake. If the engine has stopped sending wakes, the future never completes, and the task relies on
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
    /// The time until another key can become ready.
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
    /// The time until the next poll, if the claim found no key.
    poll: Duration,
    /// The worker of another program for which the claim was made.
    holder: Option<Holder>,
}

/// The waiting getters, and the keys that were claimed for them.
struct Desk {
    waiters: VecDeque<Getter>,
    ahead: Ahead,
    timetable: Timetable,
    /// True if a getter has arrived after the last claim began.
    has_newcomers: bool,
    /// True if the last claim found no key, and no wake has arrived after it.
    may_be_woken: bool,
    /// True if a wake has arrived, and no claim has succeeded after it.
    is_woken: bool,
    delay: RetryDelay,
    /// The number of keys claimed in the current round. A round is `every` keys long, and one of them is the oldest
    /// key.
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
            // If the getter was dropped, `items` is also dropped, which returns the keys to the store.
            let _ = waiter.reply.send(items);
        }
    }

    /// Delivers keys that were claimed for a worker of another program. Keys that no getter of this worker takes return
    /// to the store.
    fn deliver_to_holder(&mut self, holder: &Holder, items: Vec<Item>) {
        let mut items = Unstarted::new(items);
        while items.items().len() > 0
            && let Some(waiter) = self.next_waiter(Some(holder))
        {
            let _ = waiter.reply.send(items.take(waiter.max));
        }
    }

    /// Removes and returns the first getter of this worker.
    fn next_waiter(&mut self, holder: Option<&Holder>) -> Option<Waiter> {
        let is_next = |getter: &Getter| getter.waiter.holder.as_ref() == holder;
        let at = self.waiters.iter().position(is_next)?;
        self.waiters.remove(at).map(|getter| getter.waiter)
    }

    /// Returns the next time at which a getter stops waiting.
    fn next_leave(&self) -> Option<Instant> {
        self.waiters.iter().filter_map(Getter::leaves_at).min()
    }

    /// Records that the last claim found no key, or failed.
    fn note_in_vain(&mut self) {
        for getter in self.waiters.iter_mut().filter(|getter| getter.stage == Stage::Claiming) {
            getter.stage = Stage::Tried;
        }
    }

    /// Begins a claim if keys are wanted. The claim is for the worker of the first getter, because the store records
    /// one worker for all keys of a claim. If the claim finds no key, a claim for another getter would also find none.
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
        // The interval of polls is at most a lease. Another process may die with keys in flight, and nothing notifies
        // this process. The next poll finds these keys after their leases have expired.
        let poll = options.poll.min(options.lease).mul_f64(0.9 + fastrand::f64() / 5.0);
        // The number of rounds that are complete after the next `max` keys.
        let oldest = ((u64::from(self.round) + max as u64) / u64::from(self.every)) as usize;
        let lease = holder.as_ref().map_or(options.lease, |holder| holder.lease);
        let expired = options.failing_rules();
        let is_waited_for = waited_for > 0;
        let asked = if is_waited_for { poll } else { Duration::ZERO };
        let claim = Claim { max, oldest, lease, expired, poll: asked };
        let may_end = is_waited_for && shutdown == Shutdown::WhenIdle;
        let shared = Arc::clone(shared);
        Some(Box::pin(async move {
            // A lease begins when the request is sent. The engine's lease begins later, so this process never relies on
            // an expired lease.
            let since = Instant::now();
            let found = self::claim(&shared, claim, holder.as_ref(), since).await;
            let took = since.elapsed();
            // The query for remaining work is a further request. It is sent only if the claim found no key, and expects
            // none later.
            if may_end
                && let Ok(Found { items, next: None, schedule_in, .. }) = &found
                && items.is_empty()
                // A schedule that is due must first add its key.
                && schedule_in.is_none_or(|time| !time.is_zero())
                && is_idle(&shared).await
            {
                shared.stop_deliveries(Shutdown::Now);
            }
            Answered { found, shutdown, max, took, poll, holder }
        }))
    }

    /// Passes a wake on to another process. This process does not need the wake if its getters were dropped or have
    /// received their keys.
    fn pass_wake_on(&mut self, shared: &Shared) {
        if std::mem::take(&mut self.is_woken) {
            shared.engine.pass_wake_on(&shared.place);
        }
    }

    /// Processes the answer to a claim. Returns the time of the next claim, or `None` to claim again immediately.
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
                // After a claim that found keys, the task claims again immediately, because more keys may be ready. The
                // next claim also reports when a rate permits a start.
                (count == 0).then(|| next.map_or(poll, |next| next.min(poll)))
            }
            // The failure was reported when the claim failed.
            Err(_) => {
                self.may_be_woken = true;
                self.note_in_vain();
                Some(self.delay.wait())
            }
        };
        wait.map(|wait| Instant::now() + wait)
    }
}

/// Returns true if no work is left in any process. If the query fails, the answer is false.
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
    // All getters of this process wait for this claim. Therefore, the timeout of the claim is not the lease that
    // another program requested.
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
    // If a key arrives late, the engine decides whether its lease has expired. This deadline only limits the attempts
    // to return the key.
    let deadline = if is_late { Instant::now() + own_lease } else { since + claim.lease };
    // Each delivery has a new fencing token, so this process cannot hold the delivery already.
    let hold = |out| Item::hold(Arc::clone(shared), out, deadline, renewer);
    let items = items.into_iter().filter_map(hold);
    if is_late {
        items.for_each(Item::return_unclaimed);
        return Err(EngineError::late());
    }
    let items = items.collect();
    Ok(Found { items, next, is_paused, schedule_in, is_rated })
}
