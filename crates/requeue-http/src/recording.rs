//! Answers `/api/v1/recording` with the recorded events of a queue in memory, as text.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{RawQuery, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures_util::stream::unfold;

use crate::params::{Params, Problem};
use crate::state::SiteState;

/// The maximum number of bytes of each part of the body.
const PART: usize = 64 << 10;

/// Returns the recording as the body of a response. While the text exists, it needs
/// about three times the memory of the recorder. The number of these responses is
/// therefore limited.
pub(crate) async fn export_recording(
    State(site): State<Arc<SiteState>>,
    RawQuery(query): RawQuery,
) -> Result<Response, Problem> {
    let params = Params::parse(query.as_deref(), &["key", "key_base64", "hash_keys"])?;
    let key = params.some_key()?;
    let hash_keys = params.flag("hash_keys")?;
    let permit = site.begin_recording().ok_or_else(|| Problem::busy("too many recordings"))?;
    // The conversion of many keys to text takes long, so a separate thread does it. The
    // closure owns the permit, because it continues if the client disconnects.
    let text = tokio::task::spawn_blocking(move || {
        let key = key.as_ref().map(|(name, key)| (*name, &**key));
        let recording = site.source.read_recording(key, hash_keys)?;
        Ok((recording.to_string(), permit))
    });
    let (text, permit) = text.await.unwrap_or_else(|_| {
        // The task panicked in the user's function that converts keys to text.
        Err(Problem::new(StatusCode::INTERNAL_SERVER_ERROR, "a key could not be named"))
    })?;
    let length = text.len();
    // The permit is part of the state of the stream, so it is returned when the stream
    // is dropped.
    let parts = unfold((Bytes::from(text), permit), async |(mut rest, permit)| {
        let part = rest.split_to(rest.len().min(PART));
        (!part.is_empty()).then_some((Ok::<_, std::convert::Infallible>(part), (rest, permit)))
    });
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8")),
        (header::CONTENT_LENGTH, HeaderValue::from(length)),
    ];
    Ok((headers, Body::from_stream(parts)).into_response())
}
