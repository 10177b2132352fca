//! The claims of `requeue work --server`. This module takes keys over HTTP, renews their leases, and sends the
//! outcomes of their runs.
//!
//! One task claims keys for all slots, and another task renews all leases. This process dates a lease from before the
//! request is sent. It thus regards a lease as expired earlier than the server does, and never relies on an expired
//! lease.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use parking_lot::Mutex;
use requeue_http::api::{
    ClaimList, ClaimOutcome, ClaimResult, ClaimResults, ClaimedKey, Endings, Named, NamedClaim,
    NewClaim, Renewals, WorkAction,
};
use requeue_store::CompleteError;
use serde::{Deserialize, Serialize};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, mpsc, oneshot, watch};
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until, timeout, timeout_at};

use super::connections::{Fault, FaultKind};
use super::{Part, Server, WRONG_ANSWER, named_key};
use crate::duration::{growing_pauses, shown};
use crate::exit::error_chain;
use crate::key::Key;

/// The longest time that the server waits for a key before it answers a claim. [`WAIT_UNTIL_EMPTY`] applies with
/// `--until-empty`.
const WAIT: Duration = Duration::from_secs(30);
const WAIT_UNTIL_EMPTY: Duration = Duration::from_millis(500);
/// The shortest time from a claim without keys to the next claim. A server of requeue takes at least as long for such an
/// answer.
const LEAST_WAIT: Duration = Duration::from_millis(100);
/// The time limit for an answer. For a claim, the wait for keys is added.
const ANSWERING: Duration = Duration::from_secs(30);
/// The longest time between two renewals of a lease. It is short, because a worker learns from a renewal that a run
/// was cancelled.
const RENEWAL: Duration = Duration::from_secs(5);
/// The time for which a claim continues after the shutdown, because its answer may be on the way.
const GRACE: Duration = Duration::from_secs(1);
/// The longest pause between two attempts.
const PAUSE: Duration = Duration::from_secs(2);
/// The number of consecutive attempts to reach a server before its queue in memory is considered lost.
const ATTEMPTS: u32 = 6;
/// The maximum number of keys in a request.
const MOST: usize = 256;
/// The maximum number of requests that report outcomes at the same time. It is low, because a server accepts few
/// connections.
const REQUESTS: usize = 4;
/// The time between two messages about an outage.
const EVERY: Duration = Duration::from_secs(60);

/// The settings of a worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerSettings {
    pub(crate) name: String,
    pub(crate) lease: Duration,
    /// True if the worker must stop when no key is ready, waiting or in flight.
    pub(crate) until_empty: bool,
}

/// The queue of a server, from which this process claims keys.
#[derive(Debug)]
pub(crate) struct ServerQueue {
    shared: Arc<Shared>,
    come: mpsc::UnboundedSender<oneshot::Sender<ServerLease>>,
}

impl ServerQueue {
    /// Checks the server and the token. Then starts the tasks that claim keys and renew their leases.
    pub(crate) async fn open(mut server: Server, settings: WorkerSettings) -> Result<Self, Fault> {
        server.connections.keep_open();
        let is_in_memory = server.check_role().await.map_err(|fault| server.named(fault))?;
        let shared = Arc::new(Shared {
            server,
            settings,
            is_in_memory,
            held: Mutex::default(),
            changed: Notify::new(),
            is_over: watch::Sender::new(false),
            has_failed: AtomicBool::new(false),
            is_cut_off: AtomicBool::new(false),
            outage: Mutex::default(),
            requests: Semaphore::new(REQUESTS),
        });
        let (come, getters) = mpsc::unbounded_channel();
        tokio::spawn(serve_getters(Arc::clone(&shared), getters));
        tokio::spawn(keep_leases(Arc::clone(&shared)));
        Ok(Self { shared, come })
    }

    /// Waits for a key. Returns `None` when no more keys will come.
    pub(crate) async fn get(&self) -> Option<ServerLease> {
        let (reply, lease) = oneshot::channel();
        self.come.send(reply).ok()?;
        lease.await.ok()
    }

    /// Stops the claims. Leases are renewed until their runs have completed.
    pub(crate) fn shut_down(&self) {
        self.shared.shut_down();
    }

