//! `/api/v1/events`: the samples so far, then a summary each second, then the end.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use axum::response::sse::{Event, Sse};
use futures_util::Stream;
use futures_util::stream::unfold;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;

use crate::samples::columns;
use crate::state::SiteState;

/// The next event of a stream.
enum Next {
    History,
    /// The first tick, which is sent immediately.
    First(watch::Receiver<Arc<str>>),
    Tick(watch::Receiver<Arc<str>>),
    Nothing,
}

#[derive(Serialize)]
struct History {
    started: f64,
    samples: BTreeMap<String, Vec<Value>>,
}

/// Returns the stream of a client; `None` if there are too many streams.
pub(crate) fn event_stream(
    site: Arc<SiteState>,
) -> Option<Sse<impl Stream<Item = Result<Event, Infallible>>>> {
    let stream = Arc::clone(&site.streams).try_acquire_owned().ok()?;
    Some(Sse::new(unfold((site, stream, Next::History), async |(site, stream, next)| {
        let (event, next) = site.next_event(next).await?;
        Some((Ok(event), (site, stream, next)))
    })))
}

impl SiteState {
    async fn next_event(&self, next: Next) -> Option<(Event, Next)> {
        match next {
            Next::History => {
                // Subscribing first misses no sample; at worst, one is sent twice.
                let ticks = self.ticks.subscribe();
                let samples = self.samples.all();
                let history = History { started: self.started, samples: columns(&samples) };
                let data = serde_json::to_string(&history).unwrap_or_default();
                Some((Event::default().event("history").data(data), Next::First(ticks)))
            }
            Next::First(ticks) => {
                let event = Event::default().event("tick").data(self.summary_json());
                Some((event, Next::Tick(ticks)))
            }
            Next::Tick(mut ticks) => {
                let mut ended = self.ended.subscribe();
                tokio::select! {
                    biased;
                    Ok(_) = ended.wait_for(|&ended| ended) => {
                        let event = Event::default().event("ended").data(self.summary_json());
                        Some((event, Next::Nothing))
                    }
                    Ok(()) = ticks.changed() => {
                        let data = Arc::clone(&*ticks.borrow_and_update());
                        Some((Event::default().event("tick").data(data), Next::Tick(ticks)))
                    }
                    else => None,
                }
            }
            Next::Nothing => None,
        }
    }
}
