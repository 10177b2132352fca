//! Tasks: workers, and tasks that wait for a drain.

use std::cell::Cell;
use std::future::{Future, pending, poll_fn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use requeue::clock::sleep_until;
use requeue::{Completion, Item, Ticket};
use requeue_core::{Asked, When};

use super::limiter::ON_PURPOSE;
use super::world::{World, asked};
use crate::How;
use crate::model::AddRequest;

/// A future, with a flag that is true if the future has been woken.
pub(super) struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    woken: Arc<Flag>,
    /// The present activity of a worker. A drain has no activity.
    does: Option<Rc<Cell<Does>>>,
    /// The team for which the task waits until no key of the team is in flight.
    team: Option<u32>,
}

/// The activity of a worker.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Does {
    #[default]
    Wait,
    /// Like `Wait`, but the worker waits until `None` is final.
    WaitPatiently,
    Work,
    Hang,
    /// Waits until the delivery with this number is cancelled.
    Watch(u64),
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Task {
    fn new(future: impl Future<Output = ()> + 'static, does: Option<Rc<Cell<Does>>>) -> Self {
        Self {
            future: Box::pin(future),
            woken: Arc::new(Flag(AtomicBool::new(true))),
            does,
            team: None,
        }
    }

    pub(super) fn worker(world: &Rc<World>) -> Self {
        let does = Rc::<Cell<Does>>::default();
        Self::new(work(Rc::clone(world), Rc::clone(&does)), Some(does))
    }

    pub(super) fn drain(world: &Rc<World>, timeout: Option<Duration>) -> Self {
        Self::new(drain(Rc::clone(world), timeout), None)
    }

    /// Creates a task that waits until no key of `team` is in flight, if the queue has groups.
    pub(super) fn none_in_flight(world: &World, team: u32) -> Option<Self> {
        let wait = world.none_in_flight(team)?;
        Some(Self { team: Some(team), ..Self::new(wait, None) })
    }

    /// Creates a worker that already has a key, and handles it.
    pub(super) fn with(world: &Rc<World>, item: Item<'static, u32>) -> Self {
        let does = Rc::new(Cell::new(Does::Work));
        let held = Held::new(world, item);
        Self::new(deal(Rc::clone(world), held, Rc::clone(&does), true), Some(does))
    }

    pub(super) const fn works(&self) -> bool {
        self.does.is_some()
    }

    /// Returns true if the task is a worker that waits for a key.
    pub(super) fn waits(&self) -> bool {
        self.waits_impatiently() || self.is_at(Does::WaitPatiently)
    }

    /// Returns true if the task is a worker that accepts a `None` that is not final.
    pub(super) fn waits_impatiently(&self) -> bool {
        self.is_at(Does::Wait)
    }

    fn is_at(&self, what: Does) -> bool {
        self.does.as_ref().is_some_and(|does| does.get() == what)
    }

    /// Returns the team that the task waits for.
    pub(super) const fn team(&self) -> Option<u32> {
        self.team
    }

    pub(super) fn hangs(&self) -> bool {
        self.is_at(Does::Hang)
    }

    /// Returns the number of the delivery whose cancellation the task waits for.
    pub(super) fn watches(&self) -> Option<u64> {
        match self.does.as_ref()?.get() {
            Does::Watch(epoch) => Some(epoch),
            _ => None,
        }
    }

    pub(super) fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::SeqCst)
    }

    /// Polls the task. Returns true if it has completed, or has panicked as intended.
    pub(super) fn poll(&mut self) -> bool {
        self.woken.0.store(false, Ordering::SeqCst);
        let waker = Waker::from(Arc::clone(&self.woken));
        let mut context = Context::from_waker(&waker);
        match catch_unwind(AssertUnwindSafe(|| self.future.as_mut().poll(&mut context))) {
            Ok(poll) => poll.is_ready(),
            Err(panic) if ON_PURPOSE.take() => {
                drop(panic);
                true
            }
            Err(panic) => std::panic::resume_unwind(panic),
        }
    }
}

/// An item in the queue and in the model. Dropping this value before its completion is a failure in
/// both, unless the run was cancelled.
struct Held {
    item: Option<Item<'static, u32>>,
    world: Rc<World>,
    epoch: u64,
    asked: Asked,
}

