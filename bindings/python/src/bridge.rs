//! Turns Rust futures into futures of asyncio.
//!
//! A task of tokio puts its result into the inbox of the event loop, and writes a byte to a socket on which the loop
//! waits. The loop receives all pending results in one step, so the results share the cost of a wake-up.
//!
//! No thread of tokio attaches to the interpreter. Such a thread would wait for the thread that runs Python code, and
//! would abort the process if the interpreter stopped meanwhile. pyo3-async-runtimes has such threads. They also delay
//! the drop of a result until the next native call, so the key of an item that was dropped would stay in flight.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::mem;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use tokio::runtime::{Builder, Runtime};
use tokio::task::AbortHandle;

use crate::log;

/// Converts a result, on the thread of the event loop.
type Convert = Box<dyn for<'py> FnOnce(Python<'py>) -> PyResult<Bound<'py, PyAny>> + Send>;

/// The bridges of all event loops. Most processes have one.
static BRIDGES: Mutex<Vec<Py<Bridge>>> = Mutex::new(Vec::new());
static INBOXES: Mutex<Vec<Weak<Inbox>>> = Mutex::new(Vec::new());

/// Returns the runtime that all queues share.
pub(crate) fn runtime() -> &'static Runtime {
    static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
        let built = Builder::new_multi_thread().enable_all().thread_name("requeue").build();
        // PyO3 raises the panic as an exception.
        built.unwrap_or_else(|error| panic!("the threads of tokio cannot be started: {error}"))
    });
    &RUNTIME
}

/// Returns a future of asyncio that has the result of `future`. If it is cancelled, `future` is dropped.
pub(crate) fn promise<'py, T>(
    py: Python<'py>,
    future: impl Future<Output = PyResult<T>> + Send + 'static,
) -> PyResult<Bound<'py, PyAny>>
where
    T: for<'a> IntoPyObject<'a> + Send + 'static,
{
    Bridge::of_running_loop(py)?.get().promise(py, future)
}

/// Wakes all event loops, so that one of them logs the pending events.
pub(crate) fn wake_all() {
    let inboxes = lock(&INBOXES).iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
    inboxes.iter().for_each(|inbox| inbox.wake());
}

/// The results that an event loop has not received yet.
struct Inbox {
    results: Mutex<Vec<(u64, Convert)>>,
    waker: UnixStream,
}

impl Inbox {
    fn push(&self, number: u64, convert: Convert) {
        let mut results = lock(&self.results);
        let is_first = results.is_empty();
        results.push((number, convert));
        drop(results);
        if is_first {
            self.wake();
        }
    }

    fn wake(&self) {
        // The write fails only if the socket already has unread bytes, or if the loop is closed.
        let _ = (&self.waker).write(&[0]);
    }
}

/// The connection between one event loop and tokio.
#[pyclass(frozen, module = "requeue._native")]
pub(crate) struct Bridge {
    event_loop: Py<PyAny>,
    /// The futures of asyncio that have no result yet.
    futures: Mutex<HashMap<u64, Py<PyAny>>>,
    numbers: AtomicU64,
    inbox: Arc<Inbox>,
    socket: UnixStream,
}

impl Bridge {
    fn of_running_loop(py: Python<'_>) -> PyResult<Bound<'_, Self>> {
        static GET_RUNNING_LOOP: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let event_loop = GET_RUNNING_LOOP.import(py, "asyncio", "get_running_loop")?.call0()?;
        let found = lock(&BRIDGES)
            .iter()
            .find(|bridge| bridge.get().event_loop.is(&event_loop))
            .map(|bridge| bridge.clone_ref(py));
        match found {
            Some(bridge) => Ok(bridge.into_bound(py)),
            None => Self::connect(event_loop),
        }
    }

    fn connect(event_loop: Bound<'_, PyAny>) -> PyResult<Bound<'_, Self>> {
        let py = event_loop.py();
        let (waker, socket) = UnixStream::pair()?;
        waker.set_nonblocking(true)?;
        socket.set_nonblocking(true)?;
        let inbox = Arc::new(Inbox { results: Mutex::default(), waker });
        let descriptor = socket.as_raw_fd();
        let bridge = Self {
            event_loop: event_loop.clone().unbind(),
            futures: Mutex::default(),
            numbers: AtomicU64::new(0),
            inbox: Arc::clone(&inbox),
            socket,
        };
        let bridge = Bound::new(py, bridge)?;
        event_loop.call_method1("add_reader", (descriptor, bridge.getattr("receive")?))?;

        // No Python code runs under the lock, because it could wait for another thread.
        let mut open = Vec::new();
        for bridge in mem::take(&mut *lock(&BRIDGES)) {
            if !bridge.get().event_loop.bind(py).call_method0("is_closed")?.is_truthy()? {
                open.push(bridge);
            }
        }
        open.push(bridge.clone().unbind());
        lock(&BRIDGES).extend(open);
        let mut inboxes = lock(&INBOXES);
        inboxes.retain(|inbox| inbox.strong_count() > 0);
        inboxes.push(Arc::downgrade(&inbox));
        Ok(bridge)
    }

    fn promise<'py, T>(
        &self,
        py: Python<'py>,
        future: impl Future<Output = PyResult<T>> + Send + 'static,
    ) -> PyResult<Bound<'py, PyAny>>
    where
        T: for<'a> IntoPyObject<'a> + Send + 'static,
    {
        let promise = self.event_loop.bind(py).call_method0("create_future")?;
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let inbox = Arc::clone(&self.inbox);
        lock(&self.futures).insert(number, promise.clone().unbind());
        let task = runtime().spawn(async move {
            let result = future.await;
            inbox.push(number, Box::new(move |py| result?.into_bound_py_any(py)));
        });
        let cancel = Cancel { task: task.abort_handle() };
        promise.call_method1("add_done_callback", (cancel,))?;
        Ok(promise)
    }
}

#[pymethods]
impl Bridge {
    /// Receives all pending results. The event loop calls this method when the socket has bytes.
    fn receive(&self, py: Python<'_>) -> PyResult<()> {
        let mut bytes = [0; 64];
        // The bytes are read before the results are taken: a result that comes in between writes another byte.
        while (&self.socket).read(&mut bytes).is_ok_and(|read| read == bytes.len()) {}
        log::write_pending(py);
        let results = mem::take(&mut *lock(&self.inbox.results));
        for (number, convert) in results {
            let Some(promise) = lock(&self.futures).remove(&number) else { continue };
            let promise = promise.bind(py);
            // A cancelled future takes no result. The result is dropped here.
            if promise.call_method0("done")?.is_truthy()? {
                continue;
            }
            match convert(py) {
                Ok(value) => promise.call_method1("set_result", (value,))?,
                Err(error) => promise.call_method1("set_exception", (error,))?,
            };
        }
        Ok(())
    }
}

/// The callback of a future of asyncio, which stops the task if the future was cancelled.
#[pyclass(frozen, module = "requeue._native")]
struct Cancel {
    task: AbortHandle,
}

#[pymethods]
impl Cancel {
    fn __call__(&self, _future: &Bound<'_, PyAny>) {
        // A task that has put its result into the inbox is complete, or will not wait again.
        self.task.abort();
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
