//! `requeue work --server`: workers that take keys over HTTP.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::store::{add, call, requeue, status};
use crate::support::{Gate, Live, directory, end, until};

const TOKEN: &str = "0123456789abcdef";

/// Serves the queue of the store in the directory, at the socket `page`.
fn serve(dir: &Path, args: &[&str]) -> Live {
    let page = ["unix:page", "--queue", "default", "--serve-admin"];
    let mut command = requeue(dir, "serve", &[&page[..], args].concat());
    let mut live = Live::spawn(command.env("REQUEUE_TOKEN", TOKEN));
    live.wait_for_message("dashboard: ");
    live
}

/// Returns a worker of the server at this address.
fn worker_of(dir: &Path, server: &str, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.args(["work", "--server", server]).args(args).current_dir(dir);
    command.env("REQUEUE_TOKEN", TOKEN).env("LC_ALL", "C").env_remove("REQUEUE_STORE");
    command
}

fn worker(dir: &Path, args: &[&str]) -> Command {
    worker_of(dir, "unix:page", args)
}

/// Starts a proxy of the server in the directory, and returns its URL. `answer` returns the answer to a request. It
/// receives the last part of the path, and a function that asks the server. An empty answer ends the connection.
fn proxy(
    dir: &Path,
    answer: impl Fn(&str, &dyn Fn() -> String) -> String + Send + Sync + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let (page, answer) = (dir.join("page"), Arc::new(answer));
    thread::spawn(move || {
        for client in listener.incoming() {
            let (page, answer) = (page.clone(), Arc::clone(&answer));
            let mut client = client.expect("a client");
            thread::spawn(move || {
                while let Some(request) = read_message(&mut client) {
                    let path = request.split(' ').nth(1).expect("a path");
                    let ask = || {
                        let mut server = UnixStream::connect(&page).expect("the server listens");
                        server.write_all(request.as_bytes()).expect("the server reads");
                        read_message(&mut server).unwrap_or_default()
                    };
                    let answer = answer(path.rsplit('/').next().expect("an action"), &ask);
                    if answer.is_empty() || client.write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    url
}

/// Returns a successful answer with this body.
fn success(body: &str) -> String {
    format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len())
}

/// Reads a request or an answer. Returns `None` at the end of the connection.
fn read_message(from: &mut impl Read) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        from.read_exact(&mut byte).ok()?;
        head.extend(byte);
    }
    let mut message = String::from_utf8(head).expect("text");
    let lines = message.lines().filter_map(|line| line.split_once(": "));
    let length = lines.filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
    let length = length.map(|(_, length)| length.parse().expect("a number")).next().unwrap_or(0);
    let mut body = vec![0; length];
    from.read_exact(&mut body).ok()?;
    message += &String::from_utf8(body).expect("text");
    Some(message)
}

/// Stops a server or a worker.
#[track_caller]
fn stop(live: Live) {
    live.signal(Signal::TERM);
    assert_eq!(live.end().status.signal(), Some(Signal::TERM.as_raw()));
}

#[test]
fn a_worker_runs_the_keys_of_a_server_until_none_is_left() {
    let dir = directory("http_until_empty");
    add(&dir, &["a", "b", "a"]);
    let json = r#"{"key_base64":"/w=="}"#;
    assert_eq!(end(&mut requeue(&dir, "add", &["--input", "json"]), json).code(), Some(0));
    let server = serve(&dir, &[]);
    let script = "printf '%s %s %s %s %s\\n' \"$1\" $REQUEUE_ATTEMPT $REQUEUE_ADDS \
                  ${REQUEUE_FENCING_TOKEN:+token} ${REQUEUE_TOKEN-none}";
    let ended = end(&mut worker(&dir, &["--until-empty", "-j2", "-c", script]), "");
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let runs = ["\u{fffd} 1 1 token none", "a 1 2 token none", "b 1 1 token none"];
    let mut lines = ended.sorted();
    lines.sort();
    assert_eq!(lines, {
        let mut runs = runs.map(str::to_owned);
        runs.sort();
        runs
    });
    assert_eq!((ended.count("runs"), status(&dir)), (3, [0; 4]), "{}", ended.stderr);
    // The worker of an empty queue exits immediately.
    assert_eq!(end(&mut worker(&dir, &["--until-empty", "false"]), "").code(), Some(0));
    stop(server);
}

#[test]
fn the_server_retries_a_failed_key_and_parks_it_with_its_error() {
    let dir = directory("http_retries");
    add(&dir, &["bad", "fatal"]);
    let server = serve(&dir, &["--retries", "1"]);
    let script = "echo $1 $REQUEUE_ATTEMPT; echo oops >&2; [ $1 = bad ] && exit 3; exit 7";
    let args = ["--until-empty", "-j1", "--fatal", "7", "--dead-letter", "dead", "-c", script];
    let ended = end(&mut worker(&dir, &args), "");
    assert_eq!((ended.code(), ended.count("given up")), (Some(1), 2), "{}", ended.stderr);
    assert_eq!(ended.sorted(), ["bad 1", "bad 2", "fatal 1"]);
    for said in [
        "\"bad\": attempt 1 failed (exit status: 3)",
        "\"bad\": parked after 2 attempts: exit status: 3 (`requeue revive` runs it again)",
        "\"fatal\": parked after 1 attempt: exit status: 7",
    ] {
        assert!(ended.stderr.contains(said), "{said}: {}", ended.stderr);
    }
    let mut dead: Vec<_> =
        std::fs::read_to_string(dir.join("dead")).unwrap().lines().map(str::to_owned).collect();
    dead.sort();
    assert_eq!((dead, status(&dir)), (vec!["bad".to_owned(), "fatal".to_owned()], [0, 0, 0, 2]));
    let parked = call(&dir, "parked", &[]).text();
    assert!(parked.contains("exit status: 3: oops"), "{parked}");
    let why: serde_json::Value =
        serde_json::from_str(&call(&dir, "why", &["bad", "--json"]).text()).unwrap();
    assert!(why.to_string().contains("oops\\n"), "{why}");
    stop(server);
}

#[test]
fn the_key_of_a_killed_worker_is_delivered_again() {
    let dir = directory("http_killed");
    let _gate = Gate::new(&dir);
    add(&dir, &["k"]);
    let server = serve(&dir, &[]);
    // Only the killed worker may lose its lease, even on a slow machine.
    let mut dying =
        Live::spawn(&mut worker(&dir, &["--lease", "5s", "-c", "echo up; read _ <gate"]));
    dying.wait_for("up");
    dying.signal(Signal::KILL);
    assert_eq!(dying.end().status.signal(), Some(Signal::KILL.as_raw()));
    let ended = end(&mut worker(&dir, &["--until-empty", "-c", "echo $REQUEUE_ATTEMPT"]), "");
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "2\n"), "{}", ended.stderr);
    stop(server);
}

#[test]
fn a_restart_of_the_server_loses_no_run() {
    let dir = directory("http_restart");
    let mut gate = Gate::new(&dir);
    add(&dir, &["k"]);
    let server = serve(&dir, &[]);
    let args = ["--until-empty", "--lease", "5m", "-j2", "-c", "echo up; read _ <gate; echo $1"];
    let mut live = Live::spawn(&mut worker(&dir, &args));
    live.wait_for("up");
    server.signal(Signal::KILL);
    server.end();
    // The other slot notices the outage.
    live.wait_for_message("; retrying");
    gate.open(1);
    live.wait_for("k");
    add(&dir, &["l"]);
    gate.open(1);
    let server = serve(&dir, &[]);
    live.wait_for_message("answers again after");
    let ended = live.end();
    assert_eq!((ended.code(), ended.count("runs")), (Some(0), 2), "{}", ended.stderr);
    assert_eq!((ended.count("failures"), status(&dir)), (0, [0; 4]), "{}", ended.stderr);
    stop(server);
}

#[test]
fn a_lease_that_expires_during_an_outage_ends_the_command() {
    let dir = directory("http_lost");
    let _gate = Gate::new(&dir);
    add(&dir, &["k"]);
    let server = serve(&dir, &[]);
    let script = "trap 'echo ending; exit 0' TERM; echo up; cat gate & wait; wait";
    let mut live = Live::spawn(&mut worker(&dir, &["--lease", "5s", "-j1", "-c", script]));
    live.wait_for("up");
    server.signal(Signal::KILL);
    server.end();
    live.wait_for("ending");
    live.wait_for_message("\"k\": the lease has expired");
    live.signal(Signal::TERM);
    let ended = live.end();
    assert_eq!((ended.count("runs"), ended.count("failures")), (1, 1), "{}", ended.stderr);
}

#[test]
fn a_run_that_is_cancelled_at_the_store_is_ended() {
    let dir = directory("http_cancelled");
    let _gate = Gate::new(&dir);
    add(&dir, &["k"]);
    let server = serve(&dir, &[]);
    let args = ["--until-empty", "-j1", "-c", "echo up; read _ <gate"];
    let mut live = Live::spawn(&mut worker(&dir, &args));
    live.wait_for("up");
    assert_eq!(call(&dir, "cancel", &["--running", "k"]).code(), Some(0));
    live.wait_for_message("\"k\": cancelled");
    let ended = live.end();
    assert_eq!((ended.code(), status(&dir)), (Some(0), [0; 4]), "{}", ended.stderr);
    stop(server);
}

#[test]
fn an_answer_that_takes_longer_than_the_time_between_two_renewals_is_used() {
    let dir = directory("http_slow_renewal");
    let _gate = Gate::new(&dir);
    add(&dir, &["k"]);
    let server = serve(&dir, &[]);
    let renewals = (Mutex::new(0), Condvar::new());
    // The answer to each renewal arrives after the next renewal has begun.
    let url = proxy(&dir, move |action, ask| {
        let answer = ask();
        if action == "renew" {
            let mut begun = renewals.0.lock().expect("no panic");
            *begun += 1;
            renewals.1.notify_all();
            let own = *begun;
            let next = renewals.1.wait_while(begun, |begun| *begun == own);
            drop(next.expect("no panic"));
        }
        answer
    });
    let args = ["--until-empty", "--lease", "5m", "-j1", "-c", "echo up; read _ <gate"];
    let mut live = Live::spawn(&mut worker_of(&dir, &url, &args));
    live.wait_for("up");
    assert_eq!(call(&dir, "cancel", &["--running", "k"]).code(), Some(0));
    live.wait_for_message("\"k\": cancelled");
    let ended = live.end();
    assert_eq!((ended.code(), status(&dir)), (Some(0), [0; 4]), "{}", ended.stderr);
    stop(server);
}

#[test]
fn a_claim_that_cannot_be_read_leaves_no_other_claim_in_flight() {
    let dir = directory("http_unreadable_claim");
    add(&dir, &["k"]);
    let server = serve(&dir, &[]);
    let url = proxy(&dir, |action, ask| {
        let answer = ask();
        match answer.split_once("\r\n\r\n{\"claims\":[{") {
            Some((_, claims)) if action == "claim" => {
                let unreadable =
                    r#"{"key":"u","token":"u","attempt":1,"adds":1,"flags":0,"priority":0}"#;
                success(&format!("{{\"claims\":[{unreadable},{{{claims}"))
            }
            _ => answer,
        }
    });
    let ended = end(&mut worker_of(&dir, &url, &["-j1", "echo"]), "");
    assert_eq!((ended.code(), ended.text().as_str()), (Some(125), ""), "{}", ended.stderr);
    assert!(ended.stderr.contains("no more keys are taken"), "{}", ended.stderr);
    // The key is ready again before the worker exits.
    assert_eq!(status(&dir), [1, 0, 0, 0], "{}", ended.stderr);
    stop(server);
}

#[test]
fn claims_that_are_answered_without_keys_are_not_repeated_in_a_busy_loop() {
    let dir = directory("http_quick_answers");
    add(&dir, &["k"]);
    let server = serve(&dir, &[]);
    let (begin, count) = (Instant::now(), Mutex::new(0));
    // The first answers say that no key is ready.
    let url = proxy(&dir, move |action, ask| {
        if action != "claim" {
            return ask();
        }
        let mut count = count.lock().expect("no panic");
        *count += 1;
        if *count <= 10 { success(r#"{"claims":[]}"#) } else { ask() }
    });
    let ended = end(&mut worker_of(&dir, &url, &["--until-empty", "echo"]), "");
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "k\n"), "{}", ended.stderr);
    assert!(begin.elapsed() >= Duration::from_secs(1), "{:?}", begin.elapsed());
    stop(server);
}

#[test]
fn the_first_signal_drains_a_worker_and_the_second_returns_its_keys() {
    let dir = directory("http_signals");
    let mut gate = Gate::new(&dir);
    add(&dir, &["a", "b"]);
    let server = serve(&dir, &[]);
    let script = "echo up; read _ <gate";
    let mut live = Live::spawn(&mut worker(&dir, &["-j1", "-c", script]));
    live.wait_for("up");
    live.signal(Signal::TERM);
    live.wait_for_message("no new commands are started");
    gate.open(1);
    let ended = live.end();
    assert_eq!(ended.status.signal(), Some(Signal::TERM.as_raw()), "{}", ended.stderr);
    assert_eq!((ended.count("runs"), status(&dir)), (1, [1, 0, 0, 0]), "{}", ended.stderr);

    let mut live = Live::spawn(&mut worker(&dir, &["-j1", "-c", script]));
    live.wait_for("up");
    live.signal(Signal::TERM);
    live.wait_for_message("no new commands are started");
    // The same signal would count only once.
    live.signal(Signal::INT);
    assert_eq!(live.end().status.signal(), Some(Signal::TERM.as_raw()));
    assert_eq!(status(&dir), [1, 0, 0, 0]);
    // The interrupted run is not a failure.
    let ended = end(&mut worker(&dir, &["--until-empty", "-c", "echo $REQUEUE_ATTEMPT"]), "");
    assert_eq!(ended.text(), "1\n", "{}", ended.stderr);
    stop(server);
}

/// Starts a run that keeps its keys in memory, and serves them at the socket `page`.
fn run_in_memory(dir: &Path, script: &str) -> Live {
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.args(["run", "--serve", "unix:page", "--serve-admin", "-j1"]).current_dir(dir);
    command.args(["-c", script]).env("REQUEUE_TOKEN", TOKEN);
    let mut run = Live::spawn(&mut command);
    run.wait_for_message("dashboard: ");
    run
}

#[test]
fn a_worker_whose_server_dies_with_its_queue_in_memory_fails() {
    let dir = directory("http_dead_memory");
    let mut gate = Gate::new(&dir);
    let mut run = run_in_memory(&dir, "echo own $1; read _ <gate");
    run.send("a\n");
    run.wait_for("own a");
    run.send("b\n");
    let args = ["--until-empty", "--lease", "5s", "-j1", "-c", "echo up; read _ <gate"];
    let mut live = Live::spawn(&mut worker(&dir, &args));
    live.wait_for("up");
    run.signal(Signal::KILL);
    run.end();
    // The commands of both processes continue.
    gate.open(2);
    let ended = live.end();
    assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("the queue in its memory may be lost"), "{}", ended.stderr);
}

