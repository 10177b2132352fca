//! The names and fixed values of attributes. They follow the semantic conventions of OpenTelemetry
//! 1.42.0, whose part about messaging is still in development. No other file contains the name of
//! an attribute.

use opentelemetry::{InstrumentationScope, KeyValue};

use super::Cause;

const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.42.0";
const SYSTEM: &str = "messaging.system";
const DESTINATION: &str = "messaging.destination.name";
const OPERATION_NAME: &str = "messaging.operation.name";
const OPERATION_TYPE: &str = "messaging.operation.type";
const ERROR_TYPE: &str = "error.type";
/// The following attributes have no names in the conventions.
const KEY: &str = "requeue.key";
const ATTEMPT: &str = "requeue.attempt";
const ADDS: &str = "requeue.adds";
const WAIT_CAUSE: &str = "requeue.wait.cause";

/// The operation of a span.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Operation {
    Wait,
    Process,
}

impl Operation {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Process => "process",
        }
    }

    /// Returns the name of a span. `queue` is the name of the queue.
    pub(super) fn span_name(self, queue: Option<&str>) -> String {
        match queue {
            Some(queue) => format!("{} {queue}", self.as_str()),
            None => self.as_str().to_owned(),
        }
    }

    /// Returns the attributes that every span of this operation has.
    pub(super) fn attributes(self, queue: Option<&str>) -> Vec<KeyValue> {
        let mut attributes =
            vec![KeyValue::new(SYSTEM, "requeue"), KeyValue::new(OPERATION_NAME, self.as_str())];
        // The conventions have no operation type for the wait of a key.
        if self == Self::Process {
            attributes.push(KeyValue::new(OPERATION_TYPE, "process"));
        }
        attributes.extend(queue.map(|queue| KeyValue::new(DESTINATION, queue.to_owned())));
        attributes
    }
}

pub(super) fn attempt(attempt: u32) -> KeyValue {
    KeyValue::new(ATTEMPT, i64::from(attempt))
}

pub(super) fn adds(adds: u32) -> KeyValue {
    KeyValue::new(ADDS, i64::from(adds))
}

pub(super) fn key(key: String) -> KeyValue {
    KeyValue::new(KEY, key)
}

pub(super) fn error_type(kind: String) -> KeyValue {
    KeyValue::new(ERROR_TYPE, kind)
}

pub(super) fn wait_cause(cause: Cause) -> KeyValue {
    KeyValue::new(WAIT_CAUSE, cause.as_str())
}

pub(super) fn scope() -> InstrumentationScope {
    InstrumentationScope::builder("requeue")
        .with_version(env!("CARGO_PKG_VERSION"))
        .with_schema_url(SCHEMA_URL)
        .build()
}
