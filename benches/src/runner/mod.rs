//! Lets contestants take turns, and reports the results.

pub mod child;
mod contended;
pub mod growth;
pub mod heat;
pub mod machine;
pub mod metric;
mod plot;
pub mod report;
pub mod stats;
pub mod table;
pub mod text;

use std::fs;
use std::io;
use std::path::Path;

use regex::Regex;

use self::heat::Field;
use self::machine::Machine;
use self::report::Report;
use self::table::Scale;

/// The scope of a run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The number of rounds and keys.
    pub scale: Scale,
    /// A pattern for the names of rows.
    pub only: Option<Regex>,
    /// True if the run also measures how costs grow.
    pub growth: bool,
}

impl Plan {
    fn wants(&self, id: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.is_match(id))
    }

    /// Runs the measurements, and prints the progress to standard error.
    #[must_use]
    pub fn run(&self, mut field: Field) -> Report {
        let mut report = Report::new(Machine::here());
        let mut heats = table::heats(self.scale);
        heats.iter_mut().for_each(|heat| heat.keep(|id| self.wants(id)));
        heats.retain(|heat| !heat.rows.is_empty());
        for (at, heat) in heats.iter().enumerate() {
            eprintln!("{:>3} of {}: {}", at + 1, heats.len(), heat.rows[0].path);
            let answers = field.run(heat, self.scale.rounds);
            report.add(heat, &answers);
        }
        if self.growth {
            growth::run(&mut field, self.scale, |id| self.wants(id), &mut report);
        }
        report.note(field.hellos());
        report
    }
}

/// Writes the report to a directory, as text and as pictures.
///
/// # Errors
///
/// Returns an error if the directory or a file cannot be written.
pub fn write(report: &Report, dir: &Path) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    fs::write(dir.join("bench.txt"), text::show(report))?;
    fs::write(dir.join("bench.svg"), plot::ratios(&report.lines))?;
    if !report.growth.is_empty() {
        fs::write(dir.join("growth.svg"), plot::growth(&report.growth))?;
    }
    Ok(())
}
