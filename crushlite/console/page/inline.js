// The inline part of Markdown: code, emphasis, links, breaks. See markdown.js.
//
// A text is read once into pieces; brackets and runs of `*`, `_` and `~` are resolved afterwards,
// as the CommonMark specification describes it, with a bound that keeps the work linear.

import { el, put } from "./text.js";

const SAFE = /^(?:https?:\/\/|mailto:)/i; // what a link may lead to
const BARE = /https?:\/\/[^\s\u0000-\u001f\u007f<>"'`]{1,2000}/y; // an address that stands in a text
const AUTO = /<([A-Za-z][A-Za-z0-9+.-]{1,31}:[^\s\u0000-\u001f\u007f<>]{0,2000}|[\w.+-]{1,64}@[A-Za-z0-9.-]{1,253})>/y;
const ENTITY = /&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|(amp|lt|gt|quot|apos|nbsp|hellip|mdash|ndash|copy|colon));/y;
const ENTITIES = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", hellip: "…", mdash: "—", ndash: "–", copy: "©", colon: ":" };
const TARGET = /\(\s*(?:<([^<>\n]{0,2000})>|((?:[^\s\u0000-\u001f\u007f()\\]|\\.|\([^\s()]*\)){0,2000}))(?:\s+(?:"[^"]{0,500}"|'[^']{0,500}'|\([^()]{0,500}\)))?\s*\)/y;
const REFERENCE = /\[([^\[\]]{0,200})\]/y;
const ESCAPED = /[!-/:-@[-`{-~]/;
const DEEPEST = 16; // emphasis and links in each other; what is deeper is text
const OPEN_BRACKETS = 200; // that may wait for their end at a time

// Append a text to a node; `links` are the addresses that the document defines.
export function inline(node, text, links = new Map()) {
  const pieces = read(text, links);
  emphasize(pieces);
  // For dir="auto" the browser looks for the first letter at each change, which takes long where
  // there is none: so the node gets it when all is there.
  const direction = node.getAttribute("dir");
  node.removeAttribute("dir");
  for (const piece of pieces) node.append(...drawn(piece));
  if (direction !== null) node.setAttribute("dir", direction);
  return node;
}

function* drawn(piece) {
  if (piece.node) {
    for (const child of piece.children || []) piece.node.append(...drawn(child));
    yield piece.node;
  } else if (piece.text) {
    const holder = document.createDocumentFragment();
    put(holder, piece.text);
    yield holder;
  }
}

function read(text, links) {
  const pieces = [];
  const brackets = []; // positions in `pieces` of `[` and `![` that are open
  const ticks = runsOf(text);
  let plain = "";
  let at = 0;
  const flush = () => {
    if (plain) pieces.push({ text: plain });
    plain = "";
  };
  const add = (piece) => {
    flush();
    pieces.push(piece);
  };
  while (at < text.length) {
    const sign = text[at];
    if (sign === "\\" && text[at + 1] === "\n") {
      add({ node: el("br") });
      at += 2;
    } else if (sign === "\\" && ESCAPED.test(text[at + 1] || "")) {
      plain += text[at + 1];
      at += 2;
    } else if (sign === "`") {
      const [length, end] = codeAt(text, at, ticks);
      if (end < 0) plain += text.slice(at, at + length);
      else add({ node: el("code", {}, trimmedCode(text.slice(at + length, end))) });
      at = end < 0 ? at + length : end + length;
    } else if (sign === "*" || sign === "_" || (sign === "~" && text[at + 1] === "~")) {
      const run = runAt(text, at);
      add(run);
      at += run.text.length;
    } else if (sign === "!" && text[at + 1] === "[") {
      add({ text: "![", opens: true });
      brackets.push(pieces.length - 1);
      at += 2;
    } else if (sign === "[") {
      add({ text: "[", opens: true });
      brackets.push(pieces.length - 1);
      if (brackets.length > OPEN_BRACKETS) brackets.shift();
      at += 1;
    } else if (sign === "]") {
      flush();
      at = closeBracket(text, at, pieces, brackets, links);
    } else if (sign === "<" && matchAt(AUTO, text, at)) {
      const [whole, address] = matchAt(AUTO, text, at);
      add({ node: link(address.includes(":") ? address : `mailto:${address}`), children: [{ text: address }] });
      at += whole.length;
    } else if (sign === "h" && !/\w/.test(text[at - 1] || "") && !brackets.length && matchAt(BARE, text, at)) {
      const address = withoutTail(matchAt(BARE, text, at)[0]);
      add({ node: link(address), children: [{ text: address }] });
      at += address.length;
    } else if (sign === "&" && matchAt(ENTITY, text, at)) {
      const found = matchAt(ENTITY, text, at);
      plain += entity(found);
      at += found[0].length;
    } else if (sign === "\n") {
      const hard = /  +$/.test(plain.slice(-20));
      plain = plain.replace(/ {1,20}$/, "");
      if (hard) add({ node: el("br") });
      else plain += "\n";
      at += 1;
    } else {
      const next = nextSign(text, at + 1);
      plain += text.slice(at, next);
      at = next;
    }
  }
  flush();
  return pieces;
}

const SIGNS = /[\\`*_~![\]<h&\n]/g;
function nextSign(text, from) {
  SIGNS.lastIndex = from;
  return SIGNS.exec(text)?.index ?? text.length;
}

function matchAt(pattern, text, at) {
  pattern.lastIndex = at;
  return pattern.exec(text);
}

function entity([, decimal, hex, name]) {
  return name ? ENTITIES[name] : character(decimal ? parseInt(decimal, 10) : parseInt(hex, 16));
}

function character(code) {
  return code > 0 && code < 0x110000 && !(code >= 0xd800 && code < 0xe000) ? String.fromCodePoint(code) : "\ufffd";
}

// Marks at the end of an address in a text belong to the sentence; so does a bracket it did not open.
function withoutTail(address) {
  const cut = address.replace(/[.,:;!?*_~\]]{1,20}$/, "");
  const closing = cut.endsWith(")") && (cut.match(/\)/g) || []).length > (cut.match(/\(/g) || []).length;
  return closing ? cut.slice(0, -1) : cut;
}

// Code -------------------------------------------------------------------------------------------

// Where runs of backticks are, by their length: so the end of one is found without reading on.
function runsOf(text) {
  const found = new Map();
  for (const { 0: run, index } of text.matchAll(/`+/g)) {
    if (!found.has(run.length)) found.set(run.length, []);
    found.get(run.length).push(index);
  }
  return found;
}

function codeAt(text, at, ticks) {
  let length = 1;
  while (text[at + length] === "`") length += 1;
  const places = ticks.get(length) || [];
  while (places.length && places[0] <= at) places.shift();
  return [length, places.length ? places[0] : -1];
}

function trimmedCode(code) {
  const line = code.replaceAll("\n", " ");
  return /^ .*[^ ].* $/.test(line) ? line.slice(1, -1) : line;
}

// Links ------------------------------------------------------------------------------------------

// A link opens another tab and says where it leads. What is no web address is shown, and leads nowhere.
function link(address) {
  if (!SAFE.test(address)) return el("span", { class: "nolink", title: address.slice(0, 500) });
  const node = el("a", { href: address, target: "_blank", rel: "noopener noreferrer" });
  node.title = node.href; // as the browser reads it, without characters that mislead
  return node;
}

// At a `]`: make what it closes a link if an address follows. Returns where to read on.
function closeBracket(text, at, pieces, brackets, links) {
  const from = brackets.pop();
  if (from === undefined) {
    pieces.push({ text: "]" });
    return at + 1;
  }
  const found = addressAt(text, at, pieces, from, links);
  if (found === null) {
    pieces.push({ text: "]" });
    return at + 1;
  }
  const picture = pieces[from].text === "![";
  const children = pieces.splice(from).slice(1);
  emphasize(children);
  const depth = depthOf(children);
  if (depth > DEEPEST) {
    brackets.length = 0; // those around it are deeper still
    pieces.push({ text: picture ? "![" : "[" }, ...children, { text: "]" });
    return at + 1;
  }
  if (picture && !children.length) children.push({ text: "picture" });
  const node = link(found.address);
  if (picture) node.classList.add("picture-link");
  pieces.push({ node, children, depth });
  if (!picture) brackets.length = 0; // links are not in links
  return found.to;
}

function addressAt(text, at, pieces, from, links) {
  const target = text[at + 1] === "(" ? matchAt(TARGET, text, at + 1) : null;
  const unescaped = (words) =>
    words.replace(/\\([!-/:-@[-`{-~])/g, "$1").replace(new RegExp(ENTITY.source, "g"), (...found) => entity(found));
  if (target) return { address: unescaped(target[1] ?? target[2] ?? ""), to: at + 1 + target[0].length };
  if (!links.size) return null;
  const named = text[at + 1] === "[" ? matchAt(REFERENCE, text, at + 1) : null;
  const own = pieces.slice(from + 1).map((piece) => piece.text ?? piece.node.textContent).join("");
  const address = links.get((named?.[1] || own).toLowerCase());
  return address === undefined ? null : { address, to: at + 1 + (named ? named[0].length : 0) };
}

// Emphasis ---------------------------------------------------------------------------------------

const SPACE = /^\s?$/;
const MARK = /^[\p{P}\p{S}]$/u;

// A run of equal signs, and whether it may begin or end an emphasis.
function runAt(text, at) {
  let to = at;
  while (text[to] === text[at]) to += 1;
  const [before, after] = [text[at - 1] || "", text[to] || ""];
  const left = !SPACE.test(after) && (!MARK.test(after) || SPACE.test(before) || MARK.test(before));
  const right = !SPACE.test(before) && (!MARK.test(before) || SPACE.test(after) || MARK.test(after));
  const word = text[at] === "_";
  return {
    text: text.slice(at, to),
    sign: text[at],
    begins: left && (!word || !right || MARK.test(before)),
    ends: right && (!word || !left || MARK.test(after)),
  };
}

// Put what stands between matching runs into nodes of its own. Done in place.
function emphasize(pieces) {
  const stack = []; // runs that may begin something, as positions in `made`
  const made = [];
  const hopeless = new Map(); // by kind of closer: the depth of the stack below which nothing fits
  for (const piece of pieces) {
    if (!piece.sign) {
      made.push(piece);
      continue;
    }
    while (piece.ends && piece.text) {
      const kind = `${piece.sign}${piece.begins}${piece.text.length % 3}`;
      const depth = opener(stack, made, piece, hopeless.get(kind) || 0);
      const start = stack[depth];
      if (depth < 0 || !wrap(made, start, piece)) {
        // What follows a run that failed is too deep, and so is what follows those before it: none
        // of them is looked at again, or the work would not be linear.
        stack.splice(0, depth + 1);
        for (const [other, floor] of hopeless) hopeless.set(other, Math.max(0, floor - depth - 1));
        hopeless.set(kind, stack.length);
        break;
      }
      stack.length = depth + 1;
      for (const [other, floor] of hopeless) if (floor > depth) hopeless.set(other, depth);
      if (!made[start].text) stack.pop();
    }
    if (!piece.text) continue;
    made.push(piece);
    if (piece.begins) stack.push(made.length - 1);
  }
  pieces.splice(0, pieces.length, ...made);
}

function opener(stack, made, closer, floor) {
  for (let depth = stack.length - 1; depth >= floor; depth -= 1) {
    const run = made[stack[depth]];
    if (run.sign !== closer.sign) continue;
    if (closer.sign === "~") return depth;
    const both = (run.ends || closer.begins) && (run.text.length + closer.text.length) % 3 === 0;
    if (!both || (run.text.length % 3 === 0 && closer.text.length % 3 === 0)) return depth;
  }
  return -1;
}

// How deep the deepest of these pieces is, and one more.
const depthOf = (pieces) => pieces.reduce((most, piece) => Math.max(most, (piece.depth || 0) + 1), 1);

// Put what follows a run into a node; returns false if that would be too deep.
function wrap(made, start, closer) {
  const run = made[start];
  const depth = depthOf(made.slice(start + 1));
  if (depth > DEEPEST) return false;
  const width = closer.sign === "~" || (run.text.length > 1 && closer.text.length > 1) ? 2 : 1;
  const tag = closer.sign === "~" ? "del" : width === 2 ? "strong" : "em";
  made.push({ node: el(tag), children: made.splice(start + 1), depth });
  run.text = run.text.slice(width);
  closer.text = closer.text.slice(width);
  return true;
}
