//! `requeue files` with real directories.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::process::{Signal, geteuid};

use crate::support::{Ended, Gate, Live, Terminal, did_not_run, directory, end, until};

/// A directory to watch. It is not the directory of the test, so that gates and logs are not watched.
fn watched(test: &str) -> (std::path::PathBuf, std::path::PathBuf) {
    let dir = directory(&format!("files_{test}"));
    let tree = dir.join("tree");
    // Because of `.git`, no rules of parent directories apply.
    fs::create_dir_all(tree.join(".git")).expect("a directory for tests");
    (dir, tree)
}

/// `requeue files` in a directory.
fn command(dir: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.arg("files").args(args).current_dir(dir).env("LC_ALL", "C");
    command
}

/// Starts the program, and waits until it watches the directory.
fn start(dir: &Path, args: &[&str]) -> Live {
    let mut live = Live::spawn(&mut command(dir, args));
    live.wait_for_message("watching");
    live
}

fn stop(live: Live) -> Ended {
    live.signal(Signal::TERM);
    let ended = live.end();
    assert_eq!(ended.status.signal(), Some(Signal::TERM.as_raw()), "{}", ended.stderr);
    ended
}

/// Replaces a file in one step, so that no run reads a part of it. Creates its directories.
fn write(path: impl AsRef<Path>, content: &str) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let path = path.as_ref();
    let dir = path.parent().expect("it is in a directory");
    fs::create_dir_all(dir).expect("the directory is made");
    let new = format!("files_new_{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let new = Path::new(env!("CARGO_TARGET_TMPDIR")).join(new);
    fs::write(&new, content).expect("it is written");
    fs::rename(new, path).expect("it is renamed");
}

#[test]
fn each_file_that_changes_runs_and_no_other() {
    let (dir, tree) = watched("each");
    write(tree.join("a"), "1");
    write(tree.join("b"), "1");
    let mut live = start(&dir, &["tree", "-c", "echo \"$1 $REQUEUE_EVENT\"; cat \"$1\""]);
    write(tree.join("a"), "2\n");
    live.wait_for("tree/a apply");
    live.wait_for("2");
    write(tree.join("c d"), "3\n");
    live.wait_for("tree/c d apply");
    live.wait_for("3");
    let ended = stop(live);
    assert_eq!((ended.count("runs"), ended.count("failures")), (2, 0), "{}", ended.stderr);
}

#[test]
fn the_path_is_put_into_the_command_as_by_run() {
    let (dir, tree) = watched("placeholder");
    for (args, line) in [
        (&["tree/", "--", "echo", "<{}>"][..], "<tree/a>"),
        (&[".", "--debounce", "1ms,1s", "--", "echo"], "./tree/a"),
        (&["tree", "-I", "@", "--", "echo", "{}@"], "{}tree/a"),
    ] {
        let mut live = start(&dir, args);
        fs::write(tree.join("a"), line).unwrap();
        live.wait_for(line);
        stop(live);
    }
}

#[test]
fn a_file_that_changes_during_its_run_is_run_once_more() {
    let (dir, tree) = watched("during");
    let mut gate = Gate::new(&dir);
    let script = "mkdir lock || exit 9; cat \"$1\"; read _ <gate; rmdir lock";
    let args = ["tree", "-j4", "--fail-fast", "-c", script];
    let mut live = start(&dir, &args);
    write(tree.join("a"), "first\n");
    live.wait_for("first");
    for content in ["second\n", "third\n", "last\n"] {
        write(tree.join("a"), content);
    }
    // Wait until the change is in the queue.
    progress(&mut live, "1 running (1 to run again)");
    gate.open(1);
    live.wait_for("last");
    gate.open(1);
    let ended = stop(live);
    assert_eq!((ended.count("runs"), ended.count("failures")), (2, 0), "{}", ended.stderr);
}

/// Waits until the progress contains this part.
fn progress(live: &mut Live, part: &str) {
    loop {
        live.signal(Signal::USR1);
        if live.wait_for_message(" running").contains(part) {
            return;
        }
    }
}

