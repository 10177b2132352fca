//! Tests with real directories. The tests themselves create the events.

use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::UNIX_EPOCH;

use clap::Parser;
use notify::{Config, EventHandler, WatcherKind};
use tempfile::TempDir;

use super::*;
use crate::args::{Cli, Subcommand};

type OnWatch = Box<dyn FnMut(&Path) + Send>;

/// The calls that a tree has made to its watcher, and the errors that the watcher returns.
#[derive(Default)]
struct Calls {
    /// The calls. Each is `+` or `-` with a path in the root, or `reset`.
    all: Vec<String>,
    most: Option<usize>,
    denied: Option<PathBuf>,
    /// A function that the watcher calls when a directory is watched.
    on_watch: Option<OnWatch>,
}

impl Calls {
    /// Returns the directories that are watched at this time.
    fn watched(&self) -> BTreeSet<String> {
        let mut watched = BTreeSet::new();
        for call in &self.all {
            match call.split_at(1) {
                ("+", dir) => _ = watched.insert(dir.to_owned()),
                ("-", dir) => _ = watched.remove(dir),
                _ => watched.clear(),
            }
        }
        watched
    }
}

struct Fake {
    root: PathBuf,
    calls: Arc<Mutex<Calls>>,
}

impl Fake {
    fn call(&self, kind: char, dir: &Path) -> String {
        let inside = dir.strip_prefix(&self.root).unwrap_or(dir);
        format!("{kind}{}", inside.display())
    }
}

impl Watcher for Fake {
    fn new<F: EventHandler>(_: F, _: Config) -> notify::Result<Self> {
        unreachable!("the tests construct it")
    }

    fn kind() -> WatcherKind {
        WatcherKind::NullWatcher
    }

    fn watch(&mut self, dir: &Path, _: RecursiveMode) -> notify::Result<()> {
        let mut calls = self.calls.lock().unwrap();
        if calls.denied.as_deref() == Some(dir) {
            return Err(notify::Error::io(ErrorKind::PermissionDenied.into()));
        }
        if calls.most.is_some_and(|most| calls.watched().len() >= most) {
            return Err(notify::Error::new(notify::ErrorKind::MaxFilesWatch));
        }
        let call = self.call('+', dir);
        calls.all.push(call);
        if let Some(on_watch) = &mut calls.on_watch {
            on_watch(dir);
        }
        Ok(())
    }

    fn unwatch(&mut self, dir: &Path) -> notify::Result<()> {
        let call = self.call('-', dir);
        self.calls.lock().unwrap().all.push(call);
        Ok(())
    }
}

struct Fixture {
    dir: TempDir,
    tree: Tree,
    calls: Arc<Mutex<Calls>>,
}

impl Fixture {
    /// Creates a repository with these files, and starts to watch it with these flags.
    fn new(flags: &[&str], files: &[&str]) -> Self {
        let mut it = Self::unstarted(&[""], flags, files);
        assert_eq!(it.start(), [""; 0]);
        it
    }

    fn unstarted(roots: &[&str], flags: &[&str], files: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        // `.git` makes the directory a repository, so no rules of parent directories apply.
        fs::create_dir(dir.path().join(".git")).unwrap();
        for file in files {
            write(&dir.path().join(file), file);
        }
        let words = ["requeue", "files", "."].iter().chain(flags).chain(&["--", "true"]);
        let Subcommand::Files(flags) = Cli::try_parse_from(words).unwrap().command else {
            panic!("not files")
        };
        let root = |root: &&str| Root::find(dir.path().join(root)).unwrap();
        let roots: Vec<_> = roots.iter().map(root).collect();
        let paths: Vec<_> = roots.iter().map(|root| root.path.clone()).collect();
        let filter = Filter::new(&flags, &paths).unwrap();
        let calls = Arc::<Mutex<Calls>>::default();
        let root = fs::canonicalize(dir.path()).unwrap();
        let new_calls = Arc::clone(&calls);
        let new_watcher: NewWatcher = Box::new(move || {
            new_calls.lock().unwrap().all.push("reset".to_owned());
            Ok(Box::new(Fake { root: root.clone(), calls: Arc::clone(&new_calls) }))
        });
        let tree = Tree::new(roots, filter, new_watcher, RandomState::new()).ok().unwrap();
        // The creation of the first watcher is not a reset, so its call is removed.
        calls.lock().unwrap().all.clear();
        Self { dir, tree, calls }
    }

