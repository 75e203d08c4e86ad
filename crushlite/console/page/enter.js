// The answer to a valid one-time code: keep what it brought in this tab, then show the console in
// place of this page, so that neither the history nor a reload has it.

import { keep } from "./keys.js";

const given = (name) => document.querySelector(`meta[name="crushlite-${name}"]`).content;
keep(given("token"), given("path"));
location.replace("/");
