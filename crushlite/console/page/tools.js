// Tool calls as cards: what was asked, what changed, what came out.

import { compare, comparePiece, counts, drawDiff, unified } from "./diff.js";
import { el, plainText, plural, put, setText } from "./text.js";
import { parsed } from "./api.js";

// The first of these keys that an input has is its headline.
const HEADLINES = [
  "command",
  "file_path",
  "path",
  "pattern",
  "url",
  "query",
  "shell_id",
  "question",
  "description",
];
// Tools whose cards are closed unless something is wrong, besides those of tool servers.
const FOLDED = new Set(["view", "ls", "glob", "grep", "fetch", "todos", "question", "job_output", "agent", "agentic_fetch", "task"]);
const isFolded = (name) => FOLDED.has(name) || name.startsWith("mcp_");
// How the result of a call begins that was never made, or stopped: Crush's words, and ours.
const NOT_RUN = ["user cancelled assistant tool calling", "not run"];
const CANCELED = "canceled before";
const DENIED = "User denied permission";
const WORDS = 160; // characters in the headline

function objectOf(text) {
  const value = parsed(text);
  return value !== null && typeof value === "object" && !Array.isArray(value) ? value : {};
}

function headline(input) {
  const found = HEADLINES.map((key) => input[key]).find((value) => typeof value === "string" && value);
  const words = (found || "").replace(/\s+/g, " ").trim();
  return words.length > WORDS ? words.slice(0, WORDS) + "…" : words;
}

// The diff rows of what a call changes or wants to change; null if it changes no file.
export function changesOf(input, metadata) {
  const text = (value) => (typeof value === "string" ? value : "");
  if ("old_content" in metadata || "new_content" in metadata) {
    return compare(text(metadata.old_content), text(metadata.new_content));
  }
  if (text(metadata.diff)) return unified(metadata.diff);
  if (typeof input.new_string === "string") return comparePiece(text(input.old_string), input.new_string);
  if (typeof input.content === "string" && "file_path" in input) return compare("", input.content);
  if (Array.isArray(input.edits)) {
    return input.edits.flatMap((edit, index) => [
      ...(index ? [{ gap: true }] : []),
      ...comparePiece(text(edit?.old_string), text(edit?.new_string)),
    ]);
  }
  return null;
}

// An input as rows of names and values, without what a diff or the headline shows already.
export function inputRows(input, changes, headline = "") {
  const shown = changes ? ["content", "old_string", "new_string", "edits", "old_content", "new_content"] : [];
  const list = el("dl", { class: "input" });
  for (const [name, value] of Object.entries(input)) {
    if (
      shown.includes(name) ||
      value === headline ||
      value === "" ||
      value === null ||
      value === false ||
      value === 0
    )
      continue;
    const words = typeof value === "string" ? value : JSON.stringify(value, null, 1);
    const cell = el("dd", { dir: "ltr" });
    plainText(cell, words);
    list.append(el("dt", {}, name), cell);
  }
  return list;
}

// How tools are shown whose input is no list of names and values: by name, what to draw of the input.
const RENDERERS = {
  question: ({ questions }) => lines(questions, (each) => each?.question),
  todos: ({ todos }) => lines(todos, (each) => `${{ completed: "✓", in_progress: "▸" }[each?.status] || "○"} ${each?.content}`),
};

function lines(items, words) {
  if (!Array.isArray(items)) return null;
  return el("ul", { class: "plainlist" }, ...items.slice(0, 100).map((each) => el("li", { dir: "auto" }, String(words(each) ?? ""))));
}

// The name of a tool for people: of one that a tool server has, its server and its own name.
function shownName(name) {
  const [, server, tool] = /^mcp_([^_]+)_(.+)$/.exec(name) || [];
  return server ? `${server} · ${tool}` : name;
}

// The words for how a call ended: [kind, text].
function ending(result, code) {
  const failed = Number.isInteger(code) && code !== 0;
  const begins = (words) => result.is_error && (result.content || "").startsWith(words);
  if (NOT_RUN.some(begins)) return ["stopped", "not run"];
  if (begins(CANCELED)) return ["stopped", "canceled"];
  if (begins(DENIED)) return ["stopped", "denied"];
  if (failed) return ["failed", `exit ${code}`];
  return result.is_error ? ["failed", "failed"] : ["done", "done"];
}

export class Card {
  // `opened()` is called when the card is opened.
  constructor(opened) {
    this.name = el("span", { class: "tool-name" });
    this.words = el("bdi", { class: "tool-words" });
    this.counts = el("span", { class: "tool-counts" });
    this.status = el("span", { class: "chip" });
    this.input = el("div", { class: "tool-input" });
    this.changes = el("div", { class: "tool-changes" });
    this.output = el("pre", { class: "output", dir: "ltr", tabindex: "0", "aria-label": "Output" });
    this.image = el("div", {});
    this.steps = el("ol", { class: "steps" });
    const summary = el("summary", {}, this.name, this.words, this.counts, this.status);
    // From now on only the reader opens and closes it.
    summary.addEventListener("click", () => (this.touched = true));
    this.node = el(
      "details",
      { class: "tool" },
      summary,
      el("div", { class: "tool-body" }, this.input, this.changes, this.steps, this.output, this.image),
    );
    this.node.addEventListener("toggle", () => this.node.open && opened());
  }

