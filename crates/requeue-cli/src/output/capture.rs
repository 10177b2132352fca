//! The pipes of a command. This module reads its output as whole lines, and writes its standard input.

use std::io::{self, Write};
use std::pin::pin;
use std::time::Duration;

use tempfile::SpooledTempFile;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::process::ChildStdin;
use tokio::sync::watch;

use crate::output::{LONGEST_LINE, Output, Stream};

/// The time for which pipes are still read after the command's process has exited.
const GRACE: Duration = Duration::from_millis(250);
/// The maximum capacity of a pipe, in bytes.
const PIPE: usize = 1 << 20;
/// The maximum number of bytes of a stream that `--output group` stores in memory. Longer output is stored in a
/// temporary file.
const IN_MEMORY: usize = 1 << 20;
/// The number of bytes from the end of a stream that the dashboard shows.
const TAIL: usize = 4 << 10;

/// The destination of one output stream of a command.
#[derive(Debug)]
pub(crate) struct Sink<'a> {
    output: &'a Output,
    stream: Stream,
    source: u64,
    /// The text at the start of each line.
    tag: Option<Vec<u8>>,
    is_in_line: bool,
    /// The whole output so far. `None` without `--output group`.
    pub(crate) kept: Option<SpooledTempFile>,
    /// The last part of the output, for the dashboard or a remote queue. `None` if neither shows it.
    tail: Option<Vec<u8>>,
    /// The number of bytes that were read from the pipe.
    pub(crate) received: u64,
}

impl<'a> Sink<'a> {
    /// With `keeps_all`, stores the whole output for `--output group`. If the output is long, it is stored in an
    /// unnamed file. With `keeps_tail`, also stores the last part of the output.
    pub(crate) fn new(
        output: &'a Output,
        stream: Stream,
        source: u64,
        tag: Option<Vec<u8>>,
        keeps_all: bool,
        keeps_tail: bool,
    ) -> Self {
        let kept = keeps_all.then(|| SpooledTempFile::new(IN_MEMORY));
        let tail = keeps_tail.then(Vec::new);
        Self { output, stream, source, tag, is_in_line: false, kept, tail, received: 0 }
    }

    /// Returns the last 4 KiB of the output.
    pub(crate) fn tail(&self) -> String {
        let tail = self.tail.as_deref().unwrap_or_default();
        String::from_utf8_lossy(&tail[tail.len().saturating_sub(TAIL)..]).into_owned()
    }

    /// Writes or stores the output that comes from `from`. Stops at the end of the stream, or [`GRACE`] after `exited`
    /// becomes true.
    pub(crate) async fn copy_stream(
        &mut self,
        from: Option<impl AsyncRead + Unpin>,
        exited: watch::Receiver<bool>,
    ) -> io::Result<()> {
        let Some(mut from) = from else { return Ok(()) };
        let mut grace_over = pin!(wait_after_exit(exited.clone(), GRACE));
        let mut lines = Lines::default();
        let mut late = 0;
        // The amount is limited. A process that the command has left running may write forever.
        while late <= PIPE {
            let new = tokio::select! {
                // The read is polled first. Output that is already in the pipe is then read even after the grace
                // period.
                biased;
                read = from.read_buf(lines.read_buffer()) => match read {
                    // A pipe with an error delivers no more output. The run does not fail because of that.
                    Ok(0) | Err(_) => break,
                    Ok(new) => new,
                },
                () = &mut grace_over => break,
            };
            self.received += new as u64;
            // Only whole lines are written, so that the lines of two commands do not mix.
            if let Some(whole) = lines.take_whole(new)
                && !self.put_bytes(whole).await?
            {
                // The return closes the pipe, so the command gets SIGPIPE at its next write.
                return Ok(());
            }
            late += if *exited.borrow() { new } else { 0 };
        }
        if let Some(rest) = lines.take_rest() {
            self.put_bytes(rest).await?;
        }
        Ok(())
    }

    /// Writes or stores bytes. Returns false if standard output is closed.
    async fn put_bytes(&mut self, bytes: Vec<u8>) -> io::Result<bool> {
        if let Some(tail) = &mut self.tail {
            let all = tail.len() + bytes.len();
            // The buffer is cut only when it has twice its final length, so each byte is copied at most
            // twice.
            if all > 2 * TAIL {
                tail.drain(..tail.len().min(all - TAIL));
            }
            tail.extend_from_slice(&bytes[bytes.len().saturating_sub(TAIL)..]);
        }
        let bytes = self.with_tags(bytes);
        match &mut self.kept {
            Some(kept) => kept.write_all(&bytes).map(|()| self.output.is_open(self.stream)),
            None => Ok(self.output.write(self.stream, self.source, bytes).await),
        }
    }

    fn with_tags(&mut self, bytes: Vec<u8>) -> Vec<u8> {
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

/// Writes `what` to the standard input of a command. Returns the number of bytes written. The command may exit or
/// close its input before it has read all bytes.
pub(crate) async fn feed_stdin(
    to: Option<ChildStdin>,
    what: Option<&[u8]>,
    exited: watch::Receiver<bool>,
) -> u64 {
    let (Some(mut to), Some(what)) = (to, what) else { return 0 };
    let mut sent = 0;
    let write = async {
        // A command may close its input before it has read everything. The write then fails, and the loop ends.
        while let Ok(more @ 1..) = to.write(&what[sent..]).await {
            sent += more;
        }
    };
    tokio::select! {
        () = write => {}
        // A child that the command has left running may hold the pipe open and not read from it.
        () = wait_after_exit(exited, Duration::ZERO) => {}
    }
    sent as u64
}

async fn wait_after_exit(mut exited: watch::Receiver<bool>, grace: Duration) {
    let _ = exited.wait_for(|&exited| exited).await;
    tokio::time::sleep(grace).await;
}

/// Splits an output stream of a command into whole lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    buffer: Vec<u8>,
    /// True if the last piece that was taken ends within a line.
    unfinished: bool,
}

impl Lines {
    /// Returns the buffer for the next read. The buffer has free space.
    pub(crate) fn read_buffer(&mut self) -> &mut Vec<u8> {
        self.buffer.reserve(8 << 10);
        &mut self.buffer
    }

    /// Removes the whole lines from the buffer, and returns them. `new` is the number of bytes that were read since
    /// the last call.
    pub(crate) fn take_whole(&mut self, new: usize) -> Option<Vec<u8>> {
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

    /// Returns the bytes that are left at the end of the stream, as a line. Returns `None` if there are none.
    pub(crate) fn take_rest(mut self) -> Option<Vec<u8>> {
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
            lines.read_buffer().extend_from_slice(piece);
            out.extend(lines.take_whole(piece.len()));
        }
        out.extend(lines.take_rest());
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
