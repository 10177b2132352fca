//! A stop for the tests of the loops.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

/// A stop that several loops share. Triggering it stops all of them.
#[derive(Clone, Default)]
pub(crate) struct Stop(Arc<Mutex<(bool, Vec<Waker>)>>);

impl Stop {
    /// Returns a stop that was already triggered.
    #[allow(dead_code, reason = "not every test of the loops needs it")]
    pub(crate) fn stopped_before() -> Self {
        let stop = Self::default();
        stop.stop();
        stop
    }

    pub(crate) fn stop(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = true;
        let wakers = std::mem::take(&mut state.1);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn stopped(&self) -> impl Future<Output = ()> + Send + Sync + 'static + use<> {
        let stop = self.clone();
        poll_fn(move |cx| {
            let mut state = stop.0.lock().unwrap_or_else(PoisonError::into_inner);
            if state.0 {
                return Poll::Ready(());
            }
            state.1.push(cx.waker().clone());
            Poll::Pending
        })
    }
}
