// What is allowed without asking: the rules that were granted beyond a single request, and taking
// them back. The list is fetched each time it is opened; nothing is remembered here.

import { el, putExactly } from "./text.js";

export class RulesPanel {
  // `fetch()` gives the rules, `remove(rule)` takes one back; `titleOf(session)` names a session.
  constructor(dialog, { fetch, remove, titleOf }) {
    this.dialog = dialog;
    this.fetch = fetch;
    this.remove = remove;
    this.titleOf = titleOf;
  }

  async open() {
    await this.draw();
    if (!this.dialog.open) this.dialog.showModal();
  }

  async draw() {
    const rules = (await this.fetch()) || [];
    this.dialog
      .querySelector("ul")
      .replaceChildren(...(rules.length ? rules.map((rule) => this.row(rule)) : [el("li", {}, "Nothing yet.")]));
  }

  row(rule) {
    const whose = rule.session_id ? `in “${this.titleOf(rule.session_id)}”` : "for good, in your own file";
    const button = el("button", { type: "button", class: "small", "data-rule": rule.id }, "Take back");
    button.addEventListener("click", async () => {
      button.disabled = true;
      await this.remove(rule);
      await this.draw();
      this.dialog.querySelector("button").focus();
    });
    return el(
      "li",
      {},
      el(
        "div",
        { class: "grow" },
        putExactly(el("p", { class: "scope", dir: "ltr" }), rule.words),
        putExactly(el("p", { class: "hint" }), `${rule.tool_name} (${rule.action}), ${whose}`),
      ),
      button,
    );
  }
}
