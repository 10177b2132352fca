//! The trace contexts of adds, and the text format in which stores keep them.

use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use opentelemetry::Context;
use opentelemetry::trace::{
    SpanContext, SpanId, TraceContextExt as _, TraceFlags, TraceId, TraceState,
};

use super::Cause;

/// The maximum number of further adds of a run whose contexts are stored, in addition to the first
/// add.
pub(super) const MAX_LINKS: usize = 8;
/// The maximum length of a tracestate, in bytes. A longer tracestate is dropped.
const MAX_STATE: usize = 512;
const DELAY: &str = "d";
const DEBOUNCE: &str = "b";

/// The trace context of an add.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Origin {
    pub(super) span: SpanContext,
    /// The time of the add.
    pub(super) at: SystemTime,
    /// The cause of the wait until the key was ready, or `None` if the key was ready immediately.
    pub(super) cause: Option<Cause>,
}

impl Origin {
    /// Returns the current context. Returns `None` if it has no span.
    pub(crate) fn current() -> Option<Self> {
        let span = Context::map_current(|context| {
            context.has_active_span().then(|| context.span().span_context().clone())
        });
        let span = span.filter(SpanContext::is_valid)?;
        Some(Self { span, at: SystemTime::now(), cause: None })
    }

    pub(crate) fn with_cause(self, cause: Option<Cause>) -> Self {
        Self { cause, ..self }
    }
}

/// Formats the value as `MICROSECONDS[CAUSE] TRACEPARENT[ TRACESTATE]`. `CAUSE` is one letter.
impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let at = self.at.duration_since(UNIX_EPOCH).unwrap_or_default();
        let cause = match self.cause {
            Some(Cause::Delay) => DELAY,
            Some(Cause::Debounce) => DEBOUNCE,
            _ => "",
        };
        write!(f, "{}{cause} {}", at.as_micros(), traceparent(&self.span))?;
        match self.span.trace_state().header() {
            // A longer tracestate is not written, because the reader would drop it.
            state if state.is_empty() || state.len() > MAX_STATE => Ok(()),
            state => write!(f, " {state}"),
        }
    }
}

/// The contexts of the adds that a run serves, in the order of the adds.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Origins(Vec<Origin>);

impl Origins {
    /// Creates a value from the first contexts of `all`. Returns `None` if `all` is empty.
    pub(super) fn new(mut all: Vec<Origin>) -> Option<Self> {
        all.truncate(1 + MAX_LINKS);
        (!all.is_empty()).then_some(Self(all))
    }

