//! What processes say they saw, a line each.

use std::str::FromStr;

use nix::time::{ClockId, clock_gettime};

/// Nanoseconds, by a clock that all processes of the machine have in common: also those who are told
/// another time.
pub(crate) fn now() -> u64 {
    // There is such a clock on every system that the program runs on.
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).unwrap_or_else(|error| panic!("{error}"));
    u64::try_from(now.tv_sec()).unwrap_or(0) * 1_000_000_000
        + u64::try_from(now.tv_nsec()).unwrap_or(0)
}

/// Something that a process saw.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Event {
    /// Which process; not in its lines.
    pub(crate) process: u32,
    /// Of which key.
    pub(crate) key: u32,
    /// What.
    pub(crate) kind: Kind,
}

/// What a process saw of a key. Times are nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// An add that was begun at one time was acknowledged by another.
    Added { begun: u64, at: u64 },
    /// It got the key.
    Got { epoch: u64, at: u64 },
    /// It had the key, as far as it knew, at one time, and wrote something that landed at another.
    Wrote { epoch: u64, at: u64, landed: u64 },
    /// It has ended its run.
    Ended { epoch: u64, begun: u64, outcome: Outcome },
}

/// What was said to the end of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// It is ended, as the holder wanted.
    Held,
    /// The lease had run out.
    Lost,
    /// Nobody knows.
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
            Kind::Added { begun, at } => format!("added {key} {begun} {at}"),
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

    /// `None` for a line that is none, as of a process that was killed in the middle of it.
    pub(crate) fn parse(process: u32, line: &str) -> Option<Self> {
        fn next<'a, T: FromStr>(words: &mut impl Iterator<Item = &'a str>) -> Option<T> {
            words.next()?.parse().ok()
        }
        let mut words = line.split(' ');
        let what = words.next()?;
        let key = next(&mut words)?;
        let kind = match what {
            "added" => Kind::Added { begun: next(&mut words)?, at: next(&mut words)? },
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
