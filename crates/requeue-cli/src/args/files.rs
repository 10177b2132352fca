//! The flags of `requeue files` that `requeue run` does not have.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::args::help::Sections;
use crate::args::run::{Alone, Common};
use crate::duration::parse_duration;

// clap makes the flags from the fields, so this struct has one field per flag.
#[derive(Args, Debug)]
#[command(
    after_long_help = Sections::help_text("files"),
    override_usage = "requeue files DIR... [OPTIONS] -- COMMAND [ARG]...\n       \
                      requeue files DIR... [OPTIONS] -c SCRIPT",
    disable_help_flag = true,
    // The directories are a list like the command, so `--` must separate the two.
    mut_arg("command", |arg| arg.trailing_var_arg(false).last(true)),
    mut_arg("shell", |arg| arg.help("Run `sh -c SCRIPT` with the path as \"$1\"").long_help(None)),
    mut_arg("mark", |arg| arg.help("Placeholder for the path in COMMAND [default: {}]")),
    mut_arg("debounce", |arg| {
        arg.help("Wait for QUIET without a change [default: 50ms]")
            .long_help("Wait for QUIET without a change, MAX at most [default: 50ms,500ms]")
            .help_heading("Files")
            .hide_short_help(false)
    }),
    // These flags are hidden in the short help, to make space for the flags of this subcommand.
    mut_arg("timeout", |arg| arg.hide_short_help(true)),
    mut_arg("dry_run", |arg| arg.hide_short_help(true)),
    mut_arg("retries", |arg| {
        arg.help("Retries of a failed run, or inf [default: 0]").long_help(
            "Retries of a failed run, or inf [default: 0, which waits for the next change]",
        )
    }),
    mut_arg("re_add", |arg| {
        arg.help("Effect of a change of a file that backs off [default: replace]").requires("retries")
    }),
    // These flags require `--retries`. Without retries they have no effect, because a failed command runs again only
    // after the next change.
    mut_arg("base_delay", |arg| arg.requires("retries")),
    mut_arg("max_delay", |arg| arg.requires("retries")),
    mut_arg("fatal", |arg| arg.requires("retries")),
    mut_arg("order", |arg| arg.help("Order of ready files [default: fifo]")),
    mut_arg("dead_letter", |arg| {
        arg.help("Append paths that are given up to FILE, as lines").long_help(None).hide_short_help(true)
    }),
)]
pub(crate) struct Flags {
    /// Directories, with all directories in them
    #[arg(required = true, value_name = "DIR", help_heading = "Files")]
    pub(crate) dirs: Vec<PathBuf>,

    /// Only files with these extensions: rs,toml
    #[arg(short = 'e', long = "extension", value_name = "EXT", value_delimiter = ',')]
    #[arg(help_heading = "Files")]
    pub(crate) extensions: Vec<OsString>,

    /// Ignore what GLOB matches, as in .gitignore
    #[arg(long, value_name = "GLOB", help_heading = "Files")]
    pub(crate) ignore: Vec<String>,

    /// Do not read .gitignore, .ignore and git's other lists
    #[arg(long, help_heading = "Files", hide_short_help = true)]
    pub(crate) no_ignore: bool,

    /// Also watch hidden files and directories, except .git
    #[arg(long, help_heading = "Files", hide_short_help = true)]
    pub(crate) hidden: bool,

    /// Follow symbolic links
    ///
    /// Without this flag, links are ignored. A change of a link's target is detected only if the target's directory is
    /// also watched.
    #[arg(short = 'L', long, help_heading = "Files", hide_short_help = true)]
    pub(crate) follow: bool,

    /// Search for changes every TIME, instead of having the system report them
    ///
    /// For network file systems, and for more directories than the system can watch.
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "Files")]
    #[arg(hide_short_help = true)]
    pub(crate) poll: Option<Duration>,

    /// First run for each file that exists
    #[arg(long, help_heading = "Files")]
    pub(crate) initial: bool,

    /// Also run for files that were deleted or renamed
    #[arg(long, help_heading = "Files")]
    pub(crate) deleted: bool,

    /// Clear the terminal before a run
    ///
    /// Without --all-in-one, only the first run after a pause clears the terminal, so that the outputs for files that
    /// change together stay visible. Standard output that is not a terminal is not changed.
    #[arg(long, help_heading = "Output", hide_short_help = true)]
    pub(crate) clear: bool,

    /// One run for all changes, with the paths on its input
    ///
    /// Each path is one line. A path with a newline is reported and left out; use -0 for such paths.
    /// $REQUEUE_PATHS contains the same lines, unless they are too long for a variable or a path contains a newline.
    /// The paths are those that changed since the last run that succeeded.
    #[arg(long, help_heading = "Command")]
    pub(crate) all_in_one: bool,

    /// Terminate the paths on standard input by NUL instead of newlines
    #[arg(short = '0', long, requires = "all_in_one", help_heading = "Command")]
    #[arg(hide_short_help = true)]
    pub(crate) null: bool,

    #[command(flatten)]
    pub(crate) common: Common,

    #[command(flatten)]
    pub(crate) alone: Alone,
}
