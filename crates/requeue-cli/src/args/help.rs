//! The long texts of `--help` and of the manual pages, and the width of these texts.

use clap::Command;

/// The description of `requeue run`.
pub(crate) const RUN: &str = "\
Runs a command for each key of the input. A key is the name of something that needs work: a file that \
changed, a customer's ID, the name of an object. By default, each line of standard input is a key.

A key that is read again before its command starts is run once. A key that is read while its command runs \
is run once more afterwards, so two commands of one key never overlap.

A command that fails is run again after a backoff. After its last retry, the key is given up. A command \
fails if it exits with a code other than 0, is killed by a signal, or exceeds its time limit.

The key is passed as one argument and can contain any bytes. A command in which a shell would run the key \
as code is refused, as in sh -c 'cmd {}' and su -c. Other programs are not checked: python3 -c, awk, ssh. \
Pass the key to a script as an argument, as in sh -c 'cmd \"$1\"' _ {}, or let the script read \
REQUEUE_KEY. Commands are not sandboxed.";

/// The description of `requeue files`.
pub(crate) const FILES: &str = "\
Watches directories, with all directories in them. Runs a command for each file whose content changes, \
until it is stopped. The path of the file is the key of the run. Two commands of one file never overlap, \
and a file that changes during its run is run once more afterwards.

The path begins with DIR as it is written. requeue puts it into the command by the rules of `requeue run`. \
With --all-in-one, one command runs for all files that have changed.

Files are ignored as ripgrep ignores them: hidden files, and those that .gitignore, .ignore or git's other \
lists exclude. .git is never watched, symbolic links are not followed, and files that requeue itself \
writes are ignored. If the rules change, files that they no longer exclude run as new files.

A file has changed if its content differs from its content in the last successful run, or at the start. \
A write of the same bytes starts no run, so a formatter that changes nothing does not trigger itself. A \
command that changes its own file runs again, until it changes nothing. requeue compares only the size and \
the time of files over 16 MiB, not their content.

A command that fails runs again when its file changes, or, with --all-in-one, when any file changes. If the \
failure may be temporary, as with an upload, use --retries.

Only changes after the message `watching` are certain to run. The command of a file that no longer exists \
is skipped, except with --deleted. The new name of a renamed file is a new file.

If the system loses events because too many files change at the same time, requeue reads all files again.";

/// The description of `requeue watch`.
#[cfg(feature = "kube")]
pub(crate) const WATCH: &str = "\
Watches the objects of a Kubernetes resource. Runs a command for each object that exists at the start, \
changes or is deleted. With it, a shell script can be a controller.

The key of an object is NAMESPACE/NAME, or NAME if the object has no namespace. requeue puts the key into \
the command by the rules of `requeue run`. The command can read the object as JSON on its \
standard input, without managedFields. The JSON is the state at the start of the command. If the object \
was deleted, the JSON is the last known state.

A command that fails is run again after a backoff. Changes of the object do not shorten the backoff, \
except a new generation, which runs the command immediately. Changes run before the objects that existed at \
the start, and before resyncs. A deletion while requeue does not run is missed, if no finalizer keeps the \
object.

There are no schedules except --resync, no start-up hooks and no webhooks.";

/// The description of `requeue work`.
pub(crate) const WORK: &str = "\
Takes keys from a queue in a store, and runs a command for each. Any number of workers can share a \
queue: on one machine with a file, on many machines with a server. No two workers run one key at the \
same time. `requeue add` adds keys.

Keys are coalesced and retried as by `requeue run`, but a key that is given up is parked. `requeue \
parked` shows parked keys with their last errors, and `requeue revive` makes them ready again.

A worker holds a lease on its key, and renews it while the command runs. If the worker dies or loses \
its connection, the lease expires. The expiry counts as a failure of the key, and another worker takes \
the key. A worker that finds that its lease is lost terminates the command. Before that, the \
command may still write. The destination can reject such writes if it compares REQUEUE_FENCING_TOKEN.";

type Item = (&'static str, &'static str);

const ENVIRONMENT: [Item; 7] = [
    ("REQUEUE_KEY", "the key; not set if it is too long for a variable"),
    ("REQUEUE_ATTEMPT", "1 plus the number of failures since the last success"),
    ("REQUEUE_ADDS", "the number of adds that the run serves"),
    (
        "REQUEUE_SLOT",
        "a number from 1 to the number of jobs; no two commands in flight have the same slot",
    ),
    ("REQUEUE_SEQ", "the sequence number of the run"),
    ("REQUEUE_PID", "the process ID of requeue"),
    ("REQUEUE_LAST_EXIT", "the exit code of the last failure; 124 after a timeout"),
];

