//! Completions, and tickets that have become invalid.

use requeue_core::{Finish, Finished, Queue, Ticket, Time};

use super::{Lockstep, inside, pick};
use crate::model::Ended;
use crate::{How, Key};

impl Lockstep {
    pub(super) fn finish(&mut self, which: usize, how: How) {
        let Some((out, key)) = pick(&self.live, which) else { return };
        let (ticket, asked, key) = (out.ticket, out.asked, *key);
        let dirty = self.model.see(&key).is_some_and(|seen| seen.phase == 3);
        assert_eq!(self.queue.is_dirty(&ticket), dirty, "is_dirty");
        let (how_core, now) = (finish(how, asked), self.now);
        let (core, model) = match self.attempt(|queue| queue.finish(&ticket, how_core, now)) {
            Some(core) => (core, self.model.finish(ticket.epoch(), how, asked, now)),
            // The worker completes the delivery later, or drops its item. The drop completes the
            // delivery without copies.
            None if which.is_multiple_of(2) => return,
            None => {
                let core = inside(|| self.queue.finish_without_copies(&ticket, how_core, now));
                (core, self.model.finish_without_copies(ticket.epoch(), how, asked, now))
            }
        };
        self.ended_both(core, model);
        self.forget_ticket(ticket);
    }

    pub(super) fn finish_stale(&mut self, which: usize, how: How) {
        // Chooses one of the last 16 completed deliveries.
        let ended = self.ended.iter().rev().flatten().nth(which % 16);
        let Some(ticket) = ended.copied() else { return };
        let (how, now) = (finish(how, requeue_core::Asked::default()), self.now);
        let Some(core) = self.attempt(|queue| queue.finish(&ticket, how, now)) else { return };
        assert!(core.is_none(), "stale");
        assert!(!self.queue.detach(&ticket), "stale");
        assert!(!self.queue.is_dirty(&ticket), "stale");
        self.model.promote(self.now, 256);
    }

    /// Asserts that tickets whose numbers are lower than `epoch` by a power of two are invalid. If
    /// epochs had fewer bits, these numbers would be equal to `epoch`.
    pub(super) fn refuses_tickets_before(&mut self, epoch: u64) {
        for bit in 0..u64::BITS {
            let Some(before) = epoch.checked_sub((1 << bit) + 1) else { break };
            let Some(Some(stale)) = self.ended.get(before as usize) else { continue };
            // At time zero, no other key is due.
            assert!(self.queue.finish(stale, Finish::Succeed, Time::ZERO).is_none(), "stale");
            assert!(!self.queue.detach(stale), "stale");
        }
    }

    pub(super) fn done(&mut self, key: u32) {
        let by = Key(key);
        let (hash, now) = (self.setup.hash(key), self.now);
        let done = |queue: &mut Queue<Key>| match queue.detached(&by, hash) {
            Some(ticket) => queue.finish(&ticket, Finish::Done, now),
            None => {
                queue.promote(now, 256);
                None
            }
        };
        let Some(core) = self.attempt(done) else { return };
        let model = self.model.done(&key, self.now);
        if model.is_some()
            && let Some((out, _)) = self.live.iter().find(|live| live.1 == key)
        {
            self.forget_ticket(out.ticket);
        }
        self.ended_both(core, model);
    }

    fn forget_ticket(&mut self, ticket: Ticket) {
        self.live.retain(|(out, _)| out.ticket != ticket);
        let at = ticket.epoch() as usize - 1;
        self.ended.resize(self.ended.len().max(at + 1), None);
        self.ended[at] = Some(ticket);
    }

    fn ended_both(&mut self, core: Option<Finished<Key>>, model: Option<Ended<u32>>) {
        for (side, lost) in [
            core.as_ref().filter(|core| core.lost).and_then(|core| core.key.as_ref()).map(|k| k.0),
            model.as_ref().filter(|model| model.lost).and_then(|model| model.key),
        ]
        .into_iter()
        .enumerate()
        {
            self.lost[side].extend(lost);
        }
        let core = core.map(|core| Ended {
            key: core.key.as_ref().map(|key| key.0).filter(|_| !self.dropping),
            lost: core.lost,
            ready: core.ready,
            was_dirty: core.was_dirty,
            worked: core.worked.unwrap_or_default(),
        });
        let model = model.map(|model| Ended {
            key: model.key.filter(|_| !self.dropping),
            worked: self.if_tracked(model.worked),
            ..model
        });
        assert_eq!(core, model, "completion");
    }
}

fn finish(how: How, asked: requeue_core::Asked) -> Finish {
    match how {
        How::Done => Finish::Done,
        How::Succeed => Finish::Succeed,
        How::GiveUp => Finish::GiveUp,
        How::RequeueAfter(delay) => Finish::RequeueAfter { delay, asked },
        How::RetryAfter(delay) => Finish::RetryAfter { delay, asked },
        How::Release => Finish::Release { asked },
        How::ReleaseAfter(delay) => Finish::ReleaseAfter { delay, asked },
        How::Cancelled => Finish::Cancelled { asked },
    }
}
