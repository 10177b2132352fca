//! Tasks: those that work, and those that wait for a drain.

use std::cell::Cell;
use std::future::{Future, pending};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use requeue::clock::sleep_until;
use requeue::{Item, Ticket};
use requeue_core::Asked;

use super::limiter::ON_PURPOSE;
use super::world::{World, asked};
use crate::How;

/// A future, and whether somebody has woken it.
pub(super) struct Task {
    future: Pin<Box<dyn Future<Output = ()>>>,
    woken: Arc<Flag>,
    /// Of a worker: what it does.
    does: Option<Rc<Cell<Does>>>,
}

/// What a worker does.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Does {
    #[default]
    Wait,
    Work,
    Hang,
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Task {
    fn new(future: impl Future<Output = ()> + 'static, does: Option<Rc<Cell<Does>>>) -> Self {
        Self { future: Box::pin(future), woken: Arc::new(Flag(AtomicBool::new(true))), does }
    }

    pub(super) fn worker(world: &Rc<World>) -> Self {
        let does = Rc::<Cell<Does>>::default();
        Self::new(work(Rc::clone(world), Rc::clone(&does)), Some(does))
    }

    pub(super) fn drain(world: &Rc<World>, timeout: Option<Duration>) -> Self {
        Self::new(drain(Rc::clone(world), timeout), None)
    }

    pub(super) const fn works(&self) -> bool {
        self.does.is_some()
    }

    /// Whether it is a worker that waits for a key.
    pub(super) fn waits(&self) -> bool {
        self.does.as_ref().is_some_and(|does| does.get() == Does::Wait)
    }

    pub(super) fn hangs(&self) -> bool {
        self.does.as_ref().is_some_and(|does| does.get() == Does::Hang)
    }

    pub(super) fn is_woken(&self) -> bool {
        self.woken.0.load(Ordering::SeqCst)
    }

    /// Polls it, and says whether it has come to its end, one way or the other.
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

/// An item on both sides. Dropping it unfinished is a failure on both.
struct Held {
    item: Option<Item<'static, u32>>,
    world: Rc<World>,
    epoch: u64,
    asked: Asked,
}

impl Held {
    fn new(world: &Rc<World>, item: Item<'static, u32>) -> Self {
        world.handed_out(&item);
        Self { epoch: item.epoch(), asked: asked(&item), item: Some(item), world: Rc::clone(world) }
    }

    fn finish(mut self, how: impl FnOnce(Item<'static, u32>, &World) -> How) {
        if let Some(item) = self.item.take() {
            let how = how(item, &self.world);
            self.world.finished(self.epoch, how, self.asked);
        }
    }

    fn into_parts(mut self) -> Option<(u32, Ticket)> {
        let parts = self.item.take()?.into_parts();
        self.world.model.borrow_mut().give_up(self.epoch);
        Some(parts)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(item) = self.item.take() {
            drop(item);
            self.world.finished(self.epoch, How::Fail(self.world.said()), self.asked);
        }
    }
}

/// What a worker may do with a key.
const WAYS: u32 = 15;
const HANG: u32 = 2;

/// Takes keys until there are no more, and deals with each in a way that the world's faults allow: a
/// bit for each of the ways; none means success.
async fn work(world: Rc<World>, does: Rc<Cell<Does>>) {
    loop {
        does.set(Does::Wait);
        let mut held = Vec::new();
        match world.pick(4) {
            0 => held.extend(world.queue.get_to_the_end().await),
            1 => held.extend(world.queue.get_owned().await),
            2 => held.extend(
                world.queue.get_timeout(Duration::from_secs(9)).await.map(Item::into_owned),
            ),
            _ => held.extend(world.queue.get_many(3).await.into_iter().map(Item::into_owned)),
        }
        if held.is_empty() {
            return;
        }
        // All of them before anything is done with the first.
        let held: Vec<_> = held.into_iter().map(|item| Held::new(&world, item)).collect();
        for held in held {
            let way = world.pick(WAYS);
            let way = if world.faults.get() >> way & 1 == 1 { way } else { 0 };
            does.set(if way == HANG { Does::Hang } else { Does::Work });
            deal_with(&world, held, way).await;
        }
    }
}

async fn deal_with(world: &Rc<World>, held: Held, way: u32) {
    let delay = Duration::from_millis(world.pick(20_000).into());
    let sleep = || sleep_until(&world.clock, world.now() + delay);
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
            return held.finish(|item, _| How::Fail(item.retry()));
        }
        7 => {
            return held.finish(|item, _| {
                item.retry_after(delay);
                How::Fail(delay)
            });
        }
        8 => {
            return held.finish(|item, _| {
                item.requeue_after(delay);
                How::Later(delay)
            });
        }
        9 => {
            return held.finish(|item, _| {
                item.put_back();
                How::PutBack
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
                item.give_up();
                How::Succeed
            });
        }
        12 => {
            // Late, and perhaps after somebody has called `done` with the key.
            let (epoch, asked) = (held.epoch, held.asked);
            let Some((_, ticket)) = held.into_parts() else { return };
            sleep().await;
            let before = world.model.borrow().processing();
            let queue = world.queue.done_ticket(ticket.clone());
            world.finished(epoch, How::Done, asked);
            let model = world.model.borrow().processing() < before;
            world.expect("done_ticket", queue, model);
            return world.stale.borrow_mut().push(ticket);
        }
        13 => {
            // Asks for another run of its own key.
            world.add(*held.item.as_deref().unwrap_or(&0), crate::model::Ask::default());
        }
        _ => {
            let key = *held.item.as_deref().unwrap_or(&0);
            world.add_rate_limited(key);
        }
    }
    held.finish(|item, _| {
        item.succeed();
        How::Succeed
    });
}

/// Shuts the queue down and waits until it is drained, for so long.
async fn drain(world: Rc<World>, timeout: Option<Duration>) {
    let drain = match timeout {
        Some(timeout) => world.queue.drain(timeout),
        None => world.queue.shut_down_with_drain(),
    };
    world.shut_down_model();
    let drained = drain.await;
    world.expect("drained", drained.finished, world.model.borrow().is_drained());
    world.note((6, drained.finished, drained.ready, drained.processing));
    world.lost.borrow_mut()[0].extend(drained.dropped);
}
