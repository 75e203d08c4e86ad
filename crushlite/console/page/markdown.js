// Markdown as models write it, made into DOM: headings, paragraphs, nested lists, tables, quotes,
// code, rules, links, emphasis. Structure is that of CommonMark, with tables, task lists and
// strikethrough as GitHub has them. HTML is shown as text. Nothing loads: a picture is a link to it.
// The work is linear in the text, whatever it holds.

import { highlighted } from "./highlight.js";
import { inline } from "./inline.js";
import { el, plainText, put } from "./text.js";

const DEEPEST = 12; // quotes and lists in each other; what is deeper is a paragraph

const FENCE = /^ {0,3}(`{3,}|~{3,})[ \t]*([^\n]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const ITEM = /^( {0,3})([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*)|)$/;
const QUOTE = /^ {0,3}> ?/;
const UNDERLINE = /^ {0,3}(=+|-+)[ \t]*$/;
const DELIMITERS = /^ {0,3}\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const DEFINITION = /^ {0,3}\[([^\]\n]{1,200})\]:[ \t]*<?([^\s>]+)>?(?:[ \t]+["'(].*)?[ \t]*$/;

const blank = (line) => /^\s*$/.test(line);
const indentOf = (line) => line.length - line.trimStart().length;

// The blocks of a text, each with `from` and `to`, the lines that it takes. `links` gets the
// addresses that are defined, by their names in lower case.
export function parse(text, links = new Map()) {
  const lines = text.replaceAll("\r\n", "\n").split("\n").map(untabbed);
  return { lines, blocks: blocksOf(lines, links, 0), links };
}

// Tabs at the beginning of a line count up to the next multiple of four.
function untabbed(line) {
  if (!/^ *\t/.test(line)) return line;
  let [at, column] = [0, 0];
  for (; line[at] === " " || line[at] === "\t"; at += 1) column = line[at] === "\t" ? (column | 3) + 1 : column + 1;
  return " ".repeat(column) + line.slice(at);
}

function blocksOf(lines, links, depth) {
  const found = [];
  let at = 0;
  while (at < lines.length) {
    if (blank(lines[at])) {
      at += 1;
      continue;
    }
    const block = blockAt(lines, at, links, depth);
    block.from = at;
    at = block.to;
    if (block.kind !== "definition") found.push(block);
  }
  return found;
}

function blockAt(lines, at, links, depth) {
  const line = lines[at];
  if (indentOf(line) >= 4) return indented(lines, at);
  const fence = fenceOf(line);
  if (fence) return fenced(lines, at, fence);
  const heading = HEADING.exec(line);
  if (heading) return { kind: "heading", level: heading[1].length, text: heading[2] || "", to: at + 1 };
  if (RULE.test(line)) return { kind: "rule", to: at + 1 };
  if (depth < DEEPEST && QUOTE.test(line)) return quote(lines, at, links, depth);
  if (depth < DEEPEST && ITEM.test(line)) return list(lines, at, links, depth);
  const definition = DEFINITION.exec(line);
  if (definition) {
    const name = definition[1].toLowerCase();
    if (!links.has(name)) links.set(name, definition[2]);
    return { kind: "definition", to: at + 1 };
  }
  if (isTable(lines, at)) return table(lines, at);
  return paragraph(lines, at);
}

function fenceOf(line) {
  const found = FENCE.exec(line);
  return found && !(found[1][0] === "`" && found[2].includes("`")) ? found : null;
}

function fenced(lines, at, [, mark, info]) {
  const indent = indentOf(lines[at]);
  const body = [];
  let to = at + 1;
  let closed = false;
  for (; to < lines.length && !closed; to += 1) {
    const end = /^ {0,3}(`{3,}|~{3,})[ \t]*$/.exec(lines[to]);
    closed = Boolean(end && end[1][0] === mark[0] && end[1].length >= mark.length);
    if (!closed) body.push(lines[to].slice(Math.min(indent, indentOf(lines[to]))));
  }
  if (!closed && body.at(-1) === "") body.pop(); // the end of the text, not a line
  return { kind: "code", language: info.trim().split(/[\s{,]/)[0], text: body.join("\n"), closed, to };
}

