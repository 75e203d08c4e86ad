"""view: windows of files of any size, names that do not exist, images."""

from __future__ import annotations

import base64
import json
import os
import struct
from pathlib import Path
from typing import Any
from unittest import mock

from crushlite.coder.images import image_problem, image_type
from crushlite.coder.tools import base, view
from crushlite.coder.tools.base import view_lines
from crushlite.fake_model import End, Say
from crushlite.worktree import names, paths
from tests.support.configured import ConfiguredTestCase, use
from tests.support.images import png
from tests.support.tools import ToolTestCase

NOT_TEXT: list[Any] = [None, 7, 1.5, True, [], {}, ["a"], "half \ud800"]


class ViewTests(ToolTestCase):
    async def test_a_file_is_shown_with_line_numbers_and_recorded_as_read(self) -> None:
        (self.root / "a.py").write_text("one\ntwo\n")
        outcome = await self.use("view", file_path="a.py")
        self.assertEqual(outcome.content, "<file>\n     1|one\n     2|two\n</file>")
        path = str(self.root / "a.py")
        self.assertEqual(json.loads(outcome.metadata), {"file_path": path, "content": "one\ntwo"})
        self.assertEqual((self.turn.read, self.turn.asked), ([path], []))

    async def test_a_part_can_be_asked_for_and_the_rest_is_announced(self) -> None:
        (self.root / "a").write_text("".join(f"line {n}\n" for n in range(10)))
        outcome = await self.use("view", file_path="a", offset=2, limit="3")
        self.assertIn("     3|line 2\n     4|line 3\n     5|line 4\n", outcome.content)
        self.assertIn("5 more lines; continue with offset 5", outcome.content)
        self.assert_failed(await self.use("view", file_path="a", offset=10), "past its end")

    async def test_long_lines_and_long_files_are_cut(self) -> None:
        (self.root / "a").write_text("x" * 5000 + "\n" + "y" * 1900 + "\n" + "z\n" * 5000)
        outcome = await self.use("view", file_path="a")
        self.assertIn("x" * view.LINE_CHARS + "...\n", outcome.content)
        self.assertIn("4602 more lines; continue with offset 400", outcome.content)
        outcome = await self.use("view", file_path="a", offset=400, limit=9000)
        self.assertIn("2602 more lines; continue with offset 2400", outcome.content)
        self.context.view_lines = 100
        outcome = await self.use("view", file_path="a")
        self.assertIn("continue with offset 100)", outcome.content)
        (self.root / "b").write_text(("y" * 1900 + "\n") * 1000)
        outcome = await self.use("view", file_path="b")
        self.assertLess(len(outcome.content), view.VIEW_CHARS + 2000)
        self.assertIn("more lines; continue with offset 52)", outcome.content)

    async def test_lines_end_at_line_ends_only(self) -> None:
        (self.root / "a").write_bytes(b"\xef\xbb\xbfa\x0cb\r\nc\xe2\x80\xa8d\r\n")
        outcome = await self.use("view", file_path="a")
        self.assertEqual(outcome.content, "<file>\n     1|a\x0cb\n     2|c\u2028d\n</file>")

    async def test_empty_files_are_shown_and_what_is_no_text_is_refused(self) -> None:
        (self.root / "empty").write_text("")
        self.assertFalse((await self.use("view", file_path="empty")).is_error)
        (self.root / "binary").write_bytes(b"\x7fELF\0\0")
        self.assert_failed(await self.use("view", file_path="binary"), "binary")
        (self.root / "latin").write_bytes(b"caf\xe9")
        self.assert_failed(await self.use("view", file_path="latin"), "UTF-8")
        self.assert_failed(await self.use("view", file_path="."), "directory")
        (self.root / "a.pdf").write_bytes(b"%PDF-1.7\n")
        self.assert_failed(await self.use("view", file_path="a.pdf"), "pdftotext")
        with open(self.root / "big", "wb") as file:
            file.truncate(paths.FILE_BYTES + 1)
        self.assert_failed(await self.use("view", file_path="big"), "binary")

    async def test_view_asks_outside_the_workspace_and_shows_where(self) -> None:
        secret = self.outside / "secret.txt"
        outcome = await self.use("view", file_path="../outside/secret.txt", limit=5)
        self.assert_denied(outcome, "nobody allowed that")
        asked = self.turn.asked[0]
        self.assertEqual((asked.tool, asked.action, asked.path), ("view", "read", str(secret)))
        self.assertEqual(asked.params, {"file_path": str(secret), "offset": 0, "limit": 5})
        self.assertEqual(asked.call_id, "call-1")
        self.allow()
        self.assertIn("secret of", (await self.use("view", file_path=str(secret))).content)

    async def test_wrong_arguments_are_explained(self) -> None:
        for wrong in NOT_TEXT:
            self.assert_failed(await self.use("view", file_path=wrong))
        for wrong in (-1, "x", 1.5, [], {}, True, 10**30, "9" * 400, float("nan")):
            self.assert_failed(await self.use("view", file_path="a", offset=wrong), "offset")


