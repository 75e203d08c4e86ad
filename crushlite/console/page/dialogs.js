// Requests for a person: permissions and questions.
//
// Both dialogs are above the prompt and leave the page usable. They never take the focus from a
// person who is typing (the Enter meant for a prompt must not allow anything), and they close when
// another client has answered. They show what the daemon lists; nothing is remembered here.

import { compare, counts, drawDiff } from "./diff.js";
import { el, plural, putExactly, setText } from "./text.js";

const HOLD = 350; // milliseconds: an earlier click may have been meant for what was there before

class RequestDialog {
  // `answer(request, body)` sends an answer; `elsewhere(request)` is a button to its session.
  constructor(dialog, answer, elsewhere) {
    this.dialog = dialog;
    this.answer = answer;
    this.elsewhere = elsewhere;
    this.id = null;
    this.answered = false; // in this page: the button, now disabled, has lost the focus
  }

  // Show the first of the open requests, or nothing.
  show(requests) {
    const [first] = requests;
    if (!first) {
      this.close();
      return;
    }
    if (first.id !== this.id) {
      this.close();
      this.id = first.id;
      this.dialog.replaceChildren(this.form(first));
      this.dialog.setAttribute("open", ""); // not show(): that would take the focus
      this.holdButtons();
      if ([document.body, null].includes(document.activeElement)) this.dialog.querySelector("h2").focus();
    }
    this.more?.replaceChildren(requests.length > 1 ? `and ${requests.length - 1} more` : "");
    const link = this.elsewhere(first); // another session may be shown by now
    if (this.where?.textContent !== (link?.textContent || "")) this.where?.replaceChildren(link || "");
  }

  // Disable the buttons of a new dialog for a moment.
  holdButtons() {
    const buttons = [...this.dialog.querySelectorAll("button")];
    buttons.forEach((button) => (button.disabled = true));
    setTimeout(() => buttons.forEach((button) => (button.disabled = false)), HOLD);
  }

  close() {
    if (this.id === null) return;
    const unfocused = this.answered && document.activeElement === document.body;
    const inside = unfocused || this.dialog.contains(document.activeElement);
    this.id = null;
    this.answered = false;
    this.dialog.removeAttribute("open");
    this.dialog.replaceChildren();
    if (inside) document.getElementById("prompt").focus();
  }

  head(id, title) {
    this.more = el("span", { class: "hint" });
    this.where = el("span");
    return el(
      "div",
      { class: "row" },
      el("h2", { id, tabindex: "-1" }, title),
      this.more,
      el("span", { class: "grow" }),
      this.where,
    );
  }

  send(request, body) {
    const buttons = [...this.dialog.querySelectorAll("button")];
    this.answered = true;
    buttons.forEach((button) => (button.disabled = true));
    // Resolves when the daemon has carried the answer out, which may be after all have seen it.
    this.sent = this.answer(request, body).catch(() => {
      this.answered = false;
      buttons.forEach((button) => (button.disabled = false));
    });
  }
}

// The keys that answer: with Alt everywhere, alone only while a button of the dialog has the focus. (The
// heading may get it by itself, and the next letter be meant for the prompt.)
const KEYS = { allow: "A", allow_session: "S", deny: "D" };

export class PermissionDialog extends RequestDialog {
  constructor(...given) {
    super(...given);
    document.addEventListener("keydown", (event) => this.onKey(event));
  }

  onKey(event) {
    if (this.id === null || event.ctrlKey || event.metaKey || event.isComposing || event.repeat) return;
    if (document.querySelector("dialog:modal")) return;
    const alone = event.target.closest("button") !== null && this.dialog.contains(event.target);
    if (!event.altKey && !alone) return;
    const [action] = Object.entries(KEYS).find(([, letter]) => event.code === `Key${letter}`) || [];
    const button = action && this.dialog.querySelector(`[data-action=${action}]`);
    if (!button) return;
    event.preventDefault();
    button.click(); // nothing, as long as the button is disabled
  }

