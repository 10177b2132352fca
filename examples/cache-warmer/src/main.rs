//! `cache-warmer` keeps pages of a website in Redis, and fetches each one again before it expires.
//!
//! A page is a key of the queue `pages`, from its first add on: between two runs, the key waits for the next fetch. All
//! workers and all processes that add pages share this queue.

mod cache;
mod worker;

use std::error::Error;
use std::io::Write;
use std::iter::successors;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};
use http::Uri;
use http::uri::PathAndQuery;
use requeue_store::{Add, Added, Priority, Store};

use crate::cache::Cache;
use crate::worker::{CHANGED, Warmer};

const QUEUE: &str = "pages";

/// Keeps pages of a website in Redis, and fetches each one again before it expires.
#[derive(Parser)]
struct Args {
    /// Redis server of the queue and the cache
    #[arg(long, value_name = "URL", env = "REDIS_URL", default_value = "redis://127.0.0.1")]
    redis: String,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Add pages to the cache, or report that they have changed
    Warm {
        /// Fetch these pages before others
        #[arg(long)]
        popular: bool,
        /// Fetch the pages again, even if the cached ones are fresh
        #[arg(long)]
        changed: bool,
        /// Paths of pages, as in /products/7
        #[arg(required = true, value_name = "PATH", value_parser = parse_path)]
        paths: Vec<String>,
    },
    /// Print a page from the cache, or add it with a high priority
    Get {
        #[arg(value_name = "PATH", value_parser = parse_path)]
        path: String,
    },
    /// Fetch pages until SIGTERM or Ctrl-C. Any number of processes can do so
    Work {
        /// Website that the pages come from, as in http://127.0.0.1:8000
        #[arg(long, value_name = "URL", value_parser = parse_origin)]
        origin: Uri,
        /// Seconds for which a page is in the cache
        #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = parse_seconds)]
        ttl: Duration,
        /// Seconds after which another worker fetches the pages of a dead one
        #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = parse_seconds)]
        lease: Duration,
        /// Pages that this process fetches at the same time
        #[arg(long, value_name = "N", default_value_t = 8)]
        jobs: u16,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let args = Args::parse();
    tracing_subscriber::fmt::init();
    run(args).await.unwrap_or_else(|error| {
        // The first error names the operation, and its sources name the causes.
        let chain = successors(Some(&*error), |&error| error.source());
        let chain: Vec<_> = chain.map(ToString::to_string).collect();
        eprintln!("cache-warmer: {}", chain.join(": "));
        ExitCode::FAILURE
    })
}

async fn run(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    let store = Store::connect(&args.redis).await?;
    store.migrate().await?;
    // Failures never park a page, because nothing would add it again after an outage of the origin. The backoff is at
    // most five minutes.
    let queue = store.queue(QUEUE);
    match args.command {
        Command::Warm { popular, changed, paths } => {
            let priority = if popular { Priority::High } else { Priority::Normal };
            let add = Add::now().priority(priority).flags(if changed { CHANGED } else { 0 });
            let added = queue.open().await?.add_all_with(paths, add).await?;
            let new = added.iter().filter(|added| matches!(added, Added::New)).count();
            println!("adds: {}, new: {new}", added.len());
        }
        Command::Get { path } => match Cache::connect(&args.redis).await?.read(&path).await? {
            Some(page) => std::io::stdout().write_all(&page)?,
            None => {
                // A thousand readers that miss the page at the same time cause one fetch.
                let add = Add::now().priority(Priority::High);
                queue.open().await?.add_with(&*path, add).await?;
                eprintln!("cache-warmer: {path} is not in the cache yet, and was added");
                return Ok(ExitCode::FAILURE);
            }
        },
        Command::Work { origin, ttl, lease, jobs } => {
            let queue = queue.lease(lease).open().await?;
            Warmer::new(args.redis, origin, ttl).run(queue, jobs).await?;
            store.close().await;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn parse_path(text: &str) -> Result<String, String> {
    match text.parse::<PathAndQuery>() {
        Ok(_) if text.starts_with('/') => Ok(text.to_owned()),
        _ => Err("a path begins with / and has no spaces, as in /products/7".to_owned()),
    }
}

fn parse_origin(text: &str) -> Result<Uri, String> {
    let origin = text.parse::<Uri>().ok().filter(|uri| {
        uri.scheme_str() == Some("http") && uri.path() == "/" && uri.query().is_none()
    });
    origin.ok_or_else(|| "the origin is http://HOST[:PORT], without a path".to_owned())
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=86_400).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(|| "use 1 to 86400 seconds".to_owned())
}
