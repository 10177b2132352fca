//! One run of the command: started, its output passed on, waited for.

use std::io;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};
use tokio::sync::watch;

use crate::args;
use crate::input;
use crate::output::{Lines, Output, Stream};
use crate::retries::Past;
use crate::signals::Level;
use crate::template::Template;

/// What a run is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<'a> {
    pub(crate) key: &'a [u8],
    pub(crate) past: Past,
    pub(crate) adds: u32,
    pub(crate) slot: usize,
    pub(crate) seq: u64,
}

/// The command for a key, in a process group of its own and with nothing to read.
pub(crate) fn command(template: &Template, run: Run<'_>, output: args::Output) -> Command {
    let stdio = || match output {
        args::Output::Lines => Stdio::piped(),
        args::Output::Inherit => Stdio::inherit(),
        args::Output::None => Stdio::null(),
    };
    // Neither a working directory nor a hook before exec: the standard library then has no need
    // to fork, which takes ten times as long with a large heap.
    let mut command = Command::new(template.program(run.key));
    command
        .args(template.args(run.key))
        .env("REQUEUE_ATTEMPT", run.past.attempt.to_string())
        .env("REQUEUE_ADDS", run.adds.to_string())
        .env("REQUEUE_SLOT", run.slot.to_string())
        .env("REQUEUE_SEQ", run.seq.to_string())
        .stdin(Stdio::null())
        .stdout(stdio())
        .stderr(stdio())
        .process_group(0);
    match run.past.last_exit {
        Some(exit) => command.env("REQUEUE_LAST_EXIT", exit.to_string()),
        None => command.env_remove("REQUEUE_LAST_EXIT"),
    };
    // A variable is limited like an argument, name included.
    match "REQUEUE_KEY=".len() + run.key.len() <= input::LONGEST {
        true => command.env("REQUEUE_KEY", os(run.key)),
        false => command.env_remove("REQUEUE_KEY"),
    };
    command
}

fn os(bytes: &[u8]) -> &std::ffi::OsStr {
    std::os::unix::ffi::OsStrExt::from_bytes(bytes)
}

/// Whether a command could not be started for want of something that comes back.
pub(crate) fn is_shortage(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::AGAIN | Errno::MFILE | Errno::NFILE | Errno::NOMEM)
    )
}

/// Whether a command could not be started because of its key, and never can.
pub(crate) fn is_hopeless(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
        || Errno::from_io_error(error) == Some(Errno::TOOBIG)
}

/// Waits for the process, passes on what it writes, and sends its group what `level` says.
///
/// The run is over when the process is, even if something that it left behind holds its pipes.
pub(crate) async fn finish(
    mut child: Child,
    source: u64,
    output: &Output,
    level: &mut watch::Receiver<Level>,
) -> io::Result<ExitStatus> {
    let (exit, exited) = watch::channel(false);
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let mut copying = pin!(async {
        tokio::join!(
            copy(stdout, output, Stream::Stdout, source, exited.clone()),
            copy(stderr, output, Stream::Stderr, source, exited.clone()),
        )
    });
    let mut copied = false;
    let status = loop {
        tokio::select! {
            status = child.wait() => break status?,
            _ = &mut copying, if !copied => copied = true,
            Ok(()) = level.changed() => signal(&child, *level.borrow_and_update()),
        }
    };
    exit.send_replace(true);
    if !copied {
        tokio::select! {
            _ = copying => {}
            // Nobody may be reading what it wrote.
            Ok(_) = level.wait_for(|&level| level == Level::Killing) => {}
        }
    }
    Ok(status)
}

/// The process has not been waited for, so that its number is still its own.
fn signal(child: &Child, level: Level) {
    let signal = match level {
        Level::Running | Level::Stopping => return,
        Level::Terminating => Signal::TERM,
        Level::Killing => Signal::KILL,
    };
    let pid = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    if let Some(pid) = pid {
        // Fails if all of the group have gone, which is what was asked for. One that is stopped,
        // as it read from the terminal, does not see a SIGTERM before it goes on.
        let _ = kill_process_group(pid, signal);
        let _ = kill_process_group(pid, Signal::CONT);
    }
}

/// How long the pipes of a process that has ended are waited for.
const GRACE: Duration = Duration::from_millis(250);
/// How much they can hold.
const PIPE: usize = 1 << 20;

async fn copy(
    from: Option<impl AsyncRead + Unpin>,
    output: &Output,
    stream: Stream,
    source: u64,
    exited: watch::Receiver<bool>,
) {
    let Some(mut from) = from else { return };
    let mut exit = exited.clone();
    let mut grace_over = pin!(async {
        let _ = exit.wait_for(|&exited| exited).await;
        tokio::time::sleep(GRACE).await;
    });
    let mut lines = Lines::default();
    let mut late = 0;
    while late <= PIPE {
        let new = tokio::select! {
            // What is there is read, however late it is.
            biased;
            read = from.read_buf(lines.buffer()) => match read {
                Ok(0) | Err(_) => break,
                Ok(new) => new,
            },
            () = &mut grace_over => break,
        };
        if let Some(whole) = lines.whole(new)
            && !output.write(stream, source, whole).await
        {
            // The pipe is closed with this, and the command told so.
            return;
        }
        late += if *exited.borrow() { new } else { 0 };
    }
    if let Some(rest) = lines.rest() {
        output.write(stream, source, rest).await;
    }
}
