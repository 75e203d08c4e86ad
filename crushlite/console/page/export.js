// A session as a file: Markdown for reading, or JSON with everything.

import { parsed } from "./api.js";
import { titleOf } from "./sessions.js";

// A fence that the text does not end.
function fenced(text, language = "") {
  const longest = Math.max(2, ...(text.match(/`+/g) || []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}${language}\n${text}\n${fence}`;
}

function partOf({ type, data }) {
  if (type === "text") return data.text;
  if (type === "shell_command") return fenced(`$ ${data.command}\n${data.output}`);
  if (type === "tool_call") {
    const input = parsed(data.input);
    const words = input?.command || input?.file_path || input?.path || input?.pattern || input?.url || "";
    return `*${data.name}* ${words ? fenced(String(words)) : ""}`.trim();
  }
  if (type === "tool_result") return data.content ? fenced(data.content) : "";
  if (type === "finish" && ["error", "canceled"].includes(data.reason)) return `*${data.message || data.reason}*`;
  return "";
}

export function markdownOf(session, messages) {
  const lines = [`# ${titleOf(session)}`];
  let speaker = "";
  for (const { role, parts } of messages) {
    const now = role === "user" ? "You" : "Agent";
    const words = parts.map(partOf).filter((part) => part.trim());
    if (!words.length) continue;
    if (now !== speaker) lines.push(`## ${now}`);
    speaker = now;
    lines.push(...words);
  }
  return `${lines.join("\n\n")}\n`;
}

// Have the browser save a text as a file.
export function save(name, text, type) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

export function fileName(session, ending) {
  const words = titleOf(session).replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60);
  return `${words || "session"}.${ending}`;
}
