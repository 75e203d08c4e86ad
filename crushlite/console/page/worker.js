// One event stream per workspace for all tabs of a browser: a browser keeps at most six connections
// to a daemon, so ten tabs with a stream each would leave none for anything else.

import { EventStream } from "./stream.js";

const MOST = 4; // workspaces at a time: each takes one of the six connections
const shares = new Map(); // by path: {path, stream, ports, last}

self.onconnect = ({ ports: [port] }) => {
  let shared = null;
  const leave = () => {
    if (shared === null) return;
    shared.ports.delete(port);
    if (shared.ports.size === 0) {
      shared.stream.stop();
      if (shares.get(shared.path) === shared) shares.delete(shared.path);
    }
    shared = null;
  };
  port.onmessage = ({ data }) => {
    if (data.type === "open") {
      leave();
      shared = join(port, data);
      // A tab that is killed sends nothing, but its lock is released.
      if (data.lock && navigator.locks) navigator.locks.request(data.lock, leave);
    } else if (data.type === "close") {
      leave();
    } else if (data.type === "retry") {
      shared?.stream.retryNow(data.token, data.key);
    } else if (data.type === "relay" && shared !== null) {
      for (const other of shared.ports) if (other !== port) other.postMessage(data);
    }
  };
};

function join(port, { path, client, token, key }) {
  const known = shares.get(path);
  if (known) {
    known.ports.add(port);
    if (known.last) port.postMessage({ ...known.last, refetch: true });
    if (known.last?.type === "live") known.stream.key ??= key;
    else known.stream.retryNow(token, key);
    return known;
  }
  if (shares.size >= MOST) {
    const message = `This browser has ${MOST} workspaces open, which is the most: close the tabs of one.`;
    port.postMessage({ type: "failed", message, path });
    return null;
  }
  const shared = { path, ports: new Set([port]), last: null, stream: null };
  shares.set(path, shared);
  const emit = (message) => {
    if (!["event", "client", "token"].includes(message.type)) shared.last = message;
    for (const each of shared.ports) each.postMessage(message);
    if (message.type === "failed") shares.delete(path);
  };
  shared.stream = new EventStream({ path, client, token, key, emit });
  return shared;
}
