//! Tracks the watermark of a queue: the times below which claims do not search for keys.
//!
//! Below the watermark, the index contains entries of delivered keys. The server removes an entry only when no
//! transaction can see it. Therefore, a claim that began at the oldest entry would read all of these entries.
//!
//! Keys can appear below the watermark in two ways. An add reads the clock when it runs, but its key becomes visible
//! when its transaction commits. In addition, a claim skips a locked key, whose position does not change. Therefore,
//! each claim returns the transactions that were in progress when it began. A later claim may find that one of these
//! transactions took longer than the [slack](SLACK) of claims. In this case, the range that claims have passed since
//! the transaction began is suspect: it may contain keys that claims have skipped. A [scan](super::claims) of that
//! range follows.
//!
//! A snapshot names a transaction in progress only if a newer transaction has ended. A claim that takes a key is a
//! newer transaction, so the snapshot of the next claim names all transactions that are older than that claim. Other
//! claims also ask for the newest transactions, which costs the server more time.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::engine::time::Micros;

/// A bound for each priority, from low to high, and a bound for leases. Keys are compared by their due times, and
/// leases by their expiry times.
pub(super) type Lows = [Micros; 4];

/// A bound below all keys and leases.
pub(super) const LOWEST: Lows = [Micros::MIN; 4];

/// Claims search further back than their bounds by this time: see `requeue.slack`.
const SLACK: Duration = Duration::from_millis(200);
/// The first interval after which a process claims again, if some adds may not wake it.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The transactions that were in progress at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Snapshot {
    /// The number of the newest transaction that has ended, plus one.
    next: u64,
    open: BTreeSet<u64>,
}

impl Snapshot {
    /// Parses the text of a `pg_snapshot`, `xmin:xmax:open,open,…`. The newest transactions can follow, as `:open,…`.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(3, ':').skip(1);
        let next = parts.next()?.parse().ok()?;
        let open = parts.next()?.split([',', ':']).filter(|number| !number.is_empty());
        let open = open.map(|number| number.parse().ok()).collect::<Option<_>>()?;
        Some(Self { next, open })
    }

    fn has_ended(&self, transaction: u64) -> bool {
        transaction < self.next && !self.open.contains(&transaction)
    }
}

/// A transaction that was in progress during a claim.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// A time before the transaction began, or `None` if it began before the first claim.
    since: Option<Instant>,
    /// The transaction can hide keys only at or above these bounds.
    lows: Lows,
}

/// The parameters of a claim that has begun.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    /// The lower bounds of the claim's search.
    pub(super) lows: Lows,
    /// True if the claim also asks for the newest transactions.
    pub(super) names_newest: bool,
    at: Instant,
    lowered: u64,
    open: Open,
}

#[derive(Debug)]
pub(super) struct Watermark {
    /// The lower bounds that the last claim has returned.
    lows: Lows,
    /// The lower bounds of the next claim, if a scan has found keys below `lows`.
    lower: Option<Lows>,
    /// The number of times that `lower` was set.
    lowered: u64,
    /// The entries for transactions that a claim sees for the first time. The first entry is for the next claim, and
    /// the second for the claim after it.
    next_open: [Open; 2],
    /// True if the last claim took no key.
    was_empty: bool,
    open: HashMap<u64, Open>,
    /// The lower end of the suspect range, or `None` if there is no such range. The upper end is `lows`.
    suspect: Option<Lows>,
    /// The transactions that were in progress when the server recorded that this process waits. Their adds may not send
    /// notifications.
    unaware: BTreeSet<u64>,
    unaware_since: Instant,
}

fn lower_of(one: Lows, other: Lows) -> Lows {
    std::array::from_fn(|n| one[n].min(other[n]))
}