#[test]
fn a_worker_helps_a_run_that_keeps_its_keys_in_memory() {
    let dir = directory("http_memory");
    let mut gate = Gate::new(&dir);
    let mut run = run_in_memory(&dir, "echo own $1; read _ <gate");
    run.send("a\n");
    run.wait_for("own a");
    run.send("b\nc\n");
    run.close();
    let script = "echo $1 $REQUEUE_ATTEMPT; [ $1$REQUEUE_ATTEMPT != b1 ]";
    let mut live = Live::spawn(&mut worker(&dir, &["--until-empty", "-j1", "-c", script]));
    live.wait_for("b 1");
    live.wait_for("b 2");
    gate.open(1);
    let ended = run.end();
    assert_eq!((ended.code(), ended.count("runs")), (Some(0), 1), "{}", ended.stderr);
    let ended = live.end();
    assert_eq!((ended.code(), ended.count("runs")), (Some(0), 3), "{}", ended.stderr);
}

#[test]
fn a_worker_without_the_right_to_work_is_refused() {
    let dir = directory("http_tokens");
    add(&dir, &["k"]);
    let roles = format!("work {TOKEN}\nadd fedcba9876543210\n");
    std::fs::write(dir.join("tokens"), roles).expect("it is written");
    let server = serve(&dir, &["--token-file", "tokens"]);
    for (token, code, why) in [
        (
            "0000000000000000",
            125,
            "--server \"page\": wrong token; check --token-file or REQUEUE_TOKEN",
        ),
        (
            "fedcba9876543210",
            125,
            "the token does not have the role work; use a token with that role",
        ),
        ("sha256:00", 2, "the token of a client is not a hash"),
    ] {
        let ended = end(worker(&dir, &["--until-empty", "echo"]).env("REQUEUE_TOKEN", token), "");
        assert_eq!((ended.code(), ended.text().as_str()), (Some(code), ""), "{}", ended.stderr);
        assert!(ended.stderr.contains(why), "{why}: {}", ended.stderr);
    }
    let ended = end(worker(&dir, &["echo"]).env_remove("REQUEUE_TOKEN"), "");
    assert_eq!(ended.code(), Some(2), "{}", ended.stderr);
    assert!(ended.stderr.contains("no token for --server; pass --token-file"), "{}", ended.stderr);
    let mut command = worker(&dir, &["--until-empty", "--token-file", "token", "echo"]);
    std::fs::write(dir.join("token"), format!("{TOKEN}\n")).expect("it is written");
    let ended = end(command.env_remove("REQUEUE_TOKEN"), "");
    assert_eq!((ended.code(), ended.text().as_str()), (Some(0), "k\n"), "{}", ended.stderr);
    stop(server);
}

