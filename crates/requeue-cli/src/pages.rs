//! Shell completions and manual pages.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::{Arg, Command, CommandFactory, ValueHint};
use clap_complete::Shell;
use clap_mangen::Man;
use roff::{Roff, bold, roman};

use crate::args::Cli;
use crate::exit::{Ended, Exit, Refusal, print};
use crate::key::escaped;

const ABOUT: &str = "\
Reads keys, one a line, and runs a command for each: a file that has changed, a customer's id, the \
name of an object.

A key that comes again before its command has started is run once; one that comes while its command \
runs is run once more afterwards, never twice at once. A command that fails, be it with an exit code, \
of a signal or for taking too long, is run again, later and later, and given up in the end.

A key is one argument of the command, whatever bytes it has. A command in which a key would be a \
shell's code is refused, as sh -c 'cmd {}', su -c and env -S; one in which it would be code of an \
interpreter or of another host is warned of, as python3 -c, awk and ssh. Give such a script the key as \
an argument, sh -c 'cmd \"$1\"' _ {}, or have it read REQUEUE_KEY. Commands are not sandboxed.";

/// Of `requeue watch`.
const ABOUT_WATCH: &str = "\
Watches the objects of a Kubernetes resource, and runs a command for each that is there at the start, \
changes or is deleted: a controller in a shell script. RESOURCE is spelt as for kubectl: cm, \
configmaps, ConfigMap, deployments.apps, deployments.v1.apps. The key of an object, NAMESPACE/NAME, or \
NAME where it is the cluster's own, is put into the command as by requeue run, all of whose rules \
hold. The object is on its standard input as JSON, as it is when the command starts, or as it was last \
seen if it is gone; the command need not read it.

A command that fails is run again, later and later, however often the object changes meanwhile, unless \
that gives it a new generation: then it runs at once. What has changed comes before what is there at \
the start, and before resyncs. What is deleted while nothing watches is not heard of, unless a finalizer \
keeps it.

There are no runs by the clock, but for --resync; no start-up hooks and no webhooks.";

const ENVIRONMENT_WATCH: [(&str, &str); 4] = [
    ("REQUEUE_EVENT", "apply if the object is there when the command starts, else delete"),
    ("REQUEUE_NAMESPACE", "the object's namespace; empty if it is the cluster's own"),
    ("REQUEUE_NAME", "the object's name"),
    (
        "REQUEUE_SNAPSHOTS",
        "with --snapshot, a directory that has NAME.json for each; only to be read",
    ),
];

const EXITS_WATCH: [(&str, &str); 1] = [(
    "5",
    "the API server has no such resource, or does not let us list or watch it, or patch it with \
     --finalizer (401, 403, 404)",
)];

const EXAMPLES_WATCH: [&str; 2] = [
    "requeue watch configmaps -n default -- ./apply {}",
    "requeue watch namespaces --on apply -c 'kubectl label namespace \"$1\" seen=true'",
];

/// Of `requeue work`.
#[cfg(feature = "store")]
const ABOUT_WORK: &str = "\
Takes keys from a queue in a store, and runs a command for each. As many of these may do so as one \
likes, on one machine for a file, on many for a server: no two run one key at once. `requeue add` adds \
keys. What becomes of a key is as for `requeue run`, but that one which is given up is parked: `requeue \
parked` shows it and why, `requeue revive` has it run again.

A key is its worker's for the time of a lease, which is renewed while the worker lives. Where it dies, \
or is cut off, the lease ends: that is a failure of the key, and another worker takes it. One that \
finds that it has lost a key ends the command; what it writes before that can be refused by its \
REQUEUE_EPOCH.";

#[cfg(feature = "store")]
const ENVIRONMENT_STORE: [(&str, &str); 1] = [(
    "REQUEUE_EPOCH",
    "with a store, the number of this run of the key: a later one has a greater one, for ever",
)];

#[cfg(not(feature = "store"))]
const ENVIRONMENT_STORE: [(&str, &str); 0] = [];

#[cfg(feature = "store")]
const EXAMPLES_WORK: [&str; 2] = [
    "requeue work --store sqlite:jobs.db --queue mail -j8 --timeout 1m -- ./send {}",
    "requeue add --store sqlite:jobs.db --queue mail --after 1h alice bob",
];

const ENVIRONMENT: [(&str, &str); 7] = [
    ("REQUEUE_KEY", "the key, unless it is too long for a variable"),
    ("REQUEUE_ATTEMPT", "1, and one more for each failure before"),
    ("REQUEUE_ADDS", "how often the key came for this run"),
    ("REQUEUE_SLOT", "1 to the number of jobs: no other command that runs has the same"),
    ("REQUEUE_SEQ", "the number of the run"),
    ("REQUEUE_PID", "the process id of requeue"),
    ("REQUEUE_LAST_EXIT", "the exit code of the failure before; 124 if it took too long"),
];

const EXITS: [(&str, &str); 8] = [
    ("0", "all done"),
    ("1", "a key was given up"),
    ("2", "the command line makes no sense"),
    ("3", "some of the input was no key"),
    ("4", "halted, by --halt or --fail-fast"),
    ("125", "requeue itself failed"),
    ("126", "the command can't be executed"),
    ("127", "the command was not found"),
];

