//! An hour of a controller's life, on a fake clock. Objects are created, changed and deleted, and
//! so are their namespaces. Workers succeed and fail. All other operations of a queue are also
//! called.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use foldhash::fast::FixedState;
use requeue::clock::FakeClock;
use requeue::{Add, Completion, Cursor, Item, Merge, Queue, Reason, Ticket, Time};

use super::kinds::{Kind, Name, name};
use super::{Memory, ensure};

/// The time between two rounds of events.
const TICK: Duration = Duration::from_millis(100);
const TICKS_A_MINUTE: usize = 600;
/// The number of objects at a time.
const OBJECTS: u64 = 400;
/// The maximum number of workers that wait for a key or work on a key.
const WORKERS: usize = 24;
/// The number of parts of a run. No key is left after each part.
const PARTS: usize = 6;

/// The result for one kind of queue.
#[derive(Clone, Debug)]
pub struct Hour {
    /// The kind of queue.
    pub kind: String,
    /// The number of deliveries.
    pub deliveries: u64,
    /// The number of deliveries that failed.
    pub failures: u64,
    /// The memory of the queue and its clock while they are idle, after the warm-up and at the end.
    pub idle: [Memory; 2],
    /// The mean number of allocated bytes in the last minute of the first part, and in the last
    /// minute of the last part.
    pub busy: [usize; 2],
}

impl fmt::Display for Hour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, deliveries, failures, idle: [warm, idle], busy: [early, late] } = self;
        write!(
            f,
            "{kind}: {deliveries} deliveries, {failures} failures; idle {warm} after the warm-up and \
             {idle} at the end, busy {early} bytes at first and {late} at the end"
        )
    }
}

/// Runs every kind of queue for six parts of `minutes` minutes, after a warm-up of one part.
///
/// # Errors
///
/// Returns an error if memory was not freed. The error names the memory, the kind of queue and the time.
pub fn hour(seed: u64, minutes: usize) -> Result<Vec<Hour>, String> {
    let kinds = Kind::ALL.iter();
    kinds.map(|&kind| life(kind, seed, minutes).map_err(|e| format!("{kind:?}: {e}"))).collect()
}

fn life(kind: Kind, seed: u64, minutes: usize) -> Result<Hour, String> {
    let start = Memory::now();
    let mut hour = Hour {
        kind: format!("{kind:?}"),
        deliveries: 0,
        failures: 0,
        idle: [start; 2],
        busy: [0; 2],
    };
    let mut controller = Controller::new(kind, seed)?;
    let clock = controller.clock.clone();
    for part in 0..=PARTS {
        let when = || format!("after {} minutes", part * minutes);
        let busy = controller.work(minutes);
        controller.finish().map_err(|wrong| format!("{}: {wrong}", when()))?;
        let idle = Memory::now().since(start);
        if part == 0 {
            hour.idle[0] = idle;
        }
        if part == 1 {
            hour.busy[0] = busy.saturating_sub(start.bytes);
        }
        hour.idle[1] = idle;
        hour.busy[1] = busy.saturating_sub(start.bytes);
        let [warm, _] = hour.idle;
        ensure(idle.is_back(warm, 0), || {
            format!("{}: idle, it holds {idle}, and {warm} after the warm-up", when())
        })?;
    }
    let [early, late] = hour.busy;
    ensure(late <= early + early / 10, || {
        format!("busy, it held a mean of {early} bytes at first and {late} at the end")
    })?;
    let counts = controller.queue.totals();
    (hour.deliveries, hour.failures) = (counts.deliveries, counts.failures);
    controller.end()?;
    drop(controller);
    ensure(clock.armed() == 0, || format!("{} alarms are armed at the end", clock.armed()))?;
    drop(clock);
    // Only the name in `hour.kind` is still allocated, because this function returns it.
    let own = hour.kind.capacity();
    let left = Memory::now().since(start);
    ensure(left == Memory { bytes: own, pieces: 1 }, || format!("dropped, it left {left}"))?;
    Ok(hour)
}

struct Controller {
    clock: FakeClock,
    queue: Queue<Name, FixedState>,
    rng: fastrand::Rng,
    /// The numbers of the objects that exist.
    objects: Vec<u64>,
    born: u64,
    workers: VecDeque<Worker>,
    /// True if every run succeeds.
    healed: bool,
}

