//! `requeue watch`: runs a command for each Kubernetes object that changes.

mod access;
mod decoded;
mod enqueue;
mod errors;
mod events;
mod finalizer;
mod hooks;
mod leader;
mod objects;
mod related;
mod resource;
mod rights;
mod snapshots;

use std::sync::Arc;
use std::time::Duration;

use kube::api::ListParams;
use tokio::sync::oneshot;

use self::access::Access;
use self::enqueue::Enqueuer;
use self::events::{Sights, type_meta};
use self::finalizer::Finalizer;
use self::hooks::ObjectHooks;
use self::leader::Candidate;
use self::objects::Objects;
use self::related::Related;
use self::snapshots::Snapshots;
use crate::args::config::{Config, Subcommand};
use crate::args::run::{self as args, Alone, Common};
use crate::args::values::Retries;
use crate::args::watch::{Flags, On};
use crate::exit::{Ended, Refusal, complain};
use crate::key::escaped;
use crate::runner::Files;
use crate::runner::launch::{self, Parts};
use crate::serve::Listener;

/// Runs `requeue watch`.
pub(crate) fn run(flags: Flags) -> Result<Ended, Refusal> {
    check_flags(&flags)?;
    let Flags { resource, selector, field_selector, access, on, initial, changed, .. } = flags;
    let Flags { resync, finalizer, owns, all_on, snapshot, leader, common, alone, .. } = flags;
    let config = run_config(common, alone)?;
    let files = Files::open_files(&config, None)?;
    launch::block_on(async {
        let access = Arc::new(Access::new(&access).await?);
        let params =
            ListParams { label_selector: selector, field_selector, ..ListParams::default() };
        let resource = access.find_listable(&resource, &params).await?;
        if let Some(missing) = access.missing_namespace(&resource).await {
            complain(&format!(
                "no such namespace: {missing}; nothing runs before it is created. -n NAME selects \
                 another namespace, -A all of them"
            ));
        }
        let related = Related::find_resources(&access, &owns, &all_on).await?;
        let snapshots = Snapshots::find(&access, snapshot).await?;
        // With --dry-run, this process takes no part in the election. It must not prevent another replica from
        // leading.
        let candidate = Candidate::new(&access, leader).await?.filter(|_| !config.commands.dry_run);

        let objects = Arc::new(Objects::new(&on, !config.commands.dry_run));
        // A dry run adds no finalizers.
        let keeper = finalizer.clone().filter(|_| !config.commands.dry_run);
        if keeper.is_some() {
            access.review_right("patch", &resource, &ListParams::default()).await?;
        }
        let hooks = ObjectHooks {
            objects: Arc::clone(&objects),
            finalizer: keeper.map(|name| Finalizer::new(name, &access, &resource)),
            snapshots: snapshots.clone(),
            leading: candidate.as_ref().map(|candidate| candidate.elector.status()),
        };
        let (is_over, over) = oneshot::channel();
        let mut leading = None;
        // The socket is opened after the checks. If a check fails, no socket is opened.
        let listener = Listener::bind_if_asked(config.serve.as_ref()).await?;
        let hooks = Some(Arc::new(hooks) as _);
        let parts = Parts { hooks, ..Parts::new(config, files, listener) };
        let ended = launch::run_parts(parts, |runner| {
            let enqueuer = Arc::new(Enqueuer::new(runner, &objects, initial, candidate.is_some()));
            related.follow_all(&access, &enqueuer, &resource);
            snapshots.iter().for_each(|snapshots| snapshots.follow(&access, runner));
            if let Some(period) = resync.filter(|period| !period.is_zero()) {
                tokio::spawn(Arc::clone(&enqueuer).resync(period));
            }
            leading = candidate.map(|candidate| {
                tokio::spawn(candidate.run_election(
                    Arc::clone(runner),
                    Arc::clone(&enqueuer),
                    over,
                ))
            });
            let source = access.event_source(&resource, &params);
            let sights =
                Sights { objects, types: type_meta(&resource), pointers: changed, finalizer };
            let snapshots = snapshots.clone();
            tokio::spawn(async move {
                // The snapshots must be complete before the first command runs.
                if let Some(snapshots) = snapshots {
                    snapshots.listed().await;
                }
                events::follow_objects(source, enqueuer, sights).await;
            });
            // `requeue watch` reads no input, so the sender is dropped, and the receiver is ready immediately.
            Ok(oneshot::channel().1)
        })
        .await;
        // No command is left that could read the snapshots.
        snapshots.iter().for_each(|snapshots| snapshots.clear());
        // The last command has exited. The drop ends the term, so that another replica can lead.
        drop(is_over);
        if let Some(leading) = leading {
            // If the task panicked, the panic was already printed, so its result is ignored.
            let _ = leading.await;
        }
        ended
    })
}

fn check_flags(flags: &Flags) -> Result<(), Refusal> {
    if let Some(wrong) = flags.changed.iter().find(|pointer| !pointer.starts_with('/')) {
        return Err(Refusal::usage(format!(
            "--changed {}: not a JSON pointer; it begins with a slash, as in /spec/replicas",
            escaped(wrong.as_bytes())
        )));
    }
    let wants = |on| flags.on.is_empty() || flags.on.contains(&on);
    let given = [
        ("--resync", flags.resync.is_some()),
        ("--owns", !flags.owns.is_empty()),
        ("--all-on", !flags.all_on.is_empty()),
    ];
    if let Some((flag, _)) = given.iter().find(|(_, is_given)| *is_given && !wants(On::Apply)) {
        return Err(Refusal::usage(format!("{flag} requires --on apply")));
    }
    let mut names: Vec<_> = flags.snapshot.iter().map(|(name, _)| name).collect();
    names.sort_unstable();
    if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
        let name = twice[0];
        return Err(Refusal::usage(format!("--snapshot {name}=...: the name is used twice")));
    }
    if flags.finalizer.is_some() && !wants(On::Delete) {
        // Only the run for the deletion removes the finalizer. Without such runs, no object with the finalizer could
        // ever be deleted.
        return Err(Refusal::usage("--finalizer requires --on delete"));
    }
    Ok(())
}

/// Returns the configuration. Flags that are missing get the defaults of a controller.
fn run_config(mut common: Common, mut alone: Alone) -> Result<Config, Refusal> {
    if !common.fail_fast {
        common.retries.get_or_insert(Retries(None));
    }
    if alone.pace.is_none() {
        alone.min_interval.get_or_insert(Duration::from_secs(1));
    }
    if alone.order == Some(args::Order::Fair) || alone.group_limit.is_some() {
        // The pattern matches the namespace. Objects of cluster scope have no namespace, and form one group.
        alone.group_by.get_or_insert_with(|| "^([^/]*)/".to_owned());
    }
    let own = Subcommand { has_priorities: true, ..Subcommand::without_input("watch") };
    Config::from_flags(common, alone, own)
}
