// The token of this daemon, and the directory that a tab shows. Both are kept in the tab and nowhere
// else: what a browser stores for an origin outlives the daemon, and the next process that listens
// at its port, which may be that of another user, is the same origin. Tabs of one browser hand the
// token to each other.
//
// With its token a tab gets a key, for which the next daemon at this port gives its token (proof.js).
// The key is kept in the memory of the page only: a page that a stranger serves at this port must
// find none. So it does not survive a reload, but the page that is loaded then gets another.

import { ApiError } from "./api.js";
import { canProve, renew, tabKey } from "./proof.js";

const TOKEN = "crushlite.token";
export const PATH = "crushlite.path";

const tabs = self.BroadcastChannel ? new BroadcastChannel("crushlite-keys") : null;

export const token = () => sessionStorage.getItem(TOKEN) || "";

// Keep a token that this tab got for a code, and give it to the other tabs. A path counts only with
// a valid code: a link from another site must open nothing.
export function keep(value, path) {
  sessionStorage.setItem(TOKEN, value);
  if (path) sessionStorage.setItem(PATH, path);
  tabs?.postMessage({ token: value });
}

let own = null; // the key of this tab

export const key = () => own;

// Get a key, unless this tab has one or its daemon asks for no token. `anew`: the one it has is not
// known to the daemon.
export async function pair(anew = false) {
  if ((own !== null && !anew) || !token() || !canProve) return;
  try {
    own = await tabKey(token());
  } catch (error) {
    if (!(error instanceof ApiError)) throw error; // then a restart ends what this tab can do
  }
}

// The daemon that was started again gives this token instead of the last one.
export function replace(value) {
  sessionStorage.setItem(TOKEN, value);
}

// Get the token of the daemon that was started again; returns whether that has worked.
export async function renewed() {
  if (own === null) return false;
  try {
    replace((await renew(own)).token);
    return true;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return false;
  }
}

// Forget a token that was refused: it is never sent again. There may be another one by now.
export function forget(refused) {
  if (token() === refused) sessionStorage.removeItem(TOKEN);
}

let answered = () => {}; // ends the waiting of `ask`

// Call `arrived` when another tab has got a token that this one did not have. Answers other tabs.
export function share(arrived) {
  if (tabs === null) return;
  tabs.onmessage = ({ data }) => {
    if (data.wanted) {
      if (token()) tabs.postMessage({ token: token() });
    } else if (data.token && data.token !== token()) {
      sessionStorage.setItem(TOKEN, data.token);
      answered();
      arrived();
    }
  };
}

// Ask the other tabs for their token, and wait a moment for it.
export function ask() {
  return new Promise((resolve) => {
    answered = resolve;
    setTimeout(resolve, 200);
    tabs?.postMessage({ wanted: true });
  });
}
