//! Converts keys, durations and the names of settings between Python and Rust.

use std::fmt::Write;
use std::time::Duration;

use pyo3::conversion::FromPyObjectOwned;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyFloat, PyString};
use requeue::workers::WorkItem;
use requeue::{
    Added, CancelReason, CancelledRun, Completion, Merge, ReaddPolicy, Reasons, reason_text,
};
use requeue_store::Key;

/// A key: `str` or `bytes` in Python.
///
/// Bytes that are not UTF-8 become surrogates of a `str`, as in the names of files (PEP 383), so every key is a `str`.
#[derive(Clone)]
pub(crate) struct PyKey(pub(crate) Key);

/// The handler and name of the error with which Python decodes the names of files.
const DECODING: (&str, &str) = ("utf-8", "surrogateescape");

impl<'py> FromPyObject<'_, 'py> for PyKey {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        if let Ok(text) = object.cast::<PyString>() {
            if let Ok(text) = text.to_str() {
                return Ok(Self(Key::from(text)));
            }
            let bytes = text.call_method1("encode", DECODING)?;
            return Ok(Self(Key::from(bytes.cast::<PyBytes>()?.as_bytes())));
        }
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Self(Key::from(bytes.as_bytes())));
        }
        let kind = object.get_type().name()?;
        Err(PyTypeError::new_err(format!("a key is a str or bytes, not {kind}")))
    }
}

impl<'py> IntoPyObject<'py> for PyKey {
    type Target = PyAny;
    type Output = Bound<'py, PyAny>;
    type Error = PyErr;

    fn into_pyobject(self, py: Python<'py>) -> PyResult<Self::Output> {
        match self.0.as_str() {
            Some(text) => Ok(PyString::new(py, text).into_any()),
            None => PyBytes::new(py, &self.0).call_method1("decode", DECODING),
        }
    }
}

/// Converts keys for Python.
pub(crate) fn to_keys(keys: impl IntoIterator<Item = Key>) -> Vec<PyKey> {
    keys.into_iter().map(PyKey).collect()
}

/// A duration: a number of seconds or a `timedelta` in Python. Infinity is the longest duration.
#[derive(Clone, Copy)]
pub(crate) struct Seconds(pub(crate) Duration);

impl<'py> FromPyObject<'_, 'py> for Seconds {
    type Error = PyErr;

    fn extract(object: Borrowed<'_, 'py, PyAny>) -> PyResult<Self> {
        let seconds: f64 = match object.extract() {
            Ok(seconds) => seconds,
            Err(error) => match object.call_method0("total_seconds") {
                Ok(seconds) => seconds.extract()?,
                Err(_) => return Err(error),
            },
        };
        if seconds.is_nan() || seconds < 0.0 {
            return Err(PyValueError::new_err(format!(
                "{seconds} s: a duration must be at least 0 s"
            )));
        }
        Ok(Self(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)))
    }
}

impl<'py> IntoPyObject<'py> for Seconds {
    type Target = PyFloat;
    type Output = Bound<'py, PyFloat>;
    type Error = std::convert::Infallible;

    fn into_pyobject(self, py: Python<'py>) -> Result<Self::Output, Self::Error> {
        let is_never = self.0 == Duration::MAX;
        let seconds = if is_never { f64::INFINITY } else { self.0.as_secs_f64() };
        Ok(PyFloat::new(py, seconds))
    }
}

/// The named arguments of a call in Python. An argument that was omitted is `None`.
///
/// `FromPyObject` is not derived for structs, because the derived code replaces each error with a `TypeError`.
pub(crate) struct Arguments<'a, 'py>(pub(crate) &'a Bound<'py, PyDict>);

impl<'py> Arguments<'_, 'py> {
    pub(crate) fn get<T: FromPyObjectOwned<'py>>(&self, name: &str) -> PyResult<T> {
        let value = self.0.as_any().get_item(name)?;
        value.extract().map_err(Into::<PyErr>::into).map_err(|error| {
            let py = self.0.py();
            let text = format!("{name}: {}", error.value(py));
            // A negative number for an unsigned one is an `OverflowError`.
            let is_value = error.is_instance_of::<PyValueError>(py)
                || error.is_instance_of::<PyOverflowError>(py);
            if is_value { PyValueError::new_err(text) } else { PyTypeError::new_err(text) }
        })
    }

    pub(crate) fn seconds(&self, name: &str) -> PyResult<Option<Duration>> {
        Ok(self.get::<Option<Seconds>>(name)?.map(|Seconds(duration)| duration))
    }

    /// Returns the longest delays after the first failure, and after any failure.
    pub(crate) fn backoff(&self) -> PyResult<Option<(Duration, Duration)>> {
        let backoff = self.get::<Option<(Seconds, Seconds)>>("backoff")?;
        Ok(backoff.map(|(Seconds(base), Seconds(max))| (base, max)))
    }

    /// Returns the delay of an add, if any.
    pub(crate) fn delay(&self) -> PyResult<Delay> {
        match (self.seconds("after")?, self.seconds("debounce")?) {
            (Some(delay), None) => Ok(Delay::After(delay)),
            (None, Some(quiet)) => Ok(Delay::Debounce(quiet)),
            (None, None) => Ok(Delay::None),
            _ => Err(PyValueError::new_err("give `after` or `debounce`, not both")),
        }
    }
}

