// The dashboard: shows the summary of each second, and the state of the connection.

import { Actions } from "./actions.js";
import { Admin } from "./admin.js";
import { amount, duration, limit, power, rate } from "./format.js";
import { Groups } from "./groups.js";
import { KeyPage } from "./key.js";
import { Plot, spark } from "./plot.js";
import { Schedules } from "./schedules.js";
import { Sections } from "./sections.js";
import { Table } from "./table.js";
import { address, isKey, read, write } from "./view.js";

const $ = (selector) => document.querySelector(selector);
const KEPT = 900;
/** The age in seconds from which the page says how old the numbers of keys are. A store counts them each second if it
 * needs less than 20 ms for that. */
const OLD = 3;
const COUNTS = [...document.querySelectorAll("[data-count]")].map(({ dataset }) => dataset.count);
const STATUS = {
  open: "open",
  paused: "paused",
  closed: "closed to new keys, completing the others",
  shut_down: "shutting down",
  unreachable: "store unreachable",
  ended: "ended",
};

const perSecond = (field) => (before, now) =>
  // The first two samples may be close together, which would give a wrong rate.
  Math.max(0, now[field] - before[field]) / Math.max(1, now.t - before.t);
/** A plot of the durations of the last minute. */
const durations = (of, what) => new Plot($(`#${of}`), {
  sentence: `${what} in the last minute`,
  scale: "log",
  format: (value, onAxis) => onAxis ? power(value) : duration(value),
  series: ["mean", "p50", "p95", "p99"].map((name, i) => (
    { name, class: "abcd"[i], value: (_, now) => now[`${of}_${name}`] }
  )),
});

const plots = [
  new Plot($("#rates"), {
    sentence: "Events per second, now",
    format: (value, onAxis) => onAxis ? amount(value) : rate(value),
    series: [
      { name: "runs", class: "a", value: perSecond("runs") },
      { name: "adds", class: "b", value: perSecond("adds") },
      { name: "coalesced", class: "c", value: perSecond("coalesced") },
      { name: "failures", class: "d", value: perSecond("failures") },
    ],
  }),
  durations("worked", "Duration of runs"),
  durations("queued", "Time for which keys were ready before a run"),
];
const table = new Table((changes) => change(changes, false));
const keyPage = new KeyPage((page) => admin.offerForKey(page));
const sections = new Sections();
const admin = new Admin(() => view, () => keyPage.page);
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
  for (const name of COUNTS) {
    const element = $(`[data-count=${name}]`);
    const count = now[name] ?? 0;
    const text = now.counts_age === null ? "–" : amount(count);
    if (element.textContent !== text) element.textContent = text;
    element.classList.toggle("zero", count === 0);
    spark($(`[data-spark=${name}]`), samples, (sample) => sample[name] ?? 0);
  }
  $(".count.damaged").hidden = !now.damaged && view.state !== "damaged";
  table.total = now[view.state || "keys"] ?? 0;
  table.isEmpty = now.keys === 0 && now.counts_age !== null;
  for (const plot of plots) plot.update(samples);
  for (const of of ["worked", "queued"]) $(`#${of}`).hidden = !summary.times;

  admin.update(summary.status);

  const facts = [STATUS[summary.status]];
  if (now.counts_age === null) facts.push("keys not counted yet");
  else if (now.counts_age >= OLD) facts.push(`keys counted ${duration(Math.round(now.counts_age))} ago`);
  if (summary.jobs) {
    const { busy, total } = summary.jobs;
    // Without a limit, the total has no meaning.
    facts.push(`${amount(busy)}${total < 1e6 ? ` of ${amount(total)}` : ""} jobs busy`);
  }
  if (summary.rate) facts.push(`rate ${limit(summary.rate)}`);
  const { hour, workers } = summary;
  if (workers) facts.push(`${amount(workers.length)} ${workers.length === 1 ? "worker" : "workers"} alive`);
  const [runs, failures, givenUp] = hour
    ? [hour.runs, hour.failures, hour.given_up] : [now.runs, now.failures, summary.given_up];
  facts.push(`${amount(runs)} runs${hour ? " in the last hour" : ""}`);
  if (failures) facts.push(`${amount(failures)} failed`);
  if (givenUp) facts.push(`${amount(givenUp)} given up`);
  facts.push(`up ${duration(Math.max(0, Math.round(now.t - summary.started)))}`);
  $("#facts").textContent = facts.join(" · ");
  // One line per worker, with the keys that it runs.
  $("#facts").title = (workers ?? [])
    .map(({ name, running }) => [name, ...running.map(({ key }) => key)].join("  ")).join("\n");
}

// --- The connection ---------------------------------------------------------------------------

/** Shows the state of the connection, and announces each change once. */
function say(link, text) {
  document.body.dataset.link = link;
  if ($("#link").textContent !== text) $("#link").textContent = text;
  setLive(link === "live");
}

function setLive(live) {
  table.setLive(live && !isKey(view));
  keyPage.setLive(live);
  sections.setLive(live && !isKey(view));
  groups.setLive(live && !isKey(view));
  schedules.setLive(live && !isKey(view));
  actions.setLive(live && !isKey(view));
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

/** Reconnects after a delay that doubles, up to 10 s. */
function again() {
  source.close();
  clearTimeout(retry);
  retry = setTimeout(connect, pause);
  pause = Math.min(pause * 2, 10_000);
}

// A page in the background needs no events, and a browser has only six connections per host.
document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    clearTimeout(retry);
    source.close();
    setLive(false);
  } else {
    connect();
  }
});

// --- The view ----------------------------------------------------------------------------

/** Changes the view. A new page is an entry in the history of the browser, and a search is not. */
function change(changes, enters) {
  view = { ...view, ...changes };
  write(view, enters);
  show();
}

/** Shows the view that the address names. */
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

/** Goes to a page of this site without loading it. */
function go(link) {
  history.pushState(null, "", link.href);
  view = read();
  show();
  $(isKey(view) ? "#key" : "#keys").focus();
  scrollTo(0, 0);
}

document.addEventListener("click", (event) => {
  const link = event.target.closest("#keys tbody a, #back");
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
