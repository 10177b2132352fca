//! Where a queue gets its time.
