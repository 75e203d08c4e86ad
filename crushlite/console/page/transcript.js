// The transcript: one view per message, keyed by its id.
//
// A message that is known is never created twice, an update replaces what is there, and `reset`
// makes the view equal to a list, whatever it showed before. Changes are drawn once per frame.

import { Card, ShellCard, fileChip, imageOf } from "./tools.js";
import { el, plainText, richText, setText } from "./text.js";

const ENDINGS = {
  canceled: "Canceled",
  error: "Failed",
  max_tokens: "Cut off: the answer reached its length limit",
  content_filter: "Stopped by the provider's content filter",
};
const NEAR = 80; // pixels from the end that count as being there
const PAUSE = 100; // milliseconds between two drawings in a hidden tab

export class Transcript {
  constructor(root, scroller, toEnd) {
    this.root = root;
    this.scroller = scroller;
    this.toEnd = toEnd;
    this.views = new Map(); // by message id
    this.results = new Map(); // by tool call: {from, part}
    this.calls = new Map(); // by tool call: the id of the message that holds it
    this.live = new Map(); // by tool call: output so far
    this.waiting = new Set(); // tool calls that wait for a permission
    this.dirty = new Set();
    this.sticky = true;
    this.scheduled = false;
    this.top = 0; // where the last scroll ended
    // Only scrolling up leaves the end: a dialog that makes the transcript smaller does not.
    scroller.addEventListener("scroll", () => {
      const near = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < NEAR;
      if (near || scroller.scrollTop < this.top) this.sticky = near;
      this.top = scroller.scrollTop;
      this.toEnd.hidden = this.sticky;
    });
    new ResizeObserver(() => this.sticky && this.scrollToEnd()).observe(scroller);
    toEnd.addEventListener("click", () => this.scrollToEnd());
    document.addEventListener("visibilitychange", () => this.flush());
  }

  reset(messages, { anew = false } = {}) {
    const wanted = new Set(messages.map((message) => message.id));
    for (const id of [...this.views.keys()]) if (!wanted.has(id)) this.remove(id);
    if (anew) {
      this.live.clear();
      this.sticky = true;
    }
    let cursor = this.root.firstChild;
    for (const message of messages) {
      this.set(message);
      const { node } = this.views.get(message.id);
      if (node === null) continue;
      if (node === cursor) cursor = cursor.nextSibling;
      else this.root.insertBefore(node, cursor);
    }
    this.flush();
  }

  apply(action, message) {
    if (action === "deleted") this.remove(message.id);
    else if (action === "updated" || !this.views.has(message.id)) this.set(message);
  }

  output({ tool_call_id: call, output }) {
    this.live.set(call, output);
    this.touch(this.calls.get(call));
  }

  setWaiting(calls) {
    const before = this.waiting;
    this.waiting = new Set(calls);
    for (const call of [...before, ...this.waiting]) this.touch(this.calls.get(call));
  }

  get size() {
    return this.views.size;
  }

  set(message) {
    let view = this.views.get(message.id);
    if (!view) {
      view = { node: message.role === "tool" ? null : article(message), slots: [] };
      this.views.set(message.id, view);
      if (view.node) this.root.append(view.node);
    }
    view.message = message;
    for (const { type, data } of message.parts) {
      if (type === "tool_call") this.calls.set(data.id, message.id);
      if (type === "tool_result") {
        this.results.set(data.tool_call_id, { from: message.id, part: data });
        this.live.delete(data.tool_call_id);
        this.touch(this.calls.get(data.tool_call_id));
      }
    }
    this.touch(message.id);
  }

  remove(id) {
    const view = this.views.get(id);
    if (!view) return;
    view.node?.remove();
    this.views.delete(id);
    this.dirty.delete(id);
    for (const [call, { from }] of this.results) if (from === id) this.results.delete(call);
    for (const [call, from] of this.calls) if (from === id) this.calls.delete(call);
  }

  touch(id) {
    if (id === undefined) return;
    this.dirty.add(id);
    if (this.scheduled) return;
    this.scheduled = true;
    if (document.hidden) setTimeout(() => this.flush(), PAUSE);
    else requestAnimationFrame(() => this.flush());
  }