#[test]
fn a_change_waits_for_the_end_of_the_debounce() {
    let (dir, tree) = watched("debounce");
    let mut live = start(&dir, &["tree", "--debounce", "1h,2h", "--", "echo"]);
    write(tree.join("a"), "1");
    progress(&mut live, "1 waiting");
    let ended = stop(live);
    assert_eq!((ended.count("runs"), ended.count("unfinished")), (0, 1), "{}", ended.stderr);
}

#[test]
fn a_file_whose_content_stays_the_same_does_not_run() {
    let (dir, tree) = watched("same");
    write(tree.join("a"), "1");
    let mut live = start(&dir, &["tree", "-j1", "--", "echo"]);
    write(tree.join("a"), "1");
    let file = fs::File::options().write(true).open(tree.join("a")).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    // Events come in order.
    write(tree.join("b"), "");
    live.wait_for("tree/b");
    assert_eq!(stop(live).text(), "tree/b\n");
}

#[test]
fn a_command_that_writes_the_same_does_not_trigger_itself() {
    let (dir, tree) = watched("formatter");
    // Formats the file in place, and replaces it even if it is formatted already.
    let script = "tr a-z A-Z <\"$1\" >f && cp f \"$1\" && echo \"$1 $(cat \"$1\")\"";
    let mut live = start(&dir, &["tree", "-j1", "-c", script]);
    write(tree.join("a"), "X");
    live.wait_for("tree/a X");
    write(tree.join("b"), "Y");
    live.wait_for("tree/b Y");
    assert_eq!(stop(live).text(), "tree/a X\ntree/b Y\n");
}

#[test]
fn a_command_that_changes_its_file_runs_until_it_changes_nothing() {
    let (dir, tree) = watched("until_stable");
    let script = "[ $(wc -l <\"$1\") -ge 3 ] && echo stable || echo more >>\"$1\"";
    let mut live = start(&dir, &["tree", "-c", script]);
    write(tree.join("a"), "one\n");
    live.wait_for("stable");
    let ended = stop(live);
    assert_eq!((ended.text().as_str(), ended.count("runs")), ("stable\n", 3), "{}", ended.stderr);
}

#[test]
fn the_rules_of_git_and_the_flags_exclude_files() {
    let (dir, tree) = watched("rules");
    write(tree.join(".gitignore"), "*.o\n/out/\n");
    write(tree.join(".ignore"), "local.rs\n");
    fs::create_dir_all(tree.join("out")).unwrap();
    let args = ["tree", "-j1", "-e", "rs,o", "--ignore", "gen*", "--", "echo"];
    let mut live = start(&dir, &args);
    for excluded in
        ["a.o", "out/a.rs", "local.rs", "gen/a.rs", "gen.rs", ".hidden.rs", ".git/a.rs", "a.txt"]
    {
        write(tree.join(excluded), "");
    }
    write(tree.join("src/z.rs"), "");
    live.wait_for("tree/src/z.rs");
    assert_eq!(stop(live).text(), "tree/src/z.rs\n");
    // A rule that is not a glob.
    let ended = end(&mut command(&dir, &["tree", "--ignore", "a{", "--", "true"]), "");
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("--ignore \"a{\""), "{}", ended.stderr);
}

#[test]
fn files_in_new_directories_run() {
    let (dir, tree) = watched("new_directories");
    let mut live = start(&dir, &["tree", "--", "echo"]);
    for n in 0..20 {
        write(tree.join(format!("{n}/x/y/z")), "");
        live.wait_for(&format!("tree/{n}/x/y/z"));
        // The new directories are watched.
        write(tree.join(format!("{n}/x/y/z")), "changed");
        live.wait_for(&format!("tree/{n}/x/y/z"));
    }
    // A renamed directory stays watched.
    fs::rename(tree.join("3"), tree.join("a")).unwrap();
    live.wait_for("tree/a/x/y/z");
    fs::rename(tree.join("a"), tree.join("3")).unwrap();
    live.wait_for("tree/3/x/y/z");
    write(tree.join("3/x/y/last"), "");
    live.wait_for("tree/3/x/y/last");
    stop(live);
}

