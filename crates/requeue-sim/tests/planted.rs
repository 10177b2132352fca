//! Checks that each planted bug can still be planted, and names two layers that detect it. `make planted`
//! runs these layers.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const LAYERS: [&str; 8] =
    ["unit", "behaviour", "model", "simulator", "loom", "client-go", "stores", "chaos"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).expect("two levels up").to_owned()
}

/// Returns the names and contents of the patches.
fn patches() -> Vec<(PathBuf, String)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("planted");
    let files = fs::read_dir(dir).expect("the patches").map(|entry| entry.expect("a patch").path());
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).expect("a text");
        (path, text)
    };
    let mut patches: Vec<_> = files.map(read).collect();
    patches.sort();
    patches
}

fn header<'t>(text: &'t str, name: &str) -> &'t str {
    let line = text.lines().take(2).find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.strip_prefix(": ")).unwrap_or_default()
}

#[test]
fn every_planted_bug_can_be_planted() {
    let patches = patches();
    assert!(patches.len() >= 50, "only {} patches", patches.len());
    let does_not_apply = |path: &&PathBuf| {
        let mut git = Command::new("git");
        let checked = git.current_dir(root()).args(["apply", "--check"]).arg(path).status();
        !checked.expect("git runs").success()
    };
    let broken: Vec<_> = patches.iter().map(|(path, _)| path).filter(does_not_apply).collect();
    assert!(broken.is_empty(), "the code has changed, so change these patches: {broken:#?}");
}

#[test]
fn every_planted_bug_has_two_layers() {
    for (path, text) in &patches() {
        let (path, bug) = (path.display(), header(text, "Bug"));
        let layers: Vec<_> = header(text, "Layers").split(' ').collect();
        assert!(!bug.is_empty() && layers.len() >= 2, "{path}: a bug and two layers");
        assert!(layers.iter().all(|layer| LAYERS.contains(layer)), "{path}: {layers:?}");
    }
}
