// Creates and changes elements of the page.

/** Creates an HTML element with these properties and children. */
export function make(kind, properties = {}, ...children) {
  const made = Object.assign(document.createElement(kind), properties);
  made.append(...children);
  return made;
}

/** Sets the text of a node. An equal text is not set again. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Creates a dash for an unknown number. Its tooltip contains the reason. */
export function unknown(reason) {
  return make("span", { className: "unknown", title: reason }, "–",
    make("span", { className: "unseen", textContent: ` ${reason}` }));
}

/** The lines of a table. Their elements are reused, so that a link does not lose the focus when the lines change. */
export class Lines {
  constructor(table) {
    this.table = table;
    this.body = table.querySelector("tbody");
    this.kinds = [...table.querySelectorAll("thead th")].map(({ className }) => className);
  }

  /** @param lines A list of cells for each line. A cell is { text, href, title }, or { reason } for an unknown value. */
  show(lines) {
    while (this.body.rows.length > lines.length) this.body.rows[lines.length].remove();
    lines.forEach((cells, at) => {
      const row = this.body.rows[at] ?? this.body.appendChild(this.line());
      cells.forEach((cell, column) => setCell(row.cells[column], cell));
    });
  }

  line() {
    const cells = this.kinds.map((className, at) => (
      at === 0 ? make("th", { className, scope: "row" }) : make("td", { className })));
    return make("tr", {}, ...cells);
  }
}

/** Shows a value in a cell of a table. */
export function setCell(cell, { text, href, title, reason }) {
  if (reason) {
    if (cell.firstChild?.title !== reason) cell.replaceChildren(unknown(reason));
    return;
  }
  const kind = href ? "A" : "SPAN";
  if (cell.firstChild?.nodeName !== kind || cell.firstChild.className === "unknown") {
    cell.replaceChildren(make(kind));
  }
  const shown = cell.firstChild;
  setText(shown, text);
  if (href && shown.getAttribute("href") !== href) shown.setAttribute("href", href);
  // A long text is cut to one line, so the tooltip contains the whole text.
  if (shown.title !== (title ?? text)) shown.title = title ?? text;
}