/// A worker that waits for a key, works on a key, or has only the ticket of its key.
enum Worker {
    Waits(Getter),
    Works(Item<'static, Name>, Time),
    Holds(Name, Ticket, Time),
}

struct Getter {
    future: Pin<Box<dyn Future<Output = Option<Item<'static, Name>>>>>,
    woken: Arc<Flag>,
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

impl Controller {
    fn new(kind: Kind, seed: u64) -> Result<Self, String> {
        let clock = FakeClock::new();
        let queue = kind.build(clock.clone(), seed).map_err(|wrong| wrong.to_string())?;
        Ok(Self {
            clock,
            queue,
            rng: fastrand::Rng::with_seed(seed),
            objects: (0..OBJECTS).collect(),
            born: OBJECTS,
            workers: VecDeque::with_capacity(WORKERS),
            healed: false,
        })
    }

    /// Works for `minutes` minutes, and returns the mean number of allocated bytes in the last
    /// minute.
    fn work(&mut self, minutes: usize) -> usize {
        self.healed = false;
        let mut sum = 0;
        for _ in 0..minutes {
            self.resync();
            sum = 0;
            for _ in 0..TICKS_A_MINUTE {
                for _ in 0..self.rng.u32(..8) {
                    self.event();
                }
                self.go_on(TICK);
                sum += Memory::now().bytes;
            }
        }
        sum / TICKS_A_MINUTE
    }

    /// Lets every run succeed until no key is left.
    fn finish(&mut self) -> Result<(), String> {
        self.healed = true;
        self.queue.resume();
        for _ in 0..3_600 {
            let queue = &self.queue;
            if queue.len() + queue.waiting() + queue.states().in_flight == 0 {
                break;
            }
            self.go_on(Duration::from_secs(1));
        }
        self.workers.clear();
        for &object in &self.objects {
            self.queue.forget(&name(object));
        }
        // This call makes a custom order return the keys that it still has.
        drop(self.queue.try_get());
        // The alarm of a cancelled key may still be armed. Such an alarm goes off, and is not armed
        // again.
        if let Some(at) = self.clock.next_alarm() {
            self.clock.set(at);
        }
        let (known, armed) = (self.queue.records(), self.clock.armed());
        ensure(known == 0, || format!("{known} records are left: {:?}", self.first_left()))?;
        ensure(armed == 0, || format!("{armed} alarms are armed, but no task waits"))
    }

    fn first_left(&self) -> Option<String> {
        let page = self.queue.snapshot(Cursor::default(), 1);
        page.entries.first().map(|entry| self.queue.explain(&entry.key))
    }

    /// Ends the queue in one of the possible ways. During the end, getters wait for a key, and a drain may wait.
    fn end(&mut self) -> Result<(), String> {
        for _ in 0..10 {
            self.event();
        }
        self.go_on(TICK);
        let queue = self.queue.clone();
        if self.rng.bool() {
            queue.close();
        } else {
            let mut drain = Box::pin(queue.shut_down_with_drain().timeout(Duration::from_secs(60)));
            let _ = drain.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            // The caller stops waiting, now or later.
            if self.rng.bool() {
                self.go_on(TICK);
            }
            drop(drain);
            drop(queue.take_dropped());
        }
        let finished = self.finish();
        drop(queue.take_dropped());
        finished
    }

    // --- Events -----------------------------------------------------------------------------------

    fn millis(&mut self, below: u64) -> Duration {
        Duration::from_millis(self.rng.u64(..below))
    }

    fn object(&mut self) -> Name {
        let at = self.rng.usize(..self.objects.len());
        name(self.objects[at])
    }

    /// Adds all objects, as informers do periodically.
    fn resync(&mut self) {
        self.queue.add_all(self.objects.iter().map(|&object| name(object)));
    }

    fn event(&mut self) {
        let key = self.object();
        let queue = self.queue.clone();
        match self.rng.u32(..40) {
            0..14 => drop(queue.add(key)),
            14..18 => drop(queue.add_ref(key.as_str())),
            18 | 19 => drop(queue.add_after(key, self.millis(60_000))),
            20 | 21 => drop(queue.add_rate_limited(key)),
            22..27 => drop(queue.add_with(key, self.request())),
            27..30 => self.replace(),
            30 => {
                let _ = queue.cancel(key.as_str());
            }
            31 => queue.forget(&key),
            32 if self.rng.u8(..20) == 0 => queue.pause(),
            32..35 => queue.resume(),
            35 => {
                let page = queue.snapshot(Cursor::default(), 20);
                let waiting = page.entries.iter().filter(|entry| entry.due.is_some());
                waiting.for_each(|entry| drop(queue.explain(&entry.key)));
            }
            36 => {
                let reader = queue.get_many(3).now();
                reader.into_iter().for_each(|item| item.complete(Completion::Release));
            }
            _ => self.give_up_waiting(),
        }
    }