    /// Runs the first scan. The scan reports only files that changed after a time in the future, so it normally
    /// returns none.
    fn start(&mut self) -> Vec<String> {
        let changes = self.tree.first_scan(SystemTime::now() + std::time::Duration::from_secs(60));
        self.named(changes.unwrap())
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn write(&self, path: &str, content: &str) {
        write(&self.path(path), content);
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.path(from), self.path(to)).unwrap();
    }

    /// Reports modifications at these paths. Returns the changes. Those of deleted files begin with `-`.
    fn modified(&mut self, paths: &[&str]) -> Vec<String> {
        self.feed(paths, false)
    }

    /// Reports that a file or directory appeared or disappeared at each of these paths.
    fn replaced(&mut self, paths: &[&str]) -> Vec<String> {
        self.feed(paths, true)
    }

    fn feed(&mut self, paths: &[&str], is_replaced: bool) -> Vec<String> {
        let root = fs::canonicalize(self.dir.path()).unwrap();
        let paths = paths.iter().map(|path| (root.join(path), is_replaced)).collect();
        let changes = self.tree.handle_events(Events { paths, ..Events::default() }).unwrap();
        self.named(changes)
    }

    fn overflow(&mut self) -> Vec<String> {
        let changes =
            self.tree.handle_events(Events { overflow: true, ..Events::default() }).unwrap();
        self.named(changes)
    }

    fn named(&self, changes: Vec<Change>) -> Vec<String> {
        let named = changes.into_iter().map(|Change { path, kind }| {
            let path = path.strip_prefix(self.dir.path()).unwrap().display().to_string();
            if kind == Kind::Deleted { format!("-{path}") } else { path }
        });
        named.collect()
    }

    fn watched(&self) -> Vec<String> {
        self.calls.lock().unwrap().watched().into_iter().collect()
    }
}

