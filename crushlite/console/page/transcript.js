// The transcript: one view per message, keyed by its id.
//
// A message that is known is never created twice, an update replaces what is there, and `reset`
// makes the view equal to a list, whatever it showed before. Changes are drawn once per frame.

import { copied } from "./markdown.js";
import { richText } from "./rich.js";
import { Card, ShellCard, fileChip, imageOf } from "./tools.js";
import { el, plainText, plural, setText } from "./text.js";

const ENDINGS = {
  canceled: "Canceled",
  error: "Failed",
  max_tokens: "Cut off: the answer reached its length limit",
  content_filter: "Stopped by the provider's content filter",
};
const AGENTS = new Set(["agent", "agentic_fetch", "task"]); // tools that begin a session of their own
const NEAR = 80; // pixels from the end that count as being there
const PAUSE = 100; // milliseconds between two drawings in a hidden tab
const SHOWN = 200; // messages that are drawn at first, and with each click on the button above them

export class Transcript {
  // `edit(text, files)` and `again()` are called when the user wants to change or repeat a prompt;
  // `fetchChild(session)` gives the messages of a session that a call has begun.
  constructor({ root, scroller, toEnd, earlier, edit, again, fetchChild }) {
    this.root = root;
    this.scroller = scroller;
    this.toEnd = toEnd;
    this.earlier = earlier;
    this.edit = edit;
    this.again = again;
    this.fetchChild = fetchChild;
    this.before = []; // the messages above those that are drawn
    this.steps = new Map(); // by the id of a session that a call has begun: names of its tools
    earlier.addEventListener("click", () => this.showEarlier());
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
    const follow = new ResizeObserver(() => this.sticky && this.scrollToEnd());
    for (const node of [scroller, ...scroller.children]) follow.observe(node);
    toEnd.addEventListener("click", () => this.scrollToEnd());
    document.addEventListener("visibilitychange", () => this.flush());
  }

  // Make the view equal to a list. Of a long one the end is drawn, and what was drawn before.
  reset(all, { anew = false } = {}) {
    const known = anew ? -1 : all.findIndex((message) => this.views.has(message.id));
    const last = Math.max(0, all.length - SHOWN);
    this.hold(all, known < 0 ? last : Math.min(known, last));
    const messages = all.slice(this.before.length);
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
    this.sort(messages);
    this.flush();
  }

  // Keep the views in the order of the messages.
  sort(messages) {
    this.views = new Map(messages.map(({ id }) => [id, this.views.get(id)]));
  }

  hold(all, count) {
    this.before = all.slice(0, count);
    this.earlier.hidden = count === 0;
    const more = Math.min(SHOWN, count);
    setText(this.earlier, `Show ${plural(more, "earlier message")} of ${count.toLocaleString("en")}`);
  }

  // Draw more of what is above, and leave in view what was.
  showEarlier() {
    const fromEnd = this.scroller.scrollHeight - this.scroller.scrollTop;
    const all = [...this.before, ...this.shown];
    this.hold(all, Math.max(0, this.before.length - SHOWN));
    const first = this.root.firstChild;
    for (const message of all.slice(this.before.length)) {
      if (this.views.has(message.id)) break;
      this.set(message);
      const { node } = this.views.get(message.id);
      if (node) this.root.insertBefore(node, first);
    }
    this.sort(all.slice(this.before.length));
    this.sticky = false;
    this.flush();
    this.scroller.scrollTop = this.scroller.scrollHeight - fromEnd;
  }

  get shown() {
    return [...this.views.values()].map((view) => view.message);
  }

  // The last prompt, and whether something has been answered since; null without a prompt.
  get asked() {
    const messages = this.shown;
    const at = messages.findLastIndex((message) => message.role === "user");
    if (at < 0) return null;
    const begun = messages.slice(at + 1).some(({ parts }) => parts.some((part) => part.type !== "finish"));
    return { text: textOf(messages[at]), files: filesOf(messages[at]), since: messages[at].created_at, begun };
  }

  // A message of a session that a call of this one has begun: a step of that call.
  step(session, message) {
    if (message.role !== "assistant") return;
    const names = message.parts.filter(({ type }) => type === "tool_call").map(({ data }) => data.name);
    const known = this.steps.get(session) || new Map();
    this.steps.set(session, known.set(message.id, names));
    for (const call of this.calls.keys()) if (session.endsWith(call)) this.touch(this.calls.get(call));
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
      view = { node: message.role === "tool" ? null : this.article(message), slots: [] };
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
    this.scroller.scrollTop = this.size ? this.scroller.scrollHeight : 0; // suggestions begin above
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
        slot = makeSlot(part, message, this);
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
      steps: this.stepsOf(data.id),
    };
  }

  // Fetch what the session of a call has done, if that is not known: its events came long ago.
  async loadSteps(message, { id, name }) {
    const session = `${message}$$${id}`;
    if (!AGENTS.has(name) || this.steps.has(session)) return;
    this.steps.set(session, new Map());
    for (const each of (await this.fetchChild(session)) || []) this.step(session, each);
  }

  // The names of the tools that the session of a call has used, in order.
  stepsOf(call) {
    const child = [...this.steps.keys()].find((session) => session.endsWith(call));
    return child ? [...this.steps.get(child).values()].flat() : [];
  }

  article(message) {
    const node = article(message);
    const view = () => this.views.get(message.id)?.message || message;
    const act = message.role === "user" ? () => this.edit(textOf(view()), filesOf(view())) : (button) => copied(button, textOf(view()));
    const words = message.role === "user" ? "Edit" : "Copy";
    const title = message.role === "user" ? "Put it into the prompt, to change it and send it again" : "Copy this answer";
    const button = el("button", { type: "button", class: "small quiet", title }, words);
    button.addEventListener("click", () => act(button));
    node.firstChild.append(button);
    return node;
  }
}

// What a message says, without reasoning and tools.
function textOf(message) {
  const texts = message.parts.filter(({ type }) => type === "text").map(({ data }) => data.text);
  return texts.join("\n\n");
}

// The files that were sent along with a message, as a prompt takes them.
function filesOf(message) {
  const files = message.parts.filter(({ type, data }) => type === "binary" && data.Data);
  return files.map(({ data: { Path, MIMEType, Data } }) => {
    const file_name = Path.slice(Path.lastIndexOf("/") + 1);
    return { file_name, file_path: Path, mime_type: MIMEType, content: Data };
  });
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
function makeSlot({ type, data }, message, transcript) {
  if (type === "text") return textSlot(message);
  if (type === "reasoning") return reasoningSlot();
  if (type === "tool_call") {
    const card = new Card(() => transcript.loadSteps(message.id, data));
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
  if (type === "finish") return finishSlot(transcript.again);
  return null;
}

function textSlot(message) {
  const node = el("div", { class: "text", dir: "auto" });
  if (message.role === "user") return { node, update: ({ text }) => plainText(node, text) };
  return { node, update: ({ text }, { over }) => richText(node, text, !over) };
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

function finishSlot(again) {
  const words = el("p", {});
  const button = el("button", { type: "button", class: "small again", onclick: again }, "Try again");
  const node = el("div", { class: "finish" }, words, button);
  const update = ({ reason, message, details }) => {
    const ending = ENDINGS[reason];
    node.hidden = !ending;
    node.dataset.reason = reason;
    const title = reason === "canceled" ? message || ending : [ending, message].filter(Boolean).join(": ");
    plainText(words, ending ? [title, details].filter(Boolean).join("\n") : "");
  };
  return { node, update };
}
