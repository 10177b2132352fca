//! Shell completions and manual pages.

use std::fs;
use std::process::{Command, Stdio};

use crate::limit::ends_well;
use crate::support::{directory, end, run};

fn requeue(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.args(args);
    command
}

/// The long flags of `run`, without dashes.
fn flags() -> Vec<String> {
    let help = run(&["--help"], "").text();
    let is_option =
        |line: &&str| line.trim_start().starts_with('-') && !line.starts_with("          ");
    let options = help.lines().filter(is_option);
    let flags =
        options.filter_map(|line| line.split_whitespace().find_map(|word| word.strip_prefix("--")));
    let flags: Vec<_> =
        flags.map(|flag| flag.split('[').next().unwrap_or(flag).to_owned()).collect();
    assert!(flags.len() > 40, "{help}");
    flags
}

#[test]
fn there_are_completions_for_each_shell() {
    for shell in ["bash", "elvish", "fish", "powershell", "zsh"] {
        let ended = end(&mut requeue(&["completions", shell]), "");
        assert_eq!((ended.code(), ended.stderr.as_str()), (Some(0), ""), "{shell}");
        for flag in flags() {
            assert!(ended.text().contains(&flag), "{shell}: {flag}");
        }
    }
    assert_eq!(end(&mut requeue(&["completions", "tcsh"]), "").code(), Some(2));
    assert_eq!(end(&mut requeue(&["completions"]), "").code(), Some(2));
}

#[test]
fn completions_may_be_read_in_part() {
    let child =
        requeue(&["completions", "zsh"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = child.expect("the program is there");
    drop(child.stdout.take());
    assert!(ends_well(child));
}

#[test]
fn there_is_a_manual_page_for_run() {
    let dir = directory("man").join("man1");
    let ended = end(requeue(&["man"]).arg(&dir), "");
    assert_eq!((ended.code(), ended.text() + &ended.stderr), (Some(0), String::new()));
    // Another user may have replaced a page with a link.
    let [victim, page] = ["victim", "requeue.1"].map(|name| dir.join(name));
    fs::write(&victim, "precious").expect("it is written");
    fs::remove_file(&page).expect("it is there");
    std::os::unix::fs::symlink(&victim, &page).expect("it is made");
    assert_eq!(end(requeue(&["man"]).arg(&dir), "").code(), Some(0));
    assert_eq!(fs::read(&victim).expect("it is there"), b"precious");
    let read = |name: &str| fs::read_to_string(dir.join(name)).expect(name);
    let page = read("requeue-run.1").replace("\\-", "-");
    assert!(page.contains("requeue-run 1"), "{page}");
    for flag in flags() {
        assert!(page.contains(&format!("--{flag}")), "{flag}: {page}");
    }
    for part in ["ENVIRONMENT", "REQUEUE_LAST_EXIT", "EXIT STATUS", "125", "SIGUSR1", "inotifywait"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    for code in ["0", "1", "2", "3", "4", "125", "126", "127"] {
        assert!(page.contains(&format!(".TP\n\\fB{code}\\fR\n")), "{code}: {page}");
    }
}

#[cfg(feature = "kube")]
#[test]
fn there_is_a_manual_page_for_each_command() {
    let dir = directory("man_of_all");
    assert_eq!(end(requeue(&["man"]).arg(&dir), "").code(), Some(0));
    let read = |name: &str| fs::read_to_string(dir.join(name)).expect(name);
    let page = read("requeue-files.1").replace("\\-", "-");
    for part in
        ["--all-in-one", "REQUEUE_PATHS", "REQUEUE_EVENT", "SIGUSR1", "requeue files", "DIR"]
    {
        assert!(page.contains(part), "{part}: {page}");
    }
    let page = read("requeue-watch.1").replace("\\-", "-");
    for part in ["--changed", "REQUEUE_EVENT", "REQUEUE_LAST_EXIT", "SIGUSR1", "requeue watch"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    let page = read("requeue-work.1").replace("\\-", "-");
    for part in ["--until-empty", "REQUEUE_FENCING_TOKEN", "SIGUSR1", "requeue work", "parked"] {
        assert!(page.contains(part), "{part}: {page}");
    }
    assert!(read("requeue-store.1").contains("requeue\\-store\\-init(1)"));
    assert!(read("requeue-store-init.1").contains("store"));
    for command in [
        "run",
        "files",
        "watch",
        "work",
        "add",
        "queues",
        "pause",
        "resume",
        "status",
        "keys",
        "why",
        "serve",
        "parked",
        "revive",
        "cancel",
        "store",
        "completions",
        "man",
    ] {
        assert!(read("requeue.1").contains(&format!("requeue\\-{command}(1)")), "{command}");
        assert!(read(&format!("requeue-{command}.1")).contains("requeue"));
    }
}

#[test]
fn each_flag_of_each_manual_page_has_a_text() {
    let dir = directory("man_texts");
    assert_eq!(end(requeue(&["man"]).arg(&dir), "").code(), Some(0));
    for page in fs::read_dir(&dir).unwrap() {
        let path = page.unwrap().path();
        let page = fs::read_to_string(&path).unwrap();
        for item in page.split("\n.TP\n").skip(1) {
            let (name, text) = item.split_once('\n').expect("a name and a text");
            let text = text.lines().next().unwrap_or_default();
            assert!(!text.is_empty() && !text.starts_with('.'), "{}: {name}", path.display());
        }
    }
    let page = fs::read_to_string(dir.join("requeue-run.1")).unwrap();
    assert!(page.contains("\nSeparate keys by C: one byte, or \\\\t,"), "{page}");
}

#[test]
fn a_directory_that_cannot_be_written_is_a_failure() {
    let dir = directory("no_man");
    fs::write(dir.join("file"), "").unwrap();
    let ended = end(requeue(&["man"]).arg(dir.join("file")), "");
    assert_eq!(ended.code(), Some(125));
    assert!(ended.stderr.contains("file\": "), "{}", ended.stderr);
}
