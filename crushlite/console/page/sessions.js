// The list of sessions: what the daemon lists, kept up to date by events, with what each of them is
// doing, and a filter.

import { el, byId, setText } from "./text.js";

const FAILED = 200; // sessions whose last run failed that are remembered
const STATES = { needs: "needs you", busy: "working", failed: "failed" };

export class Sessions {
  constructor(choose) {
    this.choose = choose;
    this.all = new Map();
    this.list = byId("session-list");
    this.buttons = new Map();
    this.asking = new Set(); // ids of sessions that wait for a person
    this.failed = new Set(); // whose last run failed, as far as this tab has seen it
    this.current = null;
    this.wanted = ""; // the state that is shown alone
    byId("session-filter").addEventListener("input", () => this.draw(this.current));
    byId("session-states").addEventListener("click", ({ target }) => {
      const state = target.closest("button")?.dataset.state;
      if (!state) return;
      this.wanted = this.wanted === state ? "" : state;
      this.draw(this.current);
    });
  }

  // Show another workspace, whose sessions are not known yet.
  open(path) {
    this.key = `crushlite.failed.${path}`;
    this.failed = new Set(JSON.parse(sessionStorage.getItem(this.key) || "[]"));
    byId("session-filter").value = "";
    this.wanted = "";
    this.reset([]);
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

  setAsking(ids) {
    this.asking = new Set(ids);
  }

  // Note how the last run of a session ended.
  setFailed(id, failed) {
    if (failed === this.failed.has(id)) return;
    if (failed) this.failed.add(id);
    else this.failed.delete(id);
    sessionStorage.setItem(this.key, JSON.stringify([...this.failed].slice(-FAILED)));
  }

  // What a session is doing: "needs", "busy", "failed", or "".
  stateOf(session) {
    if (this.asking.has(session.id)) return "needs";
    if (session.is_busy) return "busy";
    return this.failed.has(session.id) ? "failed" : "";
  }

  draw(current) {
    this.current = current;
    const words = byId("session-filter").value.trim().toLowerCase();
    const states = this.listed.map((session) => this.stateOf(session));
    this.drawStates(states);
    const wanted = this.listed.filter(
      (session, index) =>
        (!this.wanted || states[index] === this.wanted) && titleOf(session).toLowerCase().includes(words),
    );
    const kept = new Set(wanted.map(({ id }) => id));
    for (const [id, button] of this.buttons) {
      if (kept.has(id)) continue;
      button.parentNode.remove();
      this.buttons.delete(id);
    }
    wanted.forEach((session, index) => this.place(session, index));
    byId("session-none").hidden = wanted.length > 0 || this.all.size === 0;
    const button = this.buttons.get(current);
    if (current === this.shown || (current !== null && !button)) return;
    this.shown = current;
    button?.scrollIntoView({ block: "nearest" });
  }

  place(session, index) {
    const button = this.buttons.get(session.id) || this.make(session.id);
    const state = this.stateOf(session);
    setText(button.querySelector(".title"), titleOf(session));
    setText(button.querySelector(".when"), STATES[state] || age(session.updated_at));
    button.dataset.state = state;
    if (session.id === this.current) button.setAttribute("aria-current", "true");
    else button.removeAttribute("aria-current");
    const item = button.parentNode;
    if (this.list.children[index] !== item) this.list.insertBefore(item, this.list.children[index] || null);
  }

  // The buttons that show one state alone; only those that some session is in.
  drawStates(states) {
    let any = false;
    for (const button of byId("session-states").children) {
      const { state } = button.dataset;
      const count = states.filter((each) => each === state).length;
      if (!count && this.wanted === state) this.wanted = "";
      button.hidden = count === 0;
      any ||= count > 0;
      setText(button, `${count} ${STATES[state]}`);
      button.setAttribute("aria-pressed", String(this.wanted === state));
    }
    byId("session-states").hidden = !any;
    byId("session-filter").hidden = this.all.size < 6 && !byId("session-filter").value;
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