const ENVIRONMENT_STORE: Item = (
    "REQUEUE_FENCING_TOKEN",
    "with a store: the fencing token of the run; each later run of the key has a greater token",
);

#[cfg(feature = "opentelemetry")]
const ENVIRONMENT_TRACES: [Item; 2] = [
    ("TRACEPARENT", "the trace context of the run, if OTEL_EXPORTER_OTLP_ENDPOINT is set"),
    ("TRACESTATE", "the state of that context"),
];
#[cfg(not(feature = "opentelemetry"))]
const ENVIRONMENT_TRACES: [Item; 0] = [];

#[cfg(feature = "kube")]
const ENVIRONMENT_WATCH: [Item; 4] = [
    ("REQUEUE_EVENT", "apply if the object exists when the command starts, else delete"),
    ("REQUEUE_NAMESPACE", "the namespace of the object, or empty text if it has no namespace"),
    ("REQUEUE_NAME", "the name of the object"),
    (
        "REQUEUE_SNAPSHOTS",
        "with --snapshot: a directory with the files NAME.json; do not write there",
    ),
];

const ENVIRONMENT_FILES: [Item; 2] = [
    (
        "REQUEUE_EVENT",
        "apply if the file exists when the command starts, else delete; not with --all-in-one",
    ),
    (
        "REQUEUE_PATHS",
        "with --all-in-one: the paths, separated by newlines; not set if a path contains a newline, or if \
         the paths are too long for a variable",
    ),
];

const EXITS: [Item; 10] = [
    ("0", "all keys succeeded"),
    ("1", "a key was given up"),
    ("2", "the command line is wrong"),
    ("3", "a record of the input is not a key"),
    ("4", "stopped by --halt or --fail-fast"),
    (
        "5",
        "the API server has no such resource, or does not permit requeue to list, watch or (with --finalizer) \
         patch it (HTTP status 401, 403, 404)",
    ),
    ("125", "requeue failed"),
    ("126", "the command cannot be executed"),
    ("127", "the command was not found"),
    ("141", "the reader of standard output closed it before all keys were completed (SIGPIPE)"),
];

const SIGNALS: [Item; 5] = [
    (
        "SIGINT, SIGTERM, SIGHUP",
        "First signal: reading stops, no new commands start, and commands in flight complete. Second: \
         SIGTERM to the process groups of the commands, and SIGKILL after --kill-after. Third: SIGKILL. \
         At the end, requeue kills itself with the first signal. A signal that was ignored at the start stays ignored. \
         With `requeue files`, the first SIGINT has the effect of a second signal.",
    ),
    ("SIGTSTP, SIGCONT", "Both are passed on to the commands. Between them, time limits pause."),
    ("SIGUSR1", "Prints the progress to standard error."),
    (
        "SIGTTIN, SIGTTOU",
        "A command that these signals stop tries to use the terminal. It is killed.",
    ),
    (
        "SIGKILL",
        "Cannot be caught. A second process, kills-commands-left-by PID, then sends SIGKILL to the \
         process groups of the commands. It does not reach processes that left these groups or run as \
         another user. If both processes are killed at the same time, commands continue.",
    ),
];

const EXAMPLES_RUN: [&str; 3] = [
    "inotifywait -mr -e close_write --format '%w%f%0' --no-newline DIR |\n    requeue run -0 -- CMD",
    "requeue run -a ids -j8 --timeout 1m --joblog log -- ./sync --id {}",
    "requeue run -c 'curl -fsS \"$1\" | ./import' <urls",
];

const EXAMPLES_FILES: [&str; 3] = [
    "requeue files src -e rs -- rustfmt {}",
    "requeue files . --all-in-one -- make",
    "requeue files site --initial --retries 5 -- ./upload {}",
];

#[cfg(feature = "kube")]
const EXAMPLES_WATCH: [&str; 2] = [
    "requeue watch configmaps -n default -- ./apply {}",
    "requeue watch namespaces --on apply -c 'kubectl label namespace \"$1\" seen=1'",
];

