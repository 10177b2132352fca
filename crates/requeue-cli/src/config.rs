//! The command line, checked.

use std::io::IsTerminal;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use jiff::SignedDuration;
use requeue::EarlyAdd;

use crate::args::{self, Flags, Output, Summary};
use crate::command;
use crate::exit::Refusal;
use crate::template::Template;

/// What a run is to do. Everything in it makes sense, and the command exists.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) input: Source,
    pub(crate) delimiter: u8,
    pub(crate) max_keys: usize,
    pub(crate) template: Template,
    /// Commands at once, at least 1.
    pub(crate) jobs: usize,
    /// Runs after the first; `None` for ever.
    pub(crate) retries: Option<u32>,
    pub(crate) base_delay: Duration,
    pub(crate) max_delay: Duration,
    pub(crate) early_add: EarlyAdd,
    pub(crate) output: Output,
    pub(crate) summary: Summary,
}

/// Where keys come from.
#[derive(Debug)]
pub(crate) enum Source {
    Stdin { terminal: bool },
    File(PathBuf),
}

impl Config {
    pub(crate) fn check(flags: Flags) -> Result<Self, Refusal> {
        if flags.max_args.is_some() || flags.max_lines.is_some() || flags.xargs || flags.keep_order
        {
            return Err(Refusal::usage(
                "-n, -L, -X, -k: one key per command: it is the unit of retry and exclusion",
            ));
        }
        let template = match (flags.shell, flags.command) {
            (Some(script), command) if command.is_empty() => {
                Template::script(script, flags.mark.as_deref())?
            }
            (Some(_), _) => {
                return Err(Refusal::usage(
                    "either -c SCRIPT or a COMMAND; the script's one argument is the key, \"$1\"",
                ));
            }
            (None, command) => Template::command(command, flags.mark.as_deref())?,
        };
        let base_delay = flags.base_delay.unwrap_or(Duration::from_secs(1));
        let max_delay = flags.max_delay.unwrap_or(Duration::from_secs(300).max(base_delay));
        if base_delay > max_delay {
            return Err(Refusal::usage("--base-delay is longer than --max-delay"));
        }
        command::find(&template)?;
        Ok(Self {
            input: match flags.arg_file {
                Some(file) if file.as_os_str() != "-" => Source::File(file),
                _ => Source::Stdin { terminal: std::io::stdin().is_terminal() },
            },
            delimiter: if flags.null { b'\0' } else { b'\n' },
            max_keys: flags.max_keys.unwrap_or(1_000_000) as usize,
            template,
            jobs: flags.jobs.unwrap_or(Jobs::Percent(100)).number(),
            retries: flags.retries.unwrap_or(Retries(Some(5))).0,
            base_delay,
            max_delay,
            early_add: match flags.early_add {
                args::EarlyAdd::Replace => EarlyAdd::Replace,
                args::EarlyAdd::Hold => EarlyAdd::Hold,
                args::EarlyAdd::Keep => EarlyAdd::Keep,
            },
            output: if flags.ungroup { Output::Inherit } else { flags.output },
            summary: flags.summary,
        })
    }
}

/// How many commands run at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Jobs {
    Number(NonZeroUsize),
    /// As many as there are keys.
    Unlimited,
    /// Of the cores.
    Percent(u32),
}

impl Jobs {
    fn number(self) -> usize {
        match self {
            Self::Number(jobs) => jobs.get(),
            Self::Unlimited => command::most_at_once(),
            Self::Percent(percent) => {
                let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
                (cores.saturating_mul(percent as usize) / 100).max(1)
            }
        }
    }
}

impl FromStr for Jobs {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        const WRONG: &str = "a number, 0 for no limit, or a percentage of the cores";
        if let Some(percent) = text.strip_suffix('%') {
            let percent = percent.parse().ok().filter(|&percent| percent > 0).ok_or(WRONG)?;
            return Ok(Self::Percent(percent));
        }
        let jobs = text.parse::<u32>().map_err(|_| WRONG)?;
        Ok(NonZeroUsize::new(jobs as usize).map_or(Self::Unlimited, Self::Number))
    }
}

/// How many runs follow the first; `None` for ever.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Retries(pub(crate) Option<u32>);

impl FromStr for Retries {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "inf" => Ok(Self(None)),
            number => number.parse().map(|n| Self(Some(n))).map_err(|_| "a number, or `inf`"),
        }
    }
}

/// "1.5s", "2m", "1h 30m"; a bare number is seconds.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, &'static str> {
    const WRONG: &str = "a time like 1.5s, 500ms, 2m or 1h, or a number of seconds";
    if let Ok(seconds) = text.parse::<f64>() {
        return Duration::try_from_secs_f64(seconds).map_err(|_| WRONG);
    }
    let duration = text.parse::<SignedDuration>().map_err(|_| WRONG)?;
    Duration::try_from(duration).map_err(|_| WRONG)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units_or_are_seconds() {
        for (text, millis) in [
            ("1.5s", 1_500),
            ("2", 2_000),
            ("0.25", 250),
            ("500ms", 500),
            ("5m", 300_000),
            ("0", 0),
        ] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "-1s", "-1", "1 parsec", "NaN", "inf", "1e300"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn jobs_are_a_number_no_limit_or_a_share_of_the_cores() {
        assert_eq!("3".parse(), Ok(Jobs::Number(NonZeroUsize::new(3).unwrap())));
        assert_eq!("0".parse(), Ok(Jobs::Unlimited));
        assert_eq!("50%".parse(), Ok(Jobs::Percent(50)));
        assert!(Jobs::Percent(1).number() >= 1);
        for text in ["", "-1", "%", "0%", "x", "1.5"] {
            assert!(text.parse::<Jobs>().is_err(), "{text}");
        }
    }
}
