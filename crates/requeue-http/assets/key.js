// The page of one key.

import { get } from "./api.js";
import { amount, duration, name } from "./format.js";

const $ = (selector) => document.querySelector(selector);

export class KeyPage {
  /** `offer` is called with the state of the key. */
  constructor(offer) {
    this.offer = offer;
    this.section = $("#key");
    this.named = null;
    this.live = false;
    this.stop = new AbortController();
  }

  /** Shows the key that these parameters name; null hides the page. */
  show(named) {
    this.named = named;
    this.section.hidden = named === null;
    this.stop.abort();
    clearTimeout(this.timer);
    if (named === null) return;
    $("#key-name").textContent = named.key || "";
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
      this.update(await get("key", this.named, signal));
    } catch {
      // The state of the connection is shown elsewhere.
      if (signal.aborted) return;
    }
    // A store may read all keys of a group to explain a throttled key.
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
    if (age !== null) facts.push(["In this state for", duration(age)]);
    if (due !== null) {
      const at = new Date(Date.now() + due * 1000).toLocaleTimeString();
      facts.push(["Due", `in ${duration(due)}, at ${at}`]);
    }
    if (page?.adds) facts.push(["Adds that the run serves", amount(page.adds)]);
    if (page?.priority) facts.push(["Priority", amount(page.priority)]);
    facts.push(...Object.entries(detail));
    $("#key-facts").replaceChildren(...facts.map(([term, value]) => {
      const group = document.createElement("div");
      const [dt, dd] = [document.createElement("dt"), document.createElement("dd")];
      [dt.textContent, dd.textContent] = [term, value];
      group.append(dt, dd);
      return group;
    }));
    for (const [selector, text] of [["#key-error", page?.error], ["#key-output", page?.output]]) {
      set(selector, text ?? "");
      $(selector).hidden = !text;
      $(selector).previousElementSibling.hidden = !text;
    }
    const runs = page?.runs ?? [];
    $("#key-runs").hidden = runs.length === 0;
    $("#key-no-runs").hidden = runs.length > 0;
    $("#key-runs tbody").replaceChildren(...runs.map((run) => {
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
      cell(run.error ?? "");
      return row;
    }));
  }
}
