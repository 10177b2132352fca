//! Whether the command exists, before anything is read, and how many can run.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::Access;
use rustix::process::{Resource, getrlimit};

use crate::exit::{Exit, Refusal};
use crate::template::Template;

/// Looks for the command as exec will, unless its name depends on the key.
pub(crate) fn find(template: &Template) -> Result<(), Refusal> {
    let Some(program) = template.fixed_program() else { return Ok(()) };
    let Err(exit) = locate(&program) else { return Ok(()) };
    let why = if exit == Exit::NotExecutable { "can't be executed" } else { "not found" };
    Err(Refusal { exit, message: format!("{}: {why}", escaped(program.as_bytes())) })
}

/// The file of a program, as exec finds it.
pub(crate) fn locate(program: &OsStr) -> Result<PathBuf, Exit> {
    if program.as_bytes().contains(&b'/') {
        return look(Path::new(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut why = Exit::NotFound;
    for directory in std::env::split_paths(&path) {
        match look(&directory.join(program)) {
            Err(Exit::NotExecutable) => why = Exit::NotExecutable,
            Err(_) => {}
            found => return found,
        }
    }
    Err(why)
}

/// This program, if it can be run.
fn look(program: &Path) -> Result<PathBuf, Exit> {
    match std::fs::metadata(program) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Err(Exit::NotExecutable),
        Err(_) => Err(Exit::NotFound),
        Ok(metadata)
            if metadata.is_file() && rustix::fs::access(program, Access::EXEC_OK).is_ok() =>
        {
            Ok(program.to_owned())
        }
        Ok(_) => Err(Exit::NotExecutable),
    }
}

/// What `--jobs 0` comes to. A command takes up to three pipes, two files and a handle here, and
/// four descriptors more while it is being started.
pub(crate) fn most_at_once() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let files = usize::try_from(files).unwrap_or(usize::MAX);
    (files.saturating_sub(64) / 6).clamp(1, 1000)
}

/// Bytes as people can read them, on one line and in quotes.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    const SHOWN: usize = 200;
    let text = escape(&bytes[..bytes.len().min(SHOWN)], &['"', '\\']);
    format!("\"{text}\"{}", if bytes.len() > SHOWN { "..." } else { "" })
}

/// Bytes as people can read them, on one line.
pub(crate) fn shown(bytes: &[u8]) -> String {
    escape(bytes, &['\\'])
}

fn escape(bytes: &[u8], special: &[char]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for char in chunk.valid().chars() {
            match char {
                // Not every quote: names have them, and this is not a shell's.
                '\'' | '"' | '\\' if !special.contains(&char) => text.push(char),
                _ => text.extend(char.escape_debug()),
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_shown_is_one_line_of_text() {
        assert_eq!(escaped(b"a b"), r#""a b""#);
        assert_eq!(escaped(b"it's\n\xff\x1b[31m"), r#""it's\n\xff\u{1b}[31m""#);
        assert_eq!(escaped("größe".as_bytes()), "\"größe\"");
        assert_eq!(escaped(&[b'x'; 1000]).len(), 205);
        assert_eq!(escaped(b"\"a\\"), r#""\"a\\""#);
        assert_eq!(shown(b"it's \"a\\b\"\t\n"), r#"it's "a\\b"\t\n"#);
    }
}
