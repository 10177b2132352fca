// The table of the last actions of operators.

import { duration } from "./format.js";
import { List, Row } from "./list.js";

const SHOWN = 20;

export class Actions extends List {
  /** @param admin The actions of the page. The table is read again when `admin` calls `acted`. */
  constructor(admin) {
    super("actions", "action", "", "", []);
    Object.assign(this, { exist: true, most: SHOWN });
    admin.acted = () => this.refresh();
  }

  show({ actions }) {
    this.list = actions;
    super.show({ actions: actions.map((action, at) => ({ ...action, at: String(at) })) });
    this.section.hidden = actions.length === 0;
  }

  idOf(action) {
    return action.at;
  }

  make(action) {
    return new ActionRow(action.at, "", ["by", "action", "target", "note"].map((column) => [column, ""]), []);
  }
}

class ActionRow extends Row {
  update({ ago, by, action, target, note }) {
    this.setName(`${duration(Math.round(ago))} ago`);
    this.setTexts({ by, action: action.replaceAll("-", " "), target: target ?? "the queue", note: note ?? "–" });
  }
}