    /// Waits until no more keys arrive, and each claim has ended or its lease has expired. Call it after
    /// [`shut_down`](Self::shut_down), when no run is left.
    pub(crate) async fn settled(&self) {
        // The task that claims keys drops its receiver when it stops. Each key that arrived later was dropped before.
        self.come.closed().await;
        loop {
            // From its creation, this future receives notifications, even before its first poll.
            let changed = self.shared.changed.notified();
            let now = Instant::now();
            let last = {
                let held = self.shared.held.lock();
                let held = held.values().filter(|held| held.is_ending || held.deadline > now);
                held.map(|held| held.deadline).max()
            };
            let Some(last) = last else { return };
            tokio::select! {
                () = changed => {}
                () = sleep_until(last), if last > now => {}
            }
        }
    }

    /// Returns true if the server has refused a claim, or its queue in memory was lost.
    pub(crate) fn has_failed(&self) -> bool {
        self.shared.has_failed.load(Ordering::Relaxed)
    }
}

/// A key that the server has delivered to this process. If the value is dropped before its completion, the key is
/// released.
#[derive(Debug)]
pub(crate) struct ServerLease {
    /// `None` after the completion.
    shared: Option<Arc<Shared>>,
    key: Key,
    token: u64,
    claimed: ClaimedKey,
    output: String,
}

/// The result of a run, as it is sent to the server.
#[derive(Debug, Default)]
pub(crate) struct End {
    pub(crate) error: Option<String>,
    pub(crate) exit_status: Option<i32>,
    pub(crate) gives_up: bool,
}

impl ServerLease {
    pub(crate) const fn key(&self) -> &Key {
        &self.key
    }

    pub(crate) const fn fencing_token(&self) -> u64 {
        self.token
    }

    pub(crate) const fn claimed(&self) -> &ClaimedKey {
        &self.claimed
    }

    /// Returns true if this process has lost the lease.
    pub(crate) fn is_lost(&self) -> bool {
        self.state().is_none()
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.state().is_some_and(|held| held.is_cancelled)
    }

    /// Waits until the lease is lost or the run is cancelled.
    pub(crate) async fn stopped(&self) {
        let Some(shared) = &self.shared else { return };
        loop {
            let changed = shared.changed.notified();
            let Some(held) = self.state().filter(|held| !held.is_cancelled) else { return };
            tokio::select! {
                () = changed => {}
                () = sleep_until(held.deadline) => {}
            }
        }
    }

    /// Returns the state of the lease. Returns `None` if the lease is lost.
    fn state(&self) -> Option<Held> {
        self.shared.as_ref().and_then(|shared| shared.state_of(self.token))
    }

    /// Sets the last part of the run's output. The server stores it if the run fails.
    pub(crate) fn set_output(&mut self, output: &str) {
        output.clone_into(&mut self.output);
    }

    /// Completes the delivery. Returns true if the key is parked. If the future is dropped after its first poll, the
    /// delivery is still completed.
    pub(crate) async fn end(mut self, action: WorkAction, end: End) -> Result<bool, String> {
        let Some(shared) = self.shared.take() else { return Ok(false) };
        let output = std::mem::take(&mut self.output);
        let claim = NamedClaim {
            error: end.error,
            exit_status: end.exit_status,
            output: (action == WorkAction::Fail)
                .then_some(output)
                .filter(|output| !output.is_empty()),
            give_up: end.gives_up,
            ..shared.named_claim(&self.key, self.token)
        };
        shared.begin_ending(self.token);
        let ended = tokio::spawn(shared.end_claim(self.token, action, claim)).await;
        ended.unwrap_or_else(|error| Err(error.to_string()))
    }
}

impl Drop for ServerLease {
    fn drop(&mut self) {
        // Without a runtime, the process is exiting. Its lease then expires, and the server delivers the key again.
        let (Some(shared), Ok(runtime)) = (self.shared.take(), Handle::try_current()) else {
            return;
        };
        let claim = shared.named_claim(&self.key, self.token);
        shared.begin_ending(self.token);
        // The result is ignored, because a lost lease needs no release.
        runtime.spawn(shared.end_claim(self.token, WorkAction::Release, claim));
    }
}