impl Watermark {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            lows: LOWEST,
            lower: None,
            lowered: 0,
            next_open: [Open { since: None, lows: LOWEST }; 2],
            was_empty: true,
            open: HashMap::new(),
            suspect: None,
            unaware: BTreeSet::new(),
            unaware_since: now,
        }
    }

    pub(super) fn begin(&self, now: Instant) -> Begun {
        let lows = self.lower.map_or(self.lows, |below| lower_of(below, self.lows));
        let [open, newer] = self.next_open;
        // If the last claim is recent, no newest transaction is needed: the slack of the next claims covers
        // transactions that began after that claim.
        let is_long_ago = newer.since.is_none_or(|since| now > since + SLACK / 2);
        let names_newest = self.was_empty || is_long_ago;
        Begun { lows, names_newest, at: now, lowered: self.lowered, open }
    }

    /// Records the result of a claim. A failed claim is not recorded.
    pub(super) fn note_claim(
        &mut self,
        begun: &Begun,
        lows: Lows,
        snapshot: &Snapshot,
        is_empty: bool,
    ) {
        self.was_empty = is_empty;
        if begun.lowered == self.lowered {
            self.lower = None;
        }
        let ended = self.open.extract_if(|&transaction, _| snapshot.has_ended(transaction));
        let long = ended.filter(|(_, open)| {
            open.since.is_none_or(|since| begun.at.saturating_duration_since(since) > SLACK)
        });
        let passed = long.map(|(_, open)| open.lows).reduce(lower_of);
        if let Some(passed) = passed {
            self.mark_suspect(passed);
        }
        for &transaction in &snapshot.open {
            self.open.entry(transaction).or_insert(begun.open);
        }
        self.unaware.retain(|&transaction| !snapshot.has_ended(transaction));
        // A transaction that the next claim sees for the first time may have begun, and locked a key, during the claim
        // before this one.
        self.next_open = [self.next_open[1], Open { since: Some(begun.at), lows: self.lows }];
        self.lows = lows;
    }

    /// Marks the range from `floors` as suspect, because it may contain keys that claims have skipped.
    pub(super) fn mark_suspect(&mut self, floors: Lows) {
        self.suspect = Some(self.suspect.map_or(floors, |other| lower_of(other, floors)));
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.suspect.is_some()
    }

    pub(super) fn current_lows(&self) -> Lows {
        self.lows
    }

    /// Returns the lower and the upper bound of the suspect range. The range is then no longer suspect.
    pub(super) fn take_suspect(&mut self) -> Option<(Lows, Lows)> {
        self.suspect.take().map(|floors| (floors, self.lows))
    }

    /// Records the result of a scan. Returns true if the scan found a key.
    pub(super) fn note_scan(&mut self, found: [Option<Micros>; 4]) -> bool {
        let is_any = found.iter().any(Option::is_some);
        if is_any {
            let found = found.map(|at| at.unwrap_or(Micros::MAX));
            self.lower = Some(self.lower.map_or(found, |other| lower_of(other, found)));
            self.lowered += 1;
        }
        is_any
    }

    /// Records that the server knows that this process waits, and that a claim has completed after that.
    pub(super) fn note_announced(&mut self, snapshot: &Snapshot, now: Instant) {
        self.unaware.clone_from(&snapshot.open);
        self.unaware_since = now;
    }

    /// Returns true while transactions are in progress whose changes may cause no notification.
    pub(super) fn has_unaware(&self) -> bool {
        !self.unaware.is_empty()
    }

    /// Returns the time after which the process must claim again, because some adds may not send notifications. The
    /// time grows with the age of these adds' transactions. The result is `None` if there are no such transactions.
    pub(super) fn claim_pause(&self, now: Instant) -> Option<Duration> {
        let age = now.saturating_duration_since(self.unaware_since);
        (!self.unaware.is_empty()).then(|| (age / 2).max(FIRST_PAUSE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        Snapshot::parse(text).expect("the snapshot is valid")
    }

    /// Makes claims, and returns the suspect bound after each of them. Each claim has a time in milliseconds, the bound
    /// that it returns, and the snapshot that it sees.
    fn suspects<const N: usize>(claims: [(u64, Micros, &str); N]) -> [Option<Micros>; N] {
        let start = Instant::now();
        let mut mark = Watermark::new(start);
        claims.map(|(at, low, seen)| {
            let begun = mark.begin(start + Duration::from_millis(at));
            mark.note_claim(&begun, [low; 4], &snapshot(seen), false);
            mark.take_suspect().map(|(floors, _)| floors[0])
        })
    }

    #[test]
    fn a_snapshot_is_read() {
        let one = Snapshot { next: 9, open: [3, 7].into() };
        assert_eq!(Snapshot::parse("3:9:3,7"), Some(one.clone()));
        assert_eq!(Snapshot::parse("3:9:3,7:"), Some(one.clone()));
        let newest = Snapshot::parse("3:9:3:9,11").expect("the snapshot is valid");
        assert_eq!(
            [3, 8, 9, 10].map(|number| newest.has_ended(number)),
            [false, true, false, false]
        );
        assert_eq!(newest.open, [3, 9, 11].into());
        assert_eq!(Snapshot::parse("9:9:"), Some(Snapshot { next: 9, ..Snapshot::default() }));
        assert_eq!([1, 3, 8, 9].map(|number| one.has_ended(number)), [true, false, true, false]);
        for bad in ["", "3", "3:9", "3:x:", "3:9:3,x"] {
            assert_eq!(Snapshot::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn what_a_long_transaction_may_hide_is_suspect_once_it_has_ended() {
        // Transaction 5 begins during the claim at 1 ms. That claim may skip a key that transaction 5 has locked.
        let long = suspects([
            (0, 10, "5:5:"),
            (1, 20, "5:5:"),
            (2, 30, "5:5:"),
            (3, 40, "5:6:5"),
            (300, 50, "5:9:5"),
            (400, 60, "9:9:"),
            (500, 70, "9:9:"),
        ]);
        assert_eq!(long, [None, None, None, None, None, Some(10), None]);
        // The result is the same for the newest transaction, which only some of the snapshots name.
        let newest = suspects([
            (0, 10, "5:5:"),
            (1, 20, "5:5:"),
            (2, 30, "5:5::5"),
            (300, 40, "5:5:"),
            (400, 50, "6:6:"),
        ]);
        assert_eq!(newest, [None, None, None, None, Some(Micros::MIN)]);
        // The slack of the claims covers a short transaction.
        let short =
            suspects([(0, 10, "5:5:"), (1, 20, "5:5:"), (2, 30, "5:6:5"), (199, 40, "6:6:")]);
        assert_eq!(short, [None; 4]);
        // A transaction that was in progress before the first claim may have begun at any time.
        let first = suspects([(0, 10, "5:6:5"), (1, 20, "6:6:")]);
        assert_eq!(first, [None, Some(Micros::MIN)]);
    }

    #[test]
    fn the_newest_are_asked_for_unless_a_claim_has_just_taken_a_key() {
        let now = Instant::now();
        let mut mark = Watermark::new(now);
        let asks =
            |mark: &Watermark, millis| mark.begin(now + Duration::from_millis(millis)).names_newest;
        assert!(asks(&mark, 0));
        for (is_empty, expected) in [(true, [true, true]), (false, [false, true])] {
            let begun = mark.begin(now);
            mark.note_claim(&begun, [100; 4], &snapshot("5:5:"), is_empty);
            assert_eq!([asks(&mark, 100), asks(&mark, 101)], expected);
        }
    }

    #[test]
    fn a_claim_begins_at_what_a_scan_has_found_until_one_has_ended() {
        let now = Instant::now();
        let mut mark = Watermark::new(now);
        let none = snapshot("5:5:");
        let first = mark.begin(now);
        mark.note_claim(&first, [100; 4], &none, false);
        assert!(!mark.note_scan([None; 4]));
        assert!(mark.note_scan([None, Some(50), None, None]));
        // This claim is never recorded, like a claim that has failed.
        let failing = mark.begin(now);
        assert_eq!(failing.lows, [100, 50, 100, 100]);
        let second = mark.begin(now);
        // Another scan completes during the claim.
        assert!(mark.note_scan([Some(40), None, None, None]));
        mark.note_claim(&second, [110; 4], &none, false);
        let third = mark.begin(now);
        assert_eq!(third.lows, [40, 50, 110, 110]);
        mark.note_claim(&third, [120; 4], &none, false);
        assert_eq!(mark.begin(now).lows, [120; 4]);
    }

    #[test]
    fn pauses_end_with_the_transactions_they_are_for() {
        let now = Instant::now();
        let mut mark = Watermark::new(now);
        let begun = mark.begin(now);
        mark.note_claim(&begun, [100; 4], &snapshot("5:7:5,6"), true);
        mark.note_announced(&snapshot("5:7:5,6"), now);
        let later = now + Duration::from_secs(1);
        assert_eq!(mark.claim_pause(now), Some(FIRST_PAUSE));
        assert_eq!(mark.claim_pause(later), Some(Duration::from_millis(500)));
        mark.note_claim(&begun, [100; 4], &snapshot("5:8:5,7"), true);
        assert!(mark.claim_pause(later).is_some());
        // Transaction 7 began after the snapshot of `note_announced`.
        mark.note_claim(&begun, [100; 4], &snapshot("7:8:7"), true);
        assert_eq!(mark.claim_pause(later), None);
    }
}
