//! The program `requeue`, built together with the tests of this crate, at a path where they find
//! it.

fn main() -> std::process::ExitCode {
    requeue_cli::main()
}
