//! Files of keys that were not done, in the form in which keys come in: so that they can.

use std::collections::HashMap;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, BufReader, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::command::escaped;
use crate::exit::Refusal;
use crate::input::{Format, Key, Kind, Records};
use crate::json::Written;
use crate::patient::Patient;
use crate::source::Input;

/// Which file a handle is of.
pub(crate) type Identity = (u64, u64);

pub(crate) fn identity(of: &Metadata) -> Option<Identity> {
    // Terminals and the like can well be several things at once.
    of.is_file().then(|| (of.dev(), of.ino()))
}

/// Opens what has this name, which it will be added to.
fn open(flag: &str, path: &Path) -> Result<(Patient, Option<Identity>), Refusal> {
    let opened = match standard(path) {
        Some(stream) => stream.map(|stream| (stream, None)),
        None => OpenOptions::new().append(true).create(true).open(path).and_then(|file| {
            let identity = identity(&file.metadata()?);
            Ok((Patient::new(file), identity))
        }),
    };
    opened.map_err(|error| {
        let name = escaped(path.as_os_str().as_bytes());
        Refusal::failure(format!("{flag} {name}: {error}"))
    })
}

/// Our own handle to the standard stream that has this name. Another one would have a place of its
/// own in a file, and each would write over what the other has written.
pub(crate) fn standard(path: &Path) -> Option<io::Result<Patient>> {
    match open_number(path)? {
        "1" => Some(Patient::own(io::stdout())),
        "2" => Some(Patient::own(io::stderr())),
        _ => None,
    }
}

/// The number of what is open already and has this name, like `/dev/stdout`: what has been written
/// there would be lost with a file that was replaced.
fn open_number(path: &Path) -> Option<&str> {
    match path.to_str()? {
        "/dev/stdout" => Some("1"),
        "/dev/stderr" => Some("2"),
        path => path.strip_prefix("/dev/fd/").or_else(|| path.strip_prefix("/proc/self/fd/")),
    }
}

/// The files, opened before anything is read.
#[derive(Debug)]
pub(crate) struct Letters {
    format: Format,
    dead: Option<Mutex<Patient>>,
    /// Which files they are.
    are: [Option<Identity>; 2],
    unfinished: Option<PathBuf>,
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
        unfinished: Option<PathBuf>,
        input: Option<Identity>,
    ) -> Result<Self, Refusal> {
        let dead = dead.map(|path| open("--dead-letter", path)).transpose()?;
        let dead_is = dead.as_ref().and_then(|&(_, identity)| identity);
        if dead_is.is_some() && dead_is == input {
            // What fails would be read again, for ever.
            return Err(Refusal::usage("--dead-letter: that file is the input"));
        }
        let mut unfinished_is = None;
        if let Some(path) = &unfinished {
            (_, unfinished_is) = open("--unfinished", path)?;
            if dead_is.is_some() && dead_is == unfinished_is {
                return Err(Refusal::usage("--dead-letter and --unfinished: one file each"));
            }
        }
        let are = [dead_is, unfinished_is];
        Ok(Self { format, dead: dead.map(|(file, _)| Mutex::new(file)), are, unfinished })
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
        let Some(path) = &self.unfinished else { return Ok(()) };
        if let Some(stream) = standard(path) {
            return self.write(stream?, keys, pending, rest);
        }
        let metadata = path.metadata()?;
        if !metadata.is_file() || open_number(path).is_some() {
            return self.write(OpenOptions::new().append(true).open(path)?, keys, pending, rest);
        }
        let path = path.canonicalize()?;
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(format!(".{}", std::process::id()));
        let new = path.with_file_name(name);
        let written = File::create(&new)
            .and_then(|file| self.write(file, keys, pending, rest))
            .and_then(|()| fs::set_permissions(&new, metadata.permissions()))
            .and_then(|()| fs::rename(&new, &path));
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        written
    }

    fn write(
        &self,
        file: impl Write,
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
