//! The two text formats of metrics, and the choice of the format for a client.
//!
//! `prometheus-client` writes OpenMetrics. A client that does not accept this format receives
//! `text/plain; version=0.0.4`, into which this module converts the text. All tools can read the
//! latter format.

use std::fmt::Write;

/// A text format of metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Format {
    OpenMetrics,
    Classic,
}

impl Format {
    /// Returns the format for a response. `accept` contains the values of the request's `Accept`
    /// headers. The format is OpenMetrics if the client accepts it.
    pub(crate) fn negotiate<'a>(accept: impl Iterator<Item = &'a str>) -> Self {
        let mut ranges = accept.flat_map(|value| value.split(','));
        if ranges.any(accepts_open_metrics) { Self::OpenMetrics } else { Self::Classic }
    }

    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// Converts a text from OpenMetrics to this format.
    pub(crate) fn convert_from(self, open_metrics: String) -> String {
        match self {
            Self::OpenMetrics => open_metrics,
            Self::Classic => to_classic(&open_metrics),
        }
    }
}

/// Returns true if a media range of an `Accept` header permits OpenMetrics in the version that
/// `prometheus-client` writes.
fn accepts_open_metrics(range: &str) -> bool {
    let mut parts = range.split(';').map(str::trim);
    let kind = parts.next().unwrap_or_default();
    kind.eq_ignore_ascii_case("application/openmetrics-text")
        && parts.filter_map(|part| part.split_once('=')).all(|(name, value)| {
            let value = value.trim().trim_matches('"');
            match name.trim().to_ascii_lowercase().as_str() {
                // With the quality 0, a client says that it does not accept the format.
                "q" => value.parse::<f32>().is_ok_and(|quality| quality > 0.0),
                // A parser of another version may reject the text, so only this version is
                // accepted.
                "version" => value == "1.0.0",
                _ => true,
            }
        })
}

/// Converts a text from OpenMetrics to the classic format. In that format, the headers of counters
/// and infos have the same suffix as their samples. It has no units, no exemplars and no end
/// marker.
fn to_classic(open_metrics: &str) -> String {
    let mut text = String::with_capacity(open_metrics.len());
    let mut help = None;
    for line in open_metrics.lines() {
        if let Some(family) = line.strip_prefix("# HELP ") {
            help = Some(family);
        } else if let Some(family) = line.strip_prefix("# TYPE ") {
            let (name, kind) = family.rsplit_once(' ').unwrap_or((family, "unknown"));
            let (suffix, kind) = match kind {
                "counter" => ("_total", "counter"),
                "info" => ("_info", "gauge"),
                "stateset" => ("", "gauge"),
                "gauge" | "histogram" | "summary" => ("", kind),
                // The classic format does not have the other types of OpenMetrics.
                _ => ("", "untyped"),
            };
            let words = help.take().and_then(|help| help.strip_prefix(name)).map(str::trim_start);
            // The result is ignored, because writing to a string does not fail.
            let _ = writeln!(text, "# HELP {name}{suffix} {}", words.unwrap_or_default());
            let _ = writeln!(text, "# TYPE {name}{suffix} {kind}");
        } else if !line.starts_with('#') {
            text.push_str(without_exemplar(line));
            text.push('\n');
        }
    }
    text
}

/// Returns a sample without its exemplar. Quotes must be parsed, because the value of a label may
/// contain text that looks like an exemplar.
fn without_exemplar(sample: &str) -> &str {
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, byte) in sample.bytes().enumerate() {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            b'#' if !is_quoted => return sample[..at].trim_end(),
            _ => {}
        }
    }
    sample
}

#[cfg(test)]
mod tests {
    use prometheus_client::encoding::text;
    use prometheus_client::metrics::counter::Counter;
    use prometheus_client::metrics::exemplar::CounterWithExemplar;
    use prometheus_client::metrics::family::Family;
    use prometheus_client::metrics::gauge::Gauge;
    use prometheus_client::metrics::info::Info;
    use prometheus_client::registry::{Registry, Unit};

    use super::*;

    #[test]
    fn open_metrics_is_sent_where_it_is_asked_for() {
        use Format::{Classic, OpenMetrics};
        for (accept, format) in [
            (&[][..], Classic),
            (&[""], Classic),
            (&["*/*"], Classic),
            (&["text/html,*/*;q=0.8"], Classic),
            (&["application/*"], Classic),
            (&["text/plain"], Classic),
            (&["application/openmetrics-text"], OpenMetrics),
            (&["Application/OpenMetrics-Text; Version=\"1.0.0\""], OpenMetrics),
            (&["application/openmetrics-text;q=0"], Classic),
            (&["application/openmetrics-text;q=0.0"], Classic),
            (&["application/openmetrics-text;q=0.001"], OpenMetrics),
            // The first case has a version that the server does not write. The second case has an
            // invalid quality.
            (&["application/openmetrics-text;version=2.0.0"], Classic),
            (&["application/openmetrics-text;q=much"], Classic),
            (&["text/plain;q=0.5", "application/openmetrics-text; q=0.6"], OpenMetrics),
            // Prometheus 2 and 3 send these headers.
            (
                &["application/openmetrics-text;version=1.0.0,application/openmetrics-text;\
                   version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"],
                OpenMetrics,
            ),
            (
                &["application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                   application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;\
                   escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"],
                OpenMetrics,
            ),
            (&["text/plain;version=0.0.4;q=1,*/*;q=0.1"], Classic),
        ] {
            assert_eq!(Format::negotiate(accept.iter().copied()), format, "{accept:?}");
        }
    }

    #[test]
    fn whatever_a_registry_holds_has_a_classic_form() {
        let mut registry = Registry::default();
        let runs = CounterWithExemplar::<Vec<(String, String)>>::default();
        runs.inc_by(2, Some(vec![("trace".to_owned(), "a # b".to_owned())]), None);
        registry.register("runs", "Runs", runs);
        let wait = Gauge::<i64>::default();
        registry.register_with_unit("wait", "Time", Unit::Seconds, wait);
        registry.register("build", "Build", Info::new([("version", "1")]));
        let odd = Family::<[(&str, &str); 1], Counter>::default();
        odd.get_or_create(&[("key", "a \\ \" # {b} 1\n")]).inc();
        registry.register("odd", "Odd", odd);
        let mut open_metrics = String::new();
        text::encode(&mut open_metrics, &registry).unwrap();
        assert!(open_metrics.contains(" # {") && open_metrics.contains("# UNIT"));
        assert_eq!(
            to_classic(&open_metrics),
            "# HELP runs_total Runs.\n# TYPE runs_total counter\nruns_total 2\n\
             # HELP wait_seconds Time.\n# TYPE wait_seconds gauge\nwait_seconds 0\n\
             # HELP build_info Build.\n# TYPE build_info gauge\nbuild_info{version=\"1\"} 1\n\
             # HELP odd_total Odd.\n# TYPE odd_total counter\n\
             odd_total{key=\"a \\\\ \\\" # {b} 1\\n\"} 1\n"
        );
        assert_eq!(to_classic("# EOF\n"), "");
    }
}
