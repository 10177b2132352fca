//! Measures the disk space of a store while keys pass through it.

use std::time::Instant;

use requeue_bench::runner::child::Running;
use requeue_bench::runner::machine::Machine;
use requeue_bench::runner::text::align;

use crate::Failed;
use crate::ground::Ground;
use crate::protocol::{Request, Scenario};
use crate::run;
use crate::table::{Engine, OURS};
use crate::text::thousands;

/// The number of measurements.
const LOOKS: usize = 10;
const ENGINES: [Engine; 3] = [Engine::Postgres, Engine::Redis, Engine::Sqlite];

/// Passes `keys` keys through each engine. About ten thousand keys are in the queue at a time.
pub(crate) fn measure(keys: usize) -> Result<(), Failed> {
    let ground = Ground::start()?;
    print!("{}", Machine::here());
    println!("servers   {}", ground.versions().join("; "));
    println!("versions  {OURS} {}", env!("CARGO_PKG_VERSION"));
    println!(
        "figures   keys that have come and gone, ten thousand at a time; then how many a second, and the room\n          \
         that all has that was ever there: of tables with their indexes and of files on disk, of Redis in memory"
    );
    for (number, engine) in ENGINES.into_iter().enumerate() {
        let Some(place) = ground.place(engine, OURS, number) else {
            println!("\n{}: there is no such server here", engine.name());
            continue;
        };
        let [ours] = &mut run::programs(Vec::new())?[..] else {
            unreachable!("one program without peers")
        };
        ours.args.push(place.address().into());
        let mut running = Running::start(ours)?;
        let mut rows = vec![[engine.name(), "a second", "room"].map(str::to_owned)];
        let mut ask = |request: Request| {
            let start = Instant::now();
            let answer = running.ask(&request)?;
            match answer.error {
                Some(error) => Err(Failed::from(error)),
                None => Ok(request.n as f64 / start.elapsed().as_secs_f64()),
            }
        };
        ask(Request::of(Scenario::Fill))?;
        rows.push(["0".to_owned(), String::new(), megabytes(place.size())]);
        for look in 1..=LOOKS {
            let n = keys / LOOKS;
            let flow = Request { n, tasks: 256, batch: 250, ..Request::of(Scenario::Flow) };
            let rate = ask(flow)?;
            let gone = thousands((n * look) as f64);
            eprintln!("{}: {gone}", engine.name());
            rows.push([gone, thousands(rate), megabytes(place.size())]);
        }
        println!("\n{}", align(&rows, &[0, 1, 2]).trim_end());
    }
    Ok(())
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}
