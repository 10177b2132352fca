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
use requeue::wait::{Backoff, jitter_source};
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
use crate::duration::shown;
use crate::exit::error_chain;
use crate::key::Key;

/// The longest time that the server waits for a key before it answers a claim. [`WAIT_UNTIL_EMPTY`] applies with
/// `--until-empty`.
const WAIT: Duration = Duration::from_secs(30);
const WAIT_UNTIL_EMPTY: Duration = Duration::from_millis(500);
/// The time limit for an answer. For a claim, the wait for keys is added.
const ANSWERING: Duration = Duration::from_secs(30);
/// The longest time between two renewals of a lease. It is short, because a worker learns from a renewal that a run
/// was cancelled.
const RENEWAL: Duration = Duration::from_secs(5);
/// The longest delay between two attempts of a request.
const PAUSE: Duration = Duration::from_secs(2);
/// The maximum number of keys in one request.
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
        let is_in_memory = server.check_role().await;
        let is_in_memory = is_in_memory
            .map_err(|fault| Fault { why: server.message_about(&fault.why), ..fault })?;
        let shared = Arc::new(Shared {
            server,
            settings,
            is_in_memory,
            held: Mutex::default(),
            changed: Notify::new(),
            is_over: watch::Sender::new(false),
            has_failed: AtomicBool::new(false),
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

    /// Waits until the server has recorded all outcomes that are being sent, or their leases have expired.
    pub(crate) async fn settled(&self) {
        loop {
            // From its creation, this future receives notifications, even before its first poll.
            let changed = self.shared.changed.notified();
            if !self.shared.held.lock().values().any(|held| held.is_ending) {
                return;
            }
            changed.await;
        }
    }

    /// Returns true if the server has refused a claim.
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
        // The result is ignored. If the lease was lost, the key no longer needs a release.
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
    fn note_failure(&self, why: &str) {
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

    /// Stops the claims. The caller has found that the server would refuse each further claim.
    fn fail(&self, why: &str) {
        // No other data depends on the flag, so `Relaxed` is sufficient.
        self.has_failed.store(true, Ordering::Relaxed);
        let error = format!("{why}; no more keys are taken");
        tracing::warn!("{}", self.server.message_about(&error));
        self.shut_down();
    }

    // --- Endings ---------------------------------------------------------------------------------

    /// Sends the outcome of a run. Repeats the request until the server has answered or the lease has expired.
    async fn end_claim(
        self: Arc<Self>,
        token: u64,
        action: WorkAction,
        claim: NamedClaim,
    ) -> Result<bool, String> {
        let lost = || Err(error_chain(&CompleteError::Lost));
        let is_held = self.held.lock().get_mut(&token).map(|held| held.is_ending = true).is_some();
        if !is_held {
            return lost();
        }
        let _ending = Ending { shared: &self, token };
        let endings = Endings { claims: vec![claim] };
        let (mut pauses, mut is_unsure) = (pauses(), false);
        loop {
            let Some(Held { deadline, .. }) = self.state_of(token) else {
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
            let fault = match ended.unwrap_or_else(|_| Err(late())) {
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
            self.note_failure(&fault.why);
            sleep_until(deadline.min(Instant::now() + pauses(&fault))).await;
        }
    }

    // --- Leases ----------------------------------------------------------------------------------

    /// Renews the leases for the full duration. Removes the leases that the server reports as lost.
    async fn renew(&self, leases: &[(Key, u64)]) -> Result<(), Fault> {
        let lease = self.settings.lease;
        let claims = leases.iter().map(|(key, token)| self.named_claim(key, *token));
        let (mut parts, mut last) = (Vec::new(), Part::new());
        parts.extend(claims.filter_map(|claim| last.push_key(claim, MOST)));
        parts.push(last.take_keys());
        for claims in parts {
            let tokens: Vec<u64> =
                claims.iter().filter_map(|claim| claim.token.parse().ok()).collect();
            let renewals = Renewals { claims, lease: lease.as_secs_f64() };
            let since = Instant::now();
            let action = WorkAction::Renew.name();
            let results = self.server.try_post_claims(action, &renewals, tokens.len()).await?;
            self.note_renewed(&tokens, &results, since + lease);
        }
        Ok(())
    }

    /// Removes the leases that have expired, and returns the others.
    fn renewed_leases(&self) -> Vec<(Key, u64)> {
        let mut held = self.held.lock();
        // An expired lease cannot be renewed. When its run completes, the lease is missing from the table, and the run
        // is treated as lost.
        held.retain(|_, held| held.deadline > Instant::now());
        held.iter().map(|(token, held)| (held.key.clone(), *token)).collect()
    }

    fn note_renewed(&self, tokens: &[u64], results: &[ClaimResult], deadline: Instant) {
        let mut all = self.held.lock();
        for (token, ClaimResult { result, .. }) in tokens.iter().zip(results) {
            match result {
                ClaimOutcome::Renewed | ClaimOutcome::Cancelled => {
                    if let Some(held) = all.get_mut(token) {
                        held.deadline = deadline;
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

    /// Adds claimed keys to the table of leases.
    fn hold(
        self: &Arc<Self>,
        claims: Vec<ClaimedKey>,
        deadline: Instant,
    ) -> Result<Vec<ServerLease>, Fault> {
        let wrong = || Fault::refused(WRONG_ANSWER);
        let mut leases = Vec::with_capacity(claims.len());
        for claimed in claims {
            let token = claimed.token.parse().map_err(|_| wrong())?;
            let key: Key = match (&claimed.key, &claimed.key_base64) {
                (Some(key), None) => key.as_bytes().into(),
                (None, Some(base64)) => STANDARD.decode(base64).map_err(|_| wrong())?.into(),
                _ => return Err(wrong()),
            };
            let held = Held { key: key.clone(), deadline, is_cancelled: false, is_ending: false };
            self.held.lock().insert(token, held);
            let (shared, output) = (Some(Arc::clone(self)), String::new());
            leases.push(ServerLease { shared, key, token, claimed, output });
        }
        // The task that renews leases waits for a notification while the table is empty.
        self.changed.notify_waiters();
        Ok(leases)
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
        let ClaimList { claims, empty } = claimed.unwrap_or_else(|_| Err(late()))?;
        self.note_answer();
        if empty {
            self.shut_down();
        }
        if since.elapsed() < *lease / 3 || claims.is_empty() {
            return self.hold(claims, since + *lease);
        }
        // The server waited for keys before it began the leases, so their start is unknown. The keys are therefore
        // renewed, which gives their leases a known start.
        let soon = Instant::now() + *lease / 3;
        let leases = self.hold(claims, soon)?;
        let tokens: Vec<_> = leases.iter().map(|lease| (lease.key.clone(), lease.token)).collect();
        match timeout_at(soon, self.renew(&tokens)).await.unwrap_or_else(|_| Err(late())) {
            Ok(()) => Ok(leases),
            // The drop of the leases releases the keys.
            Err(fault) => Err(fault),
        }
    }
}

/// Claims keys for all slots that wait for one, until the queue is shut down.
async fn serve_getters(
    shared: Arc<Shared>,
    mut come: mpsc::UnboundedReceiver<oneshot::Sender<ServerLease>>,
) {
    let mut is_over = shared.is_over.subscribe();
    let mut waiters: VecDeque<oneshot::Sender<ServerLease>> = VecDeque::new();
    let mut pauses_between = pauses();
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
        let claimed = tokio::select! {
            // The claim is polled first. If an answer with keys is dropped, the server keeps these keys in flight
            // until their leases expire.
            biased;
            claimed = shared.claim(waiters.len()) => claimed,
            _ = is_over.changed() => continue,
        };
        match claimed {
            Ok(leases) => {
                pauses_between = pauses();
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
            Err(fault) if fault.kind == FaultKind::Refused => shared.fail(&fault.why),
            // A queue in memory does not survive the server's process, so another attempt would not find it.
            Err(Fault { kind: FaultKind::Unreachable, why, .. })
                if shared.is_in_memory && shared.settings.until_empty =>
            {
                let end = format!("{why}; the queue in its memory has ended with the process");
                tracing::info!("{}", shared.server.message_about(&end));
                shared.shut_down();
            }
            Err(fault) => {
                shared.note_failure(&fault.why);
                tokio::select! {
                    () = sleep(pauses_between(&fault)) => {}
                    _ = is_over.changed() => {}
                }
            }
        }
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
        let renewal = Instant::now() + every;
        match timeout_at(renewal, shared.renew(&leases)).await.unwrap_or_else(|_| Err(late())) {
            Ok(()) => {
                shared.note_answer();
                sleep_until(renewal).await;
            }
            Err(fault) => {
                shared.note_failure(&fault.why);
                sleep_until(renewal.min(Instant::now() + Duration::from_secs(1))).await;
            }
        }
    }
}

fn late() -> Fault {
    Fault::new(FaultKind::NoAnswer, "no answer in time")
}

/// Returns a function that computes the delay before the next attempt of a request. The server can ask for a longer
/// delay.
fn pauses() -> impl FnMut(&Fault) -> Duration {
    let duration = Duration::from_millis(50);
    // The jitter spreads the attempts of many workers.
    let mut backoff =
        Backoff { duration, factor: 2.0, jitter: 1.0, steps: i32::MAX, cap: PAUSE / 2 };
    let mut source = jitter_source();
    move |fault| {
        let pause = backoff.step(&mut source);
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
