//! The source of the keys: standard input or a file. Another thread can stop a read that waits for input.

use std::fs::{File, Metadata};
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use crate::exit::Refusal;
use crate::key::escaped;

/// The message to a user whose terminal is the input.
pub(crate) const FROM_TERMINAL: &str =
    "reading keys from the terminal, one per line; Ctrl-D ends the input";

/// The source of the keys.
#[derive(Debug)]
pub(crate) enum Source {
    Stdin { terminal: bool },
    File(PathBuf),
}

/// An input that is read until it ends or another thread stops the reading. A read waits for input even if the file is
/// non-blocking. Another process that shares the terminal may have set that mode.
#[derive(Debug)]
pub(crate) struct Input {
    file: File,
    pub(crate) metadata: Metadata,
    /// True if the input is a terminal.
    pub(crate) is_terminal: bool,
    /// The read end of a pipe. The program closes the write end to stop the reading.
    stop: PipeReader,
    /// True if the reading was stopped before the end of the input.
    pub(crate) is_cut: bool,
}

impl Input {
    /// Opens the input. The reading stops when the returned pipe writer is dropped.
    pub(crate) fn open(source: &Source) -> Result<(Self, PipeWriter), Refusal> {
        let (file, what) = match source {
            Source::Stdin { .. } => {
                let own = io::stdin().as_fd().try_clone_to_owned();
                (own.map(File::from), "standard input".to_owned())
            }
            Source::File(path) => (File::open(path), escaped(path.as_os_str().as_bytes())),
        };
        let input = file.and_then(|file| {
            let (mut input, stopper) = Self::new(file)?;
            input.is_terminal = matches!(source, Source::Stdin { terminal: true });
            Ok((input, stopper))
        });
        input.map_err(|error| Refusal::failure(format!("{what}: {error}")))
    }

    fn new(file: File) -> io::Result<(Self, PipeWriter)> {
        let (stop, stopper) = io::pipe()?;
        let metadata = file.metadata()?;
        let input = Self { file, metadata, is_terminal: false, stop, is_cut: false };
        Ok((input, stopper))
    }

    /// Waits until input is available or the reading is stopped.
    fn wait_readable(&mut self) -> io::Result<()> {
        // A single call waits for both, because nothing could stop a plain read.
        let mut fds =
            [PollFd::new(&self.file, PollFlags::IN), PollFd::new(&self.stop, PollFlags::IN)];
        match poll(&mut fds, None) {
            Err(Errno::INTR) => return Ok(()),
            ready => _ = ready?,
        }
        self.is_cut = !fds[1].revents().is_empty();
        Ok(())
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if !self.is_cut {
                self.wait_readable()?;
            }
            if self.is_cut {
                return Ok(0);
            }
            match self.file.read(buffer) {
                // Another process has read the input between the wait and this read.
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Write, pipe};
    use std::os::fd::OwnedFd;

    use rustix::fs::OFlags;

    use super::*;

    fn input() -> (Input, PipeWriter, PipeWriter) {
        let (reader, writer) = pipe().unwrap();
        let (input, stopper) = Input::new(File::from(OwnedFd::from(reader))).unwrap();
        (input, stopper, writer)
    }

    #[test]
    fn a_pipe_that_was_made_non_blocking_is_waited_for() {
        let (mut input, _stopper, mut writer) = input();
        rustix::fs::fcntl_setfl(&input.file, OFlags::NONBLOCK).unwrap();
        // The data is larger than the capacity of a pipe.
        let sent = vec![b'x'; 1 << 22];
        let received = std::thread::scope(|scope| {
            let received = scope.spawn(|| {
                let mut received = Vec::new();
                input.read_to_end(&mut received).map(|_| received)
            });
            writer.write_all(&sent).unwrap();
            drop(writer);
            received.join().unwrap().unwrap()
        });
        assert_eq!(received, sent);
        assert!(!input.is_cut);
    }

    #[test]
    fn reading_can_be_stopped_while_it_waits() {
        let (mut input, stopper, _writer) = input();
        std::thread::scope(|scope| {
            let read = scope.spawn(|| input.read(&mut [0; 8]));
            drop(stopper);
            assert_eq!(read.join().unwrap().unwrap(), 0);
        });
        assert!(input.is_cut);
    }
}