  form(request) {
    const params = request.params || {};
    const rows = changes(params);
    const reason = el("input", {
      type: "text",
      class: "grow",
      placeholder: "Reason, for the model (optional)",
      "aria-label": "Reason of a denial",
    });
    const send = (action) => () =>
      this.send(request, { action, ...(action === "deny" && reason.value ? { reason: reason.value } : {}) });
    const button = (action, kind, text) => {
      const letter = KEYS[action];
      const attributes = { type: "button", class: kind, "data-action": action, onclick: send(action) };
      if (!letter) return el("button", attributes, text);
      const shortcut = { "aria-keyshortcuts": `Alt+${letter}`, title: `Alt+${letter}` };
      return el("button", { ...attributes, ...shortcut }, text, " ", el("kbd", { "aria-hidden": "true" }, `Alt ${letter}`));
    };
    const box = this.what(request, params, rows);
    const rules = rulesOf(request);
    return el(
      "form",
      { onsubmit: (event) => event.preventDefault() },
      this.head("permission-title", `Allow ${request.tool_name}?`),
      box,
      rest(box),
      el(
        "div",
        { class: "row wrap" },
        button("allow", "primary", "Allow"),
        button("allow_session", "", "Allow for this session"),
        ...rules.map(([action, text]) => button(action, "", text)),
        el("span", { class: "deny" }, button("deny", "danger", "Deny"), reason),
      ),
      putExactly(el("p", { class: "hint scope", dir: "ltr" }), `For this session: ${scopeOf(request)}`),
      rules.length ? putExactly(el("p", { class: "hint scope", dir: "ltr" }), `The rule: ${request.rule}`) : null,
    );
  }

  // All that would be done; nothing of it waits for a click.
  what(request, params, rows) {
    const box = el("div", { class: "asked" });
    const hidden = rows ? [...CHANGED] : [];
    if (request.description && !repeats(request, params))
      box.append(putExactly(el("p", { class: "description", dir: "ltr" }), request.description));
    if (typeof params.command === "string") {
      box.append(putExactly(el("pre", { class: "command", dir: "ltr" }), `$ ${params.command}`));
      hidden.push("command", "description");
    }
    const list = el("dl", { class: "input" });
    for (const [name, value] of [...Object.entries(params), ["in", request.path]]) {
      if (hidden.includes(name) || (USUAL.has(name) && !value?.length && !(value > 0 || value === true)))
        continue;
      const words = typeof value === "string" ? value : JSON.stringify(value);
      list.append(putExactly(el("dt"), name), putExactly(el("dd", { dir: "ltr" }), words));
    }
    box.append(list);
    if (rows) {
      const { added, removed } = counts(rows);
      box.append(
        el("p", { class: "hint" }, `${plural(added, "line")} added, ${plural(removed, "line")} removed`),
        drawDiff(rows, true),
      );
    }
    return box;
  }
}

const CHANGED = ["old_content", "new_content"];

// The rows of a diff, if the parameters hold a file before and after a change; else null.
function changes(params) {
  const given = CHANGED.filter((name) => name in params);
  if (!given.length || !given.every((name) => typeof params[name] === "string")) return null;
  return compare(params.old_content || "", params.new_content || "", true);
}

// Parameters of our own tools that are left out where they have their usual value.
const USUAL = new Set([
  "working_dir",
  "run_in_background",
  "auto_background_after",
  "offset",
  "limit",
  "timeout",
  "ignore",
  "depth",
  "include",
  "literal_text",
  "in",
]);
// How the descriptions of our own tools begin; the rest is a parameter.
const STARTS = ["", "Execute command: ", "Pretend to run: ", "Fetch ", "Create file ", "Change file "];

// Whether a description says nothing but what a parameter shows.
function repeats({ description }, params) {
  const values = Object.values(params).filter((value) => typeof value === "string");
  return STARTS.some((start) => values.some((value) => description === start + value));
}

