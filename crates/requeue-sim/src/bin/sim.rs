//! `sim [SEEDS] [FIRST]` simulates runs with faults, for SEEDS seeds from FIRST on. Each seed runs
//! twice.

use std::process::ExitCode;
use std::time::Instant;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1).map(|arg| arg.parse::<u64>());
    let (Ok(seeds), Ok(first)) = (args.next().unwrap_or(Ok(10_000)), args.next().unwrap_or(Ok(0)))
    else {
        eprintln!("sim [SEEDS] [FIRST]: numbers");
        return ExitCode::from(2);
    };
    println!("seeds {first} to {}", first + seeds.saturating_sub(1));
    let started = Instant::now();
    requeue_sim::faults::quiet();
    let (mut deliveries, mut failures) = (0, 0);
    for seed in first..first + seeds {
        match requeue_sim::faults::run_twice(seed) {
            Ok(report) => {
                deliveries += report.deliveries;
                failures += report.failures;
            }
            Err(wrong) => {
                println!("seed {seed}: {wrong}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{seeds} seeds, each twice: {deliveries} deliveries, {failures} failures, {:.1} s",
        started.elapsed().as_secs_f64()
    );
    ExitCode::SUCCESS
}
