// Draws line plots as SVG, without a library.

const SVG = "http://www.w3.org/2000/svg";

/** Creates an SVG element with these attributes. */
function svg(name, attributes = {}, text = "") {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  return element;
}

/** Returns the attribute `d` of an SVG path through the points [x, y]. The path has a gap where y is null. */
function path(points) {
  let d = "";
  let pen = "M";
  for (const [x, y] of points) {
    if (y === null) {
      pen = "M";
      continue;
    }
    d += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    // A line with only one point is not visible, so a short horizontal line is added.
    if (pen === "M") d += "h.1";
    pen = "L";
  }
  return d;
}

/** A logarithmic scale that also contains zero. A burst therefore does not make smaller values invisible. */
export const fromZero = {
  range(values) {
    const high = 10 ** Math.max(1, Math.ceil(Math.log10(Math.max(1, ...values)) - 1e-9));
    const lines = [0];
    for (let line = 1; line <= high; line *= high > 1e4 ? 100 : 10) lines.push(line);
    return { low: 0, high, lines };
  },
  at: (value, { high }) => Math.log10(1 + value) / Math.log10(1 + high),
};

const logarithmic = {
  range(values) {
    const seen = values.filter((value) => value > 0);
    const low = Math.floor(Math.log10(Math.min(0.01, ...seen)) + 1e-9);
    const high = Math.ceil(Math.log10(Math.max(1, ...seen)) - 1e-9);
    const step = high - low > 5 ? 2 : 1;
    const lines = [];
    for (let power = low; power <= high; power += step) lines.push(10 ** power);
    return { low, high, lines };
  },
  at: (value, { low, high }) => (Math.max(Math.log10(value), low) - low) / (high - low),
};

/** Returns the period that a plot covers, in seconds: the age of the samples, rounded up to a step from 1 to 15
 * minutes. */
export function span(samples) {
  const seconds = samples.length ? samples.at(-1).t - samples[0].t : 0;
  return [60, 120, 300, 600].find((step) => seconds <= step * 1.02) ?? 900;
}

export class Plot {
  /** @param series [{ name, class }]
   *  @param none The text that is shown if the plot has no values. */
  constructor(figure, { series, format, scale, what, none }) {
    Object.assign(this, { series, format, what, none });
    this.scale = scale === "log" ? logarithmic : fromZero;
    this.svg = figure.querySelector("svg");
    this.when = figure.querySelector(".when");
    this.points = null;
    this.pointer = null;
    this.values = series.map(({ name, class: kind }) => {
      const row = document.createElement("div");
      row.className = kind;
      const dash = svg("svg", { viewBox: "0 0 22 10", "aria-hidden": "true" });
      dash.append(svg("line", { x1: 0, x2: 22, y1: 5, y2: 5 }));
      const term = document.createElement("dt");
      const value = document.createElement("dd");
      term.textContent = name;
      row.append(dash, term, value);
      figure.querySelector("dl").append(row);
      return value;
    });
    new ResizeObserver(() => this.draw()).observe(this.svg);
    this.svg.addEventListener("pointermove", (event) => {
      this.pointer = event.offsetX;
      this.draw();
    });
    this.svg.addEventListener("pointerleave", () => {
      this.pointer = null;
      this.draw();
    });
  }

  /** @param points For each series, its points [t, value or null].
   *  @param back The period that the plot covers, up to `end`, in seconds. */
  update(points, back, end) {
    Object.assign(this, { points, back, end });
    this.draw();
  }

  /** Shows that the points are still being read. */
  wait() {
    this.points = null;
    this.values.forEach((element) => { element.textContent = "–"; });
    this.svg.replaceChildren(svg("text", { x: 0, y: 20 }, "reading …"));
  }

