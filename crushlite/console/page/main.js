// The console: the token and the client id, which workspace, and which of the screens is shown.
//
// A tab gets its token from enter.js, from another tab, or for a code that is typed here.

import { ApiError, at, request, uuid } from "./api.js";
import { Feed } from "./feed.js";
import { PATH, ask, forget, keep, key, pair, renewed, replace, share, token } from "./keys.js";
import { canProve, codeKey, renew } from "./proof.js";
import { byId, el, setText } from "./text.js";
import { WorkspaceView } from "./workspace.js";

const CLIENT = "crushlite.client";
const PATIENCE = 8_000; // milliseconds without a connection before advice is given

function client() {
  const known = localStorage.getItem(CLIENT);
  if (known) return known;
  localStorage.setItem(CLIENT, uuid());
  return localStorage.getItem(CLIENT);
}

const isRefused = ({ status }) => status === 401 || status === 429; // a wrong token, or many

async function api(method, path, body) {
  // Until the stream is back, somebody else may listen at the port.
  if (opened !== null && patience !== null) throw notYet();
  const used = token();
  try {
    return await request(used, method, path, body);
  } catch (error) {
    if (!(error instanceof ApiError) || !isRefused(error)) throw error;
    if (await renewed()) return request(token(), method, path, body);
    needToken(used);
    throw error;
  }
}

function notYet() {
  feed.retryNow(token(), key());
  return new ApiError(0, "", "There is no connection to the daemon yet. Try again.");
}

const feed = new Feed(take);
const view = new WorkspaceView({ api, feed, client });
let opened = null; // the path of the workspace that is shown

// The stream -------------------------------------------------------------------------------------

function take(message) {
  if (message.type !== "relay" && message.path !== opened) return; // of a workspace that was left
  if (message.type === "event") view.take(message);
  else if (message.type === "relay") view.soon();
  else if (message.type === "client") localStorage.setItem(CLIENT, message.id);
  else if (message.type === "token") replace(message.token);
  else if (message.type === "unauthorized") needToken(message.token);
  else if (message.type === "failed") choose(message.message).catch((error) => retryLater(error, enter));
  else if (message.type === "lost") lost(message.message, message.code);
  else if (message.type === "live") {
    // Not before: a workspace that cannot be opened is not tried again at the next visit.
    sessionStorage.setItem(PATH, opened);
    localStorage.setItem(PATH, opened);
    clearTimeout(patience);
    patience = null;
    connection("live", "connected", "");
    const arriving = byId("workspace-view").hidden;
    show("workspace-view");
    if (arriving) view.focus();
    view.live(message.workspace, message.refetch);
  }
}

// A restart takes a moment; a daemon that has left does not come back by itself.
let patience = null;
function lost(why, code = "") {
  connection("lost", "reconnecting", why);
  if (code === "stranger" && byId("trouble").hidden) view.trouble(why);
  const advice = "No connection. If the daemon has left, run “crushlite web” in a terminal.";
  patience ??= setTimeout(() => view.trouble(advice), PATIENCE);
}

function connection(state, words, why) {
  const node = byId("connection");
  node.dataset.state = state;
  node.title = why;
  setText(node, words);
}

function open(path) {
  opened = path;
  byId("workspace").hidden = false;
  const cut = path.replace(/\/+$/, "").lastIndexOf("/") + 1;
  setText(byId("workspace").querySelector(".folder"), path.slice(0, cut));
  setText(byId("workspace").querySelector(".name"), path.slice(cut));
  connection("connecting", "connecting", "");
  feed.open(path, client(), token(), key());
}

// The screens ------------------------------------------------------------------------------------

function show(screen) {
  for (const id of ["login", "chooser", "workspace-view"]) byId(id).hidden = id !== screen;
}

let ended = false; // a key that this tab had was refused

function needToken(refused) {
  ended ||= refused !== "";
  forget(refused);
  if (token()) return; // another tab has brought a new one meanwhile
  connection("lost", "no key", "");
  const why = ended
    ? "Its key is no longer valid: the daemon does not know this tab."
    : "It has no key for this daemon yet.";
  setText(byId("login-why"), why);
  if (byId("login").hidden) {
    show("login");
    byId("login-code").focus();
  }
}

