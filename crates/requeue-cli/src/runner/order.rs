//! `--keep-order`: writes the output of commands in the order in which their keys first started.
//!
//! A key receives a place when it first starts. It keeps the place through all its retries, until it completes. Output
//! of a later place is held until all earlier places are over. All held output is in one temporary file, whereas GNU
//! parallel needs a file per key.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::RandomState;
use std::io::{self, Read, Seek, SeekFrom, Write};

use parking_lot::Mutex;
use tempfile::SpooledTempFile;

use crate::key::Key;
use crate::output::Output;

/// The maximum number of held bytes in memory. If more bytes are held, all of them move to a temporary file.
const IN_MEMORY: usize = 8 << 20;

/// The places of the keys, and the held output.
#[derive(Debug, Default)]
pub(super) struct OutputOrder {
    /// A slot holds this lock while it takes a key from the queue and gives the key its place.
    turn: tokio::sync::Mutex<()>,
    places: Mutex<Places>,
    held: tokio::sync::Mutex<Held>,
}

#[derive(Debug, Default)]
struct Places {
    /// The places of keys that have started and have not completed.
    of_keys: HashMap<Key, u64, RandomState>,
    next: u64,
    /// The places whose keys have completed, and whose output is not yet written.
    over: BTreeSet<u64>,
}

#[derive(Debug, Default)]
struct Held {
    /// The lowest place that is not over.
    first: u64,
    /// The held output of each place, as positions in `file`.
    outputs: BTreeMap<u64, Vec<Piece>>,
    file: Option<SpooledTempFile>,
}

/// The held output of one run: its position in the file, and the lengths of its two streams in bytes.
#[derive(Debug)]
struct Piece {
    run: u64,
    start: u64,
    stdout: u64,
    stderr: u64,
}

impl OutputOrder {
    /// Waits until this slot alone may take a key from the queue. Cancel safe.
    pub(super) async fn wait_for_turn(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Gives `key` the next place, unless the key has a place from an earlier attempt.
    pub(super) fn give_place(&self, key: &Key) {
        let mut places = self.places.lock();
        if !places.of_keys.contains_key(key) {
            let place = places.next;
            places.next += 1;
            places.of_keys.insert(key.clone(), place);
        }
    }

    /// Marks the place of `key` as over. The caller must call this when a key completes, before the key can start
    /// again.
    pub(super) fn end_place(&self, key: &[u8]) {
        let mut places = self.places.lock();
        if let Some(place) = places.of_keys.remove(key) {
            places.over.insert(place);
        }
    }

    /// Writes the output of a run if all earlier places are over. Otherwise, holds it.
    pub(super) async fn write_or_hold(
        &self,
        output: &Output,
        key: &[u8],
        run: u64,
        kept: [SpooledTempFile; 2],
    ) -> io::Result<()> {
        // The key is in flight, so no other task changes its place while this call waits for the lock of `held`.
        let place = self.places.lock().of_keys.get(key).copied();
        let mut held = self.held.lock().await;
        self.release_into(output, &mut held).await?;
        match place {
            Some(place) if place > held.first => {
                tokio::task::block_in_place(|| held.hold_output(place, run, kept))
            }
            _ => {
                output.write_kept(run, kept).await;
                Ok(())
            }
        }
    }

    /// Writes all held output whose earlier places are over.
    pub(super) async fn release_due(&self, output: &Output) -> io::Result<()> {
        let mut held = self.held.lock().await;
        self.release_into(output, &mut held).await
    }

    async fn release_into(&self, output: &Output, held: &mut Held) -> io::Result<()> {
        loop {
            // The held output of the first place is written before the check for `over`. If the place is over, the
            // loop moves to the next place and never returns to this one.
            held.write_place(output, held.first).await?;
            if !self.places.lock().over.remove(&held.first) {
                return Ok(());
            }
            held.first += 1;
        }
    }

    /// Writes all held output when the program ends. Some earlier places may still be open, because a stopped program
    /// leaves keys in the queue.
    pub(super) async fn release_all(&self, output: &Output) -> io::Result<()> {
        let mut held = self.held.lock().await;
        while let Some((&place, _)) = held.outputs.first_key_value() {
            held.write_place(output, place).await?;
        }
        Ok(())
    }
}

impl Held {
    fn hold_output(
        &mut self,
        place: u64,
        run: u64,
        output: [SpooledTempFile; 2],
    ) -> io::Result<()> {
        let file = self.file.get_or_insert_with(|| SpooledTempFile::new(IN_MEMORY));
        // Reads of other pieces have moved the position of the file, so it is set to the end.
        let start = file.seek(SeekFrom::End(0))?;
        let mut lengths = [0; 2];
        for (mut stream, length) in output.into_iter().zip(&mut lengths) {
            stream.rewind()?;
            *length = io::copy(&mut stream, file)?;
        }
        let [stdout, stderr] = lengths;
        if stdout + stderr > 0 {
            self.outputs.entry(place).or_default().push(Piece { run, start, stdout, stderr });
        }
        Ok(())
    }

    /// Writes the held output of a place. When the last held output is written, drops the file to free its space.
    async fn write_place(&mut self, output: &Output, place: u64) -> io::Result<()> {
        for piece in self.outputs.remove(&place).unwrap_or_default() {
            let kept = tokio::task::block_in_place(|| self.read_piece(&piece))?;
            output.write_kept(piece.run, kept).await;
        }
        // Without this drop, the file would grow until the program ends.
        if self.outputs.is_empty() {
            self.file = None;
        }
        Ok(())
    }

    fn read_piece(&mut self, piece: &Piece) -> io::Result<[SpooledTempFile; 2]> {
        let mut streams = [(); 2].map(|()| SpooledTempFile::new(IN_MEMORY));
        if let Some(file) = &mut self.file {
            file.seek(SeekFrom::Start(piece.start))?;
            for (stream, length) in streams.iter_mut().zip([piece.stdout, piece.stderr]) {
                io::copy(&mut file.take(length), stream)?;
            }
        }
        Ok(streams)
    }
}

/// Returns `line` as the output of a command that `--dry-run` prints instead of running it.
pub(super) fn printed_output(line: &str) -> io::Result<[SpooledTempFile; 2]> {
    let [mut stdout, stderr] = [(); 2].map(|()| SpooledTempFile::new(IN_MEMORY));
    stdout.write_all(line.as_bytes())?;
    Ok([stdout, stderr])
}
