// The page of one key: its state, its runs and its past.

import { get } from "./api.js";
import { amount, duration, name, printable } from "./format.js";
import { Timeline } from "./timeline.js";

const $ = (selector) => document.querySelector(selector);

export class KeyPage {
  /** @param offer The function that is called with the row of the key after each read. */
  constructor(offer) {
    this.offer = offer;
    this.section = $("#key");
    this.timeline = new Timeline();
    this.named = null;
    /** The name of the queue, or null before the first summary. */
    this.queue = null;
    this.live = false;
    this.stop = new AbortController();
  }

  /** Shows the page of the key that these parameters identify. If they are null, hides the page. */
  show(named) {
    this.named = named;
    this.section.hidden = named === null;
    this.stop.abort();
    clearTimeout(this.timer);
    if (named === null) return;
    $("#key-name").textContent = named.key || "";
    this.timeline.update(null);
    this.refresh();
  }

  setLive(live) {
    const starts = live && !this.live;
    this.live = live;
    if (starts && this.named) this.refresh();
  }

  async refresh() {
    clearTimeout(this.timer);
    this.stop.abort();
    this.stop = new AbortController();
    const { signal } = this.stop;
    const started = performance.now();
    try {
      // The past is requested at the same time. If this request fails, the state of the
      // key is still shown.
      const reading = get("timeline", this.named, signal).catch(() => null);
      this.update(await get("key", this.named, signal));
      const past = await reading;
      if (signal.aborted) return;
      this.timeline.update(past);
    } catch {
      // The error is ignored, because the page already shows the state of the connection.
      if (signal.aborted) return;
    }
    // The time until the next request is ten times the duration of this one. A store may
    // have to read all keys of a group to explain a throttled key.
    const took = performance.now() - started;
    if (this.live) this.timer = setTimeout(() => this.refresh(), Math.max(1000, took * 10));
  }

  update(page) {
    this.page = page;
    const set = (selector, text) => {
      const element = $(selector);
      if (element.textContent !== text) element.textContent = text;
    };
    if (page === null) {
      set("#key-why", "Not in the queue: it was never added, was cancelled, or its last run succeeded.");
    } else {
      set("#key-name", page.key);
      set("#key-why", page.why);
    }
    this.offer(page);
    const { state = "idle", age = null, due_in: due = null, detail = {} } = page ?? {};
    const facts = [["State", page?.again ? `${name(state)}, again` : name(state)]];
    if (page) {
      facts.push(["Attempt", amount(page.attempt)]);
      facts.push(["Failures in a row", amount(page.failures)]);
    }
    const { last_failure: failed = null } = page ?? {};
    if (failed !== null) facts.push(["Last failure", `${duration(failed)} ago`]);
    if (age !== null) facts.push(["In this state for", duration(age)]);
    if (due !== null) {
      const at = new Date(Date.now() + due * 1000).toLocaleTimeString();
      facts.push(["Due", `in ${duration(due)}, at ${at}`]);
    }
    if (page?.adds) facts.push(["Adds that the run serves", amount(page.adds)]);
    if (page?.priority) facts.push(["Priority", amount(page.priority)]);
    if (page?.missing) facts.push(["Missing", page.missing]);
    facts.push(...Object.entries(detail));
    $("#key-facts").replaceChildren(...facts.map(([term, value]) => {
      const group = document.createElement("div");
      const [dt, dd] = [document.createElement("dt"), document.createElement("dd")];
      [dt.textContent, dd.textContent] = [term, value];
      group.append(dt, dd);
      return group;
    }));
    $("#key-revival").hidden = state !== "parked";
    if (state === "parked") set("#key-revival", revival(this.queue, page));
    set("#key-error", printable(page?.error ?? ""));
    $("#key-error").hidden = !page?.error;
    $("#key-error").previousElementSibling.hidden = !page?.error;
    this.updateRuns(page?.runs ?? []);
  }

  updateRuns(runs) {
    // If no run has changed, the rows are kept. New rows would close an output that the
    // user has opened. The time of a run in a store differs slightly between answers.
    const { shown = [] } = this;
    const others = (run) => JSON.stringify({ ...run, at: 0 });
    const isShown = (run, index) => Math.abs(run.at - shown[index].at) < 1 && others(run) === others(shown[index]);
    if (shown.length > 0 && shown.length === runs.length && runs.every(isShown)) return;
    this.shown = runs;
    $("#key-runs").hidden = runs.length === 0;
    $("#key-no-runs").hidden = runs.length > 0;
    $("#key-runs tbody").replaceChildren(...runs.flatMap(rowsOfRun));
  }
}

/** Returns a sentence on how to revive a parked key: with an action of the page, or, in a store, with a command. */
function revival(queue, { key, key_base64: base64 }) {
  const { activity, admin } = document.body.dataset;
  const revive = admin === "locked" ? "Unlock actions, then Revive on this page, or " : "Revive on this page, or ";
  const ways = `To run it again: ${admin === "none" ? "" : revive}`;
  const isPlain = /^[\w./:@%+,=-]+$/;
  if (activity !== "1" || !queue) return `${ways}add it`;
  const word = (text) => (isPlain.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  const isText = base64 && btoa(String.fromCharCode(...new TextEncoder().encode(key))) === base64;
  // The page does not show control characters, line separators and repeated spaces as they are.
  const isShown = isText && !/[\p{C}\p{Zl}\p{Zp}]| {2}/u.test(key);
  // A key that begins with `-` would be an option: the key `--all` would revive all keys.
  const end = key.startsWith("-") ? "-- " : "";
  return `${ways}requeue revive --store URL --queue ${word(queue)} ${end}${isShown ? word(key) : "KEY"}`;
}

function rowsOfRun(run, index) {
  const row = document.createElement("tr");
  const cell = (text, kind) => {
    const element = document.createElement("td");
    element.textContent = text;
    if (kind) element.className = kind;
    row.append(element);
  };
  cell(new Date(run.at * 1000).toLocaleString());
  cell(name(run.outcome));
  cell(amount(run.attempt), "amount");
  cell(run.took === null ? "" : duration(run.took), "amount");
  cell(run.worker ?? "");
  cell(run.exit_status === null ? "" : String(run.exit_status), "amount");
  cell(printable(run.error ?? ""));
  return run.output ? [row, rowOfOutput(run.output, index === 0)] : [row];
}

function rowOfOutput(output, isOpen) {
  const [row, cell, details, summary, text] =
    ["tr", "td", "details", "summary", "pre"].map((tag) => document.createElement(tag));
  cell.colSpan = 7;
  details.open = isOpen;
  summary.textContent = "End of the output";
  text.textContent = printable(output);
  text.tabIndex = 0;
  details.append(summary, text);
  cell.append(details);
  row.append(cell);
  return row;
}
