"""Recordings of the Crush client, played against a daemon, and the comparison of what comes back.

A recording is a list of requests with their answers, and of events. Ids, paths, times and ports in
it are placeholders, for which `Names` has the values. The `Player` sends the requests in the order
of the recording, each when all events recorded before it have come. Every answer, and afterwards
every event, is compared with the recorded one; a difference is one line of text.

The model follows the prompts as the recorded one did, and holds each answer back until the
recording has got that far: so requests that were made during a turn are made during one here.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import re
import uuid
from collections import Counter
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from crushlite.cli.agent_names import find_agent
from crushlite.clock import SystemClock
from crushlite.coder.wing import CoderWing
from crushlite.fake_model import End, Fail, FakeModel, Say, Use, Wait
from crushlite.testing import LocalDaemon
from tests.support.places import TESTS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from crushlite.fake_model import Step
    from crushlite.http.client import HTTPClient

__all__ = [
    "EventStream",
    "Names",
    "differences",
    "kind_of",
    "play",
    "recorded_leaves",
    "recording",
]

FOLDER = TESTS / "traces"
PATIENCE = 60.0  # seconds: far above what anything takes, so that only a hang reaches it
GO = (("User-Agent", "Go-http-client/1.1"), ("Accept-Encoding", "gzip"))
JSON_BODY = ("Content-Type", "application/json")
STREAM = (("Accept", "text/event-stream"), ("Cache-Control", "no-cache"))

Line = dict[str, Any]

PLACEHOLDER = re.compile(r"<(?:client|workspace|session|message|run|permission|id)\d+>")
MINTED = ("<client", "<run")  # ids that the client chooses
# Times, a counter that grows meanwhile, and texts for people: only their types are compared, and
# whether they are empty.
LOOSE = {
    *("created_at", "updated_at", "time", "start_time", "end_time", "message_count"),
    *("error", "message", "details", "content", "version"),
}
TITLE = "Fake Title"  # that the small model gives to every session, and says to everything else
QUOTED = "The tool said: "  # and that is in words for people


def recording(name: str) -> list[Line]:
    return [json.loads(line) for line in (FOLDER / name).read_text("utf-8").splitlines()]


# Placeholders -------------------------------------------------------------------------------------


class Names:
    """Placeholders and their values. `texts` are those inside of strings, such as paths; ids are
    learned from answers and events."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = dict(texts)
        self._ids: dict[str, str] = {}

    def fill(self, value: Any) -> Any:
        """A recorded value with its placeholders replaced, as far as their values are known."""
        if isinstance(value, dict):
            return {key: self.fill(item) for key, item in value.items()}
        if isinstance(value, list):
            return [self.fill(item) for item in value]
        if not isinstance(value, str):
            return value
        for text, ours in self._texts.items():
            value = value.replace(text, ours)
        return PLACEHOLDER.sub(lambda found: self._ids.get(found[0], found[0]), value)

    def mint(self, text: str) -> None:
        for found in PLACEHOLDER.findall(text):
            if found.startswith(MINTED):
                self._ids.setdefault(found, str(uuid.uuid4()))

    def learn(self, recorded: Any, ours: Any) -> None:
        """Learn the ids of a recorded value from those in the same places of ours."""
        if isinstance(recorded, dict) and isinstance(ours, dict):
            for key in recorded.keys() & ours.keys():
                self.learn(recorded[key], ours[key])
        elif isinstance(recorded, list) and isinstance(ours, list):
            for one, other in zip(recorded, ours, strict=False):
                self.learn(one, other)
        elif self._unknown(recorded) and self._free(ours):
            self._ids[recorded] = ours

    def may_be(self, recorded: Any, ours: Any) -> bool:
        """Whether two ids can be the same: they are, or neither is known yet."""
        return self.fill(recorded) == ours or (self._unknown(recorded) and self._free(ours))

    def _unknown(self, value: Any) -> bool:
        return isinstance(value, str) and bool(PLACEHOLDER.fullmatch(self.fill(value)))

    def _free(self, value: Any) -> bool:
        return isinstance(value, str) and bool(value) and value not in self._ids.values()


# Comparison ---------------------------------------------------------------------------------------


