// An answer that grows: only the blocks of Markdown that have changed are drawn anew.

import { drawBlock, parse } from "./markdown.js";
import { plainText, withoutColours } from "./text.js";

const MOST = 100_000; // characters; a longer answer is shown as it was written

// `growing`: more of the text is still to come.
export function richText(node, text, growing = false) {
  node.classList.toggle("raw", text.length > MOST);
  if (text.length > MOST) {
    plainText(node, text);
    return;
  }
  const { lines, blocks, links } = parse(withoutColours(text));
  const defined = JSON.stringify([...links]);
  const before = node.drawn || [];
  if (before.length !== node.childNodes.length) node.replaceChildren();
  node.shownText = undefined;
  node.drawn = blocks.map((block, index) => {
    const open = growing && index === blocks.length - 1;
    const source = lines.slice(block.from, block.to).join("\n");
    const key = `${open} ${defined} ${source}`;
    const old = node.childNodes[index];
    if (old && before[index]?.key === key) return before[index];
    // Code that grows keeps its element, so that a selection in it survives.
    const grows = old && open && before[index]?.open && block.kind === "code" && before[index].kind === "code";
    if (grows) plainText(old.querySelector("code"), block.text);
    else if (old) old.replaceWith(drawBlock(block, links, open));
    else node.append(drawBlock(block, links, open));
    return { key, open, kind: block.kind };
  });
  while (node.childNodes.length > blocks.length) node.lastChild.remove();
}
