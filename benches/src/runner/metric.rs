//! The figures of an answer.

use crate::protocol::Answer;

/// A figure of an answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Metric {
    /// The processor time of an operation.
    Cpu,
    /// The wall-clock time of an operation.
    Wall,
    /// The median lateness of a key.
    LatenessP50,
    /// The 99th percentile of the lateness of a key.
    LatenessP99,
    /// The median time from add to worker.
    LatencyP50,
    /// The 99th percentile of the time from add to worker.
    LatencyP99,
    /// The memory per key or queue.
    Bytes,
    /// The fraction of the memory that is kept.
    Kept,
    /// The longest operation.
    Longest,
    /// The processor time per second.
    CpuPerSecond,
    /// The number of sleeps of workers per key, which is how often a worker had to be woken.
    Sleeps,
}

impl Metric {
    /// Returns the figure in nanoseconds, in bytes, or as a fraction.
    #[must_use]
    pub fn of(self, answer: &Answer) -> Option<f64> {
        let per = |nanos: u64, by: u64| (by > 0).then(|| nanos as f64 / by as f64);
        match self {
            Self::Cpu => per(answer.cpu_ns, answer.ops),
            Self::Wall => per(answer.wall_ns, answer.ops),
            Self::LatenessP50 => Some(answer.lateness_ns?.p50),
            Self::LatenessP99 => Some(answer.lateness_ns?.p99),
            Self::LatencyP50 => Some(answer.latency_ns?.p50),
            Self::LatencyP99 => Some(answer.latency_ns?.p99),
            Self::Bytes => answer.bytes,
            Self::Kept => Some(answer.bytes_after? / answer.bytes?),
            Self::Longest => answer.longest_ns,
            Self::CpuPerSecond => Some(per(answer.cpu_ns, answer.wall_ns)? * 1e9),
            Self::Sleeps => per(answer.sleeps?, answer.ops),
        }
    }

    /// Returns true if ratios of this figure are reproducible. Ratios of the 99th percentile are
    /// not.
    pub(super) const fn is_steady_time(self) -> bool {
        matches!(self, Self::Cpu | Self::Wall | Self::LatenessP50 | Self::LatencyP50)
    }

    /// Formats a figure with its unit.
    #[must_use]
    pub fn show(self, figure: f64) -> String {
        match self {
            Self::Bytes if figure >= 10_000.0 => format!("{:.1} kB", figure / 1000.0),
            Self::Bytes => format!("{figure:.1} B"),
            Self::Kept => format!("{:.1} %", figure * 100.0),
            Self::CpuPerSecond => format!("{} a second", time(figure)),
            Self::Sleeps => format!("{figure:.3} a key"),
            Self::Cpu
            | Self::Wall
            | Self::LatenessP50
            | Self::LatenessP99
            | Self::LatencyP50
            | Self::LatencyP99
            | Self::Longest => time(figure),
        }
    }
}

fn time(nanos: f64) -> String {
    let (unit, per) = match nanos {
        _ if nanos >= 1e9 => ("s", 1e9),
        _ if nanos >= 1e6 => ("ms", 1e6),
        _ if nanos >= 1e4 => ("µs", 1e3),
        _ => ("ns", 1.0),
    };
    let figure = nanos / per;
    let digits = match figure {
        _ if figure >= 100.0 => 0,
        _ if figure >= 10.0 => 1,
        _ => 2,
    };
    format!("{figure:.digits$} {unit}")
}

/// An upper limit for requeue.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Limit {
    /// A multiple of the peer's figure.
    Ratio(f64),
    /// An absolute figure.
    Figure(f64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_per_operation() {
        let answer = Answer { ops: 4, wall_ns: 1000, cpu_ns: 2000, ..Answer::default() };
        assert_eq!(Metric::Cpu.of(&answer), Some(500.0));
        assert_eq!(Metric::Wall.of(&answer), Some(250.0));
        assert_eq!(Metric::CpuPerSecond.of(&answer), Some(2e9));
        assert_eq!(Metric::Bytes.of(&answer), None);
        assert_eq!(Metric::Cpu.of(&Answer::default()), None);
    }

    #[test]
    fn figures_are_shown_in_the_unit_that_fits() {
        assert_eq!(Metric::Cpu.show(7.123), "7.12 ns");
        assert_eq!(Metric::Cpu.show(117.6), "118 ns");
        assert_eq!(Metric::Cpu.show(7_900_000.0), "7.90 ms");
        assert_eq!(Metric::Bytes.show(46.26), "46.3 B");
        assert_eq!(Metric::Bytes.show(14_500.0), "14.5 kB");
        assert_eq!(Metric::Kept.show(0.034), "3.4 %");
        assert_eq!(Metric::Sleeps.show(0.93), "0.930 a key");
    }
}