def compare(recorded: Any, ours: Any, path: str = "", key: str = "") -> Iterator[str]:
    """Every difference between two JSON values, whose ids and paths are replaced already."""
    recorded, ours = _opened(recorded), _opened(ours)
    if _type(recorded, key) != _type(ours, key):
        yield f"{path} is {_short(ours)}, not {_short(recorded)}"
    elif isinstance(recorded, dict):
        yield from (f"{path}.{name} is left out" for name in recorded.keys() - ours.keys())
        yield from (f"{path}.{name} is added" for name in ours.keys() - recorded.keys())
        for name in recorded.keys() & ours.keys():
            yield from compare(recorded[name], ours[name], f"{path}.{name}", name)
    elif isinstance(recorded, list):
        if len(recorded) != len(ours):
            yield f"{path} has {len(ours)} elements, not {len(recorded)}"
        for number, (one, other) in enumerate(zip(recorded, ours, strict=False)):
            yield from compare(one, other, f"{path}.{number}", key)
    elif not _equal(recorded, ours, key):
        yield f"{path} is {_short(ours)}, not {_short(recorded)}"


def _opened(value: Any) -> Any:
    """The value in a string that holds JSON, such as the metadata of a tool."""
    if isinstance(value, str) and value.startswith("{"):
        try:
            return json.loads(value)
        except ValueError:
            pass  # it only looks like JSON
    return value


def _equal(recorded: Any, ours: Any, key: str) -> bool:
    if key in LOOSE:
        return bool(recorded) == bool(ours)
    if key == "text" and recorded.startswith(QUOTED):
        return bool(ours.startswith(QUOTED))
    return bool(recorded == ours)


def _type(value: Any, key: str) -> str:
    """The JSON type of a value. Only costs may have a fraction."""
    name = type(value).__name__
    return "number" if key.startswith("cost") and name in ("int", "float") else name


def _short(value: Any) -> str:
    return json.dumps(value)[:100]


def differences(where: str, recorded: Any, ours: Any) -> list[str]:
    return sorted(f"{where}{difference}" for difference in compare(recorded, ours))


# Events -------------------------------------------------------------------------------------------


def kind_of(event: Line) -> str:
    return f"{event['type']} {event['payload']['type']}"


def _outline(event: Line) -> tuple[Any, ...]:
    """The fields by which an event is matched with a recorded one."""
    payload = event["payload"]["payload"]
    parts = [
        (part["type"], part["data"].get("reason"), part["data"].get("finished"))
        for part in payload.get("parts") or ()
    ]
    keys = ("role", "type", "title", "granted", "denied", "cancelled")
    values = [payload.get(key) for key in keys]
    # A count, as of what was denied in a run, is not what tells events apart.
    return (kind_of(event), [None if type(v) is int else v for v in values], parts)


def alike(recorded: Line, ours: Line, names: Names) -> bool:
    if _outline(recorded) != _outline(ours):
        return False
    one, other = recorded["payload"]["payload"], ours["payload"]["payload"]
    keys = ("id", "session_id", "message_id", "tool_call_id", "batch_id")
    return all(names.may_be(one[key], other.get(key)) for key in keys if key in one)


class EventStream:
    """The events that one client got, read as the Crush client does: a line is an event."""

    def __init__(self) -> None:
        self.events: list[Line] = []
        self.noise: list[str] = []  # lines that are no events
        self.recorded: list[Line] = []  # what this client got in the recording
        self.head: asyncio.Future[tuple[int, str | None]] = (
            asyncio.get_running_loop().create_future()
        )
        self._changed = asyncio.Event()
        self._cursors: Counter[str] = Counter()  # by kind: where the next wait begins
        self._task: asyncio.Task[None] | None = None

    def open(self, http: HTTPClient, target: str) -> None:
        self._task = asyncio.create_task(self._read(http, target))

    async def close(self) -> None:
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.wait([self._task])
        if not self._task.cancelled():
            self.noise.append(f"an end before the client left, {self._task.exception()!r}")

    async def _read(self, http: HTTPClient, target: str) -> None:
        rest = b""
        async with http.stream("GET", target, headers=STREAM, timeout=PATIENCE) as response:
            self.head.set_result((response.status, response.headers.get("Content-Type")))
            async for chunk in response:
                *lines, rest = (rest + chunk).split(b"\n")
                for line in filter(None, lines):
                    self._line(line.decode())
                self._changed.set()

    def _line(self, line: str) -> None:
        field, _, data = line.partition(": ")
        if field == "data":
            self.events.append(json.loads(data))
        else:
            self.noise.append(line)

    async def come(self, recorded: Line, names: Names) -> None:
        """Wait for the next event of the same type with the same outline."""
        self.recorded.append(recorded)
        while not self._has_come(recorded, names):
            self._changed.clear()
            await self._changed.wait()

    def _has_come(self, recorded: Line, names: Names) -> bool:
        kind = recorded["type"]
        for number in range(self._cursors[kind], len(self.events)):
            ours = self.events[number]
            if ours["type"] == kind and alike(recorded, ours, names):
                names.learn(recorded, ours)
                self._cursors[kind] = number + 1
                return True
        return False

    def differences(self, names: Names, known: Mapping[str, set[str]]) -> Iterator[str]:
        """The differences between our events and the recorded ones, type by type: the order of
        different types may vary. `known` has the fields that recordings hold of each kind, for
        events that the daemon sends in addition."""
        yield from (f"events: there is {line!r}" for line in self.noise)
        for kind in sorted({event["type"] for event in [*self.recorded, *self.events]}):
            ours = [event for event in self.events if event["type"] == kind]
            for event in (event for event in self.recorded if event["type"] == kind):
                number, found = self._match(event, ours, names)
                yield from found
                yield from _beyond(ours[:number], known)
                del ours[: number + 1]
            yield from _beyond(ours, known)

    def _match(self, recorded: Line, ours: list[Line], names: Names) -> tuple[int, list[str]]:
        """The first of our events that is equal, else the first with the same outline."""
        wanted, where = names.fill(recorded), f"event {kind_of(recorded)}: "
        numbers = [n for n, event in enumerate(ours) if alike(recorded, event, names)]
        found = [differences(where, wanted, ours[number]) for number in numbers]
        if not found:
            return -1, [f"{where}there is none like {_short(wanted)} in this place"]
        best = min(range(len(found)), key=lambda n: len(found[n]))
        return numbers[best], found[best]


