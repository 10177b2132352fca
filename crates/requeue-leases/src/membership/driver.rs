//! The driver of a [`Group`], which connects it with a clock and an API server.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, Fuse, FutureExt};
use futures_util::stream::StreamExt;
use kube::Client;
use kube::runtime::watcher;
use requeue::wait::JitterSource;
use serde_json::json;
use tokio::sync::{mpsc, oneshot, watch};

use super::assignment::{JOINED, LABEL};
use super::config::ShardGroup;
use super::error::MembershipError;
use super::group::Group;
use super::held::{Change, Command, HeldShard, View};
use super::protocol::{self, End, Gain, Settings, Source, Step};
use super::watch::{Events as WatchEvents, watch_leases};
use crate::clock::Clock;
use crate::events::Events;
use crate::leader::{LeaderElector, Leadership, LeadershipLost, Term};
use crate::metrics::GroupMeters;
use crate::requests::{Answer, Call, Requests};
use crate::simulation::unique_id;
use crate::token::FencingToken;

/// The wait after a failed attempt to create the member Lease.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// The channels and the state through which the driver's task reports to the rest of the process.
pub(super) struct Outputs {
    pub(super) changes: mpsc::UnboundedSender<Change>,
    pub(super) commands: mpsc::UnboundedSender<Command>,
    pub(super) view: watch::Sender<View>,
    pub(super) meters: GroupMeters,
}

/// Takes part in the group until this process has left it. Sends the name of the member Lease to `joined` when the
/// process has joined.
pub(super) async fn run_membership(
    config: ShardGroup,
    client: Client,
    outputs: Outputs,
    mut received: mpsc::UnboundedReceiver<Command>,
    joined: oneshot::Sender<String>,
) -> Result<(), MembershipError> {
    let clock = &config.clock;
    let mut joined = Some(joined);
    loop {
        // Each attempt uses a new name for the member Lease. A late request of the previous attempt may still create a
        // Lease with the old name.
        let mut driver = Driver::new(&config, &client, &outputs);
        if let Some(result) = driver.take_part(&mut received, &mut joined).await {
            return result;
        }
        clock.sleep_until(clock.now() + RETRY_PAUSE).await;
    }
}

struct Driver<'a> {
    config: &'a ShardGroup,
    client: &'a Client,
    clock: &'a Clock,
    outputs: &'a Outputs,
    member: Arc<str>,
    group: Group,
    requests: Requests,
    watch: WatchEvents,
    /// The request in flight. If there is none, this future never completes.
    call: Fuse<BoxFuture<'static, Answer>>,
    /// The elector's attempt to create the member Lease, which lasts until the API server has answered. If there is
    /// none, this future never completes.
    joining: Fuse<BoxFuture<'static, Option<Term>>>,
    term: Option<(Term, Leadership)>,
    events: Option<Events>,
}

impl<'a> Driver<'a> {
    fn new(config: &'a ShardGroup, client: &'a Client, outputs: &'a Outputs) -> Self {
        let ShardGroup { name, lease, clock, .. } = config;
        let member: Arc<str> = format!("{name}-{}", unique_id()).into();
        let settings = Settings {
            name: name.clone(),
            member: Arc::clone(&member),
            layout: config.layout(),
            lease_duration: lease.lease_duration,
            renew_deadline: lease.renew_deadline,
            request_limit: lease.request_limit(),
            handover_limit: config.handover_timeout,
        };
        let requests = Requests::new(client.clone(), &lease.namespace, "shard group", name);
        let events = || Events::new(client.clone(), &lease.namespace, name, &member);
        Self {
            group: Group::new(settings, JitterSource::new(fastrand::u64(..)), clock.now()),
            watch: watch_leases(client.clone(), &lease.namespace, name),
            call: Fuse::terminated(),
            joining: Fuse::terminated(),
            term: None,
            events: lease.has_events.then(events),
            config,
            client,
            clock,
            outputs,
            member,
            requests,
        }
    }

