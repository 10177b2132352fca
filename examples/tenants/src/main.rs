//! `tenants [URL [TENANT/EXPORT ...]]` adds exports, runs all exports of the queue, and reports the turns.
//!
//! The store is a SQLite file by default. Without exports, one tenant gets 1,000 of them, and the other two a few.

use std::iter::successors;
use std::process::ExitCode;

use requeue_store::Store;
use tenants::{Report, add, open, work};

type Error = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().unwrap_or_else(|| "sqlite:tenants.db".to_owned());
    match run(&url, arguments.collect()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let causes = successors(error.source(), |cause| cause.source());
            let causes: String = causes.map(|cause| format!(": {cause}")).collect();
            eprintln!("tenants: {error}{causes}");
            ExitCode::FAILURE
        }
    }
}

async fn run(url: &str, mut exports: Vec<String>) -> Result<(), Error> {
    let store = Store::connect(url).await?;
    store.migrate().await?;
    let queue = open(&store).await?;
    if exports.is_empty() {
        // The large tenant comes first.
        for (tenant, number) in [("acme", 1000), ("trial", 8), ("zeta", 3)] {
            exports.extend((1..=number).map(|export| format!("{tenant}/{export}")));
        }
    }
    add(&queue, &exports).await?;

    let report = Report::default();
    work(queue, report.clone()).await;
    println!("tenant    runs  first run  last run  most at the same time");
    for (tenant, runs) in &*report.lock() {
        let (first, last) = (runs.starts.first(), runs.starts.last());
        let [first, last] = [first, last].map(|position| position.copied().unwrap_or_default());
        let (number, most) = (runs.starts.len(), runs.most_running);
        println!("{tenant:<8}{number:>6}{first:>11}{last:>10}{most:>23}");
    }
    store.close().await;
    Ok(())
}
