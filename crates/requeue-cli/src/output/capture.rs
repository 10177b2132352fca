//! The pipes of a command: its output, in whole lines, and its standard input.

use std::io::{self, Write};
use std::pin::pin;
use std::time::Duration;

use tempfile::SpooledTempFile;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::ChildStdin;
use tokio::sync::watch;

use crate::output::{LONGEST_LINE, Output, Stream};

/// The time after the exit of a process that its pipes are read.
const GRACE: Duration = Duration::from_millis(250);
/// How much they can hold.
const PIPE: usize = 1 << 20;
/// How much of a stream is kept in memory until its command has ended.
const IN_MEMORY: usize = 1 << 20;

/// The destination of one stream of a command.
#[derive(Debug)]
pub(crate) struct Sink<'a> {
    output: &'a Output,
    stream: Stream,
    source: u64,
    tag: Option<Vec<u8>>,
    is_in_line: bool,
    /// All of it so far, if it is to go out in one.
    kept: Option<SpooledTempFile>,
    /// Bytes that were read.
    pub(crate) received: u64,
}

impl<'a> Sink<'a> {
    pub(crate) fn new(output: &'a Output, stream: Stream, source: u64) -> Self {
        Self { output, stream, source, tag: None, is_in_line: false, kept: None, received: 0 }
    }

    /// Begins each line with this.
    pub(crate) fn tag(self, tag: Option<Vec<u8>>) -> Self {
        Self { tag, ..self }
    }

    /// Keeps everything until the end: what is long, in a file without a name.
    pub(crate) fn keep(self) -> Self {
        Self { kept: Some(SpooledTempFile::new(IN_MEMORY)), ..self }
    }

    /// The kept output.
    pub(crate) fn into_kept(self) -> Option<SpooledTempFile> {
        self.kept
    }

    /// Takes what `from` has, to its end, or until a while after `exited`.
    pub(crate) async fn copy(
        &mut self,
        from: Option<impl AsyncRead + Unpin>,
        exited: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let Some(mut from) = from else { return Ok(()) };
        let mut grace_over = pin!(after(exited.clone(), GRACE));
        let mut lines = Lines::default();
        let mut late = 0;
        while late <= PIPE {
            let new = tokio::select! {
                // Output that is in the pipe is read, however late it is.
                biased;
                read = from.read_buf(lines.buffer()) => match read {
                    Ok(0) | Err(_) => break,
                    Ok(new) => new,
                },
                () = &mut grace_over => break,
            };
            self.received += new as u64;
            if let Some(whole) = lines.whole(new)
                && !self.put(whole).await?
            {
                // This closes the pipe: the command gets SIGPIPE.
                return Ok(());
            }
            late += if *exited.borrow() { new } else { 0 };
        }
        if let Some(rest) = lines.rest() {
            self.put(rest).await?;
        }
        Ok(())
    }

    /// `false` if standard output is closed.
    async fn put(&mut self, bytes: Vec<u8>) -> io::Result<bool> {
        let bytes = self.tagged(bytes);
        match &mut self.kept {
            Some(kept) => kept.write_all(&bytes).map(|()| self.output.takes(self.stream)),
            None => Ok(self.output.write(self.stream, self.source, bytes).await),
        }
    }

    fn tagged(&mut self, bytes: Vec<u8>) -> Vec<u8> {
        let Some(tag) = &self.tag else { return bytes };
        let mut tagged = Vec::with_capacity(bytes.len() + tag.len());
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            if !self.is_in_line {
                tagged.extend_from_slice(tag);
            }
            tagged.extend_from_slice(line);
            self.is_in_line = !line.ends_with(b"\n");
        }
        tagged
    }
}

/// Writes the standard input of a command, and returns how many bytes were written: the command need not
/// read them.
pub(crate) async fn feed(
    to: Option<ChildStdin>,
    what: Option<&[u8]>,
    exited: watch::Receiver<bool>,
) -> u64 {
    let (Some(mut to), Some(what)) = (to, what) else { return 0 };
    let mut sent = 0;
    let write = async {
        while let Ok(more @ 1..) = to.write(&what[sent..]).await {
            sent += more;
        }
    };
    tokio::select! {
        () = write => {}
        // What it left behind may hold the pipe and never read.
        () = after(exited, Duration::ZERO) => {}
    }
    sent as u64
}

async fn after(mut exited: watch::Receiver<bool>, grace: Duration) {
    let _ = exited.wait_for(|&exited| exited).await;
    tokio::time::sleep(grace).await;
}

/// Cuts what one command writes to one stream into whole lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    buffer: Vec<u8>,
    /// A piece of a long line is on its way.
    unfinished: bool,
}

impl Lines {
    /// Where to read to.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        self.buffer.reserve(8 << 10);
        &mut self.buffer
    }

    /// The whole lines in the buffer, `new` bytes after the last call.
    pub(crate) fn whole(&mut self, new: usize) -> Option<Vec<u8>> {
        let fresh = self.buffer.len() - new;
        let end = match self.buffer[fresh..].iter().rposition(|&byte| byte == b'\n') {
            Some(at) => fresh + at + 1,
            None if self.buffer.len() >= LONGEST_LINE => self.buffer.len(),
            None => return None,
        };
        let rest = self.buffer.split_off(end);
        let whole = std::mem::replace(&mut self.buffer, rest);
        self.unfinished = !whole.ends_with(b"\n");
        Some(whole)
    }

    /// The rest at the end, as a line.
    pub(crate) fn rest(mut self) -> Option<Vec<u8>> {
        if self.buffer.is_empty() && !self.unfinished {
            return None;
        }
        self.buffer.push(b'\n');
        Some(self.buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut lines, mut out) = (Lines::default(), Vec::new());
        for piece in pieces {
            lines.buffer().extend_from_slice(piece);
            out.extend(lines.whole(piece.len()));
        }
        out.extend(lines.rest());
        out
    }

    #[test]
    fn only_whole_lines_go_out() {
        assert_eq!(lines(&[b"a", b"b\nc", b"\nd"]), [&b"ab\n"[..], b"c\n", b"d\n"]);
        assert_eq!(lines(&[b"a\n"]), [b"a\n"]);
        assert_eq!(lines(&[]), [b""; 0]);
    }

    #[test]
    fn a_long_line_goes_out_in_pieces_and_ends_once() {
        let long = vec![b'x'; LONGEST_LINE];
        assert_eq!(lines(&[&long]), [&long[..], b"\n"]);
        assert_eq!(lines(&[&long, b"y\nz\n"]), [&long[..], b"y\nz\n"]);
    }
}
