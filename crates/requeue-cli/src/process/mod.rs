//! The commands that requeue starts: their templates, processes, signals and time limits.

pub(crate) mod command;
pub(crate) mod groups;
pub(crate) mod guardian;
pub(crate) mod mark;
pub(crate) mod pausable_clock;
pub(crate) mod run_input;
pub(crate) mod shells;
pub(crate) mod signals;
pub(crate) mod spawn;
pub(crate) mod template;
pub(crate) mod timeout;
