//! The subcommands that work on a queue in a store, or create one: `run --store`, `work` and `store init`.

use std::time::Duration;

use tokio::sync::oneshot;

use super::adder::Reading;
use super::reaching::open_patiently;
use super::{QueueSettings, block_on, connect_store, re_add, take_rate};
use crate::args::config::{Config, Subcommand};
use crate::args::groups::GroupFlags;
use crate::args::run::{Alone, Flags, Through};
use crate::args::store::{Place, ServerFlags, StoreCommand, StoreUrl, WorkFlags};
use crate::args::values::ServerUrl;
use crate::client::claims::{ServerQueue, WorkerSettings};
use crate::exit::{Ended, Exit, Refusal};
use crate::input::source::Input;
use crate::output::files::identity;
use crate::output::log;
use crate::runner::Files;
use crate::runner::launch::{self, Parts};
use crate::runner::reader;
use crate::runner::remote::Remote;
use crate::serve::Listener;

/// `requeue run --store`: adds the keys of the input to a store, and works on the queue in that store.
pub(crate) fn run(mut flags: Flags) -> Result<Ended, Refusal> {
    let Through { store, queue, lease, wait, passwords } = flags.through.clone();
    let place = Place { store: StoreUrl { store, wait }, queue: Some(queue) };
    let groups = GroupFlags::take_from(&mut flags.alone).worker_settings()?;
    let (re_add, rate) = (re_add(flags.common.re_add)?, take_rate(&mut flags.common)?);
    let settings = QueueSettings { re_add, groups, rate, ..QueueSettings::default() };
    let (source, mut config) = Config::from_run_flags(flags)?;
    // The password of this process is removed from the environment of its commands.
    config.commands.template.hidden = passwords.hidden_variables(place.store.required_url()?);
    // The input is opened first, so that `open_files` can refuse an output file that is also the input.
    let (input, stopper) = Input::open(&source)?;
    let files = Files::open_files(&config, identity(&input.metadata))?;
    block_on(async {
        let listener = Listener::bind_if_asked(config.serve.as_ref()).await?;
        let metrics = listener.as_ref().map(|listener| &listener.metrics);
        // This subcommand also adds keys, so it creates a missing queue.
        let (queue, expired) =
            place.to_work_on(true, lease, &settings, None, &config, metrics).await?;
        let (remote, expired) = (Some(Remote::Store(queue.clone())), Some(expired));
        let stopper = Some(stopper);
        let parts = Parts { stopper, remote, expired, ..Parts::new(config, files, listener) };
        launch::run_parts(parts, |runner| {
            log::show_on(&runner.output);
            let reading = Reading::new(runner, queue, settings.groups.pattern());
            reader::spawn_reader(runner, input, reading)
        })
        .await
    })
}

/// `requeue work`: runs a command for each key of a queue in a store or at a server.
pub(crate) fn work(mut flags: WorkFlags) -> Result<Ended, Refusal> {
    if let Some(url) = flags.server.take() {
        return work_over_http(url, flags);
    }
    let WorkFlags { place, create, lease, worker, mut common, parked_add, .. } = flags;
    let WorkFlags { groups, stdin, dashboard, until_empty, passwords, .. } = flags;
    let (re_add, groups) = (re_add(common.re_add)?, groups.worker_settings()?);
    let rate = take_rate(&mut common)?;
    let settings = QueueSettings { re_add, parked_add, groups, rate };
    let own = Subcommand { stdin, ..Subcommand::without_input("work") };
    let mut config = Config::from_flags(common, Alone { dashboard, ..Alone::default() }, own)?;
    // The password of this process is removed from the environment of its commands.
    config.commands.template.hidden = passwords.hidden_variables(place.store.required_url()?);
    let files = Files::open_files(&config, None)?;
    block_on(async {
        let listener = Listener::bind_if_asked(config.serve.as_ref()).await?;
        let metrics = listener.as_ref().map(|listener| &listener.metrics);
        let queue = place.to_work_on(create, lease, &settings, worker, &config, metrics);
        let (queue, expired) = queue.await?;
        if until_empty {
            queue.shut_down_when_idle();
        }
        let (remote, expired) = (Some(Remote::Store(queue)), Some(expired));
        let parts = Parts { remote, expired, ..Parts::new(config, files, listener) };
        work_on(parts).await
    })
}

