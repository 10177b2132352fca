//! Threads and tasks that add, wait, work and give up, with the machine's clock. The queues are
//! created and ended many times.

use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{self, Poll, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use requeue::clock::{Clock, SystemClock, sleep_until};
use requeue::limiter::ExponentialFailure;
use requeue::workers::{Action, Context, Error, Workers};
use requeue::{Builder, Completion, Cursor, Item, Queue, ReaddPolicy};
use tokio::runtime;

use super::{Memory, ensure};

/// The number of operations of each producer in a queue's life.
const ADDS: u32 = 300;
/// The number of distinct keys.
const KEYS: u32 = 40;
/// The number of warm-up rounds. After them, nearly all memory that is allocated once per process
/// has been allocated.
const WARM_UP: u64 = 5;
/// The number of once-per-process allocations that may come after the warm-up, on rare paths.
const LATE: usize = 8;

/// The result of a run.
#[derive(Clone, Copy, Debug)]
pub struct Crowd {
    /// The number of queues, half of them with threads and half with tasks.
    pub queues: u64,
    /// The number of deliveries.
    pub deliveries: u64,
    /// The memory after the warm-up, and at the end.
    pub idle: [Memory; 2],
}

impl fmt::Display for Crowd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { queues, deliveries, idle: [warm, idle] } = self;
        write!(
            f,
            "Threads and tasks: {queues} queues, {deliveries} deliveries; {warm} after the warm-up and \
             {idle} at the end"
        )
    }
}

/// Runs `rounds` rounds after the warm-up. If `rounds` is `None`, runs until `time` has passed. All memory must be
/// freed after each round.
///
/// # Errors
///
/// Returns an error if memory was not freed. The error names the memory and the number of rounds.
pub fn crowd(seed: u64, rounds: Option<u64>, time: Duration) -> Result<Crowd, String> {
    let mut all = Crowd { queues: 0, deliveries: 0, idle: [Memory::now(); 2] };
    // The wait starts the timer thread of the process.
    block_on(sleep_until(&SystemClock, SystemClock.now() + Duration::from_millis(1)));
    let started = Instant::now();
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut round = 0;
    while rounds.map_or_else(|| started.elapsed() < time, |rounds| round < WARM_UP + rounds) {
        let handed_out = [with_threads(&mut rng), with_tasks(&mut rng)];
        for deliveries in handed_out {
            all.deliveries += deliveries.map_err(|wrong| format!("round {round}: {wrong}"))?;
            all.queues += 1;
        }
        round += 1;
        if round <= WARM_UP {
            all.idle[0] = Memory::now();
        }
        all.idle[1] = settled(all.idle[0]);
        let [warm, now] = all.idle;
        ensure(now.is_back(warm, LATE), || {
            format!("after round {round} it holds {now}, and {warm} after the warm-up")
        })?;
    }
    Ok(all)
}

/// Waits until the timer thread has dropped the wakers that it was using, and returns the memory
/// that is then allocated.
fn settled(warm: Memory) -> Memory {
    let start = Instant::now();
    while !Memory::now().is_back(warm, LATE) && start.elapsed() < Duration::from_secs(60) {
        thread::sleep(Duration::from_millis(1));
    }
    Memory::now()
}

fn build(rng: &mut fastrand::Rng) -> Builder<String> {
    let re_add = [ReaddPolicy::KeepBoth, ReaddPolicy::Replace, ReaddPolicy::Hold][rng.usize(..3)];
    let (base, max) = (Duration::from_micros(5), Duration::from_millis(1));
    Queue::builder().readd_policy(re_add).limiter(ExponentialFailure::new(base, max))
}

/// Performs one random operation of a producer.
fn add(queue: &Queue<String>, rng: &mut fastrand::Rng) {
    let key = format!("namespace/{}", rng.u32(..KEYS));
    match rng.u32(..20) {
        0..12 => drop(queue.add(key)),
        12..15 => drop(queue.add_after(key, Duration::from_micros(rng.u64(..2_000)))),
        15 => drop(queue.add_rate_limited(key)),
        16 => {
            let _ = queue.cancel(key.as_str());
        }
        17 => queue.forget(&key),
        18 => drop(queue.snapshot(Cursor::default(), 10)),
        _ => {
            queue.pause();
            queue.resume();
        }
    }
}

/// Completes an item, and the items that the completion returns.
fn work(queue: &Queue<String>, item: Item<'_, String>, rng: &mut fastrand::Rng) {
    let mut next = Some(item);
    while let Some(item) = next.take() {
        match rng.u32(..12) {
            0..4 => next = queue.succeed_and_try_get(item),
            4..8 => item.succeed(),
            8 => item.retry(),
            9 => item.complete(Completion::RequeueAfter(Duration::from_micros(rng.u64(..500)))),
            10 => item.complete(Completion::Release),
            _ => drop(item),
        }
    }
}

/// The ways to end a queue.
#[derive(Clone, Copy)]
enum End {
    Close,
    ShutDown,
    Drain,
}

impl End {
    fn choose(rng: &mut fastrand::Rng) -> Self {
        [Self::Close, Self::ShutDown, Self::Drain][rng.usize(..3)]
    }
}

fn nothing_is_left(queue: &Queue<String>) -> Result<u64, String> {
    drop(queue.take_dropped());
    for key in 0..KEYS {
        queue.forget(&format!("namespace/{key}"));
    }
    let known = queue.records();
    ensure(known == 0, || format!("{known} records are left"))?;
    Ok(queue.totals().deliveries)
}

// --- Threads -------------------------------------------------------------------------------------