fn write(path: &Path, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

const NONE: [&str; 0] = [];

#[test]
fn only_another_content_is_a_change() {
    let mut it = Fixture::new(&[], &["a", "b/c"]);
    it.write("a", "a");
    assert_eq!(it.modified(&["a"]), NONE, "the same bytes");
    let file = fs::File::options().write(true).open(it.path("a")).unwrap();
    file.set_modified(UNIX_EPOCH).unwrap();
    assert_eq!(it.modified(&["a"]), NONE, "touched");
    it.write("a", "x");
    assert_eq!(it.modified(&["a", "b/c"]), ["a"]);
    assert_eq!(it.modified(&["a"]), NONE, "seen");
    // The file is replaced in the same way as many editors do it.
    it.write(".a.swp", "y");
    it.rename(".a.swp", "a");
    assert_eq!(it.replaced(&[".a.swp", "a"]), ["a"]);
    it.write("a~", "y");
    it.rename("a~", "a");
    assert_eq!(it.replaced(&["a~", "a"]), NONE, "replaced by the same");
}

#[test]
fn a_file_that_changed_since_the_start_is_found_by_the_first_scan() {
    let mut it = Fixture::unstarted(&[""], &[], &["a"]);
    let changes = it.tree.first_scan(UNIX_EPOCH).unwrap();
    assert_eq!(it.named(changes), ["a"]);
    assert_eq!(it.modified(&["a"]), NONE);
}

#[test]
fn files_appear_and_disappear() {
    let mut it = Fixture::new(&[], &["a", "b/c"]);
    it.write("n", "");
    assert_eq!(it.replaced(&["n"]), ["n"]);
    it.rename("n", "m");
    assert_eq!(it.replaced(&["n", "m"]), ["m", "-n"]);
    fs::remove_file(it.path("m")).unwrap();
    fs::remove_dir_all(it.path("b")).unwrap();
    assert_eq!(it.replaced(&["m", "b/c", "b"]), ["-b/c", "-m"]);
    assert_eq!(it.replaced(&["m", "b/c", "b"]), NONE);
    assert_eq!(it.watched(), [""]);
    // A directory replaces a file, and a file replaces a directory.
    fs::remove_file(it.path("a")).unwrap();
    it.write("a/a", "");
    assert_eq!(it.replaced(&["a"]), ["-a", "a/a"]);
    fs::remove_dir_all(it.path("a")).unwrap();
    it.write("a", "");
    assert_eq!(it.replaced(&["a"]), ["a", "-a/a"]);
}

#[test]
fn a_directory_is_read_after_it_is_watched() {
    let mut it = Fixture::new(&[], &[]);
    // No event reports these files. They appear before the watch is added, or at the same moment.
    it.write("new/deep/before", "");
    it.calls.lock().unwrap().on_watch =
        Some(Box::new(|dir| fs::write(dir.join("late"), "").unwrap()));
    assert_eq!(it.replaced(&["new"]), ["new/deep/before", "new/deep/late", "new/late"]);
    assert_eq!(it.watched(), ["", "new", "new/deep"]);
}

#[test]
fn a_renamed_directory_loses_its_watch_before_it_gets_one() {
    for (from, to) in [("m", "a"), ("m", "z")] {
        let mut it = Fixture::new(&[], &["m/x/f"]);
        it.rename(from, to);
        let (here, gone) = (format!("{to}/x/f"), format!("-{from}/x/f"));
        let mut changes = vec![here, gone];
        changes
            .sort_by(|one, other| one.trim_start_matches('-').cmp(other.trim_start_matches('-')));
        assert_eq!(it.replaced(&[from, to]), changes);
        let calls = &it.calls.lock().unwrap().all;
        let at = |call: String| calls.iter().rposition(|it| *it == call).unwrap();
        for inside in ["", "/x"] {
            assert!(at(format!("-{from}{inside}")) < at(format!("+{to}{inside}")), "{calls:?}");
        }
    }
}

#[test]
fn another_directory_of_the_same_name_is_watched() {
    let mut it = Fixture::new(&[], &["a/same", "a/other", "b/same"]);
    it.write("b/same", "a/same");
    assert_eq!(it.modified(&["b/same"]), ["b/same"]);
    it.rename("a", "c");
    it.rename("b", "a");
    // The content of `a/same` is the same as before.
    let changes = it.replaced(&["a", "b", "c"]);
    assert!(changes.contains(&"-a/other".to_owned()), "{changes:?}");
    assert!(changes.contains(&"c/other".to_owned()), "{changes:?}");
    assert_eq!(it.watched(), ["", "a", "c"]);
}

#[test]
fn lost_events_make_it_read_and_watch_everything_again() {
    let mut it = Fixture::new(&[], &["a", "b/c", "b/d", "e/f"]);
    it.write("a", "x");
    it.write("b/c", "b/c");
    it.write("g/h", "");
    fs::remove_dir_all(it.path("e")).unwrap();
    assert_eq!(it.overflow(), ["a", "-e/f", "g/h"]);
    assert_eq!(it.watched(), ["", "b", "g"]);
    let calls = it.calls.lock().unwrap().all.split_off(3);
    assert_eq!(calls.first().map(String::as_str), Some("reset"), "{calls:?}");
    assert_eq!(it.tree.take_warnings(), NONE);
    assert_eq!(it.overflow(), NONE);
}

#[test]
fn rules_decide_which_files_count() {
    let files =
        ["a.rs", "a.txt", "b.o", ".hidden/x.rs", "out/x.rs", "x/.ignore", "x/y.rs", "z/t.tar.gz"];
    let mut it = Fixture::unstarted(&[""], &["-e", "rs,.tar.gz", "--ignore", "y.*"], &files);
    it.write(".gitignore", "/out\n");
    it.write(".git/x.rs", "");
    it.start();
    let shown = |it: &Fixture| it.named(it.tree.files().into_iter().map(changed).collect());
    assert_eq!(shown(&it), ["a.rs", "z/t.tar.gz"]);
    assert_eq!(it.watched(), ["", "x", "z"]);
    for path in files {
        it.write(path, "changed");
    }
    assert_eq!(it.modified(&files), ["a.rs", "z/t.tar.gz"]);

    // One file is no longer excluded, and another file is excluded from now on.
    it.write(".gitignore", "z\n");
    assert_eq!(it.modified(&[".gitignore"]), ["out/x.rs"]);
    assert_eq!(it.watched(), ["", "out", "x"]);
    it.write("out/x.rs", "again");
    it.write("z/t.tar.gz", "again");
    assert_eq!(it.modified(&["out/x.rs", "z/t.tar.gz"]), ["out/x.rs"]);

    let mut it = Fixture::unstarted(&[""], &["--hidden", "--no-ignore"], &["a", ".b", "out/c"]);
    it.write(".gitignore", "out\n");
    it.write(".git/d", "");
    it.start();
    assert_eq!(shown(&it), [".b", ".gitignore", "a", "out/c"]);
}

fn changed(path: PathBuf) -> Change {
    Change { path, kind: Kind::Changed { before: None } }
}

#[test]
fn a_directory_that_was_made_again_has_its_new_rules() {
    let mut it = Fixture::new(&[], &["a/x"]);
    it.write("a/.gitignore", "y\n");
    assert_eq!(it.replaced(&["a/.gitignore"]), NONE);
    it.write("a/y", "");
    assert_eq!(it.replaced(&["a/y"]), NONE);
    fs::remove_dir_all(it.path("a")).unwrap();
    assert_eq!(it.replaced(&["a"]), ["-a/x"]);
    it.write("a/.gitignore", "x\n");
    it.write("a/x", "");
    it.write("a/y", "");
    assert_eq!(it.replaced(&["a"]), ["a/y"]);
}

#[test]
fn a_rule_that_cannot_be_parsed_is_reported_once() {
    let mut it = Fixture::unstarted(&[""], &[], &["a", "b/c"]);
    it.write(".ignore", "a{\nb\n");
    it.start();
    let warnings = it.tree.take_warnings();
    assert!(warnings.len() == 1 && warnings[0].contains(".ignore"), "{warnings:?}");
    assert_eq!(it.overflow(), NONE);
    assert_eq!(it.tree.take_warnings(), NONE);
    assert_eq!(it.watched(), [""]);
}

#[test]
fn a_link_that_takes_the_place_of_a_directory_leads_nowhere() {
    let outside = tempfile::tempdir().unwrap();
    write(&outside.path().join("secret"), "secret");
    // In the first case, the directory is replaced at the moment at which it is watched. In the second case, another
    // directory is replaced, which has already been listed.
    for swaps_itself in [true, false] {
        let mut it = Fixture::unstarted(&[""], &[], &["c/x", "d/x"]);
        let (root, target) = (it.dir.path().to_owned(), outside.path().to_owned());
        let mut left = Some(target);
        it.calls.lock().unwrap().on_watch = Some(Box::new(move |dir| {
            let is_c = dir.ends_with("c");
            if let Some(target) = left.take_if(|_| is_c || dir.ends_with("d")) {
                let swapped = root.join(if is_c == swaps_itself { "c" } else { "d" });
                fs::remove_dir_all(&swapped).unwrap();
                symlink(&target, &swapped).unwrap();
            }
        }));
        it.start();
        let files: Vec<_> = it.tree.files();
        assert!(files.len() == 1 && files[0].ends_with("x"), "{files:?}");
    }
}

#[test]
fn a_fifo_that_takes_the_place_of_a_directory_is_not_waited_for() {
    let mut it = Fixture::unstarted(&[""], &[], &["a", "c/x"]);
    let mut left = Some(it.path("c"));
    it.calls.lock().unwrap().on_watch = Some(Box::new(move |dir| {
        if let Some(swapped) = left.take_if(|_| dir.ends_with("c")) {
            fs::remove_dir_all(&swapped).unwrap();
            assert!(Command::new("mkfifo").arg(&swapped).status().unwrap().success());
        }
    }));
    it.start();
    assert_eq!(it.tree.files(), [it.path("a")]);
}

#[test]
fn a_link_that_takes_the_place_of_a_parent_directory_leads_nowhere() {
    let outside = tempfile::tempdir().unwrap();
    write(&outside.path().join("x"), "secret");
    write(&outside.path().join("e/x"), "secret");
    let mut it = Fixture::new(&[], &["d/x", "d/e/x"]);
    it.rename("d", ".old");
    symlink(outside.path(), it.path("d")).unwrap();
    // The events of the files come before the event of the directory.
    assert_eq!(it.modified(&["d/e/x", "d/x"]), ["-d/e/x", "-d/x"]);
    assert_eq!(it.replaced(&["d/e"]), NONE);
    assert_eq!(it.overflow(), NONE);
    assert_eq!(it.watched(), [""]);
}

#[test]
fn a_directory_that_left_a_link_to_itself_is_watched_under_its_new_name() {
    let mut it = Fixture::new(&[], &["d/x"]);
    it.rename("d", "c");
    symlink("c", it.path("d")).unwrap();
    assert_eq!(it.replaced(&["c", "d"]), ["c/x", "-d/x"]);
    assert_eq!(it.watched(), ["", "c"]);
}

#[test]
fn links_count_only_if_they_are_followed() {
    let outside = tempfile::tempdir().unwrap();
    write(&outside.path().join("x"), "");
    for (flags, seen) in [(&[][..], &["a"][..]), (&["-L"], &["a", "dir/x", "file"])] {
        let mut it = Fixture::unstarted(&[""], flags, &["a"]);
        symlink(outside.path(), it.path("dir")).unwrap();
        symlink(".", it.path("loop")).unwrap();
        symlink("a", it.path("file")).unwrap();
        symlink("nowhere", it.path("dangling")).unwrap();
        it.start();
        let shown = it.tree.files().into_iter().map(changed).collect();
        assert_eq!(it.named(shown), seen);
    }
    let mut it = Fixture::new(&["-L"], &["old/f", "new/f"]);
    symlink("old", it.path("link")).unwrap();
    // The target of the link is already watched at its own path.
    assert_eq!(it.replaced(&["link"]), NONE);
}

#[test]
fn the_limit_of_watches_is_an_error() {
    let mut it = Fixture::unstarted(&[""], &[], &["a/b", "c/d"]);
    it.calls.lock().unwrap().most = Some(2);
    assert_eq!(it.tree.first_scan(UNIX_EPOCH), Err(Full(2)));
    let mut it = Fixture::new(&[], &["a/b"]);
    it.calls.lock().unwrap().most = Some(2);
    it.write("c/d", "");
    let path = fs::canonicalize(it.path("c")).unwrap();
    let events = Events { paths: [(path, true)].into(), ..Events::default() };
    assert_eq!(it.tree.handle_events(events), Err(Full(2)));
}

#[test]
fn a_directory_that_cannot_be_watched_is_reported_once() {
    let mut it = Fixture::unstarted(&[""], &[], &["a/b", "c"]);
    it.calls.lock().unwrap().denied = Some(fs::canonicalize(it.path("a")).unwrap());
    it.start();
    let warnings = it.tree.take_warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("a\": "), "{warnings:?}");
    it.write("c", "x");
    assert_eq!(it.modified(&["a", "c"]), ["c"]);
    assert_eq!(it.overflow(), NONE);
    assert_eq!(it.tree.take_warnings(), NONE);
    // The directory has become readable.
    it.calls.lock().unwrap().denied = None;
    assert_eq!(it.modified(&["a"]), ["a/b"]);
}

