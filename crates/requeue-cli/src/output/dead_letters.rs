//! The files of keys that were given up, and of unfinished keys. They have the format of the input, so that a later
//! run can read them.

use std::collections::HashMap;
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::exit::Refusal;
use crate::input::json::Written;
use crate::input::source::Input;
use crate::input::{Format, Kind, Records};
use crate::key::Key;
use crate::key::escaped;
use crate::output::blocking_file::BlockingFile;
use crate::output::files::{self, Identity, Replaced, identity, standard};

/// Returns a refusal that names the flag and the file of an error.
pub(crate) fn refusal(flag: &str, path: &Path, error: &io::Error) -> Refusal {
    let name = escaped(path.as_os_str().as_bytes());
    Refusal::failure(format!("{flag} {name}: {error}"))
}

/// The two files. They are opened before any input is read.
#[derive(Debug)]
pub(crate) struct KeyFiles {
    format: Format,
    dead: Option<Mutex<BlockingFile>>,
    identities: [Option<Identity>; 2],
    unfinished: Option<Unfinished>,
}

#[derive(Debug)]
enum Unfinished {
    Stream(Mutex<BlockingFile>),
    File(Replaced),
}

/// The reason why a key was given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeadLetter<'a> {
    pub(crate) attempts: u32,
    pub(crate) exit: Option<i32>,
    pub(crate) why: &'a str,
    pub(crate) priority: i32,
}

/// The time and priority of a key that has not run.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Pending {
    pub(crate) after: Option<Duration>,
    pub(crate) priority: i32,
}

/// The rest of the input when reading stopped: the last record, and those that follow.
pub(crate) struct UnreadInput {
    pub(crate) record: Option<Vec<u8>>,
    pub(crate) records: Records<BufReader<Input>>,
}

impl KeyFiles {
    pub(crate) fn open(
        format: Format,
        dead: Option<&Path>,
        unfinished: Option<&Path>,
        input: Option<Identity>,
    ) -> Result<Self, Refusal> {
        let dead = dead.map(|path| open_dead(path).map_err(|e| refusal("--dead-letter", path, &e)));
        let (dead, dead_is) = dead.transpose()?.unzip();
        let dead_is = dead_is.flatten();
        if dead_is.is_some() && dead_is == input {
            // Failed keys would be read again and again.
            return Err(Refusal::usage("--dead-letter: the file is the input; name another file"));
        }
        let unfinished = unfinished
            .map(|path| open_unfinished(path).map_err(|e| refusal("--unfinished", path, &e)));
        let (unfinished, unfinished_is) = unfinished.transpose()?.unzip();
        let unfinished_is = unfinished_is.flatten();
        if dead_is.is_some() && dead_is == unfinished_is {
            return Err(Refusal::usage(
                "--dead-letter and --unfinished: the same file; name two files",
            ));
        }
        let identities = [dead_is, unfinished_is];
        Ok(Self { format, dead: dead.map(Mutex::new), identities, unfinished })
    }

    pub(crate) fn has(&self, file: Identity) -> bool {
        self.identities.contains(&Some(file))
    }

    pub(crate) const fn has_unfinished(&self) -> bool {
        self.unfinished.is_some()
    }

    /// Returns true if records are JSON. A JSON record can contain more than the key.
    pub(crate) fn is_json(&self) -> bool {
        self.format.kind == Kind::Json
    }

    /// Appends a key that was given up.
    pub(crate) fn write_dead_letter(&self, key: &[u8], letter: DeadLetter<'_>) -> io::Result<()> {
        let Some(file) = &self.dead else { return Ok(()) };
        let record = self.record(key, |written| {
            written.priority = letter.priority;
            written.attempts = Some(letter.attempts);
            written.exit = letter.exit;
            written.why = Some(letter.why);
            written.given_up_at = Some(jiff::Timestamp::now().to_string());
        });
        // One write, so that a process that follows the file sees whole records.
        file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&record)
    }

    fn record<'a>(&self, key: &'a [u8], fill: impl FnOnce(&mut Written<'a>)) -> Vec<u8> {
        let mut record = match self.format.kind {
            Kind::Lines => key.to_vec(),
            Kind::Json => {
                let mut written = Written::of(key);
                fill(&mut written);
                written.to_bytes()
            }
        };
        record.push(self.format.delimiter);
        record
    }

    /// Writes the keys that have not run, and then the rest of the input. Replaces a regular file, which may be the
    /// input, in one step.
    pub(crate) fn write_unfinished(
        &self,
        keys: &[Key],
        pending: &HashMap<Key, Pending>,
        rest: Option<UnreadInput>,
    ) -> io::Result<()> {
        match &self.unfinished {
            None => Ok(()),
            Some(Unfinished::Stream(stream)) => {
                let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
                self.write(&mut *stream, keys, pending, rest)
            }
            Some(Unfinished::File(file)) => {
                file.replace(|out| self.write(out, keys, pending, rest))
            }
        }
    }

    fn write(
        &self,
        file: &mut dyn Write,
        keys: &[Key],
        pending: &HashMap<Key, Pending>,
        rest: Option<UnreadInput>,
    ) -> io::Result<()> {
        let mut out = BufWriter::with_capacity(64 << 10, file);
        for key in keys {
            let known = pending.get(key).copied().unwrap_or_default();
            out.write_all(&self.record(key, |written| {
                written.after = known.after.map(|after| after.as_secs_f64());
                written.priority = known.priority;
            }))?;
        }
        if let Some(UnreadInput { record, mut records }) = rest {
            let mut put = |record: &[u8]| {
                out.write_all(record)?;
                out.write_all(&[self.format.delimiter])
            };
            if let Some(record) = record {
                put(&record)?;
            }
            // Records that are too long are not kept: they are not keys.
            while let Some(record) = records.next()? {
                let record = record.map(<[u8]>::to_vec);
                // After a cut, the last record may be incomplete.
                if let Ok(record) = record
                    && !records.from.get_ref().is_cut()
                {
                    put(&record)?;
                }
            }
        }
        out.flush()
    }
}

fn open_dead(path: &Path) -> io::Result<(BlockingFile, Option<Identity>)> {
    if let Some(stream) = standard(path) {
        return Ok((stream?, None));
    }
    let file = files::append(path)?;
    let identity = identity(&file.metadata()?);
    Ok((BlockingFile::new(file), identity))
}

fn open_unfinished(path: &Path) -> io::Result<(Unfinished, Option<Identity>)> {
    if let Some(stream) = standard(path) {
        return Ok((Unfinished::Stream(Mutex::new(stream?)), None));
    }
    let file = Replaced::open(path)?;
    let identity = file.identity()?;
    Ok((Unfinished::File(file), identity))
}
