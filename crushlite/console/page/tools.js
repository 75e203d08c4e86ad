// Tool calls as cards: what was asked, what changed, what came out.

import { compare, counts, drawDiff, unified } from "./diff.js";
import { el, plainText, put, setText } from "./text.js";
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
// Tools whose cards are closed unless something is wrong.
const FOLDED = new Set(["view", "ls", "glob", "grep", "fetch", "todos", "question", "job_output"]);
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
  if (typeof input.new_string === "string") return compare(text(input.old_string), input.new_string);
  if (typeof input.content === "string" && "file_path" in input) return compare("", input.content);
  if (Array.isArray(input.edits)) {
    return input.edits.flatMap((edit, index) => [
      ...(index ? [{ gap: true }] : []),
      ...compare(text(edit?.old_string), text(edit?.new_string)),
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

export class Card {
  constructor() {
    this.name = el("span", { class: "tool-name" });
    this.words = el("bdi", { class: "tool-words" });
    this.counts = el("span", { class: "tool-counts" });
    this.status = el("span", { class: "chip" });
    this.input = el("div", { class: "tool-input" });
    this.changes = el("div", { class: "tool-changes" });
    this.output = el("pre", { class: "output", dir: "ltr", tabindex: "0", "aria-label": "Output" });
    this.image = el("div", {});
    const summary = el("summary", {}, this.name, this.words, this.counts, this.status);
    // From now on only the reader opens and closes it.
    summary.addEventListener("click", () => (this.touched = true));
    this.node = el(
      "details",
      { class: "tool" },
      summary,
      el("div", { class: "tool-body" }, this.input, this.changes, this.output, this.image),
    );
  }

  // `live` is the output so far, `waiting` whether a permission is asked for, `over` whether the
  // answer that holds the call was stopped.
  update({ call, result, live, waiting, over }) {
    const raw = call.input || "";
    setText(this.name, call.name);
    if (this.raw !== raw || this.result !== result) this.drawCall(call, raw, result);
    this.setStatus(call, result, waiting, over);
    const output = this.outputOf(result, live);
    plainText(this.output, output);
    this.output.hidden = output === "";
    if (!this.touched) this.node.open = waiting || !FOLDED.has(call.name) || Boolean(result?.is_error);
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
    else this.input.append(inputRows(input, rows, headline(input)));
    this.changes.replaceChildren();
    this.counts.replaceChildren();
    if (rows) {
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
    const code = this.metadata.exit_code;
    if (result?.is_error) [kind, words] = ["failed", Number.isInteger(code) ? `exit ${code}` : "failed"];
    else if (result) [kind, words] = ["done", "done"];
    else if (over) [kind, words] = ["failed", "stopped"];
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