  // `live` is the output so far, `waiting` whether a permission is asked for, `over` whether the
  // answer that holds the call was stopped.
  update({ call, result, live, waiting, over, steps = [] }) {
    const raw = call.input || "";
    setText(this.name, shownName(call.name));
    if (this.raw !== raw || this.result !== result) this.drawCall(call, raw, result);
    this.setStatus(call, result, waiting, over);
    const output = this.outputOf(result, live);
    // What is still coming is followed, unless its reader has scrolled up.
    const { scrollTop, scrollHeight, clientHeight } = this.output;
    const follows = !result && scrollHeight - scrollTop - clientHeight < 40;
    plainText(this.output, output);
    this.output.hidden = output === "";
    this.drawSteps(steps);
    // Of a change that waits to be allowed the dialog shows the one diff.
    const wrong = this.status.dataset.kind === "failed" || (Boolean(result?.is_error) && !waiting);
    if (!this.touched) this.node.open = wrong || (!isFolded(call.name) && !(waiting && this.changes.firstChild));
    if (follows) this.output.scrollTop = this.output.scrollHeight;
  }

  // What a session that this call began has done: one line for each tool.
  drawSteps(steps) {
    if (this.steps.childNodes.length === steps.length) return;
    this.steps.replaceChildren(...steps.map((name) => el("li", {}, shownName(name))));
    if (!this.counts.querySelector(".plus")) setText(this.counts, steps.length ? plural(steps.length, "step") : "");
  }

  drawCall(call, raw, result) {
    this.raw = raw;
    this.result = result;
    const input = objectOf(raw);
    this.metadata = objectOf(result?.metadata || "");
    const unread = Object.keys(input).length === 0 && raw !== "" && raw !== "{}";
    const rows = changesOf(input, this.metadata);
    const job = this.metadata.shell_id && call.name !== "bash" ? this.metadata.command : "";
    setText(this.words, unread ? "" : [headline(input), headline({ command: job })].join(" ").trim());
    this.input.replaceChildren();
    if (unread)
      plainText(this.input.appendChild(el("pre", { class: "output" })), raw); // still coming
    else if (call.name === "bash" && input.command)
      this.input.append(el("pre", { class: "command", dir: "ltr" }, `$ ${input.command}`));
    else this.input.append(RENDERERS[call.name]?.(input) || inputRows(input, rows, headline(input)));
    this.changes.replaceChildren();
    if (rows) {
      this.counts.replaceChildren();
      const { added, removed } = counts(rows);
      this.counts.append(
        el("span", { class: "plus" }, `+${added}`),
        " ",
        el("span", { class: "minus" }, `−${removed}`),
      );
      this.changes.append(drawDiff(rows));
    }
    this.image.replaceChildren();
    const picture = imageOf(result?.mime_type, result?.data);
    if (picture) this.image.append(picture);
  }

  setStatus(call, result, waiting, over) {
    let [kind, words] = ["running", call.finished ? "running" : "writing"];
    if (result) [kind, words] = ending(result, this.metadata.exit_code);
    else if (over) [kind, words] = ["stopped", "stopped"];
    else if (waiting) [kind, words] = ["waiting", "asks you"];
    this.status.dataset.kind = kind;
    setText(this.status, words);
  }

  outputOf(result, live) {
    if (!result) return live || "";
    if (!result.is_error && this.changes.firstChild) return ""; // the diff shows it
    if (typeof this.metadata.output !== "string") return result.content || "";
    return this.metadata.output;
  }
}

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);

// An image element for a picture in base64; null if the type is not one of those.
export function imageOf(type, base64) {
  if (!PICTURES.has(type) || !base64 || !/^[A-Za-z0-9+/]+=*$/.test(base64)) return null;
  return el("img", { class: "picture", alt: "attached picture", src: `data:${type};base64,${base64}` });
}

// A command that a person ran.
export class ShellCard {
  constructor() {
    this.command = el("pre", { class: "command", dir: "ltr" });
    this.output = el("pre", { class: "output", dir: "ltr", tabindex: "0", "aria-label": "Output" });
    this.status = el("span", { class: "chip" });
    this.node = el(
      "details",
      { class: "tool", open: true },
      el("summary", {}, el("span", { class: "tool-name" }, "shell"), this.status),
      el("div", { class: "tool-body" }, this.command, this.output),
    );
  }

  update({ command, output, exit_code: code }) {
    plainText(this.command, `$ ${command}`);
    plainText(this.output, output || "");
    this.output.hidden = !output;
    this.status.dataset.kind = code ? "failed" : "done";
    setText(this.status, `exit ${code}`);
  }
}

export function fileChip(name, type) {
  const chip = el("span", { class: "file" });
  put(chip, (name || "file").slice(0, 200));
  if (type) chip.title = type;
  return chip;
}
