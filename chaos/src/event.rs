//! The events that processes report, one per line.

use std::str::FromStr;

use nix::time::{ClockId, clock_gettime};

/// Returns nanoseconds on a clock that all processes of the machine share, including those with a
/// wrong clock.
pub(crate) fn now() -> u64 {
    // The call cannot fail, because every supported system has this clock.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or_else(|error| panic!("{error}"));
    u64::try_from(now.tv_sec()).unwrap_or(0) * 1_000_000_000
        + u64::try_from(now.tv_nsec()).unwrap_or(0)
}

/// An observation of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Event {
    /// The process that reports the observation. The lines of a process do not contain this number.
    pub(crate) process: u32,
    /// The key that the observation concerns.
    pub(crate) key: u32,
    /// The observation.
    pub(crate) kind: Kind,
}

/// An observation about a key. Times are in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// An add that began at `begun` was acknowledged by `at`. `is_ready` is true if the add has made a new key ready.
    Added { begun: u64, at: u64, is_ready: bool },
    /// The process got the key.
    Got { epoch: u64, at: u64 },
    /// The process considered the key its own at `at`, and sent a write that arrived at `landed`.
    Wrote { epoch: u64, at: u64, landed: u64 },
    /// The process completed its run.
    Ended { epoch: u64, begun: u64, outcome: Outcome },
}

/// The store's answer to a completion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Accepted.
    Held,
    /// Refused: the lease had expired.
    Lost,
    /// Unknown.
    Unsure,
}

impl Kind {
    pub(crate) const fn epoch(&self) -> Option<u64> {
        match *self {
            Self::Added { .. } => None,
            Self::Got { epoch, .. } | Self::Wrote { epoch, .. } | Self::Ended { epoch, .. } => {
                Some(epoch)
            }
        }
    }
}

impl Event {
    pub(crate) fn line(&self) -> String {
        let key = self.key;
        match self.kind {
            Kind::Added { begun, at, is_ready } => format!("added {key} {begun} {at} {is_ready}"),
            Kind::Got { epoch, at } => format!("got {key} {epoch} {at}"),
            Kind::Wrote { epoch, at, landed } => format!("wrote {key} {epoch} {at} {landed}"),
            Kind::Ended { epoch, begun, outcome } => {
                let outcome = match outcome {
                    Outcome::Held => "held",
                    Outcome::Lost => "lost",
                    Outcome::Unsure => "unsure",
                };
                format!("ended {key} {epoch} {begun} {outcome}")
            }
        }
    }

    /// Returns `None` for an incomplete line, such as the last line of a process that was killed.
    pub(crate) fn parse(process: u32, line: &str) -> Option<Self> {
        fn next<'a, T: FromStr>(words: &mut impl Iterator<Item = &'a str>) -> Option<T> {
            words.next()?.parse().ok()
        }
        let mut words = line.split(' ');
        let what = words.next()?;
        let key = next(&mut words)?;
        let kind = match what {
            "added" => {
                let (begun, at) = (next(&mut words)?, next(&mut words)?);
                Kind::Added { begun, at, is_ready: next(&mut words)? }
            }
            "got" => Kind::Got { epoch: next(&mut words)?, at: next(&mut words)? },
            "wrote" => {
                let (epoch, at) = (next(&mut words)?, next(&mut words)?);
                Kind::Wrote { epoch, at, landed: next(&mut words)? }
            }
            "ended" => {
                let (epoch, begun) = (next(&mut words)?, next(&mut words)?);
                let outcome = match words.next()? {
                    "held" => Outcome::Held,
                    "lost" => Outcome::Lost,
                    "unsure" => Outcome::Unsure,
                    _ => return None,
                };
                Kind::Ended { epoch, begun, outcome }
            }
            _ => return None,
        };
        Some(Self { process, key, kind })
    }
}
