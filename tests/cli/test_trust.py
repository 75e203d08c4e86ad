"""`crushlite trust`, and where other commands say that a project is not trusted."""

from __future__ import annotations

import json
import shutil
import stat
from typing import Any

from tests.support.cli import CommandCase

ESC = "\x1b[2K\rharmless\u202e"
OWN: dict[str, Any] = {
    "base_url": "http://own.example/$TEAM",
    "api_key": "$OWN_TOKEN",
    "extra_headers": {"X-Token": "literal-secret-value-000001", "X-Plain": f"a{ESC}\nb"},
    "models": [{"id": "m1"}, {"id": "m2"}],
}
DOCUMENT: dict[str, Any] = {
    "providers": {"own": OWN, f"odd{ESC}": {"base_url": "http://odd.example"}},
    "models": {"large": {"provider": "own", "model": "m1"}},
    "mcp": {"evil": {"command": "evil"}},
}


class TrustTests(CommandCase):
    def setUp(self) -> None:
        super().setUp()
        self.file = self.project / "crush.json"
        self.file.write_text(json.dumps(DOCUMENT))
        self.env |= {"TEAM": "parsers", "OWN_TOKEN": "tok-of-the-user-000001"}
        self.list = self.root / ".local/share/crushlite/trust/files.json"

    async def call(self, *arguments: str) -> tuple[int, str, str]:
        call = await self.start(*arguments)
        code, printed = await call.end()
        return code, printed, call.errors

    async def providers(self) -> set[str]:
        """The providers that count here."""
        printed = (await self.call("config", "--json"))[1]
        keys = [row["key"].split(".") for row in json.loads(printed)]
        return {key[1] for key in keys if key[0] == "providers"}

    async def test_everything_that_would_be_used_is_shown_and_no_secret(self) -> None:
        code, printed, _ = await self.call("trust", str(self.project), "--yes")
        self.assertEqual(code, 0)
        for words in (
            f"{self.file} (not trusted)",
            "provider own: http://own.example/$TEAM",
            'api_key: "$OWN_TOKEN"',
            "models: m1, m2",
            'model large: {"provider": "own", "model": "m1"}',
            "variables that it gets: TEAM",
            "because they may be secrets: OWN_TOKEN",
            'tool server evil, which is then started: {"command": "evil"}',
            "may then go to: http://own.example/$TEAM, http://odd.example",
        ):
            self.assertIn(words, printed)
        for hidden in ("literal-secret", "tok-of-the-user", "\x1b", "\u202e", "\r"):
            self.assertNotIn(hidden, printed)
        self.assertIn(r"\x1b[2K", printed)
        self.assertEqual(stat.S_IMODE(self.list.stat().st_mode), 0o600)

    async def test_a_secret_is_withheld_also_if_it_is_not_set_yet(self) -> None:
        self.env.pop("OWN_TOKEN")
        printed = (await self.call("trust", "--yes"))[1]
        self.assertIn("because they may be secrets: OWN_TOKEN", printed)

    async def test_it_counts_until_the_file_changes_or_trust_is_taken_back(self) -> None:
        self.assertEqual(await self.providers(), set())
        self.assertEqual((await self.call("trust", "--yes"))[0], 0)
        self.assertIn("own", await self.providers())
        self.assertIn("trusted already", (await self.call("trust"))[2])
        printed = (await self.call("trust", "--list"))[1]
        self.assertRegex(printed, rf"{self.file} +trusted")
        self.file.write_text(json.dumps(DOCUMENT | {"more": 1}))
        self.assertEqual(await self.providers(), set())
        for arguments in (("trust", "--list"), ("trust", "--yes")):
            printed = (await self.call(*arguments))[1]
            self.assertIn("changed since it was trusted", printed)
        self.assertIn("own", await self.providers())
        self.assertEqual((await self.call("trust", "--revoke", str(self.project)))[0], 0)
        self.assertEqual(await self.providers(), set())

    async def test_without_a_user_to_ask_nothing_is_trusted(self) -> None:
        code, _, said = await self.call("trust")
        self.assertEqual(code, 2)
        self.assertIn("--yes", said)
        self.assertFalse(self.list.exists())

    async def test_on_a_terminal_the_user_is_asked(self) -> None:
        for answer, code in (("n", 1), ("", 1), ("y", 0)):
            terminal = await self.terminal("trust")
            await terminal.shows("Trust this? [y/N]")
            terminal.enter(answer)
            self.assertEqual(await terminal.ends(), code)
            self.assertEqual(self.list.exists(), code == 0)

    async def test_a_project_that_asks_for_nothing_needs_no_trust(self) -> None:
        self.file.write_text('{"options": {"debug": true}}')
        code, printed, said = await self.call("trust", "--yes")
        self.assertEqual((code, printed), (0, ""))
        self.assertIn("nothing to trust", said)
        self.assertFalse(self.list.exists())

    async def test_trust_in_a_folder_that_is_gone_can_be_taken_back(self) -> None:
        await self.call("trust", "--yes")
        away = self.root / "away"
        away.mkdir()
        shutil.rmtree(self.project)
        self.project, gone = away, self.project
        self.assertRegex((await self.call("trust", "--list"))[1], rf"{self.file} +gone")
        self.assertEqual((await self.call("trust", "--revoke", str(gone)))[0], 0)
        self.assertIn("no project's file is trusted", (await self.call("trust", "--list"))[2])

    async def test_run_and_doctor_and_config_say_what_is_ignored_and_what_to_do(self) -> None:
        for arguments in (("run", "hello"), ("doctor",), ("config",)):
            _, printed, said = await self.call(*arguments)
            with self.subTest(arguments):
                for words in ("not trusted", f"crushlite trust {self.project}"):
                    self.assertIn(words, printed + said)

    async def test_chat_says_it(self) -> None:
        window = await self.chat()
        await window.shows("not trusted")

    async def test_a_daemon_that_has_the_project_open_follows(self) -> None:
        self.env["CRUSHLITE_AGENT"] = "coder"
        child = await self.spawn("serve", "--agent=coder", f"--host=unix://{self.socket}")
        await child.prints("is serving")
        watcher = await self.start("watch")
        await watcher.notes("watching")
        for arguments in (("trust", "--yes"), ("trust", "--revoke")):
            before = watcher.out.count(b"configuration changed")
            self.assertEqual((await self.call(*arguments))[0], 0)
            while watcher.out.count(b"configuration changed") == before:
                watcher._changed.clear()
                await watcher._changed.wait()

    async def test_what_config_set_writes_without_a_daemon_is_trusted(self) -> None:
        self.file.unlink()
        await self.call("config", "set", "providers.own", json.dumps(OWN))
        self.assertEqual(await self.providers(), {"own"})
        await self.call("config", "unset", "providers.own.models")
        self.assertEqual(await self.providers(), {"own"})
