"""Markdown as the console draws it, in a real browser: structure of CommonMark, and safe DOM."""

from __future__ import annotations

import json
from typing import Any

from tests.console.test_browser import BrowserCase, setUpModule, tearDownModule
from tests.support.places import TESTS

__all__ = ["setUpModule", "tearDownModule"]  # pytest finds them here: one browser per file

# Draws documents with the page's own module, and gives for each the tree that came out, in the form
# of tests/markdown/corpus.json, the names of its elements, and every address in it.
DRAW = r"""
const [documents, done] = arguments;
const add = (tree, text) => {
  if (typeof tree.at(-1) === "string") tree[tree.length - 1] += text;
  else tree.push(text);
};
const inlines = (nodes) => {
  const tree = [];
  for (const node of nodes) {
    const tag = node.tagName?.toLowerCase();
    if (!tag) add(tree, node.data.replaceAll("\n", " "));
    else if (node.matches(".unseen-char")) add(tree, node.textContent);
    else if (tag === "code") tree.push(["code", node.textContent]);
    else if (node.matches(".picture-link")) tree.push(["image", address(node), node.textContent]);
    else if (node.matches("a, .nolink"))
      tree.push(["link", address(node), ...inlines(node.childNodes)]);
    else if (tag !== "input") tree.push([tag, ...inlines(node.childNodes)]);
  }
  return tree;
};
const address = (node) => node.getAttribute("href") ?? node.title;
const BLOCK = "p, h2, h3, h4, h5, h6, div, hr, blockquote, ul, ol";
const item = (node) => {
  const tree = [];
  let run = [];
  const end = () => (inlines(run).length && tree.push(["p", ...inlines(run)]), (run = []));
  for (const each of node.childNodes) {
    if (each.matches?.(BLOCK)) tree.push((end(), block(each)));
    else run.push(each);
  }
  end();
  return tree;
};
const SIDES = { start: "left", end: "right", center: "center" };
const row = (node) => [...node.children].map((cell) => inlines(cell.childNodes));
const block = (node) => {
  const tag = node.tagName.toLowerCase();
  const text = (css) => node.querySelector(css).textContent;
  if (node.matches(".codeblock")) return ["pre", text(".language"), text("pre")];
  if (node.matches(".table")) {
    const [head, ...rows] = node.querySelectorAll("tr");
    const sides = [...head.children].map((cell) => SIDES[cell.dataset.side] || "");
    return ["table", sides, row(head), ...rows.map(row)];
  }
  if (tag === "blockquote") return ["quote", ...[...node.children].map(block)];
  if (tag === "ul") return ["ul", ...[...node.children].map(item)];
  if (tag === "ol") return ["ol", node.start, ...[...node.children].map(item)];
  return [tag, ...inlines(node.childNodes)];
};
import("/console/rich.js").then(({ richText }) => {
  const began = performance.now();
  const drawn = documents.map((text) => {
    const node = document.createElement("div");
    richText(node, text);
    const kinds = [...node.querySelectorAll("*")].map((each) => each.tagName.toLowerCase());
    const links = [...node.querySelectorAll("[href], [src]")].map((each) => each.href || each.src);
    return { tree: [...node.children].map(block), kinds, links };
  });
  // A document that grows ends up as the one that came whole.
  const grows = documents.slice(0, 40).every((text) => {
    const [piece, whole] = [document.createElement("div"), document.createElement("div")];
    const step = text.length < 3000 ? 7 : Math.ceil(text.length / 10); // each costs a whole drawing
    for (let at = step; at < text.length; at += step) richText(piece, text.slice(0, at), true);
    richText(piece, text);
    richText(whole, text);
    return piece.isEqualNode(whole);
  });
  done({ drawn, grows, took: performance.now() - began });
}, (error) => done({ error: String(error) }));
"""
# Elements that may come out of a document, whatever it holds.
SAFE = {
    *("p", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "blockquote", "pre", "code", "div"),
    *("span", "a", "hr", "br", "em", "strong", "del", "table", "thead", "tbody", "tr", "th", "td"),
    *("input", "button"),
}
# Documents that are drawn otherwise, and why.
OTHERWISE = {
    "task list": "a box that is checked or not",
    "bare address": "a link, as on GitHub",
    "hostile: html blocks": "an address in it is a link",
    "hostile: tracking image": "one without words is called a picture",
    "hostile: terminal escapes": "characters that cannot be seen are named",
    "hostile: escapes in code": "so they are in code",
    "hostile: direction marks": "and those that mislead",
    "hostile: cursor tricks": "and those that move a cursor",
    "hostile: form feed and null": "and these",
    "hostile: escapes in a link": "and these",
    "hostile: deep quotes": "at most 12 in each other",
    "hostile: deep lists": "at most 12 in each other",
    "hostile: many underscores": "emphasis at most 16 deep",
}
HOSTILE = (
    "<script>window.pwned = 1</script>\n<img src=x onerror='window.pwned=2'>",
    "[a](JaVaScRiPt:window.pwned=3) [b](data:text/html,<script>1</script>) [c](vbscript:x)",
    "![x](javascript:window.pwned=4) <javascript:window.pwned=5> [d](//evil.example/x)",
    "[e](http://a\" onmouseover=\"window.pwned=6) [f](<http://a b>)",
    "[g]: javascript:window.pwned=7\n\n[g] [h][g]",
    "*" * 9000, "_*" * 9000, "[" * 9000, "[a](" * 5000, "![" * 5000, ">" * 9000, "|a" * 9000,
    "\n".join(" " * min(2 * n, 400) + "- x" for n in range(900)), "`" * 3000 + "x" + "`" * 2999,
    "```" + "x" * 5000, "- a\n\n" * 5000, "> " * 40 + "x", "&#0; &#xD800; &#99999999; &amp",
)  # fmt: skip


