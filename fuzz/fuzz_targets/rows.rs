//! Under cargo-fuzz, libFuzzer; else the inputs that are named are tried.
#![cfg_attr(fuzzing, no_main)]

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| requeue_fuzz::rows(data));

#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    requeue_fuzz::replay(requeue_fuzz::rows)
}
