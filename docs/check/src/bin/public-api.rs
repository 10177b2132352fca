//! Prints the public API of a crate, one item per line, from its rustdoc JSON: `public-api FILE`. `scripts/api.sh` calls
//! it.

use std::error::Error;
use std::io::Write;

fn main() -> Result<(), Box<dyn Error>> {
    let file = std::env::args_os().nth(1).ok_or("usage: public-api FILE")?;
    // Blanket implementations are omitted, because they follow from the other lines. Derived implementations and auto
    // traits such as `Send` do not.
    let reader = public_api::Builder::from_rustdoc_json(file).omit_blanket_impls(true);
    let mut out = std::io::stdout().lock();
    for item in reader.build()?.items() {
        writeln!(out, "{item}")?;
    }
    Ok(())
}
