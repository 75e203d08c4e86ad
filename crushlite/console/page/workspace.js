// One workspace on the screen: it fetches what it shows, then follows the events.
//
// Order: the stream is open before anything is fetched. Events that come while the messages are
// being fetched wait, and are applied to what was fetched: each carries the whole message, so the
// last one is right, whichever of the two was faster.

import { ApiError, at } from "./api.js";
import { Composer } from "./composer.js";
import { PermissionDialog, QuestionDialog, confirmed } from "./dialogs.js";
import { EffortPicker, ModelPicker } from "./models.js";
import { RulesPanel } from "./rules.js";
import { Sessions, titleOf } from "./sessions.js";
import { Transcript } from "./transcript.js";
import { byId, el, setText } from "./text.js";

const POLL = 5_000; // milliseconds: presence, queue and skip have no events
const WAITING = { steer: "joins in at the next step", interrupt: "starts at once" };
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
    this.transcript = new Transcript(byId("transcript"), byId("scroller"), byId("to-end"));
    this.sessions = new Sessions((id) => this.choose(id));
    this.composer = new Composer({
      send: (session, prompt) => this.prompt(session, prompt),
      complain: (text) => this.trouble(text),
    });
    this.models = new ModelPicker(byId("model"), (model) => this.attempt(() => this.chooseModel(model)));
    this.efforts = new EffortPicker(byId("effort"));
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
    this.listen();
  }

  listen() {
    const on = (id, handler) => byId(id).addEventListener("click", () => this.attempt(handler));
    on("session-new", () => this.create());
    on("session-delete", () => this.remove());
    on("session-rename", () => this.rename(true));
    on("rename-cancel", () => this.rename(false));
    on("cancel", () => this.cancel());
    on("rules-open", () => this.rules.open());
    byId("rename-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.attempt(() => this.saveTitle());
    });
    byId("rename-form").addEventListener("keydown", (event) => event.key === "Escape" && this.rename(false));
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

  retry(text) {
    byId("retry").hidden = !text;
    setText(byId("retry"), text);
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
    this.sessions.reset([]);
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
      this.rename(false);
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
    this.retry("");
    try {
      await this.show(session);
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      this.trouble(error.message);
      this.needed += 1;
      await this.catchUp();
    }
    this.draw();
  }

  // Fetch what no event carries: busy sessions, other clients, the queue, whether tools may run
  // without asking.
  async refresh() {
    if (this.refreshing) {
      this.again = true;
      return;
    }
    this.refreshing = true;
    try {
      do {
        this.again = false;
        const [, , skip] = await Promise.all([
          this.fetchSessions(),
          this.fetchQueue(),
          this.api("GET", this.path("permissions", "skip")),
        ]);
        byId("yolo").hidden = !(skip?.skip || this.workspace.yolo);
        this.draw();
      } while (this.again);
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
    if (message.session_id !== this.current) return;
    this.retry("");
    if (this.early !== null) {
      this.early.push(event);
      return;
    }
    this.transcript.apply(action, message);
    byId("empty").hidden = this.transcript.size > 0;
  }

  onSession(action, session) {
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
    if (event.session_id === this.current) this.retry(event.progress || "");
  }

  onEnd(run) {
    if (run.session_id !== this.current) return;
    this.retry("");
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
    const wish = { ...this.efforts.wish(session, before), session_id: session, detach: true };
    await this.api("POST", this.path("agent"), { ...prompt, ...wish });
    this.sessions.setBusy(session, true);
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

  rename(open) {
    byId("rename-form").hidden = !open;
    byId("session-title").hidden = open;
    if (!open) return;
    byId("rename-title").value = this.sessions.get(this.current)?.title || "";
    byId("rename-title").focus();
    byId("rename-title").select();
  }

  async saveTitle() {
    await this.api("PUT", this.path("sessions", this.current), {
      id: this.current,
      title: byId("rename-title").value,
    });
    this.rename(false);
    byId("session-rename").focus();
  }

  async remove() {
    const session = this.sessions.get(this.current);
    if (!session) return;
    const text =
      "Its messages and the history of its files go with it. Files themselves are left as they are.";
    if (!(await confirmed(byId("confirm"), `Delete “${titleOf(session)}”?`, text))) return;
    await this.api("DELETE", this.path("sessions", session.id));
  }

  // Drawing ------------------------------------------------------------------------------------

  draw() {
    const session = this.sessions.get(this.current);
    this.sessions.draw(this.current);
    this.efforts.draw(this.current);
    byId("session-bar").hidden = !session;
    byId("empty").hidden = this.transcript.size > 0 || this.early !== null;
    setText(
      byId("empty"),
      session
        ? "Nothing here yet. Ask for something below."
        : "No session yet. Ask for something, and one begins.",
    );
    const busy = Boolean(session?.is_busy);
    byId("cancel").hidden = !busy;
    byId("when-busy").hidden = !busy;
    document.title = `${busy ? "● " : ""}${session ? titleOf(session) : "crushlite"}`;
    if (session) this.drawSession(session);
    this.drawQueue();
  }

  drawSession(session) {
    setText(byId("session-title"), titleOf(session));
    const tokens = session.prompt_tokens + session.completion_tokens;
    const share = this.window && tokens ? ` (${Math.round((100 * tokens) / this.window)}%)` : "";
    setText(
      byId("usage"),
      tokens || session.cost ? `${short(tokens)} tokens${share} · $${session.cost.toFixed(2)}` : "",
    );
    const others = session.attached_clients - 1;
    byId("presence").hidden = others < 1;
    setText(byId("presence"), others === 1 ? "1 other here" : `${others} others here`);
    const todos = session.todos || [];
    byId("todos").hidden = !session.is_busy || todos.every((todo) => todo.status === "completed");
    byId("todos").replaceChildren(
      ...todos.map((todo) =>
        el("span", { class: "todo", "data-status": todo.status }, todo.content.slice(0, 200)),
      ),
    );
  }

  drawQueue() {
    const queue = JSON.stringify(this.queue);
    if (queue === this.drawnQueue) return; // a button that is about to be pressed must stay
    this.drawnQueue = queue;
    const inside = byId("queue").contains(document.activeElement);
    byId("queue").hidden = this.queue.length === 0;
    byId("queue-list").replaceChildren(
      ...this.queue.map((waiting) => {
        const remove = el("button", { class: "small", "aria-label": "Take this prompt out" }, "Remove");
        remove.addEventListener("click", () => this.attempt(() => this.unqueue(waiting.run_id)));
        return el(
          "li",
          {},
          el("bdi", { class: "grow" }, waiting.text.slice(0, 300)),
          el("span", { class: "hint" }, WAITING[waiting.when_busy] || ""),
          remove,
        );
      }),
    );
    if (inside) byId("prompt").focus();
  }

  drawAsked() {
    const before = this.permissionDialog.id || this.questionDialog.id;
    const here = (list) =>
      [...list].sort((a, b) => (b.session_id === this.current) - (a.session_id === this.current));
    this.permissionDialog.show(here(this.permissions));
    this.questionDialog.show(here(this.questions));
    this.transcript.setWaiting([...this.permissions, ...this.questions].map((each) => each.tool_call_id));
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

function short(number) {
  return number < 10_000
    ? number.toLocaleString("en")
    : `${(number / 1000).toFixed(number < 100_000 ? 1 : 0)}k`;
}
