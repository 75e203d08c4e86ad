"""Scenarios F and J, as far as they are about what an answer or an event says, and to whom."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from crushlite.clock import SystemClock
from crushlite.coder.build import coder
from crushlite.testing import LocalDaemon
from crushlite.version import __version__
from tests.support.basics import BoundedTestCase
from tests.support.scenarios import scenario

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from crushlite.agent.base import Agent
    from crushlite.config.view import Config
    from crushlite.testing import Participant

SECRET = "hunter2-of-anna-4711"


def configured(path: Path, env: Mapping[str, str], config: Config) -> Agent:
    """The model agent, so that clients are shown the configuration itself."""
    agent = coder(path, env, config, SystemClock())
    assert agent is not None
    return agent


class WireScenario(BoundedTestCase):
    """A daemon, and the file of the user who runs it."""

    agent: Any = None

    async def asyncSetUp(self) -> None:
        self.daemon = await self.enterAsyncContext(LocalDaemon(self.agent))
        self.user_file = self.daemon.root / "home/.config/crush/crush.json"
        self.user_file.parent.mkdir(parents=True)


class EnvironmentScenarios(WireScenario):
    agent = staticmethod(configured)

    @scenario(123)
    async def test_the_environment_of_a_client_is_shown_to_no_other(self) -> None:
        """What one client's environment holds is shown to no other, wherever it looks."""
        lab: dict[str, Any] = {"base_url": "http://127.0.0.1:9/$LAB_KEY", "models": [{"id": "m"}]}
        lab |= {"api_key": "$LAB_KEY", "extra_headers": {"X-Key": "$LAB_KEY"}}
        self.user_file.write_text(json.dumps({"providers": {"lab": lab}}))
        environment = ["PATH=/usr/bin:/bin", f"LAB_KEY={SECRET}"]
        anna = await self.daemon.join(env=environment)
        ben = await self.daemon.join(env=["PATH=/bin"])
        silent = await self.daemon.create()
        again = await self.daemon.create(client_id=anna.id)
        self.assertEqual(anna.workspace["env"], environment)
        self.assertEqual(
            (ben.workspace["env"], again.workspace["env"]), (["PATH=/bin"], environment)
        )
        self.assertNotIn("env", silent.workspace)
        self.assertIn("lab", ben.workspace["config"]["providers"])
        looks = [
            ben.workspace,
            silent.workspace,
            (await self.daemon.call("GET", "/v1/workspaces")).json,
        ]
        looks += [
            (await ben.call("GET", path)).json for path in ("", "/config", "/providers", "/agent")
        ]
        await anna.session("a full stop")
        await ben.events.wait_for("session")
        for shown in (*looks, ben.events.raw.decode()):
            self.assertNotIn(SECRET, json.dumps(shown))
        self.assertEqual([w.get("env") for w in looks[2]], [None])


class VersionScenarios(WireScenario):
    @scenario(125)
    async def test_a_client_of_another_version_is_warned_and_served(self) -> None:
        """The warning is in the answer to its own create."""
        for own in (
            {},
            {"version": ""},
            {"version": __version__},
            {"version": f"crushlite-{__version__}"},
        ):
            self.assertNotIn("warning", (await self.daemon.create(**own)).workspace, own)
        for version in ("crushlite-0.0.1", "v0.91.2", "devel", "x" * 5000):
            with self.subTest(version[:20]):
                other = await self.daemon.join(version=version)
                warning = other.workspace["warning"]
                self.assertIn(version[:20], warning)
                self.assertIn(__version__, warning)
                self.assertLess(len(warning), 400)
                self.assertEqual(other.workspace["version"], f"crushlite-{__version__}")
                session = await other.session()
                await other.events.wait_for("session", id=session)
                self.assertNotIn("warning", (await other.call("GET", "")).json)
        [listed] = (await self.daemon.call("GET", "/v1/workspaces")).json
        self.assertNotIn("warning", listed)
        self.assertNotIn("warning", (await self.daemon.create()).workspace)


