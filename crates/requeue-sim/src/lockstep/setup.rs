//! What is compared, and how.

use requeue_core::{Add, CustomOrder, When};

use crate::Key;
use crate::model::{Ask, Rules, Stack, Team};

/// How closely the queue is kept up with the model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Every operation gets its `now`.
    Plain,
    /// An add and a get of which the queue says that `now` makes no difference get none. Both
    /// sides catch up before they are compared.
    Thrifty,
    /// What a shutdown drops is dropped one key a step.
    Lazy,
}

/// How a run is set up.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The rules.
    pub rules: Rules,
    /// How many keys there are.
    pub keys: u32,
    /// How many teams they belong to.
    pub teams: u32,
    /// How many hashes there are, if not as many as keys.
    pub hashes: Option<u64>,
    /// Whether the queue keeps times.
    pub track: bool,
    /// How closely the sides are kept together.
    pub mode: Mode,
}

impl Setup {
    /// With these rules, and nothing special.
    #[must_use]
    pub const fn new(rules: Rules) -> Self {
        Self { rules, keys: 8, teams: 1, hashes: None, track: false, mode: Mode::Plain }
    }

    pub(super) fn hash(&self, key: u32) -> u64 {
        let key = u64::from(key);
        self.hashes.map_or(key.wrapping_mul(0x9E37_79B9_7F4A_7C15), |hashes| key % hashes)
    }

    pub(super) fn team(&self, key: u32) -> Team {
        let id = key % self.teams;
        Team { id: u64::from(id), weight: id % 3 + 1 }
    }
}

/// Keys that the stack has lost are dropped with it, not inside.
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

impl Ask {
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
        let add = add.merge(self.merge).priority(self.priority).reason(self.reasons);
        if self.failed { add.failed() } else { add }
    }
}
