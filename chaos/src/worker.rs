//! A process that adds keys, works on them, and reports its observations.

use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use requeue_store::{Add, Added, CompleteError, Completion, Item, Priority, Queue, Store};
use tokio::task::JoinSet;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

use crate::event::{Event, Kind, Outcome, now};
use crate::groups::{KEYS, PATTERN, RATED_KEYS, Rate, key_of, text_of};
use crate::process::clocks;

/// If the queue has more ready keys than this, no process adds more keys.
const MANY: u64 = 500;
pub(crate) const LEASE: Duration = Duration::from_millis(500);

pub(crate) type Failed = Box<dyn std::error::Error + Send + Sync>;

/// The maximum time for which a server may be unavailable.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns a key to add: a key that other processes also add, or a key that is added only once, so that only one run
/// can follow.
pub(crate) fn key(rng: &mut fastrand::Rng) -> u32 {
    match rng.u8(..4) {
        0 => rng.u32(..RATED_KEYS),
        1 => rng.u32(RATED_KEYS..KEYS),
        _ => rng.u32(KEYS..),
    }
}

/// Opens the queue. Without a `rate`, the queue keeps its present rate.
pub(crate) async fn open(url: &str, rate: Option<Rate>) -> Result<Queue, Failed> {
    let store = Store::connect(url).await?;
    let options = store
        .queue("chaos")
        .group_by(PATTERN)
        .lease(LEASE)
        .backoff(Duration::from_millis(1), Duration::from_millis(50))
        .poll(Duration::from_millis(50));
    let options = match rate {
        Some(rate) => options.rate(rate.into()),
        None => options,
    };
    Ok(options.open().await?)
}

