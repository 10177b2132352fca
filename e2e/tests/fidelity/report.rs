//! Groups the differences between the answers, and writes the report.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fmt::Write;

use serde_json::Value;

use crate::generator::Sequence;
use crate::kinds::KINDS;
use crate::normal::RULES;
use crate::runner::Outcome;

/// The longest value in a report, in characters.
const SHOWN: usize = 300;

/// The longest value in the table, in characters.
const SHOWN_IN_TABLE: usize = 120;

/// A field that differs in the answers of both servers.
#[derive(Clone, Debug)]
pub(crate) struct Difference {
    /// The request, the path of the field, and the values of the real server and of the fake.
    pub(crate) class: [String; 4],
    /// The seed and the step.
    pub(crate) example: String,
}

/// Returns the fields of an answer that differ.
pub(crate) fn differences(
    sequence: &Sequence,
    at: usize,
    real: &Value,
    fake: &Value,
) -> Vec<Difference> {
    let mut found = Vec::new();
    compare("", Some(real), Some(fake), &mut found);
    let step = &sequence.steps[at];
    let hide = |text: String| text.replace(&sequence.namespace, "<namespace>");
    found
        .into_iter()
        .map(|(path, real, fake)| Difference {
            class: [step.what.clone(), path, hide(real), hide(fake)],
            example: format!("seed {}, step {at}: {} {}", sequence.seed, step.method, step.path),
        })
        .collect()
}

fn compare(
    path: &str,
    real: Option<&Value>,
    fake: Option<&Value>,
    found: &mut Vec<(String, String, String)>,
) {
    match (real, fake) {
        (Some(Value::Object(real)), Some(Value::Object(fake))) => {
            let names: std::collections::BTreeSet<_> = real.keys().chain(fake.keys()).collect();
            for name in names {
                compare(&format!("{path}.{name}"), real.get(name), fake.get(name), found);
            }
        }
        (Some(Value::Array(real)), Some(Value::Array(fake))) if real.len() == fake.len() => {
            for (real, fake) in real.iter().zip(fake) {
                compare(&format!("{path}[]"), Some(real), Some(fake), found);
            }
        }
        (real, fake) if real == fake => {}
        (real, fake) => found.push((path.to_owned(), shown(real), shown(fake))),
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or_else(|| "absent".into(), |value| shortened(&value.to_string(), SHOWN))
}

fn shortened(text: &str, limit: usize) -> String {
    match text.char_indices().nth(limit) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Returns the kind of a different answer: its most telling difference, without the resource and the numbers.
fn kind_of(answer: &[Difference]) -> [String; 4] {
    let find = |wanted: &str| answer.iter().find(|difference| difference.class[1] == wanted);
    let telling = find(".body.message").or_else(|| find(".code")).unwrap_or(&answer[0]);
    let [what, path, real, fake] = &telling.class;
    let mut what = what.clone();
    for kind in &KINDS {
        what = what.replace(kind.plural, "…");
    }
    let value = |text: &str| {
        let parts = text.split(|character: char| character.is_ascii_digit());
        let parts: Vec<_> = parts.filter(|part| !part.is_empty()).collect();
        shortened(&parts.join("N").replace('|', "¦"), SHOWN_IN_TABLE)
    };
    let path = path.split(".f:").next().unwrap_or_default();
    [what, path.to_owned(), value(real), value(fake)]
}

/// The sums over all sequences.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) sequences: usize,
    pub(crate) equal_sequences: usize,
    pub(crate) answers: usize,
    pub(crate) equal_answers: usize,
    /// Answers of the fake that say that it has no such feature. They are never equal.
    pub(crate) refused_answers: usize,
    classes: BTreeMap<[String; 4], Class>,
    /// The kinds of the first difference of sequences, with their numbers and the first example.
    kinds: BTreeMap<[String; 4], (usize, String)>,
}

#[derive(Debug, Default)]
struct Class {
    answers: usize,
    /// Sequences whose first different answer has this difference.
    first: usize,
    example: String,
}

impl Report {
    pub(crate) fn add(&mut self, outcome: &Outcome) {
        self.sequences += 1;
        self.equal_sequences += usize::from(outcome.different.is_empty());
        self.answers += outcome.answers;
        self.equal_answers += outcome.answers - outcome.different.len();
        self.refused_answers += outcome.refused;
        if let Some(first) = outcome.different.first() {
            let (count, example) = self.kinds.entry(kind_of(first)).or_default();
            *count += 1;
            if example.is_empty() {
                example.clone_from(&first[0].example);
            }
        }
        for (at, answer) in outcome.different.iter().enumerate() {
            for difference in answer {
                let class = self.classes.entry(difference.class.clone()).or_default();
                class.answers += 1;
                class.first += usize::from(at == 0);
                if class.example.is_empty() {
                    class.example.clone_from(&difference.example);
                }
            }
        }
    }

    /// Returns the share of equal sequences, in percent.
    pub(crate) fn share(&self) -> f64 {
        100.0 * self.equal_sequences as f64 / self.sequences.max(1) as f64
    }

    /// Returns the figures and all classes, the most frequent first.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{} sequences, {} equal ({:.2} %); {} answers, {} equal ({:.2} %), {} with 501; {} classes of differences\n",
            self.sequences,
            self.equal_sequences,
            self.share(),
            self.answers,
            self.equal_answers,
            100.0 * self.equal_answers as f64 / self.answers.max(1) as f64,
            self.refused_answers,
            self.classes.len(),
        );
        self.add_table(&mut text);
        let mut classes: Vec<_> = self.classes.iter().collect();
        classes.sort_by_key(|(_, class)| Reverse((class.first, class.answers)));
        for ([what, path, real, fake], class) in classes {
            let _ = write!(
                text,
                "\n{what}: {path} ({} answers, first in {} sequences)\n  real: {real}\n  fake: {fake}\n  {}\n",
                class.answers, class.first, class.example,
            );
        }
        text += "\nReplaced before the comparison:\n";
        for (what, reason) in RULES {
            let _ = writeln!(text, "- {what}: {reason}");
        }
        text
    }

    /// Adds the kinds of differences as a table in Markdown, the most frequent first.
    fn add_table(&self, text: &mut String) {
        let mut kinds: Vec<_> = self.kinds.iter().collect();
        kinds.sort_by_key(|(_, (count, _))| Reverse(*count));
        *text += "\n| sequences | request | field | real server | testkit | example |\n";
        *text += "|---|---|---|---|---|---|\n";
        for ([what, path, real, fake], (count, example)) in kinds {
            let _ = writeln!(text, "| {count} | {what} | `{path}` | {real} | {fake} | {example} |");
        }
    }
}
