//! The page about metrics lists every family that the code exports, and the alerts and the dashboard use only these
//! families. promtool accepts the alerts, and the expressions of the dashboard.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use prometheus_client::encoding::text;
use prometheus_client::registry::Registry;
use regex::Regex;
use requeue::clock::FakeClock;
use requeue::metrics::{AtGroupLimit, Fleet, Metrics, Sample, Scrape};
use requeue::{Completion, Queue};
use requeue_servers::did_not_run;
use serde_json::Value;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two levels up").to_owned()
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The names of families, as the page lists them. Those of counters end with `_total`.
fn families() -> BTreeSet<String> {
    struct Everything;
    impl Scrape for Everything {
        fn scrape(&self) -> Option<Sample> {
            let mut sample = Sample::default();
            sample.paused = Some(false);
            sample.at_group_limit = Some(AtGroupLimit::default());
            sample.parked = Some(0);
            sample.backing_off = Some(0);
            sample.counts_age = Some(Duration::ZERO);
            sample.fleet = Some(Fleet::default());
            Some(sample)
        }
    }
    let mut registry = Registry::default();
    let queue = Arc::new(Everything);
    Metrics::register(&mut registry).add("mail", &queue).expect("the first of this name");
    let mut exported = String::new();
    text::encode(&mut exported, &registry).expect("a string takes anything");
    let head = Regex::new(r"(?m)^# TYPE (\w+) (\w+)$").expect("a regular expression");
    let mut names: BTreeSet<String> =
        head.captures_iter(&exported)
            .map(|found| {
                if &found[2] == "counter" {
                    format!("{}_total", &found[1])
                } else {
                    found[1].into()
                }
            })
            .collect();
    // A controller exports its families only while it runs against an API server, so they are read
    // from the sources.
    let source = read("crates/requeue-kube/src/metrics/families.rs");
    let family = Regex::new(r#"\(\s*"(\w+)",\s*"[^"]*",\s*(?:One\()?(\w+)"#);
    for found in family.expect("a regular expression").captures_iter(&source) {
        let is_counter = ["Results", "Count"].contains(&&found[2]);
        names.insert(if is_counter { format!("{}_total", &found[1]) } else { found[1].into() });
    }
    let source = read("crates/requeue-leases/src/metrics.rs");
    let family = Regex::new(r#"\(\s*"(\w+)",\s*(?:"[^"]*"|[A-Z_]+),\s*&self\.(\w+)"#);
    for found in family.expect("a regular expression").captures_iter(&source) {
        let is_counter =
            Regex::new(&format!(r"\b{}: .*Counter", &found[2])).expect("a field's name");
        let suffix = if is_counter.is_match(&source) { "_total" } else { "" };
        names.insert(format!("{}{suffix}", &found[1]));
    }
    names
}

/// The names of metrics in a text.
fn named(text: &str) -> BTreeSet<String> {
    let name =
        r"\b(?:workqueue|controller_runtime|leader_election|stale_sync|shard_group)_[a-z_]+\b";
    let name = Regex::new(name).expect("a regular expression");
    name.find_iter(text).map(|found| found.as_str().to_owned()).collect()
}

/// The expressions of the dashboard.
fn expressions() -> Vec<String> {
    let dashboard: Value =
        serde_json::from_str(&read("docs/operations/dashboard.json")).expect("JSON");
    let panels = dashboard["panels"].as_array().expect("panels");
    let targets = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
    targets.map(|target| target["expr"].as_str().expect("an expression").to_owned()).collect()
}

#[test]
fn the_page_has_every_family_and_every_alert() {
    let page = read("docs/operations/metrics.md");
    // A row can have several names, of which only the first includes the prefix.
    let row = Regex::new(r"(?m)^\| (`\w+`(?:, `_\w+`)*) \|").expect("a regular expression");
    let prefixes = ["workqueue_fleet", "workqueue", "controller_runtime"];
    let rows = row.captures_iter(&page).flat_map(|found| {
        let names: Vec<_> =
            found[1].split(", ").map(|name| name.trim_matches('`').to_owned()).collect();
        let first = names[0].clone();
        let prefix = prefixes.into_iter().find(|&prefix| first.starts_with(prefix));
        let whole = move |name: String| match (name.strip_prefix('_'), prefix) {
            (Some(end), Some(prefix)) => format!("{prefix}_{end}"),
            _ => name,
        };
        names.into_iter().map(whole)
    });
    let (alerts, metrics): (BTreeSet<_>, BTreeSet<_>) =
        rows.partition(|name| name.starts_with("Requeue"));
    assert_eq!(metrics, families());
    let rules = read("docs/operations/alerts.yml");
    let alert = Regex::new(r"alert: (\w+)").expect("a regular expression");
    let rules: BTreeSet<_> = alert.captures_iter(&rules).map(|found| found[1].to_owned()).collect();
    assert_eq!(alerts, rules);
}

#[test]
fn alerts_and_dashboard_use_families_that_exist() {
    let families = families();
    for file in ["alerts.yml", "alerts-test.yml", "dashboard.json"] {
        let names = named(&read(&format!("docs/operations/{file}")));
        assert!(names.len() > 5, "{file} has names");
        for name in names {
            let suffixes = ["_bucket", "_sum", "_count"];
            let base = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
            assert!(families.contains(base.unwrap_or(&name)), "{file}: no metric {name}");
        }
    }
    let shown = named(&expressions().join("\n"));
    for family in families {
        assert!(shown.iter().any(|name| name.starts_with(&family)), "the dashboard lacks {family}");
    }
}

#[test]
fn the_dashboard_is_one_that_grafana_can_import() {
    let dashboard: Value =
        serde_json::from_str(&read("docs/operations/dashboard.json")).expect("JSON");
    for field in ["title", "uid", "schemaVersion", "time", "templating", "panels"] {
        assert!(!dashboard[field].is_null(), "no {field}");
    }
    assert!(dashboard["id"].is_null(), "an id is that of one installation");
    let variables = dashboard["templating"]["list"].as_array().expect("variables");
    let known: Vec<_> = variables.iter().filter_map(|variable| variable["name"].as_str()).collect();
    let panels = dashboard["panels"].as_array().expect("panels");
    let (mut ids, mut cells) = (BTreeSet::new(), BTreeSet::new());
    for panel in panels {
        let title = panel["title"].as_str().expect("a title");
        assert!(ids.insert(panel["id"].as_u64()), "{title}: the id is not unique");
        let at = |field| panel["gridPos"][field].as_u64().expect("a position");
        assert!(at("x") + at("w") <= 24, "{title} is too wide");
        for x in at("x")..at("x") + at("w") {
            for y in at("y")..at("y") + at("h") {
                assert!(cells.insert((x, y)), "{title} overlaps another panel");
            }
        }
        let targets = panel["targets"].as_array().map_or(&[][..], Vec::as_slice);
        let refs: BTreeSet<_> = targets.iter().map(|target| target["refId"].as_str()).collect();
        assert_eq!(refs.len(), targets.len(), "{title}: two targets have one refId");
        assert_eq!(targets.is_empty(), panel["type"] == "row", "{title}");
    }
    // The rows answer an operator's questions in this order.
    let rows = panels.iter().filter(|panel| panel["type"] == "row").map(|panel| &panel["title"]);
    let questions = ["Is it running?", "What fails?", "What is slow?", "Rates", "Controllers"];
    assert!(rows.eq(&questions), "the order of the rows");
    let variable = Regex::new(r"\$\{?([a-z]\w*)").expect("a regular expression");
    for found in variable.captures_iter(&read("docs/operations/dashboard.json")) {
        assert!(known.contains(&&found[1]), "no variable {}", &found[1]);
    }
}

/// Runs `promtool` in a directory. Returns `false` if it is not installed.
#[track_caller]
fn promtool(dir: &Path, args: &[&str]) -> bool {
    let Ok(output) = Command::new("promtool").args(args).current_dir(dir).output() else {
        did_not_run("there is no promtool");
        return false;
    };
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "promtool {args:?}: {said}");
    true
}

#[test]
fn promtool_accepts_the_alerts_and_each_fires() {
    let dir = root().join("docs/operations");
    if promtool(&dir, &["check", "rules", "alerts.yml"]) {
        promtool(&dir, &["test", "rules", "alerts-test.yml"]);
    }
}

/// Scrapes a queue in memory whose runs all fail, once a minute for an hour. Returns the counters.
fn failing(retries: u32) -> [Vec<u64>; 2] {
    let clock = FakeClock::new();
    let queue = Queue::builder().clock(clock.clone()).track_times().build().expect("valid");
    let scrape = || [queue.totals().failures, queue.sample().times.worked.count()];
    let mut scrapes = vec![scrape()];
    for minute in 0..60 {
        queue.add(minute);
        while let Some(item) = queue.try_get() {
            if item.attempt() > retries {
                item.complete(Completion::GiveUp);
            } else {
                item.complete(Completion::RetryAfter(Duration::ZERO));
            }
        }
        clock.advance(Duration::from_secs(60));
        scrapes.push(scrape());
    }
    [0, 1].map(|n| scrapes.iter().map(|scrape| scrape[n]).collect())
}

#[test]
fn an_alert_fires_if_all_runs_fail_whether_or_not_they_are_retried() {
    let mut series = String::new();
    for retries in [0, 1] {
        let [failures, runs] = failing(retries);
        assert_eq!(failures, runs, "{retries} retries");
        for (family, values) in
            [("failures_total", failures), ("work_duration_seconds_count", runs)]
        {
            let values: Vec<_> = values.iter().map(u64::to_string).collect();
            let values = values.join(" ");
            series += &format!(
                "  - series: workqueue_{family}{{name=\"{retries}\"}}\n    values: {values}\n"
            );
        }
    }
    let rules = root().join("docs/operations/alerts.yml");
    let test = format!(
        r#"
rule_files:
- {}
evaluation_interval: 1m
tests:
- interval: 1m
  input_series:
{series}
  promql_expr_test:
  - expr: count by (name) (ALERTS{{alertname="RequeueRunsFail",alertstate="firing"}})
    eval_time: 60m
    exp_samples:
    - labels: '{{name="0"}}'
      value: 1
    - labels: '{{name="1"}}'
      value: 1
"#,
        rules.display()
    );
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("test.yml"), test).expect("it can be written");
    promtool(dir.path(), &["test", "rules", "test.yml"]);
}

#[test]
fn promtool_accepts_the_expressions_of_the_dashboard() {
    // promtool checks the expressions as recording rules, with values for Grafana's variables.
    let mut rules = "groups:\n- name: dashboard\n  rules:\n".to_owned();
    for (i, expression) in expressions().into_iter().enumerate() {
        let expression = expression.replace("$__rate_interval", "5m").replace("$combine", "max");
        let expression = ["$job", "$queue", "$controller"]
            .iter()
            .fold(expression, |expression, variable| expression.replace(variable, ".*"));
        assert!(!expression.contains('$'), "{expression}");
        rules += &format!("  - record: r{i}\n    expr: {}\n", Value::String(expression));
    }
    let dir = tempfile::tempdir().expect("a directory");
    fs::write(dir.path().join("rules.yml"), rules).expect("it can be written");
    promtool(dir.path(), &["check", "rules", "rules.yml"]);
}
