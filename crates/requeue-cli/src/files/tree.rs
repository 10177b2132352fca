//! The last seen state of the watched files, and the changes since then.
//!
//! An event only names a path to examine. A change is a difference between a file and its last seen state. An event
//! that is lost, late or repeated does no harm if another event follows or the whole tree is read again.
//!
//! A directory is read after its watch was added. A file that appears in it is thus either found by the read or named
//! by an event.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::hash::RandomState;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use notify::{RecursiveMode, Watcher};

use crate::files::content::{Content, changed_at};
use crate::files::events::{Events, NewWatcher, NotWatched};
use crate::files::filter::{Filter, has_rules};
use crate::files::open::{Directory, Id, Meta};
use crate::key::escaped;

/// A change of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Change {
    /// The path with the root that the user gave, and the path inside the root.
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// The content of the file has changed. `before` is `None` for a new file.
    Changed {
        before: Option<Content>,
    },
    Deleted,
}

/// The error that the system permits no more watches. Contains the number of watched directories.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Full(pub(super) usize);

/// A directory that the user named. It is watched with all its subdirectories.
#[derive(Clone, Debug)]
pub(super) struct Root {
    /// The path that the user gave.
    pub(super) given: PathBuf,
    /// The absolute path without links, as it is in the events.
    pub(super) path: PathBuf,
    is_missing: bool,
}

/// A watched directory.
#[derive(Debug)]
struct Dir {
    root: usize,
    id: Id,
    files: HashMap<OsString, Content>,
    dirs: BTreeSet<OsString>,
    /// False if the program could not read the entries of the directory.
    is_read: bool,
}

/// The watched files and directories.
pub(super) struct Tree {
    roots: Vec<Root>,
    filter: Filter,
    new_watcher: NewWatcher,
    /// The watcher of the directories. Each directory has its own watch, without its subdirectories.
    watcher: Box<dyn Watcher + Send>,
    dirs: HashMap<PathBuf, Dir>,
    /// The path of each directory. Two paths of the same directory would share a watch, so each directory is watched
    /// at one path only.
    ids: HashMap<Id, PathBuf>,
    secret: RandomState,
    /// The time after which a changed file is reported during the first scan. `None` after the first scan.
    since: Option<SystemTime>,
    /// True if all watches must be added again.
    adds_watches_again: bool,
    warned: HashSet<Vec<u8>>,
    warnings: Vec<String>,
    changes: Vec<Change>,
}

/// The directories that a scan has not read yet.
type Stack = Vec<PathBuf>;

impl Root {
    /// Finds the directory that the user named.
    pub(super) fn find(given: PathBuf) -> io::Result<Self> {
        let path = fs::canonicalize(&given)?;
        if !fs::metadata(&path)?.is_dir() {
            return Err(ErrorKind::NotADirectory.into());
        }
        Ok(Self { given, path, is_missing: false })
    }
}

impl Tree {
    pub(super) fn new(
        roots: Vec<Root>,
        filter: Filter,
        new_watcher: NewWatcher,
        secret: RandomState,
    ) -> Result<Self, NotWatched> {
        Ok(Self {
            roots,
            filter,
            watcher: new_watcher()?,
            new_watcher,
            dirs: HashMap::new(),
            ids: HashMap::new(),
            secret,
            since: None,
            adds_watches_again: false,
            warned: HashSet::new(),
            warnings: Vec::new(),
            changes: Vec::new(),
        })
    }

    // --- The interface -----------------------------------------------------------------------------

    /// Reads all files, and watches their directories. Returns the files that have changed after `since`.
    pub(super) fn first_scan(&mut self, since: SystemTime) -> Result<Vec<Change>, Full> {
        self.since = Some(since);
        let changes = self.scan();
        self.since = None;
        changes
    }

    /// Reads all files again. Returns the files that have changed.
    pub(super) fn scan(&mut self) -> Result<Vec<Change>, Full> {
        self.filter.reload_rules();
        for root in 0..self.roots.len() {
            let path = self.roots[root].path.clone();
            self.enter_dir(path, root)?;
        }
        Ok(self.take_changes())
    }

