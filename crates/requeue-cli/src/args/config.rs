//! The configuration of a subcommand that runs commands. It is built from flags that were checked together.

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use requeue::ReaddPolicy;
use rustix::process::Signal;

use crate::args::codes::Codes;
use crate::args::halt::{Halt, MayHalt};
use crate::args::help::Sections;
use crate::args::pacing::Pacing;
use crate::args::run::{self as args, Alone, Common, Flags, Output, Read, Stdin, Summary};
use crate::args::values::{Retries, share_of_cores};
use crate::exit::Refusal;
use crate::input::source::Source;
use crate::input::{Format, Kind};
use crate::process::command;
use crate::process::signals::Level;
use crate::process::template::{Tag, Template};
use crate::process::timeout::Limits;
use crate::serve::Serve;

/// The configuration of a subcommand that runs commands. The flags do not contradict each other, and the command's
/// program exists.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) name: &'static str,
    pub(crate) input: InputConfig,
    pub(crate) commands: CommandConfig,
    pub(crate) pacing: Pacing,
    pub(crate) failures: FailureConfig,
    pub(crate) dead_letter: Option<PathBuf>,
    pub(crate) joblog: Option<PathBuf>,
    pub(crate) progress: args::Progress,
    pub(crate) summary: Summary,
    pub(crate) serve: Option<Serve>,
    /// The memory for recorded events, in bytes.
    pub(crate) recording: Option<usize>,
}

#[derive(Debug)]
pub(crate) struct InputConfig {
    pub(crate) format: Format,
    pub(crate) max_keys: usize,
}

#[derive(Debug)]
pub(crate) struct CommandConfig {
    pub(crate) template: Template,
    /// The maximum number of commands that run at the same time. At least 1.
    pub(crate) jobs: usize,
    pub(crate) limits: Limits,
    /// The level of the shutdown after Ctrl-C as the first signal.
    pub(crate) first_interrupt: Level,
    pub(crate) stdin: Stdin,
    pub(crate) output: Output,
    pub(crate) keep_order: bool,
    pub(crate) tag: Option<Tag>,
    pub(crate) verbose: bool,
    pub(crate) dry_run: bool,
}

#[derive(Debug)]
pub(crate) struct FailureConfig {
    /// The maximum number of retries of a key. `None` means no limit.
    pub(crate) retries: Option<u32>,
    pub(crate) base_delay: Duration,
    pub(crate) max_delay: Duration,
    pub(crate) re_add: ReaddPolicy,
    /// The exit codes after which a key is not retried.
    pub(crate) fatal: Codes,
    pub(crate) halt: Option<Halt>,
}

/// The part of the configuration that differs between the subcommands that run commands.
pub(crate) struct Subcommand {
    pub(crate) name: &'static str,
    pub(crate) has_priorities: bool,
    pub(crate) input: InputConfig,
    pub(crate) stdin: Stdin,
    /// True if the command gets no key as an argument.
    pub(crate) is_keyless: bool,
    pub(crate) keep_order: bool,
    /// The level of the shutdown after Ctrl-C as the first signal.
    pub(crate) first_interrupt: Level,
}

impl Subcommand {
    /// Returns the settings of a subcommand that reads no keys. Keys that are given up are still written to the file
    /// of `--dead-letter`, as lines.
    pub(crate) const fn without_input(name: &'static str) -> Self {
        let format = Format { kind: Kind::Lines, delimiter: b'\n', max_record: usize::MAX };
        let input = InputConfig { format, max_keys: usize::MAX };
        Self {
            name,
            has_priorities: false,
            input,
            stdin: Stdin::None,
            is_keyless: false,
            keep_order: false,
            first_interrupt: Level::Stopping,
        }
    }
}

impl Read {
    /// Returns the source of the keys, and the format of its records.
    pub(crate) fn source_and_format(self) -> Result<(Source, Format), Refusal> {
        if self.input == Kind::Json && self.delimiter.is_some_and(|byte| byte >= b' ') {
            return Err(Refusal::usage(
                "--delimiter: --input json requires a control character, as \\t, \\0 or \\x1e, because \
                 JSON may contain any other",
            ));
        }
        let source = match self.arg_file {
            Some(file) if file.as_os_str() != "-" => Source::File(file),
            _ => Source::Stdin { terminal: std::io::stdin().is_terminal() },
        };
        let format = Format {
            kind: self.input,
            delimiter: if self.null { b'\0' } else { self.delimiter.unwrap_or(b'\n') },
            // The limit protects the memory against a record that never ends.
            max_record: 1 << 20,
        };
        Ok((source, format))
    }
}

impl Config {
    /// Returns the configuration of `requeue run`, and the source of its keys.
    pub(crate) fn from_run_flags(flags: Flags) -> Result<(Source, Self), Refusal> {
        let (source, format) = flags.read.source_and_format()?;
        let own = Subcommand {
            has_priorities: format.kind == Kind::Json,
            input: InputConfig { format, max_keys: flags.max_keys.unwrap_or(1_000_000) as usize },
            stdin: flags.stdin,
            keep_order: flags.keep_order,
            ..Subcommand::without_input("run")
        };
        Ok((source, Self::from_flags(flags.common, flags.alone, own)?))
    }

