//! The queue with workers that fail in every possible way. `make sim` runs more seeds.

use requeue_sim::faults;

#[test]
fn with_faults_the_queue_does_what_the_model_does_and_ends() {
    faults::quiet();
    for seed in 0..500 {
        if let Err(wrong) = faults::run_twice(seed) {
            panic!("seed {seed}: {wrong}");
        }
    }
}
