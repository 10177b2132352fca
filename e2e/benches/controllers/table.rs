//! Formats the results as a table.

use std::fmt::Write as _;

use requeue_bench::runner::machine::Machine;
use requeue_bench::runner::stats::Spread;
use requeue_bench::runner::text::align;

use crate::protocol::Answer;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Metric {
    /// Objects per second. More is better.
    PerSecond,
    /// The wall-clock time per object or event. `Cpu` is the processor time per object or event.
    Wall,
    Cpu,
    /// The peak memory of the process.
    Peak,
}

impl Metric {
    fn of(self, answer: &Answer) -> f64 {
        let count = answer.count as f64;
        match self {
            Self::PerSecond => count / (answer.wall_ns as f64 / 1e9),
            Self::Wall => answer.wall_ns as f64 / count / 1e3,
            Self::Cpu => answer.cpu_ns as f64 / count / 1e3,
            Self::Peak => answer.peak_kb as f64 / 1024.0,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::PerSecond => "objects/s",
            Self::Wall => "time, us",
            Self::Cpu => "processor time, us",
            Self::Peak => "peak memory, MiB",
        }
    }

    /// Compares a ratio with 1, which is a lower or an upper limit.
    fn judge(self, ratio: Spread) -> &'static str {
        let (good, bad) = match self {
            Self::PerSecond => (ratio.median >= 1.0, ratio.q3 < 1.0),
            Self::Wall | Self::Cpu | Self::Peak => (ratio.median <= 1.0, ratio.q1 > 1.0),
        };
        match (good, bad) {
            (true, _) => "yes",
            (false, false) => "even",
            (false, true) => "NO",
        }
    }
}

/// A figure of requeue and the same figure of another contestant.
pub(crate) struct Row {
    name: String,
    metric: Metric,
    peer: String,
    ours: f64,
    others: f64,
    ratio: Option<Spread>,
    told: bool,
}

impl Row {
    pub(crate) fn new(
        name: &str,
        metric: Metric,
        (peer, others): (&str, &[Answer]),
        ours: &[Answer],
    ) -> Self {
        let figures = |answers: &[Answer]| answers.iter().map(|a| metric.of(a)).collect::<Vec<_>>();
        let (ours, others) = (figures(ours), figures(others));
        let ratio = ours.iter().zip(&others).map(|(ours, other)| ours / other).collect();
        let median = |figures| Spread::of(figures).map_or(f64::NAN, |spread| spread.median);
        Self {
            name: name.to_owned(),
            metric,
            peer: peer.to_owned(),
            ratio: Spread::of(ratio),
            ours: median(ours),
            others: median(others),
            told: true,
        }
    }

    /// Marks a row that has no target.
    pub(crate) fn untold(self) -> Self {
        Self { told: false, ..self }
    }

    fn cells(&self) -> [String; 7] {
        let (ratio, verdict) = match self.ratio {
            Some(ratio) => (
                format!("{:.2} [{:.2} {:.2}]", ratio.median, ratio.q1, ratio.q3),
                if self.told { self.metric.judge(ratio) } else { "" },
            ),
            None => ("none".into(), ""),
        };
        let figure = |figure: f64| format!("{figure:.1}");
        [
            self.name.clone(),
            self.metric.name().into(),
            figure(self.ours),
            figure(self.others),
            self.peer.clone(),
            ratio,
            verdict.into(),
        ]
    }
}

pub(crate) fn show(machine: &Machine, rounds: usize, quick: bool, rows: &[Row]) -> String {
    let head = ["", "", "ours", "other", "", "ratio", "target"].map(str::to_owned);
    let cells: Vec<_> = [head].into_iter().chain(rows.iter().map(Row::cells)).collect();
    let command = format!("make bench-kube{} ROUNDS={rounds}", if quick { " QUICK=1" } else { "" });
    let mut out = machine.to_string();
    _ = writeln!(
        out,
        "command   {command}\n\
         figures   medians of the rounds, for one object or event. A ratio is ours to the other's of\n          \
         the same round: its median, and its quartiles in brackets. The target is 1: reached,\n          \
         even (1 lies between the quartiles), or not.\n"
    );
    out + &align(&cells, &[2, 3])
}