    fn request(&mut self) -> Add {
        let merge = [Merge::Earliest, Merge::Latest, Merge::Exactly][self.rng.usize(..3)];
        let add = if self.rng.bool() { Add::now() } else { Add::after(self.millis(30_000)) };
        let add = add.merge(merge).priority(self.rng.i32(-2..3)).flags(1 << self.rng.u32(..4));
        // The number 0 is no reason.
        Reason::new(self.rng.u16(..12)).map_or(add, |reason| add.reason(reason))
    }

    /// Deletes an object, and creates a new object.
    fn replace(&mut self) {
        let at = self.rng.usize(..self.objects.len());
        let old = name(mem::replace(&mut self.objects[at], self.born));
        // The cancel also removes the failures.
        let _ = self.queue.cancel(old.as_str());
        self.queue.add(name(self.born));
        self.born += 1;
    }

    /// Drops the future of a getter, at any point of its execution.
    fn give_up_waiting(&mut self) {
        if let Some(at) = self.workers.iter().position(|worker| matches!(worker, Worker::Waits(_)))
        {
            drop(self.workers.remove(at));
        }
    }

    // --- Workers ----------------------------------------------------------------------------------

    /// Advances the clock, and polls the getters and the workers that are due.
    fn go_on(&mut self, by: Duration) {
        self.clock.advance(by);
        while self.workers.len() < WORKERS {
            let getter = self.getter();
            self.workers.push_back(Worker::Waits(getter));
        }
        let now = self.clock.now();
        for _ in 0..self.workers.len() {
            let Some(worker) = self.workers.pop_front() else { break };
            let next = match worker {
                Worker::Waits(getter) => self.poll(getter, now),
                Worker::Works(item, until) if until <= now => {
                    self.end_of(item);
                    None
                }
                Worker::Holds(key, ticket, until) if until <= now => {
                    self.queue.forget(&key);
                    self.queue.done_ticket(ticket);
                    None
                }
                busy => Some(busy),
            };
            self.workers.extend(next);
        }
    }

    fn getter(&mut self) -> Getter {
        let queue = self.queue.clone();
        let timeout = (self.rng.u8(..4) == 0).then(|| self.millis(2_000));
        let future: Pin<Box<dyn Future<Output = _>>> = match timeout {
            None => Box::pin(async move { queue.get().await.map(Item::into_owned) }),
            Some(timeout) => {
                Box::pin(async move { queue.get().timeout(timeout).await.map(Item::into_owned) })
            }
        };
        Getter { future, woken: Arc::new(Flag(AtomicBool::new(true))) }
    }

    fn poll(&mut self, mut getter: Getter, now: Time) -> Option<Worker> {
        if !getter.woken.0.swap(false, Ordering::SeqCst) {
            return Some(Worker::Waits(getter));
        }
        let waker = Waker::from(Arc::clone(&getter.woken));
        match getter.future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => Some(Worker::Waits(getter)),
            Poll::Ready(item) => {
                let until = now + self.millis(300);
                item.map(|item| self.begin(item, until))
            }
        }
    }

    fn begin(&mut self, item: Item<'static, Name>, until: Time) -> Worker {
        if self.rng.u8(..10) > 0 {
            return Worker::Works(item, until);
        }
        let (key, ticket) = item.into_parts();
        Worker::Holds(key, ticket, until)
    }

    fn end_of(&mut self, item: Item<'static, Name>) {
        if self.healed {
            return item.succeed();
        }
        match self.rng.u32(..20) {
            0..11 => item.succeed(),
            11..14 => item.retry(),
            14 => item.complete(Completion::RetryAfter(self.millis(10_000))),
            15 => item.complete(Completion::RequeueAfter(self.millis(10_000))),
            16 => item.complete(Completion::Release),
            17 => item.complete(Completion::GiveUp),
            18 => {
                self.queue.forget(item.key());
                item.done();
            }
            // A worker that panics has the same effect.
            _ => drop(item),
        }
    }
}
