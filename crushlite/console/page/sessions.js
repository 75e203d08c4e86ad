// The list of sessions: what the daemon lists, kept up to date by events.

import { el, byId, setText } from "./text.js";

export class Sessions {
  constructor(choose) {
    this.choose = choose;
    this.all = new Map();
    this.list = byId("session-list");
    this.buttons = new Map();
  }

  // Replace the list by the daemon's.
  reset(sessions) {
    this.all = new Map(sessions.map((session) => [session.id, session]));
  }

  // Apply an event. It does not say who is busy or attached: that is kept from the last list.
  apply(action, session) {
    if (session.parent_session_id) return;
    const known = this.all.get(session.id);
    const { is_busy = false, attached_clients = 0 } = known || {};
    if (action === "deleted" || known?.updated_at !== session.updated_at) this.all.delete(session.id);
    if (action === "deleted") return;
    const rest = this.all.has(session.id) ? this.all : new Map([[session.id, session], ...this.all]);
    this.all = rest.set(session.id, { ...session, is_busy, attached_clients });
  }

  get(id) {
    return this.all.get(id);
  }

  // In the daemon's order: the one changed last first.
  get listed() {
    return [...this.all.values()];
  }

  setBusy(id, busy) {
    const session = this.all.get(id);
    if (session) session.is_busy = busy;
  }

  draw(current) {
    const wanted = this.listed;
    for (const [id, button] of this.buttons) {
      if (this.all.has(id)) continue;
      button.parentNode.remove();
      this.buttons.delete(id);
    }
    wanted.forEach((session, index) => {
      const button = this.buttons.get(session.id) || this.make(session.id);
      setText(button.querySelector(".title"), titleOf(session));
      setText(button.querySelector(".when"), session.is_busy ? "working" : age(session.updated_at));
      button.classList.toggle("busy", session.is_busy);
      if (session.id === current) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
      const item = button.parentNode;
      if (this.list.children[index] !== item) this.list.insertBefore(item, this.list.children[index] || null);
    });
    if (current === this.shown) return;
    this.shown = current;
    this.buttons.get(current)?.scrollIntoView({ block: "nearest" });
  }

  make(id) {
    const button = el(
      "button",
      { class: "session" },
      el("bdi", { class: "title" }),
      el("span", { class: "when" }),
    );
    button.dataset.id = id;
    button.addEventListener("click", () => this.choose(id));
    this.list.append(el("li", {}, button));
    this.buttons.set(id, button);
    return button;
  }
}

export function titleOf(session) {
  return (session.title || "Untitled").replace(/\s+/g, " ").slice(0, 200);
}

function age(seconds) {
  const minutes = Math.floor((Date.now() / 1000 - seconds) / 60);
  if (minutes < 1) return "now";
  if (minutes < 60) return `${minutes} min`;
  if (minutes < 60 * 24) return `${Math.floor(minutes / 60)} h`;
  return new Date(seconds * 1000).toLocaleDateString();
}
