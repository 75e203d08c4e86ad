// The event stream of one workspace, which reconnects by itself.
//
// Runs in the shared worker, or in the page where there is none. What it emits:
//   {type: "live", workspace, refetch}  events come from now on; `refetch`: what is shown may be old
//   {type: "event", kind, action, payload}
//   {type: "lost", message}             no connection; it will be tried again
//   {type: "unauthorized", token}       the token or the key is not valid. A key is tried again now
//                                       and then: a stranger may have refused it, or it gives
//                                       another token. Without one, waits for another token.
//   {type: "failed", message}           the workspace cannot be opened; given up
//   {type: "client", id}                our client id was retired, this is the new one
//   {type: "token", token}              the daemon was started again, this is its token
//
// With a key, a stream that was lost sends nothing before the daemon has proven to be the same
// user's: whoever listens at its port meanwhile gets neither the token nor a path.

import { ApiError, at, bearer, parsed, request, uuid } from "./api.js";
import { renew } from "./proof.js";

const BACKOFF = { first: 250, most: 2000 }; // milliseconds; the daemon is on this machine
const UNKNOWN = 5_000; // milliseconds between two attempts with a key that was not known
const SILENCE = 40_000; // milliseconds until a stream counts as lost; the daemon writes every 15 s

export class EventStream {
  constructor({ path, client, token, key, emit }) {
    this.path = path;
    this.client = client;
    this.token = token;
    this.key = key; // null: the daemon asks for no token, or this browser cannot prove anything
    this.doubtful = false; // whether somebody else may listen at the port by now
    this.unknown = false; // whether who answers there does not know our key: that may be a stranger
    this.refused = null; // a token that is not sent again, if there is no key that gives another
    this.emit = (message) => emit({ ...message, path }); // a page may show another one by now
    this.workspace = null;
    this.lastId = null;
    this.growing = new Map(); // messages that are not finished, by id: deltas are appended to them
    this.stopped = false;
    this.wake = () => {};
    this.abort = new AbortController();
    this.run();
  }

  // Try again now: there is another token, or the machine woke up.
  retryNow(token = this.token, key = null) {
    this.token = token;
    this.key = key ?? this.key;
    this.wake();
  }

  stop() {
    this.stopped = true;
    this.abort.abort();
    this.wake();
  }

  async run() {
    let delay = BACKOFF.first;
    while (!this.stopped) {
      try {
        if (this.doubtful && this.key) await this.findBack();
        await this.follow(() => (delay = BACKOFF.first));
        if (!this.stopped) this.emit({ type: "lost", message: "The daemon closed the stream." });
      } catch (error) {
        if (this.stopped) return;
        if (!this.survives(error)) return;
      }
      this.doubtful = true;
      while (this.token === this.refused && !this.stopped) await this.pause(null);
      const usual = this.unknown ? UNKNOWN : delay * (0.75 + Math.random() / 2);
      if (this.refused === null) await this.pause(usual);
      this.refused = null;
      delay = Math.min(delay * 2, BACKOFF.most);
    }
  }

  // Get the token of the daemon that is at the port now.
  async findBack() {
    const { token } = await renew(this.key);
    this.unknown = false;
    if (token !== this.token) this.emit({ type: "token", token });
    this.token = token;
  }

  // Emit what an error means; returns whether to try again.
  survives(error) {
    // Any other error is a broken connection, or a stream without a sign of life.
    const known = error instanceof ApiError ? error : new ApiError(0, "", "No connection to the daemon.");
    const { status, code, message } = known;
    if (status === 404 || code === "workspace_closing") {
      this.workspace = null; // created again, by its path
    } else if (code === "client_retired") {
      this.client = uuid();
      this.workspace = null;
      this.emit({ type: "client", id: this.client });
    } else if (code === "bad_code" || status === 401 || status === 429) {
      if (this.key) this.unknown = true;
      else this.refused = this.token;
      this.emit({ type: "unauthorized", token: this.token });
      return true;
    } else if (status >= 400 && status < 500 && code !== "data_directory_in_use") {
      this.emit({ type: "failed", message });
      return false;
    }
    this.emit({ type: "lost", message, code });
    return true;
  }

  // Wait so long, or until `wake` is called; null: for that only.
  pause(milliseconds) {
    return new Promise((resolve) => {
      const timer = milliseconds === null ? null : setTimeout(resolve, milliseconds);
      this.wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }

  // Open the workspace if need be, then the stream, and read it to its end.
  async follow(connected) {
    if (this.workspace === null) {
      const wanted = { path: this.path, client_id: this.client };
      this.workspace = await request(this.token, "POST", "/v1/workspaces", wanted);
      this.lastId = null;
    }
    const target = `${at("workspaces", this.workspace.id, "events")}?client_id=${this.client}&resume=1&deltas=1`;
    this.growing.clear();
    const resuming = this.lastId !== null;
    this.abort = new AbortController();
    const headers = { ...bearer(this.token), ...(resuming ? { "Last-Event-ID": this.lastId } : {}) };
    const response = await fetch(target, {
      headers,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: this.abort.signal,
    });
    if (!response.ok) {
      const refusal = parsed(await response.text());
      throw new ApiError(response.status, refusal?.code || "", refusal?.message || `status ${response.status}`);
    }
    connected();
    this.emit({ type: "live", workspace: this.workspace, refetch: !resuming });
    await this.read(response.body.getReader());
  }

  async read(reader) {
    const decoder = new TextDecoder();
    let rest = "";
    let data = [];
    while (!this.stopped) {
      const silence = setTimeout(() => this.abort.abort(), SILENCE);
      const { done, value } = await reader.read().finally(() => clearTimeout(silence));
      if (done) return;
      rest += decoder.decode(value, { stream: true });
      const lines = rest.split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("id:")) this.lastId = line.slice(3).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
        else if (line === "" && data.length) {
          this.take(parsed(data.join("\n")));
          data = [];
        }
      }
    }
  }

  take(event) {
    if (event === null) return;
    if (event.type === "resync") {
      this.emit({ type: "live", workspace: this.workspace, refetch: true });
      return;
    }
    let kind = event.type;
    let { type: action, payload } = event.payload;
    if (kind === "message_delta") {
      payload = this.appended(payload);
      if (payload === null) return;
      kind = "message";
    }
    if (kind === "message") {
      const ended = action === "deleted" || payload.parts.some((part) => part.type === "finish");
      if (ended) this.growing.delete(payload.id);
      else this.growing.set(payload.id, payload);
    }
    this.emit({ type: "event", kind, action, payload });
  }

  // The message that results from a delta; null if it belongs to none that is known.
  appended(delta) {
    const message = this.growing.get(delta.message_id);
    const part = message?.parts[delta.part];
    if (!part) return null;
    const field = part.type === "reasoning" ? "thinking" : "text";
    const data = { ...part.data, [field]: (part.data[field] || "") + delta.text };
    const parts = message.parts.map((each, index) => (index === delta.part ? { ...part, data } : each));
    return { ...message, parts };
  }
}
