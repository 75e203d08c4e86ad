"""Tabs of the console that go on when the daemon is started again.

A page that has the token of its port asks for a key of its own. The page keeps it in its memory,
the daemon in a file that only its owner can read. The next daemon at that port has another token:
it and the page prove to each other that they know the key, and the page gets the new token.

    page    {id, nonce}                  the page has lost its daemon
    daemon  {nonce, HMAC(key, "daemon", host, id, both nonces)}
    page    {id, HMAC(key, "page", host, id, both nonces)}
    daemon  the token of the port

The nonces are used once and the key is never sent again, so a stranger who listens at the port
meanwhile learns nothing that anybody would take. `host` is the page's address: what a stranger
passes on to a daemon at another port is not valid there. A page that gets no valid proof sends
nothing else. A one-time code that is typed into a page is proven in the same way, with its digest
as the key.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import re
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..listen import default_socket, private_directory
from ..records import dataclass
from ..unique import random_hex, random_text

if TYPE_CHECKING:
    from pathlib import Path

    from ..clock import Clock

TABS = 128  # keys that are kept for a port; the oldest gives way to the next
TAB_SECONDS = 30 * 24 * 3600.0  # how long a key is good after it was last used
CHALLENGE_SECONDS = 30.0  # for the page's answer to a challenge
PORTS = 4  # that are opened again for tabs
_NAME = re.compile(r"[A-Za-z0-9_-]{16,64}")  # an id or a nonce


@dataclass(slots=True)
class Tab:
    """A key that one page has. `host` is the Host that the page was loaded from."""

    key: str
    host: str
    used: float  # wall-clock seconds


class Tabs:
    """The keys of pages, in one file for each port. Only one daemon can have a port, so nobody else
    writes its file. Nothing is read before it is asked for."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ports: dict[int, dict[str, Tab]] = {}

    def add(self, port: int, host: str) -> tuple[str, str]:
        """Make a key for a page, and store it. Returns its id and the key. Raises UsageError."""
        tabs = self._of(port)
        tab_id, key = random_text(16), random_text(32)
        tabs[tab_id] = Tab(key, host, self._clock.now())
        for oldest in sorted(tabs, key=lambda each: tabs[each].used)[:-TABS]:
            del tabs[oldest]
        self._write(port)
        return tab_id, key

    def key(self, port: int, host: str, tab_id: str) -> bytes | None:
        """The key of a page that was loaded from this host and port; None if it has none."""
        tab = self._of(port).get(tab_id)
        return tab.key.encode() if tab is not None and tab.host == host else None

    def use(self, port: int, tab_id: str) -> None:
        """Note that a key was used just now."""
        if (tab := self._of(port).get(tab_id)) is not None:
            tab.used = self._clock.now()
            with contextlib.suppress(UsageError):  # then it expires earlier
                self._write(port)

    def hosts(self, port: int) -> set[str]:
        """What the pages of a port were loaded from."""
        return {tab.host for tab in self._of(port).values()}

    def ports(self) -> list[int]:
        """The ports whose tabs may be waiting, the one used last first. Files that hold no key that
        is still good are removed."""
        found = []
        for path in default_socket().parent.glob("tabs-*.json"):
            match = re.fullmatch(r"tabs-(\d{1,5})\.json", path.name)
            if match is None:
                continue
            port = int(match[1])
            if tabs := self._of(port):
                found.append((max(tab.used for tab in tabs.values()), port))
            else:
                path.unlink(missing_ok=True)
        return [port for _, port in sorted(found, reverse=True)][:PORTS]

    def _of(self, port: int) -> dict[str, Tab]:
        if port not in self._ports:
            self._ports[port] = self._read(port)
        oldest = self._clock.now() - TAB_SECONDS
        tabs = {name: tab for name, tab in self._ports[port].items() if tab.used > oldest}
        self._ports[port] = tabs
        return tabs

    def _read(self, port: int) -> dict[str, Tab]:
        """What is not readable, or was not written by `_write`, holds no keys."""
        try:
            held = json.loads(_file(port).read_text(encoding="utf-8"))
            return {
                str(name): Tab(str(tab["key"]), str(tab["host"]), float(tab["used"]))
                for name, tab in held.items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}

    def _write(self, port: int) -> None:
        """Replace the file at once, so that a kill leaves the old one or the new one."""
        path = _file(port)
        private_directory(path.parent)
        new = path.with_suffix(f".{random_hex(4)}")
        held = {
            name: {"key": tab.key, "host": tab.host, "used": tab.used}
            for name, tab in self._ports[port].items()
        }
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(new, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump(held, file)
            new.replace(path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise UsageError(f"cannot write {path}: {error.strerror}") from None


def _file(port: int) -> Path:
    return default_socket().parent / f"tabs-{port}.json"


@dataclass(frozen=True, slots=True)
class _Challenge:
    host: str
    page_nonce: str
    own_nonce: str
    deadline: float

    def proof(self, key: bytes, who: str, name: str) -> str:
        words = "\n".join((who, self.host, name, self.page_nonce, self.own_nonce))
        return hmac.new(key, words.encode(), hashlib.sha256).hexdigest()


class Challenges:
    """Proofs in both directions. Each key has at most one challenge that is open: the newest."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open: dict[str, _Challenge] = {}  # by the id of the key

    def begin(self, key: bytes, host: str, name: str, nonce: str) -> tuple[str, str] | None:
        """Our nonce, and the proof that we have the key. None if the nonce is not one."""
        if not _NAME.fullmatch(nonce):
            return None
        now = self._clock.time()
        self._open = {each: found for each, found in self._open.items() if found.deadline > now}
        made = _Challenge(host, nonce, random_text(24), now + CHALLENGE_SECONDS)
        self._open[name] = made
        return made.own_nonce, made.proof(key, "daemon", name)

    def prove(self, key: bytes, host: str, name: str, proof: str) -> bool:
        """Whether a page has proven that it has the key. A challenge can be answered once."""
        found = self._open.pop(name, None)
        if found is None or found.deadline <= self._clock.time() or found.host != host:
            return False
        wanted = found.proof(key, "page", name)
        return hmac.compare_digest(wanted.encode(), proof.encode("utf-8", "surrogatepass"))
