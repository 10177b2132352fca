//! Starts the processes, injects faults into them and into the servers, and collects their events.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use requeue_servers::{Mishap, Point, did_not_run};
use requeue_store::{Queue, ReadError, StateCounts, Store, UpdateError};
use tokio::sync::watch;

use crate::check::{Losses, Pause, Violation, examine};
use crate::elsewhere::{Elsewhere, elsewhere};
use crate::event::{Event, now};
use crate::groups::{QUEUE_RATES, Rate};
use crate::process::{Process, Said, clock_ahead, faketime};
use crate::report::{Fault, Faults, Repairs, Report};
use crate::subject::Subject;
use crate::worker::{Failed, LEASE, open};

/// The time limit for the remaining work after the last fault.
const LONGEST_END: Duration = Duration::from_secs(60);
/// The number of violations that are described in full.
const DESCRIBED: usize = 20;

/// The parameters of a run.
#[derive(Debug)]
pub struct Plan {
    /// The store under test.
    pub subject: Subject,
    /// The path of this program, which is started as `PROGRAM worker URL SEED`.
    pub program: PathBuf,
    /// The number of processes at any time.
    pub processes: u32,
    /// The duration of the faults.
    pub length: Duration,
    /// The seed of all random choices.
    pub seed: u64,
}

/// A kind of fault to inject.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Deed {
    Kill,
    Freeze,
    Strike(Fault),
    Cut(Point),
    Hold(Point),
    Pause,
}

/// The faults of a round. All faults of a round are injected before the next round, in random
/// order.
const ROUND: [Deed; 17] = [
    Deed::Kill,
    Deed::Kill,
    Deed::Freeze,
    Deed::Freeze,
    Deed::Strike(Fault::Killed),
    Deed::Strike(Fault::Promoted),
    Deed::Strike(Fault::Restored),
    Deed::Strike(Fault::PoolerKilled),
    Deed::Strike(Fault::Evicted),
    Deed::Strike(Fault::Evicted),
    Deed::Cut(Point::Request),
    Deed::Cut(Point::HalfRequest),
    Deed::Cut(Point::Answer),
    Deed::Cut(Point::HalfAnswer),
    Deed::Hold(Point::Request),
    Deed::Hold(Point::Answer),
    Deed::Pause,
];

/// A period in which a process was frozen.
struct Still {
    process: u32,
    from: u64,
    to: u64,
}

/// The state of a run.
pub(crate) struct Run<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) rng: fastrand::Rng,
    url: String,
    faketime: Option<PathBuf>,
    processes: Vec<Process>,
    started: u32,
    rounds: u32,
    pub(crate) settings_changed: u32,
    /// The time in nanoseconds by which the machine's clock was ahead of the shared clock at the
    /// beginning.
    clock_ahead: u64,
    /// Armed cuts of connections, and the faults that they count as.
    cuts: Vec<(Mishap, Fault)>,
    events: Vec<Event>,
    still: Vec<Still>,
    pub(crate) losses: Losses,
    faults: Faults,
    repairs: Repairs,
    pub(crate) queue: Queue,
}

/// Runs a plan, and returns its report.
///
/// # Errors
///
/// Returns an error if a program cannot be started, or if the store cannot be read.
pub async fn run(plan: &Plan) -> Result<Report, Failed> {
    let subject = &plan.subject;
    Store::connect(&subject.url).await?.migrate().await?;
    let rate = subject.may_have_rate(plan.seed).then_some(QUEUE_RATES[0]);
    let queue = open(&subject.url, rate).await?;
    let mut run = Run::begin(plan, queue.clone(), rate).await?;
    let (over, is_over) = watch::channel(false);
    let other = subject
        .has_transactions()
        .then(|| tokio::spawn(elsewhere(subject.url.clone(), is_over, run.rng.fork())));
    let begin = Instant::now();
    while begin.elapsed() < plan.length {
        let mut round = ROUND;
        run.rng.shuffle(&mut round);
        for deed in round {
            // The first round always completes, so that each fault occurs at least once.
            if run.rounds == 0 || begin.elapsed() < plan.length {
                tokio::time::sleep(Duration::from_millis(run.rng.u64(20..200))).await;
                run.change_settings().await?;
                run.does(deed).await?;
            }
        }
        run.rounds += 1;
    }
    over.send_replace(true);
    let other = match other {
        Some(other) => other.await?,
        None => Elsewhere::default(),
    };
    // A server that has lost its latest writes may have lost a resume.
    settled(|| queue.resume()).await?;
    run.free_groups().await?;
    let hung = run.end().await?;
    run.count_cuts();
    run.events.extend(other.events);
    run.faults.extend(other.faults);
    run.losses.clock_gain = clock_ahead().saturating_sub(run.clock_ahead);
    let left = left(&queue).await?;
    let (violations, tally) = examine(&run.events, &run.losses);
    let lines = violations.iter().enumerate().map(|(n, violation)| match n {
        0..DESCRIBED => run.describe(violation),
        _ => format!("{violation:?}"),
    });
    let violations = hung.into_iter().chain(lines).collect();
    let (store, length) = (subject.name().to_owned(), plan.length);
    let (faults, repairs) = (run.faults, run.repairs);
    Ok(Report { violations, left, store, length, tally, faults, repairs })
}

