//! The hooks before and after the run for a file. They supply the input, and skip runs that are no longer needed.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::files::events::Inbox;
use crate::files::ran::{Begun, Ran};
use crate::key::{Key, LONGEST};
use crate::process::run_input::RunInput;
use crate::runner::hooks::{BoxFuture, Hooks};

/// The key of the common run for all files, with `--all-in-one`.
pub(super) const ALL: &[u8] = b"all";

/// The hooks before and after the run for a file.
#[derive(Debug)]
pub(super) struct FileHooks {
    /// The changed paths for the common run. `None` if `--all-in-one` is missing.
    pub(super) all: Option<Paths>,
    pub(super) ran: Ran,
    pub(super) inbox: Arc<Inbox>,
    /// True if `--deleted` is set, so that commands also run for deleted files.
    pub(super) runs_deleted: bool,
    /// True if the next run clears the terminal. `None` if `--clear` is missing.
    pub(super) clear: Option<AtomicBool>,
}

/// The changed files for the common run of `--all-in-one`.
#[derive(Debug)]
pub(super) struct Paths {
    terminator: u8,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// The files that have changed since the last run began.
    waiting: BTreeSet<Key>,
    /// The files of the last run. They stay here until a run has succeeded.
    in_run: BTreeSet<Key>,
}

impl Paths {
    pub(super) fn new(terminator: u8) -> Self {
        Self { terminator, state: Mutex::default() }
    }

    /// Adds a file to the next run. If the path contains the terminator, it would look like several paths. The
    /// function then adds nothing and returns false.
    pub(super) fn add_path(&self, path: &[u8]) -> bool {
        let is_one = !path.contains(&self.terminator);
        if is_one {
            self.state.lock().waiting.insert(path.into());
        }
        is_one
    }

    /// Returns the input of the next run. Returns `None` if no file needs a run.
    fn begin_run(&self, is_needed: impl Fn(&[u8]) -> bool) -> Option<RunInput> {
        let mut state = self.state.lock();
        let waiting = std::mem::take(&mut state.waiting);
        state.in_run.extend(waiting);
        // A file may again have the content of its last successful run. Such a file needs no run.
        state.in_run.retain(|path| is_needed(path));
        if state.in_run.is_empty() {
            return None;
        }
        let mut stdin = Vec::new();
        for path in &state.in_run {
            stdin.extend_from_slice(path);
            stdin.push(self.terminator);
        }
        let env = paths_variable(&state.in_run).map(|paths| ("REQUEUE_PATHS", paths));
        let env = env.into_iter().collect();
        Some(RunInput { env, stdin: Some(stdin.into()), ..RunInput::default() })
    }

    /// Ends the run, and returns its files.
    fn end_run(&self) -> BTreeSet<Key> {
        std::mem::take(&mut self.state.lock().in_run)
    }
}

/// Returns the value of the environment variable with the paths, one per line. Returns `None` if a path contains a
/// newline, or if the value would be too long.
fn paths_variable(paths: &BTreeSet<Key>) -> Option<OsString> {
    let length: usize = paths.iter().map(|path| path.len() + 1).sum();
    let is_lines = paths.iter().all(|path| !path.contains(&b'\n'));
    if !is_lines || "REQUEUE_PATHS=".len() + length > LONGEST {
        return None;
    }
    let paths: Vec<_> = paths.iter().map(|path| &path[..]).collect();
    Some(OsString::from_vec(paths.join(&b'\n')))
}

impl FileHooks {
    /// Compares a file with its last run. Returns the state of the file, and true if it needs a run.
    fn compare_file(&self, path: &[u8]) -> (Begun, bool) {
        let begun = self.ran.begin_run(path);
        if begun == Begun::Gone {
            // Another file with the last seen content may appear at this path now. The tree would then see no change,
            // so the missing file is reported to it.
            self.inbox.report_skipped(OsStr::from_bytes(path).into());
        }
        (begun, begun == Begun::Changed || (begun == Begun::Gone && self.runs_deleted))
    }

