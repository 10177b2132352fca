//! What requeue is fuzzed with. Each target takes any bytes, makes something to be tried of them,
//! and panics if what comes of it is not what an oracle says.
//!
//! `make fuzz` runs them under libFuzzer; the tests replay the corpora, and inputs made of these,
//! on any toolchain.

mod http;
mod input;
mod operations;
mod rows;
mod template;
mod values;

use std::io;

pub use self::http::http;
pub use self::input::input;
pub use self::operations::operations;
pub use self::rows::rows;
pub use self::template::template;
pub use self::values::values;

/// Tries the inputs in the files that the command line names.
///
/// # Errors
///
/// If one can't be read.
pub fn replay(target: fn(&[u8])) -> io::Result<()> {
    for file in std::env::args_os().skip(1) {
        println!("{}", file.display());
        target(&std::fs::read(file)?);
    }
    Ok(())
}