/// Adds keys and works on keys until standard input closes, and then works until no key is left.
/// Prints its observations to standard output.
pub async fn work(url: &str, seed: u64) -> Result<(), Failed> {
    tell_all(&clocks());
    // The call cannot fail, because this is the only subscriber.
    let _ = tracing::subscriber::set_global_default(RepairsSeen);
    // The server may be dead, so the open is retried.
    let began = Instant::now();
    let mut opened = open(url, None).await;
    while opened.is_err() && began.elapsed() < PATIENCE {
        tokio::time::sleep(Duration::from_millis(50)).await;
        opened = open(url, None).await;
    }
    let queue = opened?;
    let (ending, full) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let looking = tokio::spawn(look(queue.clone(), Arc::clone(&full)));
    let (mut handling, mut adding) = (JoinSet::new(), JoinSet::new());
    for n in 0..4 {
        let (queue, ending) = (queue.clone(), Arc::clone(&ending));
        handling.spawn(handle(queue, ending, fastrand::Rng::with_seed(seed * 10 + n)));
    }
    for n in 4..6 {
        let (queue, full, ending) = (queue.clone(), Arc::clone(&full), Arc::clone(&ending));
        adding.spawn(add(queue, full, ending, fastrand::Rng::with_seed(seed * 10 + n)));
    }
    // The driver closes standard input to end the adds.
    tokio::task::spawn_blocking(|| std::io::copy(&mut std::io::stdin(), &mut std::io::sink()))
        .await??;
    ending.store(true, Ordering::SeqCst);
    // The last adds may take long, and their acknowledgements must be reported.
    while let Some(ended) = adding.join_next().await {
        ended?;
    }
    loop {
        // The query may fail, because its connection may have been cut.
        if let Ok(counts) = queue.counts().await
            && counts.ready + counts.waiting + counts.in_flight == 0
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    looking.abort();
    queue.shut_down();
    while let Some(ended) = handling.join_next().await {
        ended?;
    }
    Ok(())
}

/// Reports the repairs that the store logs.
struct RepairsSeen;

#[derive(Default)]
struct Repair {
    restored: u64,
    lost: u64,
}

impl Visit for Repair {
    fn record_u64(&mut self, field: &Field, value: u64) {
        match field.name() {
            "restored" => self.restored = value,
            "lost" => self.lost = value,
            _ => {}
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
}

impl Subscriber for RepairsSeen {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.fields().field("restored").is_some()
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut repair = Repair::default();
        event.record(&mut repair);
        tell_all(&format!("repaired {} {}\n", repair.restored, repair.lost));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

fn report(key: u32, kind: Kind) {
    tell_all(&(Event { process: 0, key, kind }.line() + "\n"));
}

fn tell_all(line: &str) {
    // The line is sent in a single write, so that lines do not mix.
    let _ = std::io::stdout().lock().write_all(line.as_bytes());
}

/// Sets `full` while there are more ready keys than a busy machine can process.
async fn look(queue: Queue, full: Arc<AtomicBool>) {
    loop {
        if let Ok(counts) = queue.counts().await {
            full.store(counts.ready > MANY, Ordering::Relaxed);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn add(queue: Queue, full: Arc<AtomicBool>, ending: Arc<AtomicBool>, mut rng: fastrand::Rng) {
    while !ending.load(Ordering::SeqCst) {
        if full.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        }
        let (key, begun) = (key(&mut rng), now());
        let which = rng.u8(..7).min(4);
        let add = match which {
            0 => Add::after(Duration::from_micros(rng.u64(..20_000))),
            // A server may lose a key that waits for a long time.
            3 => Add::after(Duration::from_millis(rng.u64(..1000))),
            1 => Add::now().priority(Priority::High),
            2 => Add::now().priority(Priority::Low),
            _ => Add::now(),
        };
        // Without an acknowledgement, it is unknown whether the add has happened.
        if let Ok(added) = queue.add_with(text_of(key), add).await {
            let is_ready = which == 4 && added == Added::New;
            report(key, Kind::Added { begun, at: now(), is_ready });
        }
        tokio::time::sleep(Duration::from_micros(rng.u64(..3000))).await;
    }
}

async fn handle(queue: Queue, ending: Arc<AtomicBool>, mut rng: fastrand::Rng) {
    while let Some(item) = queue.get().await {
        let (epoch, at) = (item.fencing_token(), now());
        let Some(key) = item.as_str().and_then(key_of) else { continue };
        report(key, Kind::Got { epoch, at });
        // Some runs take longer than a lease.
        let (most, longest) = if rng.u8(..50) == 0 { (40, 60_000) } else { (4, 3000) };
        for _ in 0..rng.u32(..most) {
            tokio::time::sleep(Duration::from_micros(rng.u64(..longest))).await;
            // The time is read first, because a key that is still held afterwards was also held at
            // that time.
            let at = now();
            if !item.is_lost() {
                // The yield stands for the time that a write to an external system takes.
                tokio::task::yield_now().await;
                report(key, Kind::Wrote { epoch, at, landed: now() });
            }
        }
        let begun = now();
        let ended = end(item, ending.load(Ordering::SeqCst), &mut rng).await;
        let outcome = match ended {
            Ok(()) => Outcome::Held,
            Err(CompleteError::Lost) => Outcome::Lost,
            Err(_) => Outcome::Unsure,
        };
        report(key, Kind::Ended { epoch, begun, outcome });
    }
}

async fn end(item: Item, is_over: bool, rng: &mut fastrand::Rng) -> Result<(), CompleteError> {
    match rng.u8(..20) {
        _ if is_over => item.succeed().await,
        0..3 => item.retry("it failed").await,
        n @ 3..6 => {
            let delay = Duration::from_millis(rng.u64(..10));
            let completion = match n {
                3 => Completion::RetryAfter(delay),
                _ => Completion::RequeueAfter(delay),
            };
            item.complete(completion).await.map(drop)
        }
        6 => item.release().await,
        7 => {
            drop(item);
            Err(CompleteError::Unsure)
        }
        _ => item.succeed().await,
    }
}
