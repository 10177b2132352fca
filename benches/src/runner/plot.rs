//! Draws the tables as pictures, for light and dark pages.

use std::fmt::Write as _;

use super::growth::{SIZES, Series};
use super::heat::LIBRARIES;
use super::metric::{Limit, Metric};
use super::report::Line;
use super::text::times;
use crate::protocol::Keys;

const STYLE: &str = "\
text{font:12px system-ui,sans-serif;fill:#1f2328}.h{font-weight:600}.s{fill:#59636e;font-size:11px}\
.g{stroke:#d1d9e0}.one{stroke:#59636e;stroke-width:1.5}.u{fill:#1a7f64}.n{fill:#6cc3ab}.w{fill:#cf5b31}\
.q{stroke:#1f2328;opacity:.6}.l0{stroke:#1a7f64}.l1{stroke:#8c959f}\
.l0,.l1{fill:none;stroke-width:2}\
@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#9198a1}.g{stroke:#3d444d}\
.one{stroke:#9198a1}.u{fill:#3fb68f}.n{fill:#256b56}.w{fill:#e0733f}.q{stroke:#e6edf3}\
.l0{stroke:#3fb68f}}";

const WIDTH: f64 = 1000.0;
/// The area of the bars.
const LEFT: f64 = 370.0;
const RIGHT: f64 = 690.0;
const ROW: f64 = 20.0;

/// A line of the picture, with a bar for each kind of keys.
struct Bars<'l> {
    label: String,
    peer: &'l str,
    lines: Vec<&'l Line>,
}

impl<'l> Bars<'l> {
    /// Returns the lines with a ratio as their limit, in the order of the table.
    fn of(lines: &'l [Line]) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for line in lines {
            let (Some(Limit::Ratio(_)), Some(peer)) = (line.limit, &line.peer) else { continue };
            let (who, peer) = (line.ours.who.as_str(), peer.who.as_str());
            let kind = match who {
                "requeue-tokio" => " (tokio)",
                "requeue-tsc" => ", TSC clock",
                _ => "",
            };
            let label = format!("{}{kind}", line.path);
            match all.iter_mut().find(|bars| bars.label == label && bars.peer == peer) {
                Some(bars) => bars.lines.push(line),
                None => all.push(Self { label, peer, lines: vec![line] }),
            }
        }
        all
    }

    fn draw(&self, out: &mut String, scale: &Scale, y: f64) {
        text(out, 20.0, y + 13.0, "", &self.label);
        let height = if self.lines.len() == 1 { 12.0 } else { 7.0 };
        let mut figures = Vec::new();
        for (line, y) in self.lines.iter().zip([y + 2.0, y + 10.0]) {
            let (Some(ratio), Some(peer)) = (line.ratio, &line.peer) else { continue };
            let class = match (line.met, line.keys) {
                (Some(false), _) => "w",
                (_, Keys::U64) => "u",
                (_, Keys::Name) => "n",
            };
            let (one, end) = (scale.at(1.0), scale.at(ratio.median));
            let (x, width) = (one.min(end), (one - end).abs().max(1.0));
            _ = write!(
                out,
                "<rect class='{class}' x='{x:.1}' y='{y:.1}' width='{width:.1}' height='{height}'/>"
            );
            let (q1, q3, middle) = (scale.at(ratio.q1), scale.at(ratio.q3), y + height / 2.0);
            _ = write!(out, "<path class='q' d='M{q1:.1} {middle:.1}H{q3:.1}'/>");
            let show = |figure: f64| line.metric.show(figure);
            let (ours, theirs) = (show(line.ours.spread.median), show(peer.spread.median));
            figures.push(format!("{} ({ours} : {theirs})", times(ratio.median)));
        }
        text(out, RIGHT + 8.0, y + 13.0, "s", &figures.join(", "));
    }
}

/// Draws the ratios of requeue to each peer on a logarithmic scale.
pub(super) fn ratios(lines: &[Line]) -> String {
    let all = Bars::of(lines);
    let ratios = lines.iter().filter_map(|line| line.ratio).map(|ratio| ratio.median);
    // Ratios beyond these limits are drawn at the edge.
    let scale = Scale::new(ratios.chain([0.05, 2.0]).map(|r| r.clamp(0.005, 5.0)), LEFT, RIGHT);
    let (mut body, mut y) = (String::new(), 58.0);
    for peer in LIBRARIES {
        let bars: Vec<&Bars<'_>> = all.iter().filter(|bars| bars.peer == peer).collect();
        if bars.is_empty() {
            continue;
        }
        text(&mut body, 8.0, y + 14.0, "h", &format!("beside {peer}"));
        y += ROW + 2.0;
        for bars in bars {
            bars.draw(&mut body, &scale, y);
            y += ROW;
        }
        y += 8.0;
    }
    let mut grid = String::new();
    for tick in scale.ticks(&[1.0, 2.0, 5.0]) {
        let (x, class) = (scale.at(tick), if tick == 1.0 { "one" } else { "g" });
        _ = write!(grid, "<path class='{class}' d='M{x:.1} 50V{y:.1}'/>");
        text(&mut grid, x - 9.0, 44.0, "s", &trim(tick));
    }
    text(
        &mut grid,
        8.0,
        18.0,
        "h",
        "What it costs, as a multiple of the peer's cost in the same run",
    );
    let legend = "Left of 1 is cheaper. Dark: u64 keys; light: namespace/name.";
    text(&mut grid, 8.0, 34.0, "s", legend);
    text(&mut grid, 8.0, 48.0, "s", "Orange: dearer by more than a tenth. Thin: quartiles.");
    svg(WIDTH, y, &(grid + &body))
}

