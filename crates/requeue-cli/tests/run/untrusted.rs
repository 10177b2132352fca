//! Text of servers and of other users on the terminal.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

use serde_json::{Value, json};

use crate::api::{Api, failure};
use crate::support::{Ended, directory, end};

/// Text that would change the colour of a terminal, hide a part of itself, and forge a line of the program.
const TEXT: &str = "\u{1b}[31mred\u{9b}2J\u{202e}hidden\r\nrequeue: forged";

fn requeue(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.args(args).env("LC_ALL", "C");
    command
}

/// Serves connections until the end of the test.
fn serve(answer: impl Fn(TcpStream) + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || listener.incoming().flatten().for_each(answer));
    address
}

#[track_caller]
fn is_harmless(ended: &Ended, lines: usize) {
    let text = format!("{}{}", ended.text(), ended.stderr);
    let is_hazard = |char: char| char.is_control() && !"\n\t".contains(char) || char == '\u{202e}';
    assert!(!text.contains(is_hazard), "{text:?}");
    assert!(!text.contains("\nrequeue: forged") && text.lines().count() == lines, "{text:?}");
    assert!(text.contains("forged"), "the text is shown: {text:?}");
}

/// Returns the response to a request, with a text of the attacker in each field that can contain text.
fn body(request: &str) -> Value {
    let run = json!({
        "at": 0, "outcome": "failed", "attempt": 1, "worker": TEXT, "error": TEXT, "output": TEXT,
    });
    let row = json!({
        "key": TEXT, "key_base64": "YQ==", "state": "ready", "why": TEXT, "error": TEXT, "again": false,
        "attempt": 1, "failures": 0, "adds": 1, "priority": 0, "runs": [run],
    });
    match request.split(['/', '?', ' ']).nth(4) {
        Some("summary") => json!({
            "error": TEXT, "title": TEXT, "queue": TEXT, "status": "open", "started": 0, "now": {},
            "rates": {}, "given_up": 0, "panics": 0, "times": false, "longest": [],
        }),
        Some("keys") => json!({
            "error": TEXT, "now": 0, "keys": [row], "looked_at": 1, "more": false,
        }),
        Some("key") => row,
        Some("timeline") => json!({
            "error": TEXT, "now": 0, "recorded": true, "begin": null, "note": TEXT,
            "events": [{
                "at": 0, "until": null, "kind": "wait", "cause": "ready", "outcome": null, "text": TEXT,
            }],
        }),
        _ => json!({ "error": TEXT, "status": "open" }),
    }
}

#[test]
fn text_of_a_server_cannot_change_the_terminal() {
    let answer = |status: &'static str| {
        move |mut stream: TcpStream| {
            let mut lines = BufReader::new(&stream).lines().map_while(Result::ok);
            let request = lines.next().unwrap_or_default();
            lines.take_while(|line| !line.is_empty()).for_each(drop);
            let body = body(&request).to_string();
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
            );
            let _ = stream.write_all((head + &body).as_bytes());
        }
    };
    let honest = format!("http://{}", serve(answer("200 OK")));
    for (args, lines) in [(&["keys"][..], 1), (&["keys", "--json"], 1), (&["why", "a"], 8)] {
        is_harmless(&end(&mut requeue(&[args, &["--server", &honest]].concat()), ""), lines);
    }
    let mut resume = requeue(&["resume", "q", "--server", &honest]);
    is_harmless(&end(resume.env("REQUEUE_TOKEN", "0123456789abcdef0123456789abcdef"), ""), 1);
    let refusing = format!("http://{}", serve(answer("400 Bad Request")));
    is_harmless(&end(&mut requeue(&["keys", "--server", &refusing]), ""), 1);
}

/// At this point, the server is not authenticated yet.
#[test]
fn errors_of_a_database_cannot_change_the_terminal() {
    let address = serve(|mut stream| {
        let mut length = [0; 4];
        if stream.read_exact(&mut length).is_ok() {
            let mut rest = vec![0; (u32::from_be_bytes(length) as usize).saturating_sub(4)];
            let _ = stream.read_exact(&mut rest);
        }
        let fields = format!("SFATAL\0VFATAL\0C28000\0M{TEXT}\0\0");
        let length = u32::try_from(fields.len() + 4).expect("it is short").to_be_bytes();
        let _ = stream.write_all(&[&b"E"[..], &length, fields.as_bytes()].concat());
    });
    let url = format!("postgres://user@{address}/db?sslmode=disable");
    is_harmless(&end(&mut requeue(&["keys", "--store", &url, "--queue", "q"]), ""), 1);

    let dir = directory("errors_of_a_database");
    let add = ["add", "--store", "sqlite:jobs.db", "--queue", "q", "--summary", "none", "a"];
    let added = end(requeue(&add).current_dir(&dir), "");
    assert_eq!(added.code(), Some(0), "{}", added.stderr);
    let file = rusqlite::Connection::open(dir.join("jobs.db")).expect("it opens");
    let text = TEXT.replace('\'', "''");
    let trigger =
        format!("create trigger t before insert on keys begin select raise(abort, '{text}'); end");
    file.execute_batch(&trigger).expect("the trigger is created");
    let add = [&add[..7], &["b"]].concat();
    is_harmless(&end(requeue(&add).current_dir(&dir), ""), 1);
}

#[test]
fn errors_of_an_api_server_cannot_change_the_terminal() {
    let dir = directory("errors_of_an_api_server");
    let api = Api::new(|_| failure(403, TEXT));
    is_harmless(&end(&mut api.watch(&dir, &["cm", "--", "true"]), ""), 1);
}
