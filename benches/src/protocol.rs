//! The protocol between runner and contestants, which `peers-go/README.md` describes.

use serde::{Deserialize, Serialize};

/// The first message of a contestant.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Hello {
    /// The name of the contestant.
    pub contestant: String,
    /// The version of the contestant.
    pub version: String,
    /// The names of the scenarios that the contestant supports.
    pub scenarios: Vec<String>,
}

/// The operations of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "peers-go/README.md says what each of them is")]
pub enum Scenario {
    Cycle,
    Batch,
    CycleMetrics,
    CycleWaiting,
    HeldBack,
    AddQueued,
    FillDrain,
    Threads,
    Tasks,
    DelayedAdd,
    DelayedReadd,
    Fire,
    SparseTimers,
    RateLimitedAdd,
    Forget,
    HandOver,
    Snapshot,
    Memory,
    MemoryDelayed,
    MemoryIdle,
    IdleCpu,
    HoldsGrowing,
    HoldsDue,
}

impl Scenario {
    /// All scenarios.
    pub const ALL: [Self; 23] = [
        Self::Cycle,
        Self::Batch,
        Self::CycleMetrics,
        Self::CycleWaiting,
        Self::HeldBack,
        Self::AddQueued,
        Self::FillDrain,
        Self::Threads,
        Self::Tasks,
        Self::DelayedAdd,
        Self::DelayedReadd,
        Self::Fire,
        Self::SparseTimers,
        Self::RateLimitedAdd,
        Self::Forget,
        Self::HandOver,
        Self::Snapshot,
        Self::Memory,
        Self::MemoryDelayed,
        Self::MemoryIdle,
        Self::IdleCpu,
        Self::HoldsGrowing,
        Self::HoldsDue,
    ];

    /// Returns the name in the protocol.
    #[must_use]
    pub fn name(self) -> String {
        match serde_json::to_value(self) {
            Ok(serde_json::Value::String(name)) => name,
            _ => unreachable!("a variant without fields is a string"),
        }
    }
}

/// A kind of keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keys {
    /// The integers from 0.
    #[default]
    U64,
    /// A namespace and a name.
    Name,
}

/// A round.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[allow(missing_docs, reason = "peers-go/README.md says what each of them is")]
pub struct Request {
    pub scenario: Scenario,
    #[serde(default)]
    pub keys: Keys,
    pub n: usize,
    #[serde(default)]
    pub depth: usize,
    #[serde(default = "one")]
    pub producers: usize,
    #[serde(default = "one")]
    pub workers: usize,
    #[serde(default = "one")]
    pub batch: usize,
    #[serde(default)]
    pub work_ns: u64,
    #[serde(default)]
    pub seconds: f64,
    #[serde(default)]
    pub metrics: bool,
}

const fn one() -> usize {
    1
}

impl Request {
    /// Returns a round of `n` operations, with integer keys, one producer, one worker, batches of
    /// one key, and no queued keys.
    #[must_use]
    pub const fn new(scenario: Scenario, n: usize) -> Self {
        Self {
            scenario,
            keys: Keys::U64,
            n,
            depth: 0,
            producers: 1,
            workers: 1,
            batch: 1,
            work_ns: 0,
            seconds: 0.0,
            metrics: false,
        }
    }
}

/// Two quantiles, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[allow(missing_docs, reason = "their names say it")]
pub struct Quantiles {
    pub p50: f64,
    pub p99: f64,
}

impl Quantiles {
    /// Sorts the values and returns their quantiles. The quantiles are zero if there are no values.
    #[must_use]
    pub fn of(mut nanos: Vec<u64>) -> Self {
        nanos.sort_unstable();
        let at = |part: f64| match nanos.len() {
            0 => 0.0,
            len => nanos[(((len - 1) as f64) * part).round() as usize] as f64,
        };
        Self { p50: at(0.5), p99: at(0.99) }
    }
}

/// The figures of a round.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
#[allow(missing_docs, reason = "peers-go/README.md says what each of them is")]
pub struct Answer {
    #[serde(skip_serializing_if = "is_zero")]
    pub ops: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub wall_ns: u64,
    #[serde(skip_serializing_if = "is_zero")]
    pub cpu_ns: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lateness_ns: Option<Quantiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency_ns: Option<Quantiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_after: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub longest_ns: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sleeps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unsupported: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde asks for it so")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Answer {
    /// Returns an answer for a figure that does not exist.
    #[must_use]
    pub fn unsupported(why: impl Into<String>) -> Self {
        Self { unsupported: Some(why.into()), ..Self::default() }
    }

    /// Returns an answer for a request that makes no sense.
    #[must_use]
    pub fn error(what: impl Into<String>) -> Self {
        Self { error: Some(what.into()), ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_leaves_out_is_as_the_protocol_says() {
        let request: Request = serde_json::from_str(r#"{"scenario":"add_queued","n":7}"#).unwrap();
        assert_eq!(request, Request::new(Scenario::AddQueued, 7));
    }

    #[test]
    fn scenarios_are_called_what_the_protocol_calls_them() {
        let page = include_str!("../peers-go/README.md");
        for scenario in Scenario::ALL {
            let name = scenario.name();
            assert!(page.contains(&format!("\n| `{name}` |")), "the page does not have {name}");
        }
    }

    #[test]
    fn quantiles_are_of_what_was_measured() {
        assert_eq!(Quantiles::of(Vec::new()), Quantiles { p50: 0.0, p99: 0.0 });
        assert_eq!(Quantiles::of((1..=101).rev().collect()), Quantiles { p50: 51.0, p99: 100.0 });
    }
}
