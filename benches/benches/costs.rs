//! What a queue costs, in time and memory: `cargo bench -p requeue-bench`.

fn main() {}
