//! The removal of all user data from a recording.

use alloc::borrow::ToOwned;
use alloc::collections::BTreeMap;

use super::super::event::{Subject, Transition};
use super::Recording;

/// The name that the subject gets in an anonymous recording.
const SUBJECT: &str = "KEY";

impl Recording {
    /// Returns the recording without the names of keys and the texts of reasons. Consecutive
    /// numbers replace the hashes of keys and the numbers of groups, in the order of their first
    /// events. `subject` is one key of the recording, and gets the name `KEY`.
    ///
    /// The result reveals nothing about the keys. Hashes must be replaced, because a reader who
    /// knows their seed could test if a guessed key is in the recording. Times, priorities, the
    /// weights of groups and the settings of the queue stay the same.
    ///
    /// # Examples
    ///
    /// ```
    /// use requeue_core::{Add, Config, GroupId, Queue, Time};
    ///
    /// let mut queue = Queue::new(Config { recording: 64 * 1024, ..Config::default() });
    /// let _ = queue.add("a", 0x5eed, Add::now(), GroupId::default(), Time::ZERO);
    /// let recording = queue.recording().unwrap();
    /// let subject = recording.events()[0].subject();
    /// let anonymous = recording.anonymized(Some(subject)).to_string();
    /// assert!(anonymous.contains("name 00000001 KEY\n0 00000001 added new"), "{anonymous}");
    /// ```
    #[must_use]
    pub fn anonymized(mut self, subject: Option<Subject>) -> Self {
        let (mut keys, mut groups) = (BTreeMap::new(), BTreeMap::new());
        let mut number_of = |group: u64| {
            let next = groups.len() as u64 + 1;
            *groups.entry(group).or_insert(next)
        };
        for event in &mut self.events {
            if let Subject::Key(key) = event.subject() {
                // The number fits, because a recording has fewer than 2^32 events.
                let next = keys.len() as u32 + 1;
                event.hash = *keys.entry(key).or_insert(next);
            }
            match &mut event.transition {
                Transition::Added { group: Some(group), .. } => group.id = number_of(group.id),
                Transition::GroupFilled(group)
                | Transition::GroupFreed(group)
                | Transition::GroupPaused(group)
                | Transition::GroupResumed(group) => *group = number_of(*group),
                _ => {}
            }
        }
        self.names.clear();
        self.reasons.clear();
        if let Some(Subject::Key(key)) = subject
            && let Some(&number) = keys.get(&key)
        {
            self.names.insert(number, SUBJECT.to_owned());
        }
        self
    }
}
