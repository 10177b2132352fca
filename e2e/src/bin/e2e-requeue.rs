//! The program, at a path where the tests of this crate find it. It is built together with them.

fn main() -> std::process::ExitCode {
    requeue_cli::main()
}
