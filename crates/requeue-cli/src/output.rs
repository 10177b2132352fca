//! What goes to standard output and standard error: whole lines, through one thread.
//!
//! A thread of its own, so that a reader who pauses holds up the commands that write, and not the
//! program's own signals and timers. One for both streams, so that they can be one file.

use std::io::{self, BufWriter, Write};

use tokio::sync::{mpsc, oneshot, watch};

use crate::patient::Patient;

/// Which of the two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stream {
    Stdout,
    Stderr,
}

enum Message {
    Text {
        stream: Stream,
        source: u64,
        bytes: Vec<u8>,
    },
    /// Answered when all that was sent before is written.
    Flush(oneshot::Sender<()>),
}

impl Message {
    const fn stderr(bytes: Vec<u8>) -> Self {
        Self::Text { stream: Stream::Stderr, source: 0, bytes }
    }
}

/// Standard output takes no more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Closed {
    /// Nobody reads it any longer, which is no error.
    Pipe,
    Failed(String),
}

/// Handles to the writer; cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    messages: mpsc::Sender<Message>,
    closed: watch::Receiver<Option<Closed>>,
}

/// How many pieces may wait to be written.
const QUEUED: usize = 64;

impl Output {
    /// Starts the writer. It ends with the program.
    pub(crate) fn start() -> io::Result<Self> {
        let (messages, receiver) = mpsc::channel(QUEUED);
        let (closing, closed) = watch::channel(None);
        let writer = Writer {
            stdout: Target::new(BufWriter::with_capacity(
                LONGEST_LINE,
                Patient::own(io::stdout())?,
            )),
            stderr: Target::new(Patient::own(io::stderr())?),
            closed: closing,
        };
        std::thread::Builder::new()
            .name("output".to_owned())
            .spawn(move || writer.run(receiver))?;
        Ok(Self { messages, closed })
    }

    /// Writes `bytes` of the run with the number `source`. Waits while the reader is behind; `false`
    /// when there is none.
    pub(crate) async fn write(&self, stream: Stream, source: u64, bytes: Vec<u8>) -> bool {
        let open = stream == Stream::Stderr || self.closed.borrow().is_none();
        open && self.messages.send(Message::Text { stream, source, bytes }).await.is_ok()
    }

    /// Says something on standard error.
    pub(crate) async fn say(&self, message: &str) {
        self.write(Stream::Stderr, 0, line(message)).await;
    }

    /// Says something on standard error, unless that would mean to wait.
    pub(crate) fn hint(&self, message: &str) {
        let _ = self.messages.try_send(Message::stderr(line(message)));
    }

    /// The same, from a thread that is no task.
    pub(crate) fn say_blocking(&self, message: &str) {
        let _ = self.messages.blocking_send(Message::stderr(line(message)));
    }

    /// Waits until all that was sent so far is written.
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.messages.send(Message::Flush(done)).await.is_ok() {
            let _ = flushed.await;
        }
    }

    /// Whether and why standard output takes no more.
    pub(crate) fn is_closed(&self) -> Option<Closed> {
        self.closed.borrow().clone()
    }

    /// Waits until standard output takes no more.
    pub(crate) async fn closed(&self) {
        if self.closed.clone().wait_for(Option::is_some).await.is_err() {
            // The writer has ended, which it does after the last handle only.
            std::future::pending::<()>().await;
        }
    }
}

fn line(message: &str) -> Vec<u8> {
    format!("requeue: {message}\n").into_bytes()
}

struct Writer {
    stdout: Target<BufWriter<Patient>>,
    stderr: Target<Patient>,
    closed: watch::Sender<Option<Closed>>,
}

/// One of the streams, and whose line is not finished there.
struct Target<W> {
    to: W,
    unfinished: Option<u64>,
}

impl<W: Write> Target<W> {
    const fn new(to: W) -> Self {
        Self { to, unfinished: None }
    }

    /// A line that came in pieces is ended before another's begins.
    fn write(&mut self, source: u64, bytes: &[u8]) -> io::Result<()> {
        if self.unfinished.is_some_and(|writer| writer != source) {
            self.to.write_all(b"\n")?;
        }
        self.unfinished = (!bytes.ends_with(b"\n")).then_some(source);
        self.to.write_all(bytes)
    }
}

impl Writer {
    fn run(mut self, mut messages: mpsc::Receiver<Message>) {
        while let Some(first) = messages.blocking_recv() {
            let mut next = Some(first);
            while let Some(message) = next {
                self.take(message);
                next = messages.try_recv().ok();
            }
            self.flush();
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Text { stream: Stream::Stdout, source, bytes } => {
                if self.closed.borrow().is_none() {
                    let written = self.stdout.write(source, &bytes);
                    self.check(written);
                }
            }
            Message::Text { stream: Stream::Stderr, source, bytes } => {
                // The two may be one terminal.
                self.flush();
                // Nobody is left to be told when standard error fails.
                let _ = self.stderr.write(source, &bytes);
            }
            Message::Flush(done) => {
                self.flush();
                let _ = done.send(());
            }
        }
    }

    fn flush(&mut self) {
        if self.closed.borrow().is_none() {
            let flushed = self.stdout.to.flush();
            self.check(flushed);
        }
    }

    fn check(&self, result: io::Result<()>) {
        let Err(error) = result else { return };
        self.closed.send_replace(Some(match error.kind() {
            io::ErrorKind::BrokenPipe => Closed::Pipe,
            _ => Closed::Failed(error.to_string()),
        }));
    }
}

/// Cuts what one command writes to one stream into whole lines.
#[derive(Debug, Default)]
pub(crate) struct Lines {
    buffer: Vec<u8>,
    /// A piece of a long line is on its way.
    unfinished: bool,
}

/// A longer line goes out in pieces.
const LONGEST_LINE: usize = 64 << 10;

impl Lines {
    /// Where to read to.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        self.buffer.reserve(8 << 10);
        &mut self.buffer
    }

    /// What can be written, `new` bytes after the last call.
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

    /// What is left at the end, as a line.
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

    #[test]
    fn a_line_in_pieces_is_ended_before_another_begins() {
        let mut target = Target::new(Vec::new());
        for (source, bytes) in [(1, "a"), (1, "b"), (2, "c\n"), (1, "d"), (1, "e\n"), (2, "f\n")] {
            target.write(source, bytes.as_bytes()).unwrap();
        }
        assert_eq!(target.to, b"ab\nc\nde\nf\n");
    }
}