#[test]
fn a_server_that_is_not_requeue_is_refused() {
    let dir = directory("http_other_server");
    for (answer, why) in [
        (
            "200 OK\r\nContent-Length: 5\r\n\r\nhello",
            "the answer is not that of this version of requeue",
        ),
        ("404 Not Found\r\nContent-Length: 6\r\n\r\n<html>", "404 Not Found; check the URL"),
        ("301 Moved\r\nContent-Length: 0\r\n\r\n", "301 Moved Permanently; check the URL"),
        ("", "; --wait retries until the store is ready"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let answering = thread::spawn(move || {
            let (mut client, _) = listener.accept().expect("a client");
            client.read_exact(&mut [0; 16]).expect("a request");
            let head = if answer.is_empty() { "" } else { "HTTP/1.1 " };
            let _ = client.write_all(format!("{head}{answer}").as_bytes());
        });
        let ended = end(&mut worker_of(&dir, &url, &["echo"]), "");
        answering.join().expect("no panic");
        assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
        assert!(ended.stderr.contains(why), "{why}: {}", ended.stderr);
    }
    let ended = end(&mut worker(&dir, &["echo"]), "");
    assert_eq!(ended.code(), Some(125), "{}", ended.stderr);
    assert!(ended.stderr.contains("; --wait retries until the store is ready"), "{}", ended.stderr);
}

#[test]
fn a_worker_waits_for_its_server_with_wait() {
    let dir = directory("http_wait");
    add(&dir, &["k"]);
    let args = ["--until-empty", "--wait", "-c", "echo $1"];
    let mut live = Live::spawn(&mut worker(&dir, &args));
    live.wait_for_message("; retrying");
    let server = serve(&dir, &[]);
    live.wait_for("k");
    assert_eq!(live.end().code(), Some(0));
    stop(server);
}

#[test]
fn flags_that_the_server_decides_are_refused() {
    let dir = directory("http_flags");
    for (args, next) in [
        (&["--create"][..], "omit the flag"),
        (&["--retries", "1"], "pass --retries to `requeue serve`"),
        (&["--fail-fast"], "use --halt now,fail=1"),
        (&["--base-delay", "1s"], "omit the flag"),
        (&["--max-delay", "1h"], "omit the flag"),
        (&["--re-add", "hold"], "omit the flag"),
        (&["--parked-add", "keep"], "omit the flag"),
        (&["--group-by", "x"], "omit the flag"),
        (&["--group-limit", "1"], "omit the flag"),
        (&["--order", "fair"], "omit the flag"),
        (&["--rate", "1/s"], "requeue queues rate"),
        (&["--burst", "1"], "requeue queues rate"),
        (&["--serve", "0"], "open its address"),
        (&["--serve-admin"], "open its address"),
        (&["--lease", "0.5s"], "1s to 1h"),
    ] {
        let ended = end(&mut worker(&dir, &[args, &["echo"]].concat()), "");
        assert_eq!(ended.code(), Some(2), "{args:?}: {}", ended.stderr);
        let flag = if args[0] == "--serve-admin" { "--serve" } else { args[0] };
        let names_flag = ended.stderr.contains(&format!("{flag} with --server: "))
            || ended.stderr.contains(&format!("{flag}: "));
        assert!(names_flag && ended.stderr.contains(next), "{args:?}: {}", ended.stderr);
    }
}

/// Commands with many keys share few connections and requests.
#[test]
fn many_slots_of_workers_run_each_key_once() {
    let dir = directory("http_many");
    let keys: Vec<_> = (0..60).map(|n| format!("k{n}")).collect();
    add(&dir, &keys.iter().map(String::as_str).collect::<Vec<_>>());
    let server = serve(&dir, &[]);
    let args = ["--until-empty", "-j20", "-c", "echo $1"];
    let workers = [(); 2].map(|()| Live::spawn(&mut worker(&dir, &args)));
    let ended = workers.map(Live::end);
    let mut ran: Vec<_> = ended.iter().flat_map(|ended| ended.sorted()).collect();
    ran.sort();
    let mut keys = keys;
    keys.sort();
    assert_eq!(ran, keys, "{}{}", ended[0].stderr, ended[1].stderr);
    until(|| status(&dir) == [0; 4]);
    stop(server);
}
