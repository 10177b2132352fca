// The actions of an operator, who must enter a token first.

import { get, naming, post } from "./api.js";
import { amount, name } from "./format.js";
import { focusFirst } from "./list.js";

const $ = (selector) => document.querySelector(selector);
const VERBS = { "run-now": "Run now", cancel: "Cancel", "cancel-run": "Cancel the run", revive: "Revive" };
const DONE = { "run-now": "made ready", cancel: "cancelled", "cancel-run": "the run is cancelled", revive: "revived" };

const DANGERS = ["cancel", "cancel-run"];

/** Returns true if the action changes a key in this state. `again` is true if a running key also has a pending run. */
function applies(action, state, again) {
  switch (action) {
    case "cancel": return state === "running" ? again : state !== "idle";
    case "cancel-run": return state === "running";
    case "run-now": return state === "waiting" || state === "backing_off";
    default: return state === "parked";
  }
}

/** Returns the note that the operator has entered in a dialog. */
export const noteOf = (dialog) => $(`${dialog} [name=note]`).value.trim();

const keys = (count) => `${amount(count)} ${count === 1 ? "key" : "keys"}`;

export class Admin {
  /** `where` returns the conditions of the shown list, and `page` returns the key of the shown page. */
  constructor(where, page) {
    Object.assign(this, { where, page });
    // The token is kept only in memory. Storage of the browser belongs to the address of the
    // page, at which another program may later serve pages.
    this.token = null;
    this.by = "";
    this.actions = [];
    /** The elements that can receive the focus if the element that opened a dialog is gone. */
    this.places = [];
    this.paused = false;
    /** The function that is called after each action. */
    this.acted = () => {};

    $("#unlock").addEventListener("click", () => this.open("#token"));
    $("#token form").addEventListener("submit", (event) => this.unlock(event));
    $("#lock").addEventListener("click", () => this.lock("Actions are locked."));
    $("#pause").addEventListener("click", () => this.run(async () => {
      const action = this.paused ? "resume" : "pause";
      const note = await this.noteOfPause(action, "the queue");
      if (note === null) return;
      const { status } = await this.send(action, { note });
      this.say(`The queue is ${name(status)}.`);
    }));
    $("#add").addEventListener("click", () => this.open("#new"));
    $("#new form").addEventListener("submit", (event) => this.add(event));
    for (const dialog of document.querySelectorAll("dialog")) {
      dialog.querySelector(".close").addEventListener("click", () => dialog.close());
      dialog.addEventListener("close", () => {
        // When a dialog closes, the browser focuses the element that opened it. This element may
        // have been removed or hidden in the meantime.
        const { activeElement: active, body } = document;
        if (!dialog.open && (active === body || !active.checkVisibility())) focusFirst(...this.places);
      });
    }
    for (const button of document.querySelectorAll("#bulk [data-action]")) {
      button.addEventListener("click", () => this.run(() => this.actOnAll(button.dataset.action)));
    }
    for (const button of document.querySelectorAll("#key-actions [data-action]")) {
      button.addEventListener("click", () => this.run(() => this.actOnKey(button.dataset.action)));
    }
  }

  /** Sets the text of the button to Pause or Resume, as the status of the queue requires. */
  update(status) {
    this.paused = status === "paused";
    const text = this.paused ? "Resume" : "Pause";
    if ($("#pause").textContent !== text) $("#pause").textContent = text;
    $("#pause").disabled = !["open", "paused", "closed"].includes(status);
  }

  /** Shows the buttons of the actions that change this key. `page` is null if the key is not in the queue. */
  offerForKey(page) {
    const { state, again } = page ?? { state: "idle" };
    offer("#key-actions", (action) => applies(action, state, again));
  }

  /** Shows the buttons of the actions that change keys in this state. An empty text stands for all states. */
  offerForState(state) {
    offer("#bulk", (action) => state === "" || applies(action, state, true));
  }

  open(selector) {
    const [dialog, opener] = [$(selector), document.activeElement];
    const problem = dialog.querySelector(".problem");
    if (problem) problem.textContent = "";
    const note = dialog.querySelector("[name=note]");
    if (note) note.value = "";
    const rows = opener.closest(".list")?.querySelector(".rows");
    const beside = opener.closest("tr, .actions")?.querySelectorAll("button") ?? [];
    this.places = [...beside, rows, $("#keys"), $("#key")];
    dialog.showModal();
  }

  /** Sends an action with the token and the name of the operator. */
  async send(path, body) {
    const answer = await post(path, { ...body, by: this.by }, this.token);
    this.acted();
    return answer;
  }

  say(text, isProblem = false) {
    $("#done").textContent = text;
    $("#done").classList.toggle("problem", isProblem);
  }

