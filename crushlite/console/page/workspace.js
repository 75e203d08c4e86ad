// One workspace on the screen: it fetches what it shows, then follows the events.
//
// Order: the stream is open before anything is fetched. Events that come while the messages are
// being fetched wait, and are applied to what was fetched: each carries the whole message, so the
// last one is right, whichever of the two was faster.

import { Actions } from "./actions.js";
import { AgentPicker } from "./agents.js";
import { ApiError, at, uuid } from "./api.js";
import { Composer } from "./composer.js";
import { PermissionDialog, QuestionDialog } from "./dialogs.js";
import { EffortPicker, ModelPicker } from "./models.js";
import { Queue } from "./queue.js";
import { RulesPanel } from "./rules.js";
import { Sessions, titleOf } from "./sessions.js";
import { drawAgent, drawSession, suggest } from "./status.js";
import { Transcript } from "./transcript.js";
import { Working } from "./working.js";
import { byId, el, setText } from "./text.js";

const POLL = 5_000; // milliseconds: presence, queue and skip have no events
const RETRY = 1_000;
const SOON = 120; // milliseconds after an event: several at once cause one refresh

export class WorkspaceView {
  // `api(method, path, body)`; `feed` (feed.js) relays to other tabs; `client()` is our client id.
  constructor({ api, feed, client }) {
    this.api = api;
    this.feed = feed;
    this.client = client;
    this.workspace = null;
    this.current = null; // id of the session that is shown
    this.early = null; // events that wait for a fetch of messages
    this.fetches = 0;
    this.asked = 0; // how many events about permissions and questions came
    this.needed = 0; // how often everything had to be fetched anew,
    this.fetched = 0; // and the number of the last time that it was
    this.permissions = [];
    this.questions = [];
    this.queue = [];
    this.children = new Map(); // by the id of a session that a call began: the session of the call
    this.transcript = new Transcript({
      root: byId("transcript"),
      scroller: byId("scroller"),
      toEnd: byId("to-end"),
      earlier: byId("earlier"),
      edit: (text, files) => this.composer.insert(text, files),
      again: () => this.attempt(() => this.again()),
      fetchChild: (session) => this.api("GET", this.path("sessions", session, "messages")).catch(() => []),
    });
    this.working = new Working();
    this.waiting = new Queue((run) => this.attempt(() => this.unqueue(run)));
    this.sessions = new Sessions((id) => this.choose(id));
    this.composer = new Composer({
      send: (session, prompt) => this.prompt(session, prompt),
      complain: (text) => this.trouble(text),
    });
    this.models = new ModelPicker(byId("model"), (model) => this.attempt(() => this.chooseModel(model)));
    this.efforts = new EffortPicker(byId("effort"));
    this.agents = new AgentPicker(byId("agent"), this);
    const elsewhere = (request) => this.linkTo(request.session_id);
    this.permissionDialog = new PermissionDialog(
      byId("permission"),
      (...given) => this.answer("permissions", ...given),
      elsewhere,
    );
    this.questionDialog = new QuestionDialog(
      byId("question"),
      (...given) => this.answer("questions", ...given),
      elsewhere,
    );
    this.rules = new RulesPanel(byId("rules"), {
      fetch: async () => {
        await this.permissionDialog.sent; // it may be what keeps a rule
        return this.api("GET", this.path("permissions", "rules"));
      },
      remove: (rule) =>
        this.attempt(() => this.api("DELETE", this.path("permissions", "rules", rule.id))),
      titleOf: (session) => titleOf(this.sessions.get(session) || { title: session.slice(0, 8) }),
    });
    this.actions = new Actions(this);
    this.listen();
  }

  listen() {
    const on = (id, handler) => byId(id).addEventListener("click", () => this.attempt(handler));
    on("session-new", () => this.create());
    on("cancel", () => this.cancel());
    suggest((text) => this.composer.insert(text));
    setInterval(() => document.hidden || this.workspace === null || this.refresh(), POLL);
    document.addEventListener("visibilitychange", () => document.hidden || this.look());
  }

  // Do something for the user; show a refusal.
  async attempt(action) {
    try {
      await action();
      this.trouble("");
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.trouble(error.message);
    }
  }

