"""Send mutated JSON bodies to every route that reads one, and see that each is taken or refused.

    python tools/fuzz_json.py --bodies 20000 --seed 1

A body begins as a good one of the class that the route declares. Then values are replaced by others
of any type, nested deeply, made long, torn or doubled; keys are dropped, repeated and invented; and
the text itself is damaged. There must be no 500 and no traceback in the log, every refusal must be
an object of `message` and `code`, and the daemon must be alive at the end. Exit 1 otherwise, with
the seed and the number of the body, which `--only` repeats.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import random
import sys
import time
import types
import typing
from collections import Counter
from typing import Any

from fuzz_target import CLIENT, Finding, Target, answers

from crushlite.api.routes import whole_table
from crushlite.protocol.codec import key_of, without_none
from crushlite.wings import standard_wings

STRINGS = (
    *(
        "",
        "x",
        " ",
        "\0",
        "\x1b[2J",
        "\u202e",
        "\ud800",
        "é",
        "😀",
        "a/b",
        "../..",
        "/",
        "~",
        "$HOME",
    ),
    *("x" * 300, "x" * 70_000, "null", "-1", "1e999", "%s%n", "{}", "0" * 40, CLIENT, "\r\nX: y"),
)
NUMBERS = (
    *(0, -1, 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**63, 10**30, 0.5, -0.0, 1e308, 65536),
    *(float("nan"), float("inf")),
)
RAW = (  # values that only a text can hold
    *("1e999", "-", "01", "1.", "+1", "0x1", "NaN", "-Infinity", "9" * 5000, '"\\ud800"', '"\\x"'),
    *(
        '"\\u12"',
        "'x'",
        "nul",
        "[,]",
        "{,}",
        '{"a":1,"a":2}',
        "[" * 70 + "]" * 70,
        "[" * 3000,
        "\t",
    ),
    *('{"a":' * 66 + "1" + "}" * 66, '"' + "\\ud83d\\ude00" * 9 + '"', "// x", '"\x01"'),
)
_hints = functools.cache(typing.get_type_hints)
MARK = "\x00raw\x00"  # stands for a raw value until the text is made


class Bodies:
    """Draws targets and bodies. The same seed and number give the same request."""

    def __init__(self, target: Target, seed: int) -> None:
        self._seed = seed
        self._session = target.session
        self._paths = (str(target.project), str(target.project / "none"))
        self.routes: list[tuple[str, str, type]] = []
        for entry in whole_table(standard_wings()):
            if entry.takes is None or entry.pattern.endswith("/mcp/servers"):
                continue  # the latter's answer has no end while its servers run
            path = entry.pattern.replace("{id}", target.workspace)
            path = path.replace("{sid}", target.session).replace("{", "x").replace("}", "")
            if any(param.required for param in entry.params):
                path += f"?client_id={CLIENT}"
            route = (entry.method, path, without_none(entry.takes))
            # Of these a good body starts a process or writes a file, which takes long.
            self.routes += [route] * (1 if path.endswith(("/shell", "/v1/workspaces")) else 10)

    def draw(self, number: int) -> tuple[str, str, bytes]:
        """Method, target and body."""
        dice = random.Random(self._seed * 1_000_003 + number)
        method, path, cls = dice.choice(self.routes)
        value = self._good(dice, cls, 0)
        raws: list[str] = []
        for _ in range(dice.choice((0, 1, 1, 1, 2, 5))):
            value = self._mutated(dice, value, raws)
        text = json.dumps(value, ensure_ascii=dice.random() < 0.7)
        for raw in raws:
            text = text.replace(json.dumps(MARK), raw, 1)
        body = text.encode("utf-8", "surrogatepass")
        if dice.random() < 0.2 and body:
            body = self._damaged(dice, body)
        return method, path, body

    def _good(self, dice: random.Random, hint: Any, depth: int) -> Any:
        """A value of a type."""
        hint = without_none(hint)
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if dataclasses.is_dataclass(hint):
            hints = _hints(hint)
            return {
                key_of(field): self._good(dice, hints[field.name], depth + 1)
                for field in dataclasses.fields(hint)
                if dice.random() < 0.9
            }
        if origin is list:
            return [self._good(dice, arguments[0], depth + 1) for _ in range(dice.randrange(3))]
        if origin is dict:
            return {"k": self._good(dice, arguments[1], depth + 1)}
        if origin is types.UnionType:
            return self._good(dice, arguments[0], depth)
        if hint is bool:
            return dice.random() < 0.5
        if hint in (int, float):
            return dice.choice((0, 1, 2))
        if hint is str:
            return dice.choice((self._session, CLIENT, "x", "allow", *self._paths))
        return dice.choice((None, "x", 1, {}))

    def _mutated(self, dice: random.Random, value: Any, raws: list[str]) -> Any:
        if isinstance(value, dict) and value and dice.random() < 0.85:
            key = dice.choice(list(value))
            way = dice.random()
            if way < 0.7:
                return {**value, key: self._mutated(dice, value[key], raws)}
            if way < 0.8:
                return {k: v for k, v in value.items() if k != key}
            if way < 0.9:
                return {**value, dice.choice(STRINGS): self._other(dice, raws)}
            return {**value, key.upper(): value[key]}
        if isinstance(value, list) and value and dice.random() < 0.7:
            at = dice.randrange(len(value))
            return [*value[:at], self._mutated(dice, value[at], raws), *value[at + 1 :]]
        return self._other(dice, raws)

    def _other(self, dice: random.Random, raws: list[str]) -> Any:
        kind = dice.randrange(8)
        if kind == 0:
            raws.append(dice.choice(RAW))
            return MARK
        if kind == 1:
            return dice.choice(NUMBERS)
        if kind == 2:
            return dice.choice((None, True, False, [], {}, [None], [[]], {"": ""}))
        if kind == 3:
            return [dice.choice(STRINGS)] * dice.choice((1, 2, 50))
        if kind == 4:
            return {dice.choice(STRINGS): dice.choice(NUMBERS)}
        if kind == 5:
            deep: Any = dice.choice(STRINGS)
            for _ in range(dice.choice((1, 10, 63, 64, 65, 100))):
                deep = [deep] if dice.random() < 0.5 else {"a": deep}
            return deep
        return dice.choice(STRINGS)

    @staticmethod
    def _damaged(dice: random.Random, body: bytes) -> bytes:
        at = dice.randrange(len(body))
        return dice.choice(
            (
                body[:at],
                body[:at] + dice.randbytes(1) + body[at + 1 :],
                body[:at] + body[at + 1 :],
                body + body,
                b"\xef\xbb\xbf" + body,
                body.decode("utf-8", "replace").encode("utf-16"),
                body[:at] + b"\xff" + body[at:],
                b"",
                b" \r\n\t",
            )
        )


AT_ONCE = 8  # requests that are sent before their answers are read


def run(bodies: int, seed: int, only: int | None = None) -> int:
    started, number = time.perf_counter(), only or 0
    last = number + (1 if only is not None else bodies)
    seen: Counter[int] = Counter()
    try:
        with Target() as target:
            drawn = Bodies(target, seed)
            while number < last:
                batch = [drawn.draw(each) for each in range(number, min(number + AT_ONCE, last))]
                seen.update(exchange(target, number, batch))
                number += len(batch)
                if number % 10_000 < AT_ONCE:
                    rate = number / (time.perf_counter() - started)
                    print(f"{number} bodies, {rate:.0f}/s", flush=True)
    except Finding as finding:
        print(f"seed {seed}: {finding}")
        return 1
    took, routes = time.perf_counter() - started, len(set(drawn.routes))
    count = sum(seen.values())
    print(f"{count} bodies for {routes} routes, seed {seed}: {took:.0f} s, {count / took:.0f}/s")
    print(f"answers: {dict(sorted(seen.items()))}")
    return 0


def exchange(target: Target, first: int, batch: list[tuple[str, str, bytes]]) -> list[int]:
    """Send some requests at once on a connection; the statuses. Raises Finding for an answer that
    must not be."""
    found: list[int] = []
    while len(found) < len(batch):  # a body that is too large ends its connection
        with target.connect() as sock:
            with contextlib.suppress(OSError):  # refused while it is being sent
                sock.sendall(b"".join(map(framed, batch[len(found) :])))
            before = len(found)
            for status, answer in answers(sock.makefile("rb")):
                check(f"body {first + len(found)}", batch[len(found)], status, answer)
                found.append(status)
                if len(found) == len(batch) or status == 413:
                    break
            if len(found) == before:
                raise Finding(f"body {first + before}: no answer to {batch[before]!r}"[:2000])
    return found


def framed(request: tuple[str, str, bytes]) -> bytes:
    method, path, body = request
    head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def check(name: str, request: tuple[str, str, bytes], status: int, answer: bytes) -> None:
    shown = f"{name}: {status} {answer[:300]!r} to {request!r}"[:2000]
    if status == 500:
        raise Finding(shown)
    if status < 400:
        return
    try:
        error = json.loads(answer)
        good = sorted(error) == ["code", "message"] and all(
            isinstance(text, str) and text for text in error.values()
        )
    except (ValueError, TypeError):
        good = False
    if not good or len(answer) > 4000:
        raise Finding(shown)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bodies", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--only", type=int, help="the number of one body")
    options = parser.parse_args(argv)
    return run(options.bodies, options.seed, options.only)


if __name__ == "__main__":
    sys.exit(main())
