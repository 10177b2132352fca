//! The subcommands that work on a queue in a store, or create a queue: `run --store`, `work`, `store init`.

use tokio::sync::oneshot;

use super::adder::Reading;
use super::reaching::open_patiently;
use super::{QueueSettings, block_on, connect_store, re_add, take_rate};
use crate::args::config::{Config, Subcommand};
use crate::args::groups::GroupFlags;
use crate::args::run::{Alone, Flags, Through};
use crate::args::store::{Place, StoreCommand, StoreUrl, WorkFlags};
use crate::exit::{Ended, Exit, Refusal};
use crate::input::source::Input;
use crate::output::files::identity;
use crate::output::log;
use crate::runner::Files;
use crate::runner::launch::{self, Parts};
use crate::runner::reader;
use crate::serve::Listener;

/// `requeue run --store`: adds the keys of the input to a store, and works on its queue.
pub(crate) fn run(mut flags: Flags) -> Result<Ended, Refusal> {
    let Through { store, queue, lease, wait, passwords } = flags.through.clone();
    let place = Place { store: StoreUrl { store, wait }, queue: Some(queue) };
    let groups = GroupFlags::take_from(&mut flags.alone).worker_settings()?;
    let (re_add, rate) = (re_add(flags.common.re_add)?, take_rate(&mut flags.common)?);
    let settings = QueueSettings { re_add, groups, rate, ..QueueSettings::default() };
    let (source, mut config) = Config::from_run_flags(flags)?;
    // The password of this process is hidden from commands.
    config.commands.template.hidden = passwords.hidden_variables(place.store.required_url()?);
    // The input is opened first, so that `open_files` can refuse an output file that is the input.
    let (input, stopper) = Input::open(&source)?;
    let files = Files::open_files(&config, identity(&input.metadata))?;
    block_on(async {
        let listener = Listener::bind_if_asked(config.serve.as_ref()).await?;
        let metrics = listener.as_ref().map(|listener| &listener.metrics);
        // This subcommand also adds keys, and therefore creates the queue.
        let (queue, expired) =
            place.to_work_on(true, lease, &settings, None, &config, metrics).await?;
        let remote = Some((queue.clone(), expired));
        let parts = Parts { stopper: Some(stopper), remote, ..Parts::new(config, files, listener) };
        launch::run_parts(parts, |runner| {
            log::show_on(&runner.output);
            let reading = Reading::new(runner, queue, settings.groups.pattern());
            reader::spawn_reader(runner, input, reading)
        })
        .await
    })
}

/// `requeue work`.
pub(crate) fn work(flags: WorkFlags) -> Result<Ended, Refusal> {
    let WorkFlags { place, create, lease, worker, mut common, parked_add, .. } = flags;
    let WorkFlags { groups, stdin, dashboard, until_empty, passwords, .. } = flags;
    let (re_add, groups) = (re_add(common.re_add)?, groups.worker_settings()?);
    let rate = take_rate(&mut common)?;
    let settings = QueueSettings { re_add, parked_add, groups, rate };
    let own = Subcommand { stdin, ..Subcommand::without_input("work") };
    let mut config = Config::from_flags(common, Alone { dashboard, ..Alone::default() }, own)?;
    // The password of this process is hidden from commands.
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
        let parts = Parts { remote: Some((queue, expired)), ..Parts::new(config, files, listener) };
        launch::run_parts(parts, |runner| {
            log::show_on(&runner.output);
            // The run has no reader.
            Ok(oneshot::channel().1)
        })
        .await
    })
}

/// `requeue store init`.
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