#[derive(Debug)]
struct Shared {
    server: Server,
    settings: WorkerSettings,
    /// True if the server has the queue in its memory, so that the queue does not survive the server's process.
    is_in_memory: bool,
    /// The leases of this process, by fencing token.
    held: Mutex<HashMap<u64, Held>>,
    /// Notified when a lease changes. The task that renews leases and the runs of the keys wait for it.
    changed: Notify,
    /// True after the queue was shut down. After that, no more keys are claimed.
    is_over: watch::Sender<bool>,
    has_failed: AtomicBool,
    /// True if a lease has expired, or a request was sent and not answered, since the last answer to a claim.
    is_cut_off: AtomicBool,
    outage: Mutex<Outage>,
    requests: Semaphore,
}

/// A lease of this process.
#[derive(Clone, Debug)]
struct Held {
    key: Key,
    /// The time until which this process certainly has the lease.
    deadline: Instant,
    is_cancelled: bool,
    /// True if the run has completed, and the server has not recorded the outcome yet.
    is_ending: bool,
}

/// The period in which requests fail and are repeated. It limits the messages to a few, even if the server answers
/// some of the requests.
#[derive(Debug, Default)]
struct Outage {
    /// The time of the first failure since the last answer.
    since: Option<Instant>,
    /// The time of the last message.
    said: Option<Instant>,
    /// True if a message about this outage was written.
    is_known: bool,
}

impl Outage {
    /// Returns the start of the message about a failure. Returns `None` if it is too early for another message.
    fn note_failure(&mut self, now: Instant) -> Option<&'static str> {
        let since = *self.since.get_or_insert(now);
        if self.said.is_some_and(|said| now - said < EVERY) {
            return None;
        }
        (self.said, self.is_known) = (Some(now), true);
        Some(if since == now { "" } else { "still " })
    }

    /// Records that the server has answered. Returns the time at which the outage began, if the user was told of the
    /// outage.
    fn note_answer(&mut self) -> Option<Instant> {
        let since = self.since.take();
        since.filter(|_| std::mem::take(&mut self.is_known))
    }
}

/// Removes the lease from the table when it is dropped.
struct Ending<'a> {
    shared: &'a Shared,
    token: u64,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.shared.held.lock().remove(&self.token);
        self.shared.changed.notify_waiters();
    }
}

impl Shared {
    fn shut_down(&self) {
        self.is_over.send_replace(true);
    }

    fn state_of(&self, token: u64) -> Option<Held> {
        let held = self.held.lock();
        held.get(&token).filter(|held| held.deadline > Instant::now()).cloned()
    }

    fn named_claim(&self, key: &[u8], token: u64) -> NamedClaim {
        let key = named_key(key);
        let (key, key_base64) = (key.key, key.key_base64);
        NamedClaim { key, key_base64, token: token.to_string(), ..NamedClaim::default() }
    }

    // --- Outages ---------------------------------------------------------------------------------

    /// Reports that a request has failed and will be repeated.
    fn note_failure(&self, Fault { kind, why, .. }: &Fault) {
        if *kind == FaultKind::NoAnswer {
            self.note_cut_off();
        }
        let begin = self.outage.lock().note_failure(Instant::now());
        if let Some(begin) = begin {
            tracing::warn!("{}", self.server.message_about(&format!("{begin}{why}; retrying")));
        }
    }

    fn note_answer(&self) {
        let since = self.outage.lock().note_answer();
        if let Some(since) = since {
            let answer = format!("answers again after {}", shown(since.elapsed()));
            tracing::info!("{}", self.server.message_about(&answer));
        }
    }

    fn note_cut_off(&self) {
        // `Relaxed` suffices, because the flag guards no other data.
        self.is_cut_off.store(true, Ordering::Relaxed);
    }

    /// Stops the claims if a repetition of a claim is useless. Returns true if the claims were stopped. `attempts` is
    /// the number of consecutive claims that did not reach the server.
    fn stop_after(&self, fault: &Fault, attempts: u32) -> bool {
        if fault.kind == FaultKind::Refused {
            self.fail(&fault.why);
            return true;
        }
        let can_end = self.is_in_memory && self.settings.until_empty;
        if fault.kind != FaultKind::Unreachable || !can_end {
            return false;
        }
        // A process does not exit by itself before the keys of its workers have ended and its claims are answered.
        if !self.is_cut_off.load(Ordering::Relaxed) && self.held.lock().is_empty() {
            let end = format!("{}; the queue in its memory has ended with the process", fault.why);
            tracing::info!("{}", self.server.message_about(&end));
            self.shut_down();
            return true;
        }
        if attempts >= ATTEMPTS {
            self.fail(&format!("{}; the queue in its memory may be lost", fault.why));
        }
        attempts >= ATTEMPTS
    }

