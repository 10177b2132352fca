//! An item that Python code holds until its completion.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use requeue::workers::WorkItem;

use crate::convert::{DeliveryFields, PyKey, delivery_fields};

/// An item of a queue in memory or of a store.
pub(crate) struct Held<T> {
    key: PyKey,
    /// `None` after the completion.
    item: Mutex<Option<T>>,
    received: AtomicBool,
}

impl<T: WorkItem> Held<T> {
    pub(crate) fn new(key: PyKey, item: T) -> Self {
        Self { key, item: Mutex::new(Some(item)), received: AtomicBool::new(false) }
    }

    /// Returns the key and the fields of the delivery to Python code, which is now responsible for the item.
    pub(crate) fn receive(&self) -> PyResult<(PyKey, DeliveryFields)> {
        self.received.store(true, Ordering::Relaxed);
        let fields = self.with(|item| delivery_fields(item))?;
        Ok((self.key.clone(), fields))
    }

    /// Calls `f` with the item. Returns an error after the completion.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> PyResult<R> {
        let mut item = self.item.lock().unwrap_or_else(PoisonError::into_inner);
        item.as_mut().map(f).ok_or_else(completed)
    }

    /// Takes the item for its completion. Returns an error after the completion.
    pub(crate) fn take(&self) -> PyResult<T> {
        let mut item = self.item.lock().unwrap_or_else(PoisonError::into_inner);
        item.take().ok_or_else(completed)
    }

    /// Takes the item if Python code has not received it: a task was cancelled between the delivery and its next step.
    pub(crate) fn take_unreceived(&mut self) -> Option<T> {
        let item = self.item.get_mut().unwrap_or_else(PoisonError::into_inner);
        item.take_if(|_| !*self.received.get_mut())
    }
}

/// The exception for a second completion.
fn completed() -> PyErr {
    PyRuntimeError::new_err("the item is already completed")
}
