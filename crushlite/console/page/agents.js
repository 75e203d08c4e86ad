// Which agent answers in a session: the daemon's own, or one that `agents` in crush.json names.

import { ApiError } from "./api.js";
import { byId, el } from "./text.js";

const DEFAULT = "default";

export class AgentPicker {
  // `view` is the WorkspaceView whose session it is about.
  constructor(select, view) {
    this.select = select;
    this.view = view;
    this.first = ""; // for the session that begins with the next prompt, if none is shown
    this.select.parentNode.hidden = true;
    select.addEventListener("change", () => view.attempt(() => this.choose(select.value)));
    // Another client may have chosen meanwhile, or a file may have changed: no event says so.
    byId("menu").addEventListener("beforetoggle", (event) => event.newState === "open" && this.draw());
  }

  // The agents that could be chosen: [{name, choose}].
  async rows() {
    await this.draw();
    return [...this.select.options]
      .filter((option) => !option.selected)
      .map(({ value, textContent: name }) => ({ name, choose: () => this.choose(value) }));
  }

  // Fetch what can be chosen, and what was, for the session that is shown; nothing is shown if there
  // is only the daemon's own agent.
  async draw() {
    const { view } = this;
    const session = view.current;
    const [offered, chosen] = await Promise.all([
      this.fetch("agents"),
      session ? this.fetch("sessions", session, "agent") : { agent: this.first },
    ]);
    if (session !== view.current) return;
    const value = chosen?.agent || DEFAULT;
    const names = (offered || []).map((each) => each.name);
    this.select.replaceChildren(
      el("option", { value: DEFAULT }, "the daemon’s own"),
      ...names.map((name) => el("option", { value: name }, name)),
    );
    if (value !== DEFAULT && !names.includes(value)) this.select.append(el("option", { value }, value));
    this.select.value = value;
    this.select.parentNode.hidden = this.select.options.length === 1;
  }

  // A daemon without external agents answers 404.
  async fetch(...segments) {
    try {
      return await this.view.api("GET", this.view.path(...segments));
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      return null;
    }
  }

  // Let an agent answer the later prompts of this session. A refusal leaves the one before.
  async choose(agent) {
    const { view } = this;
    if (!view.current) {
      this.first = agent === DEFAULT ? "" : agent;
      return;
    }
    try {
      await view.api("PUT", view.path("sessions", view.current, "agent"), { agent });
      view.announce("Another agent answers the later prompts");
    } finally {
      await this.draw();
    }
  }

  // A session has begun: what was chosen before is meant for it.
  async begin(session) {
    const agent = this.first;
    if (!agent) return;
    await this.view.api("PUT", this.view.path("sessions", session, "agent"), { agent });
    this.first = "";
  }
}
