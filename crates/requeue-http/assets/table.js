// The table of keys, which is read again one page after another.

import { get, naming } from "./api.js";
import { amount, duration, name } from "./format.js";
import { keepFocus } from "./list.js";
import { address } from "./view.js";

const PAGE = 100;
/** The maximum number of requests for one update of the table. Each reads up to 100,000 keys, for about a second. */
const REQUESTS = 40;
/** The maximum number of keys in a sorted list of the server. */
const MOST_SORTED = 1000;
const RANK = { running: 0, backing_off: 1, parked: 2, damaged: 2, waiting: 3, ready: 4, idle: 5 };
/** The columns for which the first click sorts in descending order. */
const LARGEST_FIRST = ["age", "attempt"];

export class Table {
  /** @param change The function that is called with the changes of the view that the user requests. */
  constructor(change) {
    const section = document.querySelector("#keys");
    this.body = section.querySelector("tbody");
    this.search = section.querySelector("#search");
    this.shown = section.querySelector("#shown");
    this.none = section.querySelector("#none");
    this.more = section.querySelector("#more");
    this.found = section.querySelector("#found");
    this.hint = section.querySelector("#hint");
    this.failed = section.querySelector("#failed");
    this.filter = section.querySelector("#filter");
    this.rows = new Map();
    this.wanted = PAGE;
    this.view = { state: "", q: "", failed: "", error: "", sort: "", order: "" };
    this.live = false;
    this.total = 0;
    this.isEmpty = false;
    this.stop = new AbortController();

    let typing;
    this.search.addEventListener("input", () => {
      clearTimeout(typing);
      typing = setTimeout(() => change({ q: this.search.value }), 150);
    });
    this.search.form.addEventListener("submit", (event) => {
      event.preventDefault();
      clearTimeout(typing);
      change({ q: this.search.value });
    });
    this.failed.addEventListener("change", () => change({ failed: this.failed.checked ? "true" : "" }));
    this.filter.querySelector("button").addEventListener("click", () => change({ error: "" }));
    this.more.addEventListener("click", () => this.ask(this.wanted + PAGE));
    section.querySelector("thead").addEventListener("click", (event) => {
      const column = event.target.dataset.sort;
      if (column) change(this.sorted(column));
    });
    document.addEventListener("keydown", (event) => {
      const typing = event.target.matches("input:not([type=radio], [type=checkbox]), textarea");
      if (event.key === "/" && !typing && !event.ctrlKey && !event.metaKey && !event.altKey) {
        event.preventDefault();
        this.search.focus();
        this.search.select();
      }
    });
  }

  /** Returns the change of the view for a click on a column. The first click sorts, the second reverses, the third ends it. */
  sorted(column) {
    const orders = LARGEST_FIRST.includes(column) ? ["desc", "asc"] : ["asc", "desc"];
    const next = this.view.sort === column ? orders[orders.indexOf(this.view.order || "asc") + 1] : orders[0];
    return next ? { sort: column, order: next } : { sort: "", order: "" };
  }

  /** Changes the conditions on the shown keys. */
  setView(view) {
    const is = ({ state, q, failed, error, sort, order }) => [state, q, failed, error, sort, order].join("\0");
    const differs = is(view) !== is(this.view);
    this.view = view;
    if (this.search !== document.activeElement || this.search.value === "") this.search.value = view.q;
    this.failed.checked = view.failed === "true";
    this.filter.hidden = view.error === "";
    this.filter.querySelector("q").textContent = view.error;
    for (const button of document.querySelectorAll("[data-sort]")) {
      const header = button.closest("th");
      if (button.dataset.sort !== view.sort) header.removeAttribute("aria-sort");
      else header.setAttribute("aria-sort", view.order === "desc" ? "descending" : "ascending");
    }
    if (differs) this.ask(PAGE);
  }

  /** Changes the number of shown keys, and reads the keys immediately. */
  ask(wanted) {
    this.wanted = wanted;
    this.refresh(true);
  }

  /** Starts to read the keys, or stops because the server cannot be reached. */
  setLive(live) {
    const starts = live && !this.live;
    this.live = live;
    if (starts) this.refresh(false);
    if (!live) this.stop.abort();
  }