  draw() {
    const { clientWidth: width, clientHeight: height } = this.svg;
    if (!width || !this.points) return;
    const { points, back, end } = this;
    const [left, right, top, bottom] = [0, width - 52, 8, height - 20];
    const x = (t) => right - ((end - t) / back) * (right - left);
    const range = this.scale.range(points.flat().map(([, value]) => value ?? 0));
    const y = (value) => bottom - this.scale.at(value, range) * (bottom - top);

    const parts = [];
    for (const line of range.lines) {
      const at = Math.round(y(line)) + 0.5;
      const kind = at >= bottom - 1 ? "grid base" : "grid";
      parts.push(svg("line", { class: kind, x1: left, x2: right, y1: at, y2: at }));
      parts.push(svg("text", { x: right + 6, y: at + 4 }, this.format(line, true)));
    }
    for (const minute of [1, 0.5, 0]) {
      const ago = minute * back;
      const text = ago === 0 ? "now" : named(ago);
      const anchor = minute === 1 ? "start" : minute === 0 ? "end" : "middle";
      parts.push(svg("text", { x: x(end - ago), y: height - 4, "text-anchor": anchor }, text));
    }
    // The last series is drawn first, so that the first series covers the others.
    const isEmpty = !points.flat().some(([, value]) => value);
    if (isEmpty) {
      parts.push(svg("text", { class: "none", x: (left + right) / 2, y: (top + bottom) / 2, "text-anchor": "middle" }, this.none));
    }
    for (let i = isEmpty ? -1 : this.series.length - 1; i >= 0; i -= 1) {
      const d = path(points[i].map(([t, value]) => [x(t), value === null ? null : y(value)]));
      parts.push(svg("path", { class: this.series[i].class, d }));
    }

    let read = points[0].length - 1;
    this.when.textContent = "";
    if (this.pointer !== null && read >= 0) {
      const t = end - ((right - this.pointer) / (right - left)) * back;
      const after = points[0].findIndex(([at]) => at >= t);
      if (after >= 0) read = after;
      const at = points[0][read][0];
      parts.push(svg("line", { class: "at", x1: x(at), x2: x(at), y1: top, y2: bottom }));
      const time = new Date(at * 1000);
      this.when.textContent = back > 86400 ? time.toLocaleString() : time.toLocaleTimeString();
    }
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    this.svg.replaceChildren(...parts);

    const now = this.series.map((_, i) => points[i].at(-1)?.[1] ?? null);
    this.values.forEach((element, i) => {
      const value = points[i][read]?.[1] ?? null;
      element.textContent = value === null ? "–" : this.format(value, false);
    });
    const said = isEmpty ? [this.none] : this.series.map(({ name }, i) =>
      `${name} ${now[i] === null ? "none" : this.format(now[i], false)}`);
    this.svg.setAttribute("aria-label", `${this.what} in the last ${named(back)}, now: ${said.join(", ")}`);
  }
}

/** Formats the period that a plot covers. */
function named(seconds) {
  const [number, unit] = seconds < 60 ? [seconds, "s"] : seconds < 3600 ? [seconds / 60, "min"]
    : seconds < 172_800 ? [seconds / 3600, "h"] : [seconds / 86400, "days"];
  return `${number} ${unit}`;
}

/** Draws a small line without axes. `of` returns the value of a sample, or null if it has none. */
export function spark(element, samples, of) {
  const [width, height] = [100, 30];
  const back = span(samples);
  const end = samples.at(-1).t;
  const most = Math.max(1, ...samples.map((sample) => of(sample) ?? 0));
  const points = [];
  for (const sample of samples) {
    const x = width - ((end - sample.t) / back) * width;
    const value = of(sample);
    const y = Math.log10(1 + value) / Math.log10(1 + most);
    if (x >= 0 && value !== null) points.push([x, height - 1 - y * (height - 2)]);
  }
  const line = path(points);
  const area = points.length
    ? `${line.replace("h.1", "")}V${height}H${points[0][0].toFixed(1)}Z` : "";
  element.setAttribute("viewBox", `0 0 ${width} ${height}`);
  element.setAttribute("preserveAspectRatio", "none");
  element.replaceChildren(svg("path", { class: "area", d: area }), svg("path", { d: line }));
}
