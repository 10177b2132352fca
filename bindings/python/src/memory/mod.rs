//! A queue in memory.

mod fields;
mod item;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use regex::bytes::Regex;
use requeue::{
    Add, Cursor, GroupHandle, GroupId, InFlightPolicy, Order, Pace, Queue, intern_reason,
};
use requeue_store::Key;

pub(crate) use self::fields::DrainedFields;
use self::fields::{CountFields, EntryFields};
pub(crate) use self::item::MemoryItem;
use crate::bridge::promise;
use crate::clock::FakeClock;
use crate::convert::{
    Arguments, Delay, PyKey, ReasonFields, Seconds, name_added, name_cancelled_run, parse_merge,
    parse_readd_policy, reason_fields, to_keys,
};

#[pyclass(frozen, module = "requeue._native")]
pub(crate) struct MemoryQueue {
    pub(crate) queue: Queue<Key>,
}

/// Builds a queue from the arguments of `requeue.Queue`.
fn build(arguments: Arguments<'_, '_>) -> PyResult<Queue<Key>> {
    let client_go = arguments.get("client_go")?;
    let mut builder = if client_go { requeue::Builder::client_go() } else { Queue::builder() };
    if let Some(name) = arguments.get::<Option<String>>("name")? {
        builder = builder.name(name);
    }
    if let Some(policy) = arguments.get::<Option<String>>("readd_policy")? {
        builder = builder.readd_policy(parse_readd_policy(&policy)?);
    }
    if let Some(at_most) = arguments.seconds("restart")? {
        builder = builder.in_flight_policy(InFlightPolicy::Restart { at_most });
    }
    if let Some((runs, Seconds(per))) = arguments.get("pace")? {
        builder = builder.pace(Pace::new(runs, per));
    }
    if let Some(oldest_every) = arguments.get("oldest_every")? {
        builder = builder.order(Order::Priority { oldest_every });
    }
    if let Some(pattern) = arguments.get::<Option<String>>("group_by")? {
        let pattern = Regex::new(&pattern)
            .map_err(|error| PyValueError::new_err(format!("group_by: {error}")))?;
        builder = builder.group_by(move |key: &Key| find_group(&pattern, key));
    }
    if arguments.get("fair")? {
        builder = builder.fair();
    }
    if let Some(limit) = arguments.get("group_limit")? {
        builder = builder.group_limit(limit);
    }
    if let Some((base, max)) = arguments.backoff()? {
        builder = builder.backoff(base, max);
    }
    if arguments.get("track_times")? {
        builder = builder.track_times();
    }
    if let Some(clock) = arguments.get::<Option<Py<FakeClock>>>("clock")? {
        builder = builder.clock(clock.get().0.clone());
    }
    builder.build().map_err(|error| PyValueError::new_err(error.to_string()))
}

/// Returns the group of a key: the first capture of the pattern, or the whole match, as in a store.
fn find_group(pattern: &Regex, key: &Key) -> GroupId {
    let found = pattern.captures(key);
    let found = found.and_then(|found| found.get(1).or(found.get(0)));
    GroupId::of(found.map(|found| found.as_bytes()).unwrap_or_default())
}

/// Returns the add, and its cause, that the arguments of `requeue.Queue.add` describe.
fn to_add(arguments: Arguments<'_, '_>) -> PyResult<(Add, Option<String>)> {
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
    let add = add.merge(merge).priority(arguments.get("priority")?).flags(arguments.get("flags")?);
    match (arguments.get::<Option<String>>("reason")?, arguments.get("cause")?) {
        (Some(reason), cause) => Ok((add.reason(intern_reason(&reason)), cause)),
        (None, None) => Ok((add, None)),
        (None, Some(_)) => Err(PyValueError::new_err("a `cause` needs a `reason`")),
    }
}

// No method runs Python code while it holds the queue's lock, so a thread that is attached to the interpreter can wait
// for the lock.
#[pymethods]
impl MemoryQueue {
    #[new]
    fn new(arguments: &Bound<'_, PyDict>) -> PyResult<Self> {
        Ok(Self { queue: build(Arguments(arguments))? })
    }

    fn add(&self, key: PyKey, arguments: Option<&Bound<'_, PyDict>>) -> PyResult<&'static str> {
        let Some(arguments) = arguments else { return Ok(name_added(self.queue.add(key.0))) };
        Ok(name_added(match to_add(Arguments(arguments))? {
            (add, None) => self.queue.add_with(key.0, add),
            (add, Some(cause)) => self.queue.add_caused_by(key.0, add, cause),
        }))
    }

    fn add_all(&self, keys: Vec<PyKey>) -> usize {
        self.queue.add_all(keys.into_iter().map(|PyKey(key)| key))
    }

    fn add_rate_limited(&self, key: PyKey) -> &'static str {
        name_added(self.queue.add_rate_limited(key.0))
    }

