// The command palette: everything that can be done, found by typing a part of its name.

import { byId, el, put } from "./text.js";

const MOST = 50; // rows that are shown

export class Palette {
  // `rows()` gives [{name, hint?, act}], the most useful first.
  constructor(dialog, rows) {
    this.dialog = dialog;
    this.rows = rows;
    this.box = byId("palette-text");
    this.list = byId("palette-list");
    this.found = [];
    this.at = 0;
    this.box.addEventListener("input", () => this.draw());
    this.box.addEventListener("keydown", (event) => this.onKey(event));
    document.addEventListener("keydown", (event) => {
      if (!(event.ctrlKey || event.metaKey) || event.altKey || event.key.toLowerCase() !== "k") return;
      event.preventDefault();
      if (this.dialog.open) this.dialog.close();
      else this.open();
    });
  }

  async open() {
    if (document.querySelector("dialog:modal") || byId("workspace-view").hidden) return;
    this.known = this.rows();
    this.box.value = "";
    this.dialog.showModal();
    this.draw();
    this.known = await Promise.resolve(this.known);
    this.draw();
  }

  // Rows whose name holds every word that is typed.
  draw() {
    const words = this.box.value.toLowerCase().split(/\s+/).filter(Boolean);
    const known = Array.isArray(this.known) ? this.known : [];
    const fits = ({ name, hint = "" }) => words.every((word) => `${name} ${hint}`.toLowerCase().includes(word));
    this.found = known.filter(fits).slice(0, MOST);
    this.list.replaceChildren(
      ...this.found.map(({ name, hint = "" }, index) => {
        const label = el("bdi", { class: "grow" });
        put(label, name.slice(0, 200));
        const more = el("span", { class: "hint" });
        put(more, hint.slice(0, 120));
        const row = el("li", { role: "option", id: `palette-${index}` }, label, more);
        row.addEventListener("click", () => this.choose(index));
        return row;
      }),
    );
    this.move(0);
  }

  move(to) {
    const last = Math.max(0, this.found.length - 1);
    this.at = Math.min(Math.max(0, to), last);
    [...this.list.children].forEach((row, index) => row.setAttribute("aria-selected", String(index === this.at)));
    const row = this.list.children[this.at];
    this.box.setAttribute("aria-activedescendant", row ? row.id : "");
    row?.scrollIntoView({ block: "nearest" });
  }

  onKey(event) {
    const to = { ArrowDown: this.at + 1, ArrowUp: this.at - 1, Home: 0, End: this.found.length }[event.key];
    if (to !== undefined) this.move(to);
    else if (event.key === "Enter" && !event.isComposing) this.choose(this.at);
    else return;
    event.preventDefault();
  }

  choose(index) {
    const row = this.found[index];
    if (!row) return;
    this.dialog.close();
    row.act();
  }
}
