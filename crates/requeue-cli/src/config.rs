//! The command line, checked.

use std::io::IsTerminal;
use std::path::PathBuf;
use std::time::Duration;

use requeue::EarlyAdd;
use rustix::process::Signal;

use crate::args::{self, AtEof, Flags, Output, Stdin, Summary};
use crate::codes::Codes;
use crate::command;
use crate::exit::Refusal;
use crate::halt::{Halt, MayHalt};
use crate::input::{Format, Kind};
use crate::pacing::Pacing;
use crate::progress::Progress;
use crate::serve::Address;
use crate::source::Source;
use crate::template::{Tag, Template};
use crate::timeout::Limits;
use crate::values::{Delimiter, Jobs, Retries};

/// What a run is to do. Everything in it makes sense, and the command exists.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) input: Source,
    pub(crate) format: Format,
    pub(crate) max_keys: usize,
    pub(crate) template: Template,
    pub(crate) pacing: Pacing,
    /// Commands at once, at least 1.
    pub(crate) jobs: usize,
    /// Runs after the first; `None` for ever.
    pub(crate) retries: Option<u32>,
    pub(crate) base_delay: Duration,
    pub(crate) max_delay: Duration,
    pub(crate) early_add: EarlyAdd,
    /// Exit codes after which there is no retry.
    pub(crate) fatal: Codes,
    pub(crate) halt: Option<Halt>,
    pub(crate) dead_letter: Option<PathBuf>,
    pub(crate) unfinished: Option<PathBuf>,
    pub(crate) at_eof: AtEof,
    pub(crate) limits: Limits,
    pub(crate) stdin: Stdin,
    pub(crate) verbose: bool,
    pub(crate) dry_run: bool,
    pub(crate) output: Output,
    pub(crate) tag: Option<Tag>,
    pub(crate) joblog: Option<PathBuf>,
    pub(crate) progress: Progress,
    pub(crate) summary: Summary,
    pub(crate) serve: Option<Address>,
}

impl Config {
    pub(crate) fn check(flags: Flags) -> Result<Self, Refusal> {
        if flags.max_args.is_some() || flags.max_lines.is_some() || flags.xargs || flags.keep_order
        {
            return Err(Refusal::usage(
                "-n, -L, -X, -k: one key per command: it is the unit of retry and exclusion",
            ));
        }
        if flags.input == Kind::Json && flags.delimiter.is_some_and(|Delimiter(it)| it >= b' ') {
            return Err(Refusal::usage(
                "--delimiter: with --input json only what no object has in it: a control \
                 character, as \\t, \\0 or \\x1e",
            ));
        }
        let pacing = Pacing::check(&flags)?;
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
        let output = if flags.ungroup { Output::Inherit } else { flags.output };
        let tag = match (flags.tag, &flags.tagstring) {
            (_, Some(text)) => Some(Tag::string(text, flags.mark.as_deref())?),
            (true, None) => Some(Tag::key()),
            (false, None) => None,
        };
        if tag.is_some() && matches!(output, Output::Inherit | Output::None) {
            return Err(Refusal::usage("--tag: only with --output lines or group"));
        }
        command::find(&template)?;
        Ok(Self {
            input: match flags.arg_file {
                Some(file) if file.as_os_str() != "-" => Source::File(file),
                _ => Source::Stdin { terminal: std::io::stdin().is_terminal() },
            },
            format: Format {
                kind: flags.input,
                delimiter: match flags.delimiter {
                    _ if flags.null => b'\0',
                    Some(Delimiter(byte)) => byte,
                    None => b'\n',
                },
                max_record: flags.max_record.unwrap_or(1 << 20),
            },
            max_keys: flags.max_keys.unwrap_or(1_000_000) as usize,
            template,
            pacing,
            jobs: flags.jobs.unwrap_or(Jobs::Percent(100)).number(),
            retries: flags.retries.unwrap_or(Retries(Some(5))).0,
            base_delay,
            max_delay,
            fatal: flags.fatal.unwrap_or_default(),
            halt: match flags.halt {
                Some(MayHalt(halt)) => halt,
                None => flags.fail_fast.then_some(Halt::FAIL_FAST),
            },
            dead_letter: flags.dead_letter,
            unfinished: flags.unfinished,
            at_eof: flags.at_eof,
            early_add: match flags.early_add {
                args::EarlyAdd::Replace => EarlyAdd::Replace,
                args::EarlyAdd::Hold => EarlyAdd::Hold,
                args::EarlyAdd::Keep => EarlyAdd::Keep,
            },
            limits: Limits {
                timeout: flags.timeout.filter(|timeout| !timeout.is_zero()),
                signal: flags.signal.unwrap_or(Signal::TERM),
                kill_after: flags.kill_after.unwrap_or(Duration::from_secs(10)),
            },
            stdin: flags.stdin,
            verbose: flags.verbose,
            dry_run: flags.dry_run,
            output,
            tag,
            joblog: flags.joblog,
            progress: Progress::choose(flags.progress, output, std::io::stderr().is_terminal()),
            summary: flags.summary,
            serve: flags.serve,
        })
    }
}
