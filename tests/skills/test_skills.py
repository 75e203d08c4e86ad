"""Skills and commands in a daemon."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.api.context import answer, body
from crushlite.api.entry import Entry, W
from crushlite.fake_model import End, Say
from crushlite.features.offers import OfferingPart
from crushlite.features.wire import GetPrompt, OfferedCommand
from crushlite.skills.part import SkillsPart
from crushlite.testing import LocalDaemon
from crushlite.testing.fake_clock import FakeClock
from crushlite.wing import Wing
from crushlite.wings import standard_wings
from tests.skills.test_reading import skill_text
from tests.support.basics import BoundedTestCase
from tests.support.configured import ConfiguredTestCase, results, use

if TYPE_CHECKING:
    from collections.abc import Sequence

    from crushlite.api.context import Context
    from crushlite.http.messages import Request, Response
    from crushlite.skills.catalogue import Catalogue


class ToolServers(Wing):
    """Answers for a tool server with one prompt."""

    def routes(self) -> Sequence[Entry]:
        return (
            Entry("GET", W + "/mcp/prompts", self.listed, gives=list[Any]),
            Entry("POST", W + "/mcp/get-prompt", self.got, takes=GetPrompt),
        )

    async def listed(self, context: Context, request: Request) -> Response:
        argument = {"id": "city", "title": "City", "required": True}
        prompt = {"id": "srv:weather", "prompt_id": "weather", "client_id": "srv"}
        return answer([{**prompt, "title": "Weather", "arguments": [argument]}])

    async def got(self, context: Context, request: Request) -> Response:
        wanted = body(GetPrompt, request)
        return answer({"prompt": f"{wanted.prompt_id} of {wanted.args['city']}"})


class FreshTests(BoundedTestCase):
    async def test_a_list_has_what_was_written_while_an_older_reading_was_under_way(self) -> None:
        async with LocalDaemon() as daemon:
            anna = await daemon.join()
            part = daemon.backend.get(str(anna.workspace["id"])).part(SkillsPart)
            await part.refresh()
            begun, go_on = threading.Event(), threading.Event()
            read_all = part._read_all

            def slowly() -> Catalogue:
                found = read_all()
                begun.set()
                go_on.wait(60)
                return found

            with mock.patch.object(part, "_read_all", slowly):
                older = part._begin()
                await asyncio.to_thread(begun.wait, 60)
            file = daemon.root / "home/.claude/skills/new/SKILL.md"
            file.parent.mkdir(parents=True)
            file.write_text(skill_text("new"))
            asked = [asyncio.create_task(part.refresh()) for _ in range(3)]
            await asyncio.sleep(0)
            go_on.set()
            await older
            for task in asked:
                self.assertIn("new", [skill.name for skill in (await task).skills])

    async def test_both_readings_together_are_waited_for_no_longer_than_asked(self) -> None:
        clock, go_on = FakeClock(), threading.Event()
        self.addCleanup(go_on.set)
        async with LocalDaemon(clock=clock) as daemon:
            anna = await daemon.join()
            part = daemon.backend.get(str(anna.workspace["id"])).part(SkillsPart)
            known = await part.refresh()

            def hangs() -> Catalogue:
                go_on.wait(60)
                return known

            with mock.patch.object(part, "_read_all", hangs):
                part._begin()
                begun, asked = clock.time(), asyncio.create_task(part.refresh(1.0))
                while not asked.done():
                    await clock.advance(0.25)
            self.assertLessEqual(clock.time() - begun, 1.25)
            go_on.set()


class PromptTests(BoundedTestCase):
    async def test_prompts_of_tool_servers_are_commands(self) -> None:
        wings = [*standard_wings(), ToolServers()]
        async with LocalDaemon(wings=wings) as daemon:
            anna = await daemon.join()
            (info,) = (await anna.call("GET", "/commands")).json
            self.assertEqual((info["name"], info["source"]), ("srv:weather", "mcp"))
            wanted = {"command": "srv:weather", "text": "Rome"}
            expanded = await anna.call("POST", "/commands/expand", wanted)
            self.assertEqual(expanded.json, {"prompt": "weather of Rome"})


class RouteTests(BoundedTestCase):
    async def asyncSetUp(self) -> None:
        self.daemon = await self.enterAsyncContext(LocalDaemon())
        self.home = self.daemon.root / "home"
        self.project = Path(os.path.realpath(self.daemon.root / "project"))

    def write(self, path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    async def test_skills_are_listed_read_and_announced(self) -> None:
        mine = self.write(self.home / ".claude/skills/pdf/SKILL.md", skill_text("pdf"))
        theirs = self.write(self.project / ".agents/skills/x/SKILL.md", skill_text("x"))
        anna = await self.daemon.join()
        (skill,) = (await anna.call("GET", "/skills")).json
        self.assertEqual((skill["id"], skill["label"]), (str(mine), "user:pdf"))
        read = (await anna.call("POST", "/skills/read", {"skill_id": str(mine)})).json
        self.assertEqual(base64.b64decode(read["content"]).decode(), skill_text("pdf"))
        self.assertEqual(read["result"]["source"], "user")
        missing = await anna.call("POST", "/skills/read", {"skill_id": str(theirs)})
        self.assertEqual((missing.status, missing.json["code"]), (404, "not_found"))
        workspace = self.daemon.backend.get(anna.workspace["id"])
        files = workspace.profile.files  # type: ignore[attr-defined]
        files.trust_store.record({theirs: {hashlib.sha256(theirs.read_bytes()).hexdigest()}})
        names = [each["name"] for each in (await anna.call("GET", "/skills")).json]
        self.assertEqual(names, ["pdf", "x"])
        event = await anna.events.wait_for("skills_event", states=_states(mine, theirs))
        self.assertEqual(event.action, "updated")

    async def test_commands_of_all_sources_are_in_one_list_and_give_prompts(self) -> None:
        self.write(self.home / ".config/crush/commands/review.md", "Review $BRANCH now")
        self.write(self.home / ".claude/skills/review/SKILL.md", skill_text("review"))
        anna = await self.daemon.join()

        class Broken(OfferingPart):
            async def commands(self) -> list[OfferedCommand]:
                raise RuntimeError("broken")

        self.daemon.backend.get(anna.workspace["id"]).parts.insert(0, Broken())
        with self.assertLogs("crushlite.skills", "ERROR"):
            listed = (await anna.call("GET", "/commands")).json
        self.assertEqual(
            [(each["id"], each["name"], each["source"]) for each in listed],
            [("user:review", "review", "user"), ("skill:review", "skill:review", "skill")],
        )
        self.assertEqual(listed[0]["arguments"], [{"name": "BRANCH", "required": True}])
        for sent, status, words in (
            ({"command": "review", "text": "main"}, 200, "Review main now"),
            ({"command": "user:review", "arguments": {"BRANCH": "$BRANCH"}}, 200, "Review $BRANCH"),
            ({"command": "skill:review", "text": "slowly"}, 200, "body of review"),
            ({"command": "review"}, 400, "review needs BRANCH"),
            ({"command": "other"}, 404, "no command 'other'"),
        ):
            answer = await anna.call("POST", "/commands/expand", sent)
            with self.subTest(sent=sent):
                self.assertEqual(answer.status, status)
                self.assertIn(words, json.dumps(answer.json))


def _states(*files: Path) -> list[dict[str, object]]:
    return [{"name": f.parent.name, "path": str(f.parent), "state": 0} for f in files]


class ModelTests(ConfiguredTestCase):
    async def test_a_model_is_told_of_skills_and_reads_one_without_asking(self) -> None:
        top = self.home / ".config/crush/skills/deploy"
        (top / "references").mkdir(parents=True)
        (top / "SKILL.md").write_text(skill_text("deploy", "How to deploy: with care."))
        (top / "references/hosts.md").write_text("the hosts")
        os.symlink("/etc/passwd", top / "out")
        client = await self.daemon.join(self.folder("skilled"))
        session = await client.session()
        self.plan = [
            use("skill", "s1", name="deploy"),
            use("skill", "s2", name="deploy", file="references/hosts.md"),
            use("skill", "s3", name="deploy", file="out"),
            [Say("deployed"), End()],
        ]
        await self.turn(client, session, "deploy it")
        body, hosts, refused = results(await client.messages(session))
        self.assertIn("body of deploy", body["content"])
        self.assertIn("references/hosts.md", body["content"])
        self.assertEqual(hosts["content"], "the hosts")
        self.assertIn("not in the folder", refused["content"])
        first, *later = self.model.requests
        system = json.dumps(first["messages"][0])
        self.assertIn("<name>deploy</name>", system)
        self.assertIn("How to deploy: with care.", system)
        for request in later:
            self.assertEqual(request["messages"][0], first["messages"][0], "the cache stays")
            self.assertEqual(request["tools"], first["tools"])