/// `requeue work --server`: runs a command for each key that a server delivers.
fn work_over_http(url: ServerUrl, flags: WorkFlags) -> Result<Ended, Refusal> {
    refuse_settings_of_server(&flags)?;
    let WorkFlags { place, lease, worker, common, stdin, dashboard, until_empty, .. } = flags;
    let server_ca = flags.server_ca;
    if !(Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&lease) {
        return Err(Refusal::usage("--lease: a server grants leases of 1s to 1h"));
    }
    let token_file = dashboard.token_file();
    let flags_of_server = ServerFlags { server: None, token_file, server_ca };
    let own = Subcommand { stdin, ..Subcommand::without_input("work") };
    let mut config = Config::from_flags(common, Alone::default(), own)?;
    // The server limits the failures of a key, so this process does not.
    config.failures.retries = None;
    config.commands.template.hidden = flags.passwords.hidden_variables("");
    let files = Files::open_files(&config, None)?;
    let name = worker.unwrap_or_else(requeue_store::this_process);
    let settings = WorkerSettings { name, lease, until_empty };
    block_on(async {
        let queue = open_patiently(place.store.wait, async || {
            // Another process may listen at the address now, so each attempt looks up the queue again.
            let server = flags_of_server.server_at(&url, place.queue.as_deref())?;
            server.check_token()?;
            Ok(ServerQueue::open(server, settings.clone()).await?)
        });
        let remote = Some(Remote::Server(queue.await?));
        work_on(Parts { remote, ..Parts::new(config, files, None) }).await
    })
}

/// Runs commands for the keys of the queue in `parts`, until no key is left or the program is stopped.
async fn work_on(parts: Parts) -> Result<Ended, Refusal> {
    launch::run_parts(parts, |runner| {
        log::show_on(&runner.output);
        // A worker reads no input, so the sender is dropped, and the receiver is ready immediately.
        Ok(oneshot::channel().1)
    })
    .await
}

/// Refuses the flags whose values the server decides.
fn refuse_settings_of_server(flags: &WorkFlags) -> Result<(), Refusal> {
    let WorkFlags { common, groups, .. } = flags;
    let at_serve = "the server limits the failures of a key; pass --retries to `requeue serve`";
    let backoff = "the server computes the backoff of its queue; omit the flag";
    let fixed = "it is a setting of the queue at the server, which its first add or worker fixes; omit the flag";
    let rate =
        "the rate is a setting of the queue at the server; use `requeue queues rate --server URL`";
    let page = "the server has the dashboard; open its address, or omit the flag";
    let refused = [
        ("--create", flags.create, "the queue exists at the server; omit the flag"),
        ("--retries", common.retries.is_some(), at_serve),
        ("--fail-fast", common.fail_fast, "use --halt now,fail=1 and --retries of `requeue serve`"),
        ("--base-delay", common.base_delay.is_some(), backoff),
        ("--max-delay", common.max_delay.is_some(), backoff),
        ("--re-add", common.re_add.is_some(), fixed),
        ("--parked-add", flags.parked_add.is_some(), fixed),
        ("--group-by", groups.group_by.is_some(), fixed),
        ("--group-limit", groups.group_limit.is_some(), fixed),
        ("--order", groups.order.is_some(), fixed),
        ("--rate", common.rate.is_some(), rate),
        ("--burst", common.burst.is_some(), rate),
        ("--serve", flags.dashboard.is_asked_for(), page),
    ];
    match refused.iter().find(|(_, is_given, _)| *is_given) {
        Some((flag, _, why)) => Err(Refusal::usage(format!("{flag} with --server: {why}"))),
        None => Ok(()),
    }
}

/// `requeue store init`: creates the tables of a store, and the queues that the flags name.
pub(crate) fn init_store(command: StoreCommand) -> Result<Ended, Refusal> {
    let StoreCommand::Init { store, queue: queues, groups } = command;
    let url = store.required_url()?;
    let groups = groups.settings(false)?;
    block_on(async {
        open_patiently(store.wait, async || {
            let opened = connect_store(url).await?;
            opened.migrate().await?;
            for queue in &queues {
                groups.apply_to(opened.queue(queue)).open().await?;
            }
            Ok(())
        })
        .await?;
        Ok(Ended::Exit(Exit::Done))
    })
}
