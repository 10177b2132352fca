// The table of the errors of failing keys, in groups.

import { naming } from "./api.js";
import { setCell, setText } from "./dom.js";
import { amount, duration, timeBefore } from "./format.js";
import { List, Row } from "./list.js";
import { address } from "./view.js";

const $ = (selector) => document.querySelector(selector);
const COLUMNS = [["keys", "amount"], ["failures", "amount"], ["key", "key"], ["first", "amount"], ["last", "amount"]];
/** The number of errors that are shown before the user asks for all of them. */
const FIRST = 5;
const NO_FIRST = "earlier failures are not known";
const NO_TIME = "the time is not recorded for each of these keys";

export class Failures extends List {
  /** @param admin The actions of the page, which revive keys. */
  constructor(admin) {
    super("failures", "error", "", "", []);
    this.admin = admin;
    this.list = null;
    $("#all-failures").addEventListener("click", () => {
      this.section.classList.add("all");
      this.show(this.list);
      // The button that had the focus is now hidden. The first of the rows that were added
      // receives the focus.
      this.body.rows[FIRST]?.querySelector("a")?.focus();
    });
  }

  idOf(group) {
    return group.error;
  }

  make(group) {
    return new FailureRow(group.error, group.error, COLUMNS, ["Revive"]);
  }

  show(list) {
    super.show(list);
    this.list = list;
    const { keys, more, cut, failures: { length } } = list;
    $("#failures table").hidden = length === 0;
    $("#all-failures").hidden = length <= FIRST || this.section.classList.contains("all");
    const errors = `${more ? "more than " : ""}${amount(length)} ${length === 1 ? "error" : "errors"}`;
    const least = cut ? "at least " : "";
    setText($("#failures-shown"), keys === 0
      ? `${cut ? "no failing key was found among the keys that were read" : "no failing keys"}`
      : `${least}${amount(keys)} ${keys === 1 ? "key" : "keys"}, ${errors}`);
    $("#failures-shown").title = cut ? `Not all keys were read, only ${amount(list.looked_at)}.` : "";
  }

  /** Revives the parked keys of a group after a confirmation. */
  act(action, { error }) {
    this.admin.run(async () => {
      await this.admin.actOnAll(action, { state: "parked", q: "", failed: "", error });
      this.refresh();
    });
  }
}

const ago = (time) => (time === null ? { reason: NO_TIME } : { text: duration(Math.round(time)) });

/** Returns the time since the first failure, and its local time. If the first failure is unknown, the oldest known
 * failure is used instead. */
function since(first, oldest) {
  const known = first ?? oldest;
  if (known === null) return ago(null);
  // The seconds of the age are omitted, because the text also contains the time of the
  // failure.
  const age = ago(known).text.replace(/ \d+ s$/, "");
  const text = `${age}, ${timeBefore(known)}`;
  return first === null ? { text: `> ${text}`, title: NO_FIRST } : { text };
}

class FailureRow extends Row {
  update(group) {
    const { error, keys, parked, failures, key, sample, first, last, oldest } = group;
    // If all keys of the group are parked, the link lists only parked keys, because a store
    // reads them faster.
    const state = keys === parked ? "parked" : "";
    setCell(this.tr.cells[0], { text: error, href: address({ state, error }), title: sample ?? error });
    const named = naming(group);
    const values = {
      keys: { text: amount(keys), title: parked ? `${amount(parked)} parked` : "none parked" },
      failures: { text: amount(failures), title: "failures in a row" },
      key: { text: key, href: named && address(named) },
      first: since(first, oldest),
      last: ago(last),
    };
    for (const [column, cell] of this.cells) setCell(cell, values[column]);
    this.buttons[0].hidden = parked === 0;
  }
}