  flush() {
    this.scheduled = false;
    for (const id of this.dirty) {
      const view = this.views.get(id);
      if (view?.node) this.draw(view);
    }
    this.dirty.clear();
    if (this.sticky) this.scrollToEnd();
  }

  scrollToEnd() {
    this.sticky = true;
    this.scroller.scrollTop = this.scroller.scrollHeight;
    this.toEnd.hidden = true;
  }

  draw(view) {
    const { message, node } = view;
    const finish = message.parts.find((part) => part.type === "finish")?.data;
    node.classList.toggle("streaming", message.role === "assistant" && !finish);
    const box = node.lastChild;
    let count = 0;
    for (const part of message.parts) {
      const key = `${part.type}:${part.data.id || ""}`;
      let slot = view.slots[count];
      if (slot?.key !== key) {
        for (const old of view.slots.splice(count)) old.node.remove();
        slot = makeSlot(part, message);
        if (slot === null) continue;
        slot.key = key;
        view.slots.push(slot);
        box.append(slot.node);
      }
      slot.update(part.data, this.stateOf(part, finish));
      count += 1;
    }
    for (const old of view.slots.splice(count)) old.node.remove();
  }

  stateOf({ type, data }, finish) {
    if (type !== "tool_call") return { over: Boolean(finish) };
    return {
      call: data,
      result: this.results.get(data.id)?.part,
      live: this.live.get(data.id),
      waiting: this.waiting.has(data.id),
      over: Boolean(finish) && ["canceled", "error"].includes(finish.reason),
    };
  }
}

function article(message) {
  const mine = message.role === "user";
  const who = mine ? "You" : message.is_summary_message ? "Summary" : message.model || "Agent";
  const seconds = message.created_at > 1e12 ? message.created_at / 1000 : message.created_at;
  const time = new Date(seconds * 1000);
  const stamp = el("time", { datetime: time.toISOString(), title: time.toLocaleString() });
  stamp.textContent = time.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return el(
    "article",
    { class: `msg ${mine ? "user" : "assistant"}`, "data-id": message.id },
    el("header", {}, el("bdi", { class: "who" }, who), stamp),
    el("div", { class: "parts" }),
  );
}

// For one part of a message: its node, and a function that draws a newer state of the part.
function makeSlot({ type, data }, message) {
  if (type === "text") return textSlot(message);
  if (type === "reasoning") return reasoningSlot();
  if (type === "tool_call") {
    const card = new Card();
    return { node: card.node, update: (_, state) => card.update(state) };
  }
  if (type === "shell_command") {
    const card = new ShellCard();
    return { node: card.node, update: (part) => card.update(part) };
  }
  if (type === "binary") {
    const node = el("div", {}, imageOf(data.MIMEType, data.Data), fileChip(data.Path, data.MIMEType));
    return { node, update: () => {} };
  }
  if (type === "image_url") return { node: el("div", {}, fileChip(data.url, "picture")), update: () => {} };
  if (type === "finish") return finishSlot();
  return null;
}

function textSlot(message) {
  const node = el("div", { class: "text", dir: "auto" });
  const draw = message.role === "user" ? plainText : richText;
  return { node, update: ({ text }) => draw(node, text) };
}

function reasoningSlot() {
  const title = el("summary", {});
  const words = el("div", { class: "thought", dir: "auto" });
  const node = el("details", { class: "reasoning" }, title, words);
  let touched = false;
  title.addEventListener("click", () => (touched = true));
  const update = ({ thinking, started_at: began, finished_at: ended }, { over }) => {
    const running = !ended && !over;
    const seconds = began && ended ? Math.max(1, Math.round(ended - began)) : 0;
    setText(title, running ? "Thinking …" : seconds ? `Thought for ${seconds} s` : "Thought");
    plainText(words, thinking);
    if (!touched) node.open = running;
  };
  return { node, update };
}

function finishSlot() {
  const node = el("p", { class: "finish" });
  const update = ({ reason, message, details }) => {
    const words = ENDINGS[reason];
    node.hidden = !words;
    node.dataset.reason = reason;
    const title = reason === "canceled" ? message || words : [words, message].filter(Boolean).join(": ");
    plainText(node, words ? [title, details].filter(Boolean).join("\n") : "");
  };
  return { node, update };
}