    /// Examines the paths of these events. Returns the files that have changed.
    pub(super) fn handle_events(&mut self, mut events: Events) -> Result<Vec<Change>, Full> {
        for path in std::mem::take(&mut events.skipped) {
            let forgotten = self.forget_file(&path);
            events.paths.extend(forgotten.map(|path| (path, true)));
        }
        if events.overflow {
            // The dropped events may have named directories that were replaced, or whose watches are gone. A new
            // watcher is therefore created.
            match (self.new_watcher)().map_err(NotWatched::from) {
                // The drop of the old watcher removes its watches.
                Ok(watcher) => self.watcher = watcher,
                Err(NotWatched::Full) => return Err(Full(0)),
                Err(NotWatched::Failed(error)) => self.warnings.push(error.to_string()),
            }
            self.adds_watches_again = true;
            let changes = self.scan();
            self.adds_watches_again = false;
            return changes;
        }
        if events.paths.keys().any(|path| path.file_name().is_some_and(has_rules)) {
            self.filter.reload_rules();
        }
        let mut entered: Option<PathBuf> = None;
        for (path, is_replaced) in events.paths {
            // The event belongs to a directory that was just read, so the read has already seen its effect.
            if entered.as_ref().is_some_and(|entered| path.starts_with(entered)) {
                continue;
            }
            if let Some(root) = self.roots.iter().position(|root| root.path == path) {
                if is_replaced || !fs::metadata(&path).is_ok_and(|meta| meta.is_dir()) {
                    self.enter_dir(path.clone(), root)?;
                }
                continue;
            }
            let Some((dir, name)) = path.parent().zip(path.file_name()) else { continue };
            let Some(root) = self.dirs.get(dir).map(|dir| dir.root) else { continue };
            if has_rules(name) && (is_replaced || name != ".git") {
                self.enter_dir(dir.to_owned(), root)?;
                entered = Some(dir.to_owned());
                continue;
            }
            if is_replaced && self.dirs.contains_key(&path) {
                // If a directory was renamed twice, its watch may be lost.
                self.adds_watches_again = true;
            }
            let mut stack = Stack::new();
            self.look_at(dir, name, root, is_replaced, &mut stack);
            let is_dir = !stack.is_empty();
            let scanned = self.work_off(stack, root);
            self.adds_watches_again = false;
            scanned?;
            if is_dir {
                entered = Some(path);
            }
        }
        Ok(self.take_changes())
    }

    /// Forgets the content of a file that did not exist when its run was about to start. If the file appears again, it
    /// is treated as new. Returns the path of the file as it is in events.
    pub(super) fn forget_file(&mut self, shown: &Path) -> Option<PathBuf> {
        let inside = |root: &Root| Some(root.path.join(shown.strip_prefix(&root.given).ok()?));
        let paths: Vec<_> = self.roots.iter().filter_map(inside).collect();
        paths.into_iter().find(|path| {
            let parent = path.parent().zip(path.file_name());
            parent.is_some_and(|(dir, name)| self.remove_file(dir, name))
        })
    }

    /// Searches for roots that were missing. Returns the files in the roots that exist again.
    pub(super) fn find_missing(&mut self) -> Result<Vec<Change>, Full> {
        for root in 0..self.roots.len() {
            let Root { path, is_missing, .. } = self.roots[root].clone();
            if is_missing && path.is_dir() {
                self.filter.reload_rules();
                self.enter_dir(path, root)?;
            }
        }
        Ok(self.take_changes())
    }

    /// Returns true if at least one root does not exist at this time.
    pub(super) fn has_missing(&self) -> bool {
        self.roots.iter().any(|root| root.is_missing)
    }

    /// Returns the messages for the user since the last call.
    pub(super) fn take_warnings(&mut self) -> Vec<String> {
        for rule in self.filter.take_bad_rules() {
            self.warn_once(rule.clone().into_bytes(), || rule);
        }
        std::mem::take(&mut self.warnings)
    }

    /// Returns all files in sorted order.
    pub(super) fn files(&self) -> Vec<PathBuf> {
        let mut files = Vec::new();
        #[expect(clippy::iter_over_hash_type, reason = "the result is sorted")]
        for (path, dir) in &self.dirs {
            files.extend(dir.files.keys().map(|name| self.shown_path(dir.root, &path.join(name))));
        }
        files.sort_unstable();
        files
    }

