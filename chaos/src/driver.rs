//! Starts processes, kills and freezes them, and reads what they say.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use requeue_store::{Counts, Store};

use crate::check::{Tally, Violation, examine};
use crate::event::{Event, now};
use crate::worker::{Failed, LEASE, open};

/// How long it may take until all is done, when nothing happens any more.
const LONGEST_END: Duration = Duration::from_secs(60);

/// What is to happen.
pub struct Plan<'a> {
    /// Which store.
    pub url: String,
    /// This program, to be started as `PROGRAM worker URL SEED`.
    pub program: PathBuf,
    /// How many processes there are at once.
    pub processes: u32,
    /// For how long.
    pub length: Duration,
    /// Where what is drawn begins.
    pub seed: u64,
    /// Has the server die, and comes back when it is there again.
    pub strike: Option<&'a dyn Fn()>,
}

/// What has happened.
#[derive(Debug)]
pub struct Report {
    /// What can't have.
    pub violations: Vec<String>,
    /// What is left in the queue.
    pub left: Counts,
    pub(crate) tally: Tally,
    pub(crate) kills: u32,
    pub(crate) freezes: u32,
    pub(crate) strikes: u32,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Tally { adds, hand_outs, late_writes, lost } = self.tally;
        let (kills, freezes, strikes) = (self.kills, self.freezes, self.strikes);
        write!(
            f,
            "{adds} adds, {hand_outs} hand-outs, {kills} processes killed, {freezes} frozen, \
             the server killed {strikes} times, {lost} ends refused, {late_writes} late writes for a fence to refuse, {} violations",
            self.violations.len()
        )
    }
}

impl Report {
    /// Whether that is what a store promises.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.violations.is_empty() && self.left == Counts::default()
    }

    /// How many keys were handed out.
    #[must_use]
    pub const fn hand_outs(&self) -> u64 {
        self.tally.hand_outs
    }
}

/// One that is not ended is killed with this.
struct Process {
    child: Child,
    said: Receiver<Vec<Event>>,
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    fn start(plan: &Plan<'_>, number: u32) -> Result<Self, Failed> {
        let seed = plan.seed.wrapping_mul(1000).wrapping_add(number.into());
        let mut child = Command::new(&plan.program)
            .args(["worker", &plan.url, &seed.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let Some(out) = child.stdout.take() else { return Err("it has no output".into()) };
        let (sender, said) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(out).lines().map_while(Result::ok);
            let events = lines.filter_map(|line| Event::parse(number, &line)).collect();
            // Nobody may be interested any more.
            let _ = sender.send(events);
        });
        Ok(Self { child, said })
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    fn signal(&self, signal: Signal) -> Result<(), Failed> {
        Ok(kill(self.pid(), signal)?)
    }

    /// What it said until its end.
    fn end(mut self) -> Result<Vec<Event>, Failed> {
        self.child.wait()?;
        Ok(self.said.recv()?)
    }

    /// Whether it has ended by then.
    async fn ends_by(&mut self, deadline: Instant) -> Result<bool, Failed> {
        while self.child.try_wait()?.is_none() {
            if Instant::now() > deadline {
                self.child.kill()?;
                return Ok(false);
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(true)
    }
}

/// Runs all of it to its end.
pub async fn run(plan: &Plan<'_>) -> Result<Report, Failed> {
    let store = Store::connect(&plan.url).await?;
    store.migrate().await?;
    let queue = open(&plan.url).await?;
    let mut rng = fastrand::Rng::with_seed(plan.seed);
    let (mut events, mut frozen) = (Vec::new(), Vec::new());
    let (mut kills, mut freezes, mut strikes, mut number) = (0, 0, 0, 0);
    let mut start = || {
        number += 1;
        Process::start(plan, number).map(|process| (number, process))
    };
    let mut processes = Vec::new();
    for _ in 0..plan.processes {
        processes.push(start()?);
    }
    let begin = Instant::now();
    while begin.elapsed() < plan.length {
        tokio::time::sleep(Duration::from_millis(rng.u64(50..400))).await;
        let which = rng.usize(..processes.len());
        if let Some(strike) = plan.strike.filter(|_| rng.u8(..4) == 0) {
            strike();
            strikes += 1;
        } else if rng.bool() {
            let (_, process) = processes.swap_remove(which);
            process.signal(Signal::SIGKILL)?;
            events.extend(process.end()?);
            processes.push(start()?);
            kills += 1;
        } else {
            let (process, number) = (&processes[which].1, processes[which].0);
            let from = now();
            process.signal(Signal::SIGSTOP)?;
            // Until its leases have run out, mostly.
            let longest = 3 * LEASE.as_millis() as u64;
            tokio::time::sleep(Duration::from_millis(rng.u64(50..longest))).await;
            process.signal(Signal::SIGCONT)?;
            frozen.push(Frozen { process: number, from, to: now() });
            freezes += 1;
        }
    }
    for (_, process) in &mut processes {
        // Nobody adds any more, and all work on until nothing is left.
        drop(process.child.stdin.take());
    }
    let deadline = Instant::now() + LONGEST_END;
    let mut hung = Vec::new();
    for (number, mut process) in processes {
        if !process.ends_by(deadline).await? {
            hung.push(format!("process {number} still had something to do after {LONGEST_END:?}"));
        }
        events.extend(process.end()?);
    }
    let left = queue.counts().await?;
    let (violations, tally) = examine(&events);
    let told = violations.iter().map(|violation| describe(violation, &events, &frozen));
    let violations = hung.into_iter().chain(told).collect();
    Ok(Report { violations, left, tally, kills, freezes, strikes })
}

/// A time in which a process stood still.
struct Frozen {
    process: u32,
    from: u64,
    to: u64,
}

/// With all that was said of the hand-outs that it is about.
fn describe(violation: &Violation, events: &[Event], frozen: &[Frozen]) -> String {
    let (key, first, last) = violation.about();
    let about = |event: &&Event| {
        let epoch = event.kind.epoch();
        event.key == key && epoch.is_some_and(|epoch| (first..=last).contains(&epoch))
    };
    let events: Vec<&Event> = events.iter().filter(about).collect();
    let processes: Vec<u32> = events.iter().map(|event| event.process).collect();
    let mut said = format!("{violation:?}");
    for event in events {
        said += &format!("\n  process {}: {}", event.process, event.line());
    }
    for Frozen { process, from, to } in frozen.iter().filter(|f| processes.contains(&f.process)) {
        said += &format!("\n  process {process}: frozen from {from} to {to}");
    }
    said
}