class Documents(BrowserCase):
    async def draw(self, documents: list[str]) -> Any:
        body = {"script": DRAW, "args": [documents]}
        return await self.window.run("POST", "/execute/async", body)

    async def test_structure_is_that_of_commonmark_and_nothing_runs_or_loads(self) -> None:
        corpus = json.loads((TESTS / "markdown" / "corpus.json").read_text())["documents"]
        await self.serve(auth="none")
        await self.window.open(f"http://127.0.0.1:{self.daemon.port}/")
        found = await self.draw([document["text"] for document in corpus])
        self.assertNotIn("error", found)
        different = set()
        for document, got in zip(corpus, found["drawn"], strict=True):
            self.assert_safe(got)
            if document["name"] not in OTHERWISE:
                self.assertEqual(got["tree"], shown(document["tree"]), document["name"])
            elif got["tree"] != shown(document["tree"]):
                different.add(document["name"])
        self.assertEqual(different, set(OTHERWISE))
        self.assertTrue(found["grows"])
        hostile = await self.draw(list(HOSTILE))
        self.assertNotIn("error", hostile)
        self.assertTrue(hostile["grows"])
        for got in hostile["drawn"]:
            self.assert_safe(got)
        self.assertIsNone(await self.window.script("return window.pwned ?? null"))
        self.assertLess(hostile["took"], 20_000)  # the machine may be busy; the work is linear

    def assert_safe(self, got: Any) -> None:
        self.assertLessEqual(set(got["kinds"]), SAFE)
        for link in got["links"]:
            self.assertRegex(link, r"^(https?://|mailto:)")


def shown(tree: list[Any]) -> list[Any]:
    """The tree of a document as the page has it: headings are one lower, below that of the session,
    and the last line end of code is not shown."""
    made: list[Any] = []
    for each in tree:
        if not isinstance(each, list):
            made.append(each)
        elif each[:1] and each[0] in ("h1", "h2", "h3", "h4", "h5", "h6"):
            made.append([f"h{min(6, int(each[0][1]) + 1)}", *shown(each[1:])])
        elif each[:1] == ["pre"]:
            made.append(["pre", each[1][:30], each[2].removesuffix("\n")])
        else:
            made.append(shown(each))
    return made
