//! Splits a stream of bytes into records. To limit the memory, only the beginning of a too long record is stored.

use std::borrow::Cow;
use std::io::{self, BufRead, BufReader, ErrorKind, Read};

use crate::input::change::{AddOptions, Bad, Change, Why};
use crate::input::json;
use crate::input::source::Input;
use crate::key::LONGEST;

/// The format of the records in the input. Files of keys that a later `requeue` reads have the same format.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Format {
    pub(crate) kind: Kind,
    pub(crate) delimiter: u8,
    /// The maximum length of a record, in bytes.
    pub(crate) max_record: usize,
}

/// The kind of a record.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Kind {
    /// Each line is a key
    #[default]
    Lines,
    /// Each line is a JSON object with a key
    Json,
}

impl Format {
    /// Returns the change that a record describes.
    pub(crate) fn parse_change(self, record: &[u8]) -> Result<Change<'_>, Why> {
        let change = match self.kind {
            Kind::Lines => Change::Add(Cow::Borrowed(record), AddOptions::default()),
            Kind::Json => json::parse_record(record)?,
        };
        let (Change::Add(key, _) | Change::Cancel(key)) = &change;
        check_key(key)?;
        Ok(change)
    }

    /// Returns the maximum length of a valid record, in bytes.
    fn longest_valid(self) -> usize {
        match self.kind {
            Kind::Lines => self.max_record.min(LONGEST),
            Kind::Json => self.max_record,
        }
    }

    fn too_long(self, bytes: u64) -> Why {
        match self.kind {
            Kind::Lines if self.max_record >= LONGEST => Why::KeyTooLong { bytes, most: LONGEST },
            Kind::Lines | Kind::Json => Why::RecordTooLong { bytes, most: self.max_record },
        }
    }

    /// Returns true if a record is empty.
    fn is_blank(self, record: &[u8]) -> bool {
        match self.kind {
            Kind::Lines => record.is_empty(),
            Kind::Json => record.trim_ascii().is_empty(),
        }
    }
}

/// Checks that this key can be the argument of a command. Returns the reason if it cannot.
pub(crate) fn check_key(key: &[u8]) -> Result<(), Why> {
    match key.len() {
        0 => Err(Why::Empty),
        bytes if bytes > LONGEST => Err(Why::KeyTooLong { bytes: bytes as u64, most: LONGEST }),
        _ if key.contains(&b'\0') => Err(Why::Nul),
        _ => Ok(()),
    }
}

/// Applies the changes that records describe.
pub(crate) trait ChangeSink: Send {
    /// Applies a change. Returns false if the sink accepts no more changes.
    fn take_change(&mut self, change: Change<'_>) -> Result<bool, Why>;

    /// Reports an invalid record.
    fn refuse_record(&mut self, bad: &Bad);

    /// Waits until all changes are applied. The reader thread calls this when it must wait for the next record.
    /// Returns false if the sink accepts no more changes.
    fn apply_pending(&mut self) -> bool;

    /// Tells the sink that the input has ended. The reader thread calls this once, after all changes are applied.
    fn end_input(&mut self) {}
}

/// Passes the change of each record to `sink`. Returns true at the end of the input. Returns false if the sink accepts
/// no more changes, or if the reading was stopped.
pub(crate) fn read_changes(
    input: Input,
    format: Format,
    sink: &mut dyn ChangeSink,
) -> io::Result<bool> {
    let mut records = Records::new(BufReader::with_capacity(64 << 10, input), format);
    loop {
        if !records.has_next() && !sink.apply_pending() {
            return Ok(false);
        }
        let is_valid = match records.next_record()? {
            Some(Ok(_)) => true,
            Some(Err(bad)) => {
                sink.refuse_record(&bad);
                false
            }
            None => {
                // Empty or invalid records at the end of the input have caused no call of `apply_pending`.
                sink.apply_pending();
                return Ok(!records.from.get_ref().is_cut);
            }
        };
        if records.from.get_ref().is_cut {
            // The reading was stopped, possibly within a record, so the last record may be incomplete.
            return Ok(false);
        }
        if is_valid {
            match format.parse_change(&records.record).and_then(|change| sink.take_change(change)) {
                Ok(true) => {}
                Ok(false) => return Ok(false),
                Err(why) => sink.refuse_record(&Bad { number: records.number, why }),
            }
        }
    }
}

/// Reads records from `from`.
pub(crate) struct Records<R> {
    pub(crate) from: R,
    format: Format,
    /// The number of the last record. The first record has number 1.
    pub(crate) number: u64,
    /// The last record, without its delimiter.
    record: Vec<u8>,
    has_ended: bool,
}

impl<R: Read> Records<BufReader<R>> {
    /// Returns true if the next record can be read without waiting for input.
    pub(crate) fn has_next(&self) -> bool {
        self.from.buffer().contains(&self.format.delimiter)
    }
}

impl<R: BufRead> Records<R> {
    pub(crate) const fn new(from: R, format: Format) -> Self {
        Self { from, format, number: 0, record: Vec::new(), has_ended: false }
    }