  /** Reads the keys. The next read begins after 10 times the duration of this one, but at least after 1 s. */
  async refresh(asked) {
    this.stop.abort();
    clearTimeout(this.timer);
    if (!this.live) return;
    this.stop = new AbortController();
    const { signal } = this.stop;
    const started = performance.now();
    try {
      const look = await this.look(signal, asked);
      this.show(look);
      if (asked) this.found.textContent = this.shown.textContent;
    } catch (error) {
      // The error is ignored, because the page already shows the state of the
      // connection.
      if (signal.aborted) return;
    }
    const took = performance.now() - started;
    this.timer = setTimeout(() => this.refresh(false), Math.max(1000, took * 10));
  }

  async look(signal, asked) {
    const rows = new Map();
    const { view: { state, q, failed, error, sort, order: direction }, wanted } = this;
    const take = (row) => rows.set(row.key_base64 ?? row.key, row);
    if (sort !== "") {
      const limit = Math.min(wanted, MOST_SORTED);
      const page = await get("keys", { state, q, failed, error, sort, order: direction, limit }, signal);
      // A key can occur twice in the response of a store. `take` keeps one row for each
      // key.
      page.keys.forEach(take);
      return { rows: [...rows.values()], more: page.more };
    }
    let cursor = "";
    let looked = 0;
    for (let request = 0; request < REQUESTS && rows.size < wanted; request += 1) {
      const limit = Math.min(256, wanted);
      const page = await get("keys", { state, q, failed, error, limit, cursor }, signal);
      page.keys.forEach(take);
      looked += page.looked_at;
      cursor = page.next;
      if (cursor === null) break;
      if (asked && rows.size < wanted) {
        // While a long search continues, the keys that were found so far are shown.
        this.show({ rows: [...rows.values()].sort(order), more: true });
        this.none.hidden = true;
        const of = this.total > looked ? ` of ${amount(this.total)}` : "";
        this.shown.textContent = `searched ${amount(looked)}${of} keys, found ${amount(rows.size)}; searching`;
      }
    }
    // The keys that have run the longest are the first rows. They are requested last and
    // all together. Running keys in earlier responses are removed, because their runs
    // may have been completed.
    if (state === "") {
      const running = await get("keys", { state: "running", q, failed, error, limit: 50 }, signal);
      for (const [id, row] of rows) {
        if (running.next === null && row.state === "running") rows.delete(id);
      }
      running.keys.forEach(take);
    }
    return { rows: [...rows.values()].sort(order).slice(0, wanted), more: cursor !== null };
  }

  show({ rows, more }) {
    keepFocus(this.body, () => {
      const kept = new Map();
      let after = null;
      for (const row of rows) {
        const id = row.key_base64 ?? row.key;
        const element = this.rows.get(id) ?? new Row();
        element.update(row, this.view);
        kept.set(id, element);
        const next = after ? after.nextSibling : this.body.firstChild;
        if (next !== element.tr) this.body.insertBefore(element.tr, next);
        after = element.tr;
      }
      for (const [id, { tr }] of this.rows) if (!kept.has(id)) tr.remove();
      this.rows = kept;
    });

    const { state, q, failed, error } = this.view;
    const what = [failed ? " failed" : "", state === "" ? "" : ` ${name(state)}`].join("");
    const that = [q === "" ? "" : ` with “${q}”`, error === "" ? "" : " with this error"].join("");
    const count = amount(rows.length);
    const of = more && that === "" && !failed && this.total ? ` of ${amount(this.total)}` : "";
    const least = more && of === "" ? "at least " : "";
    const keys = rows.length === 1 ? " key" : " keys";
    this.shown.textContent = `${least}${count}${of}${what}${keys}${that}`;
    const isEmpty = this.isEmpty && what === "" && that === "" && rows.length === 0;
    this.hint.hidden = !isEmpty;
    this.none.hidden = rows.length > 0 || isEmpty;
    this.none.textContent = `No${what} keys${that}${more ? " found yet: not all keys were read" : ""}.`;
    this.more.hidden = !(more && rows.length >= this.wanted) || this.view.sort !== "" && this.wanted >= MOST_SORTED;
  }
}