#[test]
fn an_editor_that_replaces_the_file_makes_it_run() {
    let (dir, tree) = watched("editor");
    write(tree.join("a"), "1\n");
    let mut live = start(&dir, &["tree", "-c", "echo \"$1 $(cat \"$1\")\""]);
    write(tree.join("a.tmp"), "2\n");
    fs::rename(tree.join("a.tmp"), tree.join("a")).unwrap();
    live.wait_for("tree/a 2");
    // vim writes files like this: the old file becomes the backup.
    fs::rename(tree.join("a"), tree.join("a~")).unwrap();
    write(tree.join("a"), "3\n");
    fs::remove_file(tree.join("a~")).unwrap();
    live.wait_for("tree/a 3");
    assert!(!stop(live).text().contains("a.tmp"));
}

#[test]
fn a_deleted_file_runs_only_if_asked_for() {
    let (dir, tree) = watched("deleted");
    for (flags, out) in
        [(&[][..], "tree/z apply\n"), (&["--deleted"], "tree/a delete\ntree/z apply\n")]
    {
        write(tree.join("a"), "");
        let args = [&["tree", "-j1"], flags, &["-c", "echo \"$1 $REQUEUE_EVENT\""]].concat();
        let mut live = start(&dir, &args);
        fs::remove_file(tree.join("a")).unwrap();
        write(tree.join("z"), flags.first().unwrap_or(&""));
        live.wait_for("tree/z apply");
        assert_eq!(stop(live).sorted().join("\n") + "\n", out);
        fs::remove_file(tree.join("z")).unwrap();
    }
}

#[test]
fn a_file_that_is_gone_when_its_run_would_start_is_skipped() {
    let (dir, tree) = watched("gone");
    let mut live = start(
        &dir,
        &[
            "tree",
            "-j1",
            "--debounce",
            "1ms",
            "--base-delay",
            "10ms",
            "--retries",
            "5",
            "-c",
            "echo \"$1\"; [ \"$1\" != tree/a ] || { rm \"$1\"; exit 1; }",
        ],
    );
    write(tree.join("a"), "");
    live.wait_for("tree/a");
    live.wait_for_message("attempt 1 of 6 failed");
    progress(&mut live, "0 waiting, 0 ready");
    let ended = stop(live);
    assert_eq!((ended.text().as_str(), ended.count("runs")), ("tree/a\n", 1), "{}", ended.stderr);
}

#[test]
fn initial_runs_the_files_that_exist() {
    let (dir, tree) = watched("initial");
    write(tree.join("b/c"), "");
    write(tree.join("a"), "");
    let mut live = start(&dir, &["tree", "-j1", "--initial", "--", "echo"]);
    live.wait_for("tree/a");
    live.wait_for("tree/b/c");
    write(tree.join("a"), "x");
    live.wait_for("tree/a");
    assert_eq!(stop(live).count("runs"), 3);
}

#[test]
fn one_run_for_all_gets_the_paths() {
    let (dir, tree) = watched("all");
    let mut gate = Gate::new(&dir);
    let script =
        "cat; echo \"[$REQUEUE_PATHS]\"; read _ <gate; [ ! -e fail ] || { rm fail; exit 1; }";
    let mut live = start(&dir, &["tree", "--all-in-one", "-c", script]);
    write(tree.join("a"), "");
    live.wait_for("[tree/a]");
    // One event reports all new files.
    fs::create_dir(dir.join("new")).unwrap();
    write(dir.join("new/b"), "");
    write(dir.join("new/c d"), "");
    fs::rename(dir.join("new"), tree.join("new")).unwrap();
    progress(&mut live, "1 running (1 to run again)");
    // That run fails and is not retried. Its file is part of the next run.
    write(dir.join("fail"), "");
    gate.open(1);
    live.wait_for("tree/new/c d]");
    gate.open(1);
    let all = "tree/a\ntree/new/b\ntree/new/c d";
    assert_eq!(stop(live).text(), format!("tree/a\n[tree/a]\n{all}\n[{all}]\n"));
}