    /// Returns the number of files, and the number of watched directories.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.dirs.values().map(|dir| dir.files.len()).sum(), self.dirs.len())
    }

    // --- Directories -----------------------------------------------------------------------------

    /// Reads a directory and all its subdirectories, and watches them.
    fn enter_dir(&mut self, dir: PathBuf, root: usize) -> Result<(), Full> {
        self.work_off(vec![dir], root)
    }

    fn work_off(&mut self, mut stack: Stack, root: usize) -> Result<(), Full> {
        while let Some(dir) = stack.pop() {
            self.read_dir(&dir, root, &mut stack)?;
        }
        Ok(())
    }

    /// Watches a directory, and compares its entries with their last seen state. Pushes the subdirectories onto the
    /// stack.
    fn read_dir(&mut self, dir: &Path, root: usize, stack: &mut Stack) -> Result<(), Full> {
        let is_new = !self.dirs.contains_key(dir);
        let listed = match self.open_dir(dir, root).and_then(|opened| opened.meta()) {
            Ok(meta) => match self.claim_dir(dir, root, meta.stamp.id)? {
                // The directory is listed after its watch was added. A file that appears after the list then causes an
                // event.
                true => self.list_dir(dir, root, meta.stamp.id),
                false => return Ok(()),
            },
            Err(error) => Err(error),
        };
        let (opened, names) = match listed {
            Ok(listed) => listed,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                self.forget_dir(dir, true);
                return Ok(());
            }
            Err(error) => {
                self.warn_of(dir, &error);
                return Ok(());
            }
        };
        if let Some(dir) = self.dirs.get_mut(dir) {
            dir.is_read = true;
        }
        if is_new && self.since.is_none() && names.iter().any(|name| has_rules(name)) {
            // The filter may still contain the rules of an earlier directory at this path.
            self.filter.reload_rules();
        }
        #[expect(clippy::iter_over_hash_type, reason = "the changes are sorted")]
        for name in &names {
            match opened.meta_of(name) {
                Some(meta) => self.place_entry(&opened, name, &meta, root, Trust::Metadata, stack),
                None => self.remove_entry(dir, name, root),
            }
        }
        let Some(known) = self.dirs.get(dir) else { return Ok(()) };
        let all = known.files.keys().chain(&known.dirs);
        let gone: Vec<_> = all.filter(|name| !names.contains(*name)).cloned().collect();
        gone.iter().for_each(|name| self.remove_entry(dir, name, root));
        Ok(())
    }

    /// Opens a directory. Without `-L`, only a root may be a link.
    fn open_dir(&self, dir: &Path, root: usize) -> io::Result<Directory> {
        let is_root = self.roots.iter().any(|root| root.path == dir);
        let root = if is_root { dir } else { &self.roots[root].path };
        self.filter.links.open_dir(root, dir.strip_prefix(root).unwrap_or(Path::new("")))
    }

    /// Opens a directory again after its watch was added, and returns the names of its entries. If another directory
    /// is now at the path, returns the same error as for a missing directory.
    fn list_dir(
        &self,
        dir: &Path,
        root: usize,
        id: Id,
    ) -> io::Result<(Directory, HashSet<OsString>)> {
        let opened = self.open_dir(dir, root)?;
        if opened.meta()?.stamp.id != id {
            return Err(ErrorKind::NotFound.into());
        }
        let names = opened.entry_names()?;
        Ok((opened, names))
    }

    /// Watches a directory. Returns false if it cannot be watched, or if it is already watched at another path.
    fn claim_dir(&mut self, dir: &Path, root: usize, id: Id) -> Result<bool, Full> {
        // One root may contain another one. A directory belongs to the first root that has watched it.
        if self.dirs.get(dir).is_some_and(|dir| dir.root != root) {
            return Ok(false);
        }
        if let Some(other) = self.ids.get(&id).filter(|other| *other != dir).cloned() {
            let root = self.dirs.get(&other).map_or(root, |other| other.root);
            let meta = self.open_dir(&other, root).and_then(|other| other.meta());
            if meta.is_ok_and(|meta| meta.stamp.id == id) {
                return Ok(false);
            }
            // The directory was renamed. Its old watch is removed before the new one is added, because the system
            // would return the same watch for both paths.
            self.forget_dir(&other, true);
        }
        let known = self.dirs.get(dir).map(|dir| dir.id);
        if let Some(before) = known.filter(|before| *before != id) {
            self.ids.remove(&before);
            self.end_watch(dir);
        }
        if known != Some(id) || self.adds_watches_again {
            let watched = self.watcher.watch(dir, RecursiveMode::NonRecursive);
            match watched.map_err(NotWatched::from) {
                Ok(()) => {}
                Err(NotWatched::Full) => return Err(Full(self.dirs.len())),
                Err(NotWatched::Failed(error)) => {
                    if error.kind() == ErrorKind::NotFound {
                        self.forget_dir(dir, true);
                    } else {
                        self.warn_of(dir, &error);
                    }
                    return Ok(false);
                }
            }
        }
        self.ids.insert(id, dir.to_owned());
        match self.dirs.get_mut(dir) {
            Some(dir) => dir.id = id,
            None => {
                let (files, dirs) = (HashMap::new(), BTreeSet::new());
                self.dirs.insert(dir.to_owned(), Dir { root, id, files, dirs, is_read: false });
            }
        }
        self.roots.iter_mut().filter(|root| root.path == dir).for_each(|it| it.is_missing = false);
        let parent = dir.parent().zip(dir.file_name());
        if let Some((parent, name)) = parent
            && let Some(parent) = self.dirs.get_mut(parent).filter(|parent| parent.root == root)
        {
            parent.dirs.insert(name.to_owned());
        }
        Ok(true)
    }

    fn end_watch(&mut self, dir: &Path) {
        // The system itself removes the watch of a directory that was removed, and then `unwatch` fails.
        let _ = self.watcher.unwatch(dir);
    }

    /// Forgets a directory if it belongs to this root.
    fn forget_in(&mut self, root: usize, dir: &Path, is_gone: bool) {
        if self.dirs.get(dir).is_some_and(|dir| dir.root == root) {
            self.forget_dir(dir, is_gone);
        }
    }

    /// Forgets a directory and all its subdirectories. If `is_gone` is true, reports their files as deleted.
    fn forget_dir(&mut self, dir: &Path, is_gone: bool) {
        if let Some(root) = self.roots.iter_mut().find(|root| root.path == dir && !root.is_missing)
        {
            root.is_missing = true;
            let given = escaped(root.given.as_os_str().as_bytes());
            self.warnings
                .push(format!("{given}: no longer exists; it is watched when it exists again"));
        }
        if let Some((parent, name)) = dir.parent().zip(dir.file_name())
            && let Some(parent) = self.dirs.get_mut(parent)
        {
            parent.dirs.remove(name);
        }
        let mut stack = vec![dir.to_owned()];
        while let Some(dir) = stack.pop() {
            self.warned.remove(dir.as_os_str().as_bytes());
            let Some(known) = self.dirs.remove(&dir) else { continue };
            self.filter.forgotten += 1;
            self.end_watch(&dir);
            self.ids.remove(&known.id);
            stack.extend(known.dirs.iter().map(|name| dir.join(name)));
            if is_gone {
                let mut files: Vec<_> = known.files.into_keys().collect();
                files.sort_unstable();
                for name in files {
                    self.push_change(known.root, &dir.join(name), Kind::Deleted);
                }
            }
        }
        // The filter also contains the rules of directories that were forgotten. It is seldom cleared, because all
        // rules must then be read again.
        if self.filter.forgotten > self.dirs.len() + 1000 {
            self.filter.reload_rules();
        }
    }

    // --- Entries of a directory ------------------------------------------------------------------

    /// Examines the path of an event.
    fn look_at(
        &mut self,
        dir: &Path,
        name: &OsStr,
        root: usize,
        is_replaced: bool,
        stack: &mut Stack,
    ) {
        let path = dir.join(name);
        let opened = self.open_dir(dir, root).ok();
        let found = opened.and_then(|dir| dir.meta_of(name).map(|meta| (dir, meta)));
        let Some((opened, meta)) = found else { return self.remove_entry(dir, name, root) };
        if meta.is_dir()
            && !is_replaced
            && let Some(known) = self.dirs.get(&path)
            && known.id == meta.stamp.id
            && known.is_read
        {
            // The entries of the directory have separate events.
            return;
        }
        self.place_entry(&opened, name, &meta, root, Trust::Nothing, stack);
    }

    /// Removes an entry that no longer exists.
    fn remove_entry(&mut self, dir: &Path, name: &OsStr, root: usize) {
        let path = dir.join(name);
        self.forget_in(root, &path, true);
        if self.remove_file(dir, name) {
            self.push_change(root, &path, Kind::Deleted);
        }
    }

    /// Compares an entry with its last seen state. Pushes a directory onto the stack.
    fn place_entry(
        &mut self,
        opened: &Directory,
        name: &OsStr,
        meta: &Meta,
        root: usize,
        trust: Trust,
        stack: &mut Stack,
    ) {
        let dir = &opened.path;
        let path = dir.join(name);
        let inside = path.strip_prefix(&self.roots[root].path).unwrap_or(&path);
        if meta.is_dir() {
            if self.remove_file(dir, name) {
                self.push_change(root, &path, Kind::Deleted);
            }
            if self.filter.wants_dir(root, inside) {
                stack.push(path);
            } else {
                self.forget_in(root, &path, false);
            }
            return;
        }
        let is_wanted = meta.is_file() && self.filter.wants_file(root, inside, meta);
        self.forget_in(root, &path, true);
        if is_wanted {
            self.compare_file(opened, name, meta, root, trust);
        } else {
            // The file still exists but is no longer watched, so it is not reported as deleted.
            self.remove_file(dir, name);
        }
    }

    fn compare_file(
        &mut self,
        opened: &Directory,
        name: &OsStr,
        meta: &Meta,
        root: usize,
        trust: Trust,
    ) {
        let dir = &opened.path;
        let path = dir.join(name);
        let before = self.dirs.get(dir).and_then(|dir| dir.files.get(name));
        if trust == Trust::Metadata && before.is_some_and(|before| before.is_certainly(meta)) {
            return;
        }
        let Some(now) = Content::read_file(opened, name, meta, &self.secret, SystemTime::now())
        else {
            // The entry no longer exists. An event will report its deletion.
            return;
        };
        let has_changed = match before {
            Some(before) => now.differs_from(before),
            None => self.since.is_none_or(|since| changed_at(meta) >= since),
        };
        let Some(dir) = self.dirs.get_mut(dir) else { return };
        let before = dir.files.insert(name.to_owned(), now);
        if has_changed {
            self.push_change(root, &path, Kind::Changed { before });
        }
    }

    /// Forgets a file. Returns true if the file was known.
    fn remove_file(&mut self, dir: &Path, name: &OsStr) -> bool {
        self.dirs.get_mut(dir).is_some_and(|dir| dir.files.remove(name).is_some())
    }

    // --- Results ---------------------------------------------------------------------------------

    fn push_change(&mut self, root: usize, path: &Path, kind: Kind) {
        let path = self.shown_path(root, path);
        self.changes.push(Change { path, kind });
    }

    fn take_changes(&mut self) -> Vec<Change> {
        let mut changes = std::mem::take(&mut self.changes);
        // The sort is stable, so two changes of one file stay in their order.
        changes.sort_by(|one, other| one.path.cmp(&other.path));
        changes
    }

    /// Returns a path with the root that the user gave.
    fn shown_path(&self, root: usize, path: &Path) -> PathBuf {
        let root = &self.roots[root];
        root.given.join(path.strip_prefix(&root.path).unwrap_or(path))
    }

    fn warn_of(&mut self, dir: &Path, error: &io::Error) {
        let why = || {
            format!("{}: {error}; changes in it are not seen", escaped(dir.as_os_str().as_bytes()))
        };
        self.warn_once(dir.as_os_str().as_bytes().to_vec(), why);
    }

    /// Warns the user once about each subject.
    fn warn_once(&mut self, subject: Vec<u8>, why: impl FnOnce() -> String) {
        if self.warned.insert(subject) {
            self.warnings.push(why());
        }
    }
}

/// The properties that must be equal, so that a file is treated as unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Trust {
    /// Equal metadata, because no event has named the file.
    Metadata,
    /// Only equal content.
    Nothing,
}

#[cfg(test)]
mod tests;
