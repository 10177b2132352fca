//! The settings of a comparison.

use requeue_core::{Add, CustomOrder, When};

use crate::Key;
use crate::model::{AddRequest, Rules, Stack, Team};

/// The way in which the queue is driven.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Every operation receives its `now`.
    Plain,
    /// Adds and gets receive no `now` if the queue reports that the time makes no difference. Both sides make due keys
    /// ready before they are compared.
    Thrifty,
    /// A shutdown drops one key per step.
    Lazy,
}

/// The settings of a run.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The rules of the queue.
    pub rules: Rules,
    /// The number of keys.
    pub keys: u32,
    /// The number of teams that the keys belong to.
    pub teams: u32,
    /// True if the queue has groups even without turns and a limit, so that its teams can be paused.
    pub groups: bool,
    /// The number of distinct hashes. By default, each key has a separate team.
    pub hashes: Option<u64>,
    /// True if the queue tracks times.
    pub track: bool,
    /// The way in which the queue is driven.
    pub mode: Mode,
}

impl Setup {
    /// Creates the settings for `rules`: eight keys in one team, without tracked times.
    #[must_use]
    pub const fn new(rules: Rules) -> Self {
        Self {
            rules,
            keys: 8,
            teams: 1,
            groups: false,
            hashes: None,
            track: false,
            mode: Mode::Plain,
        }
    }

    /// Returns true if the queue records events. Keys with equal hashes are not recorded, because their events cannot
    /// be distinguished.
    pub(super) const fn records(&self) -> bool {
        self.track && self.hashes.is_none()
    }

    /// Returns the memory of the recording, in bytes. Half of the recordings lose events, but no recording loses an
    /// event of its last operation.
    pub(super) fn recording(&self) -> usize {
        let of_one_operation = 256 * self.keys as usize;
        match self.records() {
            false => 0,
            true if self.teams.is_multiple_of(2) => of_one_operation.max(1 << 12),
            true => of_one_operation.max(1 << 20),
        }
    }

    pub(super) fn hash(&self, key: u32) -> u64 {
        let key = u64::from(key);
        self.hashes.map_or(key.wrapping_mul(0x9E37_79B9_7F4A_7C15), |hashes| key % hashes)
    }

    /// Returns the team of a key. For the number of a team, returns the team with that number.
    pub(super) fn team(&self, key: u32) -> Team {
        let id = key % self.teams;
        Team { id: u64::from(id), weight: id % 3 + 1 }
    }
}

/// An order that keeps the keys that its stack loses, so that they are not dropped inside the
/// queue.
pub(super) struct TestOrder(Stack<Key>, Vec<Key>);

impl TestOrder {
    pub(super) const fn new(stack: Stack<Key>) -> Self {
        Self(stack, Vec::new())
    }
}

impl CustomOrder<Key> for TestOrder {
    fn push(&mut self, key: Key) {
        self.1.extend(self.0.push(key));
    }

    fn touch(&mut self, key: &Key) {
        self.0.touch(key);
    }

    fn pop(&mut self) -> Option<Key> {
        self.0.pop()
    }

    fn len(&self) -> usize {
        self.0.len()
    }
}

impl AddRequest {
    pub(crate) fn to_add(self) -> Add {
        let add = match self.when {
            When::Now => Add::now(),
            When::After(delay) => match self.debounce {
                Some(at_most) => Add::debounce(delay).at_most(at_most),
                None => Add::after(delay),
            },
            When::At(at) => Add::at(at),
            other => unreachable!("no model of {other:?}"),
        };
        let add = add.merge(self.merge).priority(self.priority).flags(self.flags);
        let add = if self.failed { add.failed() } else { add };
        self.why.map_or(add, |why| add.reason(why.to_reason()))
    }
}
