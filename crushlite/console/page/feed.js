// Where a page gets its events: from the shared worker, or from a stream of its own in a browser
// without shared workers.

import { EventStream } from "./stream.js";
import { uuid } from "./api.js";

const SCRIPT = "/console/worker.js";

// The one script address that may be made from a string (require-trusted-types-for).
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

// Hold a lock for as long as this tab lives; resolves when it is held.
function held(name) {
  if (!navigator.locks) return Promise.resolve();
  return new Promise((ready) => {
    navigator.locks.request(name, () => {
      ready();
      return new Promise(() => {});
    });
  });
}

// `take` is called with what stream.js emits, and with {type: "relay"} from other tabs.
export class Feed {
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

  // `key` (keys.js) is what the stream finds back with after a restart of the daemon.
  async open(path, client, token, key) {
    if (this.worker) {
      await this.locked; // else the worker could get the lock first, and take this tab for closed
      this.worker.port.postMessage({ type: "open", path, client, token, key, lock: this.lock });
    } else {
      this.own?.stop();
      const emit = (message) => this.own === stream && this.take(message);
      const stream = new EventStream({ path, client, token, key, emit });
      this.own = stream;
    }
  }

  close() {
    this.worker?.port.postMessage({ type: "close" });
    this.own?.stop();
    this.own = null;
  }

  retryNow(token, key) {
    this.worker?.port.postMessage({ type: "retry", token, key });
    this.own?.retryNow(token, key);
  }

  // Make the other tabs of this workspace refresh: the daemon has no event for changes of the queue.
  relay() {
    this.worker?.port.postMessage({ type: "relay" });
  }
}
