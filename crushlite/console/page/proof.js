// How a page and its daemon prove to each other who they are, before a page that lost its daemon
// sends anything else (tabs.py says how). Nothing that is sent here can be used a second time.

import { ApiError, request } from "./api.js";

const ANSWER = 5_000; // milliseconds for an answer: a stranger may accept a connection and say nothing

// A browser has these functions on this machine's own addresses, and with https.
export const canProve = Boolean(self.crypto?.subtle);

const bytes = (text) => new TextEncoder().encode(text);
const hex = (buffer) => [...new Uint8Array(buffer)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
const unhex = (text) => Uint8Array.from(text.match(/[0-9a-f]{2}/g) || [], (pair) => parseInt(pair, 16));

// No script can read such a key, only use it.
async function usable(id, secret) {
  const kind = { name: "HMAC", hash: "SHA-256" };
  return { id, key: await crypto.subtle.importKey("raw", secret, kind, false, ["sign", "verify"]) };
}

// The key of this tab. Throws ApiError.
export async function tabKey(token) {
  const { id, key } = await request(token, "POST", "/v1/web/tab");
  return usable(id, bytes(key));
}

// The key that a one-time code is.
export async function codeKey(code) {
  const digest = await crypto.subtle.digest("SHA-256", bytes(code));
  const id = hex(await crypto.subtle.digest("SHA-256", digest)).slice(0, 32);
  return usable(id, digest);
}

// The token of the daemon at this address, {token, path}, if it has proven to be ours. Throws
// ApiError: 403 if it does not know the key, code `stranger` if it cannot prove that it does.
export async function renew({ id, key }) {
  const nonce = hex(crypto.getRandomValues(new Uint8Array(16)));
  const send = (path, body) => request("", "POST", path, body, AbortSignal.timeout(ANSWER));
  const theirs = await send("/v1/web/hello", { id, nonce });
  const words = (who) => bytes([who, self.location.host, id, nonce, theirs?.nonce].join("\n"));
  const proof = unhex(String(theirs?.proof));
  if (!(await crypto.subtle.verify("HMAC", key, proof, words("daemon")))) throw stranger();
  const own = hex(await crypto.subtle.sign("HMAC", key, words("page")));
  return send("/v1/web/renew", { id, proof: own });
}

function stranger() {
  return new ApiError(0, "stranger", "Another program answers at this address, not your daemon. It got nothing.");
}
