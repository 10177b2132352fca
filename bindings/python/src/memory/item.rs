//! A key of a queue in memory in flight.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use requeue::Completion;
use requeue_store::Key;

use crate::bridge::promise;
use crate::convert::{
    DeliveryFields, PyKey, ReasonFields, Seconds, delivery_fields, name_cancel_reason,
    parse_completion, reason_fields,
};

type Item = requeue::Item<'static, Key>;

/// A key in flight. If Python code has not received the item when it is dropped, the delivery is undone.
#[pyclass(frozen, module = "requeue._native")]
pub(crate) struct MemoryItem {
    key: PyKey,
    /// `None` after the completion.
    item: Mutex<Option<Item>>,
    received: AtomicBool,
}

impl MemoryItem {
    pub(super) fn new(item: Item) -> Self {
        let key = PyKey(item.key().clone());
        Self { key, item: Mutex::new(Some(item)), received: AtomicBool::new(false) }
    }

    fn with<T>(&self, f: impl FnOnce(&mut Item) -> T) -> PyResult<T> {
        let mut item = self.item.lock().unwrap_or_else(PoisonError::into_inner);
        item.as_mut().map(f).ok_or_else(completed)
    }

    fn take(&self) -> Option<Item> {
        self.item.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// The exception for a second completion.
pub(crate) fn completed() -> PyErr {
    PyRuntimeError::new_err("the item is already completed")
}

#[pymethods]
impl MemoryItem {
    /// Returns the key and the fields of the delivery to Python code, which is now responsible for the item.
    fn receive(&self) -> PyResult<(PyKey, DeliveryFields)> {
        self.received.store(true, Ordering::Relaxed);
        let fields = self.with(|item| delivery_fields(item))?;
        Ok((self.key.clone(), fields))
    }

    fn reasons(&self) -> PyResult<Vec<ReasonFields>> {
        self.with(|item| reason_fields(&item.reasons()))
    }

    fn cancel_reason(&self) -> PyResult<Option<&'static str>> {
        self.with(|item| item.cancel_reason().map(name_cancel_reason))
    }

    fn cancelled<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let cancelled = self.with(|item| item.cancelled())?;
        promise(py, async move { Ok(name_cancel_reason(cancelled.await)) })
    }

    fn set_priority(&self, priority: i32) -> PyResult<()> {
        self.with(|item| item.set_priority(priority))
    }

    fn complete(&self, completion: &str, delay: Option<Seconds>) -> PyResult<()> {
        let completion = parse_completion(completion, delay)?;
        self.take().ok_or_else(completed)?.complete(completion);
        Ok(())
    }

    fn done(&self) -> PyResult<()> {
        self.take().ok_or_else(completed)?.done();
        Ok(())
    }

    fn detach(&self) -> PyResult<PyKey> {
        let (key, _) = self.take().ok_or_else(completed)?.into_parts();
        Ok(PyKey(key))
    }
}

impl Drop for MemoryItem {
    fn drop(&mut self) {
        // A task was cancelled between the delivery and its next step.
        if !*self.received.get_mut()
            && let Some(item) = self.take()
        {
            item.complete(Completion::Release);
        }
    }
}
