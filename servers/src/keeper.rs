//! Starts and stops a server, and ensures that the server stops with the test.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// A shell that executes commands (orders), and cleans up when its input closes.
#[derive(Debug)]
pub(crate) struct Keeper {
    dir: PathBuf,
    shell: Mutex<Shell>,
}

#[derive(Debug)]
struct Shell {
    process: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

/// The unprivileged user under which servers run if the tests run as root, because many servers
/// refuse to run as root.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Nobody(Option<(u32, u32)>);

impl Nobody {
    fn of(dir: &Path) -> Self {
        let owner =
            fs::metadata(dir).unwrap_or_else(|err| panic!("{}: {err}", dir.display())).uid();
        if owner != 0 {
            return Self(None);
        }
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        let nobody = users.lines().find_map(|line| line.strip_prefix("nobody:"));
        let mut fields = nobody.unwrap_or_default().split(':').skip(1);
        let mut number = || fields.next()?.parse().ok();
        match (number(), number()) {
            (Some(user), Some(group)) => Self(Some((user, group))),
            _ => panic!("the user `nobody` is missing, under which servers run"),
        }
    }
}

impl Keeper {
    /// Starts a shell. `prepare` fills the directory. `script` defines a function for each order.
    /// Its arguments are the directory and `args`.
    pub(crate) fn new(script: &str, args: &[&str], prepare: impl FnOnce(&Path)) -> Self {
        let dir = match tempfile::Builder::new().prefix("requeue-").tempdir() {
            Ok(dir) => dir.keep(),
            Err(err) => panic!("a directory for a server: {err}"),
        };
        let Nobody(nobody) = Nobody::of(&dir);
        prepare(&dir);
        let mut command = Command::new("sh");
        command.arg("-c").arg(format!("{script}\n{}", include_str!("keeper.sh")));
        command.arg("keeper").arg(&dir).args(args).current_dir(&dir);
        // In its own process group, the shell survives the signal that ends the tests, and
        // cleans up.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        if let Some((user, group)) = nobody {
            give(&dir, user, group);
            command.uid(user).gid(group);
        }
        let mut process = command.spawn().unwrap_or_else(|err| panic!("sh: {err}"));
        let orders = process.stdin.take();
        let Some(answers) = process.stdout.take().map(BufReader::new) else {
            unreachable!("the stream is piped");
        };
        Self { dir, shell: Mutex::new(Shell { process, orders, answers }) }
    }

    /// Executes an order.
    ///
    /// # Panics
    /// Panics if the order fails. The message contains all logs.
    pub(crate) fn order(&self, order: &str) {
        self.try_order(order).unwrap_or_else(|why| panic!("{why}"));
    }

    /// Executes an order. Returns all logs if it fails.
    pub(crate) fn try_order(&self, order: &str) -> Result<(), String> {
        let mut shell = self.shell.lock().unwrap_or_else(PoisonError::into_inner);
        let written = shell.orders.as_mut().map(|orders| writeln!(orders, "{order}"));
        let mut answer = String::new();
        let read = shell.answers.read_line(&mut answer);
        drop(shell);
        if !matches!((&written, &read), (Some(Ok(())), Ok(_))) || answer != "done\n" {
            let logs = ["keeper.log", "server.log"].map(|name| {
                let log = fs::read_to_string(self.dir.join(name)).unwrap_or_default();
                format!("\n-- {name}\n{log}")
            });
            return Err(format!("a server was to be {order}, and was not: {}", logs.concat()));
        }
        Ok(())
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let shell = self.shell.get_mut().unwrap_or_else(PoisonError::into_inner);
        drop(shell.orders.take());
        let _ = shell.process.wait();
    }
}

/// Makes the server's user the owner of the directory and its files. Only that user can read them.
fn give(dir: &Path, user: u32, group: u32) {
    let give = |path: &Path, mode| {
        chown(path, Some(user), Some(group))?;
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    };
    let given = fs::read_dir(dir).and_then(|files| {
        files.into_iter().try_for_each(|file| give(&file?.path(), 0o600))?;
        give(dir, 0o700)
    });
    given.unwrap_or_else(|err| panic!("{}: {err}", dir.display()));
}

/// Writes a file that only this user can read. PostgreSQL refuses a key that others can read.
pub(crate) fn write(path: &Path, text: &str) {
    let mut options = fs::OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(path);
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.unwrap_or_else(|err| panic!("{}: {err}", path.display()));
}
