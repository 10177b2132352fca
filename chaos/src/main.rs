//! `requeue-chaos sqlite|postgres|URL [SECONDS [SEED]]`: a file or a server of its own, or what is at
//! the address.

use std::process::ExitCode;
use std::time::Duration;

use requeue_chaos::{Plan, run, work};
use requeue_servers::Postgres;

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn std::error::Error + Send + Sync>> {
    let args: Vec<String> = std::env::args().collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[1..] {
        ["worker", url, seed] => {
            work(url, seed.parse()?).await?;
            Ok(ExitCode::SUCCESS)
        }
        [what, ref rest @ ..] if rest.len() <= 2 => {
            let seconds = rest.first().map_or(Ok(60), |seconds| seconds.parse())?;
            let drawn = || Ok(fastrand::u64(..1 << 40));
            let seed = rest.get(1).map_or_else(drawn, |seed| seed.parse())?;
            let dir = tempfile::tempdir()?;
            let server = if what == "postgres" { Postgres::start() } else { None };
            let url = match (what, &server) {
                ("sqlite", _) => format!("sqlite:{}", dir.path().join("queues.db").display()),
                ("postgres", None) => return Err("there is no PostgreSQL server here".into()),
                ("postgres", Some(server)) => server.database(),
                (url, _) => url.to_owned(),
            };
            println!("{what}, for {seconds} s, from seed {seed}");
            let strike = || {
                if let Some(server) = &server {
                    server.kill();
                    server.restart();
                }
            };
            let plan = Plan {
                url,
                program: std::env::current_exe()?,
                processes: 4,
                length: Duration::from_secs(seconds),
                seed,
                strike: server.is_some().then_some(&strike),
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
        _ => Err("requeue-chaos sqlite|postgres|URL [SECONDS [SEED]]".into()),
    }
}
