//! Measures how many keys per second a store adds and delivers: `cargo bench -p requeue-store -- URL`.
//! Without a URL, it uses a SQLite file in the directory for temporary files.

use std::time::{Duration, Instant};

use requeue_store::{Queue, Store};
use tokio::task::JoinSet;

/// The number of concurrent tasks.
const TASKS: usize = 64;
/// The duration of each measurement.
const SPAN: Duration = Duration::from_secs(3);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let dir = tempfile::tempdir()?;
        let file = format!("sqlite:{}", dir.path().join("queues.db").display());
        let url = std::env::args().skip(1).find(|arg| arg.contains(':')).unwrap_or(file);
        let store = Store::connect(&url).await?;
        store.migrate().await?;
        let queue = store.queue("bench").open().await?;

        let start = Instant::now();
        let mut keys = 0u64;
        while start.elapsed() < SPAN {
            queue.add(format!("alone-{keys}")).await?;
            keys += 1;
        }
        report("add, one at a time", keys, start);

        let (keys, start) = tasks(&queue, |queue, task| async move {
            let mut keys = 0u64;
            let start = Instant::now();
            while start.elapsed() < SPAN {
                queue.add(format!("{task}-{keys}")).await?;
                keys += 1;
            }
            Ok(keys)
        })
        .await?;
        report("add, 64 tasks", keys, start);

        let start = Instant::now();
        let mut keys = 0u64;
        while start.elapsed() < SPAN {
            queue.add_all((keys..keys + 100).map(|n| format!("many-{n}"))).await?;
            keys += 100;
        }
        report("add_all of 100", keys, start);

        let (keys, start) = tasks(&queue, |queue, _| async move {
            let mut keys = 0u64;
            let start = Instant::now();
            while start.elapsed() < SPAN {
                let Some(item) = queue.get().await else { break };
                item.succeed().await?;
                keys += 1;
            }
            Ok(keys)
        })
        .await?;
        report("get and succeed, 64 tasks", keys, start);
        let left = queue.counts().await?;
        println!("left: {left:?}");
        Ok(())
    })
}

async fn tasks<F>(
    queue: &Queue,
    work: impl Fn(Queue, usize) -> F,
) -> Result<(u64, Instant), Box<dyn std::error::Error>>
where
    F: Future<Output = Result<u64, Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
{
    let start = Instant::now();
    let mut all = JoinSet::new();
    for task in 0..TASKS {
        all.spawn(work(queue.clone(), task));
    }
    let mut keys = 0;
    while let Some(ended) = all.join_next().await {
        keys += ended?.map_err(|error| error.to_string())?;
    }
    Ok((keys, start))
}

fn report(what: &str, keys: u64, start: Instant) {
    let seconds = start.elapsed().as_secs_f64();
    println!("{what:30} {:>9.0} keys/s", keys as f64 / seconds);
}
