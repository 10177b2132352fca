//! What a command line must come to.

use std::collections::BTreeMap;
use std::thread::available_parallelism;
use std::time::Duration;

use super::given::{FAIL_FAST, Given};

type All = BTreeMap<&'static str, Given>;

/// What a field may be, as `Debug` shows it.
#[derive(Debug)]
pub(super) enum Is {
    Just(String),
    /// Depends on where this runs.
    OneOf(&'static [&'static str]),
    /// Numbers.
    Between(usize, usize),
}

impl Is {
    pub(super) fn allows(&self, shown: &str) -> bool {
        match self {
            Self::Just(text) => text == shown,
            Self::OneOf(texts) => texts.contains(&shown),
            Self::Between(least, most) => {
                shown.parse().is_ok_and(|number| (least..=most).contains(&&number))
            }
        }
    }
}

/// What is wrong with a command line: of each fault a text that names it.
pub(super) fn faults(given: &All, (command, can_run): (&[&str], bool)) -> Vec<String> {
    let has = |name: &str| given.contains_key(name);
    let text = |name: &str| given.get(name).map_or("", |given| given.text.as_str());
    let time = |name: &str, default: u64| {
        given.get(name).map_or(Duration::from_secs(default), |given| given.time)
    };
    let mut faults: Vec<String> = Vec::new();
    let mut fault = |is_one: bool, name: &str| {
        if is_one {
            faults.push(name.to_owned());
        }
    };
    for (name, given) in given {
        fault(given.is_wrong, &if *name == "I" { "-I".to_owned() } else { format!("--{name}") });
    }
    fault(has("keep-order"), "-k");
    fault(has("fail-fast") && has("halt"), "--halt");
    fault(has("ungroup") && has("output"), "--output");
    fault(has("burst") && !has("rate"), "--burst");
    fault(has("debounce-max") && !has("debounce"), "--debounce-max");
    fault(text("order") == "fair" && !has("group-by"), "--order");
    fault(has("group-jobs") && !has("group-by"), "--group-jobs");
    fault(has("debounce-max") && time("debounce", 0) > time("debounce-max", 0), "--debounce-max");
    fault(has("max-delay") && time("base-delay", 1) > time("max-delay", 300), "--max-delay");
    let output = if has("ungroup") { "inherit" } else { text("output") };
    let is_tagged = has("tag") || has("tagstring");
    fault(is_tagged && ["inherit", "none"].contains(&output), "--tag");
    fault(text("input") == "json" && text("delimiter") == ",", "--delimiter");
    let mark = if has("I") { text("I") } else { "{}" };
    fault(mark.is_empty(), "-I");
    if has("shell") {
        fault(!command.is_empty(), "COMMAND");
        fault(!mark.is_empty() && text("shell").contains(mark), "a key inside a script");
    } else {
        fault(command.is_empty(), "COMMAND");
        let is_missing = command.len() == 1 && !can_run;
        fault(is_missing, "not found");
        let is_script = command.contains(&"-c");
        fault(is_script && !mark.is_empty() && command[2].contains(mark), "a key inside a script");
    }
    faults
}

