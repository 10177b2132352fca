//! Exit codes, and command lines that are refused before any input is read.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use crate::support::{command, directory, end, run, run_in};

#[test]
fn what_makes_no_sense_is_refused() {
    for args in [
        &[][..],
        &["--"],
        &["--no-such-option", "echo"],
        &["-j", "-1", "echo"],
        &["-j", "x", "echo"],
        &["-j", "0%", "echo"],
        &["--retries", "-1", "echo"],
        &["--retries", "many", "echo"],
        &["--base-delay", "soon", "echo"],
        &["--max-delay", "-1s", "echo"],
        &["--re-add", "no", "echo"],
        &["--timeout", "-1s", "echo"],
        &["--timeout", "soon", "echo"],
        &["--kill-after", "soon", "echo"],
        &["-s", "NONE", "echo"],
        &["--signal", "0", "echo"],
        &["--stdin", "no", "echo"],
        &["--progress", "no", "echo"],
        &["--tag", "-u", "echo"],
        &["--tag", "--output", "none", "echo"],
        &["--tagstring", "x", "-u", "echo"],
        &["--output", "no", "echo"],
        &["--output", "lines", "-u", "echo"],
        &["--summary", "no", "echo"],
        &["--max-keys", "0", "echo"],
        &["-I", "", "echo"],
        &["-c", "true", "echo"],
        &["-a", "one", "-a", "two", "echo"],
    ] {
        let ended = run(args, "k\n");
        assert_eq!(ended.code(), Some(2), "{args:?}: {ended:?}");
        assert_eq!(ended.text(), "", "{args:?}");
        assert_ne!(ended.stderr, "", "{args:?}");
    }
}

#[test]
fn keys_on_the_command_line_are_refused_with_the_alternative() {
    for (args, said) in [
        (&["-k", "-u", "echo"][..], "requeue: --keep-order requires --output lines or group"),
        (&["--keep-order", "--output=none", "echo"], "--keep-order requires --output lines"),
        (
            &["echo", ":::", "a", "b"],
            "requeue: keys after ::: as in GNU parallel are not available",
        ),
        (&["-c", "echo", ":::", "a"], "printf '%s\\n' KEY... | requeue run COMMAND"),
        (&["echo", "::::", "keys"], "from a file: -a FILE\n"),
    ] {
        let ended = run(args, "k\n");
        assert_eq!(ended.code(), Some(2), "{args:?}");
        assert!(ended.stderr.contains(said), "{args:?}: {}", ended.stderr);
    }
    // The arguments after `parallel` are its own.
    let ended = run(&["--dry-run", "--", "sh", "-c", "", "parallel", "echo", ":::", "a"], "k\n");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
}

#[test]
fn a_suggestion_is_a_flag_that_exists() {
    let flags = [
        "retry",
        "result",
        "resum",
        "keeporder",
        "ba",
        "et",
        "retry-faile",
        "max-arg",
        "max-line",
        "xarg",
        "dela",
        "min-interva",
        "orde",
        "group-b",
        "group-limi",
        "max-key",
        "dry-ru",
        "serv",
        "debounc",
        "on-read",
        "pac",
        "toke-file",
    ];
    let mut suggestions = 0;
    let subcommands = [
        "run",
        "files",
        #[cfg(feature = "kube")]
        "watch",
        "work",
        "add",
    ];
    for subcommand in subcommands {
        let requeue = |arg: &str| {
            let mut requeue = Command::new(env!("CARGO_BIN_EXE_requeue"));
            end(requeue.args([subcommand, arg]), "")
        };
        let help = requeue("--help").text();
        for flag in flags {
            let ended = requeue(&format!("--{flag}"));
            assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
            let suggested = ended.stderr.split("similar argument exists: '").nth(1);
            if let Some(suggested) = suggested.and_then(|rest| rest.split('\'').next()) {
                suggestions += 1;
                let is_there = help.contains(&format!(" {suggested} "))
                    || help.contains(&format!(" {suggested}\n"))
                    || help.contains(&format!(" {suggested}["));
                assert!(is_there, "{subcommand} --{flag}: {suggested}");
            }
        }
    }
    assert!(suggestions > 5, "clap suggests flags: {suggestions}");
}

#[test]
fn who_names_no_command_is_shown_the_help_of_that_subcommand() {
    let cases: &[(&[&str], _)] = &[
        (&["run"], "run"),
        (&["run", "-j2"], "run"),
        (&["run", "--store", "sqlite:x"], "run"),
        (&["work", "--store", "sqlite:x"], "work"),
        #[cfg(feature = "kube")]
        (&["watch", "cm"], "watch"),
    ];
    for (args, said) in cases {
        let mut requeue = Command::new(env!("CARGO_BIN_EXE_requeue"));
        let ended = end(requeue.args(*args), "");
        let message = format!(
            "requeue: no COMMAND; `requeue {said} --help` describes it, for example: requeue {said} "
        );
        assert_eq!(ended.code(), Some(2));
        assert!(ended.stderr.starts_with(&message), "{}", ended.stderr);
        // The error does not show the safe form for another subcommand.
        let mut requeue = Command::new(env!("CARGO_BIN_EXE_requeue"));
        let ended = end(requeue.args(*args).args(["-c", "echo {}"]), "");
        assert_eq!(ended.code(), Some(2));
        assert!(!ended.stderr.contains("requeue run"), "{}", ended.stderr);
    }
}

