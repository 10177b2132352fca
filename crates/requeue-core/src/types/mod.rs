//! Plain data. These modules import none of the others.

pub(crate) mod add;
pub(crate) mod delivery;
pub(crate) mod lifecycle;
pub(crate) mod slot;
pub(crate) mod time;
