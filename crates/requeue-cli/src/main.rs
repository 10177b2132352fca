//! The program `requeue`: a command per key.

#[cfg(unix)]
fn main() -> std::process::ExitCode {
    requeue_cli::main()
}

#[cfg(not(unix))]
compile_error!(
    "the program `requeue` needs the process groups and signals of Unix; on Windows, use the \
     library `requeue`, or the program in WSL"
);

#[cfg(not(unix))]
fn main() {}
