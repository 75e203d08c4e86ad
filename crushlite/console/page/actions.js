// What the menu and the command palette do with the session that is shown.

import { ApiError } from "./api.js";
import { confirmed } from "./dialogs.js";
import { fileName, markdownOf, save } from "./export.js";
import { Palette } from "./palette.js";
import { titleOf } from "./sessions.js";
import { byId, plural } from "./text.js";

const NAMED = 12; // files that are named before something is undone

export class Actions {
  // `view` is the WorkspaceView whose session they act on.
  constructor(view) {
    this.view = view;
    this.commands = []; // of the daemon: prompts that are sent by a name
    this.palette = new Palette(byId("palette"), () => this.rows());
    const on = (id, act) =>
      byId(id).addEventListener("click", () => {
        byId("menu").hidePopover();
        view.attempt(act);
      });
    on("palette-open", () => this.palette.open());
    on("rules-open", () => view.rules.open());
    on("session-rename", () => this.rename(true));
    on("session-undo", () => this.undo());
    on("session-export", () => this.save("md"));
    on("session-json", () => this.save("json"));
    on("session-delete", () => this.remove());
    byId("rename-cancel").addEventListener("click", () => this.rename(false));
    byId("rename-form").addEventListener("submit", (event) => {
      event.preventDefault();
      view.attempt(() => this.saveTitle());
    });
    byId("rename-form").addEventListener("keydown", (event) => event.key === "Escape" && this.rename(false));
  }

  get session() {
    return this.view.sessions.get(this.view.current);
  }

  // Items that need a session are hidden without one.
  draw() {
    for (const id of ["session-rename", "session-undo", "session-export", "session-json", "session-delete"])
      byId(id).hidden = !this.session;
  }

  // The rows of the palette. Commands are fetched each time: files of the user may have changed.
  async rows() {
    const { view } = this;
    const act = (name, action, hint = "") => ({ name, hint, act: () => view.attempt(action) });
    const [agents] = await Promise.all([view.agents.rows(), this.fetchCommands()]);
    const own = this.session
      ? [
          act("Try the last prompt again", () => view.again()),
          act("Undo the last changes of files", () => this.undo()),
          act("Rename this session", () => this.rename(true)),
          act("Save this session as Markdown", () => this.save("md")),
          act("Save this session as JSON", () => this.save("json")),
          act("Delete this session", () => this.remove()),
        ]
      : [];
    const stop = this.session?.is_busy ? [act("Stop", () => view.cancel())] : [];
    return [
      ...stop,
      act("New session", () => view.create()),
      ...this.commands.map(({ name, description }) => act(`/${name}`, () => view.composer.insert(`/${name} `), description)),
      ...own,
      act("What is allowed without asking", () => view.rules.open()),
      ...agents.map(({ name, choose }) => act(`Let ${name} answer here`, choose, "agent")),
      ...view.models.rows().map(({ name, choose }) => act(`Use ${name}`, choose, "model")),
      ...view.sessions.listed.map((session) => act(titleOf(session), () => view.choose(session.id), "session")),
    ];
  }

  // A daemon without commands answers 404.
  async fetchCommands() {
    try {
      this.commands = (await this.view.api("GET", this.view.path("commands"))) || [];
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.commands = [];
    }
  }

  // The prompt that a text stands for: that of a command, if it begins with the name of one.
  async expanded(text) {
    const [, name, rest] = /^\/(\S+)\s*([^]*)$/.exec(text) || [];
    if (!name) return text;
    await this.fetchCommands();
    if (!this.commands.some((command) => command.name === name)) return text;
    const body = { command: name, text: rest };
    return (await this.view.api("POST", this.view.path("commands", "expand"), body)).prompt;
  }

  rename(open) {
    byId("rename-form").hidden = !open;
    byId("session-title").hidden = open;
    if (!open) return;
    byId("rename-title").value = this.session?.title || "";
    byId("rename-title").focus();
    byId("rename-title").select();
  }

  async saveTitle() {
    const { view } = this;
    await view.api("PUT", view.path("sessions", view.current), {
      id: view.current,
      title: byId("rename-title").value,
    });
    this.rename(false);
    byId("menu-open").focus();
  }

  async remove() {
    const { session, view } = this;
    if (!session) return;
    const text = "Its messages and the history of its files go with it. Files themselves are left as they are.";
    if (!(await confirmed(byId("confirm"), `Delete “${titleOf(session)}”?`, text, "Delete"))) return;
    await view.api("DELETE", view.path("sessions", session.id));
  }

  async save(ending) {
    const { session, view } = this;
    const messages = (await view.api("GET", view.path("sessions", session.id, "messages"))) || [];
    if (ending === "md") save(fileName(session, ending), markdownOf(session, messages), "text/markdown");
    else save(fileName(session, ending), JSON.stringify({ session, messages }, null, 1), "application/json");
  }

  // Put back the files that the last run of this session has changed, after naming them.
  async undo() {
    const { session, view } = this;
    const changes = (await view.api("GET", view.path("changes"))) || [];
    const last = changes.findLast((each) => each.session_id === session?.id && !each.undone && !each.undoes);
    if (!last) throw new ApiError(0, "", "No run of this session has changed a file that could be put back.");
    const target = view.path("runs", last.run_id, "undo");
    const plan = await view.api("POST", target, { dry_run: true, partial: true });
    const names = (list) => (list || []).map((file) => file.path ?? file);
    const back = names(plan.restored);
    const kept = (plan.kept || []).map((file) => `${file.path}: ${file.problem}`);
    if (!back.length) throw new ApiError(0, "", `Nothing can be put back. ${kept.slice(0, NAMED).join("; ")}`);
    const shown = back.slice(0, NAMED).join(", ") + (back.length > NAMED ? " and others" : "");
    const left = kept.length ? ` Left as they are: ${kept.slice(0, NAMED).join("; ")}.` : "";
    const title = `Put back ${plural(back.length, "file")}?`;
    if (!(await confirmed(byId("confirm"), title, `As before the last run: ${shown}.${left}`, "Put back"))) return;
    await view.api("POST", target, { partial: true });
    view.announce(`${plural(back.length, "file")} put back`);
  }
}