  trouble(text) {
    byId("trouble").hidden = !text;
    setText(byId("trouble"), text);
  }

  announce(text) {
    setText(byId("announce"), text);
  }

  path(...segments) {
    return at("workspaces", this.workspace.id, ...segments);
  }

  // Fetching -----------------------------------------------------------------------------------

  // The stream is open. Everything is fetched, unless the stream has resumed without a gap.
  async live(workspace, refetch) {
    const other = this.workspace?.path !== workspace.path;
    this.workspace = workspace;
    if (other) this.leave();
    if (refetch) this.needed += 1;
    this.trouble(workspace.warning || "");
    await this.catchUp();
    await this.look();
  }

  leave() {
    this.current = null;
    this.queue = [];
    this.permissions = [];
    this.questions = [];
    this.sessions.open(this.workspace.path);
    this.transcript.reset([], { anew: true });
    this.drawAsked();
  }

  // Fetch everything, and try again until that has worked: until then what is shown may be old.
  async catchUp() {
    const number = this.needed;
    if (this.fetched >= number) return;
    try {
      await this.fetchAll();
      this.fetched = number;
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      clearTimeout(this.fetchLater);
      this.fetchLater = setTimeout(() => this.catchUp(), RETRY);
    }
  }

  async fetchAll() {
    await this.fetchSessions();
    const wanted = this.current || sessionStorage.getItem(`crushlite.session.${this.workspace.path}`);
    const known = this.sessions.get(wanted) || this.sessions.listed[0];
    await Promise.all([this.show(known?.id || null), this.fetchAgent(), this.fetchAsked()]);
    this.draw();
  }

  async fetchSessions() {
    this.sessions.reset((await this.api("GET", this.path("sessions"))) || []);
  }

  async fetchAgent() {
    const [agent, providers] = await Promise.all([
      this.api("GET", this.path("agent")),
      this.api("GET", this.path("providers")),
    ]);
    this.window = agent.model?.context_window || 0;
    this.models.draw(agent, providers || []);
    this.efforts.use(agent);
    drawAgent(agent);
  }

  // Fetch the open permissions and questions; again if an event about them came meanwhile.
  async fetchAsked() {
    for (let number = null; number !== this.asked;) {
      number = this.asked;
      const [permissions, questions] = await Promise.all([
        this.api("GET", this.path("permissions")),
        this.api("GET", this.path("questions")),
      ]);
      if (number !== this.asked) continue;
      this.permissions = permissions || [];
      this.questions = questions || [];
      this.drawAsked();
    }
  }

  async fetchQueue() {
    const session = this.current;
    const queue = session ? await this.api("GET", this.path("agent", "sessions", session, "prompts")) : [];
    if (session === this.current) this.queue = queue || [];
  }

  // Show a session: its messages as the daemon has them, then as events change them.
  async show(session) {
    const other = session !== this.current;
    this.current = session;
    const number = (this.fetches += 1);
    this.early = [];
    if (other) {
      this.queue = [];
      this.transcript.reset([], { anew: true });
      this.composer.open(session);
      this.actions.rename(false);
    }
    const messages = session ? await this.api("GET", this.path("sessions", session, "messages")) : [];
    if (number !== this.fetches) return; // another session was chosen meanwhile
    const early = this.early;
    this.early = null;
    this.transcript.reset(messages || [], { anew: other });
    early.forEach((event) => this.onMessage(event));
    await this.fetchQueue();
  }

  // Show another session; if that fails now it is tried again.
  async go(session) {
    this.working.retry("");
    try {
      await this.show(session);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.trouble(error.message);
      this.needed += 1;
      await this.catchUp();
    }
    this.drawAsked();
  }

  // Fetch what no event carries: busy sessions, other clients, the queue, whether tools may run
  // without asking.
  async refresh() {
    if (this.refreshing) {
      this.outdated = true;
      return;
    }
    this.refreshing = true;
    try {
      do {
        this.outdated = false;
        const [, , skip] = await Promise.all([
          this.fetchSessions(),
          this.fetchQueue(),
          this.api("GET", this.path("permissions", "skip")),
        ]);
        byId("yolo").hidden = !(skip?.skip || this.workspace.yolo);
        this.draw();
      } while (this.outdated);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error; // the stream reports a lost connection
    } finally {
      this.refreshing = false;
    }
  }

