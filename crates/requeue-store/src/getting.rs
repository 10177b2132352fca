//! Those who wait for keys, and the one task that claims for all of them.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, timeout};

use crate::engine::{Claim, How};
use crate::error::Fault;
use crate::item::Item;
use crate::lane::MOST;
use crate::outage::Part;
use crate::patience::Patience;
use crate::queue::{Ending, Shared};

/// Who waits for keys, and for how many at most.
#[derive(Debug)]
pub(crate) struct Waiter {
    pub(crate) max: usize,
    pub(crate) reply: oneshot::Sender<Passed>,
}

/// Keys on their way to whom they were claimed for. Those that do not arrive are put back: nobody
/// has failed.
#[derive(Debug)]
pub(crate) struct Passed(Vec<Item>);

impl Passed {
    pub(crate) fn take(mut self) -> Vec<Item> {
        std::mem::take(&mut self.0)
    }
}

impl Drop for Passed {
    fn drop(&mut self) {
        for item in self.0.drain(..) {
            let asked = item.asked();
            item.end_unseen(How::PutBack(asked));
        }
    }
}

/// Claims for those who `come`, until the last handle of the queue is gone or it is shut down.
pub(crate) async fn serve(shared: Weak<Shared>, mut come: mpsc::UnboundedReceiver<Waiter>) {
    let Some((mut wakes, mut ending)) = shared
        .upgrade()
        .map(|shared| (shared.engine.wakes(&shared.place), shared.ending.subscribe()))
    else {
        return;
    };
    let mut waiters: VecDeque<Waiter> = VecDeque::new();
    let mut patience = Patience::new();
    let mut hand_outs = 0u32;
    loop {
        // Those who can run now may be about to ask, too.
        yield_now().await;
        waiters.retain(|waiter| !waiter.reply.is_closed());
        while let Ok(waiter) = come.try_recv() {
            waiters.push_back(waiter);
        }
        if waiters.is_empty() {
            tokio::select! {
                waiter = come.recv() => match waiter {
                    Some(waiter) => waiters.push_back(waiter),
                    None => return,
                },
                _ = ending.wait_for(|&ending| ending == Ending::Now) => return,
            }
            continue;
        }
        // Before the claim, so that what was added before this was asked for is in that.
        let now = *ending.borrow_and_update();
        let may_end = match now {
            Ending::No => false,
            Ending::WhenIdle => true,
            Ending::Now => return,
        };
        let Some(strong) = shared.upgrade() else { return };
        // What comes from now on may not be in what is claimed.
        wakes.mark_unchanged();
        // A holder may die whose claim nobody here knew of: its key comes back with the next look.
        let poll = strong.options.poll.min(strong.options.lease);
        let poll = poll.mul_f64(0.9 + fastrand::f64() / 5.0);
        let max = waiters.iter().map(|waiter| waiter.max).fold(0, usize::saturating_add);
        let wait = match claim(&strong, max.min(MOST), &mut hand_outs, poll).await {
            Ok((mut items, next)) => {
                patience = Patience::new();
                if may_end && items.is_empty() && next.is_none() && is_idle(&strong).await {
                    strong.ending.send_replace(Ending::Now);
                    return;
                }
                let wait = items.is_empty().then_some(next);
                while !items.is_empty()
                    && let Some(waiter) = waiters.pop_front()
                {
                    let rest = items.split_off(waiter.max.min(items.len()));
                    // One that has gone meanwhile gives them back by that.
                    let _ = waiter.reply.send(Passed(items));
                    items = rest;
                }
                wait
            }
            Err(fault) => {
                let part = Part::all(&*strong.engine, &strong.place);
                strong.place.note_failure(part, &fault);
                Some(Some(patience.wait()))
            }
        };
        drop(strong);
        let Some(next) = wait else { continue };
        tokio::select! {
            () = sleep(next.map_or(poll, |next| next.min(poll))) => {}
            () = changed(&mut wakes) => {}
            waiter = come.recv() => match waiter {
                Some(waiter) => waiters.push_back(waiter),
                None => return,
            },
            changed = ending.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

/// Where nobody wakes any more, polling is left.
async fn changed(wakes: &mut watch::Receiver<u64>) {
    if wakes.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Whether nothing is left to do, anywhere.
async fn is_idle(shared: &Shared) -> bool {
    let Shared { engine, place, options, .. } = shared;
    let is_idle = timeout(options.lease, engine.is_idle(place)).await;
    let is_idle = is_idle.unwrap_or_else(|_| Err(Fault::absent("there was no answer in time")));
    is_idle.unwrap_or_else(|fault| {
        place.note_failure(Part::all(&**engine, place), &fault);
        false
    })
}

async fn claim(
    shared: &Arc<Shared>,
    max: usize,
    hand_outs: &mut u32,
    poll: Duration,
) -> Result<(Vec<Item>, Option<Duration>), Fault> {
    let options = &shared.options;
    let every = options.oldest_every;
    // So many of the next `max` hand-outs complete a round of `every`.
    let upto = u64::from(*hand_outs) + max as u64;
    let oldest = (upto / u64::from(every)) as usize;
    let (lease, expired) = (options.lease, options.failing());
    let claim = Claim { max, oldest, lease, expired, poll };
    let since = Instant::now();
    // What is answered later than that is another's by then.
    let claimed = timeout(options.lease, shared.engine.claim(&shared.place, claim)).await;
    let claimed = claimed.map_err(|_| Fault::unsure("there was no answer in time"))??;
    shared.place.note_answer(|| Part::all(&*shared.engine, &shared.place));
    *hand_outs = ((u64::from(*hand_outs) + claimed.items.len() as u64) % u64::from(every)) as u32;
    shared.place.meters.handed_out(&claimed.items);
    let items = claimed.items.into_iter();
    let items = items.map(|out| Item::new(Arc::clone(shared), out, since)).collect();
    Ok((items, claimed.next))
}