class ConfigurationScenarios(WireScenario):
    agent = staticmethod(configured)

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        lab = {"base_url": "http://127.0.0.1:9/v1", "models": [{"id": "big"}, {"id": "wee"}]}
        self.user_file.write_text(json.dumps({"providers": {"lab": lab}}))
        self.anna, self.ben = await self.daemon.join(), await self.daemon.join()
        self.away = await self.daemon.join(self.daemon.root / "away")
        # A project with a setting of its own: the user's setting changes nothing there.
        own = self.daemon.root / "own/.crushlite/crush.json"
        own.parent.mkdir(parents=True)
        own.write_text('{"options": {"debug": true}}')
        self.own = await self.daemon.join(self.daemon.root / "own")
        self.everyone = (self.anna, self.ben, self.away, self.own)

    async def announced(self, what: str, body: Any, status: int = 200) -> list[int]:
        """Anna changes something; how many events anna, ben, away and own get of it."""
        before = [len(who.events.all("config_changed")) for who in self.everyone]
        answer = await self.anna.call("POST", f"/config/{what}", body)
        self.assertEqual(answer.status, status, answer)
        counts = []
        for who, count in zip(self.everyone, before, strict=True):
            await self.full_stop(who)
            events = who.events.all("config_changed")[count:]
            for event in events:
                self.assertEqual(event.action, "updated")
                self.assertEqual(event.payload, {"workspace_id": who.workspace["id"]})
            counts.append(len(events))
        return counts

    async def full_stop(self, who: Participant) -> None:
        """Everything published so far has been read."""
        await who.events.wait_for("session", id=await who.session("a full stop"))

    @scenario(185)
    async def test_a_changed_configuration_is_announced_wherever_it_takes_effect(self) -> None:
        """Every client of the workspace gets the event, and of other workspaces those whose
        configuration it changes; a change that changes nothing is not announced."""
        wee = {"model": "wee", "provider": "lab"}
        key = {"scope": 0, "provider_id": "lab", "kind": "string", "api_key": "a-key-000000001"}
        for what, body, expected in (
            ("set", {"scope": 0, "key": "options.debug", "value": True}, [1, 1, 1, 0]),
            ("set", {"scope": 0, "key": "options.debug", "value": True}, [0, 0, 0, 0]),
            ("set", {"scope": 1, "key": "options.progress", "value": False}, [1, 1, 0, 0]),
            ("compact", {"scope": 0, "enabled": True}, [1, 1, 1, 1]),
            ("compact", {"scope": 0, "enabled": True}, [0, 0, 0, 0]),
            ("model", {"scope": 1, "model_type": "large", "model": wee}, [1, 1, 0, 0]),
            ("provider-key", key, [1, 1, 1, 1]),
            ("remove", {"scope": 0, "key": "options.debug"}, [1, 1, 1, 0]),
            ("remove", {"scope": 0, "key": "options.debug"}, [0, 0, 0, 0]),
        ):
            with self.subTest(what, body=body):
                self.assertEqual(await self.announced(what, body), expected)
        config = (await self.ben.call("GET", "/config")).json
        self.assertEqual(config["options"]["tui"], {"compact_mode": True})
        self.assertEqual(config["models"]["large"]["model"], "wee")

    @scenario(185)
    async def test_a_change_of_configuration_that_fails_is_announced_to_no_client(self) -> None:
        nothing = {"model": "nosuch", "provider": "lab"}
        for what, body in (
            ("set", b"{"),
            ("set", {"scope": 7, "key": "options.debug", "value": True}),
            ("set", {"scope": "0", "key": "options.debug", "value": True}),
            ("set", {"scope": 0, "key": "options.debug", "value": "loud"}),
            ("remove", {"scope": 0, "key": ""}),
            ("model", {"scope": 1, "model_type": "large", "model": nothing}),
            ("compact", {"scope": 0, "enabled": "yes"}),
            ("provider-key", {"scope": 0, "provider_id": "lab", "kind": "x", "api_key": "k"}),
        ):
            with self.subTest(what, body=body):
                self.assertEqual(await self.announced(what, body, 400), [0, 0, 0, 0])