  soon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.refresh(), SOON);
  }

  // Tell the daemon what this browser looks at; others see it as presence.
  async look() {
    if (this.workspace === null) return;
    try {
      await this.api("POST", `${this.path("current-session")}?client_id=${this.client()}`, {
        session_id: this.current || "",
      });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error; // other clients see less, nothing else
    }
    await this.refresh();
  }

  // Events -------------------------------------------------------------------------------------

  take({ kind, action, payload }) {
    if (kind === "message") this.onMessage({ action, payload });
    else if (kind === "session") this.onSession(action, payload);
    else if (kind === "tool_output") payload.session_id === this.current && this.transcript.output(payload);
    else if (kind.startsWith("permission_") || kind.startsWith("question_")) this.onAsked(kind, payload);
    else if (kind === "config_changed") this.attempt(() => this.fetchAgent());
    else if (kind === "agent_event" && payload.type === "retry") this.onRetry(payload);
    else if (kind === "run_complete") this.onEnd(payload);
    if (kind !== "message" && kind !== "tool_output") this.soon();
  }

  onMessage(event) {
    const { action, payload: message } = event;
    if (action === "created" && message.role === "user") {
      this.sessions.setBusy(message.session_id, true);
      this.soon();
    }
    const parent = this.children.get(message.session_id);
    if (parent === this.current && parent) this.transcript.step(message.session_id, message);
    if (message.session_id !== this.current) return;
    this.working.retry("");
    if (this.early !== null) {
      this.early.push(event);
      return;
    }
    this.transcript.apply(action, message);
    byId("empty").hidden = this.transcript.size > 0;
    this.drawWorking();
  }

  onSession(action, session) {
    if (session.parent_session_id) this.children.set(session.id, session.parent_session_id);
    this.sessions.apply(action, session);
    const gone = action === "deleted" && session.id === this.current;
    const first = this.current === null && byId("prompt").value === "";
    if (gone || first) this.go(this.sessions.listed[0]?.id || null);
    this.draw();
  }

  onAsked(kind, payload) {
    this.asked += 1;
    if (kind === "permission_request" && !this.permissions.some((each) => each.id === payload.id))
      this.permissions.push(payload);
    if (kind === "question_batch_request" && !this.questions.some((each) => each.id === payload.id))
      this.questions.push(payload);
    if (kind === "permission_notification") {
      if (payload.granted || payload.denied)
        this.permissions = this.permissions.filter((each) => each.tool_call_id !== payload.tool_call_id);
      else this.attempt(() => this.fetchAsked());
    }
    if (kind === "question_batch_notification")
      this.questions = this.questions.filter((each) => each.id !== payload.batch_id);
    this.drawAsked();
  }

  // A model call has failed and will be made again: shown until the answer goes on.
  onRetry(event) {
    if (event.session_id === this.current) this.working.retry(event.progress || "");
    this.drawWorking();
  }

  onEnd(run) {
    this.sessions.setFailed(run.session_id, Boolean(run.error) && !run.cancelled);
    if (run.session_id !== this.current) return;
    this.working.retry("");
    this.announce(run.cancelled ? "Canceled" : run.error ? `Failed: ${run.error}` : "Answer complete");
  }

  // What the user does -------------------------------------------------------------------------

  async choose(session) {
    sessionStorage.setItem(`crushlite.session.${this.workspace.path}`, session);
    document.dispatchEvent(new Event("chosen"));
    if (session !== this.current) await this.go(session);
    this.draw();
    await this.look();
    this.focus();
  }

  // Focus the prompt; not on a narrow screen, where a keyboard would cover half of the page.
  focus() {
    if (matchMedia("(min-width: 720px)").matches) byId("prompt").focus();
  }

  // Use another model for later prompts. The event of the change draws it for all; a refusal leaves
  // the one in use.
  async chooseModel(model) {
    try {
      await this.api("POST", this.path("config", "model"), { scope: 0, model_type: "large", model });
    } finally {
      await this.fetchAgent();
    }
  }

  async create(title = "New session") {
    const session = await this.api("POST", this.path("sessions"), { title });
    this.sessions.apply("created", session);
    await this.choose(session.id);
    return session.id;
  }

  async prompt(typedIn, prompt) {
    const before = typedIn ?? this.current;
    const session = before ?? (await this.create());
    if (!before) await this.agents.begin(session);
    const wish = { ...this.efforts.wish(session, before), session_id: session, detach: true };
    const text = await this.actions.expanded(prompt.prompt);
    await this.api("POST", this.path("agent"), { ...prompt, ...wish, prompt: text });
    this.sessions.setBusy(session, true);
    this.sessions.setFailed(session, false);
    this.transcript.scrollToEnd();
    this.trouble("");
    this.feed.relay();
    await this.refresh();
  }

  async cancel() {
    if (this.current === null) return;
    byId("cancel").disabled = true;
    try {
      await this.api("POST", this.path("agent", "sessions", this.current, "cancel"));
    } finally {
      byId("cancel").disabled = false;
    }
    this.feed.relay();
    await this.refresh();
  }

  async unqueue(run) {
    await this.api("DELETE", this.path("agent", "sessions", this.current, "prompts", run));
    this.feed.relay();
    await this.refresh();
  }

  async answer(what, request, body) {
    try {
      const { resolved } = await this.api(
        "POST",
        `${this.path(what, request.id)}?client_id=${this.client()}`,
        body,
      );
      this.announce(resolved ? "Answered" : "Somebody else was first");
    } catch (error) {
      if (error.status !== 404) {
        this.trouble(`Not answered: ${error.message}`);
        throw error;
      }
    }
    await this.fetchAsked();
  }

  // Send the last prompt of this session once more, with its files.
  async again() {
    const { text, files } = this.transcript.asked || {};
    if (!text) throw new ApiError(0, "", "There is no prompt yet that could be sent again.");
    const attachments = files.length ? { attachments: files } : {};
    await this.prompt(this.current, { prompt: text, run_id: uuid(), when_busy: "queue", ...attachments });
  }

  // Drawing ------------------------------------------------------------------------------------

  draw() {
    const session = this.sessions.get(this.current);
    this.sessions.draw(this.current);
    this.efforts.draw(this.current);
    byId("session-bar").hidden = !session;
    byId("empty").hidden = this.transcript.size > 0 || this.early !== null;
    setText(byId("empty-title"), session ? "Ask for something below" : "Ask for something, and a session begins");
    const busy = Boolean(session?.is_busy);
    byId("cancel").hidden = !busy;
    byId("when-busy").hidden = !busy;
    const mark = this.permissions.length + this.questions.length ? "(!) " : busy ? "● " : "";
    document.title = `${mark}${session ? titleOf(session) : "crushlite"}`;
    if (session) drawSession(session, this.window);
    this.actions.draw();
    this.waiting.draw(this.queue);
    this.drawWorking();
  }

  drawWorking() {
    const session = this.sessions.get(this.current);
    const needs = this.sessions.asking.has(this.current);
    const { since = 0, begun = false } = this.transcript.asked || {};
    this.working.draw({ busy: Boolean(session?.is_busy), needs, since, begun });
  }

  drawAsked() {
    const before = this.permissionDialog.id || this.questionDialog.id;
    const here = (list) =>
      [...list].sort((a, b) => (b.session_id === this.current) - (a.session_id === this.current));
    this.permissionDialog.show(here(this.permissions));
    this.questionDialog.show(here(this.questions));
    const open = [...this.permissions, ...this.questions];
    this.transcript.setWaiting(open.map((each) => each.tool_call_id));
    this.sessions.setAsking(open.map((each) => this.children.get(each.session_id) || each.session_id));
    if (this.workspace !== null) this.draw();
    const now = this.permissionDialog.id || this.questionDialog.id;
    if (now && now !== before)
      this.announce(this.permissionDialog.id ? "A permission is asked for" : "The agent asks a question");
  }

  // A button to the session of a request; null if that session is shown already.
  linkTo(session) {
    const known = this.sessions.get(session);
    if (session === this.current || !known) return null;
    return el(
      "button",
      { type: "button", class: "small", onclick: () => this.choose(session) },
      `in “${titleOf(known).slice(0, 40)}”`,
    );
  }
}