    /// Reads the next record. Skips empty records. Returns `None` at the end of the input.
    pub(crate) fn next_record(&mut self) -> io::Result<Option<Result<&[u8], Bad>>> {
        loop {
            let Some(length) = self.read_record()? else { return Ok(None) };
            self.number += 1;
            if length > self.format.longest_valid() as u64 {
                let why = self.format.too_long(length);
                return Ok(Some(Err(Bad { number: self.number, why })));
            }
            if !self.format.is_blank(&self.record) {
                return Ok(Some(Ok(&self.record)));
            }
        }
    }

    /// Reads one record, and returns its length in bytes. Returns `None` at the end of the input.
    fn read_record(&mut self) -> io::Result<Option<u64>> {
        self.record.clear();
        let mut length = 0;
        // The end of the input is stored. On a terminal, another read after Ctrl-D would wait for more input.
        while !self.has_ended {
            let buffer = match self.from.fill_buf() {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                buffer => buffer?,
            };
            if buffer.is_empty() {
                self.has_ended = true;
                break;
            }
            let end = buffer.iter().position(|&byte| byte == self.format.delimiter);
            let piece = &buffer[..end.unwrap_or(buffer.len())];
            // Bytes beyond the maximum length are counted but not stored.
            let room = self.format.longest_valid() - self.record.len();
            self.record.extend_from_slice(&piece[..piece.len().min(room)]);
            length += piece.len() as u64;
            let used = piece.len() + usize::from(end.is_some());
            self.from.consume(used);
            if end.is_some() {
                return Ok(Some(length));
            }
        }
        // The last record may have no delimiter.
        Ok((length > 0).then_some(length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: Format = Format { kind: Kind::Lines, delimiter: b'\n', max_record: 1 << 20 };

    fn all(input: &[u8], format: Format) -> Vec<Result<Vec<u8>, Bad>> {
        // With a buffer of 3 bytes, reads end at every position of a record.
        let mut records = Records::new(BufReader::with_capacity(3, input), format);
        let mut all = Vec::new();
        while let Some(record) = records.next_record().unwrap() {
            let record = record.map(<[u8]>::to_vec);
            let number = records.number;
            all.push(record.and_then(|record| match format.parse_change(&record) {
                Ok(Change::Add(key, _)) => Ok(key.to_vec()),
                Ok(Change::Cancel(_)) => unreachable!("no line cancels"),
                Err(why) => Err(Bad { number, why }),
            }));
        }
        all
    }

    #[test]
    fn every_byte_but_the_delimiter_is_the_keys() {
        assert_eq!(
            all(b"a\n b \r\n\n\xff\xfe\nlast", LINES),
            [&b"a"[..], b" b \r", b"\xff\xfe", b"last"].map(|key| Ok(key.to_vec()))
        );
        let nul = Format { delimiter: b'\0', ..LINES };
        assert_eq!(all(b"a\nb\0\0c", nul), [&b"a\nb"[..], b"c"].map(|key| Ok(key.to_vec())));
        assert_eq!(all(b"", LINES), []);
    }

    #[test]
    fn what_is_no_key_is_named_and_the_rest_goes_on() {
        let long = vec![b'x'; LONGEST];
        let input = [b"a\n\nb\0c\n", &long[..], b"\n", &long, b"y\nd"].concat();
        assert_eq!(
            all(&input, LINES),
            [
                Ok(b"a".to_vec()),
                Err(Bad { number: 3, why: Why::Nul }),
                Ok(long),
                Err(Bad {
                    number: 5,
                    why: Why::KeyTooLong { bytes: LONGEST as u64 + 1, most: LONGEST }
                }),
                Ok(b"d".to_vec()),
            ]
        );
    }

    #[test]
    fn an_end_is_the_end_even_if_it_comes_within_a_record() {
        // A terminal on which the user has pressed Ctrl-D. One read returns the end of the input, and the next read
        // would wait for more input.
        struct Terminal(u8);
        impl Read for Terminal {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.0 += 1;
                match self.0 {
                    1 => b"a\nb".as_slice().read(buffer),
                    2 => Ok(0),
                    _ => panic!("it waits for more"),
                }
            }
        }
        let mut records = Records::new(BufReader::new(Terminal(0)), LINES);
        for key in ["a", "b"] {
            assert_eq!(records.next_record().unwrap(), Some(Ok(key.as_bytes())));
        }
        assert_eq!(records.next_record().unwrap(), None);
    }

    #[test]
    fn a_record_can_be_held_to_less() {
        let short = Format { max_record: 3, ..LINES };
        let why = Why::RecordTooLong { bytes: 4, most: 3 };
        assert_eq!(
            all(b"abc\nabcd\ne", short),
            [Ok(b"abc".to_vec()), Err(Bad { number: 2, why }), Ok(b"e".to_vec())]
        );
    }

    #[test]
    fn a_record_without_end_is_not_kept() {
        let endless = io::repeat(b'x').take(1 << 26);
        let mut records = Records::new(BufReader::new(endless), LINES);
        assert!(matches!(
            records.next_record(),
            Ok(Some(Err(Bad { number: 1, why: Why::KeyTooLong { bytes: length, .. } }))) if length == 1 << 26
        ));
        assert!(records.record.capacity() < 1 << 20);
    }
}
