//! `requeue run`: a command per key, from a stream of keys.

use std::process::ExitCode;

fn main() -> ExitCode {
    requeue_cli::main()
}