    /// Takes part in the group until this process has left it. Returns `None` if the member Lease could not be created.
    async fn take_part(
        &mut self,
        commands: &mut mpsc::UnboundedReceiver<Command>,
        joined: &mut Option<oneshot::Sender<String>>,
    ) -> Option<Result<(), MembershipError>> {
        let mut stopping = false;
        loop {
            let right = self.term.as_ref().and_then(|(_, leadership)| leadership.right_until());
            let step = self.group.poll(self.clock.now(), right);
            // The state is published before the next wait. If this step begins to hand a shard over, observers then no
            // longer see the shard as held.
            self.publish_state();
            let until = match step {
                Step::Call(call) => {
                    let requests = self.requests.clone();
                    // The loop below awaits the call together with other events, because a slow response must not delay
                    // events and commands.
                    self.call = async move { requests.make_call(call).await }.boxed().fuse();
                    continue;
                }
                Step::Join { group } => {
                    match self.member_elector(group) {
                        Ok(elector) => self.joining = elector.try_acquire().boxed().fuse(),
                        Err(error) => return Some(Err(error)),
                    }
                    continue;
                }
                Step::Relist => {
                    tracing::warn!(
                        group = self.config.name,
                        "the watch of the shard group is silent"
                    );
                    self.watch = self.new_watch();
                    continue;
                }
                Step::Ended(end) => return Some(self.end_with(end).await),
                Step::Wait(until) => until,
            };
            tokio::select! {
                biased;
                // The loss is polled first. After a loss, other members may already act on the shards of this member.
                () = membership_lost(self.term.as_ref()) => return Some(self.end_with(End::Lost).await),
                answer = &mut self.call => self.group.handle_answer(self.clock.now(), answer),
                term = &mut self.joining => {
                    let Some(term) = term else {
                        return stopping.then_some(Ok(()));
                    };
                    // The clone does not delay the release of the Lease. The group drains all runs before the Lease is
                    // released.
                    let leadership = term.leadership().clone_uncounted();
                    self.term = Some((term, leadership));
                    if let Some(joined) = joined.take() {
                        // The send fails if the future of the join was dropped. The membership then ends too.
                        let _ = joined.send(self.member.to_string());
                    }
                }
                command = commands.recv() => match command {
                    Some(Command::Drained(shards)) => self.group.mark_drained(self.clock.now(), shards),
                    Some(Command::Confirm) => self.group.request_read(),
                    Some(Command::Stop) | None => {
                        stopping = true;
                        self.group.stop();
                    }
                },
                event = self.watch.next() => match event {
                    Some(Ok(event)) => self.group.handle_event(self.clock.now(), event),
                    Some(Err(error)) => {
                        if self.term.is_none() && let Some(error) = self.forbidden_verb(&error) {
                            return Some(Err(error));
                        }
                        tracing::warn!(group = self.config.name, %error, "the watch of the shard group failed");
                    }
                    None => self.watch = self.new_watch(),
                },
                () = self.clock.sleep_until(until) => {}
            }
        }
    }

    fn new_watch(&self) -> WatchEvents {
        watch_leases(self.client.clone(), &self.config.lease.namespace, &self.config.name)
    }

    fn member_elector(&self, group: String) -> Result<LeaderElector, MembershipError> {
        let labels = json!({ LABEL: self.config.name });
        let annotations = json!({ JOINED: group });
        let config = self.config.lease.clone().only_create(&self.member, labels, annotations);
        LeaderElector::with_clock(self.client.clone(), config, self.clock.clone())
            .map_err(MembershipError::Config)
    }

    fn forbidden_verb(&self, error: &watcher::Error) -> Option<MembershipError> {
        let (verb, error) = match error {
            watcher::Error::InitialListFailed(error) => ("list", error),
            watcher::Error::WatchStartFailed(error) => ("watch", error),
            _ => return None,
        };
        let kube::Error::Api(status) = error else { return None };
        (status.code == 403)
            .then(|| MembershipError::missing_permission(verb, &self.config.lease.namespace))
    }

    /// Updates the state that the held shards read, and sends the changes of shards to the user.
    fn publish_state(&mut self) {
        let count = self.config.count as usize;
        let held: Vec<_> = (0..count).map(|shard| self.group.acting_number(shard)).collect();
        self.show_held(held.iter().flatten().count());
        let confirmed = self.group.confirmed_at();
        let slots = self.group.group().into_iter().flat_map(|group| group.assignment.slots());
        let holders = slots.map(|slot| slot.holder.clone()).collect();
        let now = self.clock.now();
        // Most polls change nothing. They must not wake the tasks that wait for a change.
        self.outputs.view.send_if_modified(|view| view.update(held, holders, confirmed, now));
        while let Some(change) = self.group.next_change() {
            let number =
                |shards: Vec<usize>| shards.into_iter().map(|shard| shard as u32).collect();
            let change = match change {
                protocol::Change::Gained(gained) => {
                    self.report_gains(&gained);
                    let held =
                        gained.into_iter().filter_map(|gain| self.held_shard(&gain)).collect();
                    Change::Gained(held)
                }
                protocol::Change::Release(shards) => Change::Release(number(shards)),
                protocol::Change::Cancel(shards) => Change::Cancel(number(shards)),
                protocol::Change::Lost(shards) => Change::Lost(number(shards)),
                protocol::Change::Moved(moved) => {
                    moved.into_iter().for_each(|(_, gap)| self.count_gap(gap));
                    continue;
                }
            };
            // The send fails if the membership was dropped. In this case, this task is about to be aborted.
            let _ = self.outputs.changes.send(change);
        }
    }

