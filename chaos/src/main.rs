//! `requeue-chaos URL [SECONDS [SEED]]`.

use std::process::ExitCode;
use std::time::Duration;

use requeue_chaos::{Plan, run, work};

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
    let args: Vec<String> = std::env::args().collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[1..] {
        ["worker", url, seed] => {
            work(url, seed.parse()?).await?;
            Ok(ExitCode::SUCCESS)
        }
        [url, ref rest @ ..] if rest.len() <= 2 => {
            let seconds = rest.first().map_or(Ok(60), |seconds| seconds.parse())?;
            let seed = rest.get(1).map_or_else(|| Ok(fastrand::u64(..1 << 40)), |seed| seed.parse())?;
            println!("{url}, for {seconds} s, from seed {seed}");
            let plan = Plan {
                url: url.to_owned(),
                program: std::env::current_exe()?,
                processes: 4,
                length: Duration::from_secs(seconds),
                seed,
            };
            let report = run(&plan).await?;
            println!("{report}");
            for violation in report.violations.iter().take(20) {
                println!("{violation}");
            }
            if report.is_sound() {
                return Ok(ExitCode::SUCCESS);
            }
            println!("left: {:?}", report.left);
            Ok(ExitCode::FAILURE)
        }
        _ => Err("requeue-chaos URL [SECONDS [SEED]]".into()),
    }
}
