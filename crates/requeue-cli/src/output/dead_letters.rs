//! Files of keys that were not done, in the form in which keys come in: so that they can.

use std::collections::HashMap;
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::command::escaped;
use crate::exit::Refusal;
use crate::files::{self, Identity, Replaced, identity, standard};
use crate::input::{Format, Key, Kind, Records};
use crate::json::Written;
use crate::patient::Patient;
use crate::source::Input;

/// Says which file of which flag is the trouble.
pub(crate) fn refusal(flag: &str, path: &Path, error: &io::Error) -> Refusal {
    let name = escaped(path.as_os_str().as_bytes());
    Refusal::failure(format!("{flag} {name}: {error}"))
}

/// The files, opened before anything is read.
#[derive(Debug)]
pub(crate) struct Letters {
    format: Format,
    dead: Option<Mutex<Patient>>,
    /// Which files they are.
    are: [Option<Identity>; 2],
    unfinished: Option<Unfinished>,
}

#[derive(Debug)]
enum Unfinished {
    Stream(Mutex<Patient>),
    File(Replaced),
}

/// Why a key was given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Death<'a> {
    pub(crate) attempts: u32,
    pub(crate) exit: Option<i32>,
    pub(crate) why: &'a str,
    pub(crate) priority: i32,
}

/// What there is to say of a key that was not run, besides its name.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub(crate) struct Pending {
    pub(crate) after: Option<Duration>,
    pub(crate) priority: i32,
}

/// What was read and not looked at any more.
pub(crate) struct Rest {
    pub(crate) record: Option<Vec<u8>>,
    pub(crate) records: Records<BufReader<Input>>,
}

impl Letters {
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
            // What fails would be read again, for ever.
            return Err(Refusal::usage("--dead-letter: that file is the input"));
        }
        let unfinished = unfinished
            .map(|path| open_unfinished(path).map_err(|e| refusal("--unfinished", path, &e)));
        let (unfinished, unfinished_is) = unfinished.transpose()?.unzip();
        let unfinished_is = unfinished_is.flatten();
        if dead_is.is_some() && dead_is == unfinished_is {
            return Err(Refusal::usage("--dead-letter and --unfinished: one file each"));
        }
        let are = [dead_is, unfinished_is];
        Ok(Self { format, dead: dead.map(Mutex::new), are, unfinished })
    }

    pub(crate) fn has(&self, file: Identity) -> bool {
        self.are.contains(&Some(file))
    }

    pub(crate) const fn has_unfinished(&self) -> bool {
        self.unfinished.is_some()
    }

    /// Whether more can be said of a key than its name.
    pub(crate) fn tells(&self) -> bool {
        self.format.kind == Kind::Json
    }

    /// Appends a key that was given up.
    pub(crate) fn bury(&self, key: &[u8], death: Death<'_>) -> io::Result<()> {
        let Some(file) = &self.dead else { return Ok(()) };
        let record = self.record(key, |written| {
            written.priority = death.priority;
            written.attempts = Some(death.attempts);
            written.exit = death.exit;
            written.why = Some(death.why);
            written.given_up_at = Some(jiff::Timestamp::now().to_string());
        });
        // In one, so that whoever follows the file sees whole records.
        file.lock().unwrap_or_else(PoisonError::into_inner).write_all(&record)
    }

    fn record<'a>(&self, key: &'a [u8], tell: impl FnOnce(&mut Written<'a>)) -> Vec<u8> {
        let mut record = match self.format.kind {
            Kind::Lines => key.to_vec(),
            Kind::Json => {
                let mut written = Written::of(key);
                tell(&mut written);
                written.to_bytes()
            }
        };
        record.push(self.format.delimiter);
        record
    }

    /// Writes what was not run: keys, and then what is left of the input. The file is replaced by
    /// that, if it is one, in one step; it may well be the input.
    pub(crate) fn leave(
        &self,
        keys: &[Key],
        pending: &HashMap<Key, Pending>,
        rest: Option<Rest>,
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
        rest: Option<Rest>,
    ) -> io::Result<()> {
        let mut out = BufWriter::with_capacity(64 << 10, file);
        for key in keys {
            let known = pending.get(key).copied().unwrap_or_default();
            out.write_all(&self.record(key, |written| {
                written.after = known.after.map(|after| after.as_secs_f64());
                written.priority = known.priority;
            }))?;
        }
        if let Some(Rest { record, mut records }) = rest {
            let mut put = |record: &[u8]| {
                out.write_all(record)?;
                out.write_all(&[self.format.delimiter])
            };
            if let Some(record) = record {
                put(&record)?;
            }
            // Records that are too long are no keys, and not kept.
            while let Some(record) = records.next()? {
                let record = record.map(<[u8]>::to_vec);
                // The start of one whose end has not come is none.
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

fn open_dead(path: &Path) -> io::Result<(Patient, Option<Identity>)> {
    if let Some(stream) = standard(path) {
        return Ok((stream?, None));
    }
    let file = files::append(path)?;
    let identity = identity(&file.metadata()?);
    Ok((Patient::new(file), identity))
}

fn open_unfinished(path: &Path) -> io::Result<(Unfinished, Option<Identity>)> {
    if let Some(stream) = standard(path) {
        return Ok((Unfinished::Stream(Mutex::new(stream?)), None));
    }
    let file = Replaced::open(path)?;
    let identity = file.identity()?;
    Ok((Unfinished::File(file), identity))
}
