//! Aging: at least one of a given number of consecutive deliveries takes the oldest key.

pub(super) struct Aging {
    /// At least one of this number of consecutive deliveries takes the oldest eligible key. It is
    /// at least 1.
    every: u32,
    /// The number of consecutive deliveries, up to now, that did not take the oldest eligible key.
    since: u32,
}

impl Aging {
    pub(super) const fn new(every: u32) -> Self {
        Self { every, since: 0 }
    }

    /// Returns true if the next delivery must take the oldest eligible key.
    pub(super) const fn is_due(&self) -> bool {
        self.since.saturating_add(1) >= self.every
    }

    /// Counts a delivery. `is_oldest` is true if it took the oldest eligible key.
    pub(super) const fn count_delivery(&mut self, is_oldest: bool) {
        // `since` saturates, because `every` can be `u32::MAX`.
        self.since = if is_oldest { 0 } else { self.since.saturating_add(1) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_any_number_of_deliveries_the_last_one_is_due() {
        for every in [1, 2, 255, 256, 257, 70_000] {
            let mut aging = Aging::new(every);
            for others in 1..every {
                assert!(!aging.is_due(), "{others} of {every}");
                aging.count_delivery(false);
            }
            assert!(aging.is_due(), "{every}");
            aging.count_delivery(true);
            assert_eq!(aging.is_due(), every == 1);
        }
    }
}
