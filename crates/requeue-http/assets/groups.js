// The table of the groups of a queue in a store, and the actions on a group.

import { noteOf } from "./admin.js";
import { amount, duration, limit } from "./format.js";
import { List, Row } from "./list.js";

const $ = (selector) => document.querySelector(selector);
const COLUMNS = ["ready", "waiting", "running", "limit", "rate", "weight", "oldest"].map((column) => [column, "amount"]);

/** A store that has this many groups does not leave out held keys from the age of the oldest ready key. */
const MANY = 1000;

export class Groups extends List {
  /** @param admin The actions of the page. It stores the token, and sends the actions. */
  constructor(admin) {
    super("groups", "group", "oldest", "desc", ["name"]);
    this.admin = admin;
    this.held = null;
    /** True if the oldest ready key of the summary can be one that its group holds back. */
    this.mayHoldOldest = false;
    this.section.hidden = !this.exist;
    $("#group-limit form").addEventListener("submit", (event) => this.setLimit(event));
  }

  show(answer) {
    super.show(answer);
    this.held = answer.held;
    // The age includes keys that the rate of their group holds back, and all held keys if there are too many groups.
    const { rate } = this.held ?? {};
    this.mayHoldOldest = (rate?.keys ?? 0) > 0 || (answer.looked_at >= MANY && heldKeys(this.held) > 0);
  }

  fail() {
    // Old numbers of held keys would hide a late key.
    this.held = null;
    this.mayHoldOldest = false;
  }

  idOf(group) {
    return group.name;
  }

  make(group) {
    return new GroupRow(group.name, namedGroup(group.name), COLUMNS, ["Pause", "Limit"]);
  }

  act(action, group) {
    const label = namedGroup(group.name);
    if (action === "limit") {
      this.changed = group.name;
      $("#group-limit-title").textContent = `Limit of the group ${label}`;
      // The field is empty at first. The shown limit may be that of all groups, and
      // must not become a separate limit of this group by accident.
      Object.assign($("#group-limit [name=limit]"), { value: "", placeholder: group.limit ?? "none" });
      this.admin.open("#group-limit");
      return;
    }
    this.admin.run(async () => {
      const note = await this.admin.noteOfPause(action, `the group ${label}`);
      if (note === null) return;
      await this.admin.send(`group-${action}`, { group: group.name, note });
      this.admin.say(`The group ${label} is ${action}d.`);
      this.refresh();
    });
  }

  async setLimit(event) {
    event.preventDefault();
    const text = $("#group-limit [name=limit]").value;
    const limit = text === "" ? null : Number(text);
    try {
      const note = noteOf("#group-limit");
      await this.admin.send("group-limit", { group: this.changed, limit, note });
    } catch (error) {
      $("#group-limit .problem").textContent = error.message;
      return;
    }
    $("#group-limit").close();
    const value = limit === null ? "that of the queue" : amount(limit);
    this.admin.say(`The limit of the group ${namedGroup(this.changed)} is ${value}.`);
    this.refresh();
  }
}

/** Returns the number of ready keys that groups hold back. */
export function heldKeys(held) {
  return Object.values(held ?? {}).reduce((sum, wait) => sum + wait.keys, 0);
}

/** Formats the name of a group. The empty name stands for the keys without a group. */
export function namedGroup(name) {
  return name === "" ? "(no group)" : name;
}

class GroupRow extends Row {
  update(group) {
    const { ready, waiting, running, weight } = group;
    const numbers = Object.entries({ ready, waiting, running, weight });
    this.setTexts({
      ...Object.fromEntries(numbers.map(([column, number]) => [column, amount(number)])),
      limit: group.paused ? "paused" : group.limit === null ? "–" : amount(group.limit),
      rate: group.rate === null ? "–" : limit(group.rate),
      oldest: group.oldest === null ? "–" : duration(group.oldest),
    });
    this.setPaused(group.paused);
  }
}