#[test]
fn one_run_for_all_takes_no_path_as_an_argument() {
    let (dir, tree) = watched("all_arguments");
    let ended = end(&mut command(&dir, &["tree", "--all-in-one", "--", "echo", "x{}"]), "");
    assert_eq!(ended.code(), Some(2));
    assert!(ended.stderr.contains("REQUEUE_PATHS"), "{}", ended.stderr);
    let ended = end(&mut command(&dir, &["tree", "-0", "--", "echo"]), "");
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);

    let args = ["tree", "--all-in-one", "-0", "--", "sh", "-c"];
    let script = "echo \"$# ${REQUEUE_PATHS-unset}\"; tr '\\0\\n' '\\n|'";
    let mut live = start(&dir, &[&args[..], &[script, "sh"]].concat());
    write(tree.join("two\nlines"), "");
    live.wait_for("tree/two|lines");
    assert_eq!(stop(live).text(), "0 unset\ntree/two|lines\n");

    // Separated by newlines, that path would look like two paths.
    let mut live = start(&dir, &["tree", "--all-in-one", "-c", "cat"]);
    write(tree.join("two\nlines"), "changed");
    live.wait_for_message("\"tree/two\\nlines\": left out: the path contains a newline");
    write(tree.join("one"), "");
    live.wait_for("tree/one");
    assert_eq!(stop(live).text(), "tree/one\n");
}

#[test]
fn names_are_bytes() {
    let (dir, tree) = watched("bytes");
    let name = OsStr::from_bytes(b"\xff\n\xfe");
    if fs::write(tree.join(name), "").is_err() {
        return did_not_run("names that are not UTF-8", "the file system refuses them");
    }
    let mut live = start(&dir, &["tree", "-c", "cat \"$1\""]);
    fs::write(tree.join(name), "found\n").unwrap();
    live.wait_for("found");
    stop(live);
}

#[test]
fn the_terminal_is_cleared_before_a_run() {
    const CLEAR: &str = "\x1b[H\x1b[2J";
    let (dir, tree) = watched("clear");
    let mut gate = Gate::new(&dir);
    // A file that changes during the run of another file does not clear the terminal.
    for (args, cleared) in [(&[][..], 1), (&["--all-in-one"], 2)] {
        let script = "echo \"ran $1$(cat)\"; read _ <gate";
        let args = [&["tree", "--clear", "-j1"], args, &["-c", script]];
        let mut terminal = Terminal::spawn(command(&dir, &args.concat()));
        terminal.wait_for("watching");
        write(tree.join("a"), &format!("{cleared}"));
        terminal.wait_for("ran tree/a");
        write(tree.join("b"), &format!("{cleared}"));
        if args[1].is_empty() {
            terminal.wait_for(", 1 ready, ");
        }
        gate.open(2);
        terminal.wait_for("tree/b");
        terminal.send("\x03");
        let (said, _) = terminal.end();
        assert_eq!(said.matches(CLEAR).count(), cleared, "{said:?}");
        let (before, _) = said.split_once("ran tree/a").unwrap();
        assert!(before.contains(CLEAR), "{said:?}");
    }
    let mut live = start(&dir, &["tree", "--clear", "--", "echo"]);
    write(tree.join("a"), "file");
    live.wait_for("tree/a");
    assert_eq!(stop(live).text(), "tree/a\n");
}