const EXAMPLES_WORK: [&str; 2] = [
    "requeue work --store sqlite:jobs.db --queue mail -j8 --timeout 1m -- ./send {}",
    "requeue add --store sqlite:jobs.db --queue mail --after 1h alice bob",
];

/// The parts of a subcommand's reference that do not describe flags.
pub(crate) struct Sections {
    environment: Vec<Item>,
    exits: Vec<Item>,
    pub(crate) examples: &'static [&'static str],
    /// One short example.
    pub(crate) example: &'static str,
}

impl Sections {
    /// Returns these parts for a subcommand that runs commands. Returns `None` for any other subcommand.
    pub(crate) fn for_subcommand(name: &str) -> Option<Self> {
        let (own, examples, example): (&[Item], &'static [&str], &str) = match name {
            "run" => (&[], &EXAMPLES_RUN, EXAMPLES_RUN[1]),
            "work" => (&[], &EXAMPLES_WORK, EXAMPLES_WORK[0]),
            "files" => (&ENVIRONMENT_FILES, &EXAMPLES_FILES, EXAMPLES_FILES[0]),
            #[cfg(feature = "kube")]
            "watch" => (&ENVIRONMENT_WATCH, &EXAMPLES_WATCH, EXAMPLES_WATCH[0]),
            _ => return None,
        };
        let mut environment = [own, &ENVIRONMENT, &ENVIRONMENT_TRACES].concat();
        if matches!(name, "run" | "work") {
            environment.push(ENVIRONMENT_STORE);
        }
        // `work` does not set this variable, because the last failure may have been on another machine.
        environment.retain(|(variable, _)| name != "work" || *variable != "REQUEUE_LAST_EXIT");
        let mut exits = EXITS.to_vec();
        exits.retain(|(code, _)| match *code {
            "3" => name == "run",
            "5" => name == "watch",
            _ => true,
        });
        Some(Self { environment, exits, examples, example })
    }

    /// Returns the title and the items of each list.
    pub(crate) fn titled_lists(&self) -> [(&'static str, &[Item]); 3] {
        [("Environment", &self.environment), ("Exit status", &self.exits), ("Signals", &SIGNALS)]
    }

    /// Returns the text at the end of the `--help` of a subcommand.
    pub(crate) fn help_text(name: &str) -> String {
        let mut text = String::new();
        let Some(sections) = Self::for_subcommand(name) else { return text };
        for (title, items) in sections.titled_lists() {
            text += &format!("{title}:\n");
            for (name, meaning) in items {
                let indented = format!("\n{:INDENT$}", "");
                let meaning = fill_lines(meaning, WIDTH - INDENT).replace('\n', &indented);
                text += &format!("  {name}{indented}{meaning}\n");
            }
            text += "\n";
        }
        text + "Examples:\n  " + &sections.examples.join("\n  ")
    }
}

/// The width of help texts, in columns. To read the width of the terminal, the program would need another dependency.
const WIDTH: usize = 80;
/// The number of columns by which clap indents the text of an option in `--help`.
const INDENT: usize = 10;

/// Breaks the lines of the long help of `command` and its subcommands.
pub(crate) fn with_wrapped_lines(command: Command) -> Command {
    let command = command.mut_subcommands(with_wrapped_lines).mut_args(|arg| {
        let help =
            arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
        let filled = fill_lines(&help, WIDTH - INDENT);
        // The long help is set only if it differs. Otherwise, clap would print the default value in its own paragraph.
        if filled == help { arg } else { arg.long_help(filled) }
    });
    match command.get_long_about().map(|about| fill_lines(&about.to_string(), WIDTH)) {
        Some(about) => command.long_about(about),
        None => command,
    }
}

/// Breaks `text` between words. A line has at most `width` characters, unless a single word is longer.
fn fill_lines(text: &str, width: usize) -> String {
    let mut filled = String::new();
    let mut column = 0;
    for (at, line) in text.lines().enumerate() {
        if at > 0 {
            filled.push('\n');
            column = 0;
        }
        for word in line.split(' ') {
            let length = word.chars().count();
            if column > 0 && column + 1 + length > width {
                filled.push('\n');
                column = 0;
            } else if column > 0 {
                filled.push(' ');
                column += 1;
            }
            filled += word;
            column += length;
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words() {
        assert_eq!(fill_lines("a bc def\n\nghij k longer", 6), "a bc\ndef\n\nghij k\nlonger");
        assert_eq!(fill_lines("", 6), "");
    }
}
