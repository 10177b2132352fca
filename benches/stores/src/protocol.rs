//! The protocol between runner and contestants, which `peers-stores/README.md` describes.

use serde::{Deserialize, Serialize};

/// The operations of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Scenario {
    Fill,
    Add,
    Work,
    Flow,
    Cycle,
    Latency,
}

impl Scenario {
    /// The scenarios that requeue's contestant supports.
    pub(crate) const ALL: [Self; 6] =
        [Self::Fill, Self::Add, Self::Work, Self::Flow, Self::Cycle, Self::Latency];

    /// Returns the name in the protocol.
    pub(crate) fn name(self) -> String {
        format!("{self:?}").to_lowercase()
    }
}

/// A round.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Request {
    pub(crate) scenario: Scenario,
    #[serde(default)]
    pub(crate) n: usize,
    #[serde(default = "one")]
    pub(crate) tasks: usize,
    #[serde(default = "one")]
    pub(crate) batch: usize,
    #[serde(default)]
    pub(crate) seconds: f64,
}

const fn one() -> usize {
    1
}

impl Request {
    pub(crate) const fn of(scenario: Scenario) -> Self {
        Self { scenario, n: 0, tasks: 1, batch: 1, seconds: 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_request_leaves_out_is_as_the_protocol_says() {
        let request: Request = serde_json::from_str(r#"{"scenario":"fill","n":7}"#).unwrap();
        assert_eq!(request, Request { n: 7, ..Request::of(Scenario::Fill) });
    }

    #[test]
    fn scenarios_are_called_what_the_protocol_calls_them() {
        let page = include_str!("../../peers-stores/README.md");
        for scenario in Scenario::ALL {
            let name = scenario.name();
            assert_eq!(serde_json::to_value(scenario).unwrap(), *name);
            assert!(page.contains(&format!("\n| `{name}` |")), "the page does not have {name}");
        }
    }
}
