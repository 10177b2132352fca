//! Standard output and standard error. One thread writes both, in whole lines.
//!
//! A reader that stops reading delays the commands that write, but neither signals nor timers. One thread writes both
//! streams, because both may be the same file.

pub(crate) mod blocking_file;
pub(crate) mod capture;
pub(crate) mod dead_letters;
pub(crate) mod files;
pub(crate) mod joblog;
pub(crate) mod log;
pub(crate) mod summary;

use std::io::{self, BufWriter, Read, Seek, Write};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use tempfile::SpooledTempFile;
use tokio::sync::{mpsc, oneshot, watch};

use crate::exit::message_line;
use crate::output::blocking_file::BlockingFile;

/// One of the standard streams.
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
    /// The whole output of a run, with `--output group`.
    Kept {
        source: u64,
        kept: [SpooledTempFile; 2],
    },
    /// The progress line, which stays below all other lines. `None` removes it.
    Progress(Option<String>),
    /// A request for an answer when all earlier messages are written.
    Flush(oneshot::Sender<()>),
}

impl Message {
    const fn stderr(bytes: Vec<u8>) -> Self {
        Self::Text { stream: Stream::Stderr, source: 0, bytes }
    }
}

/// The reason why standard output is closed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Closed {
    /// The pipe no longer has a reader. This is not an error.
    Pipe,
    Failed(String),
}

/// A handle of the thread that writes. Clones are cheap.
#[derive(Clone, Debug)]
pub(crate) struct Output {
    messages: mpsc::Sender<Message>,
    closed: watch::Receiver<Option<Closed>>,
}

/// The maximum number of messages that wait to be written.
const QUEUED: usize = 64;
/// The maximum length of a line in bytes. A longer line is written in pieces.
pub(crate) const LONGEST_LINE: usize = 64 << 10;

impl Output {
    /// Starts the thread that writes. It runs until the end of the program.
    pub(crate) fn start() -> io::Result<Self> {
        // The channel is bounded, so commands wait for a slow reader. Otherwise, their output would fill the memory.
        let (messages, receiver) = mpsc::channel(QUEUED);
        let (closing, closed) = watch::channel(None);
        let writer = Writer {
            stdout: Target::new(BufWriter::with_capacity(
                LONGEST_LINE,
                BlockingFile::of_stream(io::stdout())?,
            )),
            // Standard error has no buffer, so its messages are visible even if the program crashes.
            stderr: Target::new(BlockingFile::of_stream(io::stderr())?),
            closed: closing,
            bar: None,
        };
        std::thread::Builder::new()
            .name("output".to_owned())
            .spawn(move || writer.run(receiver))?;
        Ok(Self { messages, closed })
    }

    /// Writes `bytes`, which are output of the run with the number `source`. Waits while the channel is full. Returns
    /// false if the stream is closed.
    pub(crate) async fn write(&self, stream: Stream, source: u64, bytes: Vec<u8>) -> bool {
        self.is_open(stream)
            && self.messages.send(Message::Text { stream, source, bytes }).await.is_ok()
    }

    /// Returns true if `stream` is open.
    pub(crate) fn is_open(&self, stream: Stream) -> bool {
        stream == Stream::Stderr || self.closed.borrow().is_none()
    }

    /// Writes the whole output of the run with the number `source`.
    pub(crate) async fn write_kept(&self, source: u64, kept: [SpooledTempFile; 2]) {
        let _ = self.messages.send(Message::Kept { source, kept }).await;
    }

    /// Shows the progress line in place of the previous one. Drops the line if the channel is full.
    pub(crate) fn show_progress(&self, line: String) {
        let _ = self.messages.try_send(Message::Progress(Some(line)));
    }

    /// Removes the progress line.
    pub(crate) async fn clear_progress(&self) {
        let _ = self.messages.send(Message::Progress(None)).await;
    }

    /// Writes a message to standard error. Waits while the channel is full.
    pub(crate) async fn say(&self, message: &str) {
        self.write(Stream::Stderr, 0, message_line(message)).await;
    }

    /// Writes a message to standard error. Drops the message if the channel is full.
    pub(crate) fn hint(&self, message: &str) {
        // The callers handle signals and log events, so they must not wait for space in the channel.
        let _ = self.messages.try_send(Message::stderr(message_line(message)));
    }

