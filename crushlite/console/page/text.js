// Text of models, tools and strangers, shown as text: nothing in here or in the modules that use it
// ever makes markup from a string.

// Make an element: el("p", {class: "x", onclick: f}, "text", child). Strings go through `put`.
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children) {
    if (typeof child === "string") put(node, child);
    else if (child) node.append(child);
  }
  return node;
}

export const byId = (id) => document.getElementById(id);

// Characters that a reader would not see, or that would reorder the rest: controls, bidirectional
// overrides, zero-width characters, tags. (Joiners stay: scripts and emoji need them.)
const UNSEEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\u{e0000}-\u{e007f}]/gu;
// What is shown to be allowed: there nothing at all may be hidden, not even joiners and odd blanks.
const HIDDEN =
  /(?![\t ])[\p{C}\p{Z}\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0\ufe00-\ufe0f\u{1d159}\u{e0100}-\u{e01ef}]/gu;
const COLOURS = /\u001b\[[0-9;:]*m/g; // the harmless escapes of a terminal; the others are shown

const CONTROLS = (
  "NUL SOH STX ETX EOT ENQ ACK BEL BS HT LF VT FF CR SO SI " +
  "DLE DC1 DC2 DC3 DC4 NAK SYN ETB CAN EM SUB ESC FS GS RS US"
).split(" ");

function named(character) {
  const code = character.codePointAt(0);
  if (code < CONTROLS.length) return CONTROLS[code];
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

// Append text to a node; characters that cannot be seen are shown by name.
export function put(node, text) {
  append(node, text.replace(COLOURS, "").replaceAll("\r\n", "\n"), UNSEEN);
}

// The same for what a person is asked to allow: every character of it is shown, line ends too.
export function putExactly(node, text) {
  append(node, text, HIDDEN);
  return node;
}

function append(node, plain, unseen) {
  let from = 0;
  for (const match of plain.matchAll(unseen)) {
    if (match.index > from) node.append(plain.slice(from, match.index));
    const mark = document.createElement("span");
    mark.className = "unseen-char";
    mark.textContent = named(match[0]);
    mark.title = "a character that would not be seen";
    node.append(mark);
    if (match[0] === "\n") node.append("\n");
    from = match.index + match[0].length;
  }
  if (from < plain.length) node.append(from ? plain.slice(from) : plain);
}

export function setText(node, text) {
  if (node.shownText === text) return;
  node.shownText = text;
  node.replaceChildren();
  put(node, text);
}

// Long texts ---------------------------------------------------------------------------------

const HEAD = 12_000; // characters shown of a long text, at its beginning and at its end
const TAIL = 4_000;
const SLICE = 4_000; // a block of a text that is shown whole; the browser lays out only those in view

const isLong = (text) => text.length > HEAD + TAIL + 1_000;

// Plain text in a <pre>-like element; of a long one the middle is shown on a click.
export function plainText(node, text) {
  if (node.shownText === text) return;
  // A text that only grew gets only what is new, so that a selection in it survives.
  const known = node.shownText;
  node.shownText = text;
  if (!isLong(text) && known !== undefined && !isLong(known) && known !== "" && text.startsWith(known)) {
    put(node, text.slice(known.length));
    return;
  }
  node.replaceChildren();
  if (!isLong(text)) {
    put(node, text);
  } else if (node.showAll) {
    for (let from = 0; from < text.length;) {
      const to = sliceEnd(text, from);
      node.append(el("span", { class: "slice" }, text.slice(from, to)));
      from = to;
    }
  } else {
    const hidden = (text.length - HEAD - TAIL).toLocaleString("en");
    const more = el(
      "button",
      { type: "button", class: "small show-all" },
      `Show all (${hidden} more characters)`,
    );
    more.addEventListener("click", () => {
      node.showAll = true;
      node.shownText = undefined;
      plainText(node, text);
    });
    put(node, text.slice(0, HEAD));
    node.append(el("span", { class: "cut" }, more));
    put(node, text.slice(-TAIL));
  }
}

function sliceEnd(text, from) {
  const to = from + SLICE;
  if (to >= text.length) return text.length;
  const line = text.lastIndexOf("\n", to);
  if (line > from) return line + 1;
  // Never between the halves of a character.
  return text.charCodeAt(to - 1) >= 0xd800 && text.charCodeAt(to - 1) < 0xdc00 ? to + 1 : to;
}

// A little Markdown --------------------------------------------------------------------------

// Text in blocks: [{kind: "code" | "head" | "list" | "quote" | "text", text}]. Only what is common
// in answers; everything else stays as it was written.
function blocks(text) {
  const found = [];
  let lines = [];
  let kind = "text";
  let fence = "";
  const flush = () => {
    if (lines.length && (kind === "code" || lines.join("").trim()))
      found.push({ kind, text: lines.join("\n") });
    lines = [];
  };
  for (const line of text.split("\n")) {
    const mark = /^ {0,3}(`{3,}|~{3,})/.exec(line);
    if (fence) {
      if (mark && mark[1].startsWith(fence) && line.trim() === mark[1]) {
        flush();
        fence = "";
        kind = "text";
      } else lines.push(line);
      continue;
    }
    if (mark) {
      flush();
      fence = mark[1];
      kind = "code";
      continue;
    }
    const next = kindOf(line, kind);
    if (next !== kind || line.trim() === "" || next === "head") flush();
    kind = next;
    if (line.trim() !== "") lines.push(line);
  }
  flush();
  return found;
}

function kindOf(line, before) {
  if (/^#{1,6} /.test(line)) return "head";
  if (/^ {0,6}([-*+]|\d{1,3}[.)]) /.test(line)) return "list";
  if (/^> ?/.test(line)) return "quote";
  if (before === "list" && /^ {2,}\S/.test(line)) return "list";
  return "text";
}

function drawn({ kind, text }) {
  if (kind === "code") return el("pre", { class: "code", dir: "ltr" }, text);
  if (kind === "head") return inline(el("h3", { dir: "auto" }), text.replace(/^#+ /, ""));
  if (kind === "quote") return inline(el("blockquote", { dir: "auto" }), text.replace(/^> ?/gm, ""));
  if (kind === "text") return inline(el("p", { dir: "auto" }), text);
  const ordered = /^ *\d/.test(text);
  const list = el(ordered ? "ol" : "ul", { start: ordered ? parseInt(text, 10) : null });
  for (const item of text.split(/\n(?= {0,6}(?:[-*+]|\d{1,3}[.)]) )/)) {
    list.append(inline(el("li", { dir: "auto" }), item.replace(/^ *([-*+]|\d{1,3}[.)]) /, "")));
  }
  return list;
}

function inline(node, text) {
  let from = 0;
  for (const match of text.matchAll(/`([^`\n]+)`|\*\*([^*\n]+)\*\*/g)) {
    put(node, text.slice(from, match.index));
    node.append(match[1] === undefined ? el("strong", {}, match[2]) : el("code", {}, match[1]));
    from = match.index + match[0].length;
  }
  put(node, text.slice(from));
  return node;
}

// An answer. Blocks that have not changed since the last call stay as they are.
export function richText(node, text) {
  if (isLong(text)) {
    node.classList.add("raw");
    plainText(node, text);
    return;
  }
  if (node.shownText === text) return;
  node.shownText = text;
  node.classList.remove("raw");
  const wanted = blocks(text);
  const known = node.blocks || [];
  if (known.length !== node.childNodes.length) node.replaceChildren();
  for (const [index, block] of wanted.entries()) {
    const old = node.childNodes[index];
    if (old && known[index].kind === block.kind && known[index].text === block.text) continue;
    if (old) old.replaceWith(drawn(block));
    else node.append(drawn(block));
  }
  while (node.childNodes.length > wanted.length) node.lastChild.remove();
  node.blocks = wanted;
}
