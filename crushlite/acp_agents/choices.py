"""Which agent a user has chosen for a session, kept with the session.

The database is in the project, and may have come with it: what it says about programs to start must
not be believed. So a choice is kept with a seal that only this user's daemon can make: a keyed hash
of the choice, the session and the directory. The key is in a private file of the user. A choice
without a good seal counts as none.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import os
from typing import TYPE_CHECKING

from ..errors import ConfigError, CorruptDatabase
from ..store import sessions as session_rows
from ..unique import random_hex
from ..wings import has_wing

if TYPE_CHECKING:
    from pathlib import Path

    from ..store import Connection
    from ..wing import OpenWorkspace

OWNER = "agent-choice"
_KEY_BYTES = 32
_MOST = 8192  # characters of a choice with its seal
_ALL_CHARS = 32 << 20  # of all of them, with the ids of their sessions


def all_notes(conn: Connection, scope: str, owner: str, chars: int) -> dict[str, str]:
    """What an owner keeps with each session, by the id of the session. Texts of more than `chars`
    characters are left out. Raises CorruptDatabase for more than _ALL_CHARS together: a database
    that came with a project may hold any number."""
    rows = conn.execute(
        "SELECT session_id, content FROM session_notes WHERE scope = ? AND owner = ? "
        "AND typeof(content) = 'text' AND length(content) BETWEEN 1 AND ?",
        (scope, owner, chars),
    )
    found, size = dict[str, str](), 0
    for sid, content in rows:
        size += len(str(sid)) + len(content)
        if size > _ALL_CHARS:
            raise CorruptDatabase(f"the notes of {owner!r} are longer than any that were made here")
        found[str(sid)] = content
    return found


class AgentChoices:
    """The choices of one workspace. Without a place for the key they are not kept."""

    def __init__(self, workspace: OpenWorkspace) -> None:
        self._store = workspace.store
        self._path = os.fsencode(workspace.path)
        self._key_file = _key_file(workspace)

    async def load(self) -> dict[str, str]:
        """What was chosen, by session. Raises CorruptDatabase, and ConfigError if the key cannot be
        read."""
        kept = await self._store.read(all_notes, OWNER, _MOST)
        if not kept or self._key_file is None:
            return {}
        key = await asyncio.to_thread(_read_key, self._key_file)
        found = {}
        for session_id, note in kept.items():
            seal, _, choice = note.partition(" ")
            if key and hmac.compare_digest(seal.encode(), self._seal(key, session_id, choice)):
                found[session_id] = choice
        return found

    async def keep(self, session_id: str, choice: str) -> None:
        """Keep a choice; an empty one is forgotten. Raises SessionNotFound, and ConfigError if the
        key cannot be kept."""
        note = ""
        if choice and self._key_file is not None:
            key = await asyncio.to_thread(_found_key, self._key_file)
            note = f"{self._seal(key, session_id, choice).decode()} {choice}"
        await self._store.write(session_rows.set_notes, session_id, note, OWNER)

    def _seal(self, key: bytes, session_id: str, choice: str) -> bytes:
        parts = (self._path, session_id.encode(), choice.encode("utf-8", "surrogateescape"))
        sealed = b"\0".join(b"%d:%b" % (len(part), part) for part in parts)
        return hmac.new(key, sealed, hashlib.sha256).hexdigest().encode()


def _key_file(workspace: OpenWorkspace) -> Path | None:
    if not has_wing("config"):
        return None
    from ..config.profile import FileProfile

    profile = workspace.profile
    if not isinstance(profile, FileProfile):
        return None
    return profile.files.roots.own_data(profile.files.env) / "agents" / "key"


def _read_key(file: Path) -> bytes:
    """The key; empty if the file is missing, damaged, or open to other users. Raises ConfigError if
    it cannot be read."""
    from ..config.files import is_private, read_bytes

    def is_secret(status: os.stat_result) -> bool:
        return is_private(status) and not status.st_mode & 0o077

    key = read_bytes(file, is_secret) or b""
    return key if len(key) == 2 * _KEY_BYTES else b""


def _found_key(file: Path) -> bytes:
    """The key, made if there is none. Raises ConfigError."""
    return _read_key(file) or _make_key(file)


def _make_key(file: Path) -> bytes:
    """Make the key, unless another process has just done so. Raises ConfigError."""
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        fresh = file.with_name(f"{file.name}.{random_hex(8)}")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as written:
                written.write(random_hex(_KEY_BYTES).encode())
                written.flush()
                os.fsync(descriptor)
            with contextlib.suppress(FileExistsError):
                os.link(fresh, file)
        finally:
            os.unlink(fresh)
    except OSError as error:
        raise ConfigError(f"{file}: cannot be written: {error.strerror}") from None
    if key := _read_key(file):
        return key
    raise ConfigError(f"{file}: is damaged, or other users may read it: remove it")