#[test]
fn roots_may_contain_each_other() {
    for roots in [["", "a/out"], ["a/out", ""]] {
        let mut it = Fixture::unstarted(&roots, &["--ignore", "/a/out"], &["x", "a/y", "a/out/z"]);
        it.start();
        let shown = it.tree.files().into_iter().map(changed).collect();
        assert_eq!(it.named(shown), ["a/out/z", "a/y", "x"], "{roots:?}");
        it.write("a/out/z", "changed");
        it.write("a/y", "changed");
        assert_eq!(it.modified(&["a/out/z", "a/y"]), ["a/out/z", "a/y"]);
        it.write("a/out/z", "again");
        assert_eq!(it.overflow(), ["a/out/z"]);
        assert_eq!(it.watched(), ["", "a", "a/out"]);
    }
}

#[test]
fn a_root_that_was_removed_is_watched_when_it_exists_again() {
    let mut it = Fixture::unstarted(&["a"], &[], &["a/b"]);
    it.start();
    fs::remove_dir_all(it.path("a")).unwrap();
    assert_eq!(it.replaced(&["a/b", "a"]), ["-a/b"]);
    let warnings = it.tree.take_warnings();
    assert!(warnings.len() == 1 && warnings[0].contains("no longer exists"), "{warnings:?}");
    assert!(it.tree.has_missing() && it.tree.find_missing().unwrap().is_empty());
    it.write("a/b", "");
    let changes = it.tree.find_missing().unwrap();
    assert_eq!(it.named(changes), ["a/b"]);
    assert!(!it.tree.has_missing());
    it.write("a/b", "x");
    assert_eq!(it.modified(&["a/b"]), ["a/b"]);
}

#[test]
fn a_file_that_did_not_run_because_it_was_replaced_is_new() {
    let mut it = Fixture::new(&[], &["a", "b"]);
    fs::remove_file(it.path("b")).unwrap();
    let skipped = vec![it.path("a"), it.path("b"), it.path("c")];
    let changes = it.tree.handle_events(Events { skipped, ..Events::default() }).unwrap();
    assert_eq!(it.named(changes), ["a"]);
    it.write("b", "b");
    assert_eq!(it.replaced(&["b"]), ["b"]);
}
