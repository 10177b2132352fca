//! A key of a store in flight.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use requeue::Completion;
use requeue::workers::WorkItem;
use requeue_store::{Item, Priority};

use crate::bridge::{promise, runtime};
use crate::convert::{
    DeliveryFields, PyKey, Seconds, delivery_fields, name_cancel_reason, parse_completion,
};
use crate::errors::Fault;
use crate::memory::completed;

/// A key in flight. If Python code has not received the item when it is dropped, the delivery is undone.
#[pyclass(frozen, module = "requeue._native")]
pub(crate) struct StoreItem {
    key: PyKey,
    /// `None` after the completion.
    item: Mutex<Option<Item>>,
    received: AtomicBool,
}

impl StoreItem {
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

#[pymethods]
impl StoreItem {
    /// Returns the key and the fields of the delivery to Python code, which is now responsible for the item.
    fn receive(&self) -> PyResult<(PyKey, DeliveryFields)> {
        self.received.store(true, Ordering::Relaxed);
        let fields = self.with(|item| delivery_fields(item))?;
        Ok((self.key.clone(), fields))
    }

    fn group(&self) -> PyResult<Option<String>> {
        self.with(|item| item.group().map(str::to_owned))
    }

    fn is_lost(&self) -> PyResult<bool> {
        self.with(|item| item.is_lost())
    }

    fn cancel_reason(&self) -> PyResult<Option<&'static str>> {
        self.with(|item| item.cancel_reason().map(name_cancel_reason))
    }

    fn set_priority(&self, priority: i32) -> PyResult<()> {
        self.with(|item| item.set_priority(Priority::from(priority)))
    }

    /// Waits until the run is cancelled or the lease is lost, and returns the reason.
    fn cancelled<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let cancelled = self.with(|item| WorkItem::cancelled(item))?;
        promise(py, async move { Ok(name_cancel_reason(cancelled.await)) })
    }

    /// Returns true if the completion has parked the key.
    fn complete<'py>(
        &self,
        py: Python<'py>,
        completion: &str,
        delay: Option<Seconds>,
        error: Option<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let completion = parse_completion(completion, delay)?;
        let mut item = self.take().ok_or_else(completed)?;
        if let Some(error) = error {
            item.set_error(error);
        }
        // The task begins immediately, so the completion takes effect even if Python cancels the future.
        let completing = runtime().spawn(item.complete(completion));
        promise(py, async move {
            match completing.await {
                Ok(completed) => Ok(completed.map_err(Fault::into_exception)?.parked),
                Err(error) => Err(PyRuntimeError::new_err(error.to_string())),
            }
        })
    }
}

impl Drop for StoreItem {
    fn drop(&mut self) {
        // A task was cancelled between the delivery and its next step.
        if !*self.received.get_mut()
            && let Some(item) = self.take()
        {
            runtime().spawn(item.complete(Completion::Release));
        }
    }
}
