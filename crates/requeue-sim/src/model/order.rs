//! The orders, as lists that are scanned in full for each delivery.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The rule that chooses the next ready key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ranking {
    /// The key that has been ready longest.
    Fifo,
    /// The highest priority, with aging.
    Priority {
        /// At least one of this number of consecutive deliveries takes the key that has been ready longest.
        oldest_every: u32,
    },
    /// A custom order: the key that was pushed or touched last. This order loses every `lossy`-th key that it receives,
    /// unless `lossy` is 0.
    Stack {
        /// One of this number of keys is lost.
        lossy: u32,
    },
}

/// A group of keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash, Default)]
pub struct Team {
    /// The number of the team.
    pub id: u64,
    /// The number of keys of the team that one turn delivers.
    pub weight: u32,
}

/// A ready key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
struct Candidate<K> {
    key: K,
    team: Team,
    /// The priority of the key, or 0 if the order ignores priorities.
    level: i32,
    /// The time at which the key entered its level, by the order's counter.
    placed: u64,
    /// True if the custom order returned the key while its team was at its limit.
    skipped: bool,
}

/// A team in the turns of its level.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
struct Turn {
    level: i32,
    team: u64,
    left: u32,
}

/// The ready keys.
#[derive(Clone, Debug)]
pub struct ReadyKeys<K> {
    ranking: Ranking,
    fair: bool,
    limit: u32,
    /// The keys, in the order in which they became ready.
    keys: VecDeque<Candidate<K>>,
    /// The teams of every level, in the order of their turns.
    turns: Vec<Turn>,
    in_work: BTreeMap<u64, u32>,
    paused: BTreeSet<u64>,
    /// The number of consecutive deliveries that did not take the key that had been ready longest.
    passed_over: u32,
    placed: u64,
    stack: Stack<K>,
    /// True if the custom order receives keys. The value is false while keys cannot be copied.
    gives_copies: bool,
}

/// The custom order of the tests: last in, first out. A key that is touched moves to the top.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Stack<K> {
    keys: Vec<K>,
    lossy: u32,
    pushes: u32,
}

impl<K: PartialEq> Stack<K> {
    /// Creates an empty stack that loses every `lossy`-th key, unless `lossy` is 0.
    #[must_use]
    pub const fn new(lossy: u32) -> Self {
        Self { keys: Vec::new(), lossy, pushes: 0 }
    }

    /// Puts `key` on top. If the stack loses `key`, returns it instead.
    pub fn push(&mut self, key: K) -> Option<K> {
        if self.lossy > 0 {
            self.pushes = (self.pushes + 1) % self.lossy;
            if self.pushes == 0 {
                return Some(key);
            }
        }
        self.keys.push(key);
        None
    }

    /// Moves the uppermost copy of `key` to the top.
    pub fn touch(&mut self, key: &K) {
        if let Some(at) = self.keys.iter().rposition(|other| other == key) {
            let key = self.keys.remove(at);
            self.keys.push(key);
        }
    }

    /// Removes and returns the topmost key.
    pub fn pop(&mut self) -> Option<K> {
        self.keys.pop()
    }

    /// Returns the number of keys.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns true if there is no key.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

impl<K: Clone + Ord> ReadyKeys<K> {
    /// Creates an empty order.
    #[must_use]
    pub fn new(ranking: Ranking, fair: bool, limit: Option<u32>) -> Self {
        let lossy = if let Ranking::Stack { lossy } = ranking { lossy } else { 0 };
        Self {
            ranking,
            fair,
            limit: limit.unwrap_or(u32::MAX).max(1),
            keys: VecDeque::new(),
            turns: Vec::new(),
            in_work: BTreeMap::new(),
            paused: BTreeSet::new(),
            passed_over: 0,
            placed: 0,
            stack: Stack::new(lossy),
            gives_copies: true,
        }
    }

    /// Returns the number of ready keys.
    #[must_use]
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// Returns true if no key is ready.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Returns the number of keys that may be delivered.
    #[must_use]
    pub fn eligible(&self) -> usize {
        if self.limit == u32::MAX && self.paused.is_empty() {
            return self.len();
        }
        self.keys.iter().filter(|candidate| self.has_room(candidate.team.id)).count()
    }

    /// Returns true if keys of the team may be delivered.
    #[must_use]
    pub fn has_room(&self, team: u64) -> bool {
        self.in_work(team) < self.limit && !self.is_paused(team)
    }

