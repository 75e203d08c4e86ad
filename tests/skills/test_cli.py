"""Commands in the terminal: `run --command`, a chat, and the consent for those of a project."""

from __future__ import annotations

from tests.skills.test_reading import skill_text
from tests.support.cli import ChatCase, CommandCase


class RunTests(ChatCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        folder = self.daemon.root / "home/.config/crush/commands"
        folder.mkdir(parents=True)
        (folder / "review.md").write_text("Review $BRANCH and $FILE")

    async def test_run_sends_the_prompt_of_a_command(self) -> None:
        given = ("--command", "review", "--arg", "BRANCH=main", "--arg", "FILE=a=b")
        child, scripted = await self.begun(*given)
        self.assertEqual(scripted.turn.prompt, "Review main and a=b")
        scripted.release()
        await self.ended(child, 0, "one \n")

    async def test_what_is_missing_or_unknown_is_named(self) -> None:
        for given, code, words in (
            (("--command", "review", "main"), 1, "review needs FILE"),
            (("--command", "reviw"), 2, "no command 'reviw'; there are review"),
            (("--command", "review", "--arg", "BRANCH"), 2, "NAME=VALUE is wanted"),
            (("--arg", "A=b", "hello"), 2, "--arg is for --command"),
        ):
            child = await self.run_it(*given)
            with self.subTest(given=given):
                self.assertEqual((await child.end())[0], code)
                self.assertIn(words, child.errors)

    async def test_a_chat_completes_lists_and_sends_them(self) -> None:
        window = await self.chat()
        await self.idle(window)
        window.press("/commands\r")
        await window.shows("BRANCH FILE")
        window.press("/rev\t")
        await window.shows("> /review")
        window.press("main 'a b'\r")
        scripted = await self.daemon.entered(1)
        self.assertEqual(scripted.turn.prompt, "Review main and a b")
        scripted.release()


class TrustTests(CommandCase):
    async def test_skills_and_commands_of_a_project_are_shown_and_trusted(self) -> None:
        skill = self.project / ".claude/skills/x/SKILL.md"
        command = self.project / ".crush/commands/y.md"
        for path, text in ((skill, skill_text("x", "Does\x1b[2K it.")), (command, "Do it")):
            path.parent.mkdir(parents=True)
            path.write_text(text)
        call = await self.start("trust", "--yes")
        code, printed = await call.end()
        self.assertEqual(code, 0, call.errors)
        self.assertIn(f"{skill} (not trusted)\n  skill x, 5 lines for the model: Does", printed)
        self.assertIn(f"{command} (not trusted)\n  command /y, 1 line: Do it", printed)
        self.assertNotIn("\x1b", printed)
        skill.write_text(skill_text("x", "Something else."))
        call = await self.start("trust", "--list")
        listed = (await call.end())[1]
        self.assertRegex(listed, rf"{skill} +changed")
        self.assertRegex(listed, rf"{command} +trusted")
