//! Fencing tokens: a term of a Lease as text.

use std::fmt;

/// The fencing token of a term: `uid/transitions`.
///
/// `leaseTransitions` alone does not identify a term: the number starts again at 0 when a Lease is
/// deleted and created. Within one Lease, a later term has a greater number. Terms of different
/// Leases have no order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FencingToken {
    uid: String,
    transitions: i32,
}

impl FencingToken {
    pub(crate) fn new(uid: &str, transitions: i32) -> Self {
        Self { uid: uid.to_owned(), transitions }
    }

    /// Returns the token with this text, as [`Display`](fmt::Display) writes it.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        // The annotation may contain any text, because every client that can write the object can
        // change it.
        let (uid, transitions) = text.split_once('/').filter(|(uid, _)| !uid.is_empty())?;
        Some(Self::new(uid, transitions.parse().ok()?))
    }

    /// Returns the `metadata.uid` of the Lease.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Returns the `spec.leaseTransitions` of the Lease in this term.
    #[must_use]
    pub fn transitions(&self) -> i32 {
        self.transitions
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.uid, self.transitions)
    }
}
