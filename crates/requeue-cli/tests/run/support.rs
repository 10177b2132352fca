//! Runs the program, and waits for its output.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::mem::take;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Once};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1};

use crate::limit::{DEADLINE, Limit};

/// The output and the exit status of the program.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
}

impl Ended {
    pub(crate) fn code(&self) -> Option<i32> {
        self.status.code()
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Returns the sorted lines of standard output.
    pub(crate) fn sorted(&self) -> Vec<String> {
        let mut lines: Vec<_> = self.text().lines().map(str::to_owned).collect();
        lines.sort();
        lines
    }

    /// Returns a count of the summary, as in "3 runs".
    pub(crate) fn count(&self, what: &str) -> u64 {
        let summary = self.stderr.lines().last().unwrap_or_default();
        // The singular has no s.
        let found = summary.split_once(&format!(" {}", what.trim_end_matches('s')));
        let (before, _) = found.unwrap_or_default();
        before.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
    }
}

/// Returns `requeue run` with these arguments.
pub(crate) fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_requeue"));
    command.arg("run").args(args).env("LC_ALL", "C");
    command
}

/// Runs `requeue run` with this input, and waits for its exit.
pub(crate) fn run(args: &[&str], input: impl AsRef<[u8]>) -> Ended {
    end(&mut command(args), input)
}

/// Runs `requeue run` in a directory.
pub(crate) fn run_in(dir: &Path, args: &[&str], input: impl AsRef<[u8]>) -> Ended {
    end(command(args).current_dir(dir), input)
}

/// Runs a command with this input, and waits for its exit.
pub(crate) fn end(command: &mut Command, input: impl AsRef<[u8]>) -> Ended {
    let mut live = Live::spawn(command);
    let mut stdin = live.stdin.take().expect("it is piped");
    let input = input.as_ref().to_vec();
    // The program may exit before it has read all input.
    let feeding = thread::spawn(move || drop(stdin.write_all(&input)));
    let ended = live.end();
    feeding.join().expect("feeding does not panic");
    ended
}

/// The running program.
pub(crate) struct Live {
    child: Child,
    pub(crate) stdin: Option<ChildStdin>,
    stdout: Lines,
    stderr: Lines,
    limit: Option<Limit>,
}

impl Live {
    pub(crate) fn start(dir: &Path, args: &[&str]) -> Self {
        Self::spawn(command(args).current_dir(dir))
    }

    pub(crate) fn spawn(command: &mut Command) -> Self {
        unignore_signals();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program is there");
        let stdout = Lines::new(child.stdout.take().expect("it is piped"));
        let stderr = Lines::new(child.stderr.take().expect("it is piped"));
        let limit = Some(Limit::of(&child));
        Self { stdin: child.stdin.take(), child, stdout, stderr, limit }
    }

    /// Writes to standard input.
    pub(crate) fn send(&mut self, input: &str) {
        let stdin = self.stdin.as_mut().expect("standard input is open");
        stdin.write_all(input.as_bytes()).expect("it reads");
    }

    /// Closes standard input.
    pub(crate) fn close(&mut self) {
        self.stdin = None;
    }

    /// Waits for this line on standard output.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, line: &str) {
        self.stdout.wait_for(line);
    }

    /// Waits for a line on standard error that contains this text.
    #[track_caller]
    pub(crate) fn wait_for_message(&mut self, part: &str) -> String {
        self.stderr.wait_for(part)
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).expect("it runs");
    }

    /// Stops the program, and waits until all its threads have stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        // The signal is asynchronous. The parent is notified when the last thread has stopped.
        let stopped = WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        waitid(WaitId::Pid(self.pid()), stopped).expect("it is a child of ours");
    }

    /// Waits for the exit of the program.
    #[track_caller]
    pub(crate) fn end(mut self) -> Ended {
        self.close();
        self.stdout.read_on();
        self.stderr.read_on();
        let status = self.child.wait().expect("it was started");
        let hung = self.limit.take().is_some_and(Limit::was_reached);
        assert!(!hung, "it hung, and was killed");
        let (stdout, stderr) = (take(&mut self.stdout.seen), take(&mut self.stderr.seen));
        Ended { status, stdout, stderr: String::from_utf8_lossy(&stderr).into_owned() }
    }
}

/// Shows the output of the program if the test fails.
impl Drop for Live {
    fn drop(&mut self) {
        drop(self.limit.take());
        if thread::panicking() {
            eprintln!("standard output: {}", self.stdout.so_far());
            eprintln!("standard error: {}", self.stderr.so_far());
        }
    }
}

/// A terminal, and the program that runs on it.
pub(crate) struct Terminal {
    child: Child,
    keyboard: File,
    screen: Lines,
    /// The number of bytes that tests have waited for.
    shown: usize,
    limit: Option<Limit>,
}

impl Terminal {
    pub(crate) fn spawn(command: Command) -> Self {
        unignore_signals();
        let (pty, pts) = pty_process::blocking::open().expect("there are terminals");
        let keyboard = pty.as_fd().try_clone_to_owned().expect("a handle more");
        let mut on_it = pty_process::blocking::Command::new(command.get_program());
        on_it = on_it.args(command.get_args()).env("TERM", "xterm");
        for (name, value) in command.get_envs() {
            on_it = match value {
                Some(value) => on_it.env(name, value),
                None => on_it.env_remove(name),
            };
        }
        if let Some(dir) = command.get_current_dir() {
            on_it = on_it.current_dir(dir);
        }
        let child = on_it.spawn(pts).expect("the program is there");
        let limit = Some(Limit::of(&child));
        Self { child, keyboard: keyboard.into(), screen: Lines::pieces(pty), shown: 0, limit }
    }

