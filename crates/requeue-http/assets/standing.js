// The first lines of the page: the status of the queue, the causes of waits, and the
// longest runs.

import { naming } from "./api.js";
import { Lines, make, setText, unknown } from "./dom.js";
import { amount, duration, limit } from "./format.js";
import { heldKeys, namedGroup } from "./groups.js";
import { address } from "./view.js";

const $ = (selector) => document.querySelector(selector);
/** If the numbers of keys are older than this, in seconds, the page shows their age. A store counts keys each second if
 * it needs less than 20 ms for that. */
const OLD = 3;
/** If the numbers of keys are older than this, in seconds, they do not affect decisions. A slow store still counts
 * each minute. */
const STALE = 90;
/** If the server sends nothing for this time, in seconds, the connection counts as lost. It sends a summary each
 * second. */
const SILENT = 5;
const LONGEST = 5;
const NO_HOUR = "the store has not answered";
const NO_TIMES = "the queue keeps no times";
const PARKED = "keys that were given up, and not revived, added again or cancelled since";
const STATUS = {
  closed: "Closed to new keys, completing the others",
  shut_down: "Shutting down",
  unreachable: "Store unreachable",
};

const seconds = (time) => duration(Math.max(0, Math.round(time)));

export class Standing {
  constructor() {
    this.link = "connecting";
    this.said = "";
    this.summary = null;
    this.news = performance.now();
    this.longest = new Lines($("#longest"));
    this.waits = new Lines($("#waits"));
    setInterval(() => this.show(), 1000);
  }

  /** Sets the state of the connection to the server, and the words for it. */
  connect(link, said) {
    Object.assign(this, { link, said, news: performance.now() });
    this.show();
  }

  /** Shows a summary. `failures`, `actions` and the held keys of `groups` are null if they were not read. */
  update(summary, failures, groups, actions) {
    Object.assign(this, { summary, groups, news: performance.now() });
    this.show();
    this.showFacts();
    this.showLongest();
    const waits = waitsOf(summary, failures, groups, actions);
    this.waits.show(waits);
    $("#waits").classList.toggle("empty", waits.length === 0);
  }

  show() {
    const [health, text, since, why = ""] = this.state();
    document.body.dataset.health = health;
    // The time has a separate element, because screen readers announce each change
    // of the status.
    setText($("#link"), text);
    setText($("#since"), since);
    $("#since").title = why;
  }

  /** Returns the health of the queue, a sentence, the time since its beginning, and the reason if this is unknown. */
  state() {
    const { link, said, summary } = this;
    const silent = (performance.now() - this.news) / 1000;
    const last = `last numbers ${seconds(silent)} ago`;
    if (link !== "live") return [link === "connecting" ? "unknown" : "bad", said || "Connecting", summary ? last : ""];
    if (summary === null) return ["unknown", said, ""];
    if (silent > SILENT) return ["bad", "No news from the server", last];
    const age = summary.now.counts_age;
    const counted = age === null ? "keys not counted yet" : `keys counted ${seconds(age)} ago`;
    if (summary.status === "unreachable") return ["bad", STATUS.unreachable, counted];
    if (age >= STALE) return ["bad", "The numbers are old", counted];
    if (summary.status === "paused") return paused(summary);
    if (STATUS[summary.status]) return ["warn", STATUS[summary.status], ""];
    return ["ok", said, age === null || age >= OLD ? counted : ""];
  }

  showFacts() {
    const { now, hour, workers, jobs, rate, started, given_up: givenUp } = this.summary;
    const facts = [];
    if (workers) facts.push(alive(workers));
    if (jobs) {
      const { busy, total } = jobs;
      // A very large total means that the number of jobs is not limited, so it is
      // omitted.
      const place = workers ? " of this process" : "";
      facts.push([`${amount(busy)}${total < 1e6 ? ` of ${amount(total)}` : ""} jobs${place} busy`]);
    }
    if (!workers && !jobs) {
      const inMemory = "the program does not tell the page its workers";
      facts.push([unknown(document.body.dataset.activity === "1" ? NO_HOUR : inMemory), " workers alive"]);
    }
    facts.push(oldest(this.summary, this.groups));
    if (rate) facts.push([`rate ${limit(rate)}`]);
    if (hour || document.body.dataset.activity !== "1") {
      const [runs, failures, lost] = hour ? [hour.runs, hour.failures, hour.given_up] : [now.runs, now.failures, givenUp];
      facts.push([`${amount(runs)} runs${hour ? " in the last hour" : ""}`]);
      if (failures) facts.push([`${amount(failures)} failed`]);
      if (lost) facts.push(givenUpOf(lost, now.parked));
    } else {
      facts.push([unknown(NO_HOUR), " runs in the last hour"]);
    }
    facts.push([`up ${seconds(now.t - started)}`]);
    $("#facts").replaceChildren(...facts.flatMap((fact, at) => (at === 0 ? fact : [" · ", ...fact])));
  }

  showLongest() {
    const { longest, times, now } = this.summary;
    const noWorker = document.body.dataset.activity === "1"
      ? "the worker is not known" : "a queue in memory does not know the worker of a run";
    const line = (row) => {
      const { worker, slot } = row.detail;
      const named = naming(row);
      const href = named && address({ ...named });
      return [{ text: row.key, href },
        row.age === null ? { reason: NO_TIMES } : { text: duration(row.age) },
        worker ? { text: worker } : slot ? { text: `slot ${slot}` } : { reason: noWorker }];
    };
    const lines = longest.slice(0, LONGEST).map(line);
    // If the queue does not keep times, the longest runs are unknown.
    if (!times && now.running) lines.push([{ text: "runs" }, { reason: NO_TIMES }, { reason: NO_TIMES }]);
    this.longest.show(lines);
    $("#longest").classList.toggle("empty", lines.length === 0);
  }
}

