//! Formats the table.

use std::fmt::Write as _;

use requeue_bench::runner::stats::Spread;
use requeue_bench::runner::text::{align, times};

use crate::run::Figures;
use crate::table::{Engine, Heat, Metric, Row, Target};

/// The results so far.
#[derive(Default)]
pub(crate) struct Report {
    rows: Vec<(Engine, [String; 8])>,
    met: usize,
    judged: usize,
    missing: Vec<String>,
}

impl Report {
    pub(crate) fn add(&mut self, heat: &Heat, figures: &[Figures]) {
        for row in &heat.rows {
            match self.row(heat, row, figures) {
                Ok(cells) => self.rows.push((heat.engine, cells)),
                Err(why) => {
                    let missing = format!("{}, {}: {why}", heat.engine.name(), heat.what);
                    if !self.missing.contains(&missing) {
                        self.missing.push(missing);
                    }
                }
            }
        }
    }

    fn row(&mut self, heat: &Heat, row: &Row, figures: &[Figures]) -> Result<[String; 8], String> {
        let of = |figures: &Figures| -> Result<Vec<f64>, String> {
            let answers = figures.as_ref().map_err(Clone::clone)?.iter();
            let figures: Option<Vec<f64>> = answers.map(|answer| row.metric.of(answer)).collect();
            figures.ok_or_else(|| "no such figure".to_owned())
        };
        let ours = of(&figures[0])?;
        let peer = row.peer.and_then(|tag| heat.sides.iter().position(|side| side.tag == tag));
        let theirs = peer.map(|at| of(&figures[at])).transpose()?;
        let ratios = theirs.as_ref().and_then(|theirs| {
            Spread::of(ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect())
        });
        let median = |figures| Spread::of(figures).map_or(f64::NAN, |spread| spread.median);
        let ours = median(ours);
        let is_met = match row.target {
            None => None,
            Some(Target::Times(least)) => ratios.map(|ratios| ratios.median >= least),
            Some(Target::Rate(least)) => Some(ours >= least),
        };
        self.judged += usize::from(is_met.is_some());
        self.met += usize::from(is_met == Some(true));
        let what = match row.metric {
            Metric::Rate => heat.what.to_owned(),
            Metric::P50 => format!("{}, p50", heat.what),
            Metric::P99 => format!("{}, p99", heat.what),
        };
        Ok([
            what,
            row.metric.show(ours),
            theirs.map(median).map(|figure| row.metric.show(figure)).unwrap_or_default(),
            row.peer.unwrap_or_default().to_owned(),
            ratios.map(|ratios| times(ratios.median)).unwrap_or_default(),
            ratios
                .map(|ratios| format!("[{} {}]", times(ratios.q1), times(ratios.q3)))
                .unwrap_or_default(),
            match row.target {
                None => String::new(),
                Some(Target::Times(least)) => times(least),
                Some(Target::Rate(least)) => Metric::Rate.show(least),
            },
            match is_met {
                None => "",
                Some(true) => "met",
                Some(false) => "NOT MET",
            }
            .to_owned(),
        ])
    }

    pub(crate) fn show(&self) -> String {
        let mut out = String::new();
        for engine in Engine::ALL {
            let rows = self.rows.iter().filter(|(of, _)| *of == engine).map(|(_, row)| row.clone());
            let head = [engine.name(), "ours", "peer", "", "ratio", "", "target", ""];
            let rows: Vec<_> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
            if rows.len() > 1 {
                _ = write!(out, "\n{}", align(&rows, &[1, 2, 4, 6]));
            }
        }
        _ = writeln!(out, "\n{} of {} targets are met.", self.met, self.judged);
        if !self.missing.is_empty() {
            _ = writeln!(out, "\nNot measured:\n  {}", self.missing.join("\n  "));
        }
        out
    }
}

impl Metric {
    fn show(self, figure: f64) -> String {
        match self {
            Self::Rate => thousands(figure),
            Self::P50 | Self::P99 => format!("{figure:.2} ms"),
        }
    }
}

/// Formats a figure with three significant digits and separators.
pub(crate) fn thousands(figure: f64) -> String {
    let unit = 10f64.powi((figure.max(1.0).log10().floor() as i32 - 2).max(0));
    let digits = format!("{:.0}", (figure / unit).round() * unit);
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_have_three_digits() {
        assert_eq!(
            [0.4, 7.0, 123.4, 1234.0, 98_765.0, 1_234_567.0].map(thousands).join(" "),
            "0 7 123 1,230 98,800 1,230,000"
        );
    }
}
