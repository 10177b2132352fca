//! Plain data types. These modules import no others.

pub(crate) mod add;
pub(crate) mod cancel;
pub(crate) mod delivery;
pub(crate) mod lifecycle;
pub(crate) mod slot;
pub(crate) mod time;
