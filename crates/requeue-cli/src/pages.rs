//! Shell completions and manual pages.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use roff::{Roff, bold, roman};

use crate::args::Cli;
use crate::args::help::Sections;
use crate::exit::{Ended, Exit, Refusal, print_output};
use crate::key::escaped;

/// Prints the completion script of a shell.
pub(crate) fn print_completions(shell: Shell) -> Result<Ended, Refusal> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "requeue", &mut script);
    print_output(&script)?;
    Ok(Ended::Exit(Exit::Done))
}

/// Writes a manual page for the program, and one for each subcommand.
pub(crate) fn write_manual(dir: &Path) -> Result<Ended, Refusal> {
    let mut requeue = Cli::command().disable_help_subcommand(true);
    // `build` sets the full name of each subcommand, which becomes the name of its page.
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
    let sections = Sections::for_subcommand(command.get_name());
    // The generator would otherwise leave out the text of a flag that is hidden in the short help and has no long
    // text.
    let command = command.mut_args(|arg| arg.hide_short_help(false));
    let man = Man::new(command).source(concat!("requeue ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    if let Some(sections) = sections {
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
        after_options(&sections).to_writer(&mut page)?;
    } else {
        man.render(&mut page)?;
    }
    let path = dir.join(man.get_filename());
    // The old file is removed first. Otherwise, the page could be written through a link of another user.
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => File::create_new(path)?.write_all(&page),
    }
}

/// The parts of a page after the flags.
fn after_options(sections: &Sections) -> Roff {
    let mut roff = Roff::new();
    for (title, items) in sections.titled_lists() {
        roff.control("SH", [&*title.to_uppercase()]);
        for (name, text) in items {
            roff.control("TP", []).text([bold(*name)]).text([roman(*text)]);
        }
    }
    roff.control("SH", ["EXAMPLES"]);
    for example in sections.examples {
        roff.control("PP", []).control("nf", []).text([roman(*example)]).control("fi", []);
    }
    roff
}
