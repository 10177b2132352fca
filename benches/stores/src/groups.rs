//! Measures the cost of groups. Queues with groups and queues without groups take turns in one
//! process.

use std::time::{Duration, Instant};

use regex::Regex;
use requeue_bench::runner::machine::Machine;
use requeue_bench::runner::stats::Spread;
use requeue_bench::runner::text::align;
use requeue_store::{Item, Queue, Store};
use tokio::task::JoinSet;

use crate::Failed;
use crate::ground::Ground;
use crate::table::{Engine, OURS};

/// The pattern that extracts the group of a key.
const PATTERN: &str = "^([^:]*):";
const ENGINES: [Engine; 4] =
    [Engine::Postgres, Engine::PostgresUnsynced, Engine::Redis, Engine::Sqlite];
/// The number of keys in a claim, and in a batch of adds.
const BATCH: usize = 100;
/// The number of groups whose keys are not throttled.
const OPEN: usize = 100;
/// The number of throttled groups, and the number of their keys.
const THROTTLED: (usize, usize) = (1000, 100_000);
/// The lease duration, which is so long that no lease expires during a run.
const LEASE: Duration = Duration::from_secs(3600);

/// The number of rounds, and the number of keys of a round.
#[derive(Clone, Copy)]
pub(crate) struct Scale {
    pub(crate) rounds: usize,
    pub(crate) keys: usize,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Case {
    Many,
    OneLimited,
    Throttled,
}

impl Case {
    const ALL: [Self; 3] = [Self::Many, Self::OneLimited, Self::Throttled];

    const fn name(self) -> &'static str {
        match self {
            Self::Many => "100 groups",
            Self::OneLimited => "one group with a limit",
            Self::Throttled => "100 groups and 100,000 keys of throttled groups",
        }
    }

    /// Returns the minimum ratio of the throughput to the throughput of a queue without groups.
    const fn least(self) -> f64 {
        match self {
            Self::Many => 0.85,
            Self::OneLimited => 0.6,
            Self::Throttled => 0.8,
        }
    }

    const fn groups(self) -> usize {
        match self {
            Self::OneLimited => 1,
            Self::Many | Self::Throttled => OPEN,
        }
    }
}

/// Compares both queues in each case on each engine, and prints the ratios.
pub(crate) async fn measure(scale: Scale, only: Option<&Regex>) -> Result<(), Failed> {
    let ground = Ground::start()?;
    print!("{}", Machine::here());
    println!("servers   {}", ground.versions().join("; "));
    println!("versions  {OURS} {}", env!("CARGO_PKG_VERSION"));
    println!(
        "figures   medians of {} rounds of {} keys, each added, claimed and completed. A ratio is that of the queue\n          \
         with groups to the one without in the same round: its median, and its quartiles in brackets",
        scale.rounds, scale.keys
    );
    let header = [
        "",
        "keys a second",
        "without",
        "ratio",
        "target",
        "p99 of a claim, ratio",
        "adds, claims, completions",
    ];
    let mut rows = vec![header.map(str::to_owned)];
    for (number, engine) in ENGINES.into_iter().enumerate() {
        let Some(place) = ground.place(engine, OURS, number) else {
            println!("\n{}: there is no such server here", engine.name());
            continue;
        };
        let store = Store::connect(&place.address()).await?;
        store.migrate().await?;
        for case in Case::ALL {
            let name = format!("{}, {}", engine.name(), case.name());
            if only.is_some_and(|only| !only.is_match(&name.to_lowercase())) {
                continue;
            }
            eprintln!("{name}");
            rows.push(compare(&store, engine, case, scale).await?);
        }
    }
    println!("\n{}", align(&rows, &[1, 2, 3, 4, 5, 6]).trim_end());
    Ok(())
}