const SIGNALS: [(&str, &str); 5] = [
    (
        "SIGINT, SIGTERM, SIGHUP",
        "Once: nothing more is read or started, and what runs may finish. Twice: SIGTERM to the \
         process groups of the commands, and SIGKILL after --kill-after. Three times: SIGKILL. \
         Then requeue dies of the first of them. Those that were ignored at the start stay so.",
    ),
    ("SIGTSTP, SIGCONT", "Reach the commands, too; time-outs stand still meanwhile."),
    ("SIGUSR1", "Says on standard error how far it is."),
    ("SIGTTIN, SIGTTOU", "A command that stops of these wants the terminal: it is killed."),
    (
        "SIGKILL",
        "Can't be caught. A second process, kills-commands-left-by PID, then sends SIGKILL to the \
         process groups of the commands. It does not reach what has left these groups, nor what \
         runs as another user; and if both processes are killed at once, commands go on.",
    ),
];

const EXAMPLES: [&str; 3] = [
    "inotifywait -mr -e close_write --format '%w%f%0' --no-newline DIR | requeue run -0 -- CMD",
    "requeue run -a ids -j8 --timeout 1m --joblog log -- ./sync --id {}",
    "requeue run -c 'curl -fsS \"$1\" | ./import' <urls",
];

/// Prints a shell's completions.
pub(crate) fn completions(shell: Shell) -> Result<Ended, Refusal> {
    let mut script = Vec::new();
    let mut requeue = without_hidden(&Cli::command());
    clap_complete::generate(shell, &mut requeue, "requeue", &mut script);
    print(&script)?;
    Ok(Ended::Exit(Exit::Done))
}

/// Without the flags that are known only to say why they can't be had: nobody should be offered
/// them.
fn without_hidden(command: &Command) -> Command {
    // The command to run is hidden, too, as the usage line has it.
    let is_shown = |arg: &&Arg| !arg.is_hide_set() || arg.is_trailing_var_arg_set();
    let args = command.get_arguments().filter(is_shown).cloned().map(|arg| match arg.get_id() {
        id if id == "command" => arg.value_hint(ValueHint::CommandWithArguments),
        _ => arg,
    });
    Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .disable_help_flag(command.is_disable_help_flag_set())
        .args(args)
        .subcommands(command.get_subcommands().map(without_hidden))
}

/// Writes a page for the program and one for each of its commands.
pub(crate) fn man(dir: &Path) -> Result<Ended, Refusal> {
    let mut requeue = Cli::command().disable_help_subcommand(true);
    // From here on each command knows what it is called in full.
    requeue.build();
    write_pages(requeue, dir).map_err(|error| {
        Refusal::failure(format!("{}: {error}", escaped(dir.as_os_str().as_bytes())))
    })?;
    Ok(Ended::Exit(Exit::Done))
}

fn write_pages(command: Command, dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    for command in command.get_subcommands() {
        write_pages(command.clone(), dir)?;
    }
    let (command, sections) = match command.get_name() {
        "run" => (command.long_about(ABOUT), Some(run_sections())),
        "watch" => (command.long_about(ABOUT_WATCH), Some(watch_sections())),
        #[cfg(feature = "store")]
        "work" => (command.long_about(ABOUT_WORK), Some(work_sections())),
        _ => (command, None),
    };
    let man = Man::new(command).source(concat!("requeue ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    if let Some(sections) = sections {
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
        sections.to_writer(&mut page)?;
    } else {
        man.render(&mut page)?;
    }
    let path = dir.join(man.get_filename());
    // Not through a link that another user has put there.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => File::create_new(path)?.write_all(&page),
    }
}

/// What is no flag.
fn run_sections() -> Roff {
    let environment = [&ENVIRONMENT[..], &ENVIRONMENT_STORE].concat();
    sections(&environment, &EXITS, &EXAMPLES)
}

#[cfg(feature = "store")]
fn work_sections() -> Roff {
    let mut environment = [&ENVIRONMENT[..], &ENVIRONMENT_STORE].concat();
    // Another machine may have been told of it.
    environment.retain(|(name, _)| *name != "REQUEUE_LAST_EXIT");
    let mut exits = EXITS.to_vec();
    // Nothing is read.
    exits.retain(|(code, _)| *code != "3");
    sections(&environment, &exits, &EXAMPLES_WORK)
}

fn watch_sections() -> Roff {
    let environment = [&ENVIRONMENT_WATCH[..], &ENVIRONMENT].concat();
    let mut exits = [&EXITS[..], &EXITS_WATCH].concat();
    exits.sort_by_key(|(code, _)| code.parse::<u8>().ok());
    // Nothing is read.
    exits.retain(|(code, _)| *code != "3");
    sections(&environment, &exits, &EXAMPLES_WATCH)
}

fn sections(environment: &[(&str, &str)], exits: &[(&str, &str)], examples: &[&str]) -> Roff {
    let mut roff = Roff::new();
    let lists = [("ENVIRONMENT", environment), ("EXIT STATUS", exits), ("SIGNALS", &SIGNALS)];
    for (title, list) in lists {
        roff.control("SH", [title]);
        for (name, text) in list {
            roff.control("TP", []).text([bold(*name)]).text([roman(*text)]);
        }
    }
    roff.control("SH", ["EXAMPLES"]);
    for example in examples {
        roff.control("PP", []).control("nf", []).text([roman(*example)]).control("fi", []);
    }
    roff
}
