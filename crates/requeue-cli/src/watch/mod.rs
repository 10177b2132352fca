//! `requeue watch`: a command per Kubernetes object that changes.

mod access;
mod finalizer;
mod flags;
mod follow;
mod names;
mod objects;
mod resource;
mod watched;

use std::sync::Arc;
use std::time::Duration;

use kube::api::ListParams;
use kube::runtime::watcher;
use tokio::sync::oneshot;

pub(crate) use self::flags::Flags;

use self::access::Access;
use self::finalizer::Finalizer;
use self::flags::On;
use self::follow::Follower;
use self::objects::Objects;
use self::watched::Watched;
use crate::args::{self, AtEof, Common, Stdin};
use crate::command::escaped;
use crate::config::{Config, Own};
use crate::exit::{Ended, Refusal};
use crate::input::{Format, Kind};
use crate::run::{self, Files, Parts};
use crate::values::Retries;

/// Runs until it is told to end.
pub(crate) fn run(flags: Flags) -> Result<Ended, Refusal> {
    check(&flags)?;
    let Flags { resource, selector, field_selector, access, on, initial, changed, .. } = flags;
    let Flags { resync, finalizer, common, .. } = flags;
    let config = config(common)?;
    let files = Files::open(&config, None)?;
    run::block_on(async {
        let access = Arc::new(Access::new(&access).await?);
        let resource = access.find(&resource)?;
        let params = ListParams {
            label_selector: selector.clone(),
            field_selector: field_selector.clone(),
            ..ListParams::default()
        };
        access.try_list(&resource, &params).await?;

        let objects = Arc::new(Objects::new(&on, !config.dry_run));
        let keeper = finalizer.clone().filter(|_| !config.dry_run);
        let keeper = keeper.map(|name| Finalizer::new(name, &access, &resource));
        let watched = Watched { objects: Arc::clone(&objects), finalizer: keeper };
        let parts = Parts { config, files, stopper: None, things: Some(Arc::new(watched)) };
        run::go(parts, |runner| {
            if let Some(period) = resync.filter(|period| !period.is_zero()) {
                let (runner, objects) = (Arc::clone(runner), Arc::clone(&objects));
                tokio::spawn(follow::resync(runner, objects, period));
            }
            let follower = Follower::new(runner, objects, &resource, initial, changed, finalizer);
            let config = watcher::Config {
                label_selector: selector,
                field_selector,
                ..watcher::Config::default()
            };
            tokio::spawn(follower.follow(access.api(&resource), config));
            // Nothing is left of an input, as there is none.
            Ok(oneshot::channel().1)
        })
        .await
    })
}

fn check(flags: &Flags) -> Result<(), Refusal> {
    if let Some(wrong) = flags.changed.iter().find(|pointer| !pointer.starts_with('/')) {
        return Err(Refusal::usage(format!(
            "--changed {}: a JSON pointer begins with a slash, as in /spec/replicas",
            escaped(wrong.as_bytes())
        )));
    }
    let wants = |on| flags.on.is_empty() || flags.on.contains(&on);
    if flags.resync.is_some() && !wants(On::Apply) {
        return Err(Refusal::usage("--resync: only with --on apply"));
    }
    if flags.finalizer.is_some() && !wants(On::Delete) {
        // What has it could never be deleted.
        return Err(Refusal::usage("--finalizer: only with --on delete"));
    }
    Ok(())
}

/// What a controller wants, where nothing else is asked for.
fn config(mut common: Common) -> Result<Config, Refusal> {
    common.retries.get_or_insert(Retries(None));
    common.early_add.get_or_insert(args::EarlyAdd::Hold);
    common.min_interval.get_or_insert(Duration::from_secs(1));
    if common.order == Some(args::Order::Fair) || common.group_jobs.is_some() {
        // The namespace. The cluster's own have none, and are one group.
        common.group_by.get_or_insert_with(|| "^([^/]*)/".to_owned());
    }
    let own = Own {
        name: "watch",
        has_priorities: true,
        // For what is written: nothing is read.
        format: Format { kind: Kind::Lines, delimiter: b'\n', max_record: usize::MAX },
        // They are held here anyway.
        max_keys: usize::MAX,
        stdin: Stdin::None,
        at_eof: AtEof::Finish,
        unfinished: None,
    };
    Config::of(common, own)
}
