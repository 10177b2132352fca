//! Files whose writes wait for space even if the file is non-blocking. Another process that shares the terminal may
//! have set that mode.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, poll};

/// A file whose writes wait for space.
#[derive(Debug)]
pub(crate) struct BlockingFile(pub(crate) File);

impl BlockingFile {
    /// Duplicates the descriptor of a standard stream.
    pub(crate) fn of_stream(stream: impl AsFd) -> io::Result<Self> {
        Ok(Self(File::from(stream.as_fd().try_clone_to_owned()?)))
    }
}

impl Write for BlockingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.0.write(bytes) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    match poll(&mut [PollFd::new(&self.0, PollFlags::OUT)], None) {
                        Err(rustix::io::Errno::INTR) => {}
                        ready => _ = ready?,
                    }
                }
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use rustix::fs::OFlags;

    use super::*;

    #[test]
    fn a_pipe_that_was_made_non_blocking_is_waited_for() {
        let (mut reader, writer) = io::pipe().unwrap();
        rustix::fs::fcntl_setfl(&writer, OFlags::NONBLOCK).unwrap();
        let mut file = BlockingFile::of_stream(&writer).unwrap();
        drop(writer);
        // The data is larger than the capacity of a pipe.
        let sent = vec![b'x'; 1 << 22];
        let received = std::thread::scope(|scope| {
            let received = scope.spawn(|| {
                let mut received = Vec::new();
                reader.read_to_end(&mut received).map(|_| received)
            });
            file.write_all(&sent).unwrap();
            drop(file);
            received.join().unwrap().unwrap()
        });
        assert_eq!(received, sent);
    }
}
