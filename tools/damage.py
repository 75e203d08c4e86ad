"""Damage database files in every way there is, open them, and see that nothing is lost in silence.

    python tools/damage.py --files 200

A sound data directory is made twice: closed in order, and as a killed daemon leaves it, with
commits that are only in the log. Each is copied, damaged and opened as the daemon opens it. Then
either the file was refused, with a message that names it and without a byte changed, twice; or it
was opened and every row that it held is there, or asking for it is refused. One of each kind, and
each with a value that makes no sense, is also the project of a real daemon whose routes are asked
for all of it: no answer is a 500. A few are given to a daemon at its start, and at the creation of
a workspace. Exit 0 only if all is well. The seed is printed; `--seed` repeats the damage.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import hashlib
import json
import os
import random
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import traceback
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from crushlite.clock import SystemClock  # noqa: E402
from crushlite.errors import CrushliteError, StoreUnusable  # noqa: E402
from crushlite.filehistory.queries import (  # noqa: E402
    Change,
    FileState,
    list_files,
    list_read,
    mark_read,
    record_changes,
)
from crushlite.http.client import ClientError, HTTPClient, UnixConnector  # noqa: E402
from crushlite.protocol.codec import encode  # noqa: E402
from crushlite.protocol.messages import FinishPart, Message, TextPart  # noqa: E402
from crushlite.protocol.runs import RunInfo  # noqa: E402
from crushlite.protocol.sessions import Session  # noqa: E402
from crushlite.store import Connection, Store, Stores  # noqa: E402
from crushlite.store.messages import insert_message, list_messages  # noqa: E402
from crushlite.store.runs import (  # noqa: E402
    RunRow,
    end_run,
    insert_run,
    list_runs,
)
from crushlite.store.sessions import insert_session, session_texts  # noqa: E402
from crushlite.undo.states import MISSING  # noqa: E402

NAME = "crushlite.db"
PATIENCE = 30.0
ASKED = 3  # sessions whose routes are asked; values that make no sense are in one of them
Rows = dict[str, str]  # what a file holds: "noun/id" -> everything about it
Spoil = Callable[[random.Random, Path], None]


# What is damaged --------------------------------------------------------------------------------


def fill(conn: Connection, part: int) -> None:
    """Sessions with messages, a run, a file and a read mark each; large and small rows."""
    for number in range(part * 5, part * 5 + 5):
        sid = f"session-{number}"
        insert_session(conn, "", Session(id=sid, title=f"title {number}" * 5))
        run = RunRow(f"run-{number}", sid, "digest", "a prompt " * number, boot_id="earlier")
        insert_run(conn, "", run)
        for turn in range(12):
            role = "user" if turn % 2 == 0 else "assistant"
            message = Message(f"message-{number}-{turn}", role, sid, created_at=turn)
            message.parts = [TextPart(f"text {turn} " * (turn * turn * 10)), FinishPart("stop")]
            insert_message(conn, "", message)
        ending = RunInfo(run.run_id, outcome="completed", message_id=f"message-{number}-11")
        ending.ended_at = 5.0
        end_run(conn, "", ending)
        change = Change(f"/src/{number}.py", MISSING, FileState("code " * 300))
        record_changes(conn, "", sid, [change], 1.0)
        mark_read(conn, "", sid, f"/src/{number}.py", 2.0)


def everything(conn: Connection) -> Rows:
    rows: Rows = {}
    for text in session_texts(conn, ""):
        session = json.loads(text) if isinstance(text, bytes) else encode(text)
        sid = session["id"]
        rows[f"session/{sid}"] = str(session)
        rows |= {f"message/{m.id}": str(encode(m)) for m in list_messages(conn, "", sid)}
        rows |= {f"file/{f.id}": str(encode(f)) for f in list_files(conn, "", sid)}
        rows |= {f"read/{sid}{path}": "" for path in list_read(conn, "", sid)}
    return rows | {f"run/{r.run_id}": str(r) for r in list_runs(conn, "", None, None)}


@dataclass
class Sound:
    """The two directories that are copied, and what they hold."""

    closed: Path
    killed: Path
    rows: Rows = field(default_factory=dict)


async def make(folder: Path) -> Sound:
    sound = Sound(folder / "closed", folder / "killed")
    stores = Stores(clock=SystemClock(), boot_id="maker")
    store = await stores.open(sound.closed)
    await store.submit(lambda conn: fill(conn, 0))
    await stores.release(store)
    store = await stores.open(sound.closed)
    for part in (1, 2, 3):
        await store.submit(lambda conn, part=part: fill(conn, part), durably=True)
    sound.rows = await store.read(everything)
    shutil.copytree(sound.closed, sound.killed)  # as it is now: the log is not merged
    await stores.release(store)
    assert (sound.killed / f"{NAME}-wal").stat().st_size > 100_000
    return sound


# How it is damaged ------------------------------------------------------------------------------


def at(tail: str, change: Callable[[random.Random, bytearray], Any]) -> Spoil:
    """Change the bytes of one of the files."""

    def spoil(rng: random.Random, folder: Path) -> None:
        file = folder / f"{NAME}{tail}"
        data = bytearray(file.read_bytes())
        change(rng, data)
        file.write_bytes(data)

    return spoil


def flip_bit(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def flip_bytes(rng: random.Random, data: bytearray) -> None:
    for _ in range(rng.randint(2, 1000)):
        data[rng.randrange(len(data))] = rng.randrange(256)


def garbage_page(rng: random.Random, data: bytearray) -> None:
    place = rng.randrange(len(data) // 4096) * 4096
    data[place : place + 4096] = rng.randbytes(4096)


def zero_page(rng: random.Random, data: bytearray) -> None:
    place = rng.randrange(len(data) // 4096) * 4096
    data[place : place + 4096] = bytes(4096)


def cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(1, len(data)) :]


def cut_at_page(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(1, len(data) // 4096) * 4096 :]


def garbage(rng: random.Random, data: bytearray) -> None:
    data[:] = rng.randbytes(len(data))


def grow(rng: random.Random, data: bytearray) -> None:
    data += rng.randbytes(rng.randint(1, 20_000))


def empty(rng: random.Random, data: bytearray) -> None:
    data.clear()


def notes(rng: random.Random, data: bytearray) -> None:
    data[:] = b"these are somebody's notes\n" * rng.randint(1, 1000)


def zero_head(rng: random.Random, data: bytearray) -> None:
    data[:100] = bytes(100)


def page_size(rng: random.Random, data: bytearray) -> None:
    data[16:18] = rng.choice([512, 1024, 8192, 32768, 1]).to_bytes(2, "big")


def version(rng: random.Random, data: bytearray) -> None:
    data[60:64] = rng.randbytes(4)


def in_the_head(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(100)] = rng.randrange(256)


def in_the_schema(rng: random.Random, data: bytearray) -> None:
    places = [match.start() for match in re.finditer(b"CREATE (TABLE|INDEX|TRIGGER)", data)]
    data[rng.choice(places) + rng.randrange(60)] ^= 1 << rng.randrange(8)


def early_in_the_log(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(32, len(data) // 4)] ^= 1 << rng.randrange(8)


def directory(rng: random.Random, folder: Path) -> None:
    (folder / NAME).unlink()
    (folder / NAME).mkdir()


def remove(*tails: str) -> Spoil:
    def spoil(rng: random.Random, folder: Path) -> None:
        for tail in tails:
            (folder / f"{NAME}{tail}").unlink()

    return spoil


def both(*spoils: Spoil) -> Spoil:
    def spoil(rng: random.Random, folder: Path) -> None:
        for one in spoils:
            one(rng, folder)

    return spoil


def rotten(rng: random.Random, folder: Path) -> None:
    """As a disk does it: the file still looks as if nobody had touched it."""
    before = (folder / NAME).stat()
    at("", flip_bytes)(rng, folder)
    os.utime(folder / NAME, ns=(before.st_atime_ns, before.st_mtime_ns))


# Of the rows that belong to a session: what stands there is read, but is no part of a key.
COLUMNS = {
    "sessions": "title todos cost created_at updated_at message_count prompt_tokens touched",
    "messages": "parts role model position created_at updated_at finished is_summary_message",
    "runs": "prompt attachments accepted_at started_at ended_at error denied message_id carrier",
    "files": "content version created_at mode present run_id undoes",
    "reads": "read_at path",
}
NONSENSE = ("x'ff00'", "9e999", "-1e300", "1.5", str(2**63 - 1), "'zz'", "'null'", "'[1]'")


def nonsense(rng: random.Random, folder: Path) -> None:
    """In each table one value that SQLite may hold there, and that nobody ever wrote."""
    conn = sqlite3.connect(folder / NAME, isolation_level=None)
    for table, columns in COLUMNS.items():
        column, session = rng.choice(columns.split()), f"session-{rng.randrange(ASKED)}"
        value = rng.choice(NONSENSE if column != "path" else NONSENSE[:1])  # else just another path
        key = "id" if table == "sessions" else "session_id"
        with contextlib.suppress(sqlite3.IntegrityError):  # the schema has a say too
            last = f"SELECT max(rowid) FROM {table} WHERE {key} = '{session}'"
            conn.execute(f"UPDATE {table} SET {column} = {value} WHERE rowid = ({last})")
    conn.close()


def unfinished(rng: random.Random, folder: Path) -> None:
    """Runs that a killed daemon left open: opening must make an end of them."""
    conn = sqlite3.connect(folder / NAME, isolation_level=None)
    for number in range(ASKED):
        prompt = rng.choice(["", f"message-{number}-{rng.randrange(12)}"])
        conn.execute(
            "UPDATE runs SET outcome = NULL, user_message_id = ? WHERE run_id = ?",
            (prompt, f"run-{number}"),
        )
    conn.close()


# name -> whether of a killed daemon, what is done. The log of a killed daemon holds promises.
KINDS: dict[str, tuple[bool, Spoil]] = {
    "flip a bit": (False, at("", flip_bit)),
    "flip bytes": (False, at("", flip_bytes)),
    "flip a bit, killed": (True, at("", flip_bit)),
    "a page of garbage": (False, at("", garbage_page)),
    "a page of zeros": (False, at("", zero_page)),
    "cut off": (False, at("", cut)),
    "cut off at a page": (False, at("", cut_at_page)),
    "cut off, killed": (True, at("", cut)),
    "more at the end": (False, at("", grow)),
    "empty": (False, at("", empty)),
    "empty, killed": (True, at("", empty)),
    "garbage": (False, at("", garbage)),
    "not a database": (False, at("", notes)),
    "a head of zeros": (False, at("", zero_head)),
    "wrong page size": (False, at("", page_size)),
    "another version": (False, at("", version)),
    "a byte of the head": (False, at("", in_the_head)),
    "a bit of the schema": (False, at("", in_the_schema)),
    "bytes, and the old time": (False, rotten),
    "a directory": (False, directory),
    "values of another kind": (False, nonsense),
    "values of another kind, killed": (False, both(unfinished, nonsense)),
    "missing, killed": (True, remove("")),
    "log: flip a bit": (True, at("-wal", flip_bit)),
    "log: flip bytes": (True, at("-wal", flip_bytes)),
    "log: garbage": (True, at("-wal", garbage)),
    "log: cut off": (True, at("-wal", cut)),
    "log: empty": (True, at("-wal", empty)),
    "log: missing": (True, remove("-wal")),
    "log: more at the end": (True, at("-wal", grow)),
    "log: a head of zeros": (True, at("-wal", zero_head)),
    "index: flip bytes": (True, at("-shm", flip_bytes)),
    "index: garbage": (True, at("-shm", garbage)),
    "index: missing": (True, remove("-shm")),
    "index missing, log: early bit": (True, both(remove("-shm"), at("-wal", early_in_the_log))),
    "index missing, log: head": (True, both(remove("-shm"), at("-wal", zero_head))),
}


# What came of it --------------------------------------------------------------------------------


@dataclass
class Tally:
    refused: int = 0
    whole: int = 0  # opened, every row as it was
    partly: int = 0  # opened, and reading some of it is refused
    altered: int = 0  # opened, every row there, a value in it changed: no checksum can tell
    wrong: list[str] = field(default_factory=list)


def digests(folder: Path) -> dict[str, str]:
    return {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(folder.iterdir())
        if file.is_file() and file.name != "crushlite.lock"
    }


async def try_one(folder: Path, expected: Rows, tally: Tally) -> None:
    before = digests(folder)
    stores = Stores(clock=SystemClock(), boot_id="next")
    for attempt in (1, 2):
        try:
            store = await stores.open(folder)
        except StoreUnusable as error:
            if str(folder) not in error.message:
                tally.wrong.append(f"the message does not say where: {error.message}")
            if digests(folder) != before:
                tally.wrong.append(f"refused, but changed: {error.message}")
            if attempt == 2:
                tally.refused += 1
        else:
            if attempt == 2:
                tally.wrong.append("refused at first, and opened the second time")
            await judge(store, expected, tally)
            return await stores.release(store)


async def judge(store: Store, expected: Rows, tally: Tally) -> None:
    try:
        found = await store.read(everything)
    except CrushliteError as error:
        tally.partly += 1
        if error.status == 500:
            tally.wrong.append(f"a read is answered with 500: {error.message}")
        return
    missing = sorted(expected.keys() - found.keys())
    if missing:
        tally.wrong.append(f"{len(missing)} rows are gone: {missing[:3]}")
    elif found == expected:
        tally.whole += 1
    else:
        tally.altered += 1


async def sweep(sound: Sound, folder: Path, files: int, seed: int) -> dict[str, Tally]:
    tallies: dict[str, Tally] = collections.defaultdict(Tally)
    kinds = list(KINDS.items())
    async with daemon(folder) as running:
        for number in range(files):
            name, (killed, spoil) = kinds[number % len(kinds)]
            copy, asked = folder / f"copy-{number}", folder / f"asked-{number}" / ".crushlite"
            shutil.copytree(sound.killed if killed else sound.closed, copy)
            restore_time(sound.closed if not killed else sound.killed, copy)
            spoil(random.Random(f"{seed}/{number}"), copy)
            tally = tallies[name]
            try:
                async with asyncio.timeout(PATIENCE):
                    if number < len(kinds) or "values" in name:
                        shutil.copytree(copy, asked)
                        tally.wrong += await ask(running.client, asked.parent)
                    await try_one(copy, sound.rows, tally)
            except Exception:  # noqa: BLE001 - exactly what must not happen; it is told at the end
                tally.wrong.append(f"file {number}: {traceback.format_exc(limit=-3)}")
            shutil.rmtree(copy)
    if running.complaints:
        tallies["the daemon"].wrong += running.complaints
    return tallies


def restore_time(source: Path, copy: Path) -> None:
    """A copy of a directory that was closed in order counts as left alone, until it is damaged."""
    status = (source / NAME).stat()
    os.utime(copy / NAME, ns=(status.st_atime_ns, status.st_mtime_ns))


# A real daemon ----------------------------------------------------------------------------------


@dataclass
class Running:
    command: list[str]
    client: HTTPClient
    complaints: list[str] = field(default_factory=list)  # once it has left


@contextlib.asynccontextmanager
async def daemon(folder: Path) -> AsyncIterator[Running]:
    socket = folder / "daemon.sock"
    command = [sys.executable, "-m", "crushlite", "serve", "--agent", "offline", "--host"]
    command.append(f"unix://{socket}")
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    await asyncio.to_thread(process.stdout.readline)
    connector = UnixConnector(str(socket), expect_uid=None)
    client = HTTPClient(connector, host_header="localhost", clock=SystemClock())
    running = Running(command, client)
    try:
        yield running
    finally:
        await client.aclose()
        process.terminate()
        _, errors = await asyncio.to_thread(process.communicate, timeout=PATIENCE)
    if b"Traceback" in errors or process.returncode != 0:
        running.complaints.append(f"exit {process.returncode}: {errors.decode()[-2000:]}")


async def create(client: HTTPClient, project: Path, **more: str) -> tuple[int, Any]:
    body = {"path": str(project), "client_id": str(uuid.uuid4()), **more}
    content = json.dumps(body).encode()
    answer = await client.request("POST", "/v1/workspaces", body=content, timeout=PATIENCE)
    return answer.status, json.loads(answer.body)


def routes() -> list[str]:
    found = ["/sessions", "/messages/user", "/runs", "/changes"]
    for number in range(ASKED):
        session = f"/sessions/session-{number}"
        found += [session, f"{session}/messages", f"{session}/history"]
        found += [f"{session}/filetracker/files", f"/runs/run-{number}"]
        mark = f"session_id=session-{number}&path=/src/{number}.py"
        found.append(f"/filetracker/lastread?{mark}")
    return found


def not_json(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


async def ask(client: HTTPClient, project: Path) -> list[str]:
    """What is wrong with the answers about a damaged project: damage has a status of its own."""
    status, made = await create(client, project)
    if status != 200:
        return [] if status == 409 else [f"create was answered {status} {made}"]
    wrong = []
    for route in routes():
        target = f"/v1/workspaces/{made['id']}{route}"
        try:
            answer = await client.request("GET", target, timeout=PATIENCE)
            json.loads(answer.body, parse_constant=not_json)
        except (ClientError, ValueError) as error:
            wrong.append(f"{route}: {type(error).__name__}: {str(error)[:200]}")
        else:
            if answer.status not in (200, 404, 409):
                wrong.append(f"{route} was answered {answer.status} {answer.body[:200]!r}")
    return wrong


def newer(rng: random.Random, folder: Path) -> None:
    conn = sqlite3.connect(folder / NAME)
    conn.execute("PRAGMA user_version = 99")
    conn.close()


def changed(*statements: str) -> Spoil:
    """By hand, or as a flipped bit would: one that the checks of the pages do not find."""

    def spoil(rng: random.Random, folder: Path) -> None:
        conn = sqlite3.connect(folder / NAME, isolation_level=None)
        for statement in statements:
            assert conn.execute(statement).rowcount == 1, statement
        conn.close()

    return spoil


OPEN = "UPDATE runs SET outcome = NULL, user_message_id = '{}' WHERE run_id = 'run-3'"
BEGUN, QUEUED = OPEN.format("message-3-0"), OPEN.format("")

# what is done -> the code and the exit code it must have
FOR_DAEMONS: dict[str, tuple[Spoil, str, int]] = {
    "not a database": (at("", notes), "corrupt_database", 4),
    "a head of zeros": (at("", zero_head), "corrupt_database", 4),
    "cut off at a page": (at("", cut_at_page), "corrupt_database", 4),
    "empty": (at("", empty), "corrupt_database", 4),
    "a directory": (directory, "corrupt_database", 4),
    "newer": (newer, "newer_schema", 5),
    "an open run without its session": (
        changed(QUEUED, "DELETE FROM sessions WHERE id = 'session-3'"),
        *("corrupt_database", 4),
    ),
    "a prompt at no position": (
        changed(BEGUN, "UPDATE messages SET position = 'x' WHERE id = 'message-3-0'"),
        *("corrupt_database", 4),
    ),
    "an answer at no position": (
        changed(BEGUN, "UPDATE messages SET position = 'x' WHERE id = 'message-3-1'"),
        *("corrupt_database", 4),
    ),
}


async def real_daemons(sound: Sound, folder: Path, seed: int) -> list[str]:
    wrong = []
    async with daemon(folder) as running:
        for number, (name, (spoil, code, status)) in enumerate(FOR_DAEMONS.items()):
            data = folder / f"daemon-{number}"
            shutil.copytree(sound.closed, data)
            spoil(random.Random(f"{seed}/daemon/{number}"), data)
            before = digests(data)
            found = at_start(running.command, data, status)
            found += await at_create(running.client, data, code)
            if digests(data) != before:
                found.append("refused, but changed")
            wrong += [f"{name}: {line}" for line in found]
        data = folder / "made-new"
        wrong += [f"afterwards: {line}" for line in await at_create(running.client, data, "")]
    return wrong + running.complaints


def at_start(command: list[str], data: Path, status: int) -> list[str]:
    command = [*command[:-1], f"unix://{data.parent}/other.sock", "--data-dir", str(data)]
    try:
        ended = subprocess.run(
            command, cwd=ROOT, capture_output=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return ["serve did not refuse it"]
    said = ended.stderr.decode()
    if ended.returncode != status or "Traceback" in said or str(data) not in said:
        return [f"serve ended with {ended.returncode}, not {status}: {said[-500:]}"]
    return []


async def at_create(client: HTTPClient, data: Path, code: str) -> list[str]:
    project = data.parent / "project"
    project.mkdir(exist_ok=True)
    status, said = await create(client, project, data_dir=str(data))
    if (status, said.get("code", "")) != (409 if code else 200, code):
        return [f"create was answered {status} {said}"]
    return []


# ------------------------------------------------------------------------------------------------


def report(tallies: dict[str, Tally]) -> list[str]:
    print(f"{'':32}{'refused':>8}{'whole':>8}{'partly':>8}{'altered':>8}{'wrong':>8}")
    for name, tally in tallies.items():
        counts = (tally.refused, tally.whole, tally.partly, tally.altered, len(tally.wrong))
        print(f"{name:32}" + "".join(f"{count:8}" for count in counts))
    return [f"{name}: {line}" for name, tally in tallies.items() for line in tally.wrong]


async def main(files: int, seed: int, daemons: bool) -> int:
    print(f"seed {seed}")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place).resolve()
        sound = await make(folder / "sound")
        wrong = report(await sweep(sound, folder, files, seed))
        if daemons:
            wrong += await real_daemons(sound, folder, seed)
    print(*wrong, sep="\n")
    print(f"{files} files, {len(wrong)} went wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--files", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--no-daemons", action="store_true", help="only the store")
    options = parser.parse_args()
    sys.exit(asyncio.run(main(options.files, options.seed, not options.no_daemons)))
