//! The plain data types of the API: keys, adds, entries, errors and settings.

pub(crate) mod action;
pub(crate) mod activity;
pub(crate) mod add;
pub(crate) mod calendar;
pub(crate) mod error;
pub(crate) mod group;
pub(crate) mod inspect;
pub(crate) mod key;
pub(crate) mod rate;
pub(crate) mod schedule;
pub(crate) mod text;
pub(crate) mod worker;
