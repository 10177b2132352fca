//! Queues on a server, which as many machines share as one likes.

use std::process::Command;

use requeue_servers::Postgres;
use rustix::process::Signal;

use crate::support::{Ended, Live, directory, end, until};

fn requeue(subcommand: &[&str], url: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.args(subcommand).args(["--store", url]).args(args).env("LC_ALL", "C");
    command
}

fn call(subcommand: &str, url: &str, args: &[&str]) -> Ended {
    end(&mut requeue(&[subcommand], url, args), "")
}

fn is_idle(url: &str) -> bool {
    let status = call("status", url, &["--json"]).text();
    status.starts_with(r#"{"ready":0,"waiting":0,"processing":0,"dirty":0,"#)
}

#[test]
fn a_server_is_shared_and_may_go_and_come_back() {
    let Some(server) = Postgres::start() else { return };
    let (dir, url) = (directory("store_server"), server.database());
    // Its tables are made by nobody but who is asked to.
    let ended = call("add", &url, &["k"]);
    assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
    for _ in 0..2 {
        let ended = end(&mut requeue(&["store", "init"], &url, &[]), "");
        assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    }

    let script = "mkdir \"at-$1\" || echo overlap; rmdir \"at-$1\"; echo $1";
    // The server forgets the ends of runs when it is killed just then: they run once more.
    let work = || requeue(&["work"], &url, &["--lease", "2s", "-j2", "-c", script]);
    let mut both = [(); 2].map(|()| Live::spawn(work().current_dir(&dir)));
    for _ in 0..10 {
        assert_eq!(call("add", &url, &["a", "b", "c"]).code(), Some(0));
    }
    until(|| is_idle(&url));

    server.kill();
    both.iter_mut().for_each(|live| _ = live.wait_for_message("no keys can be claimed"));
    server.restart();
    let ended = end(&mut requeue(&["run"], &url, &["-j1", "-c", "echo here $1"]), "last\n");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    until(|| is_idle(&url));
    both.iter().for_each(|live| live.signal(Signal::TERM));
    let all: String =
        both.map(Live::end).iter().map(|ended| ended.text() + &ended.stderr).collect();
    let all = all + &ended.text();
    assert!(!all.contains("overlap") && !all.contains("File exists"), "{all}");
    for key in ["a", "b", "c", "last"] {
        assert!(all.lines().any(|line| line.trim_start_matches("here ") == key), "{key}: {all}");
    }
}
