//! The contents that files had at their last successful runs.
//!
//! An event can arrive while a file is being written. The content at that moment is not final. It can differ from the
//! earlier content even if the final content does not. The content is therefore compared again after the debounce,
//! when a run is about to start.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::hash::RandomState;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use parking_lot::Mutex;

use crate::files::content::Content;
use crate::files::open::{Links, Meta};
use crate::key::Key;

/// The contents of the files that have changed since the start of the program.
#[derive(Debug)]
pub(super) struct Ran {
    secret: RandomState,
    links: Links,
    /// The roots, with the paths that the user gave.
    roots: Vec<PathBuf>,
    files: Mutex<HashMap<Key, Last>>,
}

/// The contents of one file.
#[derive(Debug, Default)]
struct Last {
    /// The content at the last successful run, or before the first change. `None` if the file is new, or if its last
    /// run has not succeeded.
    settled: Option<Content>,
    /// The content at the start of the run in flight.
    in_run: Option<Box<Content>>,
}

/// The state of a file when its run is about to start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begun {
    Changed,
    /// The content is the same as at the last successful run.
    Unchanged,
    /// The file does not exist.
    Gone,
}

impl Ran {
    /// Creates an empty table. `secret` must also be the secret of the hashes that the caller passes.
    pub(super) fn new(secret: RandomState, links: Links, roots: Vec<PathBuf>) -> Self {
        Self { secret, links, roots, files: Mutex::default() }
    }

    /// Records a change of a file. `before` is its content before the change.
    pub(super) fn record_change(&self, path: &[u8], before: Option<Content>) {
        let mut files = self.files.lock();
        if !files.contains_key(path) {
            files.insert(path.into(), Last { settled: before, in_run: None });
        }
    }

    /// Removes a deleted file from the table.
    pub(super) fn forget_file(&self, path: &[u8]) {
        self.files.lock().remove(path);
    }

    /// Reads the file, and compares its content with that of the last successful run. Returns [`Begun::Changed`] if a
    /// run must start.
    pub(super) fn begin_run(&self, path: &[u8]) -> Begun {
        // The file is read without the lock, because a read can take long.
        let Some(now) = self.read_content(Path::new(OsStr::from_bytes(path))) else {
            // If the file appears again, it has no earlier content, so a run starts.
            self.forget_file(path);
            return Begun::Gone;
        };
        let mut files = self.files.lock();
        let last = files.entry(path.into()).or_default();
        if last.settled.as_ref().is_some_and(|settled| !now.differs_from(settled)) {
            return Begun::Unchanged;
        }
        // The content is removed until a run has succeeded. If the run fails, each later change of the file therefore
        // starts a run.
        last.settled = None;
        last.in_run = Some(Box::new(now));
        Begun::Changed
    }

    /// Records that the latest run of the file has succeeded.
    pub(super) fn record_success(&self, path: &[u8]) {
        if let Some(last) = self.files.lock().get_mut(path) {
            // The recorded content is that at the start of the run, because the file may have changed since then.
            last.settled = last.in_run.take().map(|content| *content);
        }
    }

    fn read_content(&self, file: &Path) -> Option<Content> {
        let (dir, name) = file.parent().zip(file.file_name())?;
        // One root may contain another one. A client of the dashboard can add a key that is in no root.
        let roots = self.roots.iter().filter(|root| dir.starts_with(root));
        let root = roots.max_by_key(|root| root.as_os_str().len()).map_or(dir, |root| root);
        let root = if root == Path::new("") { Path::new(".") } else { root };
        let dir =
            self.links.open_dir(root, dir.strip_prefix(root).unwrap_or(Path::new(""))).ok()?;
        let meta = dir.meta_of(name).filter(Meta::is_file)?;
        Content::read_file(&dir, name, &meta, &self.secret, SystemTime::now())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_whose_content_is_back_needs_no_run_unless_a_run_has_failed() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        let path = file.as_os_str().as_bytes();
        let ran = Ran::new(RandomState::new(), Links::Ignored, vec![dir.path().into()]);
        let write = |content: &str| {
            fs::write(&file, content).unwrap();
            ran.read_content(&file)
        };
        let before = write("one");
        // An event arrives while the file is being written.
        let between = write("");
        ran.record_change(path, before);
        write("one");
        ran.record_change(path, between);
        assert_eq!(ran.begin_run(path), Begun::Unchanged);

        write("two");
        assert_eq!(ran.begin_run(path), Begun::Changed);
        // The first content is back, but no run has succeeded since the change.
        write("one");
        assert_eq!(ran.begin_run(path), Begun::Changed);
        ran.record_success(path);
        assert_eq!(ran.begin_run(path), Begun::Unchanged);

        // The file changes during the run.
        write("three");
        assert_eq!(ran.begin_run(path), Begun::Changed);
        write("four");
        ran.record_success(path);
        assert_eq!(ran.begin_run(path), Begun::Changed);
        ran.record_success(path);

        fs::remove_file(&file).unwrap();
        assert_eq!(ran.begin_run(path), Begun::Gone);
        let again = write("four");
        ran.record_change(path, None);
        assert_eq!(ran.begin_run(path), Begun::Changed);
        assert!(again.is_some());
    }
    #[test]
    fn a_link_in_the_place_of_a_parent_directory_leads_nowhere() {
        let dir = tempfile::tempdir().unwrap();
        let [root, outside] = ["root", "outside"].map(|name| dir.path().join(name));
        for dir in [root.join("d"), outside.clone()] {
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("x"), dir.as_os_str().as_bytes()).unwrap();
        }
        let file = root.join("d/x");
        let path = file.as_os_str().as_bytes();
        let begin = |links, roots: &[&PathBuf]| {
            let ran = Ran::new(RandomState::new(), links, roots.iter().copied().cloned().collect());
            ran.begin_run(path)
        };
        assert_eq!(begin(Links::Ignored, &[&root]), Begun::Changed);
        fs::rename(root.join("d"), root.join("old")).unwrap();
        symlink(&outside, root.join("d")).unwrap();
        assert_eq!(begin(Links::Ignored, &[&root]), Begun::Gone);
        assert_eq!(begin(Links::Followed, &[&root]), Begun::Changed);
        // The user named the link as a root, so it is followed.
        assert_eq!(begin(Links::Ignored, &[&root, &root.join("d")]), Begun::Changed);
    }
}