async fn compare(
    store: &Store,
    engine: Engine,
    case: Case,
    scale: Scale,
) -> Result<[String; 7], Failed> {
    let plain = store.queue(format!("plain {}", case.name())).lease(LEASE).open().await?;
    let grouped = store.queue(case.name()).lease(LEASE).group_by(PATTERN);
    let grouped = match case {
        Case::Many => grouped,
        Case::OneLimited => grouped.group_limit(2 * BATCH as u32),
        Case::Throttled => grouped.group_limit(1),
    };
    let grouped = grouped.open().await?;
    let held = if case == Case::Throttled { throttle(&grouped).await? } else { Vec::new() };
    let (mut with, mut without) = (Vec::new(), Vec::new());
    // The first round does not count.
    for round in 0..=scale.rounds {
        let grouped_first = round % 2 == 0;
        for is_grouped in [grouped_first, !grouped_first] {
            let (queue, figures) =
                if is_grouped { (&grouped, &mut with) } else { (&plain, &mut without) };
            let pass = pass(queue, round, case.groups(), scale.keys).await?;
            if round > 0 {
                figures.push(pass);
            }
        }
    }
    drop(held);
    let spread = |figure: fn(&Pass, &Pass) -> f64| {
        let figures = with.iter().zip(&without).map(|(with, without)| figure(with, without));
        Spread::of(figures.collect()).ok_or("no figures")
    };
    let ratio = spread(|with, without| with.rate / without.rate)?;
    let claim = spread(|with, without| with.claim / without.claim)?;
    let parts = [
        spread(|with, without| without.parts[0] / with.parts[0])?,
        spread(|with, without| without.parts[1] / with.parts[1])?,
        spread(|with, without| without.parts[2] / with.parts[2])?,
    ];
    let parts = parts.map(|ratio| format!("{:.2}", ratio.median));
    Ok([
        format!("{}, {}", engine.name(), case.name()),
        format!("{:.0}", spread(|with, _| with.rate)?.median),
        format!("{:.0}", spread(|_, without| without.rate)?.median),
        format!("{:.2} [{:.2} to {:.2}]", ratio.median, ratio.q1, ratio.q3),
        format!("{:.2}", case.least()),
        format!("{:.2} [{:.2} to {:.2}]", claim.median, claim.q1, claim.q3),
        parts.join(" "),
    ])
}

/// Fills the throttled groups, and returns the items that keep them at their limits.
async fn throttle(queue: &Queue) -> Result<Vec<Item>, Failed> {
    let (groups, keys) = THROTTLED;
    for start in (0..keys).step_by(1000) {
        queue.add_all((start..start + 1000).map(|n| format!("t{}:{n}", n % groups))).await?;
    }
    let mut held = Vec::new();
    while held.len() < groups {
        held.extend(queue.get_many(groups - held.len()).await);
    }
    for group in 0..OPEN {
        queue.group(format!("g{group}")).set_limit(Some(u32::MAX >> 1)).await?;
    }
    Ok(held)
}

/// The figures of a round.
struct Pass {
    /// The throughput, in keys per second.
    rate: f64,
    /// The seconds of the adds, of the claims, and of the completions.
    parts: [f64; 3],
    /// The 99th percentile of the time of a claim, in seconds.
    claim: f64,
}

/// Adds keys, and then claims and completes them, `BATCH` at a time.
async fn pass(queue: &Queue, round: usize, groups: usize, keys: usize) -> Result<Pass, Failed> {
    let (start, mut claims, mut left) = (Instant::now(), Vec::new(), keys);
    for first in (0..keys).step_by(BATCH) {
        let name = |n: usize| format!("g{}:{round}/{n}", n % groups);
        queue.add_all((first..keys.min(first + BATCH)).map(name)).await?;
    }
    let added = start.elapsed().as_secs_f64();
    while left > 0 {
        let claim = Instant::now();
        let items = queue.get_many(BATCH.min(left)).await;
        claims.push(claim.elapsed().as_secs_f64());
        left -= items.len();
        let mut all = JoinSet::new();
        for item in items {
            all.spawn(item.succeed());
        }
        while let Some(done) = all.join_next().await {
            done??;
        }
    }
    let rate = keys as f64 / start.elapsed().as_secs_f64();
    let claimed = claims.iter().sum();
    let parts = [added, claimed, start.elapsed().as_secs_f64() - added - claimed];
    claims.sort_by(f64::total_cmp);
    let claim = claims.get(claims.len() * 99 / 100).copied().unwrap_or(f64::NAN);
    Ok(Pass { rate, parts, claim })
}
