//! A queue in a store.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use requeue_store::{Add, Priority, Queue, Schedule, State};

use super::fields::{AttemptFields, CountFields, EntryFields, GroupFields, ScheduleFields};
use super::item::StoreItem;
use super::{parse_rate, promise_or_fault};
use crate::bridge::promise;
use crate::convert::{
    Arguments, Delay, PyKey, choose, name_added, name_cancelled_run, parse_merge,
};
use crate::errors::Fault;

#[pyclass(frozen, module = "requeue._native")]
pub(crate) struct StoreQueue {
    pub(crate) queue: Queue,
}

#[pymethods]
impl StoreQueue {
    fn name(&self) -> &str {
        self.queue.name()
    }

    fn add<'py>(
        &self,
        py: Python<'py>,
        key: PyKey,
        arguments: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        let (add, group) = to_add(arguments)?;
        promise_or_fault(py, async move {
            let added = match group {
                Some(group) => queue.group(group).add_with(key.0, add).await,
                None => queue.add_with(key.0, add).await,
            };
            added.map(name_added)
        })
    }

    fn add_all<'py>(
        &self,
        py: Python<'py>,
        keys: Vec<PyKey>,
        arguments: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        let (add, group) = to_add(arguments)?;
        let keys = keys.into_iter().map(|PyKey(key)| key);
        promise_or_fault(py, async move {
            let added = match group {
                Some(group) => queue.group(group).add_all_with(keys, add).await,
                None => queue.add_all_with(keys, add).await,
            };
            added.map(|added| added.into_iter().map(name_added).collect::<Vec<_>>())
        })
    }

    fn get<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise(py, async move { Ok(queue.get().await.map(StoreItem::new)) })
    }

    fn get_many<'py>(&self, py: Python<'py>, max: usize) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise(py, async move {
            let items = queue.get_many(max).await.into_iter();
            Ok(items.map(StoreItem::new).collect::<Vec<_>>())
        })
    }

    fn cancel<'py>(&self, py: Python<'py>, key: PyKey) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(py, async move { queue.cancel(key.0).await })
    }

    fn cancel_running<'py>(&self, py: Python<'py>, key: PyKey) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(
            py,
            async move { queue.cancel_running(key.0).await.map(name_cancelled_run) },
        )
    }

    fn cancel_all<'py>(
        &self,
        py: Python<'py>,
        state: Option<&str>,
        group: Option<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let state = state.map(parse_state).transpose()?;
        let bulk = match group {
            Some(group) => self.queue.group(group).cancel_all(state),
            None => self.queue.cancel_all(state),
        };
        promise_or_fault(py, bulk.into_future())
    }

    fn revive<'py>(&self, py: Python<'py>, key: PyKey) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(py, async move { queue.revive(key.0).await })
    }

    fn revive_all<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        promise_or_fault(py, self.queue.revive_all().into_future())
    }

    fn pause<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(py, async move { queue.pause().await })
    }

    fn resume<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(py, async move { queue.resume().await })
    }

    fn is_paused<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(py, async move { queue.is_paused().await })
    }

    fn counts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(py, async move { queue.counts().await.map(CountFields::from) })
    }

    fn look_up<'py>(&self, py: Python<'py>, key: PyKey) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(py, async move {
            Ok::<_, requeue_store::ReadError>(queue.look_up(key.0).await?.map(EntryFields::from))
        })
    }

    fn snapshot<'py>(
        &self,
        py: Python<'py>,
        state: Option<&str>,
        after: Option<PyKey>,
        limit: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        let state = state.map(parse_state).transpose()?;
        promise_or_fault(py, async move {
            let after = after.map(|PyKey(key)| key);
            let entries = queue.snapshot(state, after.as_ref(), limit).await?.into_iter();
            Ok::<_, requeue_store::ReadError>(entries.map(EntryFields::from).collect::<Vec<_>>())
        })
    }

    fn explain<'py>(&self, py: Python<'py>, key: PyKey) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(py, async move { queue.explain(key.0).await })
    }

    fn attempts<'py>(&self, py: Python<'py>, key: PyKey) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(py, async move {
            let attempts = queue.attempts(key.0).await?.into_iter();
            Ok::<_, requeue_store::ReadError>(attempts.map(AttemptFields::from).collect::<Vec<_>>())
        })
    }

    fn set_group_limit<'py>(
        &self,
        py: Python<'py>,
        group: Option<String>,
        limit: Option<u32>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(py, async move {
            match group {
                Some(group) => queue.group(group).set_limit(limit).await,
                None => queue.set_group_limit(limit).await,
            }
        })
    }

    fn set_rate<'py>(
        &self,
        py: Python<'py>,
        group: Option<String>,
        rate: Option<&str>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        let rate = rate.map(parse_rate).transpose()?;
        promise_or_fault(py, async move {
            match group {
                Some(group) => queue.group(group).set_rate(rate).await,
                None => queue.set_rate(rate).await,
            }
        })
    }

    fn set_group_weight<'py>(
        &self,
        py: Python<'py>,
        group: String,
        weight: u32,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(py, async move { queue.group(group).set_weight(weight).await })
    }

    fn pause_group<'py>(&self, py: Python<'py>, group: String) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(py, async move { queue.group(group).pause().await })
    }

    fn resume_group<'py>(&self, py: Python<'py>, group: String) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(py, async move { queue.group(group).resume().await })
    }

    fn groups<'py>(
        &self,
        py: Python<'py>,
        after: Option<String>,
        limit: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(py, async move {
            let groups = queue.groups(after.as_deref(), limit).await?.into_iter();
            Ok::<_, requeue_store::ReadError>(groups.map(GroupFields::from).collect::<Vec<_>>())
        })
    }

    fn schedule<'py>(
        &self,
        py: Python<'py>,
        key: PyKey,
        spec: &str,
        zone: Option<&str>,
        priority: i32,
        group: Option<String>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        let schedule = Schedule::parse(spec, zone).map_err(Fault::into_exception)?;
        let schedule = schedule.priority(Priority::from(priority));
        let schedule = match group {
            Some(group) => schedule.group(group),
            None => schedule,
        };
        promise_or_fault(py, async move { queue.schedule(key.0, schedule).await })
    }

    fn unschedule<'py>(&self, py: Python<'py>, key: PyKey) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(py, async move { queue.unschedule(key.0).await })
    }

    fn pause_schedule<'py>(&self, py: Python<'py>, key: PyKey) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(py, async move { queue.pause_schedule(key.0).await })
    }

    fn resume_schedule<'py>(&self, py: Python<'py>, key: PyKey) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(py, async move { queue.resume_schedule(key.0).await })
    }

    fn schedules<'py>(
        &self,
        py: Python<'py>,
        after: Option<PyKey>,
        limit: usize,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise_or_fault(py, async move {
            let after = after.map(|PyKey(key)| key);
            let schedules = queue.schedules(after.as_ref(), limit).await?.into_iter();
            let schedules = schedules.map(ScheduleFields::from);
            Ok::<_, requeue_store::ReadError>(schedules.collect::<Vec<_>>())
        })
    }

    fn shut_down(&self) {
        self.queue.shut_down();
    }

    fn shut_down_when_idle(&self) {
        self.queue.shut_down_when_idle();
    }

    fn shutting_down(&self) -> bool {
        self.queue.shutting_down()
    }

    fn is_dropped(&self) -> bool {
        self.queue.is_dropped()
    }

    fn settled<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise(py, async move {
            queue.settled().await;
            Ok(())
        })
    }
}

/// Returns the add, and the group that it names, that the arguments of `requeue.StoreQueue.add` describe.
fn to_add(arguments: Option<&Bound<'_, PyDict>>) -> PyResult<(Add, Option<String>)> {
    let Some(arguments) = arguments.map(Arguments) else { return Ok((Add::now(), None)) };
    let add = match arguments.delay()? {
        Delay::None => Add::now(),
        Delay::After(delay) => Add::after(delay),
        Delay::Debounce(quiet) => Add::debounce(quiet),
    };
    let add = match arguments.seconds("at_most")? {
        Some(max) => add.at_most(max),
        None => add,
    };
    let merge = parse_merge(&arguments.get::<String>("merge")?)?;
    let priority = Priority::from(arguments.get::<i32>("priority")?);
    let add = add.merge(merge).priority(priority).flags(arguments.get("flags")?);
    let add = if arguments.get("revive")? { add.revive() } else { add };
    Ok((add, arguments.get("group")?))
}

fn parse_state(state: &str) -> PyResult<State> {
    let choices = [
        ("ready", State::Ready),
        ("waiting", State::Waiting),
        ("in_flight", State::InFlight),
        ("parked", State::Parked),
        ("damaged", State::Damaged),
    ];
    choose("state", state, &choices)
}
