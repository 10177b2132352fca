//! Compares calls that wait until the queue is drained.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Context;

use requeue::{Drain, Queue};
use requeue_conformance::{Sequence, Step};

use crate::differences::{Difference, Met};
use crate::seen::Woken;
use crate::{Mismatch, same};

struct Waiting<'q> {
    /// The call, or `None` after it has returned.
    drain: Option<Pin<Box<Drain<'q, char>>>>,
    woken: Arc<Woken>,
    /// True if the call must have returned.
    due: bool,
    theirs_returned: bool,
}

#[derive(Default)]
pub(crate) struct Drains<'q>(Vec<Waiting<'q>>);

impl<'q> Drains<'q> {
    pub(crate) fn start(&mut self, queue: &'q Queue<char>) {
        let drain = Some(Box::pin(queue.shut_down_with_drain()));
        self.0.push(Waiting { drain, woken: Woken::new(), due: false, theirs_returned: false });
    }

    /// Polls the drains that were woken, before another event could wake them.
    pub(crate) fn poll(&mut self) {
        for waiting in &mut self.0 {
            if let Some(drain) = &mut waiting.drain
                && waiting.woken.take()
                && drain.as_mut().poll(&mut Context::from_waker(&waiting.woken.waker())).is_ready()
            {
                waiting.drain = None;
            }
        }
    }

    /// Compares the drains with the documentation, and with client-go's drains.
    pub(crate) fn compare(
        &mut self,
        sequence: &Sequence<'_>,
        at: usize,
        queue: &Queue<char>,
        met: &mut Met,
    ) -> Result<(), Mismatch> {
        let step: &Step<'_> = &sequence.steps[at];
        let (ready, processing) = (queue.len(), queue.states().in_flight);
        let drained = ready == 0 && processing == 0;
        let ended = step.did == "shut_down";
        let alone = self.0.len() == 1;
        for (number, waiting) in self.0.iter_mut().enumerate() {
            let was_due = waiting.due;
            waiting.due |= drained || ended;
            let name = format!("drain {number} has returned");
            same(sequence, at, &name, waiting.due, waiting.drain.is_none())?;

            let theirs = step.saw.list("drained").any(|n| n == number.to_string());
            waiting.theirs_returned |= theirs;
            if theirs && !waiting.due {
                // No key is in flight. client-go does not wait for ready keys.
                same(sequence, at, "with a worker as a drain returned", 0, processing)?;
                met.note(Difference::DrainWaitsForWhatIsReady);
            }
            if waiting.due && !was_due && !waiting.theirs_returned {
                if ended && !drained {
                    // In a delaying queue of client-go, only the first ShutDown has an effect.
                    let again = sequence.with.get("layer") != Some("plain")
                        && sequence.steps[..at].iter().any(|step| step.did == "shut_down");
                    same(sequence, at, "it was shut down before", true, again)?;
                    met.note(Difference::ShutDownEndsEveryDrain);
                } else {
                    same(sequence, at, "only one waits for the drain", false, alone)?;
                    met.note(Difference::EveryDrainIsWoken);
                }
            }
        }
        Ok(())
    }
}