  lock(text) {
    this.token = null;
    this.by = "";
    document.body.dataset.admin = "locked";
    this.say(text);
    focusFirst(document.activeElement, $("#unlock"));
  }

  /** Runs an action. If it fails, shows the error. */
  async run(action) {
    try {
      await action();
    } catch (error) {
      if (error.status === 401) this.lock("");
      this.say(error.message, true);
    }
  }

  async unlock(event) {
    event.preventDefault();
    const [input, by] = ["token", "by"].map((field) => $(`#token [name=${field}]`));
    by.value = by.value.trim();
    if (!by.reportValidity()) return;
    const token = input.value.trim();
    input.value = "";
    try {
      const { actions } = await post("authenticate", {}, token);
      Object.assign(this, { token, actions, by: by.value });
    } catch (error) {
      $("#token .problem").textContent = error.message;
      input.focus();
      return;
    }
    document.body.dataset.admin = "open";
    $("#pause").hidden = !this.actions.includes("pause");
    $("#token").close();
    this.say("Actions are unlocked until this page is closed or loaded again.");
  }

  async add(event) {
    event.preventDefault();
    const [key, after, priority] = ["key", "after", "priority"].map((field) => $(`#new [name=${field}]`));
    try {
      const added = {
        key: key.value,
        after: Number(after.value || 0),
        priority: Number(priority.value || 0),
      };
      const { results: [result] } = await this.send("add", { keys: [added], note: noteOf("#new") });
      this.say(`${key.value}: ${result}`, result === "refused");
    } catch (error) {
      $("#new .problem").textContent = error.message;
      return;
    }
    key.value = "";
    $("#new").close();
  }

  /** Asks the operator to confirm a pause, but not a resume. Returns the note, or null if the operator cancels. */
  async noteOfPause(action, what, effect = "Runs in flight continue.") {
    return action === "pause" ? this.confirm(`Pause ${what}? ${effect}`, "Pause") : "";
  }

  /** Asks the operator to confirm an action. Returns the note, or null if the operator cancels. */
  confirm(question, verb, isDanger = false) {
    $("#question").textContent = question;
    $("#confirm [type=submit]").textContent = verb;
    $("#confirm [type=submit]").classList.toggle("danger", isDanger);
    this.open("#confirm");
    return new Promise((decide) => {
      const form = $("#confirm form");
      form.onsubmit = (event) => {
        event.preventDefault();
        form.onsubmit = null;
        $("#confirm").onclose = null;
        $("#confirm").close();
        decide(noteOf("#confirm"));
      };
      // The close event of the previous dialog may arrive only after this dialog was opened. It
      // must not cancel this dialog.
      $("#confirm").onclose = () => $("#confirm").open || decide(null);
    });
  }

  /** Changes all keys of the shown list, or all keys with the given conditions, after a confirmation. */
  async actOnAll(action, { state, q, failed, error } = this.where()) {
    const { matched } = await get("count", { action, state, q, failed, error });
    const verb = VERBS[action];
    const of = [
      failed ? "that have failed" : "",
      state === "" ? "" : `in the state ${name(state)}`,
      q === "" ? "" : `with “${q}”`,
      error === "" ? "" : `with the error “${error}”`,
    ].filter(Boolean).join(", ");
    if (matched === 0) {
      this.say(`${verb}: no key${of ? ` ${of}` : ""} can be changed in this way.`);
      return;
    }
    const question = `${verb}: ${keys(matched)}${of ? ` ${of}` : ""}?`;
    const note = await this.confirm(question, verb, DANGERS.includes(action));
    if (note === null) return;
    const matching = { state, q, failed: failed === "true", error };
    const { changed } = await this.send(action, { matching, expected: matched, note });
    this.say(`${keys(changed)} ${DONE[action]}.`);
  }

  async actOnKey(action) {
    const page = this.page();
    const named = page && naming(page);
    if (!named) {
      this.say("This key is too long for an action, or not in the queue.", true);
      return;
    }
    const verb = VERBS[action];
    const note = await this.confirm(`${verb}: 1 key, ${page.key}?`, verb, DANGERS.includes(action));
    if (note === null) return;
    const { changed } = await this.send(action, { keys: [named], note });
    if (changed) this.say(`${page.key}: ${DONE[action]}.`);
    else this.say(`${page.key}: not changed: it is ${name(page.state)}.`, true);
  }
}

/** Shows the buttons whose actions `has` accepts, and hides the others. */
function offer(group, has) {
  const buttons = [...$(group).querySelectorAll("[data-action]")];
  const focused = buttons.find((button) => button === document.activeElement);
  for (const button of buttons) button.hidden = !has(button.dataset.action);
  $(group).hidden = buttons.every((button) => button.hidden);
  if (focused?.hidden) focusFirst(...buttons, $("#key"), $("#keys"));
}