async function choose(trouble = "") {
  opened = null;
  feed.close();
  sessionStorage.removeItem(PATH);
  for (const id of ["workspace", "yolo", "presence", "menu-open"]) byId(id).hidden = true;
  chooserError(trouble);
  if (!byId("chooser-path").value) byId("chooser-path").value = localStorage.getItem(PATH) || "";
  const live = (await api("GET", at("workspaces"))) || [];
  const items = live.map(({ path }) => {
    const button = el("button", { type: "button" }, el("bdi", {}, path));
    button.addEventListener("click", () => open(path));
    return el("li", {}, button);
  });
  byId("chooser-list").replaceChildren(...items);
  connection("live", "connected", "");
  show("chooser");
  (items[0]?.firstChild || byId("chooser-path")).focus();
}

function chooserError(text) {
  byId("chooser-error").hidden = !text;
  setText(byId("chooser-error"), text);
}

// Exchange a code. It may be the end of a line that was pasted.
async function exchange(text) {
  const code = text.split(/\s+/).pop();
  const answer = canProve
    ? await renew(await codeKey(code))
    : await request("", "POST", "/v1/web/token", { code });
  keep(answer.token, answer.path);
  await pair(true);
}

// Begin, or begin again with a new token.
async function enter() {
  const path = opened || sessionStorage.getItem(PATH) || localStorage.getItem(PATH);
  try {
    if (path) open(path);
    else await choose();
  } catch (error) {
    retryLater(error, enter);
  }
}

function retryLater(error, again) {
  if (!(error instanceof ApiError)) throw error;
  if (isRefused(error)) return;
  connection("lost", "no connection", error.message);
  setTimeout(again, 2000);
}

async function start() {
  if (!token()) await ask();
  try {
    await api("GET", at("version"));
  } catch (error) {
    retryLater(error, start);
    return;
  }
  await pair();
  await enter();
}

function loginError(text) {
  byId("login-error").hidden = !text;
  setText(byId("login-error"), text);
}

byId("login-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  loginError("");
  try {
    await exchange(byId("login-code").value.trim());
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    loginError(error.message);
    return;
  }
  byId("login-code").value = "";
  feed.retryNow(token(), key());
  await enter();
});
byId("chooser-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const path = byId("chooser-path").value.trim();
  // A relative path would be resolved from the daemon's own directory.
  if (path.startsWith("/")) open(path);
  else chooserError("Give the whole path, beginning with /");
});
byId("workspace").addEventListener("click", () => choose().catch((error) => retryLater(error, enter)));

share(async () => {
  await pair(ended);
  feed.retryNow(token(), key());
  if (!byId("login").hidden) enter();
});
addEventListener("online", () => feed.retryNow(token(), key()));
document.addEventListener("visibilitychange", () => document.hidden || feed.retryNow(token(), key()));
addEventListener("pageshow", (event) => event.persisted && opened && open(opened));

// The drawer of a narrow window ------------------------------------------------------------------

function drawer(isOpen) {
  document.body.classList.toggle("drawer-open", isOpen);
  byId("shade").hidden = !isOpen;
  byId("drawer-toggle").setAttribute("aria-expanded", String(isOpen));
  if (isOpen) byId("session-new").focus();
}
byId("drawer-toggle").addEventListener("click", () =>
  drawer(!document.body.classList.contains("drawer-open")),
);
byId("shade").addEventListener("click", () => drawer(false));
document.addEventListener("chosen", () => drawer(false));

// A window that has become wide, as a tablet that was turned, has no drawer.
matchMedia("(min-width: 720px)").addEventListener("change", () => drawer(false));

// Escape closes the drawer or leaves a form. Pressed twice it stops the run: once may be an accident.
let escaped = -Infinity; // when it was pressed last, milliseconds after the page was opened
const TWICE = 1500;
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || event.defaultPrevented || event.isComposing) return;
  if (document.querySelector("dialog:modal, :popover-open")) return;
  if (document.body.classList.contains("drawer-open")) {
    drawer(false);
    byId("drawer-toggle").focus();
  } else if (event.target.closest(".ask, #rename-form")) {
    byId("prompt").focus();
  } else if (!byId("cancel").hidden) {
    const again = event.timeStamp - escaped < TWICE && !event.repeat;
    escaped = again ? -Infinity : event.timeStamp;
    if (again) view.attempt(() => view.cancel());
    else view.announce("Press Escape again to stop the run");
    byId("cancel").classList.toggle("armed", !again);
    setTimeout(() => byId("cancel").classList.remove("armed"), TWICE);
  }
});

start();
