// The dashboard: shows the summary of each second, and the state of the connection.

import { amount, duration, power, rate } from "./format.js";
import { Plot, spark } from "./plot.js";
import { Table } from "./table.js";

const $ = (selector) => document.querySelector(selector);
const KEPT = 900;
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
const mean = (count, sum) => (before, now) =>
  now[count] > before[count] ? (now[sum] - before[sum]) / (now[count] - before[count]) : null;

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
  new Plot($("#latency"), {
    sentence: "Average durations, now",
    scale: "log",
    format: (value, onAxis) => onAxis ? power(value) : duration(value),
    series: [
      { name: "run", class: "a", value: mean("worked", "worked_seconds") },
      { name: "ready before the run", class: "b", value: mean("queued", "queued_seconds") },
    ],
  }),
];
const table = new Table();

let samples = [];
let started = null;
let state = "";

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
    const text = amount(now[name]);
    if (element.textContent !== text) element.textContent = text;
    element.classList.toggle("zero", now[name] === 0);
    spark($(`[data-spark=${name}]`), samples, (sample) => sample[name]);
  }
  table.total = now[state === "" ? "keys" : state];
  for (const plot of plots) plot.update(samples);
  $("#latency").hidden = !summary.times;

  const facts = [STATUS[summary.status], `${amount(now.runs)} runs`];
  if (now.failures) facts.push(`${amount(now.failures)} failed`);
  if (summary.given_up) facts.push(`${amount(summary.given_up)} given up`);
  facts.push(`up ${duration(Math.max(0, Math.round(now.t - summary.started)))}`);
  $("#facts").textContent = facts.join(" · ");
}

// --- The connection ---------------------------------------------------------------------------

/** Shows the state of the connection, and announces each change once. */
function say(link, text) {
  document.body.dataset.link = link;
  if ($("#link").textContent !== text) $("#link").textContent = text;
  table.setLive(link === "live");
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
    table.setLive(false);
  } else {
    connect();
  }
});

$("#counts").addEventListener("change", (event) => {
  state = event.target.value;
  table.total = 0;
  table.ask({ state });
});

// The browser restores the controls after a reload.
state = $("input[name=state]:checked").value;
table.state = state;
table.part = $("#search").value;
connect();
