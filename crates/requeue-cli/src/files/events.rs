//! The file events that the system reports, and the watches that cause them.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use notify::event::{AccessKind, AccessMode, EventKind, ModifyKind};
use notify::{Error, ErrorKind, Event, Watcher};
use parking_lot::{Condvar, Mutex};

/// The events that have not been handled yet.
#[derive(PartialEq, Eq, Debug, Default)]
pub(super) struct Events {
    /// The paths with events. The value is true if another file or directory may now be at the path.
    pub(super) paths: BTreeMap<PathBuf, bool>,
    /// True if the system has dropped events.
    pub(super) overflow: bool,
    /// The files that did not exist when their runs were about to start. The paths are those that the user gave.
    pub(super) skipped: Vec<PathBuf>,
}

impl Events {
    pub(super) fn is_empty(&self) -> bool {
        self.paths.is_empty() && self.skipped.is_empty() && !self.overflow
    }

    /// Adds an event of the library `notify`.
    fn add_event(&mut self, event: Result<Event, Error>) {
        /// A larger number of paths would use more memory than a scan of the whole tree.
        const MOST: usize = 100_000;
        match event {
            Ok(event) if event.need_rescan() => self.overflow = true,
            Ok(event) if changes_nothing(event.kind) => {}
            Ok(Event { kind, paths, .. }) => {
                let is_replaced = !matches!(
                    kind,
                    EventKind::Access(_)
                        | EventKind::Modify(ModifyKind::Data(_) | ModifyKind::Metadata(_))
                );
                for path in paths {
                    *self.paths.entry(path).or_default() |= is_replaced;
                }
            }
            // After an overflow, the whole tree is scanned. The scan finds the changes that the error hides.
            Err(_) => self.overflow = true,
        }
        if self.paths.len() > MOST {
            self.paths.clear();
            self.overflow = true;
        }
    }
}

/// Returns true for an event that only a read has caused. Commands and this program read the files.
fn changes_nothing(kind: EventKind) -> bool {
    matches!(kind, EventKind::Access(kind) if kind != AccessKind::Close(AccessMode::Write))
}

/// Passes events from the thread of `notify` to the thread that handles them.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    events: Mutex<Events>,
    came: Condvar,
}

impl Inbox {
    fn push_event(&self, event: Result<Event, Error>) {
        let mut events = self.events.lock();
        events.add_event(event);
        // A read of a file also causes an event. Such an event must not wake the thread that handles events.
        if !events.is_empty() {
            self.came.notify_one();
        }
    }

    /// Reports a file that did not exist when its run was about to start.
    pub(super) fn report_skipped(&self, path: PathBuf) {
        self.events.lock().skipped.push(path);
        self.came.notify_one();
    }

    /// Waits until there is an event, but not longer than `at_most`.
    pub(super) fn wait_for_events(&self, at_most: Option<Duration>) {
        let (mut events, no_events) = (self.events.lock(), |events: &mut Events| events.is_empty());
        match at_most {
            Some(at_most) => _ = self.came.wait_while_for(&mut events, no_events, at_most),
            None => self.came.wait_while(&mut events, no_events),
        }
    }

    pub(super) fn take_events(&self) -> Events {
        std::mem::take(&mut *self.events.lock())
    }
}

/// The reason why a directory is not watched.
#[derive(Debug)]
pub(super) enum NotWatched {
    /// The system permits no more watches.
    Full,
    Failed(io::Error),
}

/// A function that creates a watcher without watches.
pub(super) type NewWatcher = Box<dyn Fn() -> Result<Box<dyn Watcher + Send>, Error> + Send>;

/// Returns a watcher of the system, for example one of inotify on Linux. Its events go to `inbox`.
pub(super) fn system_watcher(inbox: &Arc<Inbox>) -> Result<Box<dyn Watcher + Send>, Error> {
    let inbox = Arc::clone(inbox);
    Ok(Box::new(notify::recommended_watcher(move |event| inbox.push_event(event))?))
}

impl From<Error> for NotWatched {
    fn from(error: Error) -> Self {
        match error.kind {
            ErrorKind::MaxFilesWatch => Self::Full,
            ErrorKind::Io(error) => Self::Failed(error),
            // The directory was removed after the event that named it.
            ErrorKind::PathNotFound => Self::Failed(io::ErrorKind::NotFound.into()),
            _ => Self::Failed(io::Error::other(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use notify::event::{CreateKind, DataChange, Flag, MetadataKind, RenameMode};

    use super::*;

    fn of(events: impl IntoIterator<Item = Event>) -> Events {
        let inbox = Inbox::default();
        events.into_iter().for_each(|event| inbox.push_event(Ok(event)));
        inbox.take_events()
    }

    fn at(kind: EventKind, path: &str) -> Event {
        Event::new(kind).add_path(path.into())
    }

    #[test]
    fn events_of_a_path_are_one_and_reads_are_none() {
        let written = EventKind::Access(AccessKind::Close(AccessMode::Write));
        let opened = EventKind::Access(AccessKind::Open(AccessMode::Any));
        let read = EventKind::Access(AccessKind::Close(AccessMode::Read));
        let modified = EventKind::Modify(ModifyKind::Data(DataChange::Any));
        let touched = EventKind::Modify(ModifyKind::Metadata(MetadataKind::Any));
        let renamed = EventKind::Modify(ModifyKind::Name(RenameMode::To));
        assert!(of([at(opened, "a"), at(read, "a")]).is_empty());
        let events = of([
            at(modified, "a"),
            at(written, "a"),
            at(touched, "a"),
            at(renamed, "b"),
            at(modified, "b"),
            at(EventKind::Create(CreateKind::Folder), "c"),
        ]);
        let paths = [("a", false), ("b", true), ("c", true)];
        let paths = paths.map(|(path, is_replaced)| (PathBuf::from(path), is_replaced)).into();
        assert_eq!(events, Events { paths, ..Events::default() });
    }

    #[test]
    fn lost_events_are_an_overflow() {
        assert!(of([Event::new(EventKind::Other).set_flag(Flag::Rescan)]).overflow);
        let inbox = Inbox::default();
        inbox.push_event(Err(Error::generic("the queue cannot be read")));
        assert!(inbox.take_events().overflow);
        let many = (0..=100_000).map(|n| at(EventKind::Any, &n.to_string()));
        assert_eq!(of(many), Events { overflow: true, ..Events::default() });
    }
}
