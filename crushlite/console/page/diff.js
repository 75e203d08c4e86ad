// What changed between two texts, line by line.

import { el } from "./text.js";

const CONTEXT = 3; // unchanged lines shown around a change
const CELLS = 4_000_000; // of the table; a larger change is shown as removed and added
const LINES = 400; // shown before a click
const WIDTH = 2_000; // characters of a line

// Rows {sign: " " | "-" | "+", text, old, now}, `old` and `now` being line numbers.
export function compare(before, after) {
  const a = lines(before);
  const b = lines(after);
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
    const text = sign === "+" ? b[now] : a[old];
    if (sign !== "+") old += 1;
    if (sign !== "-") now += 1;
    rows.push({ sign, text, old: sign === "+" ? null : old, now: sign === "-" ? null : now });
  }
  return rows;
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

export function drawDiff(rows) {
  const wanted = folded(rows);
  const box = el("div", { class: "diff", role: "table", "aria-label": "Changes", dir: "ltr" });
  const draw = (from, to) => wanted.slice(from, to).forEach((row) => box.append(drawRow(row)));
  draw(0, LINES);
  if (wanted.length > LINES) {
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

function drawRow(row) {
  if (row.gap) return el("div", { class: "line gap", role: "row" }, "⋯");
  const kind = { "+": "added", "-": "removed", " ": "same" }[row.sign];
  const text = row.text.length > WIDTH ? row.text.slice(0, WIDTH) + " …" : row.text;
  return el(
    "div",
    { class: `line ${kind}`, role: "row" },
    el("span", { class: "number", role: "cell" }, row.old === null ? "" : String(row.old)),
    el("span", { class: "number", role: "cell" }, row.now === null ? "" : String(row.now)),
    el("span", { class: "sign", role: "cell" }, row.sign),
    el("span", { class: "what", role: "cell" }, text),
  );
}
