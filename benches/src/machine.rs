//! What was measured on, and how.

use std::env;
use std::fs;
use std::process::Command;
use std::thread;

/// The lines at the head of every table: without them, its numbers mean nothing.
#[must_use]
pub fn head(scale: &crate::Scale) -> String {
    let cores = thread::available_parallelism().map_or(0, usize::from);
    let options: Vec<String> = env::args().skip(1).filter(|arg| arg != "--bench").collect();
    let options =
        if options.is_empty() { String::new() } else { format!(" -- {}", options.join(" ")) };
    format!(
        "machine  {cores} cores, {}, {} {}\n\
         rustc    {}\n\
         command  cargo bench -p requeue-bench{options}\n\
         rounds   {} of {} operations, all contenders in turns; medians. A ratio is that of a\n         \
         round's times to the first contender's, with the lowest and the highest in brackets.\n",
        cpu().unwrap_or_else(|| "a CPU without a name".to_owned()),
        env::consts::OS,
        env::consts::ARCH,
        rustc().unwrap_or_else(|| "of unknown version".to_owned()),
        scale.rounds,
        scale.turn,
    )
}

fn cpu() -> Option<String> {
    let info = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = info.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn rustc() -> Option<String> {
    let output = Command::new("rustc").arg("--version").output().ok()?;
    let version = String::from_utf8(output.stdout).ok()?;
    Some(version.trim().trim_start_matches("rustc ").to_owned())
}