// What a grant for the session covers.
function scopeOf({ scope, tool_name: tool, action, path }) {
  return scope || `every ${tool} (${action}) in ${path}`;
}

// The ways to grant the rule that is offered: none if there is none, and not for the session if it
// covers the same as a grant for the session.
function rulesOf({ rule, scope }) {
  if (!rule) return [];
  const keep = ["allow_always", "Keep the rule for good"];
  return rule === scope ? [keep] : [["allow_rule", "Rule for this session"], keep];
}

// A remark below a box that holds more than can be seen, until it is scrolled to its end.
function rest(box) {
  const remark = el("p", { class: "hint below", hidden: true }, "There is more below: scroll to read it all.");
  const look = () => (remark.hidden = box.scrollTop + box.clientHeight >= box.scrollHeight - 4);
  box.addEventListener("scroll", look);
  new ResizeObserver(look).observe(box);
  return remark;
}

export class QuestionDialog extends RequestDialog {
  form(batch) {
    const fields = batch.questions.map((question) => field(question));
    const form = el(
      "form",
      {},
      this.head("question-title", "The agent asks"),
      el("div", { class: "asked" }, ...fields.map((each) => each.node)),
      el(
        "div",
        { class: "row" },
        el("button", { type: "submit", class: "primary" }, "Answer"),
        el("button", { type: "button", onclick: () => this.send(batch, { action: "cancel" }) }, "Dismiss"),
      ),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.send(batch, { responses: fields.map((each) => each.read()) });
    });
    return form;
  }
}

// One question: its controls, and how to read the answer from them.
function field(question) {
  const { id, type } = question;
  const choices =
    type === "yes_no"
      ? [
          { id: "yes", label: "Yes" },
          { id: "no", label: "No" },
        ]
      : question.choices || [];
  const kind = type === "multi_choice" ? "checkbox" : "radio";
  const inputs = choices.map((choice) =>
    el("input", { type: kind, name: id, value: choice.id, required: kind === "radio" && type === "yes_no" }),
  );
  const free =
    type === "yes_no"
      ? null
      : el(type === "free_text" ? "textarea" : "input", {
          "aria-label": type === "free_text" ? "Answer" : "Another answer",
          placeholder: type === "free_text" ? "" : "Another answer",
          rows: type === "free_text" ? "3" : null,
        });
  const node = el(
    "fieldset",
    {},
    el("legend", { dir: "auto" }, question.question),
    question.description ? el("p", { class: "hint", dir: "auto" }, question.description) : null,
    ...choices.map((choice, index) => {
      const text = el("span", { dir: "auto" }, choice.label);
      const more = choice.description ? el("span", { class: "hint", dir: "auto" }, choice.description) : null;
      return el("label", { class: "choice" }, inputs[index], text, more);
    }),
    free,
  );
  // The answer must not be empty where one of several is to be chosen. (Of a multiple choice, none
  // may be meant.)
  const check = () => {
    const missing = !free.value.trim() && !inputs.some((input) => input.checked);
    free.setCustomValidity(missing ? "Give an answer, or dismiss the question." : "");
  };
  if (free && kind === "radio") {
    check();
    node.addEventListener("input", check);
  }
  const read = () => {
    const chosen = inputs.filter((input) => input.checked).map((input) => input.value);
    if (type === "yes_no") return { request_id: id, yes: chosen[0] === "yes" };
    const words = free.value.trim();
    return {
      request_id: id,
      ...(chosen.length ? { selected_ids: chosen } : {}),
      ...(words ? { fill_in_text: words } : {}),
    };
  };
  return { node, read };
}

// Ask before something that cannot be taken back; resolves to true or false. `verb` is what is done.
export function confirmed(dialog, title, text, verb) {
  setText(dialog.querySelector("h2"), title);
  setText(dialog.querySelector("p"), text);
  setText(dialog.querySelector("[value=yes]"), verb);
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "yes"), { once: true });
  });
}