function indented(lines, at) {
  let to = at;
  while (to < lines.length && (blank(lines[to]) || indentOf(lines[to]) >= 4)) to += 1;
  while (blank(lines[to - 1])) to -= 1;
  return { kind: "code", language: "", text: lines.slice(at, to).map((line) => line.slice(4)).join("\n"), closed: true, to };
}

// Whether a line ends the paragraph before it. A list that begins with another number than one, or
// with an empty item, does not.
function interrupts(line) {
  if (indentOf(line) >= 4) return false;
  const item = ITEM.exec(line);
  if (item && item[4] && (!/\d/.test(item[2]) || parseInt(item[2], 10) === 1)) return true;
  return Boolean(fenceOf(line) || HEADING.test(line) || RULE.test(line) || QUOTE.test(line));
}

function paragraph(lines, at) {
  let to = at + 1;
  for (; to < lines.length && !blank(lines[to]); to += 1) {
    const under = UNDERLINE.exec(lines[to]);
    if (under) {
      const text = lines.slice(at, to).join("\n").trim();
      return { kind: "heading", level: under[1][0] === "=" ? 1 : 2, text, to: to + 1 };
    }
    if (interrupts(lines[to]) || isTable(lines, to)) break;
  }
  const text = lines.slice(at, to).map((line) => line.trimStart()).join("\n").trimEnd();
  return { kind: "paragraph", text, to };
}

// A line that only goes on with the paragraph above it, at whatever depth that is.
const continues = (line, before) =>
  !blank(line) && !blank(before) && !interrupts(line) && !HEADING.test(before) && !fenceOf(before) && !RULE.test(before);

function quote(lines, at, links, depth) {
  const inner = [];
  let to = at;
  let open = false; // a fence inside
  for (; to < lines.length; to += 1) {
    const line = lines[to];
    if (QUOTE.test(line)) inner.push(line.replace(QUOTE, ""));
    else if (!open && inner.length && continues(line, inner.at(-1))) inner.push(line.trimStart());
    else break;
    if (fenceOf(inner.at(-1))) open = !open;
  }
  return { kind: "quote", blocks: blocksOf(inner, links, depth + 1), to };
}

function list(lines, at, links, depth) {
  const first = ITEM.exec(lines[at]);
  const sign = first[2].at(-1);
  const ordered = /\d/.test(first[2]);
  const items = [];
  let loose = false;
  let to = at;
  while (to < lines.length) {
    const found = indentOf(lines[to]) < 4 && !RULE.test(lines[to]) ? ITEM.exec(lines[to]) : null;
    if (!found || found[2].at(-1) !== sign || /\d/.test(found[2]) !== ordered) break;
    const item = itemAt(lines, to, found);
    items.push({ blocks: blocksOf(item.lines, links, depth + 1), checked: item.checked });
    to = item.to;
    const next = to;
    while (to < lines.length && blank(lines[to])) to += 1;
    const between = to > next;
    const more = to < lines.length && isItem(lines[to], sign, ordered);
    loose ||= item.gap || (between && more);
    if (!more) {
      to = next;
      break;
    }
  }
  return { kind: "list", ordered, start: ordered ? parseInt(first[2], 10) : 1, items, loose, to };
}

function isItem(line, sign, ordered) {
  const found = indentOf(line) < 4 && !RULE.test(line) ? ITEM.exec(line) : null;
  return Boolean(found && found[2].at(-1) === sign && /\d/.test(found[2]) === ordered);
}

// One item: the lines inside it, whether blank lines part its blocks, and whether it is checked.
function itemAt(lines, at, [, before, mark, space = " ", rest = ""]) {
  const width = before.length + mark.length + (space.length > 4 || !rest ? 1 : space.length);
  const task = /^\[([ xX])\][ \t]+/.exec(rest);
  const inner = [space.length > 4 ? space.slice(1) + rest : rest.slice(task ? task[0].length : 0)];
  let to = at + 1;
  let open = fenceOf(inner[0]) !== null;
  let gap = false;
  for (; to < lines.length; to += 1) {
    const line = lines[to];
    if (blank(line)) {
      const next = lines.slice(to + 1, to + 50).find((each) => !blank(each));
      if (next === undefined || indentOf(next) < width) break;
      gap ||= !open;
      inner.push("");
    } else if (indentOf(line) >= width) {
      inner.push(line.slice(width));
      if (fenceOf(inner.at(-1))) open = !open;
    } else if (!open && continues(line, inner.at(-1)) && !ITEM.test(line)) {
      inner.push(line.trimStart());
    } else break;
  }
  return { lines: inner, to, gap, checked: task ? task[1] !== " " : null };
}

