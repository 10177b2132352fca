// The actions: they change the queue, and need a token.

import { get, naming, post } from "./api.js";
import { amount, name } from "./format.js";

const $ = (selector) => document.querySelector(selector);
const VERBS = { "run-now": "Run now", cancel: "Cancel", "cancel-run": "Cancel the run", revive: "Revive" };
const DONE = { "run-now": "made ready", cancel: "cancelled", "cancel-run": "the run is cancelled", revive: "revived" };

const keys = (count) => `${amount(count)} ${count === 1 ? "key" : "keys"}`;

export class Admin {
  /** `where` returns the view, and `page` the key that is shown. */
  constructor(where, page) {
    Object.assign(this, { where, page });
    // It is not stored: other programs may serve pages at this address later.
    this.token = null;
    this.actions = [];
    this.paused = false;

    $("#unlock").addEventListener("click", () => this.open("#token"));
    $("#token form").addEventListener("submit", (event) => this.unlock(event));
    $("#lock").addEventListener("click", () => this.lock("Actions are locked."));
    $("#pause").addEventListener("click", () => this.run(async () => {
      const { status } = await post(this.paused ? "resume" : "pause", {}, this.token);
      this.say(`The queue is ${name(status)}.`);
    }));
    $("#add").addEventListener("click", () => this.open("#new"));
    $("#new form").addEventListener("submit", (event) => this.add(event));
    for (const dialog of document.querySelectorAll("dialog")) {
      dialog.querySelector(".close").addEventListener("click", () => dialog.close());
    }
    for (const button of document.querySelectorAll("#bulk [data-action]")) {
      button.addEventListener("click", () => this.run(() => this.actOnAll(button.dataset.action)));
    }
    for (const button of document.querySelectorAll("#key-actions [data-action]")) {
      button.addEventListener("click", () => this.run(() => this.actOnKey(button.dataset.action)));
    }
  }

  /** Shows the status of the queue. */
  update(status) {
    this.paused = status === "paused";
    const text = this.paused ? "Resume" : "Pause";
    if ($("#pause").textContent !== text) $("#pause").textContent = text;
    $("#pause").disabled = !["open", "paused", "closed"].includes(status);
  }

  open(dialog) {
    const problem = $(`${dialog} .problem`);
    if (problem) problem.textContent = "";
    $(dialog).showModal();
  }

  say(text, isProblem = false) {
    $("#done").textContent = text;
    $("#done").classList.toggle("problem", isProblem);
  }

  lock(text) {
    this.token = null;
    document.body.dataset.admin = "locked";
    this.say(text);
  }

  /** Runs an action, and shows its error. */
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
    const input = $("#token input");
    const token = input.value.trim();
    input.value = "";
    try {
      const { actions } = await post("authenticate", {}, token);
      Object.assign(this, { token, actions });
    } catch (error) {
      $("#token .problem").textContent = error.message;
      return;
    }
    $("#token").close();
    document.body.dataset.admin = "open";
    $("#pause").hidden = !this.actions.includes("pause");
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
      const { results: [result] } = await post("add", { keys: [added] }, this.token);
      this.say(`${key.value}: ${result}`, result === "refused");
    } catch (error) {
      $("#new .problem").textContent = error.message;
      return;
    }
    key.value = "";
    $("#new").close();
  }

  /** Asks for a confirmation. */
  confirm(question, verb) {
    $("#question").textContent = question;
    $("#confirm [type=submit]").textContent = verb;
    this.open("#confirm");
    return new Promise((decide) => {
      const form = $("#confirm form");
      form.onsubmit = (event) => {
        event.preventDefault();
        form.onsubmit = null;
        $("#confirm").onclose = null;
        $("#confirm").close();
        decide(true);
      };
      // The event of the previous dialog may arrive late.
      $("#confirm").onclose = () => $("#confirm").open || decide(false);
    });
  }

  /** Acts on all keys of the table, or of another view, after a confirmation. */
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
    if (!await this.confirm(`${verb}: ${keys(matched)}${of ? ` ${of}` : ""}?`, verb)) return;
    const matching = { state, q, failed: failed === "true", error };
    const { changed } = await post(action, { matching, expected: matched }, this.token);
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
    if (!await this.confirm(`${verb}: 1 key, ${page.key}?`, verb)) return;
    const { changed } = await post(action, { keys: [named] }, this.token);
    if (changed) this.say(`${page.key}: ${DONE[action]}.`);
    else this.say(`${page.key}: not changed: it is ${name(page.state)}.`, true);
  }
}
