//! `requeue watch`: a command per Kubernetes object that changes.

mod access;
mod flags;
mod follow;
mod objects;
mod resource;

use std::sync::Arc;
use std::time::Duration;

use kube::api::ListParams;
use kube::runtime::watcher;
use tokio::sync::oneshot;

pub(crate) use self::flags::Flags;

use self::access::Access;
use self::flags::On;
use self::follow::Follower;
use self::objects::Objects;
use crate::args::{self, AtEof, Common, Stdin};
use crate::command::escaped;
use crate::config::{Config, Own};
use crate::exit::{Ended, Refusal};
use crate::given::Things;
use crate::input::{Format, Kind};
use crate::run::{self, Files, Parts};
use crate::values::Retries;

/// Runs until it is told to end.
pub(crate) fn run(flags: Flags) -> Result<Ended, Refusal> {
    check(&flags)?;
    let config = config(flags.common)?;
    let files = Files::open(&config, None)?;
    run::block_on(async {
        let access = Access::new(&flags.access).await?;
        let resource = access.find(&flags.resource)?;
        let params = ListParams {
            label_selector: flags.selector.clone(),
            field_selector: flags.field_selector.clone(),
            ..ListParams::default()
        };
        access.try_list(&resource, &params).await?;

        let objects = Arc::new(Objects::new(&flags.on));
        let things = Some(Arc::clone(&objects) as Arc<dyn Things>);
        let parts = Parts { config, files, stopper: None, things };
        run::go(parts, |runner| {
            if let Some(period) = flags.resync.filter(|period| !period.is_zero()) {
                let (runner, objects) = (Arc::clone(runner), Arc::clone(&objects));
                tokio::spawn(follow::resync(runner, objects, period));
            }
            let follower = Follower::new(runner, objects, &resource, flags.initial, flags.changed);
            let config = watcher::Config {
                label_selector: flags.selector,
                field_selector: flags.field_selector,
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
    if flags.resync.is_some() && !flags.on.is_empty() && !flags.on.contains(&On::Apply) {
        return Err(Refusal::usage("--resync: only with --on apply"));
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
