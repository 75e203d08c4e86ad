"""Change the configured language servers again and again, kill them, restart the daemon:

    python tools/lsp_churn.py [--rounds N] [--seed N]

In each round a file of every kind is changed: a healthy server says what is wrong with it, another
one costs a bounded wait. Every tool that is offered can be called. No process is left of a server
that the configuration no longer names, nor of any after the end of its daemon. Prints what it did;
the exit code is 1 if something was wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import signal
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from crushlite.lsp.part import LspPart  # noqa: E402
from crushlite.testing import LocalDaemon  # noqa: E402
from tests.support import language_server  # noqa: E402
from tests.support.configured import marked  # noqa: E402

if TYPE_CHECKING:
    from crushlite.testing import Participant
    from crushlite.testing.scripted import ScriptedRun

HEALTHY: tuple[tuple[str, ...], ...] = ((), ("noisy",), ("rude",), ("spawn",))
SICK: tuple[tuple[str, ...], ...] = (("fails",), ("dies",), ("mute",))
KINDS = 4
PER_DAEMON = 20


class Churn:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.mark = f"churn-{uuid.uuid4().hex}"
        self.wrong: list[str] = []
        self.told = self.called = self.killed = self.restarts = 0

    async def run(self, rounds: int) -> list[str]:
        """What was wrong."""
        for begin in range(0, rounds, PER_DAEMON):
            daemon = LocalDaemon()
            home = daemon.root / "home"
            self.file = home / ".config/crush/crush.json"
            self.file.parent.mkdir(parents=True)
            async with daemon:
                env = [f"HOME={home}", f"PATH={os.defpath}"]
                anna = await daemon.join(env=env)
                # Servers are waited for where nobody looks on.
                target = f"/agent/init?client_id={anna.id}"
                await anna.call("POST", target, {"interactive": False})
                self.project = daemon.root / "project"
                self.part = daemon.backend.get(str(anna.workspace["id"])).part(LspPart)
                await anna.prompt(await anna.session())
                run = await daemon.entered(1)
                for number in range(begin, min(rounds, begin + PER_DAEMON)):
                    await self._round(anna, run, number)
                run.release()
            self.restarts += 1
            if found := marked(self.mark):
                self.wrong.append(f"{len(found)} processes outlived their daemon")
        return self.wrong

    async def _round(self, anna: Participant, run: ScriptedRun, number: int) -> None:
        healthy = self._configure()
        await anna.call("POST", "/agent/update")
        await anna.call("GET", "/lsps")  # which ends the servers that are named no longer
        if marked(self.mark) and not healthy:
            self.wrong.append(f"round {number}: a server outlived its section")
        for kind in range(KINDS):
            path = self.project / f"a.toy{kind}"
            await self._change(run, path, "fine\n")
            said = await self._change(run, path, f"BAD {number}\n")
            self.told += 1
            if kind in healthy and f"BAD {number}" not in said:
                self.wrong.append(f"round {number}: nothing was said of {path.name}: {said!r}")
            if kind not in healthy and said:
                self.wrong.append(f"round {number}: somebody said {said!r} of {path.name}")
        await self._call_tools(run, number)
        victims = marked(self.mark)
        if victims and self.random.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.random.choice(victims), signal.SIGKILL)
                self.killed += 1

    def _configure(self) -> set[int]:
        """Write other servers into crush.json. Returns the kinds of files with a healthy one."""
        section: dict[str, Any] = {}
        healthy = set()
        for kind in self.random.sample(range(KINDS), self.random.randint(0, 3)):
            sick = self.random.random() < 0.25
            switches = self.random.choice(SICK if sick else HEALTHY)
            script = str(language_server.__file__)
            args = ["-I", "-S", script, *switches, self.mark, uuid.uuid4().hex]
            section[f"s{kind}"] = {
                "command": sys.executable,
                "args": args,
                "filetypes": [f"toy{kind}"],
            }
            if not sick:
                healthy.add(kind)
        self.file.write_text(json.dumps({"lsp": section}))
        return healthy

    async def _change(self, run: ScriptedRun, path: Path, text: str) -> str:
        path.write_text(text)
        return "\n".join(await run.do(lambda turn: turn.notes_on_change(str(path))))

    async def _call_tools(self, run: ScriptedRun, number: int) -> None:
        offered = {tool.name: tool for tool in await run.do(lambda turn: turn.offered_tools())}
        if (tool := offered.get("lsp_diagnostics")) is not None:
            answer = await run.do(lambda turn: tool.call(turn, {}, "call"))
            self.called += 1
            if not answer.text:
                self.wrong.append(f"round {number}: {tool.name} gave no answer")


def main() -> int:
    parser = argparse.ArgumentParser(description="Change, kill and restart language servers.")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    churn = Churn(options.seed)
    wrong = asyncio.run(churn.run(options.rounds))
    done = f"{churn.told} changes, {churn.called} tool calls, {churn.killed} kills"
    print(f"{options.rounds} rounds, {done}, {churn.restarts} daemons, {len(wrong)} wrong")
    print("\n".join(wrong), end="\n" if wrong else "")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
