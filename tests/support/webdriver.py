"""A real browser: Debian's chromium, driven through chromedriver in plain WebDriver over HTTP.

Waiting happens in the page: `wait` gives it a condition, which is evaluated whenever the page
changes and a few times a second, and fails with the condition after a while. Calls run in a thread,
so that a daemon in the test's own event loop can answer the page meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from typing import Any

__all__ = ["Browser", "Window"]

PATIENCE = 60.0  # seconds for a condition in a page
ANSWER = 60.0  # for chromedriver itself
# Pages of the browser's own in every window, for an address bar that nobody sees: needless
# work. A browser that does not know the names ignores them.
UNWANTED = "WebUIOmniboxPopup,WebUIOmniboxAimPopup"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the standard's key for a reference

# The page's policy forbids making code from text, so the condition is written into this script.
WAIT = """
const [args, done] = arguments;
let observer, timer;
const look = () => {
  let found = null, error = null;
  try { found = (CONDITION); } catch (e) { error = String(e); }
  if (!found && error === null) return false;
  observer?.disconnect(); clearInterval(timer);
  done(error === null ? {value: found} : {error});
  return true;
};
if (!look()) {
  observer = new MutationObserver(look);
  const everything = {subtree: true, childList: true, attributes: true, characterData: true};
  observer.observe(document, everything);
  timer = setInterval(look, 100);
}
"""


class Browser:
    """One browser process with a profile of its own; its windows share storage and worker."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="crushlite-browser-")
        driver = shutil.which("chromedriver")
        chromium = shutil.which("chromium")
        if driver is None or chromium is None:
            raise AssertionError(
                "chromium and chromedriver are needed: apt-get install chromium chromium-driver"
            )
        # What a browser leaves in a home and in /tmp is deleted with the folder.
        env = {**os.environ, "HOME": self._folder.name, "TMPDIR": self._folder.name}
        self._process = subprocess.Popen(
            [driver, "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=env
        )
        try:
            self._begin(chromium)
        except BaseException:
            self._end()
            raise

    def _begin(self, chromium: str) -> None:
        self._port = self._read_port()
        arguments = ["--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu"]
        arguments += ["--window-size=1280,900", f"--user-data-dir={self._folder.name}/profile"]
        arguments.append(f"--disable-features={UNWANTED}")
        # Movements that nobody sees cost a tenth of the processor's time.
        arguments.append("--force-prefers-reduced-motion")
        options = {"binary": chromium, "args": arguments}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        wanted["timeouts"] = {"script": int(PATIENCE * 1000)}
        answer = self._send("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{answer['sessionId']}"
        self.first = Window(self, self.command("GET", "/window"))
        self._reset()

    def _read_port(self) -> int:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if match := re.search(rb"successfully on port (\d+)", line):
                return int(match[1])
        raise AssertionError("chromedriver did not start")

    def close(self) -> None:
        with contextlib.suppress(AssertionError, OSError):
            self.command("DELETE", "")
        self._end()

    def _end(self) -> None:
        self._process.terminate()
        self._process.communicate(timeout=ANSWER)
        shutil.rmtree(self._folder.name, ignore_errors=True)  # chromium may still be writing
        self._folder.cleanup()

    def command(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._send(method, self._session + path, body)

    def _send(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=ANSWER)
        try:
            content = json.dumps(body or {}) if method == "POST" else None
            connection.request(method, path, content, {"Content-Type": "application/json"})
            answer = json.loads(connection.getresponse().read())["value"]
        finally:
            connection.close()
        # Of chromedriver itself: what a script returns may have an "error", too.
        if isinstance(answer, dict) and {"error", "message", "stacktrace"} <= answer.keys():
            raise AssertionError(f"{answer['error']}: {answer['message'][:800]}")
        return answer

    async def window(self) -> Window:
        """Another window of the same browser."""
        made = await asyncio.to_thread(self.command, "POST", "/window/new", {"type": "window"})
        return Window(self, made["handle"])

    async def opened(self) -> list[Window]:
        """Every window, including those that pages opened, the oldest first."""
        handles = await asyncio.to_thread(self.command, "GET", "/window/handles")
        others = [Window(self, handle) for handle in handles if handle != self.first.handle]
        return [self.first, *others]

    async def complaints(self) -> list[str]:
        """What the pages logged as errors since the last call, refused loads included."""
        entries = await asyncio.to_thread(self.command, "POST", "/se/log", {"type": "browser"})
        return [entry["message"] for entry in entries if entry["level"] == "SEVERE"]

    async def reset(self) -> None:
        """Close all windows but one, which is made blank."""
        await asyncio.to_thread(self._reset)

    def _reset(self) -> None:
        for handle in self.command("GET", "/window/handles"):
            if handle != self.first.handle:
                self.command("POST", "/window", {"handle": handle})
                self.command("DELETE", "/window")
        self.command("POST", "/window", {"handle": self.first.handle})
        self.command("POST", "/url", {"url": "about:blank"})
        self.command("POST", "/se/log", {"type": "browser"})


@dataclass
class Window:
    browser: Browser
    handle: str

    async def run(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        def both() -> Any:
            self.browser.command("POST", "/window", {"handle": self.handle})
            return self.browser.command(method, path, body)

        return await asyncio.to_thread(both)

    async def open(self, url: str) -> None:
        await self.run("POST", "/url", {"url": url})

    async def script(self, code: str, *args: Any) -> Any:
        return await self.run("POST", "/execute/sync", {"script": code, "args": args})

    async def wait(self, condition: str, *args: Any) -> Any:
        """Wait until an expression is true and return its value. `args` holds the arguments."""
        body = {"script": WAIT.replace("CONDITION", condition), "args": [args]}
        try:
            found = await self.run("POST", "/execute/async", body)
        except AssertionError as error:
            shown = await self.script("return document.body.innerText")
            raise AssertionError(f"{condition} {args}: {error}\n--- the page:\n{shown}") from None
        if "error" in found:
            raise AssertionError(f"{condition} {args}: {found['error']}")
        return found["value"]

    async def element(self, css: str) -> str:
        found = await self.wait("document.querySelector(args[0])", css)
        return str(found[ELEMENT])

    async def click(self, css: str) -> None:
        """Wait until it can be clicked, then click it as a person would."""
        await self.wait(
            "(e => e && !e.disabled && e.getClientRects().length)(document.querySelector(args[0]))",
            css,
        )
        await self.run("POST", f"/element/{await self.element(css)}/click")

    async def type(self, css: str, text: str) -> None:
        await self.run("POST", f"/element/{await self.element(css)}/value", {"text": text})

    async def press(self, *keys: str) -> None:
        """Send keys to the element that has the focus."""
        strokes = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        source = {"type": "key", "id": "keyboard", "actions": strokes}
        await self.run("POST", "/actions", {"actions": [source]})

    async def chord(self, *keys: str) -> None:
        """Press keys one after the other, and let them go in the end."""
        strokes = [{"type": "keyDown", "value": key} for key in keys]
        strokes += [{"type": "keyUp", "value": key} for key in reversed(keys)]
        source = {"type": "key", "id": "keyboard", "actions": strokes}
        await self.run("POST", "/actions", {"actions": [source]})

    async def text(self, css: str) -> str:
        return str(await self.script("return document.querySelector(arguments[0]).innerText", css))

    async def shows(self, text: str, css: str = "body") -> None:
        """Wait until an element that can be seen holds a text."""
        await self.wait(
            "[...document.querySelectorAll(args[0])]"
            ".some(e => e.checkVisibility() && e.innerText.includes(args[1]))",
            css,
            text,
        )

    async def devtools(self, command: str, **params: Any) -> Any:
        """A command of chromium's own protocol, for what WebDriver cannot do."""
        return await self.run("POST", "/goog/cdp/execute", {"cmd": command, "params": params})
