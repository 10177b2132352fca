//! kube-runtime's scheduler, fed through a channel as in kube's `Controller`, and polled as in
//! kube's runner, with a set of the running keys.

use std::collections::HashSet;
use std::env;
use std::hash::Hash;
use std::io;
use std::pin::Pin;
use std::process::ExitCode;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use foldhash::fast::RandomState;
use futures_channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures_util::{Stream, StreamExt};
use kube::runtime::scheduler::{ScheduleRequest, Scheduler, scheduler};
use requeue_bench::contestant::single::{self, Delays, Subject};
use requeue_bench::contestant::{Contestant, Entry};
use requeue_bench::heap::cost_of;
use requeue_bench::keys::Key;
use requeue_bench::meter::Meter;
use requeue_bench::protocol::{Answer, Request, Scenario};
use requeue_bench::versions;
use tokio::runtime::Builder;
use tokio::time::Instant;

fn main() -> ExitCode {
    let name = env::args().nth(1).unwrap_or_default();
    let done = if name == Kube::NAME {
        Entry::of::<Kube>().serve()
    } else {
        Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("to be called with {}", Kube::NAME),
        ))
    };
    if let Err(error) = done {
        eprintln!("requeue-bench-kube: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

struct Kube;

impl Contestant for Kube {
    const NAME: &'static str = "kube-runtime";
    const SCENARIOS: &'static [Scenario] = &[
        Scenario::Cycle,
        Scenario::HeldBack,
        Scenario::AddQueued,
        Scenario::FillDrain,
        Scenario::DelayedAdd,
        Scenario::DelayedReadd,
        Scenario::Memory,
        Scenario::MemoryDelayed,
    ];

    fn version() -> String {
        versions::of("kube-runtime")
    }

    fn round<K: Key>(request: &Request) -> Option<Answer> {
        // This runtime is never driven, because no timer fires in these scenarios.
        let runtime = Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime without threads can be made");
        let _entered = runtime.enter();
        let make = Queue::<K>::new;
        Some(match request.scenario {
            Scenario::Cycle => single::cycle(make(), request),
            Scenario::HeldBack => held_back::<K>(request),
            Scenario::AddQueued => single::add_queued(Settled(make()), request),
            Scenario::FillDrain => single::fill_drain(make(), request),
            Scenario::DelayedAdd => single::delayed_add(make(), request),
            Scenario::DelayedReadd => single::delayed_readd(make(), request),
            Scenario::Memory => memory::<K>(request),
            Scenario::MemoryDelayed => single::memory_delayed(make, request),
            _ => return None,
        })
    }
}

type Requests<T> = UnboundedReceiver<ScheduleRequest<T>>;

/// The parts of a controller between its triggers and its reconciler.
struct Queue<T> {
    requests: UnboundedSender<ScheduleRequest<T>>,
    scheduler: Pin<Box<Scheduler<T, Requests<T>>>>,
    running: HashSet<T, RandomState>,
    /// A time before the first timer, for keys that are due immediately.
    past: Instant,
}

impl<T: Hash + Eq + Clone> Queue<T> {
    fn new() -> Self {
        let past = Instant::now();
        let (requests, receiver) = unbounded();
        let scheduler = Box::pin(scheduler(receiver));
        Self { requests, scheduler, running: HashSet::default(), past }
    }

    fn request(&mut self, key: &T, run_at: Instant) {
        let request = ScheduleRequest { message: key.clone(), run_at };
        self.requests.unbounded_send(request).expect("the scheduler lives as long");
    }

    /// Moves requests into the queue of delays, and due keys to the keys that are held back.
    fn settle(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        drop(self.scheduler.as_mut().hold().poll_next_unpin(&mut context));
    }

    /// Takes the next key that may run.
    fn take(&mut self, may_run: impl Fn(&T) -> bool + Unpin) {
        let mut context = Context::from_waker(Waker::noop());
        let running = &self.running;
        let mut unless =
            self.scheduler.as_mut().hold_unless(|key| may_run(key) && !running.contains(key));
        if let Poll::Ready(Some(key)) = Pin::new(&mut unless).poll_next(&mut context) {
            self.running.insert(key.clone());
            self.running.remove(&key);
        }
    }
}

impl<K: Key> Subject<K> for Queue<K> {
    fn add(&mut self, key: &K) {
        self.request(key, self.past);
    }

    fn take(&mut self) {
        Self::take(self, |_| true);
    }
}

impl<K: Key> Delays<K> for Queue<K> {
    fn add_after(&mut self, key: &K, delay: Duration) {
        self.request(key, Instant::now() + delay);
        self.settle();
    }

    fn cancel(&mut self, _: &K) -> bool {
        false
    }
}

/// A queue whose keys do not stay in the channel, but go to the scheduler.
struct Settled<K>(Queue<K>);

impl<K: Key> Subject<K> for Settled<K> {
    fn add(&mut self, key: &K) {
        self.0.add(key);
        self.0.settle();
    }

    fn take(&mut self) {
        Subject::take(&mut self.0);
    }
}

/// Measures without the memory that remains after the keys have run. Taking all keys needs
/// quadratic time, because each take searches a hash table for its first entry.
fn memory<K: Key>(request: &Request) -> Answer {
    let keys = K::some(request.n);
    let (queue, bytes) = cost_of(|| {
        let mut queue = Settled(Queue::new());
        keys.iter().for_each(|key| queue.add(key));
        queue
    });
    drop(queue);
    Answer { bytes: Some(bytes as f64 / request.n as f64), ..Answer::default() }
}

/// A key that can be held back.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Held<K> {
    key: K,
    back: bool,
}

/// Measures keys that are held back. A poll that finds no other key visits all of them.
fn held_back<K: Key>(request: &Request) -> Answer {
    let (others, keys) = (K::some(request.depth), K::some(1));
    let mut queue = Queue::new();
    for key in &*others {
        queue.request(&Held { key: key.clone(), back: true }, queue.past);
    }
    queue.settle();
    let free = Held { key: keys[0].clone(), back: false };
    let meter = Meter::start();
    for _ in 0..request.n {
        queue.request(&free, queue.past);
        queue.take(|key| !key.back);
    }
    meter.stop(request.n)
}
