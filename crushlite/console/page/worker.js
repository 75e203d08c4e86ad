// One event stream per workspace for all tabs of a browser: a browser keeps at most six connections
// to a daemon, so ten tabs with a stream each would leave none for anything else.

import { Feed } from "./stream.js";

const MOST = 4; // workspaces at a time, for the same reason
const feeds = new Map(); // by path: {feed, ports, last}

self.onconnect = ({ ports: [port] }) => {
  let shared = null;
  const leave = () => {
    if (shared === null) return;
    shared.ports.delete(port);
    if (shared.ports.size === 0) {
      shared.feed.stop();
      if (feeds.get(shared.path) === shared) feeds.delete(shared.path);
    }
    shared = null;
  };
  port.onmessage = ({ data }) => {
    if (data.type === "open") {
      leave();
      shared = join(port, data);
      // A tab that dies says no goodbye, but loses its lock.
      if (data.lock && navigator.locks) navigator.locks.request(data.lock, leave);
    } else if (data.type === "close") {
      leave();
    } else if (data.type === "hurry") {
      shared?.feed.hurry(data.token);
    } else if (data.type === "relay" && shared !== null) {
      for (const other of shared.ports) if (other !== port) other.postMessage(data);
    }
  };
};

function join(port, { path, client, token }) {
  const known = feeds.get(path);
  if (known) {
    known.ports.add(port);
    if (known.last) port.postMessage({ ...known.last, refetch: true });
    if (known.last?.type !== "live") known.feed.hurry(token);
    return known;
  }
  if (feeds.size >= MOST) {
    const message = `This browser has ${MOST} workspaces open, which is the most: close the tabs of one.`;
    port.postMessage({ type: "failed", message, path });
    return null;
  }
  const shared = { path, ports: new Set([port]), last: null, feed: null };
  feeds.set(path, shared);
  shared.feed = new Feed(path, client, token, (message) => {
    if (message.type !== "event" && message.type !== "client") shared.last = message;
    for (const each of shared.ports) each.postMessage(message);
    if (message.type === "failed") feeds.delete(path);
  });
  return shared;
}
