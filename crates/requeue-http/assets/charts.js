// The charts, which all show the same period.

import { get } from "./api.js";
import { setText } from "./dom.js";
import { amount, duration, power, rate } from "./format.js";
import { Plot, span } from "./plot.js";

const $ = (selector) => document.querySelector(selector);
const EVENTS = [["runs", "a"], ["adds", "b"], ["coalesced", "c"], ["failures", "d"]];
const TIMES = ["mean", "p50", "p95", "p99"];
const SHORTEST = "900";
/** The number of points in a period that is read from a store. */
const PARTS = 180;
const PERIOD = 5000;

export class Charts {
  constructor() {
    const durations = (of, what) => new Plot($(`#${of}`), {
      what, none: "no runs in this time", scale: "log",
      format: (value, onAxis) => onAxis ? power(value) : duration(value),
      series: TIMES.map((name, i) => ({ name, class: "abcd"[i] })),
    });
    this.plots = {
      rates: new Plot($("#rates"), {
        what: "Events per second", none: "no events in this time",
        format: (value, onAxis) => onAxis ? amount(value) : rate(value),
        series: EVENTS.map(([name, kind]) => ({ name, class: kind })),
      }),
      worked: durations("worked", "Duration of runs"),
      queued: durations("queued", "Time for which keys were ready before a run"),
    };
    this.range = SHORTEST;
    this.live = false;
    this.stop = new AbortController();
    if (document.body.dataset.activity !== "1") {
      const title = "A queue in memory keeps 15 minutes.";
      for (const input of document.querySelectorAll("[name=range]:not(:checked)")) {
        input.disabled = true;
        input.closest("label").title = title;
        input.setAttribute("aria-description", title);
      }
    }
    // On a small screen, the charts are closed at first, so that the keys are visible.
    if (innerWidth < 704) $("#charts").open = false;
    $("#range").addEventListener("change", (event) => this.choose(event.target.value));
    $("#charts").addEventListener("toggle", () => this.refresh());
  }

  choose(range) {
    this.range = range;
    this.activity = null;
    const unit = range === SHORTEST ? "second" : "minute";
    this.plots.rates.what = `Events per ${unit}`;
    $("#unit").textContent = unit;
    sayOver(range === SHORTEST ? "last minute" : "");
    setText($("#begin"), "");
    if (range === SHORTEST) this.update(this.samples, this.times);
    else for (const plot of Object.values(this.plots)) plot.wait();
    this.refresh();
  }

  setLive(live) {
    const starts = live && !this.live;
    this.live = live;
    if (starts) this.refresh();
    if (!live) this.stop.abort();
  }

  /** Shows the samples that the events contain, one per second. */
  update(samples, times) {
    Object.assign(this, { samples, times });
    for (const of of ["worked", "queued"]) $(`#${of}`).hidden = !times;
    if (this.range !== SHORTEST || !samples.length) return;
    const [back, end, begin] = [span(samples), samples.at(-1).t, samples[0].t];
    // If the site has been running for less than the chosen period, the axis begins when the
    // site started.
    const isYoung = end - begin < 0.98 * Number(SHORTEST);
    setText($("#begin"), isYoung ? `numbers since ${new Date(begin * 1000).toLocaleTimeString()}` : "");
    // Each value is an average over several seconds, because the number of events in one
    // second varies too much.
    const over = Math.max(5, back / 60);
    const events = EVENTS.map(() => []);
    let before = 0;
    for (let at = Math.max(1, samples.findIndex(({ t }) => t >= end - back)); at < samples.length; at += 1) {
      const now = samples[at];
      while (now.t - samples[before + 1].t >= over) before += 1;
      const { [before]: then } = samples;
      // The first two samples may have nearly the same time, which would result in a wrong
      // rate. The time difference is therefore at least one second.
      EVENTS.forEach(([name], i) => (
        events[i].push([now.t, Math.max(0, now[name] - then[name]) / Math.max(1, now.t - then.t)])));
    }
    this.plots.rates.update(events, back, end);
    for (const of of ["worked", "queued"]) {
      const points = (name) => samples.filter(({ t }) => t >= end - back).map((now) => [now.t, now[`${of}_${name}`]]);
      this.plots[of].update(TIMES.map(points), back, end);
    }
  }

  /** Reads the numbers of a longer period from the server, and schedules the next read. */
  async refresh() {
    clearTimeout(this.timer);
    this.stop.abort();
    if (!this.live || this.range === SHORTEST || !$("#charts").open) return;
    this.stop = new AbortController();
    const { signal } = this.stop;
    const back = Number(this.range);
    const started = performance.now();
    let step = 60;
    try {
      const activity = await get("activity", { since: back, parts: PARTS }, signal);
      ({ step } = activity);
      this.showActivity(activity, back);
    } catch {
      // The error is ignored, because the page already shows the state of the connection.
      if (signal.aborted) return;
    }
    const took = performance.now() - started;
    if (this.live) this.timer = setTimeout(() => this.refresh(), Math.max(PERIOD, step * 100, took * 10));
  }

  showActivity({ minutes, step }, back) {
    const end = Date.now() / 1000;
    // The curve begins with the first entry, because the queue may not have existed before
    // it.
    const oldest = minutes[0]?.ago ?? 0;
    const number = (ago) => Math.round((oldest - ago) / step);
    const parts = new Map(minutes.map((part) => [number(part.ago), part]));
    const events = EVENTS.map(() => []);
    const times = { worked: TIMES.map(() => []), queued: TIMES.map(() => []) };
    // A part that has just begun contains too few events for a rate. It is shown only if
    // there is no other part.
    for (let ago = oldest; ago > step / 4 || ago === oldest && minutes.length; ago -= step) {
      const part = parts.get(number(ago));
      const took = Math.min(step, ago);
      const t = end - ago + took / 2;
      EVENTS.forEach(([name], i) => events[i].push([t, (part?.[name] ?? 0) / took * 60]));
      for (const of of ["worked", "queued"]) {
        TIMES.forEach((name, i) => times[of][i].push([t, part?.[`${of}_${name}`] ?? null]));
      }
    }
    sayOver(`per ${step / 60} min`);
    this.plots.rates.update(events, back, end);
    for (const of of ["worked", "queued"]) this.plots[of].update(times[of], back, end);
  }
}

/** Shows the length of the period over which each duration is computed. */
function sayOver(text) {
  for (const element of document.querySelectorAll("#plots .over")) element.textContent = text;
}