impl Held {
    fn new(world: &Rc<World>, item: Item<'static, u32>) -> Self {
        world.handed_out(&item);
        Self {
            epoch: item.fencing_token(),
            asked: asked(&item),
            item: Some(item),
            world: Rc::clone(world),
        }
    }

    fn key(&self) -> u32 {
        *self.item.as_deref().unwrap_or(&0)
    }

    fn finish(mut self, how: impl FnOnce(Item<'static, u32>, &World) -> How) {
        if let Some(item) = self.item.take() {
            let key = *item;
            let how = how(item, &self.world);
            if matches!(how, How::Succeed | How::GiveUp | How::RequeueAfter(_)) {
                self.world.forgotten(key);
            }
            self.world.finished(self.epoch, how, self.asked);
        }
    }

    /// Waits until the run is cancelled or `timeout` is ready, and returns true if it is cancelled.
    async fn is_cancelled_within(&self, timeout: impl Future<Output = ()>) -> bool {
        let Some(item) = &self.item else { return false };
        let (mut cancelled, mut timeout) = (pin!(item.cancelled()), pin!(timeout));
        poll_fn(|cx| match (cancelled.as_mut().poll(cx), timeout.as_mut().poll(cx)) {
            (Poll::Ready(_), _) => Poll::Ready(true),
            (_, Poll::Ready(())) => Poll::Ready(false),
            _ => Poll::Pending,
        })
        .await
    }

    /// Completes the delivery with success, and takes the next key. If `waits` is true, waits until there is a key.
    async fn succeed_and_get(mut self, waits: bool) -> Option<Self> {
        let (world, item) = (Rc::clone(&self.world), self.item.take()?);
        let succeeded = |key| {
            world.forgotten(key);
            world.finished(self.epoch, How::Succeed, self.asked);
        };
        let key = *item;
        let next = if waits {
            let mut next = pin!(world.queue.succeed_and_get(item));
            // The first poll completes the delivery in the queue. The model then completes the same
            // delivery.
            let first = poll_fn(|cx| Poll::Ready(next.as_mut().poll(cx))).await;
            succeeded(key);
            match first {
                Poll::Ready(next) => next,
                Poll::Pending => next.await,
            }
        } else {
            let next = world.queue.succeed_and_try_get(item);
            succeeded(key);
            next
        };
        if next.is_none() {
            world.took_nothing();
        }
        next.map(|item| Self::new(&world, item.into_owned()))
    }

    fn into_parts(mut self) -> Option<(u32, Ticket)> {
        let parts = self.item.take()?.into_parts();
        self.world.model.borrow_mut().detach(self.epoch);
        Some(parts)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(item) = self.item.take() {
            let key = *item;
            self.world.drop_item(item);
            if self.world.is_cancelled(self.epoch) {
                return self.world.finished(self.epoch, How::Cancelled, self.asked);
            }
            self.world.failed(key);
            self.world.finished(self.epoch, How::RetryAfter(self.world.said()), self.asked);
        }
    }
}

/// The number of ways in which a worker handles a key.
const WAYS: u32 = 18;
const HANG: u32 = 2;
const WATCH: u32 = 15;
const RELEASE_AFTER: u32 = 16;

/// Takes keys until there are no more keys, and handles each key in a way that the world's faults
/// allow. The faults have a bit for each way. If the bit of the chosen way is not set, the run
/// succeeds.
async fn work(world: Rc<World>, does: Rc<Cell<Does>>) {
    loop {
        does.set(Does::Wait);
        let mut held = Vec::new();
        match world.pick(4) {
            0 => {
                does.set(Does::WaitPatiently);
                held.extend(world.queue.get().until_final().await.map(Item::into_owned));
            }
            1 => held.extend(world.queue.get().await.map(Item::into_owned)),
            2 => held.extend(
                world.queue.get().timeout(Duration::from_secs(9)).await.map(Item::into_owned),
            ),
            _ => held.extend(world.queue.get_many(3).await.into_iter().map(Item::into_owned)),
        }
        if held.is_empty() {
            return;
        }
        // All items are recorded before the first item is handled.
        let held: Vec<_> = held.into_iter().map(|item| Held::new(&world, item)).collect();
        let mut held = held.into_iter();
        while let Some(one) = held.next() {
            deal(Rc::clone(&world), one, Rc::clone(&does), held.len() == 0).await;
        }
    }
}

/// Handles a key, and possibly further keys. Waits for further keys only if `held` is the last key
/// of the worker.
async fn deal(world: Rc<World>, mut held: Held, does: Rc<Cell<Does>>, is_last: bool) {
    loop {
        let way = world.pick(WAYS);
        let way = if world.faults.get() >> way & 1 == 1 { way } else { 0 };
        does.set(match way {
            HANG => Does::Hang,
            WATCH => Does::Watch(held.epoch),
            _ => Does::Work,
        });
        if way > 0 || world.pick(3) > 0 {
            return deal_with(&world, held, way).await;
        }
        let waits = is_last && world.pick(2) == 0;
        if waits {
            does.set(Does::Wait);
        }
        let Some(next) = held.succeed_and_get(waits).await else { return };
        held = next;
    }
}

async fn deal_with(world: &Rc<World>, held: Held, way: u32) {
    let delay = Duration::from_millis(world.pick(20_000).into());
    let sleep = || sleep_until(&world.clock, world.now() + delay);
    if way == WATCH && world.restarts && world.pick(2) == 0 {
        // This add restarts the run when it is due.
        let when = When::After(delay / 2);
        world.add(held.key(), AddRequest { when, ..AddRequest::default() });
    }
    match way {
        0 => {}
        1 => {
            ON_PURPOSE.set(true);
            panic!("a handler that panics");
        }
        HANG => pending().await,
        3 => sleep().await,
        4 => {
            sleep().await;
            return drop(held);
        }
        5 => return drop(held),
        6 => {
            return held.finish(|item, world| {
                let key = *item;
                item.retry();
                world.failed(key);
                How::RetryAfter(world.said())
            });
        }
        7 => {
            return held.finish(|item, _| {
                item.complete(Completion::RetryAfter(delay));
                How::RetryAfter(delay)
            });
        }
        8 => {
            return held.finish(|item, _| {
                item.complete(Completion::RequeueAfter(delay));
                How::RequeueAfter(delay)
            });
        }
        9 => {
            return held.finish(|item, _| {
                item.complete(Completion::Release);
                How::Release
            });
        }
        10 => {
            return held.finish(|item, _| {
                item.done();
                How::Done
            });
        }
        11 => {
            return held.finish(|item, _| {
                item.complete(Completion::GiveUp);
                How::GiveUp
            });
        }
        12 => {
            // This completion is late. Another task may already have called `done` with the key.
            let (epoch, asked) = (held.epoch, held.asked);
            let Some((_, ticket)) = held.into_parts() else { return };
            sleep().await;
            let before = world.model.borrow().in_flight();
            let queue = world.queue.done_ticket(ticket.clone());
            world.finished(epoch, How::Done, asked);
            let model = world.model.borrow().in_flight() < before;
            world.expect("done_ticket", queue, model);
            return world.stale.borrow_mut().push(ticket);
        }
        13 => {
            // The worker adds the key of this run again.
            world.add(held.key(), AddRequest::default());
        }
        14 => {
            world.add_rate_limited(held.key());
        }
        RELEASE_AFTER => {
            return held.finish(|item, _| {
                item.complete(Completion::ReleaseAfter(delay));
                How::ReleaseAfter(delay)
            });
        }
        WATCH if !held.is_cancelled_within(sleep()).await => {}
        _ => {
            return held.finish(|item, _| {
                item.complete(Completion::Cancelled);
                How::Cancelled
            });
        }
    }
    held.finish(|item, _| {
        item.succeed();
        How::Succeed
    });
}

/// Shuts the queue down, and waits until it is drained or `timeout` expires.
async fn drain(world: Rc<World>, timeout: Option<Duration>) {
    let drain = match timeout {
        Some(timeout) => world.queue.shut_down_with_drain().timeout(timeout),
        None => world.queue.shut_down_with_drain(),
    };
    world.shut_down_model();
    let drained = drain.await;
    world.expect("drained", drained.finished, world.model.borrow().is_drained());
    world.note((6, drained.finished, drained.ready, drained.in_flight));
    world.lost.borrow_mut()[0].extend(drained.dropped);
}
