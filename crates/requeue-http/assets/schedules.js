// The table of the schedules of a queue in a store, and the actions on a schedule.

import { noteOf } from "./admin.js";
import { naming } from "./api.js";
import { duration } from "./format.js";
import { List, Row } from "./list.js";

const $ = (selector) => document.querySelector(selector);
const COLUMNS = [["spec", ""], ["zone", ""], ["next", ""], ["state", ""]];

export class Schedules extends List {
  /** @param admin The actions of the page. It stores the token, and sends the actions. */
  constructor(admin) {
    super("schedules", "schedule", "due_in", "asc", ["key", "due_in"]);
    this.admin = admin;
    $("#times form").addEventListener("submit", (event) => this.change(event));
  }

  show(answer) {
    super.show(answer);
    this.section.hidden = this.shown.length === 0;
  }

  idOf(schedule) {
    return schedule.key;
  }

  make(schedule) {
    return new ScheduleRow(schedule.key, schedule.key, COLUMNS, ["Pause", "Change", "Remove"]);
  }

  act(action, schedule) {
    const { key } = schedule;
    if (action === "change") {
      this.changed = schedule;
      $("#times-title").textContent = `Times of ${key}`;
      $("#times [name=spec]").value = schedule.spec;
      $("#times [name=zone]").value = schedule.zone ?? "";
      this.admin.open("#times");
      return;
    }
    this.admin.run(async () => {
      const question = `Remove the schedule of ${key}? The key and its runs stay.`;
      const note = action === "remove"
        ? await this.admin.confirm(question, "Remove", true)
        : await this.admin.noteOfPause(action, `the schedule of ${key}`, "It adds nothing until it is resumed.");
      if (note === null) return;
      const { changed } = await this.admin.send(`schedule-${action}`, { ...naming(schedule), note });
      if (changed) this.admin.say(`The schedule of ${key} is ${action}d.`);
      else this.admin.say(`${key} has no schedule any longer.`, true);
      this.refresh();
    });
  }

  /** Changes the times of a schedule. Its priority and its group do not change. */
  async change(event) {
    event.preventDefault();
    const { key, priority, group } = this.changed;
    const [spec, zone] = ["spec", "zone"].map((field) => $(`#times [name=${field}]`).value.trim());
    const change = { ...naming(this.changed), spec, priority, note: noteOf("#times") };
    if (zone !== "") change.zone = zone;
    if (group !== null) change.group = group;
    try {
      await this.admin.send("schedule-add", change);
    } catch (error) {
      $("#times .problem").textContent = error.message;
      return;
    }
    $("#times").close();
    this.admin.say(`The schedule of ${key} is changed.`);
    this.refresh();
  }
}

class ScheduleRow extends Row {
  update({ spec, zone, due_in: dueIn, paused, error }) {
    this.setTexts({
      spec,
      zone: zone ?? "–",
      next: dueIn === null ? "–" : dueIn === 0 ? "overdue" : `in ${duration(dueIn)}`,
      state: error ?? (paused ? "paused" : "–"),
    });
    this.setPaused(paused);
  }
}
