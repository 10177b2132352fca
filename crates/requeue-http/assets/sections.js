// The tables that the embedding program provides.

import { get } from "./api.js";
import { make } from "./dom.js";

const PERIOD = 2000;

export class Sections {
  constructor() {
    this.parent = document.querySelector("#sections");
    this.live = false;
    this.shown = "";
    this.stop = new AbortController();
  }

  setLive(live) {
    const exist = document.body.dataset.sections !== "0";
    const starts = live && exist && !this.live;
    this.live = live && exist;
    if (starts) this.refresh();
    if (!this.live) {
      clearTimeout(this.timer);
      this.stop.abort();
    }
  }

  async refresh() {
    clearTimeout(this.timer);
    this.stop.abort();
    this.stop = new AbortController();
    const { signal } = this.stop;
    try {
      const { sections } = await get("sections", {}, signal);
      // If the tables have not changed, their elements are kept, so that the user does
      // not lose the scroll position and the focus.
      const text = JSON.stringify(sections);
      if (text !== this.shown) this.parent.replaceChildren(...sections.map(element));
      this.shown = text;
    } catch {
      // The error is ignored, because the page already shows the state of the
      // connection.
      if (signal.aborted) return;
    }
    if (this.live) this.timer = setTimeout(() => this.refresh(), PERIOD);
  }
}

function element({ title, columns, rows }, number) {
  const heading = make("h2", { id: `section-${number}`, textContent: title });
  const head = columns.map((name) => make("th", { scope: "col", textContent: name }));
  const lines = rows.map((cells) => (
    make("tr", {}, ...cells.map((cell) => make("td", { textContent: cell })))
  ));
  const table = make("table", {},
    make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...lines));
  // The keyboard can scroll a region only if the region can have the focus.
  const region = make("div", { className: "rows", tabIndex: 0 }, table);
  region.setAttribute("role", "region");
  region.setAttribute("aria-labelledby", heading.id);
  return make("section", {}, heading, region);
}