/// An example is a failing build, which would fail again with the same files.
#[test]
fn a_run_that_fails_waits_for_the_next_change() {
    for all_in_one in [&[][..], &["--all-in-one"]] {
        let (dir, tree) = watched("fails_once");
        let script = "echo run; grep -q ok tree/a";
        let mut live = start(&dir, &[&["tree"], all_in_one, &["-c", script]].concat());
        for content in ["wrong\n", "still wrong\n"] {
            write(tree.join("a"), content);
            let said = live.wait_for_message("given up");
            let end = ": given up after 1 attempt: exit status: 1; the next change runs it again\n";
            assert!(said.ends_with(end), "{said}");
            // No key waits for a retry.
            progress(&mut live, "0 waiting");
        }
        write(tree.join("a"), "ok\n");
        live.wait_for("run");
        live.wait_for("run");
        live.wait_for("run");
        let ended = stop(live);
        assert_eq!((ended.count("runs"), ended.count("failures")), (3, 2), "{}", ended.stderr);
    }
    let (dir, tree) = watched("retries");
    let args = ["tree", "--retries", "1", "--base-delay", "1ms", "-c", "exit 7"];
    let mut live = start(&dir, &args);
    write(tree.join("a"), "1");
    live.wait_for_message("given up after 2 attempts: exit status: 7");
    stop(live);
}

/// The default is no retries.
#[test]
fn a_flag_for_retries_is_refused_without_retries() {
    let (dir, _) = watched("without_retries");
    for flag in
        [["--base-delay", "1s"], ["--max-delay", "1s"], ["--re-add", "hold"], ["--fatal", "3"]]
    {
        let args = [&["tree"], &flag[..], &["--", "true"]].concat();
        let ended = end(&mut command(&dir, &args), "");
        assert_eq!(ended.code(), Some(2), "{args:?}: {}", ended.stderr);
        let said = "required arguments were not provided:\n  --retries <N>";
        assert!(ended.stderr.contains(said), "{args:?}: {}", ended.stderr);
    }
}

#[test]
fn a_key_is_given_up_without_a_remedy_if_the_run_stops() {
    for stop in [&["--fail-fast"][..], &["--halt", "soon,fail=1"], &["--halt", "now,done=1"]] {
        let (dir, tree) = watched("stops");
        let args = [&["tree"], stop, &["-c", "exit 7"]].concat();
        let mut live = start(&dir, &args);
        write(tree.join("a"), "1");
        let said = live.wait_for_message("given up");
        assert!(said.ends_with(": given up after 1 attempt: exit status: 7\n"), "{stop:?}: {said}");
        assert_eq!(live.end().code(), Some(4), "{stop:?}");
    }
}

/// An example is a program that a build replaces.
#[test]
fn a_program_that_is_missing_for_a_while_does_not_end_it() {
    let (dir, tree) = watched("program");
    let program = dir.join("program");
    write(&program, "#!/bin/sh\necho ran $1\n");
    let executable = || fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    executable();
    let mut live = start(&dir, &["tree", "--retries", "inf", "--", "./program"]);
    fs::rename(&program, dir.join("old")).unwrap();
    write(tree.join("a"), "1");
    let said = live.wait_for_message("given up");
    assert!(said.contains("after 1 attempt: \"./program\": not found; the next change"), "{said}");
    fs::rename(dir.join("old"), &program).unwrap();
    write(tree.join("a"), "2");
    live.wait_for("ran tree/a");
    stop(live);
}

/// A user of a terminal does not wait for a build. A service manager sends SIGTERM, and lets it complete.
#[test]
fn the_first_interrupt_terminates_the_commands() {
    let (dir, tree) = watched("interrupt");
    let mut gate = Gate::new(&dir);
    let script = "echo up; read _ <gate; echo done";
    for (signal, out) in [(Signal::INT, "up\n"), (Signal::TERM, "up\ndone\n")] {
        let mut live = start(&dir, &["tree", "--all-in-one", "-c", script]);
        write(tree.join("a"), signal.as_raw().to_string().as_str());
        live.wait_for("up");
        live.signal(signal);
        if signal == Signal::INT {
            let said = "SIGINT: sent SIGTERM to 1 command in flight; another signal kills them";
            live.wait_for_message(said);
        } else {
            live.wait_for_message("SIGTERM: no new commands are started");
            gate.open(1);
        }
        let ended = live.end();
        assert_eq!(ended.status.signal(), Some(signal.as_raw()), "{}", ended.stderr);
        assert_eq!((ended.text().as_str(), ended.count("failures")), (out, 0), "{}", ended.stderr);
    }
}

