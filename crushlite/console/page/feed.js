// The page's end of the event stream: the shared worker's, or its own where there is none.

import { Feed } from "./stream.js";
import { uuid } from "./api.js";

const SCRIPT = "/console/worker.js";

// The page may make no script from a string (require-trusted-types-for), except this one.
function trusted(url) {
  if (!self.trustedTypes) return url;
  return trustedTypes.createPolicy("crushlite", { createScriptURL: () => SCRIPT }).createScriptURL(url);
}

function sharedWorker() {
  if (!self.SharedWorker) return null;
  try {
    return new SharedWorker(trusted(SCRIPT), { type: "module", name: "crushlite" });
  } catch {
    return null; // a browser without module workers: this tab gets a stream of its own
  }
}

// Hold a lock for as long as this tab lives; resolves when it is ours.
function held(name) {
  if (!navigator.locks) return Promise.resolve();
  return new Promise((ready) => {
    navigator.locks.request(name, () => {
      ready();
      return new Promise(() => {});
    });
  });
}

// `take` gets what stream.js emits, and {type: "relay", ...} of other tabs.
export class Line {
  constructor(take) {
    this.take = take;
    this.own = null;
    this.worker = sharedWorker();
    this.lock = `crushlite-tab-${uuid()}`;
    this.locked = held(this.lock);
    if (this.worker) {
      this.worker.port.onmessage = ({ data }) => this.take(data);
      addEventListener("pagehide", () => this.close());
    }
  }

  async open(path, client, token) {
    if (this.worker) {
      await this.locked; // else the worker would get the lock first, and take us for dead
      this.worker.port.postMessage({ type: "open", path, client, token, lock: this.lock });
    } else {
      this.own?.stop();
      const feed = new Feed(path, client, token, (message) => this.own === feed && this.take(message));
      this.own = feed;
    }
  }

  close() {
    this.worker?.port.postMessage({ type: "close" });
    this.own?.stop();
    this.own = null;
  }

  hurry(token) {
    this.worker?.port.postMessage({ type: "hurry", token });
    this.own?.hurry(token);
  }

  // Tell the other tabs of this workspace something that the daemon has no event for.
  relay(message) {
    this.worker?.port.postMessage({ ...message, type: "relay" });
  }
}
