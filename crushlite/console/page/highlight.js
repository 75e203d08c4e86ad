// Colours for code in ten families of languages: comments, strings, numbers, keywords. One pattern
// per family is run over the text once; whatever it does not know stays as it is.

import { el, put } from "./text.js";

const MOST = 60_000; // characters that are coloured; a longer text is shown plain

const C_COMMENT = String.raw`\/\/[^\n]*|\/\*[^]*?(?:\*\/|$)`;
const HASH = String.raw`(?<![^\s;(])#[^\n]*`;
const QUOTED = String.raw`"(?:[^"\\\n]|\\.)*"?|'(?:[^'\\\n]|\\.)*'?`;
const NUMBER = String.raw`\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b`;

const KEYWORDS = {
  python:
    "False None True and as assert async await break case class continue def del elif else except finally for from global if import in is lambda match nonlocal not or pass raise return try while with yield",
  js: "abstract any as async await boolean break case catch class const continue default delete do else enum export extends false finally for from function get if implements import in instanceof interface let new null number of private protected public readonly return set static string super switch this throw true try type typeof undefined var void while with yield",
  go: "break case chan const continue default defer else fallthrough false for func go goto if import interface map nil package range return select struct switch true type var",
  rust: "as async await break const continue crate dyn else enum extern false fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true type unsafe use where while",
  c: "auto bool break case char class const constexpr continue default delete do double else enum explicit extern false float for friend if inline int long namespace new nullptr operator private protected public return short signed sizeof static struct switch template this throw true try typedef typename union unsigned using virtual void volatile while",
  java: "abstract boolean break byte case catch char class continue data default do double else enum extends false final finally float for fun if implements import in instanceof int interface is long new null object override package private protected public record return short static super switch this throw throws true try val var void when while",
  shell: "case do done elif else esac export fi for function if in local return select set shift source then unset until while",
  sql: "add all alter and as asc begin between by case column commit constraint create cross database default delete desc distinct drop else end exists false foreign from full group having if in index inner insert into is join key left like limit not null on or order outer primary references right rollback select set table then true union unique update values view when where with",
  ruby: "alias and begin break case class def do else elsif end ensure false for if in module next nil not or redo rescue retry return self super then true undef unless until when while yield",
  data: "true false null yes no",
};
const PATTERNS = {
  python: [HASH, String.raw`"""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|${QUOTED}`],
  js: [C_COMMENT, `\`(?:[^\`\\\\]|\\\\.)*\`?|${QUOTED}`],
  go: [C_COMMENT, `\`[^\`]*\`?|${QUOTED}`],
  rust: [C_COMMENT, String.raw`"(?:[^"\\]|\\.)*"?|'(?:[^'\\\n]|\\.)'`],
  c: [C_COMMENT, QUOTED],
  java: [C_COMMENT, QUOTED],
  shell: [HASH, String.raw`"(?:[^"\\]|\\.)*"?|'[^']*'?`],
  sql: [String.raw`--[^\n]*|\/\*[^]*?(?:\*\/|$)`, String.raw`'[^']*'?|"[^"]*"?`],
  ruby: [HASH, QUOTED],
  data: [HASH, String.raw`"(?:[^"\\\n]|\\.)*"?|'[^'\n]*'?`],
};
const NAMES = {
  python: "python py python3",
  js: "javascript js jsx mjs typescript ts tsx",
  go: "go golang",
  rust: "rust rs",
  c: "c cpp c++ cc h hpp csharp cs",
  java: "java kotlin kt scala swift",
  shell: "bash sh shell zsh console dockerfile makefile",
  sql: "sql sqlite postgresql mysql",
  ruby: "ruby rb",
  data: "json jsonc yaml yml toml ini",
};
const FAMILY = new Map(Object.entries(NAMES).flatMap(([family, names]) => names.split(" ").map((name) => [name, family])));
const made = new Map(); // the pattern and the keywords of a family, when it was first needed

function known(family) {
  if (!made.has(family)) {
    const [comment, string] = PATTERNS[family];
    const pattern = new RegExp(`(${comment})|(${string})|(${NUMBER})|([A-Za-z_][\\w]*)`, "g");
    made.set(family, { pattern, words: new Set(KEYWORDS[family].split(" ")), loose: family === "sql" });
  }
  return made.get(family);
}

// Append code to a node, in colours if its language is known.
export function highlighted(node, text, language) {
  const name = language.toLowerCase();
  if (name === "diff" || name === "patch") return differences(node, text);
  const family = FAMILY.get(name);
  if (!family || text.length > MOST) return void put(node, text);
  const { pattern, words, loose } = known(family);
  let from = 0;
  for (const match of text.matchAll(pattern)) {
    const [whole, comment, string, number, word] = match;
    const kind = comment ? "comment" : string ? "string" : number ? "number" : words.has(loose ? word.toLowerCase() : word) ? "keyword" : "";
    if (!kind) continue;
    if (match.index > from) put(node, text.slice(from, match.index));
    node.append(el("span", { class: `hl-${kind}` }, whole));
    from = match.index + whole.length;
  }
  if (from < text.length) put(node, text.slice(from));
}

function differences(node, text) {
  for (const line of text.split(/(?<=\n)/)) {
    const kind = { "+": "plus", "-": "minus", "@": "hl-comment" }[line[0]];
    if (kind) node.append(el("span", { class: kind }, line));
    else put(node, line);
  }
}
