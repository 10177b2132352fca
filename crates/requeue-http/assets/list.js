// A table that requests its rows again periodically.

import { get } from "./api.js";
import { amount } from "./format.js";

const $ = (selector) => document.querySelector(selector);
const MOST = 100;
const PERIOD = 2000;

/** A subclass has the methods `make(thing)`, which returns a row with `tr` and `update(thing)`, and `idOf(thing)`.
 * `path` is the path of the list; the other arguments are the section and the property of the response. */
export class List {
  constructor(path, one, sort, order, ascending) {
    Object.assign(this, { path, one, sort, order, ascending, most: MOST, live: false, rows: new Map(), filter: {} });
    this.exist = document.body.dataset[path] === "1";
    this.section = $(`#${path}`);
    this.body = $(`#${path} tbody`);
    this.stop = new AbortController();
    $(`#${path} thead`).addEventListener("click", (event) => {
      const { column } = event.target.dataset;
      if (column) this.sortBy(column);
    });
    this.body.addEventListener("click", (event) => {
      const { action } = event.target.dataset;
      const row = event.target.closest("tr");
      const thing = this.shown?.find((thing) => this.idOf(thing) === row?.dataset.name);
      if (action && thing) this.act(action, thing);
    });
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

  /** Sorts the table by a column. If the table is already sorted by this column, reverses the order. */
  sortBy(column) {
    const first = this.ascending.includes(column) ? "asc" : "desc";
    const other = first === "asc" ? "desc" : "asc";
    this.order = this.sort === column && this.order === first ? other : first;
    this.sort = column;
    this.markSorted();
    this.refresh();
  }

  markSorted() {
    for (const button of document.querySelectorAll(`#${this.path} [data-column]`)) {
      const header = button.closest("th");
      if (button.dataset.column !== this.sort) header.removeAttribute("aria-sort");
      else header.setAttribute("aria-sort", this.order === "desc" ? "descending" : "ascending");
    }
  }

  /** Returns the time until the next request: 10 times the duration of the last request, but at least 2 s. */
  delay(took) {
    return Math.max(PERIOD, took * 10);
  }

  /** Requests the rows, and schedules the next request. */
  async refresh() {
    clearTimeout(this.timer);
    this.stop.abort();
    if (!this.live) return;
    this.stop = new AbortController();
    const { signal } = this.stop;
    const started = performance.now();
    try {
      const { sort, order } = this;
      this.show(await get(this.path, { sort, order, limit: this.most, ...this.filter }, signal));
    } catch (error) {
      if (signal.aborted) return;
      this.fail(error);
    }
    const took = performance.now() - started;
    if (this.live) this.timer = setTimeout(() => this.refresh(), this.delay(took));
  }

  /** Called after a failed request. The default does nothing, because most pages show the state of the connection. */
  fail() {}

  show(answer) {
    const { looked_at: read, more } = answer;
    this.shown = answer[this.path];
    keepFocus(this.body, () => {
      const kept = new Map();
      this.shown.forEach((thing, at) => {
        const id = this.idOf(thing);
        const row = this.rows.get(id) ?? this.make(thing);
        row.update(thing);
        kept.set(id, row);
        const there = this.body.children[at];
        if (there !== row.tr) this.body.insertBefore(row.tr, there ?? null);
      });
      for (const [id, { tr }] of this.rows) if (!kept.has(id)) tr.remove();
      this.rows = kept;
    });
    const { length } = this.shown;
    const of = more ? ` of ${read > length ? amount(read) : "more"}` : "";
    setText($(`#${this.path}-shown`), `${amount(length)}${of} ${this.one}${length === 1 && !more ? "" : "s"}`);
  }
}

/** Moves the focus to the first of these elements that is visible and enabled. */
export function focusFirst(...elements) {
  elements.find((element) => element?.checkVisibility() && !element.disabled)?.focus({ preventScroll: true });
}

/** Draws the rows of a table again. If the row with the focus was moved, the focus returns to it. If it was removed,
 * the focus moves to the row at its place. */
export function keepFocus(body, redraw) {
  const focused = body.contains(document.activeElement) ? document.activeElement : null;
  const at = [...body.children].indexOf(focused?.closest("tr"));
  const number = focusable(body.children[at]).indexOf(focused);
  redraw();
  if (!focused || document.activeElement === focused) return;
  const near = body.children[Math.min(at, body.children.length - 1)];
  focusFirst(focused, focusable(near)[number], body.closest("[tabindex]"));
}

function focusable(row) {
  return [...row?.querySelectorAll("a, button") ?? []];
}

/** A row of a `List`: a name, a cell for each column, and buttons. */
export class Row {
  constructor(id, name, columns, buttons) {
    this.tr = document.createElement("tr");
    this.tr.dataset.name = id;
    const cell = (kind, className = "") => {
      const element = Object.assign(document.createElement(kind), { className });
      this.tr.append(element);
      return element;
    };
    this.title = Object.assign(cell("th", "key"), { scope: "row" });
    this.setName(name);
    this.cells = columns.map(([column, className]) => [column, cell("td", className)]);
    const actions = buttons.length ? cell("td", "admin open") : null;
    this.buttons = buttons.map((label) => {
      const element = Object.assign(document.createElement("button"), { type: "button" });
      actions.append(element, " ");
      this.label(element, label);
      return element;
    });
  }

  setName(name) {
    this.name = name;
    setText(this.title, name);
  }

  /** Sets the text of a button, and the function that a click calls. */
  label(button, text) {
    setText(button, text);
    button.dataset.action = text.toLowerCase();
    button.classList.toggle("danger", text === "Remove");
    button.setAttribute("aria-label", `${text} ${this.name}`);
  }

  setTexts(texts) {
    for (const [column, cell] of this.cells) setText(cell, texts[column]);
  }

  setPaused(paused) {
    this.tr.classList.toggle("paused", paused);
    this.label(this.buttons[0], paused ? "Resume" : "Pause");
  }
}

function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}
