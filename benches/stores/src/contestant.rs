//! The contestant for requeue.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use requeue::workers::{Action, Workers};
use requeue_bench::protocol::{Answer, Hello, Quantiles};
use requeue_store::{Queue, Store};
use tokio::sync::{Semaphore, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::Failed;
use crate::protocol::{Request, Scenario};

/// The batch size and the number of adders, for adds that are not measured.
const FILL: (usize, usize) = (250, 8);
/// The number of keys in the queue while many keys pass through it.
const THROUGH: usize = 10_000;
/// The time limit for a round.
const PATIENCE: Duration = Duration::from_secs(600);

/// Introduces itself, and answers requests until the input closes.
pub(crate) async fn serve(address: &str) -> Result<(), Failed> {
    let store = Store::connect(address).await?;
    store.migrate().await?;
    let (stdin, mut stdout) = (io::stdin(), io::stdout());
    let hello = Hello {
        contestant: "requeue".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        scenarios: Scenario::ALL.map(Scenario::name).into(),
    };
    writeln!(stdout, "{}", serde_json::to_string(&hello)?)?;
    let keys = Arc::default();
    for line in stdin.lines() {
        let answer = match serde_json::from_str(&line?) {
            Ok(request) => round(&store, &keys, request).await,
            Err(error) => Err(error.into()),
        };
        let answer = answer.unwrap_or_else(|error| Answer::error(error.to_string()));
        writeln!(stdout, "{}", serde_json::to_string(&answer)?)?;
    }
    Ok(())
}

async fn round(store: &Store, keys: &Arc<Keys>, request: Request) -> Result<Answer, Failed> {
    // The reset after the last round may also have removed the tables of queues.
    store.migrate().await?;
    let queue = store.queue("bench").open().await?;
    let keys = Arc::clone(keys);
    match request.scenario {
        Scenario::Fill => fill(queue, keys, request.n).await,
        Scenario::Add => add(queue, keys, request).await,
        Scenario::Work => work(queue, request).await,
        Scenario::Flow => flow(queue, keys, request).await,
        Scenario::Cycle => cycle(queue, keys, request).await,
        Scenario::Latency => latency(queue, &keys, request).await,
    }
}

/// Creates keys that are different in each round.
#[derive(Default)]
struct Keys(AtomicU64);

impl Keys {
    fn next(&self) -> String {
        format!("key-{}", self.0.fetch_add(1, Ordering::Relaxed))
    }

    fn many(&self, n: usize) -> impl Iterator<Item = String> {
        (0..n).map(|_| self.next())
    }
}

fn since(start: Instant, ops: usize) -> Answer {
    between(start, Instant::now(), ops)
}

fn between(start: Instant, end: Instant, ops: usize) -> Answer {
    let wall_ns = (end - start).as_nanos().try_into().unwrap_or(u64::MAX);
    Answer { ops: ops as u64, wall_ns, ..Answer::default() }
}

/// Runs `task` in `tasks` tasks. Returns the sum of their results.
async fn tasks<F>(tasks: usize, task: impl Fn() -> F) -> Result<usize, Failed>
where
    F: Future<Output = Result<usize, Failed>> + Send + 'static,
{
    let mut all = JoinSet::new();
    for _ in 0..tasks {
        all.spawn(task());
    }
    let mut done = 0;
    while let Some(task) = all.join_next().await {
        done += task??;
    }
    Ok(done)
}

async fn fill(queue: Queue, keys: Arc<Keys>, n: usize) -> Result<Answer, Failed> {
    let (batch, adders) = FILL;
    let left = Arc::new(AtomicUsize::new(n));
    let start = Instant::now();
    tasks(adders, || {
        let (queue, keys, left) = (queue.clone(), Arc::clone(&keys), Arc::clone(&left));
        async move {
            loop {
                let take = |left: usize| Some(left.saturating_sub(batch));
                let Ok(rest) = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take) else {
                    unreachable!("there is always an answer");
                };
                if rest == 0 {
                    return Ok(0);
                }
                queue.add_all(keys.many(rest.min(batch))).await?;
            }
        }
    })
    .await?;
    Ok(since(start, n))
}

async fn add(queue: Queue, keys: Arc<Keys>, request: Request) -> Result<Answer, Failed> {
    let start = Instant::now();
    let span = Duration::try_from_secs_f64(request.seconds)?;
    let added = tasks(request.tasks, || {
        let (queue, keys) = (queue.clone(), Arc::clone(&keys));
        async move {
            let mut added = 0;
            while start.elapsed() < span {
                if request.batch == 1 {
                    queue.add(keys.next()).await?;
                } else {
                    queue.add_all(keys.many(request.batch)).await?;
                }
                added += request.batch;
            }
            Ok(added)
        }
    });
    Ok(since(start, added.await?))
}