    /// Stops the claims, because the next one would fail too.
    fn fail(&self, why: &str) {
        // No other data depends on the flag, so `Relaxed` is sufficient.
        self.has_failed.store(true, Ordering::Relaxed);
        let error = format!("{why}; no more keys are taken");
        tracing::warn!("{}", self.server.message_about(&error));
        self.shut_down();
    }

    // --- Endings ---------------------------------------------------------------------------------

    /// Marks a claim whose end is about to be sent. The caller does this before it spawns the task that sends the end,
    /// so that [`ServerQueue::settled`] waits for this task.
    fn begin_ending(&self, token: u64) {
        if let Some(held) = self.held.lock().get_mut(&token) {
            held.is_ending = true;
        }
    }

    /// Ends a claim, and repeats the request until the server has answered or the lease has expired.
    async fn end_claim(
        self: Arc<Self>,
        token: u64,
        action: WorkAction,
        claim: NamedClaim,
    ) -> Result<bool, String> {
        let lost = || Err(error_chain(&CompleteError::Lost));
        let _ending = Ending { shared: &self, token };
        let endings = Endings { claims: vec![claim] };
        let (mut pauses, mut is_unsure) = (pauses(), false);
        loop {
            let Some(Held { deadline, .. }) = self.state_of(token) else {
                self.note_cut_off();
                return match is_unsure {
                    true => Err(error_chain(&CompleteError::Unsure)),
                    false => lost(),
                };
            };
            let request = async {
                // The semaphore is never closed, so `acquire` does not fail.
                let _permit = self.requests.acquire().await;
                self.server.try_post_claims(action.name(), &endings, 1).await
            };
            let ended = timeout_at(deadline.min(Instant::now() + ANSWERING), request).await;
            let fault = match ended.unwrap_or_else(|_| Err(Fault::late())) {
                Ok(results) => {
                    self.note_answer();
                    let [ClaimResult { result, error }] = &results[..] else { return lost() };
                    match result {
                        ClaimOutcome::Parked => return Ok(true),
                        ClaimOutcome::Lost if is_unsure => {
                            return Err(error_chain(&CompleteError::Unsure));
                        }
                        ClaimOutcome::Lost => return lost(),
                        ClaimOutcome::Unknown => is_unsure = true,
                        ClaimOutcome::Locked => {}
                        _ => return Ok(false),
                    }
                    let why = error.as_deref().unwrap_or("the server has not ended the claim");
                    Fault::new(FaultKind::Busy(None), why)
                }
                Err(fault) => fault,
            };
            is_unsure |= fault.kind == FaultKind::NoAnswer;
            if fault.kind == FaultKind::Refused {
                return Err(self.server.message_about(&fault.why));
            }
            self.note_failure(&fault);
            sleep_until(deadline.min(Instant::now() + pauses(&fault))).await;
        }
    }

    // --- Leases ----------------------------------------------------------------------------------

    /// Returns the claims of these leases, in parts that fit into one request each.
    fn parts_of(&self, leases: impl IntoIterator<Item = (Key, u64)>) -> Vec<Renewals> {
        let claims = leases.into_iter().map(|(key, token)| self.named_claim(&key, token));
        let (mut parts, mut last) = (Vec::new(), Part::new());
        parts.extend(claims.filter_map(|claim| last.push_key(claim, MOST)));
        parts.push(last.take_keys());
        parts.retain(|part| !part.is_empty());
        let lease = self.settings.lease.as_secs_f64();
        parts.into_iter().map(|claims| Renewals { claims, lease }).collect()
    }

