//! The clock for tests of queues in memory.

use pyo3::prelude::*;

use crate::convert::Seconds;

#[pyclass(frozen, module = "requeue")]
pub(crate) struct FakeClock(pub(crate) requeue::clock::FakeClock);

#[pymethods]
impl FakeClock {
    #[new]
    fn new() -> Self {
        Self(requeue::clock::FakeClock::new())
    }

    fn now(&self) -> Seconds {
        Seconds(self.0.now().since(requeue::Time::ZERO))
    }

    /// Moves the clock forward. The wakers run on this thread, and may log, so the thread detaches from the
    /// interpreter.
    fn advance(&self, py: Python<'_>, by: Seconds) {
        py.detach(|| self.0.advance(by.0));
    }

    fn armed(&self) -> usize {
        self.0.armed()
    }
}