    fn cancel(&self, key: PyKey) -> (bool, bool, bool) {
        let cancelled = self.queue.cancel(&key.0);
        (cancelled.ready, cancelled.dirty, cancelled.waiting)
    }

    fn cancel_running(&self, key: PyKey) -> &'static str {
        name_cancelled_run(self.queue.cancel_running(&key.0))
    }

    fn done(&self, key: PyKey) -> bool {
        self.queue.done(&key.0)
    }

    fn forget(&self, key: PyKey) {
        self.queue.forget(&key.0);
    }

    fn num_requeues(&self, key: PyKey) -> u32 {
        self.queue.num_requeues(&key.0)
    }

    fn failures(&self, key: PyKey) -> u32 {
        self.queue.failures(&key.0)
    }

    fn try_get(&self) -> Option<MemoryItem> {
        self.queue.try_get().map(|item| MemoryItem::new(item.into_owned()))
    }

    fn get<'py>(&self, py: Python<'py>, timeout: Option<Seconds>) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise(py, async move {
            let get = queue.get();
            let get = match timeout {
                Some(Seconds(timeout)) => get.timeout(timeout),
                None => get,
            };
            Ok(get.await.map(|item| MemoryItem::new(item.into_owned())))
        })
    }

    fn get_many<'py>(&self, py: Python<'py>, max: usize) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise(py, async move {
            let items = queue.get_many(max).await.into_iter();
            Ok(items.map(|item| MemoryItem::new(item.into_owned())).collect::<Vec<_>>())
        })
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn waiting(&self) -> usize {
        self.queue.waiting()
    }

    fn states(&self) -> CountFields {
        self.queue.states().into()
    }

    fn look_up(&self, key: PyKey) -> Option<EntryFields> {
        let entry = self.queue.look_up(&key.0)?;
        Some(EntryFields::new(entry, self.queue.now()))
    }

    fn snapshot(&self, cursor: u32, limit: usize) -> (Vec<EntryFields>, Option<u32>) {
        let page = self.queue.snapshot(Cursor(cursor), limit);
        let now = self.queue.now();
        let entries = page.entries.into_iter().map(|entry| EntryFields::new(entry, now));
        (entries.collect(), page.next.map(|Cursor(next)| next))
    }

    fn reasons(&self, key: PyKey) -> Vec<ReasonFields> {
        reason_fields(&self.queue.reasons(&key.0))
    }

    fn explain(&self, key: PyKey) -> String {
        self.queue.explain(&key.0)
    }

    fn next_due(&self) -> Option<Seconds> {
        let now = self.queue.now();
        self.queue.next_due().map(|due| Seconds(due.since(now)))
    }

    fn pause(&self) {
        self.queue.pause();
    }

    fn resume(&self) {
        self.queue.resume();
    }

    fn is_paused(&self) -> bool {
        self.queue.is_paused()
    }

    fn close(&self) {
        self.queue.close();
    }

    fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    fn shut_down(&self) -> Vec<PyKey> {
        to_keys(self.queue.shut_down())
    }

    fn shutting_down(&self) -> bool {
        self.queue.shutting_down()
    }

    fn shut_down_with_drain<'py>(
        &self,
        py: Python<'py>,
        timeout: Option<Seconds>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let queue = self.queue.clone();
        promise(py, async move {
            let drain = queue.shut_down_with_drain();
            let drain = match timeout {
                Some(Seconds(timeout)) => drain.timeout(timeout),
                None => drain,
            };
            Ok(DrainedFields::from(drain.await))
        })
    }

    fn take_dropped(&self) -> Vec<PyKey> {
        to_keys(self.queue.take_dropped())
    }

    fn flush_debounced(&self) -> usize {
        self.queue.flush_debounced()
    }

    fn pause_group(&self, group: PyKey) -> PyResult<()> {
        self.group(&group).map(|group| group.pause())
    }

    fn resume_group(&self, group: PyKey) -> PyResult<()> {
        self.group(&group).map(|group| group.resume())
    }

    fn is_group_paused(&self, group: PyKey) -> PyResult<bool> {
        self.group(&group).map(|group| group.is_paused())
    }

    fn cancel_group(&self, group: PyKey) -> PyResult<usize> {
        self.group(&group).map(|group| group.cancel())
    }

    fn cancel_running_group(&self, group: PyKey) -> PyResult<usize> {
        self.group(&group).map(|group| group.cancel_running())
    }

    fn group_states(&self, group: PyKey) -> PyResult<CountFields> {
        self.group(&group).map(|group| group.states().into())
    }
}

impl MemoryQueue {
    fn group(&self, name: &PyKey) -> PyResult<GroupHandle<'_, Key>> {
        let group = self.queue.group(GroupId::of(&*name.0));
        group.map_err(|error| PyValueError::new_err(error.to_string()))
    }
}
