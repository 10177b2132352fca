//! Runs the target under libFuzzer with cargo-fuzz. Otherwise runs it on the files that are named.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| requeue_fuzz::recording(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    requeue_fuzz::replay(requeue_fuzz::recording)
}
