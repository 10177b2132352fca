// The page of one queue. It shows the summary of each second, and the state of the connection to
// the server.

import { Actions } from "./actions.js";
import { Admin } from "./admin.js";
import { Charts } from "./charts.js";
import { unknown } from "./dom.js";
import { Failures } from "./failures.js";
import { amount } from "./format.js";
import { Groups } from "./groups.js";
import { KeyPage } from "./key.js";
import { spark } from "./plot.js";
import { Schedules } from "./schedules.js";
import { Sections } from "./sections.js";
import { Standing } from "./standing.js";
import { Table } from "./table.js";
import { address, isKey, read, write } from "./view.js";

const $ = (selector) => document.querySelector(selector);
const KEPT = 900;
const COUNTS = [...document.querySelectorAll("[data-count]")].map(({ dataset }) => dataset.count);

const standing = new Standing();
const charts = new Charts();
const table = new Table((changes) => change(changes, false));
const keyPage = new KeyPage((page) => admin.offerForKey(page));
const sections = new Sections();
const admin = new Admin(() => view, () => keyPage.page);
const failures = new Failures(admin);
const groups = new Groups(admin);
const schedules = new Schedules(admin);
const actions = new Actions(admin);

let samples = [];
let started = null;
let view = read();

// --- Events -----------------------------------------------------------------------------

function takeHistory({ started: since, samples: columns }) {
  const names = Object.keys(columns);
  samples = columns.t.map((_, i) =>
    Object.fromEntries(names.map((name) => [name, columns[name][i]])));
  const isNew = started !== null && started !== since;
  const time = new Date(since * 1000).toLocaleTimeString();
  say("live", isNew ? `Live; restarted at ${time}` : "Live");
  started = since;
}

function takeSummary(summary) {
  const { now } = summary;
  if (!samples.length || now.t > samples.at(-1).t) samples.push(now);
  while (samples.length > KEPT) samples.shift();
  showCounts(now);
  $(".count.damaged").hidden = !now.damaged && view.state !== "damaged";
  table.total = now[view.state || "keys"] ?? 0;
  table.isEmpty = now.keys === 0 && now.counts_age !== null;
  charts.update(samples, summary.times);
  admin.update(summary.status);
  keyPage.queue = summary.queue;
  standing.update(summary, failures.list, groups, actions.list);
}

function showCounts(now) {
  const first = samples.findIndex(({ keys, adds }) => keys > 0 || adds > 0);
  const known = samples.slice(Math.max(0, first));
  for (const name of COUNTS) {
    const element = $(`[data-count=${name}]`);
    const count = now[name] ?? 0;
    if (now.counts_age === null) {
      if (element.children.length === 0) element.replaceChildren(unknown("not counted yet"));
    } else if (element.textContent !== amount(count)) {
      element.textContent = amount(count);
    }
    element.classList.toggle("zero", count === 0);
    spark($(`[data-spark=${name}]`), known, (sample) => sample.counts_age === null ? null : sample[name] ?? 0);
  }
}

// --- The connection ---------------------------------------------------------------------------

/** Shows the state of the connection to the server. Screen readers announce each change once. */
function say(link, text) {
  document.body.dataset.link = link;
  standing.connect(link, text);
  setLive(link === "live");
}

function setLive(live) {
  keyPage.setLive(live);
  for (const part of [table, failures, charts, sections, groups, schedules, actions]) part.setLive(live && !isKey(view));
}

let source = null;
let retry = null;
let pause = 1000;

function connect() {
  clearTimeout(retry);
  source?.close();
  source = new EventSource(new URL("api/v1/events", import.meta.url));
  source.addEventListener("history", (event) => {
    pause = 1000;
    takeHistory(JSON.parse(event.data));
  });
  source.addEventListener("tick", (event) => takeSummary(JSON.parse(event.data)));
  source.addEventListener("ended", (event) => {
    takeSummary(JSON.parse(event.data));
    say("ended", `Ended at ${new Date().toLocaleTimeString()}; waiting for a restart`);
    again();
  });
  source.addEventListener("error", () => {
    if (document.body.dataset.link !== "ended") say("lost", "Connection lost; retrying");
    again();
  });
}

/** Connects again after a delay. Each delay is twice the previous one, up to 10 s. */
function again() {
  source.close();
  clearTimeout(retry);
  retry = setTimeout(connect, pause);
  pause = Math.min(pause * 2, 10_000);
}

// A page in the background closes its connection, because browsers permit only six connections
// to each host.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    clearTimeout(retry);
    source.close();
    setLive(false);
  } else {
    standing.news = performance.now();
    connect();
  }
});

// --- The view ----------------------------------------------------------------------------

/** Changes the view. If `enters` is true, adds an entry to the history of the browser. */
function change(changes, enters) {
  view = { ...view, ...changes };
  write(view, enters);
  show();
}

/** Shows the view that the address of the page describes. */
function show() {
  const shows = isKey(view);
  $("#overview").hidden = shows;
  $("#back").href = address({ ...view, key: "", key_base64: "" });
  keyPage.show(shows ? { key: view.key, key_base64: view.key_base64 } : null);
  const radio = [...document.querySelectorAll("input[name=state]")];
  (radio.find((input) => input.value === view.state) ?? radio.at(-1)).checked = true;
  table.setView(view);
  admin.offerForState(view.state);
  setLive(document.body.dataset.link === "live");
}

/** Shows another view of this page without loading the page again. */
function go(link) {
  history.pushState(null, "", link.href);
  view = read();
  show();
  // The browser scrolls to the element that receives the focus.
  $(isKey(view) ? "#key" : "#keys").focus();
  if (isKey(view)) scrollTo(0, 0);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("#keys tbody a, #failures a, #slow a, #facts a, #back");
  if (!link || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  go(link);
});

addEventListener("popstate", () => {
  view = read();
  show();
});

$("#counts").addEventListener("change", (event) => {
  table.total = 0;
  change({ state: event.target.value }, false);
});

show();
connect();