    /// Renews the leases of a part to the full duration. Removes the leases that the server reports as lost.
    async fn renew(&self, renewals: &Renewals) -> Result<(), Fault> {
        let tokens = renewals.claims.iter().filter_map(|claim| claim.token.parse().ok());
        let tokens: Vec<u64> = tokens.collect();
        let since = Instant::now();
        // An answer is useful until the last of these leases has expired.
        let last = {
            let held = self.held.lock();
            tokens.iter().filter_map(|token| held.get(token)).map(|held| held.deadline).max()
        };
        let Some(last) = last else { return Ok(()) };
        let results = self.server.try_post_claims(WorkAction::Renew.name(), renewals, tokens.len());
        let results = timeout_at(last.min(since + ANSWERING), results).await;
        let results = results.unwrap_or_else(|_| Err(Fault::late()))?;
        self.note_answer();
        self.note_renewed(&tokens, &results, since + self.settings.lease);
        Ok(())
    }

    /// Renews the leases of a part. Repeats a request that fails until `next`, when the next renewal begins.
    async fn renew_patiently(self: Arc<Self>, renewals: Renewals, next: Instant) {
        while let Err(fault) = self.renew(&renewals).await {
            self.note_failure(&fault);
            let again = Instant::now() + Duration::from_secs(1);
            if again >= next {
                return;
            }
            sleep_until(again).await;
        }
    }

    /// Removes the leases that have expired, and returns the others.
    fn renewed_leases(&self) -> Vec<(Key, u64)> {
        let mut held = self.held.lock();
        // A lease that has expired cannot be renewed. Its end finds it missing.
        let count = held.len();
        held.retain(|_, held| held.deadline > Instant::now());
        if held.len() < count {
            self.note_cut_off();
        }
        held.iter().map(|(token, held)| (held.key.clone(), *token)).collect()
    }

    fn note_renewed(&self, tokens: &[u64], results: &[ClaimResult], deadline: Instant) {
        let mut all = self.held.lock();
        for (token, ClaimResult { result, .. }) in tokens.iter().zip(results) {
            match result {
                ClaimOutcome::Renewed | ClaimOutcome::Cancelled => {
                    if let Some(held) = all.get_mut(token) {
                        // The answer to an earlier renewal may arrive later.
                        held.deadline = held.deadline.max(deadline);
                        held.is_cancelled |= *result == ClaimOutcome::Cancelled;
                    }
                }
                ClaimOutcome::Lost => _ = all.remove(token),
                // The lease stays in the table, and is renewed again before it expires.
                _ => {}
            }
        }
        drop(all);
        self.changed.notify_waiters();
    }

    /// Keeps claimed keys. If one of them cannot be read, returns all others to the queue, and returns a fault.
    fn hold(
        self: &Arc<Self>,
        claims: Vec<ClaimedKey>,
        deadline: Instant,
    ) -> Result<Vec<ServerLease>, Fault> {
        let count = claims.len();
        let mut leases = Vec::with_capacity(count);
        for claimed in claims {
            let Some((key, token)) = read_claim(&claimed) else { continue };
            let held = Held { key: key.clone(), deadline, is_cancelled: false, is_ending: false };
            self.held.lock().insert(token, held);
            let (shared, output) = (Some(Arc::clone(self)), String::new());
            leases.push(ServerLease { shared, key, token, claimed, output });
        }
        // The task that renews leases waits for a notification while the table is empty.
        self.changed.notify_waiters();
        // The drop of the leases returns their keys.
        if leases.len() == count { Ok(leases) } else { Err(Fault::refused(WRONG_ANSWER)) }
    }

    // --- Claims ----------------------------------------------------------------------------------

