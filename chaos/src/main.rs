//! `requeue-chaos STORE[,STORE...] [SECONDS [SEED]]`: runs each store for the given number of
//! seconds, and prints a table of the events. `redis` and `rediscluster` have two variants each,
//! which run for half the time.

use std::process::ExitCode;
use std::time::Duration;

use requeue_chaos::{Plan, Subject, run, table, work};

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
    let args: Vec<String> = std::env::args().collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[1..] {
        ["worker", url, seed] => {
            work(url, seed.parse()?).await?;
            Ok(ExitCode::SUCCESS)
        }
        [stores, ref rest @ ..] if rest.len() <= 2 => {
            let seconds = rest.first().map_or(Ok(60), |seconds| seconds.parse())?;
            let drawn = || Ok(fastrand::u64(..1 << 40));
            let seed = rest.get(1).map_or_else(drawn, |seed| seed.parse())?;
            let length = Duration::from_secs(seconds);
            let kinds = stores.split(',').flat_map(|store| match store {
                "redis" => vec![("redis", length / 2), ("redis-everysec", length / 2)],
                "rediscluster" => {
                    vec![("rediscluster", length / 2), ("rediscluster-wait", length / 2)]
                }
                other => vec![(other, length)],
            });
            let mut reports = Vec::new();
            for (store, length) in kinds {
                println!("{store}, for {length:?}, from seed {seed}");
                let subject = Subject::start(store)?;
                let subject = subject.ok_or_else(|| format!("there is no server for {store}"))?;
                let program = std::env::current_exe()?;
                let plan = Plan { subject, program, processes: 4, length, seed };
                let report = run(&plan).await?;
                println!("{report}");
                for violation in report.violations.iter().take(20) {
                    println!("{violation}");
                }
                if !report.is_sound() {
                    println!("left: {:?}", report.left);
                }
                reports.push(report);
            }
            let is_sound = reports.iter().all(requeue_chaos::Report::is_sound);
            println!("\n{}", table(&reports));
            Ok(if is_sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        _ => Err("requeue-chaos STORE[,STORE...] [SECONDS [SEED]]".into()),
    }
}
