// The model in use, in the bar, and choosing another one for later prompts.

import { el } from "./text.js";

const key = (provider, model) => JSON.stringify([provider, model]);

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

  // Show the model in use (an answer of `GET W/agent`) among those of all providers. An agent whose
  // model is nobody's is shown alone.
  draw({ model, model_cfg: used }, providers) {
    this.select.hidden = !model?.name && !model?.id;
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
      this.select.prepend(el("option", { value }, model?.name || model?.id || ""));
      this.select.value = value;
    }
  }
}