#[test]
fn a_key_inside_a_script_is_refused_and_the_safe_form_shown() {
    let dir = directory("no_code");
    for args in [
        &["sh", "-c", "echo {}"][..],
        &["/bin/sh", "-c", "echo '{}'"],
        &["--", "bash", "-euo", "pipefail", "-c", "echo \"{}\""],
        &["env", "A=b", "dash", "-ec", "echo {}"],
        &["-I", "@", "ksh", "-c", "echo @"],
        &["zsh", "-c", "{}"],
        &["sh", "-c", "echo {.}", "{}"],
        &["-c", "echo {/}"],
        &["sh", "-c"],
        &["-c", "echo {}"],
    ] {
        let ended = run_in(&dir, args, "$(touch x)\n");
        assert_eq!(ended.code(), Some(2), "{args:?}: {ended:?}");
        assert!(ended.stderr.contains("\n  -c 'cmd \"$1\"'"), "{}", ended.stderr);
    }
    for args in [
        &["fish", "-c", "echo {}"][..],
        &["su", "-c", "echo {}"],
        &["sudo", "env", "A=b", "mksh", "-c", "echo {}"],
    ] {
        let ended = run_in(&dir, args, "$(touch x)\n");
        assert_eq!(ended.code(), Some(2), "{args:?}: {ended:?}");
        assert!(ended.stderr.contains("REQUEUE_KEY"), "{}", ended.stderr);
    }
    assert!(run(&["sh", "-c", "{}"], "").stderr.contains("sh -c 'cmd \"$1\"' _ {}"));
    assert!(!dir.join("x").exists());

    // The braces belong to the script.
    let ended = run(&["-I", "@", "-c", "echo '{}' \"$1\""], "k\n");
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "{} k\n"));
}

#[test]
fn a_command_that_is_not_there_is_found_before_anything_is_read() {
    let dir = directory("no_command");
    fs::write(dir.join("plain"), "").unwrap();
    fs::set_permissions(dir.join("plain"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(dir.join("keys"), "a\nb\n").unwrap();
    for (program, code, why) in [
        ("no-such-command", 127, "not found"),
        ("./no-such-command", 127, "not found"),
        ("./plain", 126, "cannot be executed"),
        ("plain", 126, "cannot be executed"),
        ("./", 126, "cannot be executed"),
    ] {
        let script = "exec <keys; \"$1\" run -- \"$2\" {}; code=$?; cat; exit $code";
        let mut command = Command::new("sh");
        command.args(["-c", script, "_", env!("CARGO_BIN_EXE_requeue"), program]);
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{path}:{}", dir.display())).current_dir(&dir);
        let ended = end(&mut command, "");
        assert_eq!(ended.code(), Some(code), "{program}: {}", ended.stderr);
        assert_eq!(ended.text(), "a\nb\n", "{program}: the keys are still there");
        let message = format!("requeue: \"{program}\": {why}\n");
        assert_eq!(ended.stderr, message);
    }
}

/// GNU parallel accepts a command line in one word.
#[test]
fn a_command_line_in_one_word_points_at_c() {
    let cases: &[(&[&str], _)] = &[
        (&["run", "echo {} | tr a b"], "echo {} | tr a b"),
        (&["run", "echo hello"], "echo hello"),
        (&["run", "/bin/echo {}"], "/bin/echo {}"),
        (&["run", "no-such|command"], "no-such|command"),
        (&["run", "-I", "@", "--", "echo @", "x"], "echo @"),
        (&["run", "mv {} {.}.bak"], "mv {} {.}.bak"),
        (&["files", ".", "--", "make; ls"], "make; ls"),
        #[cfg(feature = "kube")]
        (&["watch", "cm", "echo {}"], "echo {}"),
        (&["work", "--store", "sqlite:x", "echo {} >x"], "echo {} >x"),
    ];
    for (args, program) in cases {
        let mut requeue = Command::new(env!("CARGO_BIN_EXE_requeue"));
        let ended = end(requeue.args(*args), "a\nb\n");
        assert_eq!(ended.code(), Some(127), "{args:?}: {}", ended.stderr);
        let message = format!("requeue: \"{program}\": not found; a command is a program and its ");
        assert!(ended.stderr.starts_with(&message), "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.ends_with("with the key as \"$1\"\n"), "{}", ended.stderr);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
    // The name of a file can contain spaces.
    let dir = directory("spaces");
    fs::create_dir(dir.join("my tools")).unwrap();
    fs::copy("/bin/echo", dir.join("my tools/my echo")).unwrap();
    for program in ["./my tools/{} echo", "./my tools/my echo"] {
        let ended = run_in(&dir, &["--", program, "x"], "my\n");
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    }
}

#[test]
fn a_script_that_names_no_interpreter_is_run_by_sh_as_xargs_does() {
    let dir = directory("no_interpreter");
    fs::write(dir.join("script"), "echo \"$0 $1\"\n").unwrap();
    fs::set_permissions(dir.join("script"), fs::Permissions::from_mode(0o755)).unwrap();
    let mut path = std::env::var("PATH").unwrap_or_default();
    path = format!("{}:{path}", dir.display());
    let found = dir.join("script").display().to_string();
    for (program, name) in [("./script", "./script"), ("script", &found), ("./{}", "./script")] {
        let args = ["--", program, "{}"];
        let ended = end(command(&args).current_dir(&dir).env("PATH", &path), "script\n");
        assert_eq!(ended.text(), format!("{name} script\n"), "{program}: {}", ended.stderr);
    }
}

#[test]
fn all_done_is_0() {
    assert_eq!(run(&["true"], "a\nb\n").code(), Some(0));
}

#[test]
#[cfg(target_os = "linux")]
fn output_that_cannot_be_written_is_a_failure() {
    let mut command = Command::new("sh");
    let script = "\"$1\" run -- echo {} >/dev/full";
    command.args(["-c", script, "_", env!("CARGO_BIN_EXE_requeue")]);
    let ended = end(&mut command, "k\n");
    assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("standard output: No space left"), "{}", ended.stderr);
}
