//! The contestants: requeue, its parts, and alternatives in Rust.

mod async_channel;
mod contended;
mod core;
mod delay_queue;
mod fire;
mod floor;
mod holds;
mod ours;
mod several;
pub mod single;
mod three_sets;
mod timers;

use std::io::{self, BufRead, Write};

use crate::keys::{Key, Name};
use crate::protocol::{Answer, Hello, Keys, Request, Scenario};

/// An implementation that is measured.
pub trait Contestant {
    /// The name of the contestant.
    const NAME: &'static str;
    /// The scenarios that the contestant supports.
    const SCENARIOS: &'static [Scenario];

    /// Returns the version of the contestant.
    fn version() -> String {
        env!("CARGO_PKG_VERSION").to_owned()
    }

    /// Runs a round. Returns `None` if it does not support the scenario.
    fn round<K: Key>(request: &Request) -> Option<Answer>;
}

/// Runs a round with the requested kind of keys.
#[must_use]
pub fn round<C: Contestant>(request: &Request) -> Answer {
    let answer = match request.keys {
        _ if request.n == 0 => Some(Answer::error("`n` must be 1 or more")),
        _ if request.producers == 0 || request.workers == 0 || request.batch == 0 => {
            Some(Answer::error("`producers`, `workers` and `batch` must be 1 or more"))
        }
        _ if !(0.0..=3600.0).contains(&request.seconds) => {
            Some(Answer::error("`seconds` must be within 0 and 3600"))
        }
        _ if request.work_ns > 1_000_000_000 => {
            Some(Answer::error("`work_ns` must be within 0 and 1,000,000,000"))
        }
        Keys::U64 => C::round::<u64>(request),
        Keys::Name => C::round::<Name>(request),
    };
    answer.unwrap_or_else(|| {
        Answer::unsupported(format!("{} has no {}", C::NAME, request.scenario.name()))
    })
}

/// A contestant, without its type.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// The name of the contestant.
    pub name: &'static str,
    /// The scenarios that the contestant supports.
    pub scenarios: &'static [Scenario],
    version: fn() -> String,
    round: fn(&Request) -> Answer,
}

impl Entry {
    /// Returns the entry of a contestant.
    #[must_use]
    pub const fn of<C: Contestant>() -> Self {
        Self { name: C::NAME, scenarios: C::SCENARIOS, version: C::version, round: round::<C> }
    }

    /// Introduces itself, and answers requests until the input closes.
    ///
    /// # Errors
    ///
    /// Returns an error if the streams fail.
    pub fn serve(&self) -> io::Result<()> {
        let (stdin, mut stdout) = (io::stdin().lock(), io::stdout().lock());
        let hello = Hello {
            contestant: self.name.to_owned(),
            version: (self.version)(),
            scenarios: self.scenarios.iter().map(|scenario| scenario.name()).collect(),
        };
        writeln!(stdout, "{}", serde_json::to_string(&hello)?)?;
        stdout.flush()?;
        for line in stdin.lines() {
            let answer = match serde_json::from_str(&line?) {
                Ok(request) => (self.round)(&request),
                Err(error) => Answer::error(format!("not a request: {error}")),
            };
            writeln!(stdout, "{}", serde_json::to_string(&answer)?)?;
            stdout.flush()?;
        }
        Ok(())
    }
}

/// All contestants of this program.
pub const ALL: [Entry; 12] = [
    Entry::of::<ours::Requeue>(),
    Entry::of::<ours::WithPriorities>(),
    Entry::of::<ours::WithGroups>(),
    Entry::of::<ours::OnTokio>(),
    Entry::of::<ours::ByTsc>(),
    Entry::of::<core::Core>(),
    Entry::of::<floor::Bare>(),
    Entry::of::<three_sets::ThreeSets>(),
    Entry::of::<async_channel::Channel>(),
    Entry::of::<delay_queue::Delays>(),
    Entry::of::<timers::ParkedThread>(),
    Entry::of::<timers::TokioSleep>(),
];
