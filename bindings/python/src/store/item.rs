//! A key of a store in flight.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use requeue::Completion;
use requeue::workers::WorkItem;
use requeue_store::{Item, Priority};

use crate::bridge::{promise, runtime};
use crate::convert::{DeliveryFields, PyKey, Seconds, name_cancel_reason, parse_completion};
use crate::errors::Fault;
use crate::held::Held;

/// A key in flight. If Python code has not received the item when it is dropped, the delivery is undone.
#[pyclass(frozen, module = "requeue._native")]
pub(crate) struct StoreItem(Held<Item>);

impl StoreItem {
    pub(super) fn new(item: Item) -> Self {
        Self(Held::new(PyKey(item.key().clone()), item))
    }
}

#[pymethods]
impl StoreItem {
    fn receive(&self) -> PyResult<(PyKey, DeliveryFields)> {
        self.0.receive()
    }

    fn group(&self) -> PyResult<Option<String>> {
        self.0.with(|item| item.group().map(str::to_owned))
    }

    fn is_lost(&self) -> PyResult<bool> {
        self.0.with(|item| item.is_lost())
    }

    fn cancel_reason(&self) -> PyResult<Option<&'static str>> {
        self.0.with(|item| item.cancel_reason().map(name_cancel_reason))
    }

    fn set_priority(&self, priority: i32) -> PyResult<()> {
        self.0.with(|item| item.set_priority(Priority::from(priority)))
    }

    /// Waits until the run is cancelled or the lease is lost, and returns the reason.
    fn cancelled<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let cancelled = self.0.with(|item| WorkItem::cancelled(item))?;
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
        let mut item = self.0.take()?;
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
        if let Some(item) = self.0.take_unreceived() {
            runtime().spawn(item.complete(Completion::Release));
        }
    }
}
