//! The help of each subcommand: `-h` fits on a small terminal, `--help` is complete.

use std::process::Command;

use crate::support::end;

/// The help of a subcommand, such as `store init`.
fn help(subcommand: &str, flag: &str) -> String {
    let mut requeue = Command::new(env!("CARGO_BIN_EXE_requeue"));
    let ended = end(requeue.args(subcommand.split_whitespace()).arg(flag), "");
    assert_eq!((ended.code(), ended.stderr.as_str()), (Some(0), ""), "{subcommand} {flag}");
    ended.text()
}

/// The subcommands that the help of the program or of a subcommand lists, and their subcommands.
fn subcommands(of: &str) -> Vec<String> {
    let text = help(of, "-h");
    let listed = text.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = listed.take_while(|line| !line.is_empty());
    let names =
        names.filter_map(|line| line.split_whitespace().next()).filter(|name| *name != "help");
    let names = names.map(|name| format!("{of} {name}").trim().to_owned());
    names.flat_map(|name| [vec![name.clone()], subcommands(&name)].concat()).collect()
}

#[test]
fn short_help_fits_on_24_lines_of_80_columns() {
    let mut all = subcommands("");
    assert!(all.len() >= 17 && all.iter().any(|name| name == "store init"), "{all:?}");
    all.push(String::new());
    for subcommand in all {
        let text = help(&subcommand, "-h");
        assert!(text.lines().count() <= 24, "{subcommand}:\n{text}");
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{subcommand}: {line}");
        }
        // The long help contains everything that the short help contains.
        let long = help(&subcommand, "--help");
        for flag in flags(&text) {
            assert!(flags(&long).contains(&flag), "{subcommand}: {flag}");
        }
        for line in long.lines() {
            assert!(line.trim_end().chars().count() <= 80, "{subcommand}: {line}");
        }
    }
}

/// The long flags at the beginnings of lines.
fn flags(text: &str) -> Vec<&str> {
    let words = text.lines().filter(|line| line.trim_start().starts_with('-'));
    words.filter_map(|line| line.split_whitespace().find(|word| word.starts_with("--"))).collect()
}

#[test]
fn long_help_has_the_flags_the_variables_and_the_exit_codes() {
    let text = help("run", "--help");
    assert!(text.starts_with("Runs a command for each key of the input."), "{text}");
    for part in [
        "-a, --arg-file <FILE>",
        "--dead-letter <FILE>",
        "REQUEUE_KEY",
        "REQUEUE_LAST_EXIT",
        "SIGUSR1",
        "requeue run -a ids",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for code in ["0", "1", "2", "3", "4", "125", "126", "127"] {
        assert!(text.contains(&format!("\n  {code}\n")), "{code}: {text}");
    }
    // This flag of xargs has no effect.
    assert!(!text.contains("no-run-if-empty"), "{text}");

    let text = help("files", "--help");
    for part in
        ["<DIR>", "--all-in-one", "REQUEUE_PATHS", "[default: 50ms,500ms]", "[default: replace]"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    let text = help("watch", "--help");
    for part in ["<RESOURCE>", "--changed", "REQUEUE_EVENT", "[default: inf]", "\n  5\n"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("\n  3\n"), "watch reads no input: {text}");
    let text = help("work", "--help");
    for part in ["--until-empty", "REQUEUE_KEY", "REQUEUE_FENCING_TOKEN", "--worker"] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn the_program_has_a_version_and_needs_a_subcommand() {
    let requeue = || Command::new(env!("CARGO_BIN_EXE_requeue"));
    let version = end(requeue().arg("--version"), "");
    assert_eq!(version.text(), format!("requeue {}\n", env!("CARGO_PKG_VERSION")));
    let nothing = end(&mut requeue(), "");
    assert_eq!(nothing.code(), Some(2));
    assert!(nothing.stderr.contains("run "), "{}", nothing.stderr);
}