def _beyond(events: list[Line], known: Mapping[str, set[str]]) -> Iterator[str]:
    for event in events:
        kind, payload = kind_of(event), event["payload"]["payload"]
        about = [part["type"] for part in payload.get("parts") or ()]
        about += ["cancelled"] if payload.get("cancelled") else []
        yield f"event {kind}: one more ({', '.join(about)})"
        for leaf in sorted(set(leaves(event)) - known.get(kind, set())):
            yield f"event {kind}: {leaf} is not in any recorded one"


def leaves(value: Any, path: str = "", key: str = "") -> Iterator[str]:
    """The places of a value with their types; lists are taken for their elements, and parts for
    their types."""
    if isinstance(value, dict):
        kind = f"({value['type']})" if "data" in value else ""
        for name, item in value.items():
            yield from leaves(item, f"{path}{kind}.{name}", name)
    elif isinstance(value, list):
        yield f"{path}:list"
        for item in value:
            yield from leaves(item, path, key)
    else:
        yield f"{path}:{_type(value, key)}"


def recorded_leaves() -> dict[str, set[str]]:
    """The leaves of each kind of event in all recordings."""
    found: dict[str, set[str]] = {}
    for file in FOLDER.glob("*.jsonl"):
        for line in recording(file.name):
            if "event" in line:
                found.setdefault(kind_of(line["event"]), set()).update(leaves(line["event"]))
    return found


# The model ----------------------------------------------------------------------------------------

# The points of the recording that the model waits for. A step that fails waits for the beginning of
# its message, every other answer for an event after its end, and a title for its own event.
BEGUN, ENDED, TITLED = 1, 2, 3


class Gate(SystemClock):
    """A clock whose `sleep` waits for one of these steps instead of for a time."""

    def __init__(self) -> None:
        self._open: set[float] = set()
        self._asleep: list[tuple[float, asyncio.Event]] = []

    def open(self, *points: float) -> None:
        """End the sleeps for these steps, and later ones for them until the next call."""
        self._open = set(points)
        for wanted, woken in self._asleep:
            if wanted in points:
                woken.set()

    async def sleep(self, delay: float) -> None:
        woken = asyncio.Event()
        self._asleep.append((delay, woken))
        self.open(*self._open)
        await woken.wait()