class WindowTests(ToolTestCase):
    """A file that is too large to be changed is read only as far as it is shown."""

    async def asyncSetUp(self) -> None:
        await super().asyncSetUp()
        self.total = 200_000
        with open(self.root / "log", "w", encoding="utf-8") as file:
            file.writelines(f"line {n} with some more text\r\n" for n in range(self.total))
        self.assertGreater(os.path.getsize(self.root / "log"), paths.FILE_BYTES)

    async def test_every_line_can_be_reached(self) -> None:
        for offset in (0, 1, 25_000, 31_234, self.total - 2):
            outcome = await self.use("view", file_path="log", offset=offset, limit=2)
            lines = [f"{n + 1:6}|line {n} with some more text" for n in (offset, offset + 1)]
            self.assertIn("\n".join(["<file>", *lines, "</file>"]), outcome.content)
            more = f"continue with offset {offset + 2}" in outcome.content
            self.assertEqual(more, offset + 2 < self.total)
        outcome = await self.use("view", file_path="log")
        self.assertIn("   400|line 399", outcome.content)
        self.assertIn("(there are more lines; continue with offset 400)", outcome.content)
        for offset in (self.total, self.total + 5):
            outcome = await self.use("view", file_path="log", offset=offset)
            self.assert_failed(outcome, f"has {self.total} lines; offset {offset} is past its end")

    async def test_a_window_that_takes_too_long_to_find_is_refused_with_advice(self) -> None:
        with mock.patch.object(view, "READ_SECONDS", -1.0):
            outcome = await self.use("view", file_path="log", offset=5)
        self.assert_failed(outcome, "use bash with sed, tail or grep")

    async def test_one_endless_line_is_cut(self) -> None:
        (self.root / "log").write_bytes(b"x" * (paths.FILE_BYTES + 9) + b"\xff")
        outcome = await self.use("view", file_path="log")
        self.assertLess(len(outcome.content), view.LINE_CHARS + 200)
        self.assertIn("x...", outcome.content)

    async def test_what_cannot_be_changed_does_not_count_as_seen(self) -> None:
        await self.use("view", file_path="log")
        self.assertEqual(self.context.seen, {})


class SimilarTests(ToolTestCase):
    async def test_a_name_that_does_not_exist_is_answered_with_similar_ones(self) -> None:
        for name in ("src/app/models.py", "src/settings.py", "Readme.md", "node_modules/models.py"):
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        for wrong, meant in (
            ("models.py", "src/app/models.py"),
            ("src/models.py", "src/app/models.py"),
            ("src/setting.py", "src/settings.py"),
            ("README.md", "Readme.md"),
            ("scr/app/other.py", "src"),
        ):
            for name, more in (("view", {}), ("edit", {"old_string": "a", "new_string": "b"})):
                outcome = await self.use(name, file_path=wrong, **more)
                self.assert_failed(outcome, f"{wrong} does not exist: did you mean {meant}?")
        outcome = await self.use("view", file_path="nothing-like-it")
        self.assert_failed(outcome, "does not exist. Use glob or ls to find it")

    async def test_the_search_is_bounded_and_names_nothing_outside_or_closed(self) -> None:
        (self.root / ".crushlite").mkdir()
        (self.root / ".crushlite" / "key.txt").write_text("")
        os.symlink(self.outside, self.root / "link")
        (self.root / "closed").mkdir()
        (self.root / "closed" / "key.txt").write_text("")
        self.context.own = paths.OwnFolders(self.root, [self.root / "closed"])
        for wrong in ("key.txt", "secret.txt"):
            self.assert_failed(await self.use("view", file_path=wrong), "Use glob or ls")
        (self.root / "deep").mkdir()
        (self.root / "deep" / "a.txt").write_text("")
        with mock.patch.object(names, "ENTRIES", 2):
            self.assert_failed(await self.use("view", file_path="a.txt"), "Use glob or ls")
        self.allow()
        self.assert_failed(await self.use("view", file_path="../outside/secret"), "Use glob")


