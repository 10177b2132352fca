// The past of a key, as a line of time and as a list of events.

import { Lines, make, setText } from "./dom.js";
import { duration, name, printable } from "./format.js";

const $ = (selector) => document.querySelector(selector);
/** The maximum number of waits and runs that are drawn on the line. */
const DRAWN = 30;
/** The possible distances between two marks of the axis, in seconds. */
const STEPS = [0.1, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400, 604_800];
const isLong = ({ kind }) => kind === "wait" || kind === "run";

export class Timeline {
  constructor() {
    this.line = $("#key-line");
    this.shown = $("#key-shown");
    this.lines = new Lines($("#key-past table"));
    // While the pointer or the focus is on the line, it is not drawn again. It is drawn
    // when they leave it.
    for (const event of ["pointerleave", "focusout"]) this.line.addEventListener(event, () => this.draw());
    this.line.addEventListener("keydown", (event) => this.move(event));
    new ResizeObserver(() => this.draw()).observe(this.line);
  }

  /** Shows the past of a key. If it is null, hides the line and the list. */
  update(past) {
    this.past = past;
    $("#key-time").hidden = past === null;
    if (past === null) return;
    const { now, begin, note, events } = past;
    const begins = begin === null ? "" : `history begins ${duration(now - begin)} ago; `;
    const known = `${begins}${note}`;
    setText($("#key-known"), `${known[0].toUpperCase()}${known.slice(1)}.`);
    this.line.hidden = events.length === 0;
    this.shown.hidden = events.length === 0;
    $("#key-past").hidden = events.length === 0;
    this.lines.show(events.toReversed().map((event) => [
      { text: time(event.at, 0) }, { text: printable(event.text) }, { text: length(event, now) },
    ]));
    this.draw();
  }

  draw() {
    const { clientWidth: width } = this.line;
    if (!this.past || !width || this.line.matches(":hover, :focus-within")) return;
    const { now, events } = this.past;
    const { from, end } = extent(events, now);
    const at = (t) => Math.min(100, Math.max(0, ((t - from) / (end - from)) * 100));
    const place = (element, left, right = null) => {
      element.style.left = `${left}%`;
      if (right !== null) element.style.width = `${right - left}%`;
      return element;
    };
    const drawn = events.filter((event) => isLong(event) && ended(event, now) >= from);
    const segments = drawn.map((event) => {
      const [left, right] = [at(event.at), at(ended(event, now))];
      const segment = make("button", { type: "button", className: `${event.kind} ${event.cause ?? event.outcome ?? ""}`, tabIndex: -1 });
      const words = label(event);
      if (((right - left) * width) / 100 > words.length * 6.5 + 8) segment.append(words);
      return this.describe(place(segment, left, right), event);
    });
    if (segments.length) segments.at(-1).tabIndex = 0;
    const ticks = events.filter((event) => !isLong(event) && event.at >= from && event.at <= end);
    const marks = ticks.map((event, i) => {
      const left = at(event.at);
      const free = (((ticks[i + 1] ? at(ticks[i + 1].at) : 100) - left) * width) / 100;
      const words = label(event);
      const mark = make("span", { className: `mark ${event.kind}`, ariaHidden: "true" });
      if (free > words.length * 6.5 + 8) mark.append(words);
      return this.describe(place(mark, left), event);
    });
    const times = axis(from, end, width, now).map(([t, words, kind]) => {
      // Near the right end, the text would be cut, so it is placed to the left of its
      // mark.
      const side = at(t) > 92 ? "left" : "";
      return place(make("span", { className: `time ${kind} ${side}`, ariaHidden: "true" }, words), at(t));
    });
    this.line.replaceChildren(...marks, ...segments, ...times);
    setText(this.shown, segments.length ? describe(drawn.at(-1), now) : "");
  }

  /** Shows the words of an event while its element has the pointer or the focus. */
  describe(element, event) {
    const words = describe(event, this.past.now);
    // A button's accessible name must contain its visible text.
    element.ariaLabel = `${label(event)}: ${words}`;
    for (const kind of ["pointerenter", "focus"]) {
      element.addEventListener(kind, () => setText(this.shown, words));
    }
    return element;
  }

  move(event) {
    const step = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const segments = [...this.line.querySelectorAll("button")];
    const to = Math.min(segments.length - 1, Math.max(0, segments.indexOf(document.activeElement) + step));
    segments.forEach((segment, i) => { segment.tabIndex = i === to ? 0 : -1; });
    segments[to].focus();
  }
}

/** Returns the time at which an event ended. If a wait or a run has not ended, returns `now`. */
function ended(event, now) {
  return event.until ?? (isLong(event) ? now : event.at);
}

/** Returns the period that the line covers: the last waits and runs, and at most the same time in the future. */
function extent(events, now) {
  const long = events.filter(isLong);
  const from = (long.at(-DRAWN) ?? long[0] ?? events[0]).at;
  const first = long.length > DRAWN ? from : Math.min(from, events[0].at);
  const last = Math.max(...events.map((event) => ended(event, now)));
  const span = Math.max(Math.min(last, now) - first, 1);
  // The time after the last event is shortened, because a long idle time would leave too
  // little space for the events.
  const end = last > now ? Math.min(last, now + span) : Math.min(now, last + span / 4);
  return { from: first, end: Math.max(end, first + 1) };
}

function axis(from, end, width, now) {
  const most = Math.max(2, Math.floor(width / 110));
  const step = STEPS.find((seconds) => (end - from) / seconds <= most) ?? STEPS.at(-1);
  // The marks of the axis are at multiples of the step in local time.
  const zone = new Date(from * 1000).getTimezoneOffset() * 60;
  const times = [];
  for (let t = Math.ceil((from - zone) / step) * step + zone; t < end; t += step) {
    const isNearNow = Math.abs(t - now) / (end - from) < 0.06;
    if (!isNearNow) times.push([t, time(t, step), ""]);
  }
  if (now <= end) times.push([now, "now", "now"]);
  return times;
}

/** Formats a time of day, with the date if the step is long, and with milliseconds if it is short. */
function time(t, step) {
  const date = new Date(t * 1000);
  if (step >= 21_600) return date.toLocaleString([], { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" });
  if (step >= 60) return date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  const digits = step < 1 ? { fractionalSecondDigits: step === 0 ? 3 : 1 } : {};
  return date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", ...digits });
}

/** Returns the text on a segment of the line, or at a mark. */
function label({ kind, cause, outcome, text }) {
  if (kind === "wait") return name(cause);
  if (kind === "add") return text.split(/[,:]/)[0].split(" ")[0];
  if (kind !== "run") return text.split(/[,:]/)[0];
  return { null: "running", succeeded: "run", given_up: "failed" }[outcome] ?? name(outcome);
}

/** Formats the duration of a wait or a run. */
function length(event, now) {
  if (!isLong(event)) return "";
  const { at, until } = event;
  if (until === null) return `${duration(Math.max(0, now - at))} so far`;
  return until > now ? `${duration(until - now)} more` : duration(until - at);
}

function describe(event, now) {
  const long = length(event, now);
  return `${time(event.at, 0)} ${printable(event.text)}${long && `, ${long}`}`;
}
