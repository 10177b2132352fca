//! Measures how costs grow with the number of keys.

use super::heat::{Field, Heat, of};
use super::metric::Metric;
use super::report::Report;
use super::stats::Spread;
use super::table::Scale;
use crate::protocol::{Keys, Request, Scenario};

/// The numbers of keys.
pub const SIZES: [usize; 5] = [1000, 10_000, 100_000, 1_000_000, 10_000_000];

/// The figures of one contestant over the numbers of keys.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs, reason = "their names say it")]
pub struct Series {
    pub path: String,
    pub who: String,
    pub metric: Metric,
    pub points: Vec<Point>,
}

/// A point of the line.
#[derive(Clone, Copy, PartialEq, Debug)]
#[allow(missing_docs, reason = "their names say it")]
pub struct Point {
    pub keys: usize,
    pub figure: f64,
}

/// A scenario with its name, the figure, and the round. The round depends on the number of keys
/// and, if it differs, on the number of operations.
type Path = (&'static str, Metric, fn(usize, usize) -> Request);

/// Measures requeue and client-go at each number of keys.
pub fn run(field: &mut Field, scale: Scale, wanted: impl Fn(&str) -> bool, report: &mut Report) {
    let paths: [Path; 9] = [
        ("add + get + done, as many queued", Metric::Cpu, |keys, n| Request {
            depth: keys,
            ..of(Scenario::Cycle, n)
        }),
        ("add of one that is queued", Metric::Cpu, |keys, n| Request {
            depth: keys,
            ..of(Scenario::AddQueued, n)
        }),
        ("fill and drain", Metric::Cpu, |keys, _| of(Scenario::FillDrain, keys)),
        ("delayed add", Metric::Cpu, |keys, _| of(Scenario::DelayedAdd, keys)),
        ("re-add of a waiting key", Metric::Cpu, |keys, n| Request {
            depth: keys,
            ..of(Scenario::DelayedReadd, n)
        }),
        ("rate-limited add", Metric::Cpu, |keys, _| of(Scenario::RateLimitedAdd, keys)),
        ("forget", Metric::Cpu, |keys, _| of(Scenario::Forget, keys)),
        ("memory of a queued key", Metric::Bytes, |keys, _| of(Scenario::Memory, keys)),
        ("memory of a delayed key", Metric::Bytes, |keys, _| of(Scenario::MemoryDelayed, keys)),
    ];
    for (path, metric, request) in paths {
        if !wanted(&format!("growth: {path}")) {
            continue;
        }
        let mut series = ["requeue", "client-go"].map(|who| Series {
            path: path.to_owned(),
            who: who.to_owned(),
            metric,
            points: Vec::new(),
        });
        for keys in SIZES.into_iter().filter(|&keys| keys <= scale.n(SIZES[4])) {
            let all = request(keys, scale.n(500_000));
            let mut heat = Heat::new(path, Keys::U64).rounds(3);
            heat = heat.side("requeue", all).side("client-go", all);
            let answers = field.run(&heat, scale.rounds);
            for series in &mut series {
                let figures = answers.get(series.who.as_str()).map(|answers| match answers {
                    Ok(answers) => Ok(answers.iter().filter_map(|a| metric.of(a)).collect()),
                    Err(why) => Err(why.clone()),
                });
                match figures {
                    Some(Ok(figures)) => series.points.extend(
                        Spread::of(figures).map(|spread| Point { keys, figure: spread.median }),
                    ),
                    Some(Err(why)) => report.miss(why),
                    None => {}
                }
            }
        }
        report.growth.extend(series.into_iter().filter(|series| !series.points.is_empty()));
    }
}
