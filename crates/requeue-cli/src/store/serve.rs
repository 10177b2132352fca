//! `requeue serve`: serves the dashboards and the metrics of the queues in a store. This process runs no commands.

use requeue_http::Builder;
use requeue_store::{Key, OpenOptions};

use super::{block_on, store_refusal};
use crate::args::store::{Place, ServeFlags};
use crate::exit::{Ended, Refusal};
use crate::output::{Output, log};
use crate::process::signals;
use crate::serve::{Listener, Metrics, all_queues_site, store_site};
use crate::traces::trace_store;

/// `requeue serve`.
pub(crate) fn serve(flags: &ServeFlags) -> Result<Ended, Refusal> {
    block_on(async {
        let listener = Listener::bind(&flags.page.settings_at(flags.address.clone())?).await?;
        let (title, site) = open_site(flags, &listener.metrics).await?;
        let output = Output::start().map_err(|error| Refusal::failure(error.to_string()))?;
        log::show_on(&output);
        let page = listener.serve(title, site, &output).await?;
        let signal = signals::wait_for_interrupt().await;
        // The shutdown tells the connected browsers that the process exits.
        page.shutdown().await;
        output.flush().await;
        Ok(Ended::Signal(signal))
    })
}

/// Returns the title and the site of the dashboard. The site shows the queue that the flags name, or all queues of the
/// store if they name none.
async fn open_site(
    flags: &ServeFlags,
    metrics: &Metrics,
) -> Result<(String, Builder<Key>), Refusal> {
    let ServeFlags { store, queue, retries, .. } = flags;
    let most = retries.0.map(|retries| retries.saturating_add(1));
    let limit_failures = move |opening: OpenOptions| match most {
        Some(most) => opening.max_failures(most),
        None => opening,
    };
    if let Some(queue) = queue {
        let place = Place { store: store.clone(), queue: Some(queue.clone()) };
        let open = |opening: OpenOptions| limit_failures(trace_store(opening.metrics(metrics)));
        let opened = place.to_find(open, "").await?;
        return Ok((format!("requeue: {queue}"), store_site(&opened)));
    }
    let store = store.to_look_at().await?;
    // The request for the queues fails if the store has no tables. The program then exits with this error, before a
    // client sees it.
    store.queues().await.map_err(store_refusal)?;
    Ok(("requeue: all queues".to_owned(), all_queues_site(store, metrics.clone(), limit_failures)))
}
