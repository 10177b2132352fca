//! Keys from a stream of bytes.

use std::fmt;
use std::io::{self, BufRead, ErrorKind};

/// What is coalesced, retried and exclusive: the bytes of a record. Boxed, as a million of them may
/// be held.
pub(crate) type Key = Box<[u8]>;

/// The longest key, in bytes: what exec takes as one argument, on Linux.
pub(crate) const LONGEST: usize = 131_071;

/// Reads records, and keeps no more of one than a key can have.
pub(crate) struct Records<R> {
    from: R,
    delimiter: u8,
    number: u64,
    record: Vec<u8>,
}

/// A record that is no key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Bad {
    /// The first record has number 1; empty ones count.
    pub(crate) number: u64,
    pub(crate) why: Why,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Why {
    Nul,
    /// How long it was.
    TooLong(u64),
}

impl fmt::Display for Bad {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {}: ", self.number)?;
        match self.why {
            Why::Nul => f.write_str("no key: it has a NUL byte, which no argument can have"),
            Why::TooLong(bytes) => {
                write!(f, "no key: it has {bytes} bytes, an argument can have {LONGEST}")
            }
        }
    }
}

impl<R: BufRead> Records<R> {
    pub(crate) const fn new(from: R, delimiter: u8) -> Self {
        Self { from, delimiter, number: 0, record: Vec::new() }
    }

    /// The next key; empty records are skipped. `None` at the end.
    pub(crate) fn next(&mut self) -> io::Result<Option<Result<&[u8], Bad>>> {
        loop {
            let Some(length) = self.read()? else { return Ok(None) };
            self.number += 1;
            let number = self.number;
            if length > LONGEST as u64 {
                return Ok(Some(Err(Bad { number, why: Why::TooLong(length) })));
            }
            if self.record.contains(&b'\0') {
                return Ok(Some(Err(Bad { number, why: Why::Nul })));
            }
            if length > 0 {
                return Ok(Some(Ok(&self.record)));
            }
        }
    }

    /// Reads one record, and says how long it was.
    fn read(&mut self) -> io::Result<Option<u64>> {
        self.record.clear();
        let mut length = 0;
        loop {
            let buffer = match self.from.fill_buf() {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                buffer => buffer?,
            };
            if buffer.is_empty() {
                // A last record without its delimiter counts.
                return Ok((length > 0).then_some(length));
            }
            let end = buffer.iter().position(|&byte| byte == self.delimiter);
            let piece = &buffer[..end.unwrap_or(buffer.len())];
            let room = LONGEST - self.record.len();
            self.record.extend_from_slice(&piece[..piece.len().min(room)]);
            length += piece.len() as u64;
            let used = piece.len() + usize::from(end.is_some());
            self.from.consume(used);
            if end.is_some() {
                return Ok(Some(length));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};

    use super::*;

    fn all(input: &[u8], delimiter: u8) -> Vec<Result<Vec<u8>, Bad>> {
        // A buffer of 3 bytes cuts records everywhere.
        let mut records = Records::new(BufReader::with_capacity(3, input), delimiter);
        let mut all = Vec::new();
        while let Some(record) = records.next().unwrap() {
            all.push(record.map(<[u8]>::to_vec));
        }
        all
    }

    #[test]
    fn every_byte_but_the_delimiter_is_the_keys() {
        assert_eq!(
            all(b"a\n b \r\n\n\xff\xfe\nlast", b'\n'),
            [&b"a"[..], b" b \r", b"\xff\xfe", b"last"].map(|key| Ok(key.to_vec()))
        );
        assert_eq!(all(b"a\nb\0\0c", b'\0'), [&b"a\nb"[..], b"c"].map(|key| Ok(key.to_vec())));
        assert_eq!(all(b"", b'\n'), []);
    }

    #[test]
    fn what_is_no_key_is_named_and_the_rest_goes_on() {
        let long = vec![b'x'; LONGEST];
        let input = [b"a\n\nb\0c\n", &long[..], b"\n", &long, b"y\nd"].concat();
        assert_eq!(
            all(&input, b'\n'),
            [
                Ok(b"a".to_vec()),
                Err(Bad { number: 3, why: Why::Nul }),
                Ok(long),
                Err(Bad { number: 5, why: Why::TooLong(LONGEST as u64 + 1) }),
                Ok(b"d".to_vec()),
            ]
        );
    }

    #[test]
    fn a_record_without_end_is_not_kept() {
        let endless = io::repeat(b'x').take(1 << 26);
        let mut records = Records::new(BufReader::new(endless), b'\n');
        assert!(matches!(
            records.next(),
            Ok(Some(Err(Bad { number: 1, why: Why::TooLong(length) }))) if length == 1 << 26
        ));
        assert!(records.record.capacity() < 1 << 20);
    }
}
