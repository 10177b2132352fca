//! The times below which claims of a queue look for no key.
//!
//! Below them, the index has the entries of keys that were delivered. The server removes those only when
//! no transaction can see them any more, so a claim that began at the oldest would read all of them.
//!
//! A key may turn up below these times. An add takes its time when it runs, and others see it when its
//! transaction commits. A key that a transaction has locked stays where it is until that ends. So each
//! claim returns the transactions that were in progress when it began. One that a later claim finds
//! ended, and that was in progress for longer than the [slack](SLACK) of claims, makes the range
//! suspect that claims have passed since it began. A [scan](super::claims) of that range follows.
//!
//! A snapshot does not name the newest transactions in progress, if none that is newer has ended. A
//! claim that takes a key is a transaction that ends, so that the snapshot of the next claim names all
//! that are older. Other claims ask for the newest besides, which takes the server longer.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use crate::engine::time::Micros;

/// Times of ready keys by priority, the low first, and of leases.
pub(super) type Lows = [Micros; 4];

/// Below all keys.
pub(super) const LOWEST: Lows = [Micros::MIN; 4];

/// Claims look this much further back than they must: see `slack` in `requeue.claim`.
const SLACK: Duration = Duration::from_millis(200);
/// The first pause of a claimer that some adds may not wake.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The transactions in progress at some moment.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Snapshot {
    /// The one after the last that has ended.
    next: u64,
    open: BTreeSet<u64>,
}

impl Snapshot {
    /// Reads the text of a `pg_snapshot`, `xmin:xmax:open,open,…`, perhaps with `:open,…`, the newest.
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

/// A transaction that was in progress.
#[derive(Clone, Copy, Debug)]
struct Open {
    /// It has begun after this; `None` if it was there before the first claim.
    since: Option<Instant>,
    /// Nothing that it may hide is below.
    lows: Lows,
}

/// A claim under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Begun {
    /// Below which it looks for nothing.
    pub(super) lows: Lows,
    /// Whether it asks for the newest transactions, too.
    pub(super) names_newest: bool,
    at: Instant,
    lowered: u64,
    open: Open,
}

#[derive(Debug)]
pub(super) struct Watermark {
    /// As the last claim returned them.
    lows: Lows,
    /// Where the next claim begins instead, since there are keys below.
    lower: Option<Lows>,
    /// How often `lower` was set.
    lowered: u64,
    /// Of a transaction that the next claim sees for the first time, and the claim after that.
    next_open: [Open; 2],
    /// Whether the last claim took no key.
    was_empty: bool,
    open: HashMap<u64, Open>,
    /// From where on, up to `lows`, there may be keys.
    suspect: Option<Lows>,
    /// Transactions in progress when the server learned that this process waits. Their adds may
    /// notify nobody.
    unaware: BTreeSet<u64>,
    unaware_since: Instant,
}

fn lower(one: Lows, other: Lows) -> Lows {
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
        let lows = self.lower.map_or(self.lows, |below| lower(below, self.lows));
        let [open, newer] = self.next_open;
        // What began after a claim not long ago is within the slack of this one.
        let is_long_ago = newer.since.is_none_or(|since| now > since + SLACK / 2);
        let names_newest = self.was_empty || is_long_ago;
        Begun { lows, names_newest, at: now, lowered: self.lowered, open }
    }

    /// The claim has returned these. One that fails has no end here.
    pub(super) fn end(&mut self, begun: &Begun, lows: Lows, snapshot: &Snapshot, is_empty: bool) {
        self.was_empty = is_empty;
        if begun.lowered == self.lowered {
            self.lower = None;
        }
        let ended = self.open.extract_if(|&transaction, _| snapshot.has_ended(transaction));
        let long = ended.filter(|(_, open)| {
            open.since.is_none_or(|since| begun.at.saturating_duration_since(since) > SLACK)
        });
        let passed = long.map(|(_, open)| open.lows).reduce(lower);
        if let Some(passed) = passed {
            self.suspect(passed);
        }
        for &transaction in &snapshot.open {
            self.open.entry(transaction).or_insert(begun.open);
        }
        self.unaware.retain(|&transaction| !snapshot.has_ended(transaction));
        // It may have begun, and locked a key, while the claim before the last was under way.
        self.next_open = [self.next_open[1], Open { since: Some(begun.at), lows: self.lows }];
        self.lows = lows;
    }

    /// There may be keys from here on that claims have passed.
    pub(super) fn suspect(&mut self, floors: Lows) {
        self.suspect = Some(self.suspect.map_or(floors, |other| lower(other, floors)));
    }

    pub(super) fn is_suspect(&self) -> bool {
        self.suspect.is_some()
    }

    pub(super) fn lows(&self) -> Lows {
        self.lows
    }

    /// The range for a scan to look through, from and up to.
    pub(super) fn take_suspect(&mut self) -> Option<(Lows, Lows)> {
        self.suspect.take().map(|floors| (floors, self.lows))
    }

    /// The scan has found these. Returns whether there are any.
    pub(super) fn found(&mut self, found: [Option<Micros>; 4]) -> bool {
        let is_any = found.iter().any(Option::is_some);
        if is_any {
            let found = found.map(|at| at.unwrap_or(Micros::MAX));
            self.lower = Some(self.lower.map_or(found, |other| lower(other, found)));
            self.lowered += 1;
        }
        is_any
    }

    /// The server has learned that this process waits, and after that a claim has ended.
    pub(super) fn announced(&mut self, snapshot: &Snapshot, now: Instant) {
        self.unaware.clone_from(&snapshot.open);
        self.unaware_since = now;
    }

    /// How soon to claim again although nobody may say that there is something. The pauses grow with
    /// the age of the transactions they are for.
    pub(super) fn pause(&self, now: Instant) -> Option<Duration> {
        let age = now.saturating_duration_since(self.unaware_since);
        (!self.unaware.is_empty()).then(|| (age / 2).max(FIRST_PAUSE))
    }
}