    /// Returns the number of keys of the team in flight.
    #[must_use]
    pub fn in_work(&self, team: u64) -> u32 {
        self.in_work.get(&team).copied().unwrap_or(0)
    }

    /// Returns true if the team is paused.
    #[must_use]
    pub fn is_paused(&self, team: u64) -> bool {
        self.paused.contains(&team)
    }

    /// Returns true if a team is paused.
    #[must_use]
    pub fn pauses_any(&self) -> bool {
        !self.paused.is_empty()
    }

    /// Pauses or resumes a team. At the end of a pause, a custom order gets the keys again that it returned during the
    /// pause.
    pub fn pause(&mut self, team: u64, paused: bool) {
        if paused {
            self.paused.insert(team);
        } else {
            self.paused.remove(&team);
            if self.has_room(team) {
                for c in self.keys.iter_mut().filter(|c| c.skipped && c.team.id == team) {
                    c.skipped = false;
                    let _ = self.stack.push(c.key.clone());
                }
            }
        }
        self.see_to_turns();
    }

    /// Sets whether a custom order receives the keys that become ready from now on.
    pub(super) const fn gives_copies(&mut self, gives: bool) {
        self.gives_copies = gives;
    }

    /// Adds a key that has become ready.
    pub fn push(&mut self, key: &K, priority: i32, team: Team) {
        self.placed += 1;
        let key = key.clone();
        if matches!(self.ranking, Ranking::Stack { .. }) && self.gives_copies {
            let _ = self.stack.push(key.clone());
        }
        let (level, placed) = (self.level(priority), self.placed);
        self.keys.push_back(Candidate { key, team, level, placed, skipped: false });
        self.see_to_turns();
    }

    /// Updates the order after a ready key was added again without a delay.
    pub fn touch(&mut self, key: &K) {
        self.stack.touch(key);
    }

    /// Raises the priority of a ready key to `priority`, if `priority` is higher.
    pub fn lift(&mut self, key: &K, priority: i32) {
        let level = self.level(priority);
        let Some(candidate) = self.keys.iter_mut().find(|c| c.key == *key) else { return };
        if level > candidate.level {
            self.placed += 1;
            (candidate.level, candidate.placed) = (level, self.placed);
            self.see_to_turns();
        }
    }

    /// Removes a key that is no longer ready. A custom order is not notified.
    pub fn remove(&mut self, key: &K) {
        self.keys.retain(|candidate| candidate.key != *key);
        self.see_to_turns();
    }

    /// Returns the key that has been ready longest, among the keys that may be delivered.
    #[must_use]
    pub fn oldest(&self) -> Option<K> {
        self.by_age().next().cloned()
    }

    /// Returns the keys that may be delivered, starting with the key that has been ready longest.
    pub fn by_age(&self) -> impl Iterator<Item = &K> {
        self.eligible_keys().map(|candidate| &candidate.key)
    }

    /// Returns the keys whose teams have reached their limit and are not paused, starting with the key that has been
    /// ready longest.
    pub fn held_by_age(&self) -> impl Iterator<Item = &K> {
        let is_held = |id| self.in_work(id) >= self.limit && !self.is_paused(id);
        self.keys.iter().filter(move |of| is_held(of.team.id)).map(|candidate| &candidate.key)
    }

    /// Removes and returns the key to deliver next.
    pub fn pop(&mut self) -> Option<K> {
        let oldest = self.oldest()?;
        let mut in_turn = None;
        let key = match self.ranking {
            Ranking::Fifo if !self.fair => oldest.clone(),
            Ranking::Priority { oldest_every }
                if self.passed_over.saturating_add(1) >= oldest_every =>
            {
                oldest.clone()
            }
            Ranking::Fifo | Ranking::Priority { .. } => {
                let level = self.eligible_keys().map(|c| c.level).max()?;
                let team = if self.fair {
                    in_turn = self.turns.iter().position(|turn| turn.level == level);
                    Some(self.turns[in_turn?].team)
                } else {
                    None
                };
                self.eligible_keys()
                    .filter(|c| c.level == level && team.is_none_or(|id| id == c.team.id))
                    .min_by_key(|c| c.placed)?
                    .key
                    .clone()
            }
            Ranking::Stack { .. } => self.pop_stack().unwrap_or_else(|| oldest.clone()),
        };
        self.passed_over = if key == oldest { 0 } else { self.passed_over.saturating_add(1) };
        let at = self.keys.iter().position(|c| c.key == key)?;
        let team = self.keys.remove(at)?.team;
        if let Some(at) = in_turn {
            let mut turn = self.turns.remove(at);
            turn.left -= 1;
            if turn.left == 0 {
                turn.left = team.weight;
                self.turns.push(turn);
            } else {
                self.turns.insert(at, turn);
            }
        }
        *self.in_work.entry(team.id).or_default() += 1;
        self.see_to_turns();
        Some(key)
    }

