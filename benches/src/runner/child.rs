//! Runs a contestant in a process.

use std::ffi::OsString;
use std::fmt;
use std::io::{self, BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};

use serde::Serialize;

use crate::protocol::{Answer, Hello};

/// The command that starts a contestant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Program {
    /// The name of the contestant.
    pub name: String,
    /// The file of the program.
    pub path: PathBuf,
    /// The arguments of the program.
    pub args: Vec<OsString>,
}

/// The reason for a missing answer.
#[derive(Debug)]
pub enum ChildError {
    /// The program could not be started, or its streams failed.
    Io(String, io::Error),
    /// The process exited.
    Ended(String),
    /// The process did not follow the protocol.
    Garbled(String, serde_json::Error),
}

impl fmt::Display for ChildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(name, error) => write!(f, "{name}: {error}"),
            Self::Ended(name) => write!(f, "{name} ended without an answer"),
            Self::Garbled(name, error) => write!(f, "{name} does not keep the protocol: {error}"),
        }
    }
}

impl std::error::Error for ChildError {}

/// A running contestant. The process is stopped when this value is dropped.
#[derive(Debug)]
pub struct Running {
    /// The first message of the contestant.
    pub hello: Hello,
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Running {
    /// Starts a contestant.
    ///
    /// # Errors
    ///
    /// Returns an error if the contestant cannot be started, or does not introduce itself.
    pub fn start(program: &Program) -> Result<Self, ChildError> {
        let mut child = Command::new(&program.path)
            .args(&program.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| ChildError::Io(program.name.clone(), error))?;
        let Some(stdout) = child.stdout.take() else { unreachable!("stdout is piped") };
        let mut answers = BufReader::new(stdout);
        let line = read(&program.name, &mut answers)?;
        let hello = serde_json::from_str(&line)
            .map_err(|error| ChildError::Garbled(program.name.clone(), error))?;
        Ok(Self { hello, child, answers })
    }

    /// Runs a round.
    ///
    /// # Errors
    ///
    /// Returns an error if there is no answer.
    pub fn ask(&mut self, request: &impl Serialize) -> Result<Answer, ChildError> {
        let name = &self.hello.contestant;
        let garbled = |error| ChildError::Garbled(name.clone(), error);
        let mut line = serde_json::to_string(request).map_err(garbled)?;
        line.push('\n');
        let Some(stdin) = &mut self.child.stdin else { unreachable!("only the drop takes it") };
        stdin.write_all(line.as_bytes()).map_err(|error| ChildError::Io(name.clone(), error))?;
        let line = read(name, &mut self.answers)?;
        serde_json::from_str(&line).map_err(garbled)
    }
}

fn read(name: &str, answers: &mut BufReader<ChildStdout>) -> Result<String, ChildError> {
    let mut line = String::new();
    match answers.read_line(&mut line) {
        Ok(0) => Err(ChildError::Ended(name.to_owned())),
        Ok(_) => Ok(line),
        Err(error) => Err(ChildError::Io(name.to_owned(), error)),
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The process is killed, because it may hang.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