    fn count_gap(&self, gap: Duration) {
        self.outputs.meters.unheld_seconds.inc_by(gap.as_secs_f64());
    }

    fn show_held(&self, shards: usize) {
        // A group has at most 1,024 shards, so the cast loses nothing.
        self.outputs.meters.held.set(shards as i64);
    }

    fn held_shard(&self, gain: &Gain) -> Option<HeldShard> {
        let (_, leadership) = self.term.as_ref()?;
        let uid = self.group.group()?.uid();
        Some(HeldShard {
            index: gain.shard as u32,
            token: Arc::new(FencingToken::new(uid, gain.number)),
            leadership: leadership.clone(),
            view: self.outputs.view.subscribe(),
            commands: self.outputs.commands.clone(),
        })
    }

    /// Counts the gained shards in the metrics. Publishes an Event for each dead member whose shards this process has
    /// taken over.
    fn report_gains(&self, gained: &[Gain]) {
        let mut taken: BTreeMap<&str, usize> = BTreeMap::new();
        for gain in gained {
            let reason = match &gain.from {
                Source::Member(_) => 0,
                Source::Dead(member, gap) => {
                    self.count_gap(*gap);
                    *taken.entry(member).or_default() += 1;
                    1
                }
                Source::Nobody => 2,
                Source::Itself => continue,
            };
            self.outputs.meters.moves[reason].inc();
        }
        let uid = self.group.group().map(|group| group.uid()).unwrap_or_default();
        for (member, count) in taken {
            tracing::info!(group = self.config.name, member, count, "took shards over");
            if let Some(events) = &self.events {
                let note = format!("{} took over {count} shards of {member}", self.member);
                // The handle of the task is dropped, but the task continues to publish the Event.
                drop(events.publish_note("ShardTakeover", "took shards over", note, uid));
            }
        }
    }

    async fn end_with(&mut self, end: End) -> Result<(), MembershipError> {
        let group = &self.config.name;
        // This call comes first. While the next steps run, no shard may appear as held.
        self.hold_nothing();
        match end {
            End::Left => {
                self.leave_group().await;
                Ok(())
            }
            End::Lost => Err(MembershipError::Lost(match &self.term {
                Some((_, leadership)) => {
                    leadership.check().err().unwrap_or(LeadershipLost::Abandoned)
                }
                None => LeadershipLost::Abandoned,
            })),
            End::Deleted => Err(MembershipError::Deleted(group.clone())),
            End::NoNamespace => Err(MembershipError::no_namespace(&self.config.lease.namespace)),
            End::Mismatch(stored) => {
                Err(MembershipError::other_shards(group, &stored, &self.config.layout()))
            }
            End::Unreadable(unreadable) => Err(MembershipError::not_a_group(group, unreadable)),
        }
    }

    fn hold_nothing(&self) {
        self.outputs.view.send_modify(|view| view.held.clear());
        self.show_held(0);
    }

    /// Releases and deletes the member Lease. If the release fails, the Lease expires, and another member deletes it.
    async fn leave_group(&mut self) {
        let Some((term, leadership)) = self.term.take() else { return };
        let uid = leadership.fencing_token().uid().to_owned();
        // The release comes before the deletion. If the deletion fails, other members can still take over immediately.
        match term.release().await {
            Ok(()) | Err(LeadershipLost::Undrained(_)) => {}
            Err(error) => {
                tracing::warn!(member = &*self.member, %error, "the member Lease was not released");
            }
        }
        // The version of the Lease is not a precondition, because the release has changed it. The uid suffices, because
        // no other Lease ever has this name.
        let delete = Call::Delete { name: self.member.to_string(), uid, version: 0 };
        let limit = self.clock.now() + self.config.lease.request_limit();
        tokio::select! {
            biased;
            _ = self.requests.make_call(delete) => {}
            () = self.clock.sleep_until(limit) => {}
        }
    }
}

/// If the membership is dropped, this process must no longer appear as the holder of its shards.
impl Drop for Driver<'_> {
    fn drop(&mut self) {
        self.hold_nothing();
    }
}

async fn membership_lost(term: Option<&(Term, Leadership)>) {
    match term {
        Some((_, leadership)) => drop(leadership.lost().await),
        None => pending().await,
    }
}
