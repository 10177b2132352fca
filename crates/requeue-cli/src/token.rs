//! Reads the tokens of `--serve-admin` and `--server` from a file or from an environment variable.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::exit::Refusal;
use crate::key::escaped;
use crate::process::spawn::TOKEN_VARIABLE;

/// Returns the text of the file, or of the environment variable if `file` is `None`.
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

/// Returns the token that a client sends. A line for a server can contain roles before the token, which are skipped.
pub(crate) fn read_own_token(file: Option<&Path>) -> Result<String, Refusal> {
    let text = read_token(file)?;
    let words: Vec<_> = text.split_whitespace().collect();
    match words[..] {
        _ if text.contains("sha256:") => {
            Err(Refusal::usage("the token of a client is not a hash; pass the token itself"))
        }
        [_, _, _, ..] => Err(Refusal::usage("a client has one token; pass a file with one line")),
        [.., token] => Ok(token.to_owned()),
        [] => Ok(text),
    }
}
