//! Checks that docs, help texts and doc comments are plain English: without any word of
//! `scripts/prose.txt`, and without sentences of more than 35 words.
//!
//! `scripts/prose-allowed.txt` lists the exceptions, with a reason for each.

use std::fs;
use std::path::{Path, PathBuf};

use regex::{Regex, RegexBuilder};

const LONGEST: usize = 35;
const RULES: &str = "scripts/prose.txt";
const ALLOWED: &str = "scripts/prose-allowed.txt";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two levels up").to_owned()
}

/// Returns the files with prose, as paths below the root.
fn files() -> Vec<PathBuf> {
    fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).expect("a directory of the repository") {
            let path = entry.expect("an entry").path();
            if path.is_symlink() {
                continue; // The target of the link is checked.
            }
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() {
                if !name.starts_with('.') && name != "target" && name != "node_modules" {
                    collect(&path, found);
                }
            } else if name.ends_with(".md") || name.ends_with(".rs") || name == "help.txt" {
                found.push(path);
            }
        }
    }
    let mut found = Vec::new();
    collect(&root(), &mut found);
    found.sort();
    found
}

/// Returns the prose of a file as paragraphs, without code, link targets and table lines.
fn paragraphs(path: &Path, text: &str) -> Vec<String> {
    let is_rust = path.extension().is_some_and(|extension| extension == "rs");
    let comment = |line: &str| {
        let line = line.trim_start();
        let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
        text.map(|text| text.strip_prefix(' ').unwrap_or(text).to_owned())
    };
    let lines: Vec<String> = if path.ends_with("args/help.rs") {
        // Each long help text is a constant, between `= "\` and `";`.
        let constants = text.split("= \"\\\n").skip(1);
        let texts = constants.filter_map(|rest| rest.split_once("\";\n"));
        let joined: String = texts.map(|(text, _)| text.replace(" \\\n", " ") + "\n\n").collect();
        joined.lines().map(str::to_owned).collect()
    } else if is_rust {
        // A line of code ends a paragraph.
        text.lines().map(|line| comment(line).unwrap_or_default()).collect()
    } else {
        text.lines().map(str::to_owned).collect()
    };
    let mut paragraphs = vec![String::new()];
    let mut in_code = false;
    for line in lines {
        let line = line.trim();
        if line.starts_with("```") {
            in_code = !in_code;
            paragraphs.push(String::new());
        } else if in_code || line.is_empty() {
            paragraphs.push(String::new());
        } else if let Some(row) = line.strip_prefix('|') {
            paragraphs.extend(row.split('|').map(|cell| cell.trim().to_owned()));
            paragraphs.push(String::new());
        } else {
            let item = line.trim_start_matches('#');
            let item = item.strip_prefix("- ").or_else(|| item.strip_prefix("* ")).unwrap_or(item);
            if item.len() < line.len() {
                paragraphs.push(String::new());
            }
            let last = paragraphs.last_mut().expect("there is always one");
            last.push(' ');
            last.push_str(item.trim());
            if line.starts_with('#') {
                paragraphs.push(String::new());
            }
        }
    }
    paragraphs.retain(|paragraph| !paragraph.trim().is_empty());
    paragraphs
}

struct Checker {
    rules: Vec<(Regex, String)>,
    code: Regex,
    link: Regex,
    end: Regex,
}

impl Checker {
    fn new(rules: &str) -> Self {
        let rule = |line: &str| {
            let (pattern, instead) = line.split_once(" = ").expect("PATTERN = INSTEAD");
            let pattern = match pattern.strip_prefix('^') {
                Some(rest) => format!("^{rest}"),
                None => format!(r"\b(?:{pattern})\b"),
            };
            let regex =
                RegexBuilder::new(&pattern).case_insensitive(!pattern.starts_with('^')).build();
            (regex.expect("a regular expression"), instead.to_owned())
        };
        let lines = rules.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        Self {
            rules: lines.map(rule).collect(),
            code: Regex::new("`[^`]*`").expect("a regular expression"),
            link: Regex::new(r"!?\[([^\]]*)\](\([^)]*\)|\[[^\]]*\])?")
                .expect("a regular expression"),
            end: Regex::new(r#"[.!?][)"”*_]*\s+"#).expect("a regular expression"),
        }
    }

    fn findings(&self, path: &Path, text: &str) -> Vec<String> {
        let mut findings = Vec::new();
        for paragraph in paragraphs(path, text) {
            let plain = self.code.replace_all(&paragraph, "CODE");
            let plain = self.link.replace_all(&plain, "$1").replace("e.g. ", "for example ");
            let plain = plain.replace("i.e. ", "that is ").replace("**", "");
            for sentence in self.end.split(&plain) {
                let sentence = sentence.trim();
                let words = sentence.split_whitespace().count();
                if words > LONGEST {
                    findings.push(format!("{words} words: {sentence}"));
                }
                for (regex, instead) in &self.rules {
                    if let Some(found) = regex.find(sentence) {
                        let found = found.as_str();
                        findings.push(format!("{found:?}, better {instead}: {sentence}"));
                    }
                }
            }
        }
        findings
    }
}

#[test]
fn the_prose_is_plain() {
    let rules = fs::read_to_string(root().join(RULES)).expect(RULES);
    let allowed = fs::read_to_string(root().join(ALLOWED)).expect(ALLOWED);
    let lines = allowed.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut unused: Vec<(&str, &str)> = lines
        .map(|line| line.split_once(" = ").expect("PATH: WORDS = REASON").0)
        .map(|exception| exception.split_once(": ").expect("PATH: WORDS = REASON"))
        .collect();
    let exceptions = unused.clone();
    let checker = Checker::new(&rules);
    let mut complaints = Vec::new();
    for file in files() {
        let text = fs::read_to_string(&file).expect("a file of the repository");
        let path = file.strip_prefix(root()).expect("a file below the root").display().to_string();
        for finding in checker.findings(&file, &text) {
            let is_it = |(of, words): &&(&str, &str)| *of == path && finding.contains(words);
            match exceptions.iter().find(is_it) {
                Some(exception) => unused.retain(|unused| unused != exception),
                None => complaints.push(format!("{path}: {finding}")),
            }
        }
    }
    assert!(complaints.is_empty(), "see {RULES} and {ALLOWED}:\n{}", complaints.join("\n"));
    assert!(unused.is_empty(), "{ALLOWED} has exceptions that nothing needs: {unused:?}");
}

#[test]
fn findings_are_found() {
    let checker = Checker::new("hand-?outs? = delivery\n^What (is|was) = name the subject\n");
    let long = "word ".repeat(LONGEST + 1);
    let text = format!(
        "# A heading\n\nWhat is locked waits. A `hand-out` in code. The hand-outs [of](x) it.\n\n\
         ```\nWhat is code. hand-out\n```\n\n- {long}\n\n| What was added |\n"
    );
    let findings = checker.findings(Path::new("page.md"), &text);
    let begins = ["\"What is\"", "\"hand-outs\"", "36 words", "\"What was\""];
    assert_eq!(findings.len(), begins.len(), "{findings:?}");
    assert!(findings.iter().zip(begins).all(|(finding, begin)| finding.starts_with(begin)));
    let rust = "/// What is it?\nfn f() {}\n// What is not a doc comment.\n//! The hand-out.\n";
    assert_eq!(checker.findings(Path::new("a.rs"), rust).len(), 2);
    let help = "//! Help.\nconst RUN: &str = \"\\\nRuns it. The hand-out \\\nof it.\";\nconst ONE: u8 = 1;\n";
    assert_eq!(checker.findings(Path::new("args/help.rs"), help).len(), 1);
}
