//! The file of keys that were given up. It has the format of the input, so that a later run can read it.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use crate::exit::Refusal;
use crate::input::json::Written;
use crate::input::{Format, Kind};
use crate::key::escaped;
use crate::output::blocking_file::BlockingFile;
use crate::output::files::{self, Identity, identity, standard};

/// Returns a refusal that names the flag and the file of an error.
pub(crate) fn refusal(flag: &str, path: &Path, error: &io::Error) -> Refusal {
    let name = escaped(path.as_os_str().as_bytes());
    Refusal::failure(format!("{flag} {name}: {error}"))
}

/// The file of `--dead-letter`, if there is one. It is opened before any input is read.
#[derive(Debug)]
pub(crate) struct DeadLetters {
    format: Format,
    file: Option<Mutex<BlockingFile>>,
    identity: Option<Identity>,
}

/// The reason why a key was given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeadLetter<'a> {
    pub(crate) attempts: u32,
    pub(crate) exit: Option<i32>,
    pub(crate) why: &'a str,
    pub(crate) priority: i32,
}

impl DeadLetters {
    pub(crate) fn open(
        format: Format,
        path: Option<&Path>,
        input: Option<Identity>,
    ) -> Result<Self, Refusal> {
        let opened = path.map(|path| open(path).map_err(|e| refusal("--dead-letter", path, &e)));
        let (file, identity) = opened.transpose()?.unzip();
        let identity = identity.flatten();
        if identity.is_some() && identity == input {
            // Failed keys would be read again and again.
            return Err(Refusal::usage("--dead-letter: the file is the input; name another file"));
        }
        Ok(Self { format, file: file.map(Mutex::new), identity })
    }

    pub(crate) fn is(&self, file: Identity) -> bool {
        self.identity == Some(file)
    }

    /// Appends a key that was given up.
    pub(crate) fn write(&self, key: &[u8], letter: DeadLetter<'_>) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let mut record = match self.format.kind {
            Kind::Lines => key.to_vec(),
            Kind::Json => {
                let mut written = Written::of(key);
                written.priority = letter.priority;
                written.attempts = Some(letter.attempts);
                written.exit = letter.exit;
                written.why = Some(letter.why);
                written.given_up_at = Some(jiff::Timestamp::now().to_string());
                written.to_bytes()
            }
        };
        record.push(self.format.delimiter);
        // One write, so that a process that follows the file sees whole records.
        file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&record)
    }
}

fn open(path: &Path) -> io::Result<(BlockingFile, Option<Identity>)> {
    if let Some(stream) = standard(path) {
        return Ok((stream?, None));
    }
    let file = files::append(path)?;
    let identity = identity(&file.metadata()?);
    Ok((BlockingFile::new(file), identity))
}
