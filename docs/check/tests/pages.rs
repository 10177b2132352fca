//! Every page with Rust code is compiled, and every block of code names its language.

use std::fs;
use std::path::{Path, PathBuf};

use regex::Regex;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two levels up").to_owned()
}

/// The pages of the site, as paths below the root.
fn pages() -> Vec<String> {
    fn collect(dir: &Path, found: &mut Vec<PathBuf>) {
        for entry in fs::read_dir(dir).expect("a directory of the repository") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                collect(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                found.push(path);
            }
        }
    }
    let mut found = vec![root().join("README.md")];
    collect(&root().join("docs"), &mut found);
    let relative = |path: PathBuf| {
        let path = path.strip_prefix(root()).expect("below the root").to_owned();
        path.to_str().expect("names are ASCII").to_owned()
    };
    found.into_iter().map(relative).collect()
}

/// The languages of a page's blocks of code.
fn languages(page: &str) -> Vec<String> {
    let text = fs::read_to_string(root().join(page)).expect("a page");
    let fences = text.lines().filter_map(|line| line.trim_start().strip_prefix("```"));
    // Every second fence ends a block.
    fences.step_by(2).map(str::to_owned).collect()
}

#[test]
fn every_page_with_rust_code_is_compiled() {
    let crates = fs::read_dir(root().join("crates")).expect("the crates");
    let crates = crates.map(|entry| entry.expect("an entry").path().join("src/lib.rs"));
    let compiled: String = crates
        .chain([root().join("docs/check/src/lib.rs")])
        .map(|file| fs::read_to_string(file).expect("a crate has src/lib.rs"))
        .collect();
    for page in pages() {
        for language in languages(&page) {
            assert!(!language.is_empty(), "{page}: a block of code names no language");
            let is_rust = language.starts_with("rust");
            assert!(
                !is_rust || compiled.contains(&format!("{page}\"")),
                "{page} has Rust code, and docs/check/src/lib.rs does not list it"
            );
            assert!(!language.contains("ignore"), "{page}: ignored code is not compiled");
        }
    }
}

/// The sources of the crates, without the breaks in long string literals.
fn sources() -> String {
    fn collect(dir: &Path, text: &mut String) {
        for entry in fs::read_dir(dir).expect("a directory of the repository") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                collect(&path, text);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&fs::read_to_string(path).expect("a source"));
            }
        }
    }
    let mut text = String::new();
    for entry in fs::read_dir(root().join("crates")).expect("the crates") {
        collect(&entry.expect("an entry").path().join("src"), &mut text);
    }
    let line_break = Regex::new(r"\\\n\s*").expect("a regular expression");
    line_break.replace_all(&text, "").into_owned()
}

#[test]
fn every_message_on_the_page_of_errors_is_in_the_sources() {
    let (page, sources) = (root().join("docs/reference/errors.md"), sources());
    let page = fs::read_to_string(page).expect("the page");
    let row = Regex::new(r"(?m)^\| `([^`]*)` \|").expect("a regular expression");
    // This message comes from a dependency.
    let foreign = ["failed to infer config"];
    let mut missing = Vec::new();
    for found in row.captures_iter(&page) {
        let parts = found[1].split('…').map(str::trim).filter(|part| !part.is_empty());
        for part in parts.filter(|part| !foreign.contains(part)) {
            if !sources.contains(part) {
                missing.push(part.to_owned());
            }
        }
    }
    assert!(missing.is_empty(), "not in the sources: {missing:#?}");
}