    /// Types text.
    pub(crate) fn send(&mut self, text: &str) {
        self.keyboard.write_all(text.as_bytes()).expect("the terminal is open");
    }

    /// Waits until the terminal shows this text, in any number of pieces.
    #[track_caller]
    pub(crate) fn wait_for(&mut self, part: &str) {
        while !String::from_utf8_lossy(&self.screen.seen[self.shown..]).contains(part) {
            assert!(self.screen.next().is_some(), "{part:?} did not come");
        }
        self.shown = self.screen.seen.len();
    }

    /// Waits for the exit. Returns the whole output on the terminal, and the exit status.
    #[track_caller]
    pub(crate) fn end(mut self) -> (String, ExitStatus) {
        self.screen.read_on();
        let status = self.child.wait().expect("it was started");
        let hung = self.limit.take().is_some_and(Limit::was_reached);
        assert!(!hung, "it hung, and was killed");
        (String::from_utf8_lossy(&take(&mut self.screen.seen)).into_owned(), status)
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        drop(self.limit.take());
        if thread::panicking() {
            eprintln!("on the terminal: {}", self.screen.so_far());
        }
    }
}

/// Waits for a condition of another process or of a file that no event reports.
#[track_caller]
pub(crate) fn until(is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < DEADLINE, "it does not come to that");
        thread::sleep(Duration::from_millis(5));
    }
}

/// The lines of a pipe.
struct Lines {
    seen: Vec<u8>,
    lines: Receiver<Vec<u8>>,
    _reader: JoinHandle<()>,
}

impl Lines {
    fn new(from: impl Read + Send + 'static) -> Self {
        Self::of(BufReader::new(from), |from, line| from.read_until(b'\n', line))
    }

    /// Reads the pieces as they arrive. They need not be whole lines.
    fn pieces(from: impl Read + Send + 'static) -> Self {
        Self::of(from, |from, piece| {
            piece.resize(4096, 0);
            let read = from.read(piece)?;
            piece.truncate(read);
            Ok(read)
        })
    }

    fn of<R: Send + 'static>(
        mut from: R,
        read: impl Fn(&mut R, &mut Vec<u8>) -> io::Result<usize> + Send + 'static,
    ) -> Self {
        let (sender, lines) = mpsc::channel();
        let reader = thread::spawn(move || {
            loop {
                let mut line = Vec::new();
                match read(&mut from, &mut line) {
                    Ok(1..) if sender.send(line).is_ok() => {}
                    _ => return,
                }
            }
        });
        Self { seen: Vec::new(), lines, _reader: reader }
    }

    #[track_caller]
    fn next(&mut self) -> Option<Vec<u8>> {
        match self.lines.recv_timeout(DEADLINE) {
            Ok(line) => {
                self.seen.extend_from_slice(&line);
                Some(line)
            }
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("it hangs"),
        }
    }

    #[track_caller]
    fn wait_for(&mut self, part: &str) -> String {
        while let Some(line) = self.next() {
            let line = String::from_utf8_lossy(&line);
            if line.contains(part) {
                return line.into_owned();
            }
        }
        panic!("{part:?} did not come");
    }

    /// Reads until the end of the stream.
    #[track_caller]
    fn read_on(&mut self) {
        while self.next().is_some() {}
    }

    fn so_far(&mut self) -> String {
        self.seen.extend(self.lines.try_iter().flatten());
        String::from_utf8_lossy(&self.seen).into_owned()
    }
}

/// Creates an empty directory for the test of this name.
pub(crate) fn directory(test: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(test);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir_all(&dir).expect("a directory for tests");
    dir
}

/// A gate for commands: `read _ <gate` returns when the gate opens.
pub(crate) struct Gate(File);

impl Gate {
    pub(crate) fn new(dir: &Path) -> Self {
        let path = dir.join("gate");
        let made = Command::new("mkfifo").arg(&path).status().expect("mkfifo is there");
        assert!(made.success());
        // The FIFO is opened for reading and writing, so that no command waits in `open` or reads the end of the file.
        Self(OpenOptions::new().read(true).write(true).open(path).expect("the fifo is there"))
    }

    /// Permits this number of commands to continue.
    pub(crate) fn open(&mut self, commands: usize) {
        self.0.write_all(&vec![b'\n'; commands]).expect("the fifo is open");
    }
}

/// Records that a test was skipped, and why.
pub(crate) fn did_not_run(test: &str, why: &str) {
    if let Some(list) = std::env::var_os("REQUEUE_NOT_RUN") {
        let mut list = OpenOptions::new().append(true).create(true).open(list).expect("the list");
        writeln!(list, "{test}: {why}").expect("the list can be written");
    }
}

/// Makes child processes act on signals, even if the tests were started with ignored signals, as under `nohup` or by a
/// script in the background. A child inherits ignored signals, but not handled ones.
pub(crate) fn unignore_signals() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Ok(status) = fs::read_to_string("/proc/self/status") else { return };
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap_or("0");
        let mask = u64::from_str_radix(mask.trim(), 16).expect("a mask");
        for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN, SIGTTOU, SIGUSR1] {
            if mask & (1 << (signal - 1)) != 0 {
                // The tests still ignore the signal, because no one reads the flag.
                signal_hook::flag::register(signal, Arc::default()).expect("it can be handled");
            }
        }
    });
}
