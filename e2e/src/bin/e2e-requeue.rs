//! The program, where the tests of this crate find it: built whenever they are.

fn main() -> std::process::ExitCode {
    requeue_cli::main()
}