JPEG = bytes.fromhex("ffd8ffe000104a46494600010100000100010000ffc0000b080003000201011100ffd9")
GIF = b"GIF89a" + struct.pack("<HH", 2, 3) + b"\0\0\0\x3b"
WEBP = b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8L" + struct.pack("<IBI", 9, 0x2F, 1 | 2 << 14)
WEBP += b"\0" * (30 - len(WEBP))


class ImageTests(ToolTestCase):
    async def test_an_image_is_part_of_the_result(self) -> None:
        (self.root / "a.png").write_bytes(png())
        outcome = await self.use("view", file_path="a.png")
        self.assertEqual(outcome.content, "a.png is an image (image/png):")
        self.assertEqual((outcome.mime_type, outcome.is_error), ("image/png", False))
        self.assertEqual(base64.b64decode(outcome.data), png())
        self.assertEqual(self.turn.read, [str(self.root / "a.png")])
        self.assertEqual(json.loads(outcome.metadata)["content"], "")

    async def test_an_image_that_the_model_cannot_take_is_explained(self) -> None:
        (self.root / "a.png").write_bytes(png())
        self.context.images = False
        self.assert_failed(await self.use("view", file_path="a.png"), "takes no images")
        self.context.images = True
        for data, words in (
            (png()[:-1], "damaged"),
            (png()[:40] + b"x" + png()[41:], "damaged"),
            (png(9000, 1), "9000 x 1 pixels"),
            (png(padding=base.IMAGE_BYTES), "make a smaller copy"),
        ):
            (self.root / "a.png").write_bytes(data)
            self.assert_failed(await self.use("view", file_path="a.png"), words)

    async def test_the_images_of_one_run_are_bounded_together(self) -> None:
        data = png(padding=1000)
        (self.root / "a.png").write_bytes(data)
        with mock.patch.object(base, "IMAGES_BYTES", 2 * len(data)):
            for _ in range(2):
                self.assertFalse((await self.use("view", file_path="a.png")).is_error)
            self.assert_failed(await self.use("view", file_path="a.png"), "bytes of images")
            self.turn.run_id = "run-2"
            self.assertFalse((await self.use("view", file_path="a.png")).is_error)

    def test_kinds_and_sizes(self) -> None:
        for data, kind in ((png(), "png"), (JPEG, "jpeg"), (GIF, "gif"), (WEBP, "webp")):
            self.assertEqual((image_type(data), image_problem(data)), (f"image/{kind}", ""))
            for length in range(12, len(data) - 1):
                self.assertTrue(image_problem(data[:length]), (kind, length))
        for data in (b"", b"BM", b"<svg>", b"\x89PNG", b"RIFF1234AVI "):
            self.assertEqual(image_type(data), "")

    def test_a_small_window_shows_fewer_lines(self) -> None:
        shown = [view_lines(window) for window in (0, 4096, 16_384, 32_768, 200_000)]
        self.assertEqual(shown, [400, 100, 163, 327, 400])


class ImagesOfModelsTests(ConfiguredTestCase):
    described = {"supports_attachments": True}

    async def test_an_image_reaches_the_model_in_this_turn_and_in_later_ones(self) -> None:
        kim = await self.join(yolo=True)
        (Path(kim.workspace["path"]) / "a.png").write_bytes(png())
        session = await kim.session()
        self.plan = [use("view", file_path="a.png"), [Say("a square"), End()]]
        self.assertEqual((await self.turn(kim, session, "look"))["text"], "a square")
        self.plan = [[Say("yes"), End()]]
        await self.turn(kim, session, "really?")
        url = f"data:image/png;base64,{base64.b64encode(png()).decode()}"
        _, shown, later = (request["messages"] for request in self.model.requests)
        pictures = [
            part["image_url"]["url"]
            for message in shown
            if isinstance(message["content"], list)
            for part in message["content"]
            if part["type"] == "image_url"
        ]
        self.assertEqual(pictures, [url])
        self.assertEqual(later[: len(shown)], shown, "each request begins with the one before")
