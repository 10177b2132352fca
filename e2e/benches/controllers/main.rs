//! `make bench-kube`: compares a controller of requeue-kube with a controller of kube. Each run is a separate process:
//! this program, started again with its task as an argument.

#[path = "../../tests/controller/kinds.rs"]
#[allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "shared with the tests")]
mod kinds;
mod memory;
mod patches;
mod protocol;
mod runner;
mod table;

use std::error::Error;

use self::protocol::{Request, Work};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Result<()> {
    // Cargo adds `--bench`, which is not a request.
    let Some(request) = std::env::args().nth(1).filter(|arg| arg != "--bench") else {
        return runner::run().await;
    };
    let Request { who, work } = serde_json::from_str(&request)?;
    let answer = match work {
        Work::Patches(work) => patches::run(who, work).await?,
        Work::Memory(work) => memory::run(who, work).await?,
    };
    println!("{}", serde_json::to_string(&answer)?);
    Ok(())
}