class Script:
    """The model of the recordings, and the small model, which makes titles."""

    def __init__(self, *, described: bool) -> None:
        self._described = described  # whether its questions are well formed
        self._answers = 0

    def __call__(self, request: dict[str, Any]) -> Sequence[Step]:
        if request["model"] == "small-model":
            return [Say(TITLE), Wait(ENDED if request.get("tools") else TITLED), End()]
        steps = self._steps(request["messages"][-1])
        self._answers += 1
        return steps if isinstance(steps[-1], Fail) else [*steps, Wait(ENDED), End()]

    def _steps(self, last: dict[str, Any]) -> list[Step]:
        content = last["content"]
        text = content if isinstance(content, str) else "".join(part["text"] for part in content)
        if last["role"] == "tool":
            return [Say(f"The tool said: {text}")]
        word, _, rest = text.partition(" ")
        if word == "@bash":
            arguments = {"command": rest, "description": "asked by the prompt"}
            return [Say("I will run it. "), self._use("bash", arguments)]
        if word == "@write":
            name, _, words = rest.partition(" ")
            return [self._use("write", {"file_path": name, "content": f"{words}\n"})]
        if word == "@ask":
            return [self._use("question", {"questions": [self._question()]})]
        if word == "@slow":
            return [Say("Thinking it over... "), Wait(math.inf)]
        if word == "@fail":
            return [Wait(BEGUN), Fail(400, "the model says no")]
        return [Say("Hello from the model.")]

    def _use(self, tool: str, arguments: dict[str, Any]) -> Step:
        return Use(tool, json.dumps(arguments), f"call_{self._answers}")

    def _question(self) -> dict[str, Any]:
        def described(value: dict[str, Any], description: str) -> dict[str, Any]:
            return value | ({"description": description} if self._described else {})

        question = {"id": "q1", "type": "single_choice", "label": "DB"}
        choices = [
            described({"id": "pg", "label": "Postgres"}, "big"),
            described({"id": "sq", "label": "SQLite"}, "small"),
        ]
        asked = described(question | {"question": "Which database?"}, "Pick one.")
        return {**asked, "choices": choices}


def needed(event: Line, titled: set[str]) -> tuple[int, ...]:
    """The step that the model must have reached for this event; `titled` sessions have a title."""
    kind, payload = kind_of(event), event["payload"]["payload"]
    if kind == "session updated" and payload["title"] == TITLE and payload["id"] not in titled:
        titled.add(payload["id"])
        return (TITLED,)
    if kind == "session created" or payload.get("role") == "user":
        return ()
    begins = kind == "message created" and not payload["parts"]
    return (BEGUN,) if begins else (BEGUN, ENDED)


# The player ---------------------------------------------------------------------------------------


LOOK = re.compile(r"GET /v1/workspaces/<\w+>/sessions/(<\w+>)")


def as_answered(lines: list[Line]) -> list[Line]:
    """The recording, which is in the order of requests, with lines moved where an answer shows that
    it was given before or after its neighbours."""
    lines = list(lines)
    for number, line in enumerate(lines):
        request = line.get("request", "")
        look = LOOK.fullmatch(request)
        shown = line["answer"]["message_count"] if look else -1
        overtook = shown == 0 and lines[number - 1]["request"].endswith("/agent")
        if overtook or request.endswith("/summarize"):
            lines[number - 1 : number + 1] = [line, lines[number - 1]]
        elif look and shown > len(_announced(lines[:number], look[1])):
            early = [one for one in _next_events(lines[number:]) if _announced([one], look[1])]
            rest = [one for one in lines[number:] if one not in early]
            lines[number:] = [*early, *rest]
    return lines


def _announced(lines: list[Line], session: str) -> set[str]:
    """The messages of a session whose creation is in these lines."""
    events = [line["event"] for line in lines if "event" in line]
    created = [e["payload"]["payload"] for e in events if kind_of(e) == "message created"]
    return {message["id"] for message in created if message["session_id"] == session}


def _next_events(lines: list[Line]) -> Iterator[Line]:
    after = itertools.dropwhile(lambda line: "event" not in line, lines)
    return itertools.takewhile(lambda line: "event" in line, after)


