//! Standard output and standard error: whole lines, written by one thread.
//!
//! A reader that pauses delays the commands that write, but neither signals nor timers. One thread writes
//! both streams, as both may be one file.

pub(crate) mod blocking_file;
pub(crate) mod capture;
pub(crate) mod dead_letters;
pub(crate) mod files;
pub(crate) mod joblog;
pub(crate) mod summary;

use std::io::{self, BufWriter, Read, Seek, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tempfile::SpooledTempFile;
use tokio::sync::{mpsc, oneshot, watch};

use crate::output::blocking_file::BlockingFile;

/// A standard stream.
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
    /// The output of a run.
    Kept {
        source: u64,
        stdout: SpooledTempFile,
        stderr: SpooledTempFile,
    },
    /// The line that stays below all others, or none.
    Progress(Option<String>),
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
    /// The reader of the pipe has gone, which is no error.
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
/// A longer line goes out in pieces.
pub(crate) const LONGEST_LINE: usize = 64 << 10;

impl Output {
    /// Starts the writer. It ends with the program.
    pub(crate) fn start() -> io::Result<Self> {
        let (messages, receiver) = mpsc::channel(QUEUED);
        let (closing, closed) = watch::channel(None);
        let writer = Writer {
            stdout: Target::new(BufWriter::with_capacity(
                LONGEST_LINE,
                BlockingFile::own(io::stdout())?,
            )),
            stderr: Target::new(BlockingFile::own(io::stderr())?),
            closed: closing,
            bar: None,
        };
        std::thread::Builder::new()
            .name("output".to_owned())
            .spawn(move || writer.run(receiver))?;
        Ok(Self { messages, closed })
    }

    /// Writes `bytes` of the run with the number `source`. Waits while the reader is behind; `false`
    /// when there is none.
    pub(crate) async fn write(&self, stream: Stream, source: u64, bytes: Vec<u8>) -> bool {
        self.takes(stream)
            && self.messages.send(Message::Text { stream, source, bytes }).await.is_ok()
    }

    /// Returns true if a stream is open.
    pub(crate) fn takes(&self, stream: Stream) -> bool {
        stream == Stream::Stderr || self.closed.borrow().is_none()
    }

    /// Writes all that the run with the number `source` wrote.
    pub(crate) async fn write_kept(
        &self,
        source: u64,
        stdout: SpooledTempFile,
        stderr: SpooledTempFile,
    ) {
        let _ = self.messages.send(Message::Kept { source, stdout, stderr }).await;
    }

    /// Shows a line below all others, until the next, unless it would have to wait.
    pub(crate) fn show_progress(&self, line: String) {
        let _ = self.messages.try_send(Message::Progress(Some(line)));
    }

    /// Removes that line.
    pub(crate) async fn clear_progress(&self) {
        let _ = self.messages.send(Message::Progress(None)).await;
    }

    /// Writes a message to standard error.
    pub(crate) async fn say(&self, message: &str) {
        self.write(Stream::Stderr, 0, line(message)).await;
    }

    /// Writes a message to standard error, unless it would have to wait.
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
    stdout: Target<BufWriter<BlockingFile>>,
    stderr: Target<BlockingFile>,
    closed: watch::Sender<Option<Closed>>,
    bar: Option<ProgressBar>,
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
            // What there is goes out together; the line below is drawn again after it.
            let more = std::iter::from_fn(|| messages.try_recv().ok()).take(QUEUED);
            let (mut texts, mut progress) = (Vec::new(), None);
            for message in std::iter::once(first).chain(more) {
                match message {
                    Message::Progress(line) => progress = Some(line),
                    text => texts.push(text),
                }
            }
            if let Some(bar) = self.bar.take_if(|_| progress == Some(None)) {
                bar.finish_and_clear();
            }
            if !texts.is_empty() {
                match self.bar.clone() {
                    Some(bar) => bar.suspend(|| self.take(texts)),
                    None => self.take(texts),
                }
            }
            if let Some(Some(line)) = progress {
                self.bar.get_or_insert_with(bar).set_message(line);
            }
        }
    }

    fn take(&mut self, messages: Vec<Message>) {
        for message in messages {
            match message {
                Message::Text { stream: Stream::Stdout, source, bytes } => {
                    self.write_stdout(source, &bytes);
                }
                Message::Text { stream: Stream::Stderr, source, bytes } => {
                    self.write_stderr(source, &bytes);
                }
                Message::Kept { source, stdout, stderr } => {
                    let written = pieces(stdout, |piece| self.write_stdout(source, piece))
                        .and_then(|()| pieces(stderr, |piece| self.write_stderr(source, piece)));
                    self.check(written);
                }
                Message::Flush(done) => {
                    self.flush();
                    let _ = done.send(());
                }
                Message::Progress(_) => {}
            }
        }
        self.flush();
    }

    fn write_stdout(&mut self, source: u64, bytes: &[u8]) {
        if self.closed.borrow().is_none() {
            let written = self.stdout.write(source, bytes);
            self.check(written);
        }
    }

    fn write_stderr(&mut self, source: u64, bytes: &[u8]) {
        // The two may be one terminal.
        self.flush();
        // There is no other place to report an error of standard error.
        let _ = self.stderr.write(source, bytes);
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

/// Passes the kept output on in pieces. Fails if it can't be read.
fn pieces(mut kept: SpooledTempFile, mut to: impl FnMut(&[u8])) -> io::Result<()> {
    kept.rewind()?;
    let mut buffer = vec![0; LONGEST_LINE];
    loop {
        match kept.read(&mut buffer)? {
            0 => return Ok(()),
            read => to(&buffer[..read]),
        }
    }
}

/// The line below all others: as much of it as there is room for.
fn bar() -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_msg}");
    ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr())
        .with_style(style.unwrap_or_else(|_| ProgressStyle::default_spinner()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_in_pieces_is_ended_before_another_begins() {
        let mut target = Target::new(Vec::new());
        for (source, bytes) in [(1, "a"), (1, "b"), (2, "c\n"), (1, "d"), (1, "e\n"), (2, "f\n")] {
            target.write(source, bytes.as_bytes()).unwrap();
        }
        assert_eq!(target.to, b"ab\nc\nde\nf\n");
    }
}
