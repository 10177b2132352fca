//! What `--help` says.

use std::process::Command;

use crate::support::{end, run};

#[test]
fn help_is_one_screen_that_says_it_all() {
    let help = run(&["--help"], "");
    assert_eq!((help.code(), help.stderr.as_str()), (Some(0), ""));
    assert_eq!(run(&["-h"], "").text(), help.text());
    let text = help.text();
    assert!(text.lines().count() <= 52, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.starts_with("Run a command per key, from a stream of keys.\n"), "{text}");
    for group in ["Input:", "Command:", "Pace:", "Failure:", "Output:", "Ending:"] {
        assert!(text.lines().any(|line| line == group), "{group}: {text}");
    }
    // That every flag is in it is tested where the flags are.
    assert!(text.contains("-a, --arg-file FILE"), "{text}");
    for code in [
        "0 all done",
        "1 a key was given up",
        "2 usage",
        "3 bad input",
        "4 halted",
        "125 requeue itself failed",
        "126 COMMAND can't be executed",
        "127 not found",
    ] {
        assert!(text.contains(code), "{code}: {text}");
    }
    for name in ["REQUEUE_KEY", "_ATTEMPT", "_ADDS", "_SLOT", "_SEQ", "_LAST_EXIT"] {
        assert!(text.contains(name), "{name}: {text}");
    }
    // What other programs have is not shown as if it were here.
    assert!(!text.contains("max-args") && !text.contains("no-run-if-empty"), "{text}");
}

#[test]
fn so_is_that_of_watch() {
    let help = end(Command::new(env!("CARGO_BIN_EXE_requeue")).args(["watch", "--help"]), "");
    assert_eq!((help.code(), help.stderr.as_str()), (Some(0), ""));
    let text = help.text();
    assert!(text.lines().count() <= 52, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for part in ["Objects: ", "Events:", "REQUEUE_EVENT", "and 5: "] {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn so_is_that_of_work() {
    let help = end(Command::new(env!("CARGO_BIN_EXE_requeue")).args(["work", "--help"]), "");
    assert_eq!((help.code(), help.stderr.as_str()), (Some(0), ""));
    let text = help.text();
    assert!(text.lines().count() <= 52, "{text}");
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for part in ["Queue: ", "--until-empty", "REQUEUE_KEY", "_EPOCH", "--worker"] {
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
