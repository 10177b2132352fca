//! Whether the command exists, before anything is read, and how many can run.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::Access;
use rustix::process::{Resource, getrlimit};

use crate::exit::{Exit, Refusal};
use crate::template::Template;

/// Looks for the command as exec will, unless its name depends on the key.
pub(crate) fn find(template: &Template) -> Result<(), Refusal> {
    let Some(program) = template.fixed_program() else { return Ok(()) };
    let exit = if program.as_bytes().contains(&b'/') {
        look(Path::new(&program))
    } else {
        let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
        look_in_path(&path, &program)
    };
    let why = match exit {
        None => return Ok(()),
        Some(Exit::NotExecutable) => "can't be executed",
        Some(_) => "not found",
    };
    let message = format!("{}: {why}", escaped(program.as_bytes()));
    Err(Refusal { exit: exit.unwrap_or(Exit::NotFound), message })
}

fn look_in_path(path: &OsStr, program: &OsStr) -> Option<Exit> {
    let mut found = Exit::NotFound;
    for directory in std::env::split_paths(path) {
        match look(&directory.join(program)) {
            None => return None,
            Some(Exit::NotExecutable) => found = Exit::NotExecutable,
            Some(_) => {}
        }
    }
    Some(found)
}

/// Why `program` can't be run, if so.
fn look(program: &Path) -> Option<Exit> {
    match std::fs::metadata(program) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Some(Exit::NotExecutable),
        Err(_) => Some(Exit::NotFound),
        Ok(metadata) if metadata.is_file() => {
            rustix::fs::access(program, Access::EXEC_OK).is_err().then_some(Exit::NotExecutable)
        }
        Ok(_) => Some(Exit::NotExecutable),
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
