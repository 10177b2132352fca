//! Fencing tokens, which identify the terms of Leases.

use std::fmt;

/// The fencing token of a term. Its text is `uid/transitions`, with two fields of the Lease.
///
/// `leaseTransitions` alone does not identify a term. If a Lease is deleted and created again, the
/// number starts at 0 again. Within one Lease, a later term has a greater number. The terms of two
/// Leases cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct FencingToken {
    uid: String,
    transitions: i32,
}

impl FencingToken {
    pub(crate) fn new(uid: &str, transitions: i32) -> Self {
        Self { uid: uid.to_owned(), transitions }
    }

    /// Returns the token with this text, which must have the format of [`Display`](fmt::Display).
    pub(crate) fn parse(text: &str) -> Option<Self> {
        // Every client that may write the object can change the annotation, so the text may be
        // anything.
        let (uid, transitions) = text.split_once('/').filter(|(uid, _)| !uid.is_empty())?;
        Some(Self::new(uid, transitions.parse().ok()?))
    }

    /// Returns the field `metadata.uid` of the Lease.
    #[must_use]
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// Returns the field `spec.leaseTransitions` that the Lease has during this term.
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
