//! Checks the reports of all replicas together.

use std::collections::BTreeMap;
use std::time::Duration;

use requeue_e2e::Nanos;

use crate::replica::{Replica, Said};

/// A fault of the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Fault {
    Kill,
    /// The leader's connections are cut, and new connections are refused.
    Refuse,
    /// The leader's connections stay open, but no data arrives.
    Silence,
    /// The leader gets SIGSTOP, and SIGCONT when another replica leads.
    Freeze,
    /// The leader is terminated, and releases the lease.
    Stop,
}

impl Fault {
    pub(crate) const ALL: [Self; 5] =
        [Self::Kill, Self::Silence, Self::Freeze, Self::Stop, Self::Refuse];
}

#[derive(Default)]
pub(crate) struct Report {
    /// The number of replicas, including those that never led.
    replicas: usize,
    /// The start and the end of each term.
    terms: BTreeMap<Nanos, Option<Nanos>>,
    handovers: BTreeMap<Fault, HandOvers>,
}

#[derive(Default)]
struct HandOvers {
    /// The times from the fault until another replica led.
    took: Vec<Nanos>,
    /// The number of late writes that were refused.
    refused: usize,
    accepted: usize,
}

impl Report {
    /// Adds the events of a replica, which could perform no action after `stopped`.
    pub(crate) fn replica(&mut self, replica: &Replica, stopped: Option<Nanos>) {
        self.replicas += 1;
        let mut ends = replica.said(Said::End).into_iter();
        for begin in replica.said(Said::Begin) {
            let end = ends.next().into_iter().chain(stopped).min();
            assert_eq!(self.terms.insert(begin, end), None, "two began at once");
        }
    }

    pub(crate) fn handed_over(&mut self, fault: Fault, took: Nanos, late: (usize, usize)) {
        let handovers = self.handovers.entry(fault).or_default();
        handovers.took.push(took);
        handovers.refused += late.0;
        handovers.accepted += late.1;
    }

    /// Returns the number of terms that started before another term had ended.
    fn overlaps(&self) -> usize {
        let ends = self.terms.values().map(|end| end.unwrap_or(Nanos::MAX));
        ends.zip(self.terms.keys().skip(1)).filter(|(end, next)| end >= next).count()
    }

    pub(crate) fn print(&self, at_once: usize) {
        let (replicas, terms, overlaps) = (self.replicas, self.terms.len(), self.overlaps());
        println!("{at_once} at once, {replicas} replicas, {terms} terms, {overlaps} overlaps");
        for (fault, HandOvers { took, refused, accepted }) in &self.handovers {
            let mut took: Vec<_> = took.iter().map(|&took| Duration::from_nanos(took)).collect();
            took.sort_unstable();
            println!(
                "  {fault:?}: {} times, another led after {:.2?} ({:.2?} to {:.2?}); of late \
                 writes {refused} were refused and {accepted} accepted",
                took.len(),
                took[took.len() / 2],
                took[0],
                took[took.len() - 1],
            );
        }
    }

    pub(crate) fn check(&self, handovers: usize) {
        assert!(self.terms.len() > handovers, "{:?}", self.terms);
        assert_eq!(self.overlaps(), 0, "{:?}", self.terms);
        let accepted: usize = self.handovers.values().map(|of| of.accepted).sum();
        assert_eq!(accepted, 0, "late writes were accepted");
        assert!(self.handovers[&Fault::Freeze].refused >= 3, "no late write was tried");
    }
}