    fn prepare_input(&self, key: &[u8]) -> Option<RunInput> {
        let input = self.input_of(key)?;
        // No other data depends on the flag, so `Relaxed` is sufficient.
        let is_first = |next: &AtomicBool| next.swap(false, Ordering::Relaxed);
        let clears = self.clear.as_ref().is_some_and(|next| is_first(next) || self.all.is_some());
        Some(RunInput { clears, ..input })
    }

    fn input_of(&self, key: &[u8]) -> Option<RunInput> {
        match &self.all {
            Some(paths) => paths.begin_run(|path| self.compare_file(path).1),
            None => {
                let (begun, is_needed) = self.compare_file(key);
                let event = if begun == Begun::Gone { "delete" } else { "apply" };
                let env = vec![("REQUEUE_EVENT", event.into())];
                is_needed.then(|| RunInput { env, ..RunInput::default() })
            }
        }
    }
}

impl Hooks for FileHooks {
    fn check_key(&self, key: &[u8]) -> Result<(), String> {
        match self.all {
            Some(_) if key != ALL => Err("with --all-in-one, the only key is `all`".to_owned()),
            _ => Ok(()),
        }
    }

    fn prepare_run<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<Option<RunInput>, String>> {
        // The input is prepared as a blocking call, because it reads files.
        Box::pin(async { Ok(tokio::task::block_in_place(|| self.prepare_input(key))) })
    }

    fn on_success<'a>(&'a self, key: &'a [u8]) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async {
            match &self.all {
                Some(paths) => {
                    paths.end_run().iter().for_each(|path| self.ran.record_success(path))
                }
                None => self.ran.record_success(key),
            }
            Ok(())
        })
    }

    // The paths of a failed run stay in the set. Each later run contains them, until a run succeeds.
    fn on_give_up(&self, _: &[u8]) -> &'static str {
        "; the next change runs it again"
    }

    fn is_new(&self, _: &[u8]) -> bool {
        false
    }

    fn after_cut_off(&self) -> &'static str {
        "changes that have not run are lost; --initial runs all files at the next start"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_for_all_files_gets_the_paths_since_the_last_success() {
        let paths = Paths::new(b'\n');
        let stdin = |paths: &Paths| paths.begin_run(|_| true).and_then(|input| input.stdin);
        assert_eq!(stdin(&paths), None);
        paths.add_path(b"b");
        paths.add_path(b"a");
        paths.add_path(b"b");
        assert_eq!(stdin(&paths).as_deref(), Some(&b"a\nb\n"[..]));
        // The last run has failed, and was given up.
        paths.add_path(b"c");
        assert_eq!(stdin(&paths).as_deref(), Some(&b"a\nb\nc\n"[..]));
        paths.add_path(b"a");
        paths.end_run();
        assert_eq!(stdin(&paths).as_deref(), Some(&b"a\n"[..]));
    }

    #[test]
    fn a_path_that_looks_like_two_is_no_input() {
        let lines = Paths::new(b'\n');
        assert!(!lines.add_path(b"a\nb") && lines.add_path(b"c"));
        assert_eq!(
            lines.begin_run(|_| true).and_then(|run| run.stdin).as_deref(),
            Some(&b"c\n"[..])
        );
        assert!(Paths::new(b'\0').add_path(b"a\nb"));
    }

    #[test]
    fn the_variable_has_lines_and_only_if_they_are_unambiguous() {
        let of =
            |paths: &[&[u8]]| paths_variable(&paths.iter().map(|path| Key::from(*path)).collect());
        assert_eq!(of(&[b"b", b"a b"]).as_deref(), Some(OsStr::new("a b\nb")));
        assert_eq!(of(&[b"\xff"]).as_deref(), Some(OsStr::from_bytes(b"\xff")));
        assert_eq!(of(&[b"a", b"b\nc"]), None);
        assert_eq!(of(&[&[b'x'; LONGEST]]), None);
    }
}