/// Waits until one of `mishaps` has happened, and arms another mishap each second. A mishap never happens if its
/// request gets no response. In that case, the process was killed, or it waits for a key that another process takes.
async fn happens(mishaps: &mut Vec<Mishap>, arm: impl Fn() -> Mishap) -> bool {
    let began = Instant::now();
    while !mishaps.iter().any(Mishap::has_happened) {
        let waited = began.elapsed();
        if waited > LONGEST_END {
            return false;
        }
        if waited.as_secs() >= mishaps.len() as u64 {
            mishaps.push(arm());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    true
}

/// Repeats an idempotent request until a server has answered it, but for at most a minute.
pub(crate) async fn settled<F>(request: impl Fn() -> F) -> Result<(), UpdateError>
where
    F: Future<Output = Result<(), UpdateError>>,
{
    let began = Instant::now();
    loop {
        match request().await {
            Err(_) if began.elapsed() < LONGEST_END => {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            done => return done,
        }
    }
}

/// Returns the contents of the queue. Tries twice, because the connection may have been cut since
/// its last use.
async fn left(queue: &Queue) -> Result<StateCounts, ReadError> {
    match queue.counts().await {
        Ok(left) => Ok(left),
        Err(_) => queue.counts().await,
    }
}

impl<'a> Run<'a> {
    async fn begin(plan: &'a Plan, queue: Queue, rate: Option<Rate>) -> Result<Self, Failed> {
        let has_a_clock = plan.subject.has_a_clock();
        let faketime = has_a_clock.then(faketime).flatten();
        if has_a_clock && faketime.is_none() {
            did_not_run("no clock was off: there is no libfaketime here");
        }
        let mut run = Self {
            plan,
            rng: fastrand::Rng::with_seed(plan.seed),
            url: plan.subject.proxied(),
            faketime,
            processes: Vec::new(),
            started: 0,
            rounds: 0,
            settings_changed: 0,
            clock_ahead: clock_ahead(),
            cuts: Vec::new(),
            events: Vec::new(),
            still: Vec::new(),
            losses: plan.subject.losses(),
            faults: Faults::new(),
            repairs: Repairs::default(),
            queue,
        };
        run.choose_settings(rate).await?;
        for _ in 0..plan.processes {
            run.start()?;
        }
        Ok(run)
    }

    pub(crate) fn count(&mut self, fault: Fault) {
        *self.faults.entry(fault).or_default() += 1;
    }

    fn start(&mut self) -> Result<(), Failed> {
        self.started += 1;
        let number = self.started;
        let seed = self.plan.seed.wrapping_mul(1000).wrapping_add(number.into()).to_string();
        // One of every three processes has a correct clock.
        let off = [None, Some(Fault::Ahead), Some(Fault::Behind)][number as usize % 3];
        let faketime = self.faketime.as_deref().zip(off);
        let process = Process::start(&self.plan.program, number, [&self.url, &seed], faketime)?;
        self.processes.push(process);
        Ok(())
    }

    fn take(&mut self, said: Said) {
        self.events.extend(said.events);
        self.repairs.restored += said.repairs.restored;
        self.repairs.lost += said.repairs.lost;
        if let Some(fault) = said.clock {
            self.count(fault);
        }
    }

    async fn does(&mut self, deed: Deed) -> Result<(), Failed> {
        match deed {
            Deed::Kill => self.kill()?,
            Deed::Freeze => self.freeze().await?,
            Deed::Strike(fault) => {
                let n = self.rounds;
                let long = Duration::from_millis(self.rng.u64(100..1500));
                let from = now();
                if let Some((fault, death)) = self.plan.subject.strike(fault, n, long).await? {
                    self.losses.outages.push(Pause { from, to: now() });
                    self.count(fault);
                    if let Some(death) = death {
                        self.losses.deaths.push(death);
                        self.restore_settings().await?;
                    }
                }
            }
            Deed::Cut(point) => self.cut(point).await,
            Deed::Hold(point) => self.hold_up(point).await,
            Deed::Pause => self.pause().await?,
        }
        Ok(())
    }

    fn kill(&mut self) -> Result<(), Failed> {
        let which = self.rng.usize(..self.processes.len());
        let process = self.processes.swap_remove(which);
        process.signal(Signal::SIGKILL)?;
        let said = process.end()?;
        self.take(said);
        self.count(Fault::ProcessKilled);
        self.start()
    }

    async fn freeze(&mut self) -> Result<(), Failed> {
        let which = self.rng.usize(..self.processes.len());
        // In most cases, the process is frozen until its leases have expired.
        let longest = 3 * LEASE.as_millis() as u64;
        let long = Duration::from_millis(self.rng.u64(50..longest));
        let process = &self.processes[which];
        let from = now();
        process.signal(Signal::SIGSTOP)?;
        tokio::time::sleep(long).await;
        process.signal(Signal::SIGCONT)?;
        self.still.push(Still { process: process.number, from, to: now() });
        self.count(Fault::Frozen);
        Ok(())
    }

    async fn pause(&mut self) -> Result<(), Failed> {
        settled(|| self.queue.pause()).await?;
        let from = now();
        let longest = 4 * LEASE.as_millis() as u64;
        tokio::time::sleep(Duration::from_millis(self.rng.u64(50..longest))).await;
        let to = now();
        settled(|| self.queue.resume()).await?;
        self.losses.pauses.push(Pause { from, to });
        self.count(Fault::Paused);
        Ok(())
    }

    /// Cuts the connection of a request. In the first round, in which each fault must occur, waits for the cut.
    async fn cut(&mut self, point: Point) {
        let Some(proxy) = &self.plan.subject.proxy else { return };
        let fault = match point {
            Point::Request => Fault::CutBefore,
            Point::HalfRequest | Point::HalfAnswer => Fault::CutIn,
            Point::Answer => Fault::CutAfter,
        };
        let mut cuts = vec![proxy.cut(b"", point)];
        if self.rounds == 0 {
            happens(&mut cuts, || proxy.cut(b"", point)).await;
        }
        self.cuts.extend(cuts.into_iter().map(|cut| (cut, fault)));
    }

    /// Delays a request, or its response, for up to two leases.
    async fn hold_up(&mut self, point: Point) {
        let Some(proxy) = &self.plan.subject.proxy else { return };
        let mut held = vec![proxy.hold(b"", point)];
        let has_happened = happens(&mut held, || proxy.hold(b"", point)).await;
        let longest = 2 * LEASE.as_millis() as u64;
        tokio::time::sleep(Duration::from_millis(self.rng.u64(50..longest))).await;
        if has_happened {
            self.count(if point.is_done() { Fault::HeldAfter } else { Fault::HeldBefore });
        }
        held.iter().for_each(Mishap::release);
    }

    fn count_cuts(&mut self) {
        for (mishap, fault) in std::mem::take(&mut self.cuts) {
            if mishap.has_happened() {
                self.count(fault);
            }
        }
    }

    /// Lets all processes work until no key is left. Returns a message for each process that does
    /// not stop in time.
    async fn end(&mut self) -> Result<Vec<String>, Failed> {
        self.processes.iter_mut().for_each(Process::let_go);
        let deadline = Instant::now() + LONGEST_END;
        let mut hung = Vec::new();
        for mut process in std::mem::take(&mut self.processes) {
            let number = process.number;
            if !process.ends_by(deadline).await? {
                let long = LONGEST_END;
                hung.push(format!("process {number} still had something to do after {long:?}"));
            }
            let said = process.end()?;
            self.take(said);
        }
        Ok(hung)
    }

    /// Returns the violation with all events of the deliveries that it concerns.
    fn describe(&self, violation: &Violation) -> String {
        let about = |event: &&Event| {
            event.kind.epoch().is_some_and(|epoch| violation.is_about((event.key, epoch)))
        };
        let events: Vec<&Event> = self.events.iter().filter(about).collect();
        let processes: Vec<u32> = events.iter().map(|event| event.process).collect();
        let mut said = format!("{violation:?}");
        for event in events {
            said += &format!("\n  process {}: {}", event.process, event.line());
        }
        for Still { process, from, to } in &self.still {
            if processes.contains(process) {
                said += &format!("\n  process {process}: frozen from {from} to {to}");
            }
        }
        for change in
            self.losses.settings.0.iter().filter(|change| violation.concerns(change.group))
        {
            said += &format!("\n  {change:?}");
        }
        for death in &self.losses.deaths {
            said += &format!("\n  a server died from {} to {}", death.from, death.to);
        }
        said
    }
}