    /// Removes `key` for its delivery, regardless of the order. Returns true if the key was ready.
    pub fn pop_this(&mut self, key: &K) -> bool {
        let Some(at) = self.keys.iter().position(|candidate| candidate.key == *key) else {
            return false;
        };
        if let Some(candidate) = self.keys.remove(at) {
            *self.in_work.entry(candidate.team.id).or_default() += 1;
        }
        self.see_to_turns();
        true
    }

    /// Counts the completion of a key of `team`.
    pub fn finish(&mut self, team: Team) {
        let n = self.in_work.entry(team.id).or_default();
        *n -= 1;
        if *n == 0 {
            self.in_work.remove(&team.id);
        }
        // The team may have one more key in flight. A key that the custom order returned while the team was at its
        // limit is now pushed to the order again.
        let gives = self.gives_copies && !self.is_paused(team.id);
        let shown = |c: &&mut Candidate<K>| c.skipped && c.team.id == team.id;
        if let Some(c) = self.keys.iter_mut().find(shown).filter(|_| gives) {
            c.skipped = false;
            let _ = self.stack.push(c.key.clone());
        }
        self.see_to_turns();
    }

    /// Returns the next key of the custom order that is ready and may be delivered.
    pub(super) fn pop_stack(&mut self) -> Option<K> {
        loop {
            let key = self.stack.pop()?;
            let Some(at) = self.keys.iter().position(|c| c.key == key) else { continue };
            if self.has_room(self.keys[at].team.id) {
                return Some(key);
            }
            self.keys[at].skipped = true;
        }
    }

    fn eligible_keys(&self) -> impl Iterator<Item = &Candidate<K>> {
        self.keys.iter().filter(|candidate| self.has_room(candidate.team.id))
    }

    fn level(&self, priority: i32) -> i32 {
        match self.ranking {
            Ranking::Priority { .. } => priority,
            Ranking::Fifo | Ranking::Stack { .. } => 0,
        }
    }

    /// Updates the turns of all levels. A team with an eligible key takes part in the turns of the
    /// key's level. A new team goes to the end. Teams without eligible keys leave the turns, and
    /// lose their credit.
    fn see_to_turns(&mut self) {
        if !self.fair {
            return;
        }
        let mut active: Vec<(i32, Team)> = Vec::new();
        for candidate in self.eligible_keys() {
            let entry = (candidate.level, candidate.team);
            if !active.contains(&entry) {
                active.push(entry);
            }
        }
        let is =
            |turn: &Turn, (level, team): (i32, Team)| turn.level == level && turn.team == team.id;
        self.turns.retain(|turn| active.iter().any(|&entry| is(turn, entry)));
        for (level, team) in active {
            if !self.turns.iter().any(|turn| is(turn, (level, team))) {
                self.turns.push(Turn { level, team: team.id, left: team.weight });
            }
        }
    }

    /// Returns all values that determine the future behaviour, to distinguish states. Counts are
    /// replaced by ranks.
    pub(crate) fn essence(&self) -> impl Ord + use<K> {
        let mut placed: Vec<u64> = self.keys.iter().map(|c| c.placed).collect();
        placed.sort_unstable();
        let rank = |c: &Candidate<K>| placed.iter().filter(|&&at| at < c.placed).count() as u64;
        let mut keys: Vec<_> = self.keys.iter().cloned().collect();
        for candidate in &mut keys {
            candidate.placed = rank(candidate);
        }
        let passed_over = match self.ranking {
            Ranking::Priority { oldest_every } => self.passed_over.min(oldest_every),
            Ranking::Fifo | Ranking::Stack { .. } => 0,
        };
        (keys, self.turns.clone(), passed_over, self.stack.clone(), self.paused.clone())
    }
}
