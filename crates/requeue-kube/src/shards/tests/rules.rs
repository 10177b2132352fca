//! Rules