/** Compares two rows by state: running, backing off, waiting, ready. In a state, the oldest or next due is first. */
function order(a, b) {
  const [first, second] = a.state === "backing_off" || a.state === "waiting"
    ? [a.due_in ?? Infinity, b.due_in ?? Infinity] : [b.age ?? 0, a.age ?? 0];
  return RANK[a.state] - RANK[b.state] || first - second || (a.key < b.key ? -1 : 1);
}

class Row {
  constructor() {
    this.tr = document.createElement("tr");
    this.tr.setAttribute("role", "row");
    const cell = (name, role, kind, label) => {
      const element = document.createElement(name);
      element.setAttribute("role", role);
      element.className = kind;
      if (label) element.dataset.name = label;
      this.tr.append(element);
      return element;
    };
    this.key = cell("th", "rowheader", "key");
    this.key.scope = "row";
    this.state = cell("td", "cell", "state");
    this.age = cell("td", "cell", "amount", "age");
    this.attempt = cell("td", "cell", "amount", "attempt");
    this.next = cell("td", "cell", "amount", "due in");
    this.why = cell("td", "cell", "why");
    this.sentence = document.createTextNode("");
    this.detail = document.createElement("span");
    this.why.append(this.sentence, this.detail);
  }

  update(row, view) {
    const part = view.q;
    const set = (node, text) => {
      if (node.textContent !== text) node.textContent = text;
    };
    if (this.text !== row.key || this.part !== part) {
      const named = naming(row);
      const link = document.createElement(named ? "a" : "span");
      link.append(...marked(row.key, part));
      this.key.replaceChildren(link);
      [this.text, this.part] = [row.key, part];
    }
    const link = this.key.firstChild;
    const href = link.localName === "a" ? address({ ...view, ...naming(row) }) : "";
    if (href !== "" && link.getAttribute("href") !== href) link.setAttribute("href", href);
    set(this.state, row.again ? `${name(row.state)}, again` : name(row.state));
    this.state.className = `state ${row.state}`;
    set(this.age, row.age === null ? "" : duration(row.age));
    set(this.attempt, amount(row.attempt));
    set(this.next, row.due_in === null ? "" : duration(row.due_in));
    // Only the first line of an error is shown here. The page of the key shows all
    // lines.
    const error = row.error ? `${row.error.split("\n", 1)[0].slice(0, 200)} · ` : "";
    set(this.sentence, error + withoutTimes(row.why));
    // In a short text, spaces are replaced with no-break spaces, so that a name and its
    // value stay on one line.
    const whole = (text) => text.length < 30 ? text.replaceAll(" ", "\u00a0") : text;
    const detail = Object.entries(row.detail).filter(([name]) => name !== "fencing_token")
      .map(([name, value]) => whole(`${name} ${value}`));
    set(this.detail, detail.length ? ` · ${detail.join(" · ")}` : "");
    // Each row has one line, so long texts are cut. The tooltip contains the whole
    // texts.
    const title = [row.why, row.error, ...detail].filter(Boolean).join("\n");
    if (this.why.title !== title) [this.why.title, this.key.title] = [title, row.key];
  }
}

/** Removes the age and the time until the key is due from an explanation, because two columns contain them. */
function withoutTimes(why) {
  const time = String.raw`(?:\d+[dhm](?: \d+[hms])?|\d+(?:\.\d+)?(?:ns|µs|ms|s))\b`;
  return why.replace(new RegExp(`,? for ${time}|; ready in ${time}`, "g"), "");
}

/** Yields the parts of a text. Each occurrence of `part` is marked. */
function* marked(text, part) {
  const [all, wanted] = [lower(text), lower(part)];
  let from = 0;
  if (wanted !== "") {
    for (let at = all.indexOf(wanted); at >= 0; at = all.indexOf(wanted, from)) {
      if (at > from) yield text.slice(from, at);
      const mark = document.createElement("mark");
      mark.textContent = text.slice(at, at + part.length);
      yield mark;
      from = at + part.length;
    }
  }
  if (from < text.length) yield text.slice(from);
}

/** Converts only ASCII letters to lower case, as the server's search does. The length of the text does not change. */
function lower(text) {
  return text.replace(/[A-Z]/g, (letter) => letter.toLowerCase());
}