/// The delay of an add.
pub(crate) enum Delay {
    None,
    After(Duration),
    Debounce(Duration),
}

/// Returns the value of a setting that Python passes by its name.
pub(crate) fn choose<T: Copy>(
    setting: &str,
    name: &str,
    choices: &[(&'static str, T)],
) -> PyResult<T> {
    if let Some((_, value)) = choices.iter().find(|(choice, _)| *choice == name) {
        return Ok(*value);
    }
    let mut text = format!("{setting}={name:?}: expected ");
    for (at, (choice, _)) in choices.iter().enumerate() {
        let separator = match at {
            0 => "",
            at if at + 1 == choices.len() => " or ",
            _ => ", ",
        };
        // Writing to a string cannot fail.
        let _ = write!(text, "{separator}{choice}");
    }
    Err(PyValueError::new_err(text))
}

pub(crate) fn parse_readd_policy(name: &str) -> PyResult<ReaddPolicy> {
    let choices = [
        ("hold", ReaddPolicy::Hold),
        ("replace", ReaddPolicy::Replace),
        ("keep_both", ReaddPolicy::KeepBoth),
    ];
    choose("readd_policy", name, &choices)
}

pub(crate) fn parse_merge(name: &str) -> PyResult<Merge> {
    let choices =
        [("earliest", Merge::Earliest), ("latest", Merge::Latest), ("exactly", Merge::Exactly)];
    choose("merge", name, &choices)
}

/// The name of a completion, with the delay that the completion may have.
pub(crate) fn parse_completion(name: &str, delay: Option<Seconds>) -> PyResult<Completion> {
    let delay = delay.map_or(Duration::ZERO, |Seconds(delay)| delay);
    let choices = [
        ("succeed", Completion::Succeed),
        ("requeue_after", Completion::RequeueAfter(delay)),
        ("retry", Completion::Retry),
        ("retry_after", Completion::RetryAfter(delay)),
        ("give_up", Completion::GiveUp),
        ("release", Completion::Release),
        ("release_after", Completion::ReleaseAfter(delay)),
        ("cancelled", Completion::Cancelled),
    ];
    choose("completion", name, &choices)
}

pub(crate) fn name_added(added: Added) -> &'static str {
    match added {
        Added::New => "new",
        Added::Coalesced => "coalesced",
        Added::Dirty => "dirty",
        Added::BackingOff => "backing_off",
        Added::Refused => "refused",
        Added::Revived => "revived",
        Added::Parked => "parked",
        _ => "unknown",
    }
}

pub(crate) fn name_cancelled_run(run: CancelledRun) -> &'static str {
    match run {
        CancelledRun::NotInFlight => "not_in_flight",
        CancelledRun::Cancelled => "cancelled",
        CancelledRun::AlreadyCancelled => "already_cancelled",
        _ => "unknown",
    }
}

pub(crate) fn name_cancel_reason(reason: CancelReason) -> &'static str {
    match reason {
        CancelReason::Cancelled => "cancelled",
        CancelReason::Restarted => "restarted",
        CancelReason::TimedOut => "timed_out",
        CancelReason::Stopping => "stopping",
        CancelReason::Lost => "lost",
        _ => "unknown",
    }
}

/// The fields of a delivery, in the order of the attributes of `requeue.Item`: attempt, adds, flags, priority, queued
/// and fencing token.
pub(crate) type DeliveryFields = (u32, u32, u32, i32, Option<Seconds>, u64);

pub(crate) fn delivery_fields(item: &impl WorkItem) -> DeliveryFields {
    let delivery = item.delivery();
    let queued = delivery.queued.map(Seconds);
    (
        delivery.attempt,
        delivery.adds,
        delivery.flags,
        delivery.priority,
        queued,
        delivery.fencing_token,
    )
}

/// A reason with the number of its adds, its first cause and its last cause.
pub(crate) type ReasonFields = (&'static str, u32, Option<String>, Option<String>);

pub(crate) fn reason_fields(reasons: &Reasons) -> Vec<ReasonFields> {
    let owned = |cause: &Option<std::sync::Arc<str>>| cause.as_deref().map(str::to_owned);
    let fields = reasons.iter().map(|count| {
        (reason_text(count.reason), count.adds, owned(&count.first), owned(&count.last))
    });
    fields.collect()
}
