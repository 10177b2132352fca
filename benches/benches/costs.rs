//! What a queue costs, in time and memory: `cargo bench -p requeue-bench`, with
//! `-- --quick` (or `REQUEUE_BENCH_QUICK=1`) for a short run, and with words of
//! `cycles bulk holds sizes` for a part of it.

use std::{env, error};

use requeue_bench::{Scale, bulk, cycles, holds, machine, sizes};

fn main() -> Result<(), Box<dyn error::Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let quick = env::var_os("REQUEUE_BENCH_QUICK").is_some() || args.iter().any(|a| a == "--quick");
    let scale = if quick { Scale::QUICK } else { Scale::FULL };
    let parts: Vec<&str> =
        args.iter().map(String::as_str).filter(|a| !a.starts_with('-')).collect();
    let wanted = |part| parts.is_empty() || parts.contains(&part);

    println!("{}", machine::head(&scale));
    if wanted("cycles") {
        cycles::run(&scale)?;
    }
    if wanted("bulk") {
        bulk::run(&scale)?;
    }
    if wanted("holds") {
        holds::run(&scale);
    }
    if wanted("sizes") {
        sizes::run(&scale);
    }
    Ok(())
}
