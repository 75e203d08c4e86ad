// What changed between two texts, line by line.

import { el, put, putExactly } from "./text.js";

const CONTEXT = 3; // unchanged lines shown around a change
const CELLS = 4_000_000; // of the table; a larger change is shown as removed and added
const LINES = 400; // shown before a click
const WIDTH = 2_000; // characters of a line shown before a click

// Rows {sign: " " | "-" | "+", text, old, now, open}: `old` and `now` are line numbers, `open` says
// that the line has no line end. Line ends at the end of a text count only if they are `exact`: a
// piece of a file has none.
export function compare(before, after, exact = false) {
  const split = exact ? wholeLines : (text) => lines(text).map((line) => `${line}\n`);
  const a = split(before);
  const b = split(after);
  let head = 0;
  while (head < a.length && head < b.length && a[head] === b[head]) head += 1;
  let tail = 0;
  while (
    tail < a.length - head &&
    tail < b.length - head &&
    a[a.length - 1 - tail] === b[b.length - 1 - tail]
  )
    tail += 1;
  const signs = [
    ...Array(head).fill(" "),
    ...middle(a.slice(head, a.length - tail), b.slice(head, b.length - tail)),
    ...Array(tail).fill(" "),
  ];
  const rows = [];
  let old = 0;
  let now = 0;
  for (const sign of signs) {
    const line = sign === "+" ? b[now] : a[old];
    const open = !line.endsWith("\n");
    const text = open ? line : line.slice(0, -1);
    if (sign !== "+") old += 1;
    if (sign !== "-") now += 1;
    rows.push({ sign, text, open, old: sign === "+" ? null : old, now: sign === "-" ? null : now });
  }
  return rows;
}

// The rows of a change of which only a piece is known: where it stands in the file is not.
export function comparePiece(before, after) {
  return compare(before, after).map((row) => ({ ...row, old: null, now: null }));
}

// The lines of a text, each with its line end.
function wholeLines(text) {
  return text.match(/[^\n]*\n|[^\n]+$/g) || [];
}

function lines(text) {
  if (text === "") return [];
  const found = text.split("\n");
  if (found.at(-1) === "") found.pop();
  return found;
}

// The signs of a longest common subsequence.
function middle(a, b) {
  const width = b.length + 1;
  if ((a.length + 1) * width > CELLS) return [...Array(a.length).fill("-"), ...Array(b.length).fill("+")];
  const table = new Uint32Array((a.length + 1) * width);
  for (let i = a.length - 1; i >= 0; i -= 1) {
    for (let j = b.length - 1; j >= 0; j -= 1) {
      const here = i * width + j;
      table[here] =
        a[i] === b[j] ? table[here + width + 1] + 1 : Math.max(table[here + width], table[here + 1]);
    }
  }
  const signs = [];
  let i = 0;
  let j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) {
      signs.push(" ");
      i += 1;
      j += 1;
    } else if (j >= b.length || (i < a.length && table[(i + 1) * width + j] >= table[i * width + j + 1])) {
      signs.push("-");
      i += 1;
    } else {
      signs.push("+");
      j += 1;
    }
  }
  return signs;
}

// The rows of a diff in the unified format.
export function unified(text) {
  const rows = [];
  let old = 0;
  let now = 0;
  for (const line of lines(text)) {
    const hunk = /^@@ -(\d+)(?:,\d+)? \+(\d+)/.exec(line);
    if (hunk) {
      old = Number(hunk[1]) - 1;
      now = Number(hunk[2]) - 1;
      if (rows.length) rows.push({ gap: true });
    } else if (!/^(---|\+\+\+) /.test(line) || old || now) {
      const sign = "+-".includes(line[0]) && line ? line[0] : " ";
      if (sign !== "+") old += 1;
      if (sign !== "-") now += 1;
      rows.push({
        sign,
        text: line.slice(1),
        old: sign === "+" ? null : old,
        now: sign === "-" ? null : now,
      });
    }
  }
  return rows;
}

export function counts(rows) {
  const of = (sign) => rows.filter((row) => row.sign === sign).length;
  return { added: of("+"), removed: of("-") };
}

// Only the changed rows and those around them.
function folded(rows) {
  const shown = [];
  let last = -1;
  rows.forEach((row, index) => {
    const near = rows.slice(Math.max(0, index - CONTEXT), index + CONTEXT + 1).some((r) => r.sign !== " ");
    if (!near && !row.gap) return;
    if (last >= 0 && index > last + 1) shown.push({ gap: true });
    shown.push(row);
    last = index;
  });
  return shown;
}

// With `whole`, for a change that is to be allowed, nothing waits for a click.
export function drawDiff(rows, whole = false) {
  const wanted = folded(rows);
  const box = el("div", { class: "diff", role: "table", "aria-label": "Changes", dir: "ltr" });
  const draw = (from, to) => wanted.slice(from, to).forEach((row) => box.append(drawRow(row, whole)));
  draw(0, whole ? wanted.length : LINES);
  if (!whole && wanted.length > LINES) {
    const more = el(
      "button",
      { type: "button", class: "small show-all" },
      `Show all (${wanted.length - LINES} more lines)`,
    );
    more.addEventListener("click", () => {
      more.remove();
      draw(LINES, wanted.length);
    });
    box.append(more);
  }
  return box;
}

function drawRow(row, whole) {
  if (row.gap) return el("div", { class: "line gap", role: "row" }, "⋯");
  const kind = { "+": "added", "-": "removed", " ": "same" }[row.sign];
  const what = el("span", { class: "what", role: "cell" });
  if (whole) putExactly(what, row.text);
  else put(what, row.text.slice(0, WIDTH));
  if (!whole && row.text.length > WIDTH) {
    const hidden = (row.text.length - WIDTH).toLocaleString("en");
    const more = el("button", { type: "button", class: "small" }, `Show all (${hidden} more characters)`);
    more.addEventListener("click", () => {
      more.remove();
      put(what, row.text.slice(WIDTH));
    });
    what.append(more);
  }
  if (row.open && row.sign !== " ") what.append(el("span", { class: "unseen-char" }, "no line end"));
  return el(
    "div",
    { class: `line ${kind}`, role: "row" },
    el("span", { class: "number", role: "cell" }, row.old === null ? "" : String(row.old)),
    el("span", { class: "number", role: "cell" }, row.now === null ? "" : String(row.now)),
    el("span", { class: "sign", role: "cell" }, row.sign),
    what,
  );
}
