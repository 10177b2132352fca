//! Each contestant answers each request, and the runner makes tables of the answers.

use requeue_bench::contestant::{ALL, Entry};
use requeue_bench::protocol::{Answer, Keys, Request, Scenario};
use requeue_bench::runner::child::{Program, Running};
use requeue_bench::runner::heat::Field;
use requeue_bench::runner::table::Scale;
use requeue_bench::runner::{Plan, text, write};

fn program(entry: &Entry) -> Program {
    Program {
        name: entry.name.to_owned(),
        path: env!("CARGO_BIN_EXE_requeue-bench").into(),
        args: vec!["contestant".into(), entry.name.into()],
    }
}

fn tiny(scenario: Scenario, keys: Keys) -> Request {
    let n = if scenario == Scenario::SparseTimers { 2 } else { 40 };
    let depth = 10;
    Request { keys, depth, producers: 2, workers: 2, batch: 4, ..Request::new(scenario, n) }
}

/// Retries the request if the machine was too busy for the plan of due times.
fn answer(running: &mut Running, request: &Request) -> Answer {
    loop {
        let answer = running.ask(request).expect("the contestant keeps the protocol");
        if answer.error.as_ref().is_none_or(|error| !error.contains("was due before")) {
            return answer;
        }
    }
}

#[test]
fn contestants_do_what_they_say_they_can() {
    for entry in &ALL {
        let mut running = Running::start(&program(entry)).unwrap();
        assert_eq!(running.hello.contestant, entry.name);
        assert!(running.hello.version.starts_with(|first: char| first.is_alphanumeric()));
        for scenario in Scenario::ALL {
            for keys in [Keys::U64, Keys::Name] {
                let answer = answer(&mut running, &tiny(scenario, keys));
                let case = format!("{}, {scenario:?}, {keys:?}: {answer:?}", entry.name);
                let numbers = matches!(
                    scenario,
                    Scenario::Fire | Scenario::SparseTimers | Scenario::Threads | Scenario::Tasks
                );
                if entry.scenarios.contains(&scenario) && !(numbers && keys == Keys::Name) {
                    assert_eq!((&answer.unsupported, &answer.error), (&None, &None), "{case}");
                    let Answer { ops, bytes, .. } = answer;
                    assert!(bytes.map_or(ops >= 2, |bytes| bytes > 0.0), "{case}");
                } else {
                    assert!(answer.unsupported.is_some(), "{case}");
                }
            }
        }
    }
}

#[test]
fn a_contestant_that_is_asked_for_nonsense_says_so_and_goes_on() {
    let mut running = Running::start(&program(&ALL[0])).unwrap();
    let nothing = Request::new(Scenario::Cycle, 0);
    assert!(running.ask(&nothing).unwrap().error.unwrap().contains("`n`"));
    let endless = Request { seconds: f64::MAX, ..Request::new(Scenario::IdleCpu, 1) };
    assert!(running.ask(&endless).unwrap().error.unwrap().contains("`seconds`"));
    assert_eq!(running.ask(&Request::new(Scenario::Cycle, 3)).unwrap().ops, 3);
}

#[test]
fn the_table_has_what_was_measured_and_what_was_not() {
    let plan = Plan { scale: Scale::TINY, only: None, growth: true };
    let report = plan.run(Field::new(ALL.iter().map(program).collect()));
    let missing = report.missing.keys().filter(|why| !why.contains("was due before"));
    let missing: Vec<&str> = missing.map(String::as_str).collect();
    let others = ["client-go", "controller-runtime", "kube-runtime"];
    assert_eq!(missing, others.map(|name| format!("{name} was not built")));

    let table = text::show(&report);
    for line in &report.lines {
        assert!(table.contains(&line.path), "{} is not in the table", line.path);
    }
    let dir = tempfile::tempdir().unwrap();
    write(&report, dir.path()).unwrap();
    for file in ["bench.txt", "bench.svg", "growth.svg"] {
        assert!(dir.path().join(file).metadata().unwrap().len() > 0, "{file} is empty");
    }
}
