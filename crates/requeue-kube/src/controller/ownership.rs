//! The shards that a controller holds, and their changes while it runs.

mod changing;
mod places;
mod ranges;
mod runs;
#[cfg(test)]
mod tests;

pub(crate) use self::changing::Ownership;
pub(super) use self::changing::Selection;
pub(super) use self::places::Learned;
pub(crate) use self::places::{Places, Rule};
