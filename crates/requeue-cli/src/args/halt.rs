//! `--halt`, with the syntax of GNU parallel. It stops the program after a number of keys has failed, succeeded or
//! completed.

use crate::process::signals::Level;

/// The limit at which the program stops, and the way in which it stops.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Halt {
    /// The level of the shutdown. It determines whether the commands in flight complete or are terminated.
    pub(crate) level: Level,
    what: What,
    often: Often,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// Keys that were given up.
    Fail,
    Success,
    /// Keys that were given up, and keys that succeeded.
    Done,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Often {
    Times(u64),
    /// A percentage of the completed keys. As in GNU parallel, the limit applies only after three such keys.
    Percent(u64),
}

impl Halt {
    /// The value for `--fail-fast`.
    pub(crate) const FAIL_FAST: Self =
        Self { level: Level::Terminating, what: What::Fail, often: Often::Times(1) };

    /// Returns true if the number or percentage is reached.
    pub(crate) fn is_reached(self, succeeded: u64, given_up: u64) -> bool {
        let all = succeeded + given_up;
        let count = match self.what {
            What::Fail => given_up,
            What::Success => succeeded,
            What::Done => all,
        };
        match self.often {
            Often::Times(times) => count >= times,
            // With fewer keys, a percentage says little. A single failure among two keys would be 50 %.
            Often::Percent(percent) => count >= 3 && count * 100 >= all * percent,
        }
    }
}

/// The value of `--halt`. `None` stands for `never`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct MayHalt(pub(crate) Option<Halt>);

/// Parses the value of `--halt`.
pub(crate) fn parse_halt(text: &str) -> Result<MayHalt, &'static str> {
    const WRONG: &str = "expected `never`, or `now` or `soon` with `fail`, `success` or `done` \
                         and a number or percentage, as in now,fail=1 or soon,done=20%";
    if text == "never" {
        return Ok(MayHalt(None));
    }
    let (when, why) = text.split_once(',').ok_or(WRONG)?;
    let (what, often) = why.split_once('=').ok_or(WRONG)?;
    let number = |text: &str| text.parse().ok().filter(|&number| number > 0).ok_or(WRONG);
    Ok(MayHalt(Some(Halt {
        level: match when {
            "soon" => Level::Stopping,
            "now" => Level::Terminating,
            _ => return Err(WRONG),
        },
        what: match what {
            "fail" => What::Fail,
            "success" => What::Success,
            "done" => What::Done,
            _ => return Err(WRONG),
        },
        often: match often.strip_suffix('%') {
            None => Often::Times(number(often)?),
            Some(percent) => match number(percent)? {
                percent @ 1..=100 => Often::Percent(percent),
                _ => return Err(WRONG),
            },
        },
    })))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn halt(text: &str) -> Halt {
        parse_halt(text).unwrap().0.unwrap()
    }

    #[test]
    fn a_halt_counts_failures_successes_or_both() {
        for (text, succeeded, given_up, reached) in [
            ("now,fail=2", 100, 1, false),
            ("now,fail=2", 0, 2, true),
            ("soon,success=2", 1, 100, false),
            ("soon,success=2", 2, 0, true),
            ("soon,done=3", 1, 1, false),
            ("soon,done=3", 1, 2, true),
            ("soon,fail=50%", 0, 2, false),
            ("soon,fail=50%", 4, 3, false),
            ("soon,fail=50%", 3, 3, true),
        ] {
            assert_eq!(halt(text).is_reached(succeeded, given_up), reached, "{text}");
        }
        assert_eq!(halt("now,fail=1"), Halt::FAIL_FAST);
        assert_eq!(halt("soon,fail=1").level, Level::Stopping);
        assert_eq!(parse_halt("never"), Ok(MayHalt(None)));
        for text in [
            "",
            "soon",
            "now,fail",
            "now,fail=0",
            "later,fail=1",
            "now,fails=1",
            "now,fail=0%",
            "now,fail=101%",
        ] {
            assert!(parse_halt(text).is_err(), "{text}");
        }
    }
}