function paused({ paused_by: by, paused_for: time, paused_note: note }) {
  const text = by ? `Paused by ${by}` : "Paused";
  if (time !== undefined && time !== null) return ["warn", text, `for ${seconds(time)}${note ? `, note: ${note}` : ""}`];
  return ["warn", text, "since unknown", "A program made this pause without a record."];
}

/** Returns the number of workers. The tooltip has a line for each worker, with the keys that it runs. */
function alive(workers) {
  const title = workers.map(({ name, running }) => [name, ...running.map(({ key }) => key)].join("  ")).join("\n");
  const text = `${amount(workers.length)} ${workers.length === 1 ? "worker" : "workers"} alive`;
  return [make("span", { title, textContent: text, className: workers.length ? "" : "late" })];
}

/** Returns the number of keys that were given up, and the number of keys that are parked. */
function givenUpOf(lost, parked) {
  const text = `${amount(lost)} given up`;
  if (parked === null) return [text];
  const href = address({ state: "parked", sort: "age", order: "desc" });
  return [`${text}, `, make("a", { href, textContent: `${amount(parked)} parked now`, title: PARKED })];
}

/** Returns the age of the oldest ready key that need not wait for its group, and the target. The age is late only if no
 * pause and no rate explains it. */
function oldest({ now, status, rate, at_rate: atRate, oldest_ready: age, target }, { held, mayHoldOldest }) {
  if (now.counts_age === null) return ["oldest ready ", unknown("the keys are not counted yet")];
  if (now.ready === 0) return ["no key ready"];
  if (age === null) return ["oldest ready ", unknown(NO_TIMES)];
  if (age === 0 && heldKeys(held) >= now.ready) return ["each ready key is held back by its group"];
  const group = mayHoldOldest ? "its group may hold it back" : "";
  const cause = status === "paused" ? "the queue is paused" : atRate ? `the rate is ${limit(rate)}` : group;
  const isLate = target !== null && age > target && cause === "";
  const beside = cause ? `: ${cause}` : target === null ? "" : isLate ? `, over the target of ${duration(target)}` : `, target ${duration(target)}`;
  const href = address({ state: "ready", sort: "age", order: "desc" });
  const link = make("a", { href, textContent: `oldest ready ${age < 1 ? "under 1 s" : seconds(age)}${beside}` });
  link.className = isLate ? "late" : "";
  return [link];
}

/** Returns the groups whose ready keys must wait: the name of the oldest key's group, and the number of the others. */
function groupsOf({ group, groups }) {
  const others = groups > 1 ? ` and ${amount(groups - 1)} more` : "";
  return `group${groups > 1 ? "s" : ""} ${namedGroup(group)}${others}`;
}

/** Returns the paused groups. If there is only one, and its pause is a known action, the operator is also returned. */
function pausedGroups(wait, actions) {
  const isOfGroup = ({ action, target }) => /^group-(pause|resume)$/.test(action) && target === namedGroup(wait.group);
  const last = wait.groups === 1 ? actions?.find(isOfGroup) : undefined;
  return last?.action === "group-pause" ? `${groupsOf(wait)}, paused by ${last.by}` : `paused ${groupsOf(wait)}`;
}

/** Returns a line for each cause of the waits of pending keys. */
function waitsOf({ now, status, at_rate: atRate, rate, times, oldest_ready: oldest }, failures, { held, mayHoldOldest }, actions) {
  const noTime = { reason: "the queue does not record since when a key waits" };
  const age = (time) => (time === null || time === undefined ? { reason: NO_TIMES } : { text: duration(time) });
  const ready = address({ state: "ready", sort: "age", order: "desc" });
  const waiting = address({ state: "waiting", sort: "due_in", order: "asc" });
  const causes = [];
  const first = times ? oldest : null;
  if (status === "paused") {
    causes.push(["paused queue", now.ready, age(first), ready]);
  } else {
    const groups = [
      [(wait) => pausedGroups(wait, actions), held?.paused],
      [(wait) => `limit of ${groupsOf(wait)}`, held?.limit],
      [(wait) => `rate of ${groupsOf(wait)}`, held?.rate],
    ];
    let rest = now.ready;
    for (const [cause, wait] of groups) {
      if (!wait?.keys) continue;
      causes.push([cause(wait), wait.keys, age(wait.oldest), ready]);
      rest -= wait.keys;
    }
    const others = mayHoldOldest ? { reason: "known for all ready keys only" } : age(first);
    causes.push([atRate ? `rate ${limit(rate)}` : "worker", Math.max(0, rest), others, ready]);
  }
  // In a queue in a store, the number of waiting keys includes the keys that back off.
  const backingOff = now.backing_off ?? (failures && !failures.cut ? failures.waiting : null);
  if (backingOff === null) {
    causes.push(["time or backoff", now.waiting, noTime, waiting]);
  } else {
    const failed = now.backing_off === null
      ? address({ state: "waiting", failed: "true" }) : address({ state: "backing_off", sort: "due_in", order: "asc" });
    causes.push(["backoff", backingOff, noTime, failed]);
    const delayed = now.backing_off === null ? Math.max(0, now.waiting - backingOff) : now.waiting;
    causes.push(["due time", delayed, noTime, waiting]);
  }
  if (now.counts_age === null) return [];
  return causes.filter(([, count]) => count > 0)
    .map(([cause, count, oldest, href]) => [{ text: cause, href }, { text: amount(count) }, oldest]);
}