/// Measures from the start of the first run until the last completion is acknowledged.
async fn work(queue: Queue, request: Request) -> Result<Answer, Failed> {
    let first = Arc::new(OnceLock::new());
    let begun = Arc::clone(&first);
    let (end, ended) = countdown(request.n);
    let workers = Workers::new(queue, move |_, _| {
        begun.get_or_init(Instant::now);
        async { Ok(Action::succeed()) }
    });
    let mut last = None;
    let until = async { last = timeout(PATIENCE, ended).await.ok() };
    workers.concurrency(request.tasks).on_finish(move |_| end()).run_until(until).await;
    let (Some(start), Some(Ok(last))) = (first.get(), last) else {
        return Err("not all keys were worked on in time".into());
    };
    Ok(between(*start, last, request.n))
}

/// Returns a function to call `from` times, and a receiver for the time of the last call.
fn countdown(from: usize) -> (impl Fn() + Send + Sync, oneshot::Receiver<Instant>) {
    let (all, ended) = oneshot::channel();
    let (left, all) = (AtomicUsize::new(from), Mutex::new(Some(all)));
    let down = move || {
        if left.fetch_sub(1, Ordering::Relaxed) == 1
            && let Some(all) = all.lock().ok().and_then(|mut all| all.take())
        {
            // The send fails if the receiver has given up.
            let _ = all.send(Instant::now());
        }
    };
    (down, ended)
}

/// Passes `n` keys through the queue. About ten thousand keys are in the queue at a time.
async fn flow(queue: Queue, keys: Arc<Keys>, request: Request) -> Result<Answer, Failed> {
    let room = Arc::new(Semaphore::new(THROUGH));
    let freed = Arc::clone(&room);
    let (end, ended) = countdown(request.n);
    let workers = Workers::new(queue.clone(), |_, _| async { Ok(Action::succeed()) });
    let workers = workers.concurrency(request.tasks).on_finish(move |_| {
        freed.add_permits(1);
        end();
    });
    let adding = async {
        let mut left = request.n;
        while left > 0 {
            let part = left.min(request.batch);
            room.acquire_many(part.try_into()?).await?.forget();
            queue.add_all(keys.many(part)).await?;
            left -= part;
        }
        ended.await.map_err(Failed::from)
    };
    let start = Instant::now();
    let mut added = Err("it was not begun".into());
    workers.run_until(async { added = adding.await }).await;
    Ok(between(start, added?, request.n))
}

/// Adds another key for each key that is completed.
async fn cycle(queue: Queue, keys: Arc<Keys>, request: Request) -> Result<Answer, Failed> {
    let start = Instant::now();
    let span = Duration::try_from_secs_f64(request.seconds)?;
    let cycled = tasks(request.tasks, || {
        let (queue, keys) = (queue.clone(), Arc::clone(&keys));
        async move {
            let mut cycled = 0;
            while start.elapsed() < span {
                let item = queue.get().await.ok_or("the queue was shut down")?;
                item.succeed().await?;
                queue.add(keys.next()).await?;
                cycled += 1;
            }
            Ok(cycled)
        }
    });
    Ok(since(start, cycled.await?))
}

/// Measures from before an add until its run starts, with pauses of 5 to 15 ms between adds.
async fn latency(queue: Queue, keys: &Keys, request: Request) -> Result<Answer, Failed> {
    let (begun, mut begins) = mpsc::unbounded_channel();
    let (stop, stopped) = oneshot::channel::<()>();
    let workers = Workers::new(queue.clone(), move |_, _| {
        // The send fails if the receiver has given up.
        let _ = begun.send(Instant::now());
        async { Ok(Action::succeed()) }
    });
    let workers = workers.concurrency(request.tasks).run_until(async { drop(stopped.await) });
    let workers = tokio::spawn(workers);
    // Let the workers start and become idle.
    sleep(Duration::from_millis(500)).await;
    let mut took = Vec::with_capacity(request.n);
    for _ in 0..request.n {
        sleep(Duration::from_millis(5) + Duration::from_millis(10).mul_f64(fastrand::f64())).await;
        let start = Instant::now();
        queue.add(keys.next()).await?;
        let begun = begins.recv().await.ok_or("the workers have ended")?;
        took.push(begun.saturating_duration_since(start).as_nanos().try_into()?);
    }
    drop(stop);
    workers.await?;
    let latency_ns = Some(Quantiles::of(took));
    Ok(Answer { ops: request.n as u64, latency_ns, ..Answer::default() })
}
