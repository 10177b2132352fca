//! The input: its bytes, the records in them, and the changes that the records describe.

pub(crate) mod change;
pub(crate) mod json;
pub(crate) mod records;
pub(crate) mod source;

pub(crate) use self::change::{AddOptions, Bad, Change, Why};
pub(crate) use self::records::{ChangeSink, Format, Kind, Records, check_key, read_changes};
