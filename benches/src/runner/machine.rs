//! The machine of a run, without which figures have no meaning.

use std::env;
use std::fmt;
use std::fs;
use std::process::Command;
use std::thread;

/// The machine, and the compiler of the contestants.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs, reason = "their names say it")]
pub struct Machine {
    pub cpu: String,
    pub cores: usize,
    pub system: String,
    pub rustc: String,
    pub go: Option<String>,
    /// The load averages over one, five and fifteen minutes before the first round.
    pub load: Option<String>,
}

impl Machine {
    /// Describes this machine.
    #[must_use]
    pub fn here() -> Self {
        let unknown = || "unknown".to_owned();
        Self {
            cpu: cpu().unwrap_or_else(unknown),
            cores: thread::available_parallelism().map_or(0, usize::from),
            system: format!("{} {}", env::consts::OS, env::consts::ARCH),
            rustc: says("rustc", &["--version"]).unwrap_or_else(unknown),
            go: says("go", &["version"]),
            load: load(),
        }
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "machine   {} cores, {}, {}", self.cores, self.cpu, self.system)?;
        writeln!(f, "load      {}", self.load.as_deref().unwrap_or("unknown"))?;
        writeln!(f, "built by  {}", self.rustc)?;
        writeln!(f, "          {}", self.go.as_deref().unwrap_or("no Go here"))
    }
}

fn cpu() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn load() -> Option<String> {
    let load = fs::read_to_string("/proc/loadavg").ok()?;
    Some(load.split(' ').take(3).collect::<Vec<_>>().join(" "))
}

fn says(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
