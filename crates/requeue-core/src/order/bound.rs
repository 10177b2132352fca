//! The bound on waiting: of so many hand-outs in a row one goes to the oldest key.

pub(super) struct Bound {
    /// Of how many hand-outs at least one is the oldest eligible key; at least 1.
    every: u32,
    /// Hand-outs since the oldest eligible key was served.
    since: u32,
}

impl Bound {
    pub(super) const fn new(every: u32) -> Self {
        Self { every, since: 0 }
    }

    /// Whether the next hand-out has to be the oldest key.
    pub(super) const fn is_reached(&self) -> bool {
        self.since.saturating_add(1) >= self.every
    }

    /// A key is handed out.
    pub(super) const fn count(&mut self, is_oldest: bool) {
        self.since = if is_oldest { 0 } else { self.since.saturating_add(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_of_any_size_is_reached_with_its_last_hand_out() {
        for every in [1, 2, 255, 256, 257, 70_000] {
            let mut bound = Bound::new(every);
            for others in 1..every {
                assert!(!bound.is_reached(), "{others} of {every}");
                bound.count(false);
            }
            assert!(bound.is_reached(), "{every}");
            bound.count(true);
            assert_eq!(bound.is_reached(), every == 1);
        }
    }
}
