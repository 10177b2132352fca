//! The file of the keys that were given up. It has the format of the input, so that a later `requeue` can read it.

use std::io::{self, Write};
use std::path::Path;

use parking_lot::Mutex;

use crate::exit::Refusal;
use crate::input::json::Written;
use crate::input::{Format, Kind};
use crate::output::blocking_file::BlockingFile;
use crate::output::files::{self, Identity};

/// The file of `--dead-letter`, if the flag is set. The file is opened before any input is read.
#[derive(Debug)]
pub(crate) struct DeadLetters {
    format: Format,
    file: Option<Mutex<BlockingFile>>,
    pub(crate) identity: Option<Identity>,
}

/// The data about a key that was given up.
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
        // The input must not be this file. Otherwise, each key that is given up would be read again.
        let open = |path| files::open_file("--dead-letter", path, files::open_to_append, input);
        let (file, identity) = path.map(open).transpose()?.unzip();
        let identity = identity.flatten();
        Ok(Self { format, file: file.map(Mutex::new), identity })
    }

    /// Appends a key that was given up. Does nothing if `--dead-letter` is missing.
    pub(crate) fn write_letter(&self, key: &[u8], letter: DeadLetter<'_>) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let mut record = match self.format.kind {
            Kind::Lines => key.to_vec(),
            Kind::Json => {
                let mut written = Written::of_key(key);
                written.priority = letter.priority;
                written.attempts = Some(letter.attempts);
                written.exit = letter.exit;
                written.why = Some(letter.why);
                written.given_up_at = Some(jiff::Timestamp::now().to_string());
                written.to_bytes()
            }
        };
        record.push(self.format.delimiter);
        // Each record is written with one call, so that a process that follows the file sees whole records.
        file.lock().write_all(&record)
    }
}
