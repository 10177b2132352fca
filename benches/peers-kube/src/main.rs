//! kube-runtime's scheduler, fed through a channel as its `Controller` does, and polled as its
//! runner does: with a set of the keys that are running.

use std::collections::HashSet;
use std::env;
use std::io;
use std::pin::Pin;
use std::process::ExitCode;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use foldhash::fast::RandomState;
use futures::channel::mpsc::{UnboundedReceiver, UnboundedSender, unbounded};
use futures::{Stream, StreamExt};
use kube_runtime::scheduler::{ScheduleRequest, Scheduler, scheduler};
use requeue_bench::contestant::single::{self, Delays, Subject};
use requeue_bench::contestant::{Contestant, Entry};
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
        versions::locked(include_str!("../Cargo.lock"), "kube-runtime")
    }

    fn round<K: Key>(request: &Request) -> Option<Answer> {
        // Nobody drives it: no timer goes off in these scenarios.
        let runtime = Builder::new_current_thread().enable_time().build();
        let runtime = runtime.expect("a runtime without threads can be made");
        let _entered = runtime.enter();
        let make = Queue::<K>::new;
        Some(match request.scenario {
            Scenario::Cycle => single::cycle(make(), request),
            Scenario::HeldBack => held_back::<K>(request),
            Scenario::AddQueued => single::add_queued(make(), request),
            Scenario::FillDrain => single::fill_drain(make(), request),
            Scenario::DelayedAdd => single::delayed_add(make(), request),
            Scenario::DelayedReadd => single::delayed_readd(make(), request),
            Scenario::Memory => single::memory(make, request),
            Scenario::MemoryDelayed => single::memory_delayed(make, request),
            _ => return None,
        })
    }
}

type Requests<K> = UnboundedReceiver<ScheduleRequest<K>>;

struct Queue<K: Key> {
    requests: UnboundedSender<ScheduleRequest<K>>,
    scheduler: Pin<Box<Scheduler<K, Requests<K>>>>,
    running: HashSet<K, RandomState>,
    /// Before there was a timer, which so need not be waited for.
    past: Instant,
}

impl<K: Key> Queue<K> {
    fn new() -> Self {
        let past = Instant::now();
        let (requests, receiver) = unbounded();
        let scheduler = Box::pin(scheduler(receiver));
        Self { requests, scheduler, running: HashSet::default(), past }
    }

    fn request(&mut self, key: &K, run_at: Instant) {
        let request = ScheduleRequest { message: key.clone(), run_at };
        self.requests.unbounded_send(request).expect("the scheduler lives as long");
    }

    /// What has been asked for goes where it waits; what is due, to what is held back.
    fn settle(&mut self) {
        let mut context = Context::from_waker(Waker::noop());
        drop(self.scheduler.as_mut().hold().poll_next_unpin(&mut context));
    }

    fn poll(&mut self) -> Option<K> {
        let mut context = Context::from_waker(Waker::noop());
        let running = &self.running;
        let mut unless = self.scheduler.as_mut().hold_unless(|key| !running.contains(key));
        match Pin::new(&mut unless).poll_next(&mut context) {
            Poll::Ready(key) => key,
            Poll::Pending => None,
        }
    }
}

impl<K: Key> Subject<K> for Queue<K> {
    fn add(&mut self, key: &K) {
        self.request(key, self.past);
    }

    fn take(&mut self) {
        let key = loop {
            if let Some(key) = self.poll() {
                break key;
            }
        };
        self.running.insert(key.clone());
        self.running.remove(&key);
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

/// Each poll looks at everything that is held back, as long as it finds nothing else.
fn held_back<K: Key>(request: &Request) -> Answer {
    let (held, mut queue) = (K::some(request.depth), Queue::<K>::new());
    for key in &*held {
        queue.running.insert(key.clone());
        queue.add(key);
    }
    queue.settle();
    let meter = Meter::start();
    for _ in 0..request.n {
        queue.add(&K::other());
        queue.take();
    }
    meter.stop(request.n)
}
