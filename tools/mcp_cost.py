"""What tool servers that are silent or dead cost a prompt:

    python tools/mcp_cost.py [--turns N] [--rounds N]

Two daemons in this process ask the same model, turn by turn in alternation; the user of the second
one has tool servers configured that never answer, end at once, or cannot be started. Prints the
median time from the prompt to the first text in each round, and the ratio. Turns are interactive:
those wait for no server.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from crushlite.clock import SystemClock  # noqa: E402
from crushlite.coder.build import coder  # noqa: E402
from crushlite.fake_model import End, FakeModel, Say  # noqa: E402
from crushlite.testing import LocalDaemon  # noqa: E402
from tests.support.configured import configuration  # noqa: E402
from tests.support.mcp import scripted  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Mapping

    from crushlite.testing import Participant

SERVERS = {
    "silent": scripted("mute", timeout=60),
    "dead": scripted("exit=3"),
    "absent": {"type": "stdio", "command": "there-is-no-such-program"},
    "slow": scripted("mute", timeout=3),
}


def agent(path: Path, env: Mapping[str, str], config: Any) -> Any:
    return coder(path, env, config, SystemClock())


async def first_text(client: Participant) -> float:
    """Seconds from a prompt in a new session to the first text of the answer."""
    session = await client.session("s")
    began = time.monotonic()
    await client.prompt(session, "hello")
    while True:
        event = await client.events.wait_for("message", session_id=session, role="assistant")
        if event.text:
            break
    spent = time.monotonic() - began
    await client.events.wait_for("run_complete", session_id=session)
    return spent


async def joined(daemon: LocalDaemon, model: FakeModel, servers: dict[str, Any]) -> Participant:
    """A client of a daemon that is about to be started, whose user has these tool servers."""
    file = daemon.root / "home/.config/crush/crush.json"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps({**configuration(model, model), "mcp": servers}))
    return await daemon.join(env=[f"HOME={daemon.root / 'home'}", f"PATH={os.defpath}"])


async def measure(rounds: int, turns: int) -> list[float]:
    ratios = []
    async with (
        FakeModel(script=lambda _: [Say("hello"), End()]) as model,
        LocalDaemon(agent) as plain,
        LocalDaemon(agent) as other,
    ):
        clients = [await joined(plain, model, {}), await joined(other, model, SERVERS)]
        for client in clients * 10:
            await first_text(client)
        for number in range(rounds):
            spent: list[list[float]] = [[], []]
            for turn in range(turns):
                for place in (0, 1) if turn % 2 else (1, 0):
                    spent[place].append(await first_text(clients[place]))
            without, beside = median(spent[0]) * 1000, median(spent[1]) * 1000
            ratios.append(beside / without)
            print(f"round {number + 1}: {without:.2f} ms without, {beside:.2f} ms with servers")
    return ratios


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turns", type=int, default=60)
    options = parser.parse_args()
    ratios = sorted(asyncio.run(measure(options.rounds, options.turns)))
    print(f"ratio {median(ratios):.2f}x [{ratios[0]:.2f}-{ratios[-1]:.2f}]")
    return 0


if __name__ == "__main__":
    sys.exit(main())
