//! `search-index URL` keeps the index in `search.db` up to date with a PostgreSQL database until SIGTERM or Ctrl-C.
//! `search-index find WORD ...` searches the index.

use std::iter::successors;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use search_index::{Index, Indexer};
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "use `search-index postgres://HOST/DATABASE` or `search-index find WORD ...`";

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt::init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["find", ref words @ ..] if !words.is_empty() => find(&words.join(" ")),
        [url] if url.starts_with("postgres") => follow(url).await,
        _ => Err(USAGE.into()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let causes = successors(error.source(), |cause| cause.source());
            let causes: String = causes.map(|cause| format!(": {cause}")).collect();
            eprintln!("search-index: {error}{causes}");
            ExitCode::FAILURE
        }
    }
}

type Error = Box<dyn std::error::Error + Send + Sync>;

fn open() -> Result<Index, Error> {
    Ok(Index::open(Path::new("search.db"))?)
}

fn find(words: &str) -> Result<(), Error> {
    for (id, title) in open()?.find(words)? {
        println!("{id}: {title}");
    }
    Ok(())
}

async fn follow(url: &str) -> Result<(), Error> {
    let (mut term, mut int) = (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
    let index = open()?;
    let indexer = Indexer::set_up(url, Duration::from_secs(30)).await?;
    tracing::info!("the index follows the table articles");
    let stopped = async move {
        tokio::select! { _ = term.recv() => {}, _ = int.recv() => {} }
    };
    indexer.work(index, stopped).await;
    Ok(())
}
