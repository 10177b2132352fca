// The page of all queues of a store. It requests the table again every few seconds
// while the page is visible.

import { amount, duration, rate } from "./format.js";
import { List, Row } from "./list.js";

const $ = (selector) => document.querySelector(selector);
const COLUMNS = [
  ["state", "why"],
  ...["oldest", "failed", "failures", "runs", "ready", "waiting", "running", "parked"].map((column) => [column, "amount"]),
];
const MOST = 1000;
/** If the numbers of a queue are older than this, in seconds, their age is shown. */
const OLD = 15;

class Queues extends List {
  constructor() {
    super("queues", "queue", "name", "asc", ["name"]);
    this.filter = { limit: MOST, q: "" };
  }

  idOf(queue) {
    return queue.name;
  }

  /** Returns a constant delay. The server reads the store once for all pages, so a slow response needs no longer delay. */
  delay() {
    return 2000;
  }

  make(queue) {
    return new QueueRow(queue);
  }

  show(answer) {
    super.show(answer);
    const { looked_at: all, queues, error, age } = answer;
    $("#queues table").hidden = queues.length === 0;
    $("#hint").hidden = all > 0;
    // If the server could not read the list, the page must say that the numbers are
    // old.
    if (error === null) say("live", "Live");
    else say("lost", `Store unreachable: ${error}; numbers from ${duration(Math.round(age))} ago`);
    const paused = queues.filter((queue) => queue.paused).length;
    const unread = queues.filter((queue) => queue.error !== null).length;
    $("#facts").textContent = [[paused, "paused"], [unread, "cannot be read"]]
      .filter(([number]) => number > 0).map(([number, what]) => `${amount(number)} ${what}`).join(" · ");
  }

  fail(error) {
    // The status 503 means that the server cannot read its store.
    const text = error.message === "503" ? "Store unreachable" : "Connection lost";
    say("lost", `${text}; retrying`);
  }
}

class QueueRow extends Row {
  constructor(queue) {
    super(queue.name, queue.name, COLUMNS, []);
    const link = Object.assign(document.createElement("a"), { textContent: queue.name });
    // The link is relative to this script. It cannot be relative to the page, because
    // the address of the page may lack the final slash.
    link.href = new URL(queue.path, import.meta.url);
    this.tr.firstElementChild.replaceChildren(link);
  }

  update(queue) {
    const number = (value) => value === null ? "–" : amount(value);
    const { failed, ready, waiting, running, parked } = queue;
    const numbers = Object.entries({ failed, ready, waiting, running, parked });
    this.setTexts({
      ...Object.fromEntries(numbers.map(([column, value]) => [column, number(value)])),
      state: state(queue),
      oldest: queue.oldest === null ? "–" : duration(queue.oldest),
      failures: queue.failures === null ? "–" : small(queue.failures),
      runs: queue.runs === null ? "–" : small(queue.runs),
    });
    this.tr.classList.toggle("paused", queue.paused);
    this.tr.classList.toggle("unread", queue.error !== null);
  }
}

/** Formats a rate. A rate below 0.1 per second is shown with more digits, so that it does not look like zero. */
function small(number) {
  return number > 0 && number < 0.095 ? number.toFixed(3) : rate(number);
}

/** Returns the state of a queue in words, and the reason why its numbers are missing or old. */
function state(queue) {
  const { paused, workers, error, damaged, counts_age: age } = queue;
  const facts = [paused ? "paused" : "open"];
  if (error !== null) return `${facts[0]} · not read: ${error}`;
  if (age === null) return `${facts[0]} · reading`;
  facts.push(workers === 0 ? "no worker alive" : `${amount(workers)} ${workers === 1 ? "worker" : "workers"}`);
  if (damaged > 0) facts.push(`${amount(damaged)} damaged`);
  if (age >= OLD) facts.push(`counted ${duration(Math.round(age))} ago`);
  return facts.join(" · ");
}

/** Shows the state of the connection to the server. Screen readers announce each change once. */
function say(link, text) {
  document.body.dataset.link = link;
  if ($("#link").textContent !== text) $("#link").textContent = text;
}

const queues = new Queues();

$("#search").addEventListener("input", ({ target }) => {
  queues.filter.q = target.value;
  queues.refresh();
});
$("[role=search]").addEventListener("submit", (event) => event.preventDefault());
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.matches("input")) return;
  event.preventDefault();
  $("#search").focus();
});
// A page in the background sends no requests.
document.addEventListener("visibilitychange", () => queues.setLive(!document.hidden));
queues.setLive(!document.hidden);