    pub(super) fn first(&self) -> &Origin {
        &self.0[0]
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &SpanContext> {
        self.0[1..].iter().map(|origin| &origin.span)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Origin> {
        self.0.iter()
    }

    /// Reads one context from each line. Invalid lines are ignored, because another program may
    /// have written the text.
    pub(super) fn parse(text: &str) -> Option<Self> {
        Self::new(text.lines().filter_map(read_origin).take(1 + MAX_LINKS).collect())
    }
}

fn read_origin(line: &str) -> Option<Origin> {
    let mut parts = line.splitn(3, ' ');
    let time = parts.next()?;
    let (time, cause) = match (time.strip_suffix(DELAY), time.strip_suffix(DEBOUNCE)) {
        (Some(time), _) => (time, Some(Cause::Delay)),
        (_, Some(time)) => (time, Some(Cause::Debounce)),
        (None, None) => (time, None),
    };
    let at = UNIX_EPOCH.checked_add(Duration::from_micros(time.parse().ok()?))?;
    let span = parse(parts.next()?, parts.next())?;
    Some(Origin { span, at, cause })
}

/// Returns the value of the header `traceparent`, as the W3C recommendation Trace Context defines
/// it.
pub(super) fn traceparent(span: &SpanContext) -> String {
    let mut text = String::with_capacity(55);
    // A write to a `String` never fails.
    let _ = write!(
        text,
        "00-{}-{}-{:02x}",
        span.trace_id(),
        span.span_id(),
        span.trace_flags() & TraceFlags::SAMPLED
    );
    text
}

/// Reads the values of the headers that the W3C recommendation Trace Context defines. Returns
/// `None` if `traceparent` is invalid. Ignores a `tracestate` that is invalid.
pub(super) fn parse(traceparent: &str, tracestate: Option<&str>) -> Option<SpanContext> {
    let mut parts = traceparent.trim().split('-');
    let mut next = |length| {
        let is_hex = |part: &&str| {
            part.len() == length
                && part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        parts.next().filter(is_hex)
    };
    let (version, trace, span, flags) = (next(2)?, next(32)?, next(16)?, next(2)?);
    // In a later version of the format, more parts may follow.
    if version == "ff" || (version == "00" && parts.next().is_some()) {
        return None;
    }
    let flags = u8::from_str_radix(flags, 16).ok()? & TraceFlags::SAMPLED.to_u8();
    let state = tracestate.filter(|state| state.len() <= MAX_STATE);
    let state = state.and_then(|state| TraceState::from_str(state).ok());
    let span = SpanContext::new(
        TraceId::from_hex(trace).ok()?,
        SpanId::from_hex(span).ok()?,
        TraceFlags::new(flags),
        true,
        state.unwrap_or_default(),
    );
    span.is_valid().then_some(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_traceparent_is_read_as_the_recommendation_says() {
        let span = parse(PARENT, Some("a=1,b=2")).expect("valid");
        assert!(span.is_remote() && span.is_sampled());
        assert_eq!(traceparent(&span), PARENT);
        assert_eq!(span.trace_state().header(), "a=1,b=2");
        let later = PARENT.replacen("00", "01", 1) + "-more";
        assert_eq!(parse(&later, None).map(|span| traceparent(&span)).as_deref(), Some(PARENT));
        for wrong in [
            "",
            "00",
            &(PARENT.to_owned() + "-more"),
            &PARENT.replacen("00", "ff", 1),
            &PARENT.replace("af7", "AF7"),
            &PARENT.replace("0af7651916cd43dd8448eb211c80319c", &"0".repeat(32)),
            &PARENT.replace("b7ad6b7169203331", &"0".repeat(16)),
            &PARENT.replace("-01", "-0"),
            "é",
        ] {
            assert!(parse(wrong, None).is_none(), "{wrong}");
        }
    }

    #[test]
    fn a_long_or_invalid_tracestate_is_dropped_alone() {
        for state in ["x".repeat(MAX_STATE) + "=1", "no pair".to_owned()] {
            let span = parse(PARENT, Some(&state)).expect("valid");
            assert_eq!(span.trace_state().header(), "");
        }
    }

    #[test]
    fn origins_are_the_same_after_a_store() {
        let at = UNIX_EPOCH + Duration::from_micros(1_732_840_000_123_456);
        let new = |state, cause| Origin { span: parse(PARENT, state).expect("valid"), at, cause };
        let one = new(Some("a=1 2"), Some(Cause::Delay));
        let two = new(None, Some(Cause::Debounce));
        let text = format!("{one}\nnonsense\n1 2\n{two}\n");
        assert_eq!(Origins::parse(&text), Origins::new(vec![one, two]));
        assert_eq!(Origins::parse("nonsense"), None);
        let states = (0..32).map(|n| (format!("key{n}"), "x".repeat(100)));
        let state = TraceState::from_key_value(states).expect("valid");
        let span = new(None, None).span;
        let (trace, id, flags) = (span.trace_id(), span.span_id(), span.trace_flags());
        let long = SpanContext::new(trace, id, flags, true, state);
        assert_eq!(Origin { span: long, at, cause: None }.to_string(), new(None, None).to_string());
        assert_eq!(
            Origins::parse(&format!("{} {PARENT}", u64::MAX)).map(|all| all.0.len()),
            Some(1)
        );
    }

    #[test]
    fn more_links_than_the_limit_are_dropped() {
        let line = format!("1 {PARENT}\n");
        let origins = Origins::parse(&line.repeat(100)).expect("valid");
        assert_eq!(origins.links().count(), MAX_LINKS);
    }
}
