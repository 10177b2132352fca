//! The program `requeue`: a command per key.

use std::process::ExitCode;

fn main() -> ExitCode {
    requeue_cli::main()
}
