//! Whether a history is one that a store promises.

use std::collections::BTreeMap;

use crate::event::{Event, Kind, Outcome};

/// What can't have happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Violation {
    /// Two hand-outs of a key have one number.
    Twice { key: u32, epoch: i64 },
    /// An add was acknowledged, and no run began after it.
    LostAdd { key: u32, begun: u64 },
    /// Somebody had the key, as far as it knew, after a later hand-out had arrived.
    TwoHolders { key: u32, epoch: i64, at: u64, later: i64 },
    /// The end of a hand-out was taken after a later one had arrived.
    StaleEnd { key: u32, epoch: i64, later: i64 },
}

impl Violation {
    /// The key, and the hand-outs that it is about, from the first to the last.
    pub(crate) const fn about(&self) -> (u32, i64, i64) {
        match *self {
            Self::Twice { key, epoch } => (key, epoch, epoch),
            Self::LostAdd { key, .. } => (key, i64::MAX, i64::MAX),
            Self::TwoHolders { key, epoch, later, .. } | Self::StaleEnd { key, epoch, later } => {
                (key, epoch, later)
            }
        }
    }
}

/// What is told of a history that is sound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) adds: u64,
    pub(crate) hand_outs: u64,
    /// Writes that were begun by who had the key, and landed when another had got it.
    pub(crate) late_writes: u64,
    pub(crate) lost: u64,
}

#[derive(Clone, Copy)]
struct HandOut {
    epoch: i64,
    at: u64,
}

/// All that is wrong with it.
pub(crate) fn examine(events: &[Event]) -> (Vec<Violation>, Tally) {
    let (mut violations, mut tally) = (Vec::new(), Tally::default());
    let mut hand_outs: BTreeMap<u32, Vec<HandOut>> = BTreeMap::new();
    for event in events {
        if let Kind::Got { epoch, at } = event.kind {
            tally.hand_outs += 1;
            hand_outs.entry(event.key).or_default().push(HandOut { epoch, at });
        }
    }
    for (&key, hand_outs) in &mut hand_outs {
        hand_outs.sort_by_key(|hand_out| hand_out.epoch);
        let twice = hand_outs.windows(2).filter(|pair| pair[0].epoch == pair[1].epoch);
        violations.extend(twice.map(|pair| Violation::Twice { key, epoch: pair[0].epoch }));
    }
    // The hand-out of a key after `epoch` that arrived first.
    let later = |key: u32, epoch: i64| {
        let later = hand_outs.get(&key)?.iter().filter(|hand_out| hand_out.epoch > epoch);
        later.min_by_key(|hand_out| hand_out.at).copied()
    };
    for &Event { key, kind, .. } in events {
        match kind {
            Kind::Got { .. } => {}
            Kind::Added { begun } => {
                tally.adds += 1;
                let runs = hand_outs.get(&key).map_or(&[][..], Vec::as_slice);
                if !runs.iter().any(|run| run.at > begun) {
                    violations.push(Violation::LostAdd { key, begun });
                }
            }
            Kind::Wrote { epoch, at, landed } => {
                let Some(later) = later(key, epoch).filter(|later| later.at < landed) else {
                    continue;
                };
                if later.at < at {
                    let later = later.epoch;
                    violations.push(Violation::TwoHolders { key, epoch, at, later });
                } else {
                    tally.late_writes += 1;
                }
            }
            Kind::Ended { epoch, begun, outcome } => {
                tally.lost += u64::from(outcome == Outcome::Lost);
                let later = later(key, epoch).filter(|later| later.at < begun);
                if let (Outcome::Held, Some(later)) = (outcome, later) {
                    let later = later.epoch;
                    violations.push(Violation::StaleEnd { key, epoch, later });
                }
            }
        }
    }
    (violations, tally)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(events: &[Event]) -> Vec<Violation> {
        examine(events).0
    }

    fn event(process: u32, kind: Kind) -> Event {
        Event { process, key: 7, kind }
    }

    fn sound() -> Vec<Event> {
        vec![
            event(1, Kind::Added { begun: 1 }),
            event(1, Kind::Got { epoch: 1, at: 10 }),
            event(1, Kind::Wrote { epoch: 1, at: 11, landed: 12 }),
            event(2, Kind::Added { begun: 12 }),
            event(1, Kind::Ended { epoch: 1, begun: 13, outcome: Outcome::Held }),
            event(2, Kind::Got { epoch: 2, at: 20 }),
            event(2, Kind::Ended { epoch: 2, begun: 21, outcome: Outcome::Held }),
        ]
    }

    #[test]
    fn a_sound_history_is_sound() {
        assert_eq!(check(&sound()), []);
    }

    #[test]
    fn what_can_not_have_happened_is_seen() {
        let with = |kind| {
            let mut events = sound();
            events.push(event(1, kind));
            check(&events)
        };
        let added = with(Kind::Added { begun: 20 });
        assert_eq!(added, [Violation::LostAdd { key: 7, begun: 20 }]);
        let got = with(Kind::Got { epoch: 2, at: 30 });
        assert_eq!(got, [Violation::Twice { key: 7, epoch: 2 }]);
        let wrote = with(Kind::Wrote { epoch: 1, at: 22, landed: 22 });
        assert_eq!(wrote, [Violation::TwoHolders { key: 7, epoch: 1, at: 22, later: 2 }]);
        let ended = with(Kind::Ended { epoch: 1, begun: 22, outcome: Outcome::Held });
        assert_eq!(ended, [Violation::StaleEnd { key: 7, epoch: 1, later: 2 }]);
        assert_eq!(with(Kind::Ended { epoch: 1, begun: 22, outcome: Outcome::Lost }), []);
    }

    #[test]
    fn a_write_may_land_late_but_not_begin_late() {
        for (at, sound) in [(19, true), (21, false)] {
            let mut events = self::sound();
            events.push(event(1, Kind::Wrote { epoch: 1, at, landed: 30 }));
            let (violations, tally) = examine(&events);
            assert_eq!((violations.is_empty(), tally.late_writes > 0), (sound, sound));
        }
    }

    #[test]
    fn lines_are_read_as_they_are_written() {
        for event in sound() {
            assert_eq!(Event::parse(event.process, &event.line()), Some(event));
            // Of one that was killed in the middle of a line.
            let line = event.line();
            let cut = line.rfind(' ').expect("it has words");
            assert_eq!(Event::parse(event.process, &line[..cut]), None, "{line}");
        }
        assert_eq!(Event::parse(1, "ended 1 2 3 hel"), None);
    }
}
