//! Checks the text of metrics as Prometheus and its tools read it.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::{Command, Stdio};

use crate::did_not_run;

/// A family of metrics, as its head describes it.
#[derive(Default)]
struct Family {
    help: String,
    kind: String,
    samples: usize,
}

/// Checks that each family in a text has a help text, a type, and samples whose names agree with
/// both, in OpenMetrics or in the classic format. If promtool is installed, it must report no
/// problems. Returns the names of the families.
///
/// # Panics
///
/// Panics if the text is invalid.
#[track_caller]
pub fn check_metrics(text: &str, is_open_metrics: bool) -> Vec<String> {
    assert_eq!(text.ends_with("# EOF\n"), is_open_metrics, "{text}");
    let mut families = BTreeMap::<String, Family>::new();
    let mut last = String::new();
    for line in text.lines().filter(|line| *line != "# EOF") {
        let head = line.strip_prefix("# ").map(|head| head.splitn(3, ' ').collect::<Vec<_>>());
        match head.as_deref() {
            Some(["HELP", name, help]) => {
                (*name).clone_into(&mut last);
                let family = families.entry(last.clone()).or_default();
                assert!(family.help.is_empty(), "two heads: {line}");
                (*help).clone_into(&mut family.help);
            }
            Some(["TYPE", name, kind]) => {
                assert_eq!(*name, last, "{line}");
                let family = families.entry(last.clone()).or_default();
                assert!(family.kind.is_empty(), "two heads: {line}");
                (*kind).clone_into(&mut family.kind);
            }
            Some(["UNIT", name, unit]) => {
                assert!(is_open_metrics && *name == last && name.ends_with(unit), "{line}");
            }
            Some(_) => panic!("neither a head nor a sample: {line}"),
            None => {
                let sample = line.split(['{', ' ']).next().unwrap_or_default();
                let family = families.entry(last.clone()).or_default();
                family.samples += 1;
                let suffixes: &[&str] = match family.kind.as_str() {
                    "counter" if is_open_metrics => &["_total"],
                    "histogram" => &["_bucket", "_sum", "_count"],
                    _ => &[""],
                };
                let is_its = suffixes.iter().any(|suffix| sample == format!("{last}{suffix}"));
                assert!(is_its, "no sample of {last}, a {}: {line}", family.kind);
            }
        }
    }
    for (name, family) in &families {
        assert!(family.help.len() > 10 && family.samples > 0, "{name}: {}", family.help);
        let is_total = name.ends_with("_total");
        assert_eq!(is_total, family.kind == "counter" && !is_open_metrics, "{name}");
        // Prometheus requires base units.
        for unit in ["_milliseconds", "_ms", "_minutes", "_kilobytes", "_percent"] {
            assert!(!name.contains(unit), "{name}");
        }
    }
    // promtool reads only the classic format.
    let mut classic = text.replace("# EOF\n", "");
    for (name, _) in families.iter().filter(|(_, of)| is_open_metrics && of.kind == "counter") {
        for head in ["HELP", "TYPE"] {
            classic =
                classic.replace(&format!("# {head} {name} "), &format!("# {head} {name}_total "));
        }
    }
    check_by_promtool(&classic);
    families.into_keys().collect()
}

#[track_caller]
fn check_by_promtool(text: &str) {
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped());
    let Ok(mut child) = promtool.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn() else {
        return did_not_run("there is no promtool");
    };
    let mut stdin = child.stdin.take().expect("stdin is piped");
    stdin.write_all(text.as_bytes()).expect("promtool reads");
    drop(stdin);
    let output = child.wait_with_output().expect("promtool was started");
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success() && said.is_empty(), "promtool: {said}");
}