    /// Claims up to `max` keys. Returns an empty list if no key becomes ready in time.
    async fn claim(self: &Arc<Self>, max: usize) -> Result<Vec<ServerLease>, Fault> {
        let WorkerSettings { name, lease, until_empty } = &self.settings;
        let wait = if *until_empty { WAIT_UNTIL_EMPTY } else { WAIT };
        let claim = NewClaim {
            worker: name.clone(),
            max: max.min(MOST),
            wait: wait.as_secs_f64(),
            lease: lease.as_secs_f64(),
            until_empty: *until_empty,
        };
        let since = Instant::now();
        let claimed = self.server.try_post(WorkAction::Claim.name(), &claim);
        let claimed = timeout(wait + ANSWERING, claimed).await;
        let ClaimList { claims, empty } = claimed.unwrap_or_else(|_| Err(Fault::late()))?;
        self.note_answer();
        self.is_cut_off.store(false, Ordering::Relaxed);
        if empty {
            self.shut_down();
        } else if claims.is_empty() {
            // A proxy may answer sooner than the server would, and this process must not send claims in a busy loop.
            sleep_until(since + LEAST_WAIT).await;
        }
        if since.elapsed() < *lease / 3 || claims.is_empty() {
            return self.hold(claims, since + *lease);
        }
        // The server waited for keys before it began the leases, so their start is unknown. The keys are therefore
        // renewed, which gives their leases a known start.
        let soon = Instant::now() + *lease / 3;
        let leases = self.hold(claims, soon)?;
        for part in self.parts_of(leases.iter().map(|lease| (lease.key.clone(), lease.token))) {
            // After a fault, the drop of the leases returns the keys.
            self.renew(&part).await?;
        }
        Ok(leases)
    }
}

/// Claims keys for all slots that wait for one, until the queue is shut down.
async fn serve_getters(
    shared: Arc<Shared>,
    mut come: mpsc::UnboundedReceiver<oneshot::Sender<ServerLease>>,
) {
    let mut is_over = shared.is_over.subscribe();
    let mut waiters: VecDeque<oneshot::Sender<ServerLease>> = VecDeque::new();
    let (mut pauses_between, mut attempts) = (pauses(), 0);
    while !*is_over.borrow_and_update() {
        // Other tasks run first, so that slots that are about to ask for a key share this claim.
        yield_now().await;
        while let Ok(waiter) = come.try_recv() {
            waiters.push_back(waiter);
        }
        waiters.retain(|waiter| !waiter.is_closed());
        if waiters.is_empty() {
            tokio::select! {
                waiter = come.recv() => match waiter {
                    Some(waiter) => waiters.push_back(waiter),
                    None => return,
                },
                _ = is_over.changed() => {}
            }
            continue;
        }
        let Some(claimed) = finish_soon(shared.claim(waiters.len()), &mut is_over).await else {
            return;
        };
        match claimed {
            Ok(leases) => {
                (pauses_between, attempts) = (pauses(), 0);
                for mut lease in leases {
                    // A slot may have stopped waiting. The lease then goes to the next slot. A lease without a slot is
                    // dropped, which releases its key.
                    while let Some(waiter) = waiters.pop_front() {
                        match waiter.send(lease) {
                            Ok(()) => break,
                            Err(unsent) => lease = unsent,
                        }
                    }
                }
            }
            Err(fault) => {
                attempts = if fault.kind == FaultKind::Unreachable { attempts + 1 } else { 0 };
                // `finish_soon` may have seen the shutdown already, so `changed` would not report it below.
                if shared.stop_after(&fault, attempts) || *is_over.borrow() {
                    return;
                }
                shared.note_failure(&fault);
                tokio::select! {
                    () = sleep(pauses_between(&fault)) => {}
                    _ = is_over.changed() => {}
                }
            }
        }
    }
}

/// Waits for a claim. Returns `None` if the claim has not ended within [`GRACE`] after the shutdown.
async fn finish_soon<T>(
    claim: impl Future<Output = T>,
    is_over: &mut watch::Receiver<bool>,
) -> Option<T> {
    let late = async {
        // An error means that the sender was dropped, which also is a shutdown.
        let _ = is_over.wait_for(|&is_over| is_over).await;
        sleep(GRACE).await;
    };
    tokio::select! {
        // Keys that have arrived are taken first, because a claim that is dropped leaves them to the server.
        biased;
        claimed = claim => Some(claimed),
        () = late => None,
    }
}

/// Renews the leases of this process.
async fn keep_leases(shared: Arc<Shared>) {
    // The leases are renewed after a third of their duration. Two renewals in a row can then fail before a lease
    // expires.
    let every = (shared.settings.lease / 3).min(RENEWAL);
    loop {
        // From its creation, this future receives notifications, even before its first poll.
        let changed = shared.changed.notified();
        let leases = shared.renewed_leases();
        if leases.is_empty() {
            changed.await;
            sleep(every).await;
            continue;
        }
        let next = Instant::now() + every;
        // A request that has no answer yet must delay neither the other parts nor the next renewal. A server may take
        // longer than `every` to answer, and a broken connection may never answer.
        for part in shared.parts_of(leases) {
            tokio::spawn(Arc::clone(&shared).renew_patiently(part, next));
        }
        sleep_until(next).await;
    }
}