fn with_threads(rng: &mut fastrand::Rng) -> Result<u64, String> {
    let queue = build(rng).clock(SystemClock).build().map_err(|wrong| wrong.to_string())?;
    let end = End::choose(rng);
    thread::scope(|scope| {
        let queue = &queue;
        let producers = [rng.fork(), rng.fork()]
            .map(|mut rng| scope.spawn(move || (0..ADDS).for_each(|_| add(queue, &mut rng))));
        let workers: [(usize, fastrand::Rng); 5] = std::array::from_fn(|n| (n, rng.fork()));
        let workers =
            workers.map(|(n, rng)| scope.spawn(move || while_there_is_work(queue, n, rng)));
        // A thread that was joined has freed the memory that it allocated for itself.
        producers.into_iter().try_for_each(thread::ScopedJoinHandle::join)?;
        match end {
            End::Close => queue.close(),
            End::ShutDown => drop(queue.shut_down()),
            End::Drain => {
                drop(queue.shut_down_with_drain().timeout(Duration::from_millis(1)).blocking())
            }
        }
        workers.into_iter().try_for_each(thread::ScopedJoinHandle::join)
    })
    .map_err(|_| "a thread has panicked".to_owned())?;
    // A key may have been added again while it was in flight with the last worker.
    while let Some(item) = queue.get().until_final().blocking() {
        item.succeed();
    }
    nothing_is_left(&queue)
}

/// Takes and completes keys until the queue has ended. `way` selects the calls that take keys.
fn while_there_is_work(queue: &Queue<String>, way: usize, mut rng: fastrand::Rng) {
    loop {
        let items = match way {
            0 | 1 => queue.get().blocking().into_iter().collect(),
            2 => queue.get_many(8).blocking(),
            3 => {
                let short = Duration::from_micros(rng.u64(..300));
                let item = queue.get().timeout(short).blocking();
                if item.is_none() && !queue.is_closed() {
                    continue;
                }
                item.into_iter().collect()
            }
            // The getter is a task without a runtime, so the timer thread keeps its alarms.
            _ => block_on(queue.get()).into_iter().collect::<Vec<_>>(),
        };
        if items.is_empty() {
            return;
        }
        items.into_iter().for_each(|item| work(queue, item, &mut rng));
    }
}

struct Unpark(thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut task::Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

// --- Tasks ---------------------------------------------------------------------------------------

/// Each queue gets a separate runtime. After the drop of the runtime, the runtime holds no memory
/// of the queue.
fn with_tasks(rng: &mut fastrand::Rng) -> Result<u64, String> {
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .map_err(|wrong| format!("no runtime: {wrong}"))?;
    let result = runtime.block_on(async {
        let queue = build(rng).build().map_err(|wrong| wrong.to_string())?;
        tasks(&queue, rng).await.map_err(|wrong| wrong.to_string())?;
        while let Some(item) = queue.get().until_final().await {
            item.succeed();
        }
        nothing_is_left(&queue)
    });
    drop(runtime);
    result
}

async fn tasks(
    queue: &Queue<String>,
    rng: &mut fastrand::Rng,
) -> Result<(), tokio::task::JoinError> {
    let producers = [rng.fork(), rng.fork()].map(|mut rng| {
        let queue = queue.clone();
        tokio::spawn(async move {
            for _ in 0..ADDS {
                add(&queue, &mut rng);
                tokio::task::coop::consume_budget().await;
            }
        })
    });
    let getters = [rng.fork(), rng.fork()].map(|rng| tokio::spawn(impatient(queue.clone(), rng)));
    // This task is aborted while it waits or works.
    let hasty = tokio::spawn(patient(queue.clone(), rng.fork()));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let workers = Workers::new(queue.clone(), handle)
        .concurrency(3)
        .max_retries(2)
        .timeout(Duration::from_micros(200))
        .grace(Duration::from_micros(100))
        .drain_timeout(Duration::from_millis(1));
    let workers = tokio::spawn(workers.run_until(async {
        let _ = stopped.await;
    }));
    for producer in producers {
        producer.await?;
    }
    hasty.abort();
    let _ = hasty.await;
    match End::choose(rng) {
        End::Close => queue.close(),
        End::ShutDown => drop(stop.send(())),
        // No task waits for the drain.
        End::Drain => drop(queue.shut_down_with_drain()),
    }
    drop(workers.await?);
    for getter in getters {
        getter.await?;
    }
    Ok(())
}

async fn handle(key: String, context: Context) -> Result<Action, Error> {
    match (key.len() + context.attempt() as usize) % 4 {
        0 => Err("fails".into()),
        // This run continues until it is cancelled.
        1 if context.adds() > 1 => {
            context.cancelled().await;
            Err("too late".into())
        }
        2 => Ok(Action::requeue_after(Duration::from_micros(50))),
        _ => Ok(Action::succeed()),
    }
}

/// Repeatedly stops waiting for a key, and waits again.
async fn impatient(queue: Queue<String>, mut rng: fastrand::Rng) {
    while !queue.is_closed() {
        let short = Duration::from_micros(rng.u64(..1_000));
        match rng.u8(..3) {
            0 => drop(tokio::time::timeout(short, queue.get()).await),
            1 => drop(tokio::time::timeout(short, queue.get_many(4)).await),
            _ => {
                if let Some(item) = queue.get().timeout(short).await {
                    work(&queue, item, &mut rng);
                }
            }
        }
    }
    patient(queue, rng).await;
}

async fn patient(queue: Queue<String>, mut rng: fastrand::Rng) {
    while let Some(item) = queue.get().await.map(Item::into_owned) {
        tokio::task::yield_now().await;
        work(&queue, item, &mut rng);
    }
}