    /// Writes a message to standard error. For threads outside of the runtime, because it blocks while the channel is
    /// full.
    pub(crate) fn say_blocking(&self, message: &str) {
        let _ = self.messages.blocking_send(Message::stderr(message_line(message)));
    }

    /// Waits until all earlier messages are written.
    pub(crate) async fn flush(&self) {
        let (done, flushed) = oneshot::channel();
        if self.messages.send(Message::Flush(done)).await.is_ok() {
            let _ = flushed.await;
        }
    }

    /// Returns the reason why standard output is closed. Returns `None` if it is open.
    pub(crate) fn is_closed(&self) -> Option<Closed> {
        self.closed.borrow().clone()
    }

    /// Waits until standard output is closed.
    pub(crate) async fn wait_until_closed(&self) {
        if self.closed.clone().wait_for(Option::is_some).await.is_err() {
            // The thread that writes stops only after the last handle is dropped, so this line is not reached.
            std::future::pending::<()>().await;
        }
    }
}

struct Writer {
    stdout: Target<BufWriter<BlockingFile>>,
    stderr: Target<BlockingFile>,
    closed: watch::Sender<Option<Closed>>,
    bar: Option<ProgressBar>,
}

/// One of the streams, and the number of the run whose line in this stream is unfinished.
struct Target<W> {
    to: W,
    unfinished: Option<u64>,
}

impl<W: Write> Target<W> {
    const fn new(to: W) -> Self {
        Self { to, unfinished: None }
    }

    /// Writes bytes of the run with the number `source`. If a line of another run is unfinished, ends that line
    /// before.
    fn write(&mut self, source: u64, bytes: &[u8]) -> io::Result<()> {
        // Two runs must not share a line, so the unfinished line is ended.
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
            // All waiting messages are written together, so the progress line is redrawn only once.
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
                    // The progress line is removed before the texts are written, and drawn again below them.
                    Some(bar) => bar.suspend(|| self.write_messages(texts)),
                    None => self.write_messages(texts),
                }
            }
            if let Some(Some(line)) = progress {
                self.bar.get_or_insert_with(new_bar).set_message(line);
            }
        }
    }

    fn write_messages(&mut self, messages: Vec<Message>) {
        for message in messages {
            match message {
                Message::Text { stream: Stream::Stdout, source, bytes } => {
                    self.write_stdout(source, &bytes);
                }
                Message::Text { stream: Stream::Stderr, source, bytes } => {
                    self.write_stderr(source, &bytes);
                }
                Message::Kept { source, kept: [stdout, stderr] } => {
                    let written = pass_pieces(stdout, |piece| self.write_stdout(source, piece))
                        .and_then(|()| {
                            pass_pieces(stderr, |piece| self.write_stderr(source, piece))
                        });
                    self.check_written(written);
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
            self.check_written(written);
        }
    }

    fn write_stderr(&mut self, source: u64, bytes: &[u8]) {
        // Standard output is flushed first, because both streams may be the same terminal.
        self.flush();
        // If standard error cannot be written, the error cannot be reported anywhere.
        let _ = self.stderr.write(source, bytes);
    }

    fn flush(&mut self) {
        if self.closed.borrow().is_none() {
            let flushed = self.stdout.to.flush();
            self.check_written(flushed);
        }
    }

    fn check_written(&self, result: io::Result<()>) {
        let Err(error) = result else { return };
        self.closed.send_replace(Some(match error.kind() {
            io::ErrorKind::BrokenPipe => Closed::Pipe,
            _ => Closed::Failed(error.to_string()),
        }));
    }
}

/// Passes the stored output to `to` in pieces. Returns an error if the output cannot be read.
fn pass_pieces(mut kept: SpooledTempFile, mut to: impl FnMut(&[u8])) -> io::Result<()> {
    kept.rewind()?;
    let mut buffer = vec![0; LONGEST_LINE];
    loop {
        match kept.read(&mut buffer)? {
            0 => return Ok(()),
            read => to(&buffer[..read]),
        }
    }
}

/// Creates the progress line. It is cut at the width of the terminal.
fn new_bar() -> ProgressBar {
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
