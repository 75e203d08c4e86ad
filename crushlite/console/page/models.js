// The model in use and how much it reasons, in the bar, and choosing both for later prompts.

import { el } from "./text.js";

const key = (provider, model) => JSON.stringify([provider, model]);

const OFFLINE = "offline"; // the provider of the agent that answers without a model

// What is said of the agent that is in use (an answer of `GET W/agent`).
export function nameOf({ model, model_cfg: used }) {
  if (used?.provider === OFFLINE) return "No model";
  return model?.name || model?.id || "No model";
}

export function statusOf(agent) {
  const name = nameOf(agent);
  if (name !== "No model") return `${name} answers${agent.model_cfg?.provider ? `, at ${agent.model_cfg.provider}` : ""}.`;
  const fix = "Set one up: “crushlite doctor” in a terminal says how.";
  return agent.model?.id ? `No model is set up: the built-in demonstration answers. ${fix}` : `No model is set up. ${fix}`;
}

// What the list says of a model: its name, and its context window if that is known.
function described(model) {
  const window = model.context_window ? ` · ${Math.round(model.context_window / 1000)}k` : "";
  return `${model.name || model.id}${window}`;
}

export class ModelPicker {
  // `choose({provider, model})` is called with what was picked.
  constructor(select, choose) {
    this.select = select;
    this.choose = choose;
    select.addEventListener("change", () => {
      const [provider, model] = JSON.parse(select.value);
      this.choose({ provider, model });
    });
  }

  // The models that could be chosen: [{name, choose}].
  rows() {
    return [...this.select.options]
      .filter((option) => !option.selected)
      .map((option) => {
        const [provider, model] = JSON.parse(option.value);
        return { name: option.textContent, choose: () => this.choose({ provider, model }) };
      });
  }

  // Show the model in use (an answer of `GET W/agent`) among those of all providers. An agent whose
  // model is nobody's is shown alone.
  draw({ model, model_cfg: used }, providers) {
    this.select.parentNode.hidden = !model?.name && !model?.id;
    const value = key(used?.provider, used?.model);
    const groups = providers.map((provider) =>
      el(
        "optgroup",
        { label: provider.name || provider.id },
        ...(provider.models || []).map((each) =>
          el("option", { value: key(provider.id, each.id) }, described(each)),
        ),
      ),
    );
    this.select.replaceChildren(...groups);
    this.select.value = value;
    if (this.select.value !== value) {
      const name = used?.provider === OFFLINE ? "none (demonstration)" : model?.name || model?.id || "";
      this.select.prepend(el("option", { value }, name));
      this.select.value = value;
    }
  }
}

// How much the model reasons in the later prompts of a session. This tab remembers it.
export class EffortPicker {
  constructor(select) {
    this.select = select;
    this.efforts = new Map(); // by session; null is the one that does not exist yet
    this.session = null;
    this.levels = [];
    select.addEventListener("change", () => this.efforts.set(this.session, select.value));
  }

  // The levels of a model (an answer of `GET W/agent`). One that cannot reason has none to choose.
  use({ model, model_cfg: used }) {
    const levels = model?.reasoning_levels || [];
    const known = levels.length ? levels : ["low", "medium", "high"];
    this.levels = model?.can_reason || levels.length ? [...new Set(["none", ...known])] : [];
    this.usual = used?.reasoning_effort || "usual";
    this.fill();
  }

  // Show what was chosen for a session.
  draw(session) {
    if (session === this.session) return; // a list that is open stays open
    this.session = session;
    this.fill();
  }

  fill() {
    this.select.parentNode.hidden = !this.levels.length;
    this.select.replaceChildren(
      el("option", { value: "" }, `reasoning: ${this.usual}`),
      ...this.levels.map((level) => el("option", { value: level }, `reasoning: ${level}`)),
    );
    this.select.value = this.chosen(this.session);
  }

  // The level that was chosen for a session, if the model has it.
  chosen(session) {
    const effort = this.efforts.get(session);
    return this.levels.includes(effort) ? effort : "";
  }

  // What a prompt says about it. `session` has just begun if the prompt was `typedIn` none.
  wish(session, typedIn) {
    if (!typedIn && this.efforts.has(null)) {
      this.efforts.set(session, this.efforts.get(null));
      this.efforts.delete(null);
      this.fill();
    }
    const effort = this.chosen(session);
    return effort ? { reasoning_effort: effort } : {};
  }
}
