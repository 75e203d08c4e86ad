// The prompts that wait in a session.

import { byId, el } from "./text.js";

const WAITING = { steer: "joins in at the next step", interrupt: "starts at once" };

export class Queue {
  // `remove(run)` takes a prompt out.
  constructor(remove) {
    this.remove = remove;
    this.drawn = "";
  }

  draw(prompts) {
    const now = JSON.stringify(prompts);
    if (now === this.drawn) return; // a button that is about to be pressed must stay
    this.drawn = now;
    const inside = byId("queue").contains(document.activeElement);
    byId("queue").hidden = prompts.length === 0;
    byId("queue-list").replaceChildren(
      ...prompts.map((waiting) => {
        const remove = el("button", { class: "small", "aria-label": "Take this prompt out" }, "Remove");
        remove.addEventListener("click", () => this.remove(waiting.run_id));
        return el(
          "li",
          {},
          el("bdi", { class: "grow" }, waiting.text.slice(0, 300)),
          el("span", { class: "hint" }, WAITING[waiting.when_busy] || ""),
          remove,
        );
      }),
    );
    if (inside) byId("prompt").focus();
  }
}