#[cfg(test)]
impl Watermark {
    pub(super) fn has_unaware(&self) -> bool {
        !self.unaware.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(text: &str) -> Snapshot {
        Snapshot::parse(text).expect("it is one")
    }

    /// Claims at these milliseconds, which return these times and see these transactions; and what
    /// is suspect after each.
    fn suspects<const N: usize>(claims: [(u64, Micros, &str); N]) -> [Option<Micros>; N] {
        let start = Instant::now();
        let mut mark = Watermark::new(start);
        claims.map(|(at, low, seen)| {
            let begun = mark.begin(start + Duration::from_millis(at));
            mark.end(&begun, [low; 4], &snapshot(seen), false);
            mark.take_suspect().map(|(floors, _)| floors[0])
        })
    }

    #[test]
    fn a_snapshot_is_read() {
        let one = Snapshot { next: 9, open: [3, 7].into() };
        assert_eq!(Snapshot::parse("3:9:3,7"), Some(one.clone()));
        assert_eq!(Snapshot::parse("3:9:3,7:"), Some(one.clone()));
        let newest = Snapshot::parse("3:9:3:9,11").expect("it is one");
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
        // 5 begins while the claim at 1 ms is under way, which may have passed what it locks.
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
        // Also if it is the newest, which not all snapshots name.
        let newest = suspects([
            (0, 10, "5:5:"),
            (1, 20, "5:5:"),
            (2, 30, "5:5::5"),
            (300, 40, "5:5:"),
            (400, 50, "6:6:"),
        ]);
        assert_eq!(newest, [None, None, None, None, Some(Micros::MIN)]);
        // The claims' own slack is enough.
        let short =
            suspects([(0, 10, "5:5:"), (1, 20, "5:5:"), (2, 30, "5:6:5"), (199, 40, "6:6:")]);
        assert_eq!(short, [None; 4]);
        // One that was there first may be of any age.
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
            mark.end(&begun, [100; 4], &snapshot("5:5:"), is_empty);
            assert_eq!([asks(&mark, 100), asks(&mark, 101)], expected);
        }
    }

    #[test]
    fn a_claim_begins_at_what_a_scan_has_found_until_one_has_ended() {
        let now = Instant::now();
        let mut mark = Watermark::new(now);
        let none = snapshot("5:5:");
        let first = mark.begin(now);
        mark.end(&first, [100; 4], &none, false);
        assert!(!mark.found([None; 4]));
        assert!(mark.found([None, Some(50), None, None]));
        // It fails.
        let failing = mark.begin(now);
        assert_eq!(failing.lows, [100, 50, 100, 100]);
        let second = mark.begin(now);
        // Another scan ends meanwhile.
        assert!(mark.found([Some(40), None, None, None]));
        mark.end(&second, [110; 4], &none, false);
        let third = mark.begin(now);
        assert_eq!(third.lows, [40, 50, 110, 110]);
        mark.end(&third, [120; 4], &none, false);
        assert_eq!(mark.begin(now).lows, [120; 4]);
    }

    #[test]
    fn pauses_end_with_the_transactions_they_are_for() {
        let now = Instant::now();
        let mut mark = Watermark::new(now);
        let begun = mark.begin(now);
        mark.end(&begun, [100; 4], &snapshot("5:7:5,6"), true);
        mark.announced(&snapshot("5:7:5,6"), now);
        let later = now + Duration::from_secs(1);
        assert_eq!(mark.pause(now), Some(FIRST_PAUSE));
        assert_eq!(mark.pause(later), Some(Duration::from_millis(500)));
        mark.end(&begun, [100; 4], &snapshot("5:8:5,7"), true);
        assert!(mark.pause(later).is_some());
        // 7 began after that.
        mark.end(&begun, [100; 4], &snapshot("7:8:7"), true);
        assert_eq!(mark.pause(later), None);
    }
}
