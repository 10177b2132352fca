//! One run of the simulation. The seed determines every step.

use std::rc::Rc;
use std::time::Duration;

use requeue::Cursor;
use requeue_core::{InFlightPolicy, Merge, Pace, ReaddPolicy, Time, When};

use super::tasks::Task;
use super::world::World;
use crate::model::{AddRequest, Ranking, Rules, Why};

/// The result of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// A hash of all events of the run.
    pub digest: u64,
    /// The number of deliveries.
    pub deliveries: u64,
    /// The number of deliveries that failed.
    pub failures: u64,
}

/// Runs the queue and its model side by side, first with faults, and then without faults until no
/// key is left.
///
/// # Errors
///
/// Returns an error if the queue and the model differ, or if the run does not end. The error names the step.
pub fn run(seed: u64) -> Result<Report, String> {
    let mut rng = fastrand::Rng::with_seed(seed);
    let rules = Rules {
        re_add: [ReaddPolicy::KeepBoth, ReaddPolicy::Replace, ReaddPolicy::Hold][rng.usize(..3)],
        rerun: match rng.u8(..4) {
            0 => InFlightPolicy::Restart { at_most: Duration::MAX },
            1 => InFlightPolicy::Restart { at_most: Duration::from_millis(rng.u64(..20_000)) },
            _ => InFlightPolicy::After,
        },
        ranking: match rng.bool() {
            true => Ranking::Fifo,
            false => Ranking::Priority { oldest_every: rng.u32(1..5) },
        },
        fair: rng.u8(..3) == 0,
        limit: (rng.u8(..3) == 0).then(|| rng.u32(1..3)),
        pace: (rng.u8(..4) == 0)
            .then(|| Pace::new(rng.u32(1..4), Duration::from_secs(rng.u64(1..20)))),
    };
    // Many keys of a crowd become due at the same time. With other rules, their order depends on the number of keys
    // that are ready when a getter asks for a key.
    let crowds = if rng.u8(..8) == 0 { rng.u8(1..3) } else { 0 };
    let rules = match crowds {
        0 => rules,
        _ => Rules {
            rerun: InFlightPolicy::After,
            ranking: Ranking::Fifo,
            fair: false,
            limit: Some(rng.u32(1..3)),
            ..rules
        },
    };
    let (keys, teams) = (rng.u32(1..9), rng.u32(1..4));
    let mut simulation = Simulation {
        // Each run leaves out some kinds of operations and of faults.
        ops: rng.u32(..),
        workers: rng.usize(1..9),
        crowds,
        tasks: Vec::new(),
        world: Rc::new(World::new(rules, keys, teams, rng)),
        latest: Time::ZERO,
    };
    let report = simulation.all()?;
    let clock = simulation.world.clock.clone();
    drop(simulation);
    match clock.armed() {
        0 => Ok(report),
        armed => Err(format!("the queue was dropped, but {armed} of its alarms are armed")),
    }
}

struct Simulation {
    world: Rc<World>,
    tasks: Vec<Task>,
    ops: u32,
    /// The number of crowds of keys that are not added yet.
    crowds: u8,
    workers: usize,
    /// The latest time that the clock has shown.
    latest: Time,
}

impl Simulation {
    fn all(&mut self) -> Result<Report, String> {
        let steps = 100 + self.world.pick(1400);
        for step in 0..steps {
            self.fault();
            if self.world.pick(4) == 0 {
                self.calm_down();
            }
            let checked = if self.world.sparing && self.world.pick(8) > 0 {
                self.world.wrong.take().map_or(Ok(()), Err)
            } else {
                self.check()
            };
            checked.map_err(|wrong| format!("step {step}: {wrong}"))?;
        }
        self.heal();
        self.settle().map_err(|wrong| format!("after the faults: {wrong}"))?;
        let counts = self.world.queue.totals();
        let (deliveries, failures) = (counts.deliveries, counts.failures);
        Ok(Report { digest: self.world.digest(), deliveries, failures })
    }

    fn check(&self) -> Result<(), String> {
        self.world.compare();
        self.world.wrong.take().map_or(Ok(()), Err)
    }

