//! The token of `--serve-admin` and `--server`: its file, and its variable.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::exit::Refusal;
use crate::key::escaped;
use crate::process::spawn::TOKEN_VARIABLE;

/// Returns the text of the token.
pub(crate) fn read_token(file: Option<&Path>) -> Result<String, Refusal> {
    let text = match file {
        Some(path) => {
            let name = escaped(path.as_os_str().as_bytes());
            let refused = |error| Refusal::usage(format!("--token-file {name}: {error}"));
            std::fs::read_to_string(path).map_err(refused)?
        }
        None => {
            let text = std::env::var(TOKEN_VARIABLE).ok().filter(|text| !text.is_empty());
            let missing = || format!("no token; pass --token-file FILE, or set {TOKEN_VARIABLE}");
            text.ok_or_else(|| Refusal::usage(missing()))?
        }
    };
    // Editors add a newline at the end of a file.
    Ok(text.trim().to_owned())
}