/// Returns the key and the fencing token of a claim, or `None` if they cannot be read.
fn read_claim(claimed: &ClaimedKey) -> Option<(Key, u64)> {
    let key: Key = match (&claimed.key, &claimed.key_base64) {
        (Some(key), None) => key.as_bytes().into(),
        (None, Some(base64)) => STANDARD.decode(base64).ok()?.into(),
        _ => return None,
    };
    Some((key, claimed.token.parse().ok()?))
}

/// Returns a function that computes the delay before the next attempt of a request. The server can ask for a longer
/// delay.
fn pauses() -> impl FnMut(&Fault) -> Duration {
    let mut next_pause = growing_pauses(Duration::from_millis(50), PAUSE);
    move |fault| {
        let pause = next_pause();
        match fault.kind {
            FaultKind::Busy(Some(after)) => pause.max(after.min(EVERY)),
            _ => pause,
        }
    }
}

impl Server {
    /// Checks that the token permits claims. Returns true if the server has the queue in its memory.
    async fn check_role(&self) -> Result<bool, Fault> {
        #[derive(Deserialize)]
        struct Permitted {
            actions: Vec<String>,
        }
        let is_in_memory = self.look_for_queue().await?.is_in_memory;
        let Permitted { actions } = self.try_post("authenticate", &serde_json::json!({})).await?;
        if !actions.iter().any(|action| action == WorkAction::Claim.name()) {
            let error = "the token does not have the role work; use a token with that role";
            return Err(Fault::refused(error));
        }
        Ok(is_in_memory)
    }

    /// Sends a request about several claims, and returns the result of each claim.
    async fn try_post_claims(
        &self,
        path: &str,
        body: &impl Serialize,
        count: usize,
    ) -> Result<Vec<ClaimResult>, Fault> {
        let answer = self.post_body(path, body).await?;
        // An answer with results has an HTTP status that comes from the results, so the status is not checked in this
        // case.
        match serde_json::from_slice(&answer.body) {
            Ok(ClaimResults { results, .. }) if results.len() == count => Ok(results),
            _ => {
                super::check_status(&answer)?;
                Err(Fault::refused(WRONG_ANSWER))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_answers_every_second_request_causes_few_messages() {
        let (mut outage, begin) = (Outage::default(), Instant::now());
        assert_eq!(outage.note_failure(begin), Some(""));
        assert_eq!(outage.note_answer(), Some(begin));
        for seconds in 1..60 {
            assert_eq!(outage.note_failure(begin + Duration::from_secs(seconds)), None);
            assert_eq!(outage.note_answer(), None);
        }
        assert_eq!(outage.note_failure(begin + Duration::from_secs(59)), None);
        assert_eq!(outage.note_failure(begin + EVERY), Some("still "));
        assert_eq!(outage.note_answer(), Some(begin + Duration::from_secs(59)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_that_ends_soon_after_the_shutdown_is_not_dropped() {
        let (end, mut is_over) = watch::channel(false);
        let claim = async {
            sleep(WAIT).await;
            end.send_replace(true);
            sleep(GRACE / 2).await;
        };
        assert_eq!(finish_soon(claim, &mut is_over).await, Some(()));
        let begin = Instant::now();
        assert_eq!(finish_soon(sleep(WAIT), &mut is_over).await, None);
        assert_eq!(begin.elapsed(), GRACE);
    }

    #[test]
    fn a_server_can_ask_for_a_longer_pause_but_not_for_an_hour() {
        let mut pauses = pauses();
        let mut pause = |kind| pauses(&Fault::new(kind, "busy"));
        assert!(pause(FaultKind::Unreachable) <= PAUSE);
        let asked = |seconds| FaultKind::Busy(Some(Duration::from_secs(seconds)));
        assert_eq!(pause(asked(5)), Duration::from_secs(5));
        assert_eq!(pause(asked(3600)), EVERY);
        for _ in 0..1000 {
            assert!(pause(FaultKind::NoAnswer) <= PAUSE);
        }
    }
}
