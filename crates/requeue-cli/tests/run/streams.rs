//! Realistic streams: many lines of few keys, files that change, a million keys.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use crate::limit::Limit;
use crate::support::{Live, did_not_run, directory};

#[test]
fn many_lines_over_few_keys_are_few_runs_and_none_is_lost() {
    let dir = directory("many_lines");
    let write = |key: u32, version: &str| {
        fs::write(dir.join("version"), version).unwrap();
        fs::rename(dir.join("version"), dir.join(format!("{key}.now"))).unwrap();
    };
    let script = "mkdir \"$1.runs\" || exit
        read version <\"$1.now\"; echo $version >\"$1.seen\"; rmdir \"$1.runs\"";
    let mut live = Live::start(&dir, &["-j8", "--retries", "0", "-c", script]);
    (0..50).for_each(|key| write(key, "first\n"));
    let lines = (0..19_950_u32).map(|line| line.wrapping_mul(2_654_435_761) % 50);
    live.send(&lines.map(|key| format!("{key}\n")).collect::<String>());
    for key in 0..50 {
        // A run that starts after the last line reads this content.
        write(key, "last\n");
        live.send(&format!("{key}\n"));
    }
    let ended = live.end();
    // If two runs of a key overlapped, the second would find the directory of the first and fail.
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    let (runs, coalesced) = (ended.count("runs"), ended.count("coalesced"));
    assert_eq!((ended.count("adds"), runs + coalesced), (20_000, 20_000));
    assert!((50..5000).contains(&runs), "{}", ended.stderr);
    for key in 0..50 {
        let seen = fs::read_to_string(dir.join(format!("{key}.seen"))).unwrap();
        assert_eq!(seen, "last\n", "the last run of {key}");
    }
}

fn seen(dir: &Path, names: &[&str]) -> Vec<String> {
    let read = |name| fs::read_to_string(dir.join("seen").join(name)).unwrap_or_default();
    names.iter().map(read).collect()
}

#[test]
fn files_that_change_are_seen_in_their_last_state() {
    let dir = directory("changing_files");
    fs::create_dir_all(dir.join("files/deep")).unwrap();
    fs::create_dir(dir.join("seen")).unwrap();
    let mut watch = Command::new("inotifywait");
    // This is an example of the README.
    watch.args(["-mr", "-e", "close_write", "--format", "%w%f%0", "--no-newline", "files"]);
    watch.current_dir(&dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut watch) = watch.spawn() else {
        let why = "there is no inotifywait here (Debian: apt-get install inotify-tools)";
        return did_not_run("files_that_change_are_seen_in_their_last_state", why);
    };
    let limit = Limit::of(&watch);
    let mut said = BufReader::new(watch.stderr.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("Watches established")));

    let script = "cp -- \"$1\" seen/ && echo copied";
    let mut live = Live::start(&dir, &["-0", "-j3", "--retries", "0", "-c", script]);
    let (mut from, mut to) = (watch.stdout.take().unwrap(), live.stdin.take().unwrap());
    let feeding = thread::spawn(move || std::io::copy(&mut from, &mut to));

    let names = ["plain", "with blanks ", "with\nnewline", "$(touch x)", "-rf", "größe"];
    let mut expected = vec![String::new(); names.len()];
    for version in 0..300 {
        let at = version * 7 % names.len();
        expected[at] = format!("{version} of {}\n", names[at]).repeat(50);
        let folder = if at.is_multiple_of(2) { "files" } else { "files/deep" };
        fs::write(dir.join(folder).join(names[at]), &expected[at]).unwrap();
    }
    while seen(&dir, &names) != expected {
        live.wait_for("copied");
    }
    watch.kill().unwrap();
    watch.wait().unwrap();
    assert!(!limit.was_reached());
    feeding.join().unwrap().unwrap();
    let ended = live.end();
    assert_eq!(ended.code(), Some(0), "{}", ended.stderr);
    assert!(!dir.join("x").exists());
}

#[test]
#[cfg(target_os = "linux")]
fn a_million_keys_take_no_more_than_160_mib_and_176_with_windows() {
    // In addition to the key, memory holds a window, and a due time in the queue.
    for (args, most) in [(&[][..], 160), (&["--delay", "1h"], 176), (&["--debounce", "1h"], 176)] {
        let dir = directory("million_keys");
        let _gate = crate::support::Gate::new(&dir);
        let keys: String = (0..=1_000_000).map(|n| format!("customers/eu/{n:015}\n")).collect();
        assert_eq!(keys.lines().next().map(str::len), Some(28));
        fs::write(dir.join("keys"), keys).unwrap();
        let command = ["-a", "keys", "-j1", "-c", "echo; read _ <gate"];
        let mut live = Live::start(&dir, &[args, &command].concat());
        let status = format!("/proc/{}/status", live.id());
        let size = |name: &str| -> u64 {
            let status = fs::read_to_string(&status).unwrap();
            let size = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            size.trim().strip_suffix(" kB").unwrap().parse().unwrap()
        };
        // The pages of the program's file do not count. Fewer of them may be resident at the end.
        let file = std::cell::Cell::new(0);
        crate::support::until(|| {
            file.set(file.get().max(size("RssFile:")));
            size("VmRSS:") > 64 << 10
        });
        live.wait_for_message("1000000 keys held");
        let kib = size("VmHWM:") - size("RssFile:").max(file.get());
        if args.is_empty() {
            live.wait_for("");
        }
        live.signal(rustix::process::Signal::TERM);
        if args.is_empty() {
            live.wait_for_message("no new commands are started");
            live.signal(rustix::process::Signal::INT);
        }
        let ended = live.end();
        assert_eq!(ended.count("unfinished"), 1_000_000, "{}", ended.stderr);
        assert!(kib <= most << 10, "{args:?}: {kib} KiB");
    }
}
