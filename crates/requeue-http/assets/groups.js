// The groups of a queue in a store: a table, and the actions on a group.

import { get, post } from "./api.js";
import { amount, duration, limit } from "./format.js";

const $ = (selector) => document.querySelector(selector);
const SHOWN = 100;
const PERIOD = 2000;

export class Groups {
  /** `admin` has the token, and runs actions. */
  constructor(admin) {
    Object.assign(this, { admin, live: false, rows: new Map(), sort: "oldest", order: "desc" });
    this.exist = document.body.dataset.groups === "1";
    this.section = $("#groups");
    this.section.hidden = !this.exist;
    this.body = $("#groups tbody");
    this.stop = new AbortController();
    $("#groups thead").addEventListener("click", (event) => {
      const column = event.target.dataset.group;
      if (column) this.sortBy(column);
    });
    this.body.addEventListener("click", (event) => {
      const { action } = event.target.dataset;
      const group = this.shown?.find(({ name }) => name === event.target.closest("tr")?.dataset.name);
      if (action && group) this.act(action, group);
    });
    $("#group-limit form").addEventListener("submit", (event) => this.setLimit(event));
    this.markSorted();
  }

  setLive(live) {
    const starts = live && this.exist && !this.live;
    this.live = live && this.exist;
    if (starts) this.refresh();
    if (!this.live) {
      clearTimeout(this.timer);
      this.stop.abort();
    }
  }

  /** Sorts by a column; a second click reverses the order. */
  sortBy(column) {
    const first = column === "name" ? "asc" : "desc";
    const other = first === "asc" ? "desc" : "asc";
    this.order = this.sort === column && this.order === first ? other : first;
    this.sort = column;
    this.markSorted();
    this.refresh();
  }

  markSorted() {
    for (const button of document.querySelectorAll("[data-group]")) {
      const header = button.closest("th");
      if (button.dataset.group !== this.sort) header.removeAttribute("aria-sort");
      else header.setAttribute("aria-sort", this.order === "desc" ? "descending" : "ascending");
    }
  }

  /** Refreshes, and schedules the next refresh: at least 2 s, and 10 times the duration of this one. */
  async refresh() {
    clearTimeout(this.timer);
    this.stop.abort();
    if (!this.live) return;
    this.stop = new AbortController();
    const { signal } = this.stop;
    const started = performance.now();
    try {
      const { sort, order } = this;
      this.show(await get("groups", { sort, order, limit: SHOWN }, signal));
    } catch {
      // The state of the connection is shown elsewhere.
      if (signal.aborted) return;
    }
    const took = performance.now() - started;
    if (this.live) this.timer = setTimeout(() => this.refresh(), Math.max(PERIOD, took * 10));
  }

  show({ groups, looked_at: read, more }) {
    this.shown = groups;
    const kept = new Map();
    // Rows are reused, so that a button keeps its focus.
    groups.forEach((group, at) => {
      const row = this.rows.get(group.name) ?? new Row(group.name);
      row.update(group);
      kept.set(group.name, row);
      const there = this.body.children[at];
      if (there !== row.tr) this.body.insertBefore(row.tr, there ?? null);
    });
    for (const [name, { tr }] of this.rows) if (!kept.has(name)) tr.remove();
    this.rows = kept;
    const of = more ? ` of ${read > groups.length ? amount(read) : "more"}` : "";
    const text = `${amount(groups.length)}${of} ${groups.length === 1 && !more ? "group" : "groups"}`;
    if ($("#groups-shown").textContent !== text) $("#groups-shown").textContent = text;
  }

  act(action, group) {
    const label = named(group.name);
    if (action === "limit") {
      this.changed = group.name;
      $("#group-limit-title").textContent = `Limit of the group ${label}`;
      // The limit may be the one of the queue, which the group would then keep.
      Object.assign($("#group-limit [name=limit]"), { value: "", placeholder: group.limit ?? "none" });
      this.admin.open("#group-limit");
      return;
    }
    this.admin.run(async () => {
      await post(`group-${action}`, { group: group.name }, this.admin.token);
      this.admin.say(`The group ${label} is ${action === "pause" ? "paused" : "resumed"}.`);
      this.refresh();
    });
  }

  async setLimit(event) {
    event.preventDefault();
    const text = $("#group-limit [name=limit]").value;
    const limit = text === "" ? null : Number(text);
    try {
      await post("group-limit", { group: this.changed, limit }, this.admin.token);
    } catch (error) {
      $("#group-limit .problem").textContent = error.message;
      return;
    }
    $("#group-limit").close();
    const value = limit === null ? "that of the queue" : amount(limit);
    this.admin.say(`The limit of the group ${named(this.changed)} is ${value}.`);
    this.refresh();
  }
}

/** Formats the name of a group. The empty one is that of keys without a group. */
function named(name) {
  return name === "" ? "(no group)" : name;
}

class Row {
  constructor(name) {
    this.tr = document.createElement("tr");
    this.tr.dataset.name = name;
    const cell = (kind, className = "") => {
      const element = Object.assign(document.createElement(kind), { className });
      this.tr.append(element);
      return element;
    };
    this.name = cell("th", "key");
    this.name.scope = "row";
    this.name.textContent = named(name);
    this.cells = ["ready", "waiting", "running", "limit", "rate", "weight", "oldest"].map((column) => (
      [column, cell("td", "amount")]
    ));
    const actions = cell("td", "admin open");
    const button = (label) => {
      const element = Object.assign(document.createElement("button"), { type: "button", textContent: label });
      actions.append(element, " ");
      return element;
    };
    [this.pause, this.limit] = [button("Pause"), button("Limit")];
    this.limit.dataset.action = "limit";
    this.limit.setAttribute("aria-label", `Limit of ${named(name)}`);
  }

  update(group) {
    const set = (node, text) => {
      if (node.textContent !== text) node.textContent = text;
    };
    const texts = {
      limit: group.paused ? "paused" : group.limit === null ? "–" : amount(group.limit),
      rate: group.rate === null ? "–" : limit(group.rate),
      oldest: group.oldest === null ? "–" : duration(group.oldest),
    };
    for (const [column, cell] of this.cells) set(cell, texts[column] ?? amount(group[column]));
    this.tr.classList.toggle("paused", group.paused);
    set(this.pause, group.paused ? "Resume" : "Pause");
    this.pause.dataset.action = group.paused ? "resume" : "pause";
    this.pause.setAttribute("aria-label", `${this.pause.textContent} ${named(group.name)}`);
  }
}