class Player:
    """Plays one recording; `found` are the differences."""

    def __init__(
        self, lines: list[Line], daemon: LocalDaemon, model: FakeModel, gate: Gate
    ) -> None:
        self.found: list[str] = []
        self._lines = as_answered(lines)
        self._daemon = daemon
        self._model = model
        self._gate = gate
        self._http = daemon.connect(tcp=True)
        self._streams: dict[str, EventStream] = {}  # by the client's placeholder
        self._titled: set[str] = set()  # sessions, by their placeholders
        self._client = ""  # the client whose stream it is, unless the recording says another
        self._waiting: asyncio.Task[None] | None = None  # a request that is answered late
        home = str(daemon.root / "home")
        base_url = {"http://127.0.0.1:9000/v1": model.base_url}
        self.names = Names({"/home/kim": home, quote("/home/kim", ""): quote(home, ""), **base_url})

    async def play(self) -> None:
        events: list[Line] = []
        try:
            for line in self._lines:
                if "event" in line:
                    events.append(line)
                    continue
                await self._come(events)
                events = []
                await self._ask(line)
        finally:
            if self._waiting is not None:
                self._waiting.cancel()
            for stream in self._streams.values():
                await stream.close()
        known = recorded_leaves()
        for stream in self._streams.values():
            self.found += stream.differences(self.names, known)

    async def _come(self, events: list[Line]) -> None:
        for line in events:
            self._gate.open(*needed(line["event"], self._titled), *[ENDED] * bool(self._waiting))
            try:
                async with asyncio.timeout(PATIENCE):
                    stream = self._streams[line.get("on", self._client)]
                    await stream.come(line["event"], self.names)
            except TimeoutError:
                raise self._failure(f"this never came: {line}") from None
        if events and self._waiting is not None:
            await self._waiting
            self._waiting = None
        self._gate.open()

    def _failure(self, what: str) -> AssertionError:
        return AssertionError("\n".join([what, "until then:", *sorted(set(self.found))]))

    async def _ask(self, line: Line) -> None:
        self.names.mint(json.dumps(line))
        method, _, target = self.names.fill(line["request"]).partition(" ")
        if unknown := PLACEHOLDER.findall(target):
            raise self._failure(f"nothing has named {unknown}, which {line['request']} needs")
        if target.partition("?")[0].endswith("/events"):
            await self._subscribe(line, target)
        elif target.endswith("/summarize"):  # answered when the summary is written
            number = len(self._model.calls) + 1
            self._waiting = asyncio.create_task(self._exchange(line, method, target))
            await self._model.call(number)
        else:
            stream = self._streams.get(line["request"].rpartition("/")[2])
            if stream is not None:  # the client that retires closes its stream
                await stream.close()
            await self._exchange(line, method, target)

    async def _subscribe(self, line: Line, target: str) -> None:
        self._client = line["request"].partition("client_id=")[2]
        stream = self._streams[self._client] = EventStream()
        stream.open(self._daemon.connect(tcp=True), target)
        async with asyncio.timeout(PATIENCE):
            status, content_type = await stream.head
        ours = {"status": status, "content_type": content_type}
        wanted = {"status": line["status"], "content_type": line["content_type"]}
        self.found += differences("GET W/events: ", wanted, ours)

    async def _exchange(self, line: Line, method: str, target: str) -> None:
        body = json.dumps(self.names.fill(line["body"])).encode() if "body" in line else b""
        headers = (*GO, JSON_BODY) if body else GO
        answer = await self._http.request(
            method, target, body=body, headers=headers, timeout=PATIENCE
        )
        ours: Line = {"status": answer.status}
        if content_type := answer.headers.get("Content-Type"):
            ours["content_type"] = content_type
        if answer.body:
            ours["answer"] = json.loads(answer.body)
        keys = ("status", "content_type", "answer")
        wanted = {key: line[key] for key in keys if key in line}
        self.names.learn(wanted, ours)
        self.found += differences(f"{_route(line)}: ", self.names.fill(wanted), ours)


def _route(line: Line) -> str:
    route = re.sub(r"/v1/workspaces/<\w+>", "W", line["request"].partition("?")[0])
    return PLACEHOLDER.sub("ID", route)


def configuration(created: Line) -> Line:
    """The crush.json that leads to the configuration in the answer to a create, without what the
    server has derived."""
    chosen: Line = {
        role: {key: choice[key] for key in ("model", "provider")}
        for role, choice in created["models"].items()
    }
    options = {k: v for k, v in created["options"].items() if k != "data_directory"}
    return {**created, "models": chosen, "options": options}


async def play(name: str, *, described: bool = True) -> list[str]:
    """Play a recording against a daemon of its own and return the differences. `described` is
    whether the recorded model asked well-formed questions."""
    lines, gate = recording(name), Gate()
    async with FakeModel(script=Script(described=described), clock=gate) as model:
        daemon = LocalDaemon(
            find_agent("auto", SystemClock(), [CoderWing(local=())]), tcp=True, auth="none"
        )
        home = daemon.root / "home"
        project, config = home / "demo", home / ".config/crush/crush.json"
        project.mkdir(parents=True)
        (project / "AGENTS.md").write_text("hi\n")
        (project / "crush.json").write_text("{}")
        config.parent.mkdir(parents=True)
        async with daemon:
            player = Player(lines, daemon, model, gate)
            document = player.names.fill(configuration(lines[0]["answer"]["config"]))
            config.write_text(json.dumps(document))
            await player.play()
            return player.found
