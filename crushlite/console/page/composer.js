// The prompt and its attachments.

import { el, byId, put } from "./text.js";
import { uuid } from "./api.js";

const MOST = 20 << 20; // bytes of attachments; the daemon takes 32 MiB with base64 and prompt

export class Composer {
  // `send(session, {prompt, run_id, when_busy, attachments?})` posts a prompt, in a new session if that
  // is null; `complain(text)` shows the user what is wrong.
  constructor({ send, complain }) {
    this.send = send;
    this.complain = complain;
    this.form = byId("composer");
    this.box = byId("prompt");
    this.list = byId("attachments");
    this.files = [];
    this.session = null; // the session whose draft is shown
    this.key = ""; // where that draft is kept in the session storage
    this.posting = Promise.resolve();
    this.failed = null; // what could not be sent, with its run id
    this.listen();
  }

  listen() {
    this.box.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.form.requestSubmit();
      }
    });
    this.box.addEventListener("input", () => this.changed());
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.submit();
    });
    const picker = byId("attach-input");
    byId("attach").addEventListener("click", () => picker.click());
    picker.addEventListener("change", () => {
      this.add(picker.files);
      picker.value = "";
    });
    this.box.addEventListener(
      "paste",
      (event) => event.clipboardData?.files.length && this.add(event.clipboardData.files),
    );
    addEventListener("dragover", (event) => event.preventDefault());
    addEventListener("drop", (event) => {
      event.preventDefault();
      if (event.dataTransfer?.files.length) this.add(event.dataTransfer.files);
    });
  }

  // Put a text into the box, in place of what is there; with files, these in place of those there.
  insert(text, files = this.files) {
    this.fill(text, files);
    this.box.focus();
    this.box.setSelectionRange(text.length, text.length);
  }

  // A draft belongs to its session, and survives a reload.
  open(session) {
    this.session = session;
    this.key = `crushlite.draft.${session || "new"}`;
    this.fill(sessionStorage.getItem(this.key) || "", []);
  }

  changed() {
    if (this.box.value) sessionStorage.setItem(this.key, this.box.value);
    else sessionStorage.removeItem(this.key);
    this.fit();
  }

  // Make the box as high as its text.
  fit() {
    this.box.style.height = "";
    if (this.box.value === "") return;
    this.box.style.height = `${Math.min(this.box.scrollHeight + 2, innerHeight * 0.4)}px`;
  }

  // The box is free for the next prompt at once; prompts are posted one after the other, each to the
  // session it was typed in.
  submit() {
    const prompt = this.box.value;
    if (!prompt.trim()) return;
    const { failed, files, session, key } = this;
    const same = failed?.prompt === prompt && failed.files === files && failed.key === key;
    const attempt = same ? failed : { prompt, files, session, key, run_id: uuid() };
    this.fill("", []);
    this.posting = this.posting.then(() => this.post(attempt));
  }

  async post(attempt) {
    const { prompt, files, session, run_id } = attempt;
    const when_busy = byId("when-busy-choice").value;
    const attachments = files.length ? { attachments: files } : {};
    try {
      await this.send(session, { prompt, run_id, when_busy, ...attachments });
      this.failed = null;
    } catch (error) {
      this.complain(`Not sent: ${error.message}`);
      this.restore(attempt);
    }
  }

  // Put a prompt that could not be sent back where it was typed. Sent again it has the same run id.
  restore(attempt) {
    const { prompt, files, session, key } = attempt;
    if (session !== null && key !== this.key) {
      sessionStorage.setItem(key, prompt); // another session is shown now: it becomes the draft there
      return;
    }
    this.failed = { ...attempt, key: this.key };
    const meanwhile = this.box.value;
    this.fill(meanwhile ? `${prompt}\n${meanwhile}` : prompt, meanwhile ? [...files, ...this.files] : files);
  }

  fill(text, files) {
    this.box.value = text;
    this.files = files;
    this.drawFiles();
    this.changed();
  }

  async add(files) {
    for (const file of files) {
      const total = this.files.reduce((sum, each) => sum + each.content.length * 0.75, file.size);
      if (total > MOST) {
        this.complain(`${file.name} is too large: attachments may have ${MOST >> 20} MiB in all.`);
        continue;
      }
      const content = base64(new Uint8Array(await file.arrayBuffer()));
      const mime_type = file.type || "text/plain";
      this.files = [...this.files, { file_name: file.name, file_path: file.name, mime_type, content }];
    }
    this.drawFiles();
  }

  drawFiles() {
    this.list.hidden = this.files.length === 0;
    this.list.replaceChildren(
      ...this.files.map((file) => {
        const name = el("bdi", {});
        put(name, file.file_name.slice(0, 100));
        const remove = el(
          "button",
          { type: "button", class: "small", "aria-label": `Remove ${file.file_name}` },
          "×",
        );
        remove.addEventListener("click", () => {
          this.files = this.files.filter((each) => each !== file);
          this.drawFiles();
        });
        return el("li", { class: "file" }, name, remove);
      }),
    );
  }
}

function base64(bytes) {
  let text = "";
  for (let from = 0; from < bytes.length; from += 0x8000) {
    text += String.fromCharCode(...bytes.subarray(from, from + 0x8000));
  }
  return btoa(text);
}
