//! Ends of hand-outs, and tickets that have no effect any more.

use requeue_core::{Finish, Finished, Ticket};

use super::{Lockstep, inside, pick};
use crate::model::Ended;
use crate::{How, Key};

impl Lockstep {
    pub(super) fn finish(&mut self, which: usize, how: How) {
        let Some((out, key)) = pick(&self.live, which) else { return };
        let (ticket, asked, key) = (out.ticket, out.asked, *key);
        let dirty = self.model.see(&key).is_some_and(|seen| seen.phase == 3);
        assert_eq!(self.queue.is_dirty(&ticket), dirty, "is_dirty");
        let core = inside(|| self.queue.finish(&ticket, finish(how, asked), self.now));
        let model = self.model.finish(ticket.epoch(), how, asked, self.now);
        self.ended_both(core, model);
        self.forget_ticket(ticket);
    }

    pub(super) fn finish_stale(&mut self, which: usize, how: How) {
        let Some(ticket) = pick(&self.ended, which) else { return };
        let how = finish(how, requeue_core::Asked::default());
        assert!(inside(|| self.queue.finish(ticket, how, self.now)).is_none(), "stale");
        assert!(!self.queue.give_up(ticket), "stale");
        assert!(!self.queue.is_dirty(ticket), "stale");
        self.model.promote(self.now, 256);
    }

    pub(super) fn done(&mut self, key: u32) {
        let by = Key(key);
        let core = inside(|| self.queue.done(&by, self.setup.hash(key), self.now));
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
        if self.ended.len() == 16 {
            self.ended.remove(0);
        }
        self.ended.push(ticket);
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
        assert_eq!(core, model, "end of a hand-out");
    }
}

fn finish(how: How, asked: requeue_core::Asked) -> Finish {
    match how {
        How::Done => Finish::Done,
        How::Succeed => Finish::Succeed,
        How::Later(after) => Finish::Later { after, asked },
        How::Fail(delay) => Finish::Fail { delay, asked },
        How::PutBack => Finish::PutBack { asked },
    }
}
