"""Change the configured tool servers again and again, kill them, restart the daemon:

    python tools/mcp_churn.py [--rounds N] [--seed N]

After each round every tool that is offered can be called, and at the end no process is left. Prints
what it did; the exit code is 1 if something was wrong.
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

from crushlite.errors import CrushliteError  # noqa: E402
from crushlite.mcp.part import McpPart  # noqa: E402
from crushlite.testing import LocalDaemon  # noqa: E402
from tests.support.configured import marked  # noqa: E402
from tests.support.mcp import scripted  # noqa: E402

if TYPE_CHECKING:
    from crushlite.mcp.server import Server
    from crushlite.testing import Participant

SWITCHES: tuple[tuple[str, ...], ...] = ((), ("modern",), ("noisy",), ("stubborn",), ("exit=3",))


async def answer(turn: Any) -> None:
    await turn.say("hello")


class Churn:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.mark = f"churn-{uuid.uuid4().hex}"
        self.wrong: list[str] = []
        self.called = self.killed = self.restarts = 0

    async def run(self, rounds: int) -> list[str]:
        """What was wrong."""
        left = rounds
        while left > 0:
            daemon = LocalDaemon(answer)
            home = daemon.root / "home"
            self.file = home / ".config/crush/crush.json"
            self.file.parent.mkdir(parents=True)
            async with daemon:
                anna = await daemon.join(env=[f"HOME={home}", f"PATH={os.defpath}"])
                part = daemon.backend.get(str(anna.workspace["id"])).part(McpPart)
                for _ in range(min(left, 20)):
                    await self._round(anna, part)
            left -= 20
            self.restarts += 1
            if found := marked(self.mark):
                self.wrong.append(f"{len(found)} processes outlived their daemon")
        return self.wrong

    async def _round(self, anna: Participant, part: McpPart) -> None:
        names = [f"s{n}" for n in range(4)]
        servers = {
            name: scripted(*self.random.choice(SWITCHES), self.mark, timeout=20)
            for name in self.random.sample(names, self.random.randint(0, 3))
        }
        self.file.write_text(json.dumps({"mcp": servers}))
        await anna.call("POST", "/agent/update")
        await asyncio.gather(*(server.settled(60) for server in part.servers))
        victims = marked(self.mark)
        if victims and self.random.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.random.choice(victims), signal.SIGKILL)
                self.killed += 1
        for server in part.servers:
            if server.tools:
                await self._call(server)

    async def _call(self, server: Server) -> None:
        """Call a tool that is offered. Its server may die meanwhile, as it was killed: then that is
        said, and a second call starts it again."""
        self.called += 1
        for _ in range(2):
            try:
                said = await server.call("echo", {"text": "x"})
            except CrushliteError as error:
                if "gone" not in error.message:
                    break
            else:
                if said.text == "x":
                    return
        self.wrong.append(f"{server.name} did not answer: {server.state} {server.error}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Change, kill and restart tool servers.")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    churn = Churn(options.seed)
    wrong = asyncio.run(churn.run(options.rounds))
    done = f"{churn.called} calls, {churn.killed} kills, {churn.restarts} daemons"
    print("\n".join([f"{options.rounds} rounds, {done}, {len(wrong)} wrong", *wrong]))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
