//! `requeue-instructions PATH TIMES` runs a path the given number of times, and
//! `scripts/instructions.sh` counts its instructions. Without arguments it lists the paths. The
//! program depends on neither chance nor time.

mod fixture;
mod paths;

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = args.first().and_then(|name| paths::ALL.iter().find(|path| path.0 == *name));
    match (path, args.get(1).map(|times| times.parse())) {
        (Some((_, take)), Some(Ok(times))) => take(times),
        _ if args.is_empty() => paths::ALL.iter().for_each(|(name, _)| println!("{name}")),
        _ => {
            eprintln!("requeue-instructions [PATH TIMES]: no such path, or no number: {args:?}");
            return ExitCode::from(2);
        }
    }
    ExitCode::SUCCESS
}
