//! Files that wait, also where somebody else has made them non-blocking: whoever shares a terminal
//! with us can do that.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};

/// A file whose reads and writes wait.
#[derive(Debug)]
pub(crate) struct Patient(File);

impl Patient {
    pub(crate) const fn new(file: File) -> Self {
        Self(file)
    }

    /// A handle of its own to a standard stream.
    pub(crate) fn own(stream: impl AsFd) -> io::Result<Self> {
        Ok(Self(File::from(stream.as_fd().try_clone_to_owned()?)))
    }

    fn wait<R>(
        &mut self,
        until: PollFlags,
        mut act: impl FnMut(&mut File) -> io::Result<R>,
    ) -> io::Result<R> {
        loop {
            match act(&mut self.0) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    match poll(&mut [PollFd::new(&self.0, until)], None) {
                        Err(rustix::io::Errno::INTR) => {}
                        ready => _ = ready?,
                    }
                }
                done => return done,
            }
        }
    }
}

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.wait(PollFlags::IN, |file| file.read(buffer))
    }
}

impl Write for Patient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.wait(PollFlags::OUT, |file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use rustix::fs::OFlags;

    use super::*;

    #[test]
    fn a_pipe_that_was_made_non_blocking_is_waited_for() {
        let (reader, writer) = io::pipe().unwrap();
        for end in [reader.as_fd(), writer.as_fd()] {
            rustix::fs::fcntl_setfl(end, OFlags::NONBLOCK).unwrap();
        }
        let (mut reader, mut writer) =
            (Patient::own(reader).unwrap(), Patient::own(writer).unwrap());
        // More than a pipe holds: both ends have to wait.
        let sent = vec![b'x'; 1 << 22];
        let received = std::thread::scope(|scope| {
            let received = scope.spawn(|| {
                let mut received = Vec::new();
                reader.read_to_end(&mut received).map(|_| received)
            });
            writer.write_all(&sent).unwrap();
            drop(writer);
            received.join().unwrap().unwrap()
        });
        assert_eq!(received, sent);
    }
}
