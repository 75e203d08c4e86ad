// Requests to the daemon that served this page: JSON both ways, a bearer token, no cookies.

export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status; // 0: no answer came; the request may or may not have been carried out
    this.code = code;
  }
}

// The headers that carry a token; none with `--auth none`, where there is no token.
export function bearer(token) {
  return token ? { Authorization: `Bearer ${token}` } : {};
}

// Send a request; returns the decoded answer, null if it is empty. Throws ApiError, also if `signal`
// ends the waiting for the answer.
export async function request(token, method, path, body, signal) {
  let response, text;
  try {
    response = await fetch(path, {
      method,
      headers: bearer(token),
      body: body === undefined ? undefined : JSON.stringify(body),
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal,
    });
    text = await response.text();
  } catch {
    throw new ApiError(0, "unreachable", "The daemon does not answer.");
  }
  const value = parsed(text);
  if (!response.ok) {
    const message = value?.message || `${method} ${path} was answered ${response.status}`;
    throw new ApiError(response.status, value?.code || "", message);
  }
  return value;
}

// The JSON value of a text; null if it is none.
export function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

// crypto.randomUUID is missing where a proxy's plain http name makes the page insecure.
export function uuid() {
  if (crypto.randomUUID) return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  bytes[6] = (bytes[6] & 0x0f) | 0x40;
  bytes[8] = (bytes[8] & 0x3f) | 0x80;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}

// A path of the API from segments, which may hold anything.
export function at(...segments) {
  return "/v1/" + segments.map(encodeURIComponent).join("/");
}