    /// Returns the configuration that results from the flags of all subcommands that run commands.
    pub(crate) fn from_flags(
        common: Common,
        alone: Alone,
        own: Subcommand,
    ) -> Result<Self, Refusal> {
        let pacing = Pacing::from_flags(&common, &alone, own.has_priorities)?;
        let failures = FailureConfig::from_flags(&common)?;
        let template = parse_template(common.command, common.shell, common.mark.as_deref(), &own)?;
        let output = if common.ungroup { Output::Inherit } else { common.output };
        let output = match output {
            // Only output that passes through this process can be held back, so these flags contradict each other.
            Output::Inherit | Output::None if own.keep_order => {
                return Err(Refusal::usage("--keep-order requires --output lines or group"));
            }
            _ if own.keep_order => Output::Group,
            output => output,
        };
        let tag = match (common.tag, &common.tagstring) {
            (_, Some(text)) => Some(Tag::from_text(text, common.mark.as_deref())?),
            (true, None) => Some(Tag::of_key()),
            (false, None) => None,
        };
        if tag.is_some() && matches!(output, Output::Inherit | Output::None) {
            return Err(Refusal::usage("--tag and --tagstring require --output lines or group"));
        }
        // If the program is missing, every run would fail, so the error is reported before any key is read.
        command::find_program(&template)?;
        Ok(Self {
            name: own.name,
            input: own.input,
            commands: CommandConfig {
                template,
                jobs: common.jobs.unwrap_or_else(|| share_of_cores(100)),
                limits: Limits {
                    timeout: common.timeout.filter(|timeout| !timeout.is_zero()),
                    signal: common.signal.unwrap_or(Signal::TERM),
                    kill_after: common.kill_after.unwrap_or(Duration::from_secs(10)),
                },
                first_interrupt: own.first_interrupt,
                stdin: own.stdin,
                output,
                keep_order: own.keep_order,
                tag,
                verbose: common.verbose,
                dry_run: alone.dry_run,
            },
            pacing,
            failures,
            dead_letter: common.dead_letter,
            joblog: common.joblog,
            progress: common.progress,
            summary: common.summary,
            recording: alone.recording()?,
            serve: alone.dashboard.serve_settings()?,
        })
    }
}

/// Returns the template of the command that runs for each key.
fn parse_template(
    command: Vec<OsString>,
    script: Option<OsString>,
    mark: Option<&OsStr>,
    own: &Subcommand,
) -> Result<Template, Refusal> {
    check_separators(&command)?;
    if own.is_keyless {
        Template::refuse_mark(&command, mark)?;
    }
    let template = match (script, command) {
        (Some(script), command) if command.is_empty() => Template::from_script(script, mark)?,
        (Some(_), _) => {
            return Err(Refusal::usage(
                "-c SCRIPT and COMMAND exclude each other; the only argument of SCRIPT is the key, \"$1\"",
            ));
        }
        (None, command) if command.is_empty() => {
            let name = own.name;
            let example = Sections::for_subcommand(name).map_or("", |sections| sections.example);
            return Err(Refusal::usage(format!(
                "no COMMAND; `requeue {name} --help` describes it, for example: {example}"
            )));
        }
        (None, command) => Template::from_words(command, mark)?,
    };
    Ok(if own.is_keyless { template.without_key() } else { template })
}

/// Refuses GNU parallel's syntax for keys on the command line, `COMMAND ::: KEY...`. If the command is `parallel`
/// itself, its arguments are not checked.
fn check_separators(command: &[OsString]) -> Result<(), Refusal> {
    let is_parallel =
        |word: &&OsString| Path::new(word).file_name() == Some(OsStr::new("parallel"));
    let mut words = command.iter().take_while(|word| !is_parallel(word));
    match words.find(|word| [":::", ":::+", "::::", "::::+"].iter().any(|known| *word == known)) {
        None => Ok(()),
        Some(separator) => Err(Refusal::usage(format!(
            "keys after {} as in GNU parallel are not available; `requeue run` reads keys from standard input, as in \
             printf '%s\\n' KEY... | requeue run COMMAND, or from a file: -a FILE",
            separator.display()
        ))),
    }
}

impl FailureConfig {
    fn from_flags(common: &Common) -> Result<Self, Refusal> {
        let base_delay = common.base_delay.unwrap_or(Duration::from_secs(1));
        let max_delay = common.max_delay.unwrap_or(Duration::from_secs(300).max(base_delay));
        if base_delay > max_delay {
            return Err(Refusal::usage("--max-delay is shorter than --base-delay"));
        }
        let retries = match common.retries {
            None if common.fail_fast => Some(0),
            Some(Retries(retries)) if common.fail_fast && retries != Some(0) => {
                return Err(Refusal::usage(
                    "--fail-fast and --retries exclude each other: it stops at the first failed attempt; \
                     --halt now,fail=1 stops when a key has used its retries",
                ));
            }
            retries => retries.unwrap_or(Retries(Some(5))).0,
        };
        Ok(Self {
            retries,
            base_delay,
            max_delay,
            re_add: common.re_add.unwrap_or_default(),
            fatal: common.fatal.clone().unwrap_or_default(),
            halt: match common.halt {
                Some(MayHalt(halt)) => halt,
                None => common.fail_fast.then_some(Halt::FAIL_FAST),
            },
        })
    }
}
