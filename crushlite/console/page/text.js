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

export const withoutColours = (text) => text.replace(COLOURS, "");

// Append text to a node; characters that cannot be seen are shown by name.
export function put(node, text) {
  append(node, withoutColours(text).replaceAll("\r\n", "\n"), UNSEEN);
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

// A number of things: "1 line", "2 lines".
export const plural = (number, noun) => `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
