//! A key of a queue in memory in flight.

use pyo3::prelude::*;
use requeue::Completion;
use requeue_store::Key;

use crate::bridge::promise;
use crate::convert::{
    DeliveryFields, PyKey, ReasonFields, Seconds, name_cancel_reason, parse_completion,
    reason_fields,
};
use crate::held::Held;

type Item = requeue::Item<'static, Key>;

/// A key in flight. If Python code has not received the item when it is dropped, the delivery is undone.
#[pyclass(frozen, module = "requeue._native")]
pub(crate) struct MemoryItem(Held<Item>);

impl MemoryItem {
    pub(super) fn new(item: Item) -> Self {
        Self(Held::new(PyKey(item.key().clone()), item))
    }
}

#[pymethods]
impl MemoryItem {
    fn receive(&self) -> PyResult<(PyKey, DeliveryFields)> {
        self.0.receive()
    }

    fn reasons(&self) -> PyResult<Vec<ReasonFields>> {
        self.0.with(|item| reason_fields(&item.reasons()))
    }

    fn cancel_reason(&self) -> PyResult<Option<&'static str>> {
        self.0.with(|item| item.cancel_reason().map(name_cancel_reason))
    }

    fn cancelled<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let cancelled = self.0.with(|item| item.cancelled())?;
        promise(py, async move { Ok(name_cancel_reason(cancelled.await)) })
    }

    fn set_priority(&self, priority: i32) -> PyResult<()> {
        self.0.with(|item| item.set_priority(priority))
    }

    fn complete(&self, completion: &str, delay: Option<Seconds>) -> PyResult<()> {
        let completion = parse_completion(completion, delay)?;
        self.0.take()?.complete(completion);
        Ok(())
    }

    fn done(&self) -> PyResult<()> {
        self.0.take()?.done();
        Ok(())
    }

    fn detach(&self) -> PyResult<PyKey> {
        let (key, _) = self.0.take()?.into_parts();
        Ok(PyKey(key))
    }
}

impl Drop for MemoryItem {
    fn drop(&mut self) {
        if let Some(item) = self.0.take_unreceived() {
            item.complete(Completion::Release);
        }
    }
}
