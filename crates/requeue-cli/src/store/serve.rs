//! `requeue serve`: the dashboard and the metrics of a queue in a store, without a worker.

use super::block_on;
use crate::args::store::ServeFlags;
use crate::exit::{Ended, Refusal};
use crate::output::{Output, log};
use crate::process::signals;
use crate::serve::{Listener, store_site};

/// `requeue serve`.
pub(crate) fn serve(flags: &ServeFlags) -> Result<Ended, Refusal> {
    block_on(async {
        let listener = Listener::bind(&flags.page.settings_at(flags.address.clone())?).await?;
        let metrics = &listener.metrics;
        let queue = flags.place.to_find(|opening| opening.metrics(metrics), "").await?;
        let output = Output::start().map_err(|error| Refusal::failure(error.to_string()))?;
        log::show_on(&output);
        let title = format!("requeue: {}", flags.place.queue);
        let page = listener.serve(title, store_site(&queue), &output).await?;
        let signal = signals::wait_for_interrupt().await;
        // Viewers learn of the end before the process exits.
        page.shutdown().await;
        output.flush().await;
        Ok(Ended::Signal(signal))
    })
}
