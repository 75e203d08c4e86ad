// What is said of the session and of the agent, around the transcript.

import { nameOf, statusOf } from "./models.js";
import { titleOf } from "./sessions.js";
import { byId, el, setText } from "./text.js";

const PROMPTS = [
  "Explain what this project does and how it is built",
  "Run the tests and mend what fails",
  "Review my changes that are not committed yet",
];

// Offer prompts where nothing has been said yet; `use(text)` takes one.
export function suggest(use) {
  byId("empty-prompts").replaceChildren(
    ...PROMPTS.map((text) => el("button", { type: "button", onclick: () => use(text) }, text)),
  );
}

// Who answers: an answer of `GET W/agent`.
export function drawAgent(agent) {
  byId("menu-open").hidden = false;
  setText(byId("model-name"), nameOf(agent));
  setText(byId("empty-model"), statusOf(agent));
}

// The title of a session, what it has used, who else looks at it, what it has to do. `window` is how
// many tokens the model takes, 0 if that is not known.
export function drawSession(session, window) {
  setText(byId("session-title"), titleOf(session));
  setText(byId("usage"), usage(session, window));
  const others = session.attached_clients - 1;
  byId("presence").hidden = others < 1;
  setText(byId("presence"), others === 1 ? "1 other here" : `${others} others here`);
  const todos = session.todos || [];
  byId("todos").hidden = !session.is_busy || todos.every((todo) => todo.status === "completed");
  byId("todos").replaceChildren(
    ...todos.map((todo) => el("span", { class: "todo", "data-status": todo.status }, todo.content.slice(0, 200))),
  );
}

// How much of the context a session takes, and what it has cost.
function usage(session, window) {
  const tokens = session.prompt_tokens + session.completion_tokens;
  const share = window ? Math.round((100 * tokens) / window) : 0;
  const context = share ? `context ${short(tokens)} of ${short(window)} tokens, ${share}%` : `context ${short(tokens)} tokens`;
  const cost = session.cost ? `$${session.cost.toFixed(2)}` : "";
  return [tokens ? context : "", cost].filter(Boolean).join(" · ");
}

function short(number) {
  return number < 10_000
    ? number.toLocaleString("en")
    : `${(number / 1000).toFixed(number < 100_000 ? 1 : 0)}k`;
}