    /// Takes one step of the part with faults.
    fn fault(&mut self) {
        let world = Rc::clone(&self.world);
        if self.tasks.len() < self.workers && world.pick(6) == 0 {
            self.tasks.push(Task::worker(&world));
        }
        let key = world.pick(world.keys);
        let op = world.pick(44);
        if op >= 24 {
            return self.poll_one();
        }
        if self.ops >> op & 1 == 0 {
            return world.add(key, AddRequest::default());
        }
        match op {
            0..4 => world.add(key, self.request()),
            4 | 5 => world.add(key, AddRequest { when: When::Now, ..self.request() }),
            6 => world.add(key, AddRequest::default()),
            7 => world.add_rate_limited(key),
            8 if world.pick(2) == 0 => world.cancel_running(key),
            8 => world.cancel(key),
            9 => world.forget(key),
            10 if world.pick(2) == 0 => world.use_stale(),
            10 => world.done(key),
            11 | 12 => self.advance(Duration::from_millis(world.pick(5_000).into())),
            13 => self.advance(Duration::from_secs(world.pick(400).into())),
            // In a queue with a pace, the clock must not go back: the queue has forgotten old
            // starts, which would then count again.
            14 if !world.has_pace => {
                let back = Duration::from_millis(world.pick(3_000).into());
                world.set_clock(Time::ZERO + world.now().since(Time::ZERO + back));
            }
            15 => world.pause(world.pick(3) == 0),
            // Cancels tasks at any point of their execution.
            16 | 17 => {
                for _ in 0..self.tasks.len().min(world.pick(4) as usize) {
                    let which = world.pick(self.tasks.len() as u32) as usize;
                    drop(self.tasks.swap_remove(which));
                }
                self.calm_down();
            }
            18 if world.pick(60) == 0 => world.close(),
            18 | 20 => self.try_get(),
            21 if world.pick(3) == 0 => world.flush_debounced(),
            21 => {
                let keys: Vec<u32> = (0..world.pick(5)).map(|_| world.pick(world.keys)).collect();
                world.add_all(&keys);
            }
            22 if self.crowds > 0 && world.pick(20) == 0 => {
                self.crowds -= 1;
                // After this line, no other task waits for keys, although the team may be at its
                // limit.
                self.tasks.retain(|task| !task.waits());
                let team = world.pick(world.teams);
                for _ in 0..world.pick(3) {
                    world.add_new(team, AddRequest::default());
                    self.try_get();
                }
                world.add_crowd(team);
                for _ in 0..1 + world.pick(6) {
                    self.try_get();
                }
                world.catch_up();
            }
            19 if world.pick(60) == 0 => world.shut_down(),
            19 if world.pick(30) == 0 => {
                let timeout =
                    (world.pick(2) == 0).then(|| Duration::from_secs(world.pick(9).into()));
                self.tasks.push(Task::drain(&world, timeout));
            }
            23 => {
                let team = world.pick(world.teams);
                match world.pick(8) {
                    0..2 => world.pause_team(team, true),
                    2..5 => world.pause_team(team, false),
                    5 => world.cancel_team(team),
                    6 => world.cancel_running_team(team),
                    _ => self.tasks.extend(Task::none_in_flight(&world, team)),
                }
            }
            _ => self.poll_one(),
        }
    }

    fn request(&self) -> AddRequest {
        let world = &self.world;
        let delay = match world.pick(6) {
            0 => Duration::ZERO,
            1 => Duration::MAX,
            _ => Duration::from_millis(world.pick(10_000).into()),
        };
        AddRequest {
            when: When::After(delay),
            merge: [Merge::Earliest, Merge::Latest, Merge::Exactly][world.pick(3) as usize],
            priority: world.pick(5) as i32 - 2,
            flags: 1 << world.pick(4),
            why: (world.pick(2) == 0)
                .then(|| Why { reason: 1 + world.pick(12) as u16, cause: None }),
            failed: false,
            debounce: (world.pick(4) == 0).then(|| delay.saturating_mul(world.pick(4))),
        }
    }

    fn advance(&mut self, by: Duration) {
        let world = &self.world;
        world.set_clock(world.now() + by);
        self.latest = self.latest.max(world.now());
        self.nobody_watches_in_vain();
    }

    /// Takes a key if one is ready, and gives it to a task.
    fn try_get(&mut self) {
        if let Some(item) = self.world.try_get() {
            self.tasks.push(Task::with(&self.world, item));
        }
    }

    /// Polls a random task that was woken. A task may be chosen repeatedly.
    fn poll_one(&mut self) {
        let woken: Vec<usize> =
            (0..self.tasks.len()).filter(|&at| self.tasks[at].is_woken()).collect();
        if woken.is_empty() {
            return;
        }
        let at = woken[self.world.pick(woken.len() as u32) as usize];
        if self.tasks[at].poll() {
            drop(self.tasks.swap_remove(at));
        }
    }

