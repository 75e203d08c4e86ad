"""`undo`, `backup` and `gc`, against a daemon in this process."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from typing import TYPE_CHECKING, Any

from crushlite.cli.gc import age
from crushlite.cli.text import size
from crushlite.clock import SystemClock
from crushlite.store import Stores
from crushlite.store.runs import list_runs
from tests.support.cli import CommandCase, ScriptedCase

if TYPE_CHECKING:
    from pathlib import Path

    from crushlite.testing import Participant
    from tests.support.cli import Call


class DataCase(ScriptedCase):
    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.anna: Participant = await self.daemon.join(self.project)
        self.session = await self.anna.session()
        self.runs = 0

    async def crushlite(self, *arguments: str) -> Call:
        call = await self.start(arguments[0], self.host, *arguments[1:])
        await call.end()
        return call

    async def done(self, *arguments: str) -> str:
        """Call a command that must succeed; returns what it prints."""
        call = await self.crushlite(*arguments)
        self.assertEqual(await call.code(), 0, call)
        return call.out.decode()

    async def refused(self, *arguments: str, code: int = 1) -> str:
        """Call a command that must fail; returns what it says."""
        call = await self.crushlite(*arguments)
        self.assertEqual(await call.code(), code, call)
        return call.errors

    async def ran(self, *commands: str) -> str:
        """Have a run carry out shell commands; returns its id."""
        self.runs += 1
        run_id = str((await self.anna.prompt(self.session, "hello")).json["run_id"])
        run = await self.daemon.entered(self.runs)
        for command in commands:

            async def perform(turn: Any, command: str = command) -> int:
                started = await turn.command(command, env={"PATH": os.environ["PATH"]})
                return int((await started.wait()).code)

            self.assertEqual(await run.do(perform), 0, command)
        run.release()
        await self.anna.events.wait_for("run_complete", run_id=run_id)
        return run_id

    def write(self, name: str, content: str, mode: int = 0o644) -> Path:
        path = self.project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(mode)
        return path

    def tree(self) -> dict[str, tuple[str, int]]:
        return {
            str(path.relative_to(self.project)): (
                path.read_text(),
                stat.S_IMODE(path.stat().st_mode),
            )
            for path in sorted(self.project.rglob("*"))
            if path.is_file() and not {".crushlite", ".git"} & set(path.parts)
        }


class UndoTests(DataCase):
    async def changed(self) -> str:
        """Have a run edit, create and delete files; returns its id."""
        self.write("edited.py", "one\ntwo\n", 0o755)
        self.write("deep/deleted.py", "gone\n", 0o600)
        self.before = self.tree()
        run_id = await self.ran(
            "printf 'one\\n2\\n' > edited.py; mkdir new; echo fresh > new/created.py; rm -r deep"
        )
        self.after = self.tree()
        return run_id

    def git(self, *arguments: str) -> str:
        identity = ("-c", "user.name=kim", "-c", "user.email=kim@example.org")
        command = ("git", *identity, *arguments)
        return subprocess.run(
            command,
            cwd=self.project,
            env=self.env,  # not the tester's: a hook has GIT_DIR, a configuration may want to sign
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        ).stdout

    async def test_in_a_plain_directory(self) -> None:
        await self.changed()
        told = await self.done("undo", "--yes")
        self.assertEqual(self.tree(), self.before)
        self.assertFalse((self.project / "new").exists())
        self.assertIn("3 files put back", told)

    async def test_in_a_git_repository(self) -> None:
        self.git("init", "-q")
        self.write("edited.py", "one\ntwo\n", 0o755)
        self.write("deep/deleted.py", "gone\n", 0o644)
        self.write(".gitignore", ".crushlite/\n")
        self.git("add", "-A")
        self.git("commit", "-qm", "first")
        head = self.git("rev-parse", "HEAD")
        await self.ran("printf 'x' > edited.py; echo fresh > created.py; rm -r deep")
        self.assertNotEqual(self.git("status", "--porcelain"), "")
        await self.done("undo", "--yes")
        self.assertEqual(self.git("status", "--porcelain"), "")
        self.assertEqual(self.git("rev-parse", "HEAD"), head)

    async def test_the_diff_is_shown_first_and_a_dry_run_ends_there(self) -> None:
        await self.changed()
        told = await self.done("undo", "--dry-run")
        for line in (
            *("--- a/edited.py", "+++ b/edited.py", " one", "-2", "+two"),
            *("--- a/new/created.py", "+++ /dev/null", "-fresh"),
            *("--- /dev/null", "+++ b/deep/deleted.py", "+gone"),
        ):
            self.assertIn(f"{line}\n", told)
        self.assertEqual(self.tree(), self.after)

    async def test_it_is_refused_where_a_file_changed_since(self) -> None:
        await self.changed()
        self.write("edited.py", "by hand\n")
        now = self.tree()
        said = await self.refused("undo", "--yes")
        self.assertIn("edited.py cannot be put back: it has changed since", said)
        self.assertIn("--partial", said)
        self.assertEqual(self.tree(), now)
        await self.refused("undo", "--dry-run")
        told = await self.done("undo", "--yes", "--partial")
        self.assertIn("2 files put back", told)
        self.assertEqual(self.tree(), self.before | {"edited.py": now["edited.py"]})

    async def test_it_asks_and_takes_no_for_no(self) -> None:
        await self.changed()
        for keys, code, tree in (
            ("\r", 1, self.after),
            ("n\r", 1, self.after),
            ("y\r", 0, self.before),
        ):
            terminal = await self.terminal("undo", self.host)
            await terminal.hears("Put back 3 files? [y/N] ")
            self.assertIn("\x1b[31m-fresh", terminal.heard)
            terminal.press(keys)
            self.assertEqual(await terminal.ends(), code, terminal.heard)
            self.assertEqual(self.tree(), tree)

    async def test_without_anybody_to_ask_it_wants_a_yes(self) -> None:
        await self.changed()
        self.assertIn("--yes", await self.refused("undo", code=2))
        self.assertIn("--yes", await self.refused("undo", "--json", code=2))
        self.assertEqual(self.tree(), self.after)

    async def test_the_next_one_goes_further_back_and_each_can_be_taken_back(self) -> None:
        self.write("a.txt", "0\n")
        first = await self.ran("echo 1 > a.txt")
        await self.ran("echo 2 > a.txt")
        await self.ran("true")
        answer = json.loads(await self.done("undo", "--yes", "--json"))
        self.assertEqual((self.project / "a.txt").read_text(), "1\n")
        await self.done("undo", "--yes")
        self.assertEqual((self.project / "a.txt").read_text(), "0\n")
        self.assertIn("changed files that are not undone", await self.refused("undo", "--yes"))
        listed = (await self.anna.call("GET", "/changes")).json
        await self.done("undo", "--yes", listed[-1]["run_id"])
        self.assertEqual((self.project / "a.txt").read_text(), "1\n")
        await self.done("undo", "--yes", answer["run_id"][:15])
        self.assertEqual((self.project / "a.txt").read_text(), "2\n")
        self.assertIn("no run nonsense", await self.refused("undo", "--yes", "nonsense"))
        self.assertIn("a.txt", await self.refused("undo", "--yes", first))

    async def test_what_was_put_back_by_hand_is_not_shown_and_the_run_before_is_undone(
        self,
    ) -> None:
        self.write("a.txt", "0\n")
        first = await self.ran("echo 1 > a.txt")
        last = await self.ran("echo 2 > a.txt")
        self.write("a.txt", "1\n")
        child = await self.crushlite("undo", "--dry-run")
        self.assertIn(f"run {last[:8]}: its files are as they were before it", child.errors)
        self.assertIn("-1\n+0\n", child.out.decode())
        self.assertIn("nothing to put back", await self.refused("undo", "--yes", last))
        answer = json.loads(await self.done("undo", "--yes", "--json"))
        self.assertTrue(answer["run_id"].startswith("undo-"))
        self.assertEqual((self.project / "a.txt").read_text(), "0\n")
        self.assertIn("nothing to put back", await self.refused("undo", "--yes", first))

    async def test_what_a_model_wrote_does_not_command_the_terminal(self) -> None:
        await self.ran("printf 'a\\033]0;owned\\007\\033[2Jb\\n' > a.txt")
        told = await self.done("undo", "--dry-run")
        self.assertNotIn("\x1b", told)
        self.assertIn("-a\\x1b]0;owned\\x07\\x1b[2Jb", told)

    async def test_without_another_file_to_put_back_earlier_runs_are_offered(self) -> None:
        await self.ran("echo one > only.txt")
        self.write("only.txt", "by hand\n")
        said = await self.refused("undo", "--yes")
        self.assertIn("only.txt cannot be put back: it has changed since", said)
        self.assertIn("`crushlite undo RUN` undoes one of them", said)
        self.assertNotIn("--partial", said)

    async def test_a_changed_mode_is_told_and_a_binary_file_too(self) -> None:
        self.write("run.sh", "x\n")
        await self.ran("chmod 755 run.sh; printf '\\000' > x.bin")
        child = await self.crushlite("undo", "--dry-run")
        self.assertIn("(its mode becomes 644)", child.out.decode())
        self.assertIn("x.bin cannot be put back: its change was not recorded", child.errors)


class BackupTests(DataCase):
    async def test_beside_a_daemon_and_restored_into_another_directory(self) -> None:
        run_id = await self.ran("true")
        file = self.daemon.root / "copy.db"
        told = await self.done("backup", str(file))
        self.assertIn("1 session, 2 messages, checked", told)
        self.assertIn("exists already", await self.refused("backup", str(file)))
        told = await self.done("backup", str(file), "--force", "--json")
        answer = json.loads(told)
        self.assertEqual((answer["path"], answer["sessions"]), (str(file), 1))
        self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o600)
        folder = self.daemon.root / "restored"
        folder.mkdir()
        file.rename(folder / "crushlite.db")
        stores = Stores(clock=SystemClock(), boot_id="b")
        store = await stores.open(folder)
        runs = await store.read(lambda conn: list_runs(conn, "", None, None))
        await stores.release(store)
        self.assertEqual([run.run_id for run in runs], [run_id])

    async def test_a_data_directory_can_be_named(self) -> None:
        await self.ran("true")
        file = self.daemon.root / "copy.db"
        folder = str(self.project / ".crushlite")
        self.assertIn("1 session", await self.done("backup", "--data-dir", folder, str(file)))

    async def test_a_place_that_cannot_be_is_a_mistake(self) -> None:
        for place in (str(self.project), str(self.project / "nowhere/copy.db")):
            self.assertIn("is not the name of a file", await self.refused("backup", place, code=2))


class ThinkingTests(DataCase):
    async def test_the_workspace_waits_for_whoever_thinks_about_an_answer(self) -> None:
        """A client without an event stream counts as gone after a while."""
        terminal = await self.terminal("sessions", self.host, "delete", "last")
        await terminal.hears("[y/N] ")
        clients = self.daemon.backend.claims.clients(self.anna.workspace["id"])
        (theirs,) = [each for each in clients if each[0] != self.anna.id]
        self.assertEqual(theirs[2], 1, "an open stream")
        terminal.press("y\r")
        self.assertEqual(await terminal.ends(), 0, terminal.seen)


class AloneTests(CommandCase):
    async def test_without_a_daemon(self) -> None:
        child = await self.start("backup", str(self.root / "copy.db"))
        self.assertEqual((await child.end())[0], 1)
        self.assertIn("there is no database", child.errors)
        stores = Stores(clock=SystemClock(), boot_id="b")
        await stores.release(await stores.open(self.project / ".crushlite"))
        code, told, errors = await self.run_process("backup", str(self.root / "copy.db"))
        self.assertEqual(code, 0, errors)
        self.assertIn("0 sessions, 0 messages, checked", told)
        self.assertFalse(self.socket.exists())


class CollectTests(DataCase):
    async def aged(self, *sessions: str, days: float = 40) -> None:
        """Make sessions look as if they had not been used for so long."""
        store = self.daemon.backend.get(self.anna.workspace["id"]).store.store
        at = int(self.daemon.clock.now() - days * 86400)

        def work(conn: Any) -> None:
            for sid in sessions:
                conn.execute("UPDATE sessions SET updated_at = ? WHERE id = ?", (at, sid))

        await store.submit(work)

    async def sessions(self) -> set[str]:
        return {session["id"] for session in (await self.anna.call("GET", "/sessions")).json}

    async def test_old_ones_go_and_the_room_comes_back(self) -> None:
        old, young = [await self.anna.session() for _ in range(2)]
        for sid in (old, young):
            shell = {"command": "head -c 90000 /dev/zero | tr '\\0' x"}
            for _ in range(20):
                await self.anna.call("POST", f"/agent/sessions/{sid}/shell", shell)
        await self.aged(old)
        told = await self.done("gc", "--older", "30d", "--dry-run")
        self.assertIn("1 session would go, about 1 MiB", told)
        self.assertIn("40 d ago", told)
        self.assertEqual(await self.sessions(), {self.session, old, young})
        told = await self.done("gc", "--older", "30d")
        self.assertRegex(told, r"1 session deleted, about 1 MiB; the file is [1-9]\d* (KiB|MiB)")
        self.assertEqual(await self.sessions(), {self.session, young})
        await self.anna.events.wait_for("session", action="deleted", id=old)
        self.assertIn("nothing is that old", await self.done("gc", "--older", "30d"))

    async def test_on_a_terminal_it_shows_what_would_go_and_asks(self) -> None:
        old = await self.anna.session("forgotten")
        await self.aged(old)
        for keys, code, left in (("\r", 1, {old}), ("n\r", 1, {old}), ("y\r", 0, set())):
            terminal = await self.terminal("gc", self.host, "--older", "30d")
            await terminal.hears("Delete 1 session, about ")
            self.assertRegex(terminal.seen, rf"{old[:8]}  40 d ago  .*  forgotten\n")
            self.assertEqual(await self.sessions(), {self.session, old})
            terminal.press(keys)
            self.assertEqual(await terminal.ends(), code, terminal.seen)
            self.assertEqual(await self.sessions(), {self.session} | left)
        self.assertIn("\n1 session deleted", terminal.seen)
        self.assertEqual(terminal.seen.count("forgotten"), 1)

    async def test_on_a_terminal_yes_and_dry_run_ask_nothing(self) -> None:
        old = await self.anna.session()
        await self.aged(old)
        for flag, left in (("--dry-run", {old}), ("--yes", set())):
            terminal = await self.terminal("gc", self.host, "--older", "30d", flag)
            self.assertEqual(await terminal.ends(), 0, terminal.seen)
            self.assertEqual(await self.sessions(), {self.session} | left)

    async def test_ctrl_c_at_the_question_deletes_nothing(self) -> None:
        await self.aged(self.session)
        terminal = await self.terminal("gc", self.host, "--older", "30d")
        await terminal.hears("[y/N] ")
        terminal.press("\x03")
        self.assertEqual(await terminal.ends(), 130, terminal.seen)
        self.assertNotIn("Traceback", terminal.seen)
        self.assertEqual(await self.sessions(), {self.session})

    async def test_what_runs_is_left_alone(self) -> None:
        idle = await self.anna.session()
        await self.anna.prompt(self.session, "hello")
        run = await self.daemon.entered(1)
        await self.aged(self.session, idle)
        child = await self.crushlite("gc", "--older", "30d", "--json")
        answer = json.loads(child.out)
        self.assertEqual([session["id"] for session in answer["sessions"]], [idle])
        self.assertIn("something is running", child.errors)
        self.assertEqual(await self.sessions(), {self.session})
        run.release()
        done = await self.anna.events.wait_for("run_complete")
        self.assertIsNone(done["cancelled"])

    async def test_what_somebody_looks_at_is_left_alone(self) -> None:
        body = {"session_id": self.session}
        await self.anna.call("POST", f"/current-session?client_id={self.anna.id}", body)
        await self.aged(self.session)
        self.assertIn("nothing is that old", await self.done("gc", "--older", "30d"))

    async def test_an_age_must_be_one(self) -> None:
        for text in ("", "30", "d", "-1d", "1.5d", "30days", "9999999d"):
            with self.subTest(text):
                self.assertIn("is no age", await self.refused("gc", f"--older={text}", code=2))
        self.assertIn("--older", await self.refused("gc", code=2))
        self.assertEqual(
            [age(text) for text in ("2w", "1d", "3h", "5m", "7s")], [1209600, 86400, 10800, 300, 7]
        )

    def test_sizes_are_for_people(self) -> None:
        sizes = [size(number) for number in (0, 1023, 1024, 5 << 20, 7 << 30, 3 << 40)]
        self.assertEqual(sizes, ["0 B", "1023 B", "1 KiB", "5 MiB", "7 GiB", "3072 GiB"])