/// Formats a number with few digits, without trailing zeros.
fn trim(number: f64) -> String {
    format!("{number:.6}").trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Draws how costs grow, with a panel for each path.
pub(super) fn growth(series: &[Series]) -> String {
    const COLUMNS: usize = 3;
    const PANEL: (f64, f64) = (330.0, 190.0);
    let mut paths: Vec<&str> = series.iter().map(|series| series.path.as_str()).collect();
    paths.dedup();
    let mut body = String::new();
    text(
        &mut body,
        8.0,
        18.0,
        "h",
        "How costs grow with the number of keys: requeue (green) and client-go (grey)",
    );
    for (at, path) in paths.iter().enumerate() {
        let (left, top) =
            ((at % COLUMNS) as f64 * PANEL.0 + 8.0, (at / COLUMNS) as f64 * PANEL.1 + 30.0);
        let lines: Vec<&Series> = series.iter().filter(|series| series.path == *path).collect();
        panel(&mut body, &lines, left, top);
    }
    svg(WIDTH, paths.len().div_ceil(COLUMNS) as f64 * PANEL.1 + 34.0, &body)
}

fn panel(out: &mut String, lines: &[&Series], left: f64, top: f64) {
    let Some(first) = lines.first() else { return };
    let metric: Metric = first.metric;
    text(out, left, top + 14.0, "", &first.path);
    let across = Scale::new(SIZES.iter().map(|&size| size as f64), left + 52.0, left + 262.0);
    let points = lines.iter().flat_map(|line| &line.points).map(|point| point.figure);
    let up = Scale::new(points, top + 150.0, top + 26.0);
    for tick in up.ticks(&[1.0, 2.0, 5.0]) {
        let y = up.at(tick);
        _ = write!(out, "<path class='g' d='M{:.1} {y:.1}H{:.1}'/>", left + 52.0, left + 262.0);
        text(out, left, y + 4.0, "s", &metric.show(tick));
    }
    for (size, label) in SIZES.iter().zip(["1 k", "10 k", "100 k", "1 M", "10 M"]) {
        text(out, across.at(*size as f64) - 9.0, top + 166.0, "s", label);
    }
    for line in lines {
        let class = if line.who == "requeue" { "l0" } else { "l1" };
        let mut points = String::new();
        for point in &line.points {
            _ = write!(points, "{:.1},{:.1} ", across.at(point.keys as f64), up.at(point.figure));
        }
        _ = write!(out, "<polyline class='{class}' points='{}'/>", points.trim_end());
    }
}

/// A logarithmic scale over whole powers of ten, with less than a decade at each edge.
struct Scale {
    low: f64,
    high: f64,
    from: f64,
    to: f64,
}

impl Scale {
    fn new(figures: impl Iterator<Item = f64>, from: f64, to: f64) -> Self {
        let logs = figures.filter(|figure| *figure > 0.0).map(f64::log10);
        let (low, high) = logs.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), log| {
            (low.min(log), high.max(log))
        });
        let (low, high) = if low > high { (0.0, 1.0) } else { (low, high) };
        // The width is never zero.
        Self { low: low - 0.05, high: high.max(low + 0.3) + 0.05, from, to }
    }

    fn at(&self, figure: f64) -> f64 {
        let log = if figure > 0.0 { figure.log10() } else { self.low };
        let part = (log.clamp(self.low, self.high) - self.low) / (self.high - self.low);
        self.from + (self.to - self.from) * part
    }

    /// Returns the multiples of powers of ten that are on the scale.
    fn ticks(&self, steps: &[f64]) -> Vec<f64> {
        let powers = self.low.floor() as i32..=self.high.ceil() as i32;
        let all = powers.flat_map(|power| steps.iter().map(move |step| step * 10_f64.powi(power)));
        all.filter(|tick| (self.low..=self.high).contains(&tick.log10())).collect()
    }
}

fn text(out: &mut String, x: f64, y: f64, class: &str, text: &str) {
    let text = text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    _ = write!(out, "<text class='{class}' x='{x:.1}' y='{y:.1}'>{text}</text>");
}

fn svg(width: f64, height: f64, body: &str) -> String {
    format!(
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0} {height:.0}' \
         width='{width:.0}' height='{height:.0}'><style>{STYLE}</style>{body}</svg>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_is_logarithmic_and_ends_where_it_ends() {
        let scale = Scale { low: -2.0, high: 0.0, from: 0.0, to: 100.0 };
        assert_eq!([0.01, 0.1, 1.0].map(|figure| scale.at(figure)), [0.0, 50.0, 100.0]);
        assert_eq!([0.0, 1e-9, 1e9].map(|figure| scale.at(figure)), [0.0, 0.0, 100.0]);
        assert_eq!(scale.ticks(&[1.0]), [0.01, 0.1, 1.0]);
    }

    #[test]
    fn a_scale_of_nothing_or_of_one_figure_has_a_width() {
        for figures in [vec![], vec![0.0], vec![7.0, 7.0]] {
            let scale = Scale::new(figures.into_iter(), 0.0, 100.0);
            assert!(scale.high > scale.low);
        }
    }

    #[test]
    fn text_is_escaped() {
        let mut out = String::new();
        text(&mut out, 0.0, 0.0, "", "a < b & c");
        assert!(out.contains(">a &lt; b &amp; c<"));
    }

    #[test]
    fn ticks_are_written_short() {
        assert_eq!([0.001, 0.1, 1.0, 20.0].map(trim).join(" "), "0.001 0.1 1 20");
    }
}
