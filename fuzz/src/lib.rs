//! The fuzz targets. Each target derives a test from any bytes, and panics if the result differs
//! from that of an oracle.
//!
//! `make fuzz` runs them under libFuzzer. On any toolchain, the tests replay the corpora, and
//! inputs that are derived from them.

mod http;
mod input;
mod operations;
mod recording;
mod rows;
mod template;
mod values;

use std::io;

pub use self::http::http;
pub use self::input::input;
pub use self::operations::operations;
pub use self::recording::recording;
pub use self::rows::rows;
pub use self::template::template;
pub use self::values::values;

/// Runs a target on the files that the command line names.
///
/// # Errors
///
/// Returns an error if a file cannot be read.
pub fn replay(target: fn(&[u8])) -> io::Result<()> {
    for file in std::env::args_os().skip(1) {
        println!("{}", file.display());
        target(&std::fs::read(file)?);
    }
    Ok(())
}