/// The fields of the configuration, of a line without a fault.
pub(super) fn config(given: &All) -> Vec<(&'static str, Is)> {
    let has = |name: &str| given.contains_key(name);
    let or = |name: &str, default: &str| {
        Is::Just(given.get(name).map_or(default, |given| given.shown.as_str()).to_owned())
    };
    let some = |name: &str| match given.get(name) {
        None => "None".to_owned(),
        Some(given) => format!("Some({})", given.shown),
    };
    // Zero means none.
    let time = |name: &str| match given.get(name) {
        Some(given) if !given.time.is_zero() => format!("Some({:?})", given.time),
        _ => "None".to_owned(),
    };
    let is_json = given.get("input").is_some_and(|input| input.shown == "Json");

    let debounce = match (given.get("debounce"), given.get("debounce-max")) {
        (Some(quiet), most) if !quiet.time.is_zero() => {
            let (quiet, most) = (quiet.time, most.map_or(quiet.time * 10, |most| most.time));
            format!("Some(Debounce {{ quiet: {quiet:?}, most: {most:?} }})")
        }
        _ => "None".to_owned(),
    };
    let rate = given.get("rate").map_or("None".to_owned(), |rate| {
        let burst = given.get("burst").map_or("1", |burst| burst.shown.as_str());
        format!("Some((Every({}), {burst}))", rate.shown)
    });
    let order = match given.get("order") {
        None if is_json => "Priority",
        None => "Fifo",
        Some(order) => order.shown.as_str(),
    };
    let groups = given
        .get("group-by")
        .map_or("None".to_owned(), |groups| format!("Some(Regex({}))", groups.shown));
    let pacing = format!(
        "Pacing {{ times: Times {{ delay: {}, debounce: {debounce}, min_interval: {} }}, rate: \
         {rate}, order: {order}, has_priorities: {is_json}, groups: {groups}, group_jobs: {} }}",
        time("delay"),
        time("min-interval"),
        some("group-jobs"),
    );

    let base = given.get("base-delay").map_or(Duration::from_secs(1), |base| base.time);
    let longest = Duration::from_secs(300).max(base);
    let cores = available_parallelism().map_or(1, usize::from);
    let jobs = match given.get("jobs").map(|jobs| jobs.text.as_str()) {
        None => Is::Between(cores, cores),
        Some("0") => Is::Between(1, 1_000),
        Some("50%") => Is::Between((cores / 2).max(1), (cores / 2).max(1)),
        Some(_) => or("jobs", ""),
    };
    let mark = given.get("I").map_or("{}", |mark| mark.text.as_str());
    let tag = match given.get("tagstring") {
        Some(tag) => format!("Some({:?})", tag.text.replace(mark, "key") + "\t"),
        None if has("tag") => "Some(\"key\\t\")".to_owned(),
        None => "None".to_owned(),
    };
    vec![
        (
            "input",
            match given.get("arg-file").map(|file| file.text.as_str()) {
                None | Some("-") => {
                    Is::OneOf(&["Stdin { terminal: false }", "Stdin { terminal: true }"])
                }
                Some(file) => Is::Just(format!("File({file:?})")),
            },
        ),
        ("kind", or("input", "Lines")),
        ("delimiter", if has("null") { Is::Just("0".to_owned()) } else { or("delimiter", "10") }),
        ("max_record", or("max-record", "1048576")),
        ("max_keys", or("max-keys", "1000000")),
        ("pacing", Is::Just(pacing)),
        ("jobs", jobs),
        ("retries", or("retries", "Some(5)")),
        ("base_delay", or("base-delay", "1s")),
        ("max_delay", or("max-delay", &format!("{longest:?}"))),
        ("early_add", or("early-add", "Replace")),
        ("fatal", Is::Just(format!("Codes({})", given.get("fatal").map_or("[]", |f| &f.shown)))),
        (
            "halt",
            if has("fail-fast") { Is::Just(FAIL_FAST.to_owned()) } else { or("halt", "None") },
        ),
        ("dead_letter", or("dead-letter", "None")),
        ("unfinished", or("unfinished", "None")),
        ("at_eof", or("at-eof", "Finish")),
        ("timeout", Is::Just(time("timeout"))),
        ("signal", or("signal", "15")),
        ("kill_after", or("kill-after", "10s")),
        ("stdin", or("stdin", "None")),
        ("verbose", or("verbose", "false")),
        ("dry_run", or("dry-run", "false")),
        (
            "output",
            if has("ungroup") { Is::Just("Inherit".to_owned()) } else { or("output", "Lines") },
        ),
        ("tag", Is::Just(tag)),
        ("joblog", or("joblog", "None")),
        (
            "progress",
            match given.get("progress").map(|progress| progress.text.as_str()) {
                Some("always") => Is::OneOf(&["Bar", "Lines"]),
                Some("never") => Is::OneOf(&["Not"]),
                _ => Is::OneOf(&["Not", "Bar"]),
            },
        ),
        ("summary", or("summary", "Text")),
        (
            "serve",
            match given.get("serve") {
                None => or("serve", "None"),
                Some(at) => Is::Just(format!("Some(Address {{ host: {} }})", at.shown)),
            },
        ),
    ]
}
