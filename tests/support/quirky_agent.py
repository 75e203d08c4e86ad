"""An ACP agent that does what the tests ask for, with the quirks of real ones.

Run as a program of its own (`python -S -E quirky_agent.py [SWITCHES]`), it imports nothing but the
standard library. What a turn does is the first word of its prompt: see the methods `do_...`. Every
message that it gets is appended to the file that `--log` names. Switches:

    --mute           no request is answered
    --deaf           of the first prompt only some bytes are read, and nothing after them
    --version N      the version in the answer to initialize
    --login          session/new needs a login
    --offer WORDS    of resume, load and broken-resume (offered, and refused); default: resume
    --state FILE     its sessions, for resume and load: one id per line
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import traceback

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

OPTIONS = [
    {"optionId": "session", "name": "Allow for this session", "kind": "allow_always"},
    {"optionId": "folder", "name": "Always allow in this folder", "kind": "allow_always"},
    {"optionId": "once", "name": "Allow", "kind": "allow_once"},
    {"optionId": "no", "name": "Reject", "kind": "reject_once"},
]
METHODS = [
    {"id": "web", "name": "Log in on the web", "description": "Opens a browser"},
    {"id": "tty", "type": "terminal", "name": "Log in here", "args": ["login"], "env": {"A": "b"}},
    {"id": "odd", "type": "env_var", "name": "A variable"},
]
BIG = 8 << 20  # characters; a diff holds them twice


def switch(name: str, default: str = "") -> str:
    if name not in sys.argv:
        return default
    at = sys.argv.index(name) + 1
    return sys.argv[at] if at < len(sys.argv) and not sys.argv[at].startswith("--") else ""


class Agent:
    def __init__(self) -> None:
        self.writing = threading.Lock()
        self.answers: dict[str, queue.Queue[Any]] = {}
        self.next_id = 0
        self.cancels: dict[str, queue.Queue[str]] = {}  # by session
        self.taken_for_next: set[str] = set()  # sessions whose next prompt a late cancel hits
        self.state = switch("--state", "")
        self.offers = switch("--offer", "resume").split(",")
        self.cost = 0.0
        self.blocks: list[dict[str, Any]] = []

    # The wire -----------------------------------------------------------------------------------

    def send(self, message: dict[str, Any]) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}) + "\n"
        with self.writing:
            sys.stdout.write(line)
            sys.stdout.flush()

    def raw(self, text: str) -> None:
        with self.writing:
            sys.stdout.write(text)
            sys.stdout.flush()

    def update(self, session: str, which: str, **fields: Any) -> None:
        params = {"sessionId": session, "update": {"sessionUpdate": which, **fields}}
        self.send({"method": "session/update", "params": params})

    def say(self, session: str, text: str, **fields: Any) -> None:
        content = {"type": "text", "text": text}
        self.update(session, "agent_message_chunk", content=content, **fields)

    def ask(self, method: str, params: dict[str, Any]) -> Any:
        with self.writing:
            number, self.next_id = f"q{self.next_id}", self.next_id + 1
            self.answers[number] = queue.Queue()
        self.send({"id": number, "method": method, "params": params})
        return self.answers[number].get()

    def run(self) -> None:
        for line in sys.stdin:
            if log := switch("--log", ""):
                with open(log, "a") as file:
                    file.write(line)
            message = json.loads(line)
            if "method" not in message:
                if message["id"] in self.answers:  # not an error about our noise
                    self.answers[message["id"]].put(message)
            elif message.get("method") == "session/cancel":
                self.cancels[message["params"]["sessionId"]].put("cancel")
            elif "id" in message and "--mute" not in sys.argv:
                threading.Thread(target=self.answer, args=(message,), daemon=True).start()
                if "--deaf" in sys.argv and message["method"] == "session/new":
                    os.read(0, 10)
                    deaf = {"method": "deaf", "params": {"pid": os.getpid()}}
                    with open(log, "a") as file:
                        file.write(json.dumps(deaf) + "\n")
                    threading.Event().wait()

    def answer(self, message: dict[str, Any]) -> None:
        method, params = message["method"], message["params"]
        name = "on_" + method.replace("/", "_")
        try:
            result = getattr(self, name)(params)
        except Error as error:
            self.send({"id": message["id"], "error": error.args[0]})
        except Exception:  # noqa: BLE001 - the test is to see it, and not to wait
            traceback.print_exc()
            os._exit(99)
        else:
            self.send({"id": message["id"], "result": result})
            self.after(params)

    # Sessions -----------------------------------------------------------------------------------

    def on_initialize(self, params: dict[str, Any]) -> Any:
        offers: dict[str, Any] = (
            {"resume": {}} if {"resume", "broken-resume"} & {*self.offers} else {}
        )
        return {
            "protocolVersion": int(switch("--version", "1")),
            "agentCapabilities": {
                "loadSession": "load" in self.offers,
                "promptCapabilities": {"image": True, "embeddedContext": True},
                "sessionCapabilities": offers,
            },
            "authMethods": METHODS,
            "agentInfo": {"name": "quirky", "title": "Quirky Agent", "version": "1"},
        }

    def on_session_new(self, params: dict[str, Any]) -> Any:
        if "--login" in sys.argv:
            raise Error({"code": -32000, "message": "Authentication required"})
        session = f"ses_{os.urandom(6).hex()}"
        self.cancels[session] = queue.Queue()
        if self.state:
            with open(self.state, "a") as file:
                file.write(session + "\n")
        return {"sessionId": session}

    def on_session_resume(self, params: dict[str, Any]) -> Any:
        if "broken-resume" in self.offers:
            raise Error({"code": -32601, "message": "Method not found"})
        self.known(params["sessionId"])

    def on_session_load(self, params: dict[str, Any]) -> Any:
        self.known(params["sessionId"])
        self.say(params["sessionId"], "this was said before")

    def known(self, session: str) -> None:
        kept: list[str] = []
        if self.state:
            with open(self.state) as file:
                kept = file.read().split()
        if session not in kept:
            raise Error({"code": -32002, "message": "Session not found"})
        self.cancels[session] = queue.Queue()

    # Turns --------------------------------------------------------------------------------------

    def on_session_prompt(self, params: dict[str, Any]) -> Any:
        session, blocks = params["sessionId"], params["prompt"]
        if session in self.taken_for_next:
            self.taken_for_next.discard(session)
            return {"stopReason": "cancelled"}
        self.blocks = blocks
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        word, _, rest = texts[-1].partition(" ")
        return getattr(self, f"do_{word}")(session, rest) or {"stopReason": "end_turn"}

    def after(self, params: dict[str, Any]) -> None:
        texts = [block.get("text") for block in params.get("prompt", ())]
        if texts[-1:] == ["unsolicited"]:
            self.say(params["sessionId"], "by the way")
            call = {"toolCallId": "late", "title": "a late call", "kind": "other"}
            self.update(params["sessionId"], "tool_call", status="completed", **call)

    def do_say(self, session: str, rest: str) -> Any:
        self.say(session, rest)

    def do_blocks(self, session: str, rest: str) -> Any:
        self.say(session, json.dumps(self.blocks))

    def do_unsolicited(self, session: str, rest: str) -> Any:
        self.say(session, "ok")

    def do_noise(self, session: str, rest: str) -> Any:
        self.raw('hello world\n"x"\nnull\n[]\n{"half":\n\x1b[31mred\x1b[0m\n\n{}\n')
        self.say(session, "after the noise\u2028\u0085")
        self.send({"id": 7777, "result": {}})  # answers what nobody has asked
        self.update(session, "a_new_kind", anything=[1])
        self.send({"method": "_x/y", "params": {}})
        answer = self.ask("fs/read_text_file", {"sessionId": session, "path": "/etc/passwd"})
        self.say(session, f" {answer['error']['code']}")

    def do_ask(self, session: str, rest: str) -> Any:
        """As gemini does it: no tool call before, the first update is the completion."""
        options = OPTIONS if rest != "always" else OPTIONS[:2]
        call = {
            "toolCallId": "run_1",
            "status": "pending",
            "title": f"touch {rest}",
            "kind": "execute",
            "content": [text("[in /ws]")],
            "locations": [],
        }
        asked = {"sessionId": session, "toolCall": call, "options": options}
        answer = self.ask("session/request_permission", asked)
        outcome = answer.get("result", {}).get("outcome") or answer["error"]
        self.update(session, "tool_call_update", toolCallId="run_1", status="completed", content=[])
        self.say(session, json.dumps(outcome))
        return {"stopReason": "cancelled" if outcome == {"outcome": "cancelled"} else "end_turn"}

    def do_retract(self, session: str, rest: str) -> Any:
        """Asks, and takes the request back when somebody opens the pipe of this name."""
        number = "taken-back"
        self.answers[number] = queue.Queue()
        call = {"toolCallId": "r", "title": "retracted", "kind": "execute"}
        asked = {"sessionId": session, "toolCall": call, "options": OPTIONS}
        self.send({"id": number, "method": "session/request_permission", "params": asked})
        with open(rest):
            pass
        self.send({"method": "$/cancel_request", "params": {"requestId": number}})
        self.say(session, json.dumps(self.answers[number].get().get("result")))

    def do_hang(self, session: str, rest: str) -> Any:
        """Waits for a cancel. `rest` says what it does then."""
        if rest != "mutely":
            self.say(session, "begun")
        self.cancels[session].get()
        self.say(session, " and more")
        if rest == "error":
            raise Error({"code": -32603, "message": "Internal service failure"})
        if rest in ("silently", "mutely"):
            threading.Event().wait()
        if rest == "late":
            self.taken_for_next.add(session)
            return None
        return {"stopReason": "cancelled"}

    def do_die(self, session: str, rest: str) -> Any:
        self.say(session, "my last")
        sys.stderr.write(f"first line\n\x1b[31mfatal\x1b[0m: key={os.environ['QUIRKY_KEY']}\x07\n")
        sys.stderr.flush()
        os._exit(3)

    def do_grandchild(self, session: str, rest: str) -> Any:
        child = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=2)
        self.say(session, f"{os.getpid()} {child.pid}")

    def do_diff(self, session: str, rest: str) -> Any:
        self.update(session, "tool_call", **self.big("done"))
        self.update(session, "tool_call_update", toolCallId="big", status="completed")

    def do_askdiff(self, session: str, rest: str) -> Any:
        asked = {"sessionId": session, "toolCall": self.big("asked"), "options": OPTIONS}
        answer = self.ask("session/request_permission", asked)
        self.say(session, json.dumps(answer["result"]["outcome"]))

    def big(self, title: str) -> dict[str, Any]:
        lines = "x" * 79 + "\n"
        old, new = lines * (BIG // 80), ("y" + lines[1:]) * (BIG // 80)
        diff = {"type": "diff", "path": "/ws/a.txt", "oldText": old, "newText": new}
        call = {"toolCallId": "big", "title": title, "kind": "edit", "content": [diff]}
        return {**call, "rawInput": {"file": "a.txt"}}

    def do_cost(self, session: str, rest: str) -> Any:
        """Reports what everything has cost so far."""
        self.cost += float(rest)
        cost = {"amount": self.cost, "currency": "USD"}
        self.update(session, "usage_update", used=1000, size=200000, cost=cost)
        self.update(session, "usage_update", used=1000, size=200000, cost=cost)
        usage = {"inputTokens": 900, "outputTokens": 100, "totalTokens": 1000}
        return {"stopReason": "end_turn", "usage": usage}

    def do_login(self, session: str, rest: str) -> Any:
        raise Error({"code": -32000, "message": "Authentication required"})

    def do_fail(self, session: str, rest: str) -> Any:
        raise Error({"code": 500, "message": "it broke", "data": {"details": "badly\x1b[1m"}})

    def do_leak(self, session: str, rest: str) -> Any:
        key = os.environ["QUIRKY_KEY"]
        raise Error({"code": 500, "message": f"no {key} here", "data": {"details": [key]}})

    def do_stop(self, session: str, rest: str) -> Any:
        return {"stopReason": rest}

    def do_tools(self, session: str, rest: str) -> Any:
        """Two calls at once, with talk between their ends, then one more."""
        self.update(session, "agent_thought_chunk", content={"type": "text", "text": "let me see"})
        first = {"toolCallId": "a", "title": "Terminal", "kind": "execute", "rawInput": {}}
        self.update(session, "tool_call", status="pending", name="Bash", **first)
        self.update(
            session,
            "tool_call_update",
            toolCallId="a",
            title="ls",
            status="in_progress",
            rawInput={"command": "ls"},
        )
        self.update(session, "tool_call", toolCallId="b", title="read", kind="read")
        self.update(session, "tool_call_update", toolCallId="a", _meta={"x": 1})
        self.update(session, "tool_call_update", toolCallId="a", status="completed", rawOutput="A")
        self.say(session, "meanwhile")
        content = [text("B"), {"type": "terminal", "terminalId": "t"}, {"type": "??"}, None]
        done = {"toolCallId": "b", "status": "failed", "content": content}
        self.update(session, "tool_call_update", **done)
        self.update(session, "tool_call_update", **done)
        again = {"toolCallId": "a", "title": "again", "kind": "edit", "status": "completed"}
        diff = {"type": "diff", "path": "/ws/f", "oldText": None, "newText": "new"}
        self.update(session, "tool_call", content=[diff], rawOutput={"output": "C"}, **again)
        self.say(session, "one", messageId="m1")
        self.say(session, "two", messageId="m2")

    def do_plan(self, session: str, rest: str) -> Any:
        entries = [
            {"content": "first", "priority": "high", "status": "completed"},
            {"content": "second", "priority": "low", "status": "in_progress"},
            {"content": "third", "status": "unheard of"},
        ]
        self.update(session, "plan", entries=entries)
        self.update(session, "session_info_update", title="A title\x1b[2J of its own")

    def do_write(self, session: str, rest: str) -> Any:
        name, _, content = rest.partition(" ")
        with open(name, "w") as file:
            file.write(content)
        self.say(session, "written")

    def do_flood(self, session: str, rest: str) -> Any:
        for _ in range(int(rest)):
            self.say(session, "0123456789" * 10_000)


class Error(Exception):
    pass


def text(words: str) -> dict[str, Any]:
    return {"type": "content", "content": {"type": "text", "text": words}}


if __name__ == "__main__":
    Agent().run()