#[test]
fn a_change_ends_the_backoff() {
    let (dir, tree) = watched("backoff");
    let script = "cat \"$1\"; grep -q ok \"$1\"";
    let args = ["tree", "--retries", "5", "--base-delay", "1h", "--max-delay", "1h", "-c", script];
    let mut live = start(&dir, &args);
    write(tree.join("a"), "wrong\n");
    live.wait_for_message("attempt 1 of 6 failed");
    write(tree.join("a"), "ok\n");
    live.wait_for("ok");
    let ended = stop(live);
    assert_eq!((ended.count("runs"), ended.count("failures")), (2, 1), "{}", ended.stderr);
}

/// Without this, each run would cause the next.
#[test]
fn the_files_of_the_program_do_not_count() {
    let (dir, tree) = watched("own");
    let mut shell = Command::new("sh");
    let script = "exec \"$1\" files tree -j1 --retries 0 --joblog tree/log --dead-letter tree/dead \
                  -c 'echo \"$1\"; [ \"$1\" != tree/a ]' >tree/out";
    shell.args(["-c", script, "_", env!("CARGO_BIN_EXE_requeue")]).current_dir(&dir);
    let mut live = Live::spawn(&mut shell);
    live.wait_for_message("watching");
    write(tree.join("a"), "");
    live.wait_for_message("given up");
    write(tree.join("z"), "");
    until(|| fs::read_to_string(tree.join("out")).unwrap() == "tree/a\ntree/z\n");
    let ended = stop(live);
    assert_eq!(ended.count("adds"), 2, "{}", ended.stderr);
}