// Tables -----------------------------------------------------------------------------------------

// The cells of a row: split at bars that are neither escaped nor in code.
function cells(line) {
  const row = line.trim().replace(/^\|/, "");
  const found = [];
  let cell = "";
  for (let at = 0; at < row.length; at += 1) {
    if (row[at] === "\\" && row[at + 1] === "|") {
      cell += "|";
      at += 1;
    } else if (row[at] === "|") {
      found.push(cell.trim());
      cell = "";
    } else cell += row[at];
  }
  if (cell.trim()) found.push(cell.trim());
  return found;
}

function isTable(lines, at) {
  const below = lines[at + 1];
  if (below === undefined || !lines[at].includes("|") || !/[-|]/.test(below) || !DELIMITERS.test(below)) return false;
  return cells(lines[at]).length === cells(below).length;
}

function table(lines, at) {
  const head = cells(lines[at]);
  const sides = cells(lines[at + 1]).map((cell) => ALIGN[`${cell[0] === ":"}${cell.at(-1) === ":"}`]);
  const rows = [];
  let to = at + 2;
  for (; to < lines.length && !blank(lines[to]) && !interrupts(lines[to]); to += 1) {
    const row = cells(lines[to]);
    rows.push(head.map((_, index) => row[index] || ""));
  }
  return { kind: "table", head, sides, rows, to };
}

const ALIGN = { truetrue: "center", falsetrue: "end", truefalse: "start", falsefalse: null };

// Drawing ----------------------------------------------------------------------------------------

// The node of a block. `growing`: more of it is still to come, so its code is not coloured yet.
export function drawBlock(block, links, growing = false) {
  if (block.kind === "code") return codeBlock(block, growing);
  if (block.kind === "rule") return el("hr");
  if (block.kind === "heading") return inline(el(`h${Math.min(6, block.level + 1)}`, { dir: "auto" }), block.text, links);
  if (block.kind === "quote") return el("blockquote", { dir: "auto" }, ...block.blocks.map((each) => drawBlock(each, links)));
  if (block.kind === "table") return drawTable(block, links);
  if (block.kind === "list") return drawList(block, links);
  return inline(el("p", { dir: "auto" }), block.text, links);
}

function drawList({ ordered, start, items, loose }, links) {
  const node = el(ordered ? "ol" : "ul", { start: ordered && start !== 1 ? String(start) : null });
  for (const { blocks, checked } of items) {
    const item = el("li", { dir: "auto", class: checked === null ? null : "task" });
    if (checked !== null) item.append(el("input", { type: "checkbox", disabled: true, checked, "aria-label": checked ? "done" : "to do" }));
    for (const block of blocks) {
      // In a list without blank lines a paragraph is only its text.
      if (block.kind === "paragraph" && !loose) inline(item, block.text, links);
      else item.append(drawBlock(block, links));
    }
    node.append(item);
  }
  return node;
}

function drawTable({ head, sides, rows }, links) {
  const cell = (tag) => (text, index) => inline(el(tag, { dir: "auto", "data-side": sides[index] }), text, links);
  return el(
    "div",
    { class: "table", tabindex: "0", role: "group", "aria-label": "Table" },
    el(
      "table",
      {},
      el("thead", {}, el("tr", {}, ...head.map(cell("th")))),
      el("tbody", {}, ...rows.map((row) => el("tr", {}, ...row.map(cell("td"))))),
    ),
  );
}

function codeBlock({ language, text }, growing) {
  const code = el("code");
  if (growing) plainText(code, text);
  else highlighted(code, text, language);
  const copy = el("button", { type: "button", class: "small copy", "aria-label": "Copy this code" }, "Copy");
  copy.addEventListener("click", () => copied(copy, text));
  const name = el("span", { class: "language" });
  put(name, language.slice(0, 30));
  return el(
    "div",
    { class: "codeblock" },
    el("div", { class: "row" }, name, el("span", { class: "grow" }), copy),
    el("pre", { class: "code", dir: "ltr", tabindex: "0" }, code),
  );
}

// Put a text into the clipboard, and say so on the button for a moment.
export async function copied(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed";
  }
  setTimeout(() => (button.textContent = "Copy"), 1500);
}
