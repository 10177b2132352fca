//! Formats the report as text.

use std::fmt::Write as _;

use super::growth::Series;
use super::metric::Limit;
use super::report::{Figure, Line, Report};
use crate::protocol::Keys;

/// Formats the whole report.
#[must_use]
pub fn show(report: &Report) -> String {
    let mut out = report.machine.to_string();
    let versions = report.contestants.iter().map(|(who, version)| format!("{who} {version}"));
    _ = writeln!(out, "versions  {}", versions.collect::<Vec<_>>().join(", "));
    _ = writeln!(
        out,
        "figures   medians of the rounds. A ratio is ours to the peer's in the same round: its\n          \
         median, and its quartiles in brackets. Processor time, unless a row says otherwise."
    );
    for keys in [Keys::U64, Keys::Name] {
        let lines: Vec<&Line> = report.lines.iter().filter(|line| line.keys == keys).collect();
        if !lines.is_empty() {
            out.push('\n');
            out.push_str(&table(keys, &lines));
        }
    }
    let (met, judged) = report.met();
    if judged > 0 {
        _ = writeln!(out, "\n{met} of {judged} targets are met.");
    }
    if !report.growth.is_empty() {
        out.push('\n');
        out.push_str(&growth(&report.growth));
    }
    if !report.missing.is_empty() {
        _ = writeln!(out, "\nNot measured:");
        for (why, rows) in &report.missing {
            let plural = if *rows == 1 { "" } else { "s" };
            _ = writeln!(out, "  {why} ({rows} row{plural})");
        }
    }
    out
}

fn table(keys: Keys, lines: &[&Line]) -> String {
    let keys = match keys {
        Keys::U64 => "u64 keys",
        Keys::Name => "namespace/name keys",
    };
    let mut rows = vec![["", "ours", "", "peer", "", "ratio", "", "target", ""].map(str::to_owned)];
    rows[0][0] = keys.to_owned();
    rows.extend(lines.iter().map(|line| row(line)));
    align(&rows, &[1, 3, 5, 7])
}

fn row(line: &Line) -> [String; 9] {
    let show = |figure: &Figure| line.metric.show(figure.spread.median);
    let who = |figure: &Figure| figure.who.clone();
    let met = match line.met {
        Some(true) => "met",
        Some(false) => "NOT MET",
        None => "",
    };
    [
        line.path.clone(),
        show(&line.ours),
        who(&line.ours),
        line.peer.as_ref().map(show).unwrap_or_default(),
        line.peer.as_ref().map(who).unwrap_or_default(),
        line.ratio.map(|ratio| times(ratio.median)).unwrap_or_default(),
        line.ratio
            .map(|ratio| format!("[{} {}]", times(ratio.q1), times(ratio.q3)))
            .unwrap_or_default(),
        match line.limit {
            None => String::new(),
            Some(Limit::Ratio(most)) => times(most),
            Some(Limit::Figure(most)) => line.metric.show(most),
        },
        met.to_owned(),
    ]
}

/// Formats a ratio with its significant digits.
#[must_use]
pub fn times(ratio: f64) -> String {
    match ratio {
        _ if ratio >= 10.0 => format!("{ratio:.1}"),
        _ if ratio >= 0.1 => format!("{ratio:.2}"),
        _ if ratio >= 0.01 => format!("{ratio:.3}"),
        _ => format!("{ratio:.4}"),
    }
}

/// Aligns columns. Columns in `right` are aligned to the right.
#[must_use]
pub fn align<const N: usize>(rows: &[[String; N]], right: &[usize]) -> String {
    let mut out = String::new();
    let width = |at: usize| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    for row in rows {
        let mut text = String::new();
        for (at, (cell, &width)) in row.iter().zip(&widths).enumerate() {
            if right.contains(&at) {
                _ = write!(text, "{cell:>width$}  ");
            } else {
                _ = write!(text, "{cell:<width$}  ");
            }
        }
        _ = writeln!(out, "{}", text.trim_end());
    }
    out
}

fn growth(series: &[Series]) -> String {
    let mut rows = Vec::new();
    for series in series {
        let mut row = [const { String::new() }; 7];
        [row[0], row[1]] = [series.path.clone(), series.who.clone()];
        for (cell, point) in row[2..].iter_mut().zip(&series.points) {
            *cell = series.metric.show(point.figure);
        }
        rows.push(row);
    }
    let mut head = ["growth", "", "1 k", "10 k", "100 k", "1 M", "10 M"].map(str::to_owned);
    head[1] = "keys:".to_owned();
    rows.insert(0, head);
    align(&rows, &[2, 3, 4, 5, 6])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_below_each_other() {
        let rows = [["a", "1.00 ns", "who"], ["bcd", "12.0 ns", "x"]];
        let rows = rows.map(|row| row.map(str::to_owned));
        assert_eq!(align(&rows, &[1]), "a    1.00 ns  who\nbcd  12.0 ns  x\n");
    }

    #[test]
    fn ratios_have_as_many_digits_as_they_need() {
        assert_eq!(
            [0.004_25, 0.0425, 0.425, 4.25, 42.5].map(times).join(" "),
            "0.0043 0.043 0.42 4.25 42.5"
        );
    }
}