    /// Polls all woken tasks, except for at most one task. Afterwards, no other task may wait if
    /// there is a key for the task, or if the event that it waits for has happened. This method
    /// calls no operation of the queue, because an operation would hide a lost wake.
    fn calm_down(&mut self) {
        let sleeper = self.world.pick(2 * self.tasks.len() as u32) as usize;
        if sleeper < self.tasks.len() {
            let last = self.tasks.len() - 1;
            self.tasks.swap(sleeper, last);
        }
        let sleeper = (sleeper < self.tasks.len()).then(|| self.tasks.pop()).flatten();
        for _ in 0..1_000 {
            if !self.tasks.iter().any(Task::is_woken) {
                break;
            }
            self.poll_one();
        }
        if !self.tasks.iter().any(Task::is_woken) {
            self.nobody_waits_in_vain();
        }
        self.tasks.extend(sleeper);
    }

    /// Checks, while all tasks are asleep, that no task should have been woken.
    fn nobody_waits_in_vain(&self) {
        let any = |what: fn(&Task) -> bool| self.tasks.iter().any(what);
        let (world, model) = (&self.world, self.world.model.borrow());
        let ready = !model.is_paused() && model.eligible() > 0;
        world.expect("a key is ready and a worker waits", ready && any(Task::waits), false);
        let over = model.is_exhausted() && any(Task::waits_impatiently);
        world.expect("nothing is ready any more and a worker waits", over, false);
        let finished = model.is_finished() && any(Task::waits);
        world.expect("nothing will be ready any more and a worker waits", finished, false);
        let in_flight = |team: u32| model.team_states(team.into()).in_flight;
        let teams = self.tasks.iter().filter_map(Task::team);
        let vain = teams.filter(|&team| in_flight(team) == 0).count();
        world.expect("tasks that wait for a team with nothing in flight", vain, 0);
        let drained = model.is_drained() && any(|task| !task.works());
        world.expect("nothing is left and a drain waits", drained, false);
        drop(model);
        self.nobody_watches_in_vain();
    }

    /// Checks that each task whose run was cancelled has been notified. The queue's alarm alone, without any operation,
    /// must restart runs for adds that become due.
    fn nobody_watches_in_vain(&self) {
        let asleep = || self.tasks.iter().filter(|task| !task.is_woken()).filter_map(Task::watches);
        let world = &self.world;
        if world.restarts && asleep().next().is_some() {
            world.promote();
        }
        let model = world.model.borrow();
        let cancelled = asleep().filter(|&epoch| model.is_cancelled(epoch)).count();
        world.expect("cancelled runs that were not notified", cancelled, 0);
    }

    /// Stops the faults. Cancels tasks that hang, and keys that would never become due.
    fn heal(&mut self) {
        let world = &self.world;
        if let Ok(mut said) = world.said.lock() {
            said.faulty = false;
        }
        world.faults.set(0);
        self.tasks.retain(|task| !task.hangs());
        if world.now() < self.latest {
            world.set_clock(self.latest);
        }
        world.pause(false);
        (0..world.teams).for_each(|team| world.pause_team(team, false));
        world.close();
        for key in world.all_keys() {
            // Only `done` can complete detached keys.
            world.done(key);
            if world.queue.look_up(&key).is_some_and(|entry| entry.due == Some(Time::NEVER)) {
                world.cancel(key);
            }
        }
    }

    /// Lets time pass until every run has completed.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..10_000 {
            self.check()?;
            if self.tasks.iter().any(Task::is_woken) {
                self.poll_one();
            } else if self.tasks.is_empty() && self.is_idle() {
                return self.nothing_is_left();
            } else if !self.tasks.iter().any(Task::works) {
                // The last worker's timeout expired before the queue was shut down.
                self.tasks.push(Task::worker(&self.world));
            } else {
                let Some(at) = self.world.clock.next_alarm() else {
                    return Err(format!("{} tasks wait; left: {}", self.tasks.len(), self.left()));
                };
                self.world.set_clock(at);
            }
        }
        Err("the run does not end".to_owned())
    }

    /// Returns the keys that are left, with the reasons.
    fn left(&self) -> String {
        let page = self.world.queue.snapshot(Cursor::default(), 10);
        let keys = page.entries.iter().map(|entry| entry.key);
        keys.map(|key| format!("{key}: {}; ", self.world.queue.explain(&key))).collect()
    }

    fn is_idle(&self) -> bool {
        let queue = &self.world.queue;
        queue.len() + queue.waiting() + queue.states().in_flight == 0
    }

    fn nothing_is_left(&self) -> Result<(), String> {
        let world = &self.world;
        let lost = world.queue.take_dropped();
        world.lost.borrow_mut()[0].extend(lost);
        let [queue, model] = world.lost.take();
        world.expect("keys that will not run", queue, model);
        for key in world.all_keys() {
            world.forget(key);
        }
        world.expect("records", world.queue.records(), 0);
        world.replay()?;
        self.check()
    }
}
