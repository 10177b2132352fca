//! `requeue run`: a command per key, from a stream of keys.

fn main() {}
