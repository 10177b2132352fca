//! Stores.

mod fields;
mod item;
mod queue;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use requeue_store::{GroupBy, OpenOptions, ParkedAdd, Rate};

use self::fields::{CountFields, QueueFields};
pub(crate) use self::item::StoreItem;
pub(crate) use self::queue::StoreQueue;
use crate::bridge::promise;
use crate::convert::{Arguments, choose, parse_readd_policy};
use crate::errors::Fault;

#[pyclass(frozen, module = "requeue._native")]
pub(crate) struct Store {
    store: requeue_store::Store,
}

#[pymethods]
impl Store {
    #[staticmethod]
    fn connect<'py>(py: Python<'py>, url: String) -> PyResult<Bound<'py, PyAny>> {
        promise_or_fault(py, async move {
            let store = requeue_store::Store::connect(&url).await?;
            Ok::<_, requeue_store::ConnectError>(Self { store })
        })
    }

    fn migrate<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let store = self.store.clone();
        promise_or_fault(py, async move { store.migrate().await })
    }

    fn queue<'py>(
        &self,
        py: Python<'py>,
        name: String,
        arguments: &Bound<'_, PyDict>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let options = apply(Arguments(arguments), self.store.queue(name))?;
        promise_or_fault(py, async move {
            let queue = options.open().await?;
            Ok::<_, requeue_store::OpenError>(StoreQueue { queue })
        })
    }

    fn queues<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let store = self.store.clone();
        promise_or_fault(py, async move {
            let queues = store.queues().await?.into_iter();
            Ok::<_, requeue_store::ReadError>(queues.map(QueueFields::from).collect::<Vec<_>>())
        })
    }

    fn drop_queue<'py>(&self, py: Python<'py>, name: String) -> PyResult<Bound<'py, PyAny>> {
        let store = self.store.clone();
        promise_or_fault(py, async move { store.drop_queue(&name).await })
    }

    fn force_drop_queue<'py>(&self, py: Python<'py>, name: String) -> PyResult<Bound<'py, PyAny>> {
        let store = self.store.clone();
        promise_or_fault(
            py,
            async move { store.force_drop_queue(&name).await.map(CountFields::from) },
        )
    }

    fn close<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let store = self.store.clone();
        promise(py, async move {
            store.close().await;
            Ok(())
        })
    }
}

/// Applies the arguments of `requeue.Store.queue`.
fn apply(arguments: Arguments<'_, '_>, mut options: OpenOptions) -> PyResult<OpenOptions> {
    if let Some(policy) = arguments.get::<Option<String>>("readd_policy")? {
        options = options.readd_policy(parse_readd_policy(&policy)?);
    }
    if let Some(effect) = arguments.get::<Option<String>>("parked_add")? {
        let choices = [("revive", ParkedAdd::Revive), ("keep", ParkedAdd::Keep)];
        options = options.parked_add(choose("parked_add", &effect, &choices)?);
    }
    // With the empty text, each add names the group.
    if let Some(pattern) = arguments.get::<Option<String>>("group_by")? {
        let by_add = pattern.is_empty();
        options = options.group_by(if by_add { GroupBy::Add } else { GroupBy::Pattern(pattern) });
    }
    if let Some(limit) = arguments.get("group_limit")? {
        options = options.group_limit(limit);
    }
    if let Some(rate) = arguments.get::<Option<String>>("rate")? {
        options = options.rate(parse_rate(&rate)?);
    }
    if arguments.get("must_exist")? {
        options = options.must_exist();
    }
    if let Some(lease) = arguments.seconds("lease")? {
        options = options.lease(lease);
    }
    if let Some((base, max)) = arguments.backoff()? {
        options = options.backoff(base, max);
    }
    if let Some(most) = arguments.get("max_failures")? {
        options = options.max_failures(most);
    }
    if let Some(deliveries) = arguments.get("oldest_every")? {
        options = options.oldest_every(deliveries);
    }
    if let Some(every) = arguments.seconds("poll")? {
        options = options.poll(every);
    }
    if let Some(most) = arguments.get("claim_ahead")? {
        options = options.claim_ahead(most);
    }
    if let Some(timeout) = arguments.seconds("add_timeout")? {
        options = options.add_timeout(timeout);
    }
    if let Some(worker) = arguments.get::<Option<String>>("worker")? {
        options = options.worker(worker);
    }
    Ok(options)
}

fn parse_rate(rate: &str) -> PyResult<Rate> {
    rate.parse()
        .map_err(|error: requeue_store::ParseRateError| PyValueError::new_err(error.to_string()))
}

/// Returns a future of asyncio whose error is an exception of `requeue`.
fn promise_or_fault<'py, T, E>(
    py: Python<'py>,
    result: impl Future<Output = Result<T, E>> + Send + 'static,
) -> PyResult<Bound<'py, PyAny>>
where
    T: for<'a> IntoPyObject<'a> + Send + 'static,
    E: Fault,
{
    promise(py, async move { result.await.map_err(Fault::into_exception) })
}
