//! The reasons of adds: why a key needs a run.

use alloc::string::ToString;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::mem;
use core::num::NonZero;

/// The maximum number of distinct reasons that one run stores.
const MAX_REASONS: usize = 8;
/// The maximum length of a cause, in bytes. The namespace and the name of a Kubernetes object fit
/// into it.
const MAX_CAUSE: usize = 320;

/// The reason of an add, as the number of a short text.
///
/// The crate `requeue` stores the texts. Its function `intern_reason` returns the reason for a
/// text, and `reason_text` returns the text of a reason.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Reason(NonZero<u16>);

impl Reason {
    /// The largest number of a reason. An event of a recorder has 13 bits for this number.
    pub const MAX: u16 = (1 << 13) - 1;

    /// Returns the reason with this number. Returns `None` if the number is 0 or greater than
    /// [`MAX`](Self::MAX).
    #[must_use]
    pub const fn new(number: u16) -> Option<Self> {
        match NonZero::new(number) {
            Some(number) if number.get() <= Self::MAX => Some(Self(number)),
            _ => None,
        }
    }

    /// Returns the number.
    #[must_use]
    pub const fn number(self) -> u16 {
        self.0.get()
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reason {}", self.0)
    }
}

/// The adds of one run that have the same reason, with their number and their causes.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ReasonCount {
    /// The reason.
    pub reason: Reason,
    /// The number of adds with this reason, at least 1.
    pub adds: u32,
    /// The cause of the first of these adds that has a cause.
    pub first: Option<Arc<str>>,
    /// The cause of the last of these adds that has a cause.
    pub last: Option<Arc<str>>,
}

/// The reasons of the adds that one run serves, in the order in which they first occurred.
///
/// A run stores its first eight distinct reasons. Adds with further reasons are only
/// [counted](Self::others). A cause is cut after 320 bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Reasons {
    counts: Vec<ReasonCount>,
    others: u32,
}

impl Reasons {
    /// Returns true if no add of the run had a reason.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns the first eight distinct reasons of the run.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &ReasonCount> {
        self.counts.iter()
    }

    /// Returns the number of adds whose reasons are not among the first eight.
    #[must_use]
    pub const fn others(&self) -> u32 {
        self.others
    }

    /// Counts an add with the given reason.
    pub(crate) fn note_add(&mut self, reason: Reason, cause: Option<Arc<str>>) {
        let cause = cause.map(cut_cause);
        self.merge_count(ReasonCount { reason, adds: 1, first: cause.clone(), last: cause });
    }

    /// Merges the reasons of later adds into these reasons.
    pub(crate) fn append(&mut self, later: Self) {
        for count in later.counts {
            self.merge_count(count);
        }
        self.others = self.others.saturating_add(later.others);
    }

    fn merge_count(&mut self, later: ReasonCount) {
        let has_room = self.counts.len() < MAX_REASONS;
        match self.counts.iter_mut().find(|count| count.reason == later.reason) {
            Some(count) => {
                count.adds = count.adds.saturating_add(later.adds);
                count.first = mem::take(&mut count.first).or(later.first);
                count.last = later.last.or(mem::take(&mut count.last));
            }
            None if has_room => self.counts.push(later),
            None => self.others = self.others.saturating_add(later.adds),
        }
    }
}

/// Shortens a cause that is longer than the maximum, so that its memory is bounded.
fn cut_cause(cause: Arc<str>) -> Arc<str> {
    if cause.len() <= MAX_CAUSE {
        return cause;
    }
    let most = MAX_CAUSE - '…'.len_utf8();
    let end = cause.char_indices().map(|(at, _)| at).take_while(|&at| at <= most).last();
    let mut cut = cause[..end.unwrap_or_default()].to_string();
    cut.push('…');
    cut.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(number: u16) -> Reason {
        Reason::new(number).expect("a number in range")
    }

    fn cause(text: &str) -> Option<Arc<str>> {
        Some(text.into())
    }

    #[test]
    fn a_reason_has_its_adds_and_its_first_and_last_cause() {
        let mut reasons = Reasons::default();
        for text in [None, cause("a"), cause("b"), None, cause("c"), None] {
            reasons.note_add(reason(1), text);
        }
        let expected =
            ReasonCount { reason: reason(1), adds: 6, first: cause("a"), last: cause("c") };
        assert!(reasons.iter().eq([&expected]));
    }

    #[test]
    fn a_ninth_reason_is_only_counted() {
        let mut reasons = Reasons::default();
        for number in (1..=10).chain(1..=10) {
            reasons.note_add(reason(number), None);
        }
        assert!(
            reasons
                .iter()
                .map(|count| (count.reason.number(), count.adds))
                .eq((1..=8).map(|n| (n, 2)))
        );
        assert_eq!(reasons.others(), 4);
    }

    #[test]
    fn a_long_cause_is_cut_between_two_characters() {
        let cut = cut_cause("é".repeat(300).into());
        assert!(cut.len() <= MAX_CAUSE && cut.ends_with("é…"), "{cut}");
    }

    #[test]
    fn a_number_out_of_range_is_no_reason() {
        assert_eq!((Reason::new(0), Reason::new(Reason::MAX + 1)), (None, None));
        assert_eq!(reason(Reason::MAX).number(), Reason::MAX);
    }
}
