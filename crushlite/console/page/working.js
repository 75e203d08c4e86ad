// The row below the transcript that says what a busy session does, and for how long: also before
// the first word of an answer.

import { byId, setText } from "./text.js";

export class Working {
  constructor() {
    this.row = byId("working");
    this.since = 0; // milliseconds, of the prompt that is being answered
    this.tries = ""; // why a model call is made again
    setInterval(() => this.row.hidden || this.tick(), 1000);
  }

  // A model call has failed and is made again; "" when the answer goes on.
  retry(text) {
    this.tries = text;
    byId("retry").hidden = !text;
    setText(byId("retry"), text);
  }

  // `busy` whether the session works, `needs` whether it waits for a person, `since` seconds or
  // milliseconds of its last prompt, `begun` whether its answer has begun.
  draw({ busy, needs, since, begun }) {
    this.row.hidden = !busy;
    if (!busy) this.retry("");
    this.since = since > 1e12 ? since : since * 1000;
    this.row.dataset.state = needs ? "needs" : "busy";
    const words = needs ? "Waits for you" : begun ? "Working" : "Waiting for the first words";
    setText(byId("working-words"), words);
    if (busy) this.tick();
  }

  tick() {
    const seconds = this.since ? Math.max(0, Math.round((Date.now() - this.since) / 1000)) : 0;
    const minutes = Math.floor(seconds / 60);
    setText(byId("working-time"), minutes ? `${minutes} min ${seconds % 60} s` : `${seconds} s`);
  }
}