#[test]
fn a_root_must_be_a_directory() {
    let (dir, tree) = watched("roots");
    write(tree.join("file"), "");
    for (root, part) in
        [("none", "\"none\": no such directory"), ("tree/file", "\"tree/file\": not a directory")]
    {
        let ended = end(&mut command(&dir, &[root, "--", "true"]), "");
        assert_eq!(ended.code(), Some(2));
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
    let ended = end(&mut command(&dir, &["tree", "true"]), "");
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
    let ended = end(&mut command(&dir, &["tree"]), "");
    assert_eq!(ended.code(), Some(2));
    assert!(
        ended.stderr.contains("no COMMAND") && ended.stderr.contains(" -- "),
        "{}",
        ended.stderr
    );
}

#[test]
fn a_root_that_is_made_again_is_watched() {
    let (dir, tree) = watched("again");
    let mut live = start(&dir, &["tree", "-c", "cat \"$1\""]);
    fs::remove_dir_all(&tree).unwrap();
    live.wait_for_message("\"tree\": no longer exists");
    write(tree.join("a"), "again\n");
    live.wait_for("again");
    write(tree.join("a"), "changed\n");
    live.wait_for("changed");
    stop(live);
}

#[test]
fn links_are_followed_only_if_asked_for() {
    let (dir, tree) = watched("links");
    write(dir.join("outside/x"), "");
    symlink("../outside", tree.join("link")).unwrap();
    let mut live = start(&dir, &["tree", "-j1", "--", "echo"]);
    write(dir.join("outside/x"), "1");
    write(tree.join("z"), "1");
    live.wait_for("tree/z");
    assert_eq!(stop(live).text(), "tree/z\n");
    let mut live = start(&dir, &["tree", "-L", "--", "echo"]);
    write(dir.join("outside/x"), "2");
    live.wait_for("tree/link/x");
    stop(live);
}

#[test]
fn a_directory_that_cannot_be_read_is_reported_and_the_others_are_watched() {
    let (dir, tree) = watched("unreadable");
    // Root can read all directories, so the test needs another user.
    let as_user = |args: &[&str]| {
        if !geteuid().is_root() {
            return command(&dir, args);
        }
        let mut user = Command::new("setpriv");
        user.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
        user.arg(env!("CARGO_BIN_EXE_requeue")).arg("files").args(args).current_dir(&dir);
        user
    };
    if !as_user(&["--help"]).output().is_ok_and(|output| output.status.success()) {
        return did_not_run("unreadable directories", "the tests run as root, without setpriv");
    }
    write(tree.join("a/x"), "");
    write(tree.join("b"), "");
    fs::set_permissions(tree.join("a"), fs::Permissions::from_mode(0o000)).unwrap();
    let mut live = Live::spawn(&mut as_user(&["tree", "-j1", "--", "echo"]));
    live.wait_for_message("changes in it are not seen");
    live.wait_for_message("watching");
    write(tree.join("b"), "1");
    live.wait_for("tree/b");
    fs::set_permissions(tree.join("a"), fs::Permissions::from_mode(0o755)).unwrap();
    live.wait_for("tree/a/x");
    stop(live);
}

#[test]
fn the_limit_of_watches_is_explained_and_polling_needs_none() {
    let (dir, tree) = watched("limit");
    write(tree.join("a/b/c"), "");
    let limited = |args: &str| {
        let mut unshare = Command::new("unshare");
        let script = format!(
            "echo 2 >/proc/sys/user/max_inotify_watches && exec \"$1\" files tree {args} -- echo"
        );
        unshare.args(["--user", "--map-root-user", "sh", "-c", &script, "_"]);
        unshare.arg(env!("CARGO_BIN_EXE_requeue")).current_dir(&dir);
        unshare
    };
    let mut probe = Command::new("unshare");
    probe.args(["--user", "--map-root-user", "sh", "-c"]);
    probe.arg("echo 2 >/proc/sys/user/max_inotify_watches");
    if !probe.output().is_ok_and(|output| output.status.success()) {
        return did_not_run("the limit of watches", "user.max_inotify_watches cannot be set");
    }
    let ended = end(&mut limited(""), "");
    assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
    for part in ["2 directories", "fs.inotify.max_user_watches", "--ignore", "--poll 2s"] {
        assert!(ended.stderr.contains(part), "{part}: {}", ended.stderr);
    }
    // The limit also applies to a directory that appears later.
    let mut live = Live::spawn(&mut limited("--ignore a"));
    live.wait_for_message("watching 0 files in 1 directory");
    fs::create_dir_all(tree.join("d/e")).unwrap();
    live.wait_for_message("fs.inotify.max_user_watches");
    assert_eq!(live.end().code(), Some(125));

    let mut live = Live::spawn(&mut limited("--poll 10ms"));
    live.wait_for_message("watching 1 file in 5 directories");
    write(tree.join("a/b/c"), "1");
    live.wait_for("tree/a/b/c");
    write(tree.join("new/c"), "");
    live.wait_for("tree/new/c");
    stop(live);
}

#[test]
fn a_closed_output_ends_it() {
    let (dir, tree) = watched("closed");
    let mut shell = Command::new("sh");
    let script = "\"$1\" files tree -- echo | { head -n1; exec <&-; echo closed; }";
    shell.args(["-c", script, "_", env!("CARGO_BIN_EXE_requeue")]).current_dir(&dir);
    let mut live = Live::spawn(&mut shell);
    live.wait_for_message("watching");
    write(tree.join("a"), "");
    live.wait_for("closed");
    write(tree.join("b"), "");
    live.wait_for_message("changes that have not run are lost");
    assert_eq!(live.end().code(), Some(0));
}

#[test]
fn an_extension_may_be_any_bytes() {
    let (dir, tree) = watched("extension");
    let mut live = Live::spawn(
        command(&dir, &["tree", "-e"])
            .args([OsStr::from_bytes(b"\xff")])
            .args(["-c", "cat \"$1\""]),
    );
    live.wait_for_message("watching");
    let name = OsString::from(OsStr::from_bytes(b"a.\xff"));
    if fs::write(tree.join(name), "found\n").is_err() {
        return did_not_run("extensions that are not UTF-8", "the file system refuses them");
    }
    live.wait_for("found");
    stop(live);
}
