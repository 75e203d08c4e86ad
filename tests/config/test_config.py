"""The configuration: files, merging, expansion, what a project may say, and which secrets stay."""

from __future__ import annotations

import json
import os
import random
import re
import select
import stat
import tempfile
import threading
import unittest
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.config import expand, files, merge
from crushlite.config.catalogue import CATALOGUE
from crushlite.config.files import Roots
from crushlite.config.loading import ConfigFiles, data_directory
from crushlite.config.options import CONTEXT_FILES
from crushlite.config.secrets import redact
from crushlite.config.warnings import Reason
from crushlite.config.writing import remove_value, set_value
from crushlite.errors import BadRequest, ConfigError
from crushlite.protocol.codec import dumps
from crushlite.protocol.config import AgentInfo, Model, SelectedModel
from tests.support.wings import without

if TYPE_CHECKING:
    from collections.abc import Callable

    from crushlite.config.view import Config

JSONObject = dict[str, Any]

MODEL = {"id": "m1", "context_window": 1000, "default_max_tokens": 100}
LAB = {"base_url": "http://lab.example/v1", "api_key": "lab-literal-key-0001", "models": [MODEL]}


class ConfigCase(unittest.TestCase):
    """Configuration files in a temporary directory: none of the real machine is read."""

    def setUp(self) -> None:
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.base = Path(folder.name).resolve()
        self.workspace = self.base / "project"
        self.data_dir = self.workspace / ".crushlite"
        self.roots = Roots(etc=self.base / "etc", home=self.base / "home")
        self.places = {
            "etc": self.base / "etc/crush.json",
            "global": self.base / "home/.config/crush/crush.json",
            "crush": self.base / "home/.local/share/crush/crush.json",
            "own": self.base / "home/.local/share/crushlite/crush.json",
            "project": self.workspace / "crush.json",
            "hidden": self.workspace / ".crush.json",
            "data": self.data_dir / "crush.json",
        }
        self.workspace.mkdir()

    def write(self, place: str | Path, content: JSONObject | str | bytes) -> Path:
        path = self.places[place] if isinstance(place, str) else place
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, dict):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def load(self, env: dict[str, str] | None = None, *, commands: bool = False) -> Config:
        found = ConfigFiles(self.workspace, env or {}, self.roots, self.data_dir, commands)
        found.trust(found.project_files())  # what they say without that is tested in test_trust.py
        return found.load()

    def refused(self, env: dict[str, str] | None = None, *, commands: bool = False) -> str:
        with self.assertRaises(ConfigError) as caught:
            self.load(env, commands=commands)
        return str(caught.exception)

    def assert_warned(self, config: Config, *words: str) -> None:
        shown = [str(warning) for warning in config.warnings]
        found = [text for text in shown if all(word in text for word in words)]
        self.assertTrue(found, f"no warning with {words} in {shown}")


# Files ------------------------------------------------------------------------------------------


class FileTests(ConfigCase):
    def test_each_file_is_stronger_than_the_one_before_it(self) -> None:
        for place, path in self.places.items():
            self.write(place, {"options": {"notifications": place}})
            config = self.load()
            with self.subTest(place):
                self.assertEqual(config.wire("/d")["options"]["notifications"], place)
                self.assertEqual(config.origin("options.notifications"), path)
        self.assertEqual(config.files, tuple(self.places.values()))

    def test_folders_between_the_git_root_and_the_workspace_speak_in_order(self) -> None:
        outer = self.workspace
        self.workspace = outer / "sub" / "deep"
        self.workspace.mkdir(parents=True)
        self.write(self.base / "crush.json", {"options": {"disabled_tools": ["above"]}})
        for folder in (outer, outer / "sub", self.workspace):
            self.write(folder / "crush.json", {"options": {"disabled_tools": [folder.name]}})
        self.assertEqual(self.load().options.disabled_tools, ("deep",))
        (outer / ".git").write_text("gitdir: elsewhere\n")
        self.assertEqual(self.load().options.disabled_tools, ("project", "sub", "deep"))

    def test_missing_and_empty_files_are_skipped(self) -> None:
        self.assertEqual(self.load().files, ())
        self.write("global", "")
        self.write("project", " \n\t")
        self.write("own", {})
        self.assertEqual(self.load().files, (self.places["own"],))
        self.assertEqual(self.load().warnings, ())

    def test_variables_move_the_files_of_the_machine(self) -> None:
        elsewhere = self.base / "elsewhere"
        for folder in ("cfg/crush", "named", "data/crush", "data/crushlite", "state"):
            self.write(elsewhere / folder / "crush.json", {})
        xdg = {"XDG_CONFIG_HOME": f"{elsewhere}/cfg", "XDG_DATA_HOME": f"{elsewhere}/data"}
        own = elsewhere / "data/crushlite/crush.json"
        found = [elsewhere / "cfg/crush/crush.json", elsewhere / "data/crush/crush.json", own]
        self.assertEqual(self.load(xdg).files, tuple(found))
        self.assertEqual(ConfigFiles(self.workspace, xdg, self.roots, self.data_dir).file(0), own)
        crush = {"CRUSH_GLOBAL_CONFIG": f"{elsewhere}/named"}
        crush["CRUSH_GLOBAL_DATA"] = f"{elsewhere}/state"
        found = [elsewhere / "named/crush.json", elsewhere / "state/crush.json", own]
        self.assertEqual(self.load(xdg | crush).files, tuple(found))

    def test_relative_variables_are_ignored(self) -> None:
        home = Path("/home/kim")
        for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "CRUSH_GLOBAL_CONFIG"):
            env = {"HOME": str(home), name: "sub/folder"}
            self.assertEqual(Roots().config(env), home / ".config/crush")
            self.assertEqual(Roots().own_data(env), home / ".local/share/crushlite")
        self.assertTrue(Roots().config({"HOME": "relative"}).is_absolute())

    def test_a_file_of_another_user_is_skipped_with_a_warning(self) -> None:
        self.write("global", {"options": {"debug": True}})
        for place in ("project", "hidden", "data"):
            self.write(place, {"options": {"disabled_tools": [place]}})
        foreign = {self.places["hidden"], self.places["data"]}

        def owners(path: Path) -> list[int]:
            return [os.geteuid() + (1 if path in foreign else 0)]

        with mock.patch.object(files, "_owners", owners):
            config = self.load()
        self.assertEqual(config.options.disabled_tools, ("project",))
        self.assertTrue(config.options.debug)
        for path in foreign:
            self.assert_warned(config, str(path), "another user")

    def test_the_file_itself_must_be_the_workspace_owner_s_not_only_the_link(self) -> None:
        self.write("project", {})
        owner = os.stat(self.workspace).st_uid
        with mock.patch.object(files, "_owners", return_value=[owner + 1]):
            self.assertEqual(self.load().files, ())

    def test_a_shared_data_directory_may_be_the_daemon_s(self) -> None:
        self.write("project", {})
        self.write("data", {})
        workspace = self.workspace

        def owners(path: Path) -> list[int]:
            return [os.geteuid() + (1 if path == workspace else 0)]

        with mock.patch.object(files, "_owners", owners):
            self.assertEqual(self.load().files, (self.places["data"],))

    def test_what_is_no_regular_file_is_refused_without_waiting_for_it(self) -> None:
        os.mkfifo(self.places["project"])
        self.assertIn("not a regular file", self.refused())
        self.places["project"].unlink()
        self.places["project"].mkdir()
        self.assertIn("not a regular file", self.refused())
        self.places["project"].rmdir()
        self.places["project"].symlink_to("crush.json")
        self.assertIn("cannot be read", self.refused())

    def test_a_huge_file_is_refused(self) -> None:
        self.write("project", b'{"a":"' + b"x" * files.MAX_FILE + b'"}')
        self.assertIn("larger than", self.refused())

    def test_the_data_directory_option(self) -> None:
        env = {"HOME": "/home/kim"}
        self.assertIsNone(data_directory(self.workspace, env, self.roots))
        self.write("project", {"options": {"data_directory": "state/here"}})
        found = data_directory(self.workspace, env, self.roots)
        self.assertEqual(found, self.workspace / "state/here")
        for path in ("../out", "/etc", "~/x", "a/../../b"):
            self.write("project", {"options": {"data_directory": path}})
            self.assertIsNone(data_directory(self.workspace, env, self.roots))
            self.assert_warned(self.load(), "options.data_directory", "out of the workspace")
        for path, place in (("/srv/d", "/srv/d"), ("~/d", "/home/kim/d")):
            self.write("global", {"options": {"data_directory": path}})
            self.assertEqual(data_directory(self.workspace, env, self.roots), Path(place))
        self.write("data", {"options": {"data_directory": "loop"}})
        self.assertEqual(self.load().options.data_directory, "~/d")


class BrokenFileTests(ConfigCase):
    def test_a_broken_file_is_named_with_the_place(self) -> None:
        for place in self.places:
            path = self.write(place, '{"options": {\n  "debug": tru\n}}')
            message = self.refused()
            with self.subTest(place):
                self.assertIn(str(path), message)
                self.assertIn("line 2 column 12", message)
            path.unlink()

    def test_the_error_has_a_status_and_a_code(self) -> None:
        self.write("project", "[]")
        with self.assertRaises(BadRequest) as caught:
            self.load()
        self.assertEqual((caught.exception.status, caught.exception.code), (400, "bad_config"))

    def test_a_hundred_damaged_files_are_all_refused_by_name(self) -> None:
        good = json.dumps({"providers": {"lab": LAB}, "options": {"debug": True}}, indent=1)
        seeded = random.Random(11)
        refused = 0
        while refused < 100:
            damaged = damage(good.encode(), seeded)
            path = self.write("project", damaged)
            if is_strict_json_object(damaged):
                continue
            self.assertIn(str(path), self.refused(), damaged)
            refused += 1

    def test_what_json_readers_often_let_pass(self) -> None:
        deep = "[" * 100 + "]" * 100
        for content in (
            '{"options":{},"options":{}}',
            '{"a":NaN}',
            '{"a":1e999}',
            '{"a":"\\ud800"}',
            '{"a":' + deep + "}",
            "\ufeff{}",
            '{} {"b":1}',
            "null",
            '"text"',
        ):
            with self.subTest(content):
                self.write("own", content)
                self.assertIn(str(self.places["own"]), self.refused())

    def test_a_known_key_of_the_wrong_type_is_refused_by_its_path(self) -> None:
        cases: list[tuple[JSONObject, str]] = [
            ({"options": []}, "options must be an object, not an array"),
            ({"options": {"debug": "yes"}}, "options.debug must be true or false, not a string"),
            ({"options": {"context_paths": "x"}}, "options.context_paths must be an array"),
            ({"options": {"context_paths": [1]}}, "options.context_paths.0 must be a string"),
            ({"options": {"context_paths": [None]}}, "options.context_paths[0] must not be null"),
            ({"providers": {"a.b": 1}}, r"providers.a\.b must be an object, not a number"),
            ({"providers": {"x": {"models": [{"context_window": 1.5}]}}}, "context_window must be"),
            ({"providers": {"x": {"models": [{"context_window": True}]}}}, "not true or false"),
            ({"providers": {"x": {"models": [{"context_window": -1}]}}}, "is negative"),
            ({"models": {"large": {"max_tokens": 10**12}}}, "models.large.max_tokens is out of"),
            ({"providers": {"x": {"extra_headers": {"A": 1}}}}, "extra_headers.A must be a string"),
            ({"options": {"initialize_as": "x" * 40_000}}, "is longer than"),
            ({"permissions": {"allowed_tools": ["t"] * 1001}}, "has more than 1000 entries"),
            ({"providers": {"x\ny": 5}}, r"providers.x\ny must be"),
        ]
        for document, words in cases:
            for place in ("global", "project"):
                with self.subTest(words, place=place):
                    path = self.write(place, document)
                    message = self.refused()
                    self.assertIn(words, message)
                    self.assertIn(str(path), message)
                    self.assertNotIn("\n", message)
                    path.unlink()


def damage(content: bytes, seeded: random.Random) -> bytes:
    at = seeded.randrange(len(content))
    kind = seeded.randrange(4)
    if kind == 0:
        return content[:at]
    if kind == 1:
        return content[:at] + content[at + 1 :]
    if kind == 2:
        return content[:at] + bytes([seeded.randrange(256)]) + content[at + 1 :]
    return content[:at] + bytes([seeded.randrange(128)]) + content[at:]


def is_strict_json_object(content: bytes) -> bool:
    """Whether a damaged file still holds an object, or nothing: then it need not be refused."""
    if not content.strip():
        return True
    try:
        json.loads(content.decode("utf-8"))
    except ValueError:
        return False
    return True


class WarningTests(ConfigCase):
    def test_a_warning_has_a_reason_a_file_and_a_key(self) -> None:
        (self.workspace / "crushrc").write_text("")
        sent = {"extra_headers": {"Host": "x"}, "api_key": "$LAB_KEY"}
        own = {"base_url": "http://own.example", "models": [MODEL]} | sent
        gone = {"provider": "gone", "model": "m"}
        models = {"large": {"provider": "lab", "model": "new"}, "small": gone}
        hooks = {"pre_tool_use": [{"command": "x"}]}
        useless = {"tools": {"ls": {"max_depth": 3}}, "optoins": {}, "hooks": hooks}
        useless["agents"] = {"x y": {"command": "z"}}
        useless["mcp"] = {"m": {"command": ""}}
        rules = {"rules": [{"tool": "bash"}]}
        providers = {"lab": LAB, "bad": {}}
        self.write(
            "global", {"providers": providers, "models": models, **useless, "permissions": rules}
        )
        script = self.places["global"].with_name("crushrc")
        self.write(script, "optoin debug true").chmod(0o600)
        moved = {"base_url": "http://evil.example"}
        self.write(
            "project",
            {
                "providers": {"lab": moved, "own": own},
                "permissions": {"allowed_tools": ["bash"]},
                "env": {"A": "b"},
            },
        )
        outside, project = self.places["global"], self.places["project"]
        self.load({"PATH": os.environ["PATH"]})  # trusts what was written so far
        self.write("hidden", {"models": {"small": gone}})
        env = {"LAB_KEY": "k1", "PATH": os.environ["PATH"]}
        files = ConfigFiles(self.workspace, env, self.roots, self.data_dir)
        with without("hooks"):
            found = [(w.reason, w.file, w.key) for w in files.load().warnings]
        wanted = [
            (Reason.FILE_SKIPPED, self.workspace / "crushrc", ""),
            (Reason.CALL_IGNORED, script, "optoin"),
            (Reason.NO_EFFECT, outside, "tools.ls"),
            (Reason.TOOLS_REFUSED, outside, "hooks.pre_tool_use"),
            (Reason.KEY_UNKNOWN, outside, "optoins"),
            (Reason.UNTRUSTED, self.places["hidden"], ""),
            (Reason.NOT_FOR_PROJECTS, project, "env"),
            (Reason.TOOLS_NOT_ADDED, project, "permissions.allowed_tools"),
            (Reason.VARIABLE_WITHHELD, project, "providers.own.api_key"),
            (Reason.PROVIDER_MOVED, project, "providers.lab"),
            (Reason.PROVIDER_LEFT_OUT, outside, "providers.bad"),
            (Reason.AGENT_LEFT_OUT, outside, "agents.x y"),
            (Reason.SERVER_LEFT_OUT, outside, "mcp.m"),
            (Reason.HEADER_LEFT_OUT, project, "providers.own.extra_headers.Host"),
            (Reason.MODEL_UNLISTED, outside, "models.large"),
            (Reason.MODEL_UNKNOWN, outside, "models.small"),
            (Reason.RULE_INCOMPLETE, outside, "permissions.rules.0"),
        ]
        self.assertCountEqual(found, wanted)
        self.assertEqual({reason for reason, _, _ in wanted}, set(Reason))


# Merging ----------------------------------------------------------------------------------------


class MergeTests(ConfigCase):
    def test_objects_merge_arrays_grow_scalars_are_replaced_null_is_nothing(self) -> None:
        self.write("etc", {"options": {"disabled_tools": ["a"], "debug": True, "tui": {"x": 1}}})
        self.write("global", {"options": {"disabled_tools": ["b", "a"], "debug": None}})
        self.write("own", {"options": {"tui": {"y": [1]}, "initialize_as": "NOTES.md"}})
        self.write("crush", {"options": None})
        config = self.load()
        self.assertEqual(config.options.disabled_tools, ("a", "b"))
        self.assertTrue(config.options.debug)
        self.assertEqual(config.options.tui, {"x": 1, "y": [1]})
        self.assertEqual(config.options.initialize_as, "NOTES.md")

    def test_a_clash_of_types_is_an_error_that_names_both_files(self) -> None:
        self.write("global", {"options": {"tui": {"a": {"b": 1}}}})
        self.write("own", {"options": {"tui": {"a": [1]}}})
        message = self.refused()
        for words in ("options.tui.a", str(self.places["own"]), str(self.places["global"])):
            self.assertIn(words, message)

    def test_every_value_knows_its_file(self) -> None:
        self.write("etc", {"options": {"debug": True, "tui": {"a": 1}}})
        self.write("own", {"options": {"tui": {"b.c": 2}}})
        config = self.load()
        self.assertEqual(config.origin("options.debug"), self.places["etc"])
        self.assertEqual(config.origin("options.tui.a"), self.places["etc"])
        self.assertEqual(config.origin(r"options.tui.b\.c"), self.places["own"])
        self.assertEqual(config.origin("options.tui"), self.places["own"])
        self.assertIsNone(config.origin("options.nothing"))

    def test_recent_models_are_replaced_not_joined(self) -> None:
        for place, name in (("crush", "old"), ("own", "new")):
            recent = [{"model": name, "provider": "lab"}]
            self.write(place, {"recent_models": {"large": recent}})
        self.assertEqual(self.load().wire("/d")["recent_models"]["large"][0]["model"], "new")
        self.assertEqual(len(self.load().wire("/d")["recent_models"]["large"]), 1)

    def test_a_merged_value_is_no_alias_of_a_document(self) -> None:
        merged = merge.Merged()
        document: JSONObject = {"a": {"b": [{"c": 1}]}}
        merged.add(document, files.Source(Path("x"), "machine"))
        merged.add({"a": {"b": [2]}}, files.Source(Path("y"), "machine"))
        self.assertEqual(document, {"a": {"b": [{"c": 1}]}})
        merged.get("a", "b")[0]["c"] = 5
        self.assertEqual(document["a"]["b"][0]["c"], 1)
        self.assertIsNone(merged.get("a", "b", "c"))
        self.assertEqual(repr(merged), "<Merged keys=['a']>")

    def test_options_have_defaults(self) -> None:
        options = self.load().options
        self.assertEqual(options.context_paths, tuple(sorted(CONTEXT_FILES)))
        self.assertEqual(options.initialize_as, "AGENTS.md")
        self.assertEqual((options.debug, options.disable_auto_summarize), (False, False))
        self.assertEqual((options.data_directory, options.disabled_tools), ("", ()))

    def test_context_paths_join_the_built_in_ones_sorted_and_once(self) -> None:
        self.write("global", {"options": {"context_paths": ["zz.md", "AGENTS.md"]}})
        self.write("project", {"options": {"context_paths": ["aa.md", "zz.md", ""]}})
        paths = self.load().options.context_paths
        self.assertEqual(paths, tuple(sorted({*CONTEXT_FILES, "aa.md", "zz.md"})))


# Expansion --------------------------------------------------------------------------------------


class ExpansionTests(ConfigCase):
    def key(self, text: str, env: dict[str, str] | None = None, *, commands: bool = False) -> str:
        self.write("global", {"providers": {"lab": LAB | {"api_key": text}}})
        return self.load(env, commands=commands).providers["lab"].api_key

    def test_variables(self) -> None:
        env = {"V": "val", "EMPTY": "", "CRUSH_W": "ours", "W": "theirs"}
        for text, value in (
            ("$V", "val"),
            ("${V}", "val"),
            ("a${V}b$V.c", "avalbval.c"),
            ("$NONE", ""),
            ("x$EMPTY", "x"),
            ("${NONE:-fall back}", "fall back"),
            ("${EMPTY:-back}", "back"),
            ("${V:-back}", "val"),
            ("${V:?needed}", "val"),
            ("${NONE:-${EMPTY:-$V}}", "val"),
            ("${NONE:-}", ""),
            ("$W", "ours"),
            (r"\$V", "$V"),
            ("$", "$"),
            ("a$1$", "a$1$"),
            ("5$ and ${V}$", "5$ and val$"),
        ):
            with self.subTest(text):
                self.assertEqual(self.key(text, env), value)

    def test_without_a_required_variable_its_provider_is_left_out_with_the_message(self) -> None:
        for text, words in (
            ("${NONE:?run login}", "NONE is not set: run login"),
            ("${N:?}", "N is"),
        ):
            self.write("global", {"providers": {"lab": LAB | {"api_key": text}, "b": LAB}})
            config = self.load({})
            self.assertEqual(set(config.providers), {"b"})
            place = str(self.places["global"])
            self.assert_warned(config, words, place, "providers.lab.api_key")

    def test_what_cannot_be_read_as_an_expansion_is_an_error(self) -> None:
        nested = "${A:-" * 9 + "x" + "}" * 9
        for text in ("${V", "${V:+x}", "${1}", "${}", "$(cmd", "${A:-${B}", "$('x)", nested):
            with self.subTest(text):
                self.write("global", {"providers": {"lab": LAB | {"api_key": text}}})
                self.assertIn("providers.lab.api_key", self.refused(commands=True))

    def test_address_and_headers_are_expanded_the_body_is_not(self) -> None:
        lab = LAB | {
            "base_url": "http://$HOST:${PORT:-80}/v1",
            "extra_headers": {"X-A": "$A", "X-None": "$NONE", "X-Plain": "plain"},
            "extra_body": {"text": "$A"},
        }
        self.write("global", {"providers": {"lab": lab}})
        provider = self.load({"HOST": "h", "A": "a"}).providers["lab"]
        self.assertEqual(provider.base_url, "http://h:80/v1")
        self.assertEqual(provider.extra_headers, {"X-A": "a", "X-Plain": "plain"})
        self.assertEqual(provider.extra_body, {"text": "$A"})

    def test_the_variables_are_the_client_s(self) -> None:
        with mock.patch.dict(os.environ, {"LAB_KEY": "the daemon's"}):
            self.assertEqual(self.key("$LAB_KEY"), "")
            self.assertEqual(self.key("$LAB_KEY", {"LAB_KEY": "mine"}), "mine")

    def test_a_value_that_no_header_can_carry_leaves_the_provider_out(self) -> None:
        for value in ("two\nlines", "caf\xe9", "nul\0", "tab\tbed"):
            self.write("global", {"providers": {"lab": LAB | {"api_key": "$V"}}})
            config = self.load({"V": value})
            self.assertEqual(config.providers, {})
            self.assert_warned(config, "providers.lab", "not fit for HTTP")
        self.assertEqual(self.key("$V", {"V": " key\n"}), "key")

    def test_headers_that_would_break_the_request_are_left_out(self) -> None:
        headers = {"Host": "x", "content-length": "5", "a b": "c", "": "d", "X-Good": "y"}
        self.write("global", {"providers": {"lab": LAB | {"extra_headers": headers}}})
        config = self.load()
        self.assertEqual(config.providers["lab"].extra_headers, {"X-Good": "y"})
        self.assert_warned(config, "extra_headers.Host", "no header to set")


class CommandTests(ConfigCase):
    def lab(self, text: str, place: str = "global") -> None:
        self.write(place, {"providers": {"lab": LAB | {"api_key": text}}})

    def key(self, text: str, env: dict[str, str]) -> str:
        self.lab(text)
        return self.load(env, commands=True).providers["lab"].api_key

    def test_a_command_needs_the_flag(self) -> None:
        self.lab("$(touch ran)")
        message = self.refused({"PATH": os.defpath})
        self.assertIn("--allow-config-commands", message)
        self.assertIn(str(self.places["global"]), message)
        self.assertFalse((self.places["global"].parent / "ran").exists())

    def test_a_command_runs_in_a_shell_beside_its_file(self) -> None:
        env = {"PATH": os.defpath, "V": "a b"}
        self.assertEqual(self.key("x-$(echo \"$V)\" '('; echo)-y", env), "x-a b) (-y")
        self.assertEqual(self.key("$(echo $(echo in))", env), "in")
        self.assertEqual(self.key("$(pwd)", env), str(self.places["global"].parent))
        # What a variable holds is a value, not a script.
        self.assertEqual(self.key("$V", {"V": "$(echo no)"}), "$(echo no)")

    def test_a_failing_command_is_an_error_that_repeats_nothing_of_it(self) -> None:
        self.lab("$(echo canary-output; echo canary-error >&2; exit 3)")
        message = self.refused({"PATH": os.defpath}, commands=True)
        self.assertIn("status 3", message)
        self.assertNotIn("canary", message)

    def test_a_command_that_hangs_floods_or_leaves_children_is_ended(self) -> None:
        for command in (
            "sleep 60",
            "sleep 60 & sleep 60",
            "exec >&-; sleep 60",
            "yes",
            "sleep 60 &",
        ):
            with self.subTest(command), mock.patch.object(expand, "COMMAND_SECONDS", 0.3):
                self.lab(f"$({command})")
                self.assertIn(
                    "did not end in 0.3 s", self.refused({"PATH": os.defpath}, commands=True)
                )

    def test_children_of_a_command_end_with_it(self) -> None:
        fifo = self.base / "fifo"
        os.mkfifo(fifo)
        reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        self.addCleanup(os.close, reader)
        # It is ended for writing too much, which begins when its child has the fifo: no timing.
        child = f"(echo; : > {self.base}/begun; exec sleep 60) > {fifo}"
        self.lab(f"$({child} & until [ -e {self.base}/begun ]; do sleep 0.01; done; yes)")
        with mock.patch.object(expand, "COMMAND_SECONDS", 30.0):
            self.refused({"PATH": os.defpath}, commands=True)
        self.assertEqual(os.read(reader, 9), b"\n")
        poll = select.poll()
        poll.register(reader, 0)  # hang-ups only: no writer is left
        self.assertEqual(poll.poll(30_000), [(reader, select.POLLHUP)])

    def test_no_shell_is_an_error_too(self) -> None:
        self.lab("$(echo x)")
        with mock.patch("subprocess.Popen", side_effect=FileNotFoundError):
            self.assertIn("cannot be started", self.refused(commands=True))

    def test_commands_of_projects_are_never_run(self) -> None:
        for place in ("project", "data"):
            own = LAB | {"base_url": "http://own.example", "api_key": f"$(touch {self.base}/ran)"}
            path = self.write(place, {"providers": {"own": own}})
            for commands in (True, False):
                config = self.load({"PATH": os.defpath}, commands=commands)
                self.assertEqual(config.providers, {})
                self.assert_warned(config, str(path), "providers.own", "not run")
            path.unlink()
        self.assertFalse((self.base / "ran").exists())

    def test_a_disabled_provider_is_not_expanded(self) -> None:
        self.write("global", {"providers": {"lab": LAB | {"api_key": "$(x)", "disable": True}}})
        self.assertEqual(self.load().providers, {})


# Providers and models ---------------------------------------------------------------------------


class ProviderTests(ConfigCase):
    def test_without_any_file_the_usual_variables_give_keys(self) -> None:
        for known in CATALOGUE.values():
            with self.subTest(known.id):
                config = self.load({known.key: "k-123"})
                self.assertEqual(list(config.providers), [known.id])
                provider = config.providers[known.id]
                self.assertEqual(provider.base_url, known.base_url)
                self.assertEqual((provider.api_key, provider.type), ("k-123", known.type))
                assert config.large is not None
                assert config.small is not None
                self.assertEqual(config.large.model, known.large)
                self.assertEqual(config.small.model, known.small)
                self.assertEqual(config.choice().agent, "coder")
                self.assertIn(known.key, config.choice().reason)

    def test_the_catalogue_is_whole(self) -> None:
        self.assertLessEqual({"openai", "anthropic", "openrouter"}, set(CATALOGUE))
        for known in CATALOGUE.values():
            for model in (known.large, known.small):
                with self.subTest(known.id, model=model.id):
                    self.assertGreater(model.context_window, model.default_max_tokens)
                    self.assertGreater(model.default_max_tokens, 0)
                    self.assertGreater(model.cost_per_1m_out, model.cost_per_1m_in)
                    self.assertTrue(known.base_url.startswith("https://"))

    def test_nothing_configured_is_offline_and_says_why(self) -> None:
        config = self.load()
        self.assertEqual((config.providers, config.large, config.small), ({}, None, None))
        self.assertEqual(config.choice().agent, "offline")
        self.assertIn("OPENAI_API_KEY", config.choice().reason)

    def test_a_known_provider_without_a_key_is_left_out(self) -> None:
        self.assertEqual(self.load({"OPENAI_API_KEY": ""}).warnings, ())
        self.write("global", {"providers": {"openai": {"api_key": "$MISSING"}}})
        config = self.load()
        self.assertEqual(config.providers, {})
        self.assert_warned(config, "providers.openai", "it has no key")

    def test_a_bad_key_in_the_environment_is_no_key(self) -> None:
        self.assertEqual(self.load({"OPENAI_API_KEY": "two\nlines"}).providers, {})

    def test_a_file_overrides_the_catalogue(self) -> None:
        large = CATALOGUE["openai"].large.id
        section = {
            "name": "Proxy",
            "base_url": "http://proxy.example/v1",
            "models": [{"id": large, "context_window": 5}, {"id": "extra"}],
        }
        self.write("global", {"providers": {"openai": section}})
        provider = self.load({"OPENAI_API_KEY": "k"}).providers["openai"]
        self.assertEqual((provider.name, provider.type), ("Proxy", "openai"))
        self.assertEqual(provider.base_url, "http://proxy.example/v1")
        self.assertEqual(provider.models[0].context_window, 5)
        self.assertEqual([m.id for m in provider.models][2:], ["extra"])
        self.assertGreater(CATALOGUE["openai"].large.context_window, 5)

    def test_the_catalogue_can_be_turned_off(self) -> None:
        self.write("global", {"options": {"disable_default_providers": True}})
        self.assertEqual(self.load({"OPENAI_API_KEY": "k"}).providers, {})

    def test_a_custom_provider_needs_an_address(self) -> None:
        for section, words in (
            ({"models": [MODEL]}, "no base_url"),
            ({"base_url": "ftp://x", "models": [MODEL]}, "not an http"),
            ({"base_url": "lab.example", "models": [MODEL]}, "not an http"),
            ({"base_url": "http://", "models": [MODEL]}, "not an http"),
            ({"base_url": "http://a b/", "models": [MODEL]}, "not an http"),
            ({"base_url": "http://x:99999", "models": [MODEL]}, "not an http"),
            ({"base_url": "http://u:canary@x", "models": [MODEL]}, "user name"),
            ({"base_url": "http://x", "discover_models": False}, "lists no models"),
            ({"base_url": "http://x", "models": [{"name": "n"}]}, "models[0] has no id"),
            ({"base_url": "http://x", "models": [MODEL], "type": "bedrock"}, "not supported"),
            ({"base_url": "http://x", "models": [MODEL], "type": "canary"}, "not supported"),
        ):
            with self.subTest(words, section=section):
                self.write("global", {"providers": {"lab": section}})
                config = self.load()
                self.assertEqual(config.providers, {})
                self.assert_warned(config, "providers.lab is left out", words)
                self.assertNotIn("canary", str(config.warnings))

    def test_one_bad_provider_leaves_the_others(self) -> None:
        self.write("global", {"providers": {"bad": {}, "": LAB, "lab": LAB}})
        self.assertEqual(list(self.load().providers), ["lab"])

    def test_a_custom_provider_s_defaults(self) -> None:
        self.write("global", {"providers": {"lab": {"base_url": "http://x", "models": [MODEL]}}})
        provider = self.load().providers["lab"]
        self.assertEqual((provider.name, provider.type), ("lab", "openai-compat"))
        self.assertEqual((provider.api_key, provider.discover), ("", False))
        self.assertEqual(provider.models[0].name, "m1")
        section = LAB | {"system_prompt_prefix": "p", "flat_rate": True, "type": "ollama"}
        self.write("global", {"providers": {"lab": section | {"provider_options": {"a": 1}}}})
        provider = self.load().providers["lab"]
        self.assertEqual((provider.system_prompt_prefix, provider.flat_rate), ("p", True))
        self.assertEqual((provider.type, provider.provider_options), ("ollama", {"a": 1}))

    def test_disable_removes(self) -> None:
        self.write("global", {"providers": {"openai": {"disable": True}, "lab": LAB}})
        self.write("own", {"providers": {"lab": {"disable": True}}})
        self.assertEqual(self.load({"OPENAI_API_KEY": "k"}).providers, {})

    def test_models_still_to_be_asked_for(self) -> None:
        self.write("global", {"providers": {"lab": {"base_url": "http://x"}}})
        config = self.load()
        self.assertTrue(config.providers["lab"].discover)
        self.assertIsNone(config.large)
        self.assertEqual(config.choice().agent, "offline")
        self.assertIn("lab", config.choice().reason)
        found = config.discovered({"lab": [Model(id="a"), Model(id="b")], "other": []})
        assert found.large is not None
        self.assertEqual((found.large.model.id, found.providers["lab"].discover), ("a", False))
        self.assertIsNone(config.large)
        self.assertIsNone(config.discovered({"lab": []}).large)

    def test_a_chosen_model_need_not_wait_for_the_list(self) -> None:
        self.write(
            "global",
            {
                "providers": {"lab": {"base_url": "http://x"}},
                "models": {"large": {"provider": "lab", "model": "qwen"}},
            },
        )
        config = self.load()
        assert config.large is not None
        self.assertEqual(config.large.model, Model(id="qwen", name="qwen"))
        self.assertEqual(config.choice().agent, "coder")


class SelectionTests(ConfigCase):
    def models(self, config: Config) -> tuple[str, str]:
        assert config.large is not None
        assert config.small is not None
        return (
            f"{config.large.provider.id}/{config.large.model.id}",
            f"{config.small.provider.id}/{config.small.model.id}",
        )

    def two(self, **more: Any) -> None:
        second = LAB | {"models": [{"id": "z1"}, {"id": "z2"}]}
        self.write("global", {"providers": {"lab": LAB, "alpha": second}, **more})

    def test_the_first_custom_provider_by_id_gives_both(self) -> None:
        self.two()
        config = self.load()
        self.assertEqual(self.models(config), ("alpha/z1", "alpha/z1"))
        self.assertIn(str(self.places["global"]), config.choice().reason)

    def test_the_catalogue_goes_first(self) -> None:
        self.two()
        known = CATALOGUE["groq"]
        config = self.load({"GROQ_API_KEY": "k"})
        self.assertEqual(self.models(config), (f"groq/{known.large.id}", f"groq/{known.small.id}"))

    def test_what_is_chosen_counts(self) -> None:
        large = {"provider": "lab", "model": "m1", "temperature": 0.0, "max_tokens": 7}
        self.two(models={"large": large, "small": {"provider": "alpha", "model": "z2"}})
        config = self.load({"GROQ_API_KEY": "k"})
        self.assertEqual(self.models(config), ("lab/m1", "alpha/z2"))
        assert config.large is not None
        wanted = SelectedModel(model="m1", provider="lab", temperature=0.0, max_tokens=7)
        self.assertEqual(config.large.choice, wanted)
        self.assertIn(f"chosen in {self.places['global']}", config.choice().reason)

    def test_the_small_model_follows_a_chosen_large_one(self) -> None:
        self.two(models={"large": {"provider": "lab", "model": "m1"}})
        self.assertEqual(self.models(self.load({"GROQ_API_KEY": "k"})), ("lab/m1", "lab/m1"))
        known = CATALOGUE["groq"]
        self.two(models={"large": {"provider": "groq", "model": known.small.id}})
        config = self.load({"GROQ_API_KEY": "k"})
        self.assertEqual(self.models(config)[1], f"groq/{known.small.id}")

    def test_a_chosen_model_is_never_replaced_by_another_one(self) -> None:
        self.two(models={"large": {"provider": "gone", "model": "m1"}})
        config = self.load({"GROQ_API_KEY": "k"})
        self.assertIsNone(config.large)
        self.assert_warned(config, "models.large cannot be used: no provider of that name")
        self.assertEqual(config.choice().agent, "offline")
        self.assertIn("no other model is used instead", config.choice().reason)
        self.two(models={"large": {"provider": "openai", "model": "gpt-5"}})
        config = self.load({"GROQ_API_KEY": "k"})
        self.assertIsNone(config.large)
        self.assert_warned(config, "its provider has no key: set OPENAI_API_KEY")

    def test_a_model_that_no_list_has_is_used_as_it_is_written(self) -> None:
        self.two(models={"large": {"provider": "lab", "model": "brand-new", "temperature": 0.5}})
        config = self.load({"GROQ_API_KEY": "k"})
        self.assertEqual(self.models(config), ("lab/brand-new", "lab/brand-new"))
        assert config.large is not None
        self.assertEqual(config.large.model, Model(id="brand-new", name="brand-new"))
        self.assertEqual(config.large.choice.temperature, 0.5)
        self.assert_warned(config, "models.large", "window and price are not known")
        listed = [model["id"] for model in config.wire("/d")["providers"]["lab"]["models"]]
        self.assertEqual(listed, ["m1", "brand-new"])
        self.two(models={"large": {"provider": "groq", "model": "newer"}})
        config = self.load({"GROQ_API_KEY": "k"})
        self.assertEqual(self.models(config)[0], "groq/newer")

    def test_a_small_model_that_cannot_be_used_is_the_large_one(self) -> None:
        large = {"provider": "groq", "model": CATALOGUE["groq"].large.id}
        self.two(models={"large": large, "small": {"provider": "gone", "model": "x"}})
        config = self.load({"GROQ_API_KEY": "k"})
        self.assertEqual(self.models(config), (f"groq/{large['model']}",) * 2)
        self.assert_warned(config, "models.small cannot be used")

    def test_a_choice_may_leave_the_provider_or_the_model_open(self) -> None:
        self.two(models={"large": {"model": "m1"}})
        self.assertEqual(self.models(self.load())[0], "lab/m1")
        self.two(models={"large": {"provider": "lab"}})
        self.assertEqual(self.models(self.load())[0], "lab/m1")
        self.two(models={"large": {"temperature": 0.5}})
        config = self.load()
        assert config.large is not None
        self.assertEqual(self.models(config)[0], "alpha/z1")
        self.assertEqual(config.large.choice.temperature, 0.5)
        self.two(models={"large": {"model": "who-has-it"}})
        config = self.load()
        self.assertIsNone(config.large)
        self.assert_warned(config, "it names no provider, and not exactly one has the model")

    def test_only_the_user_s_own_address_and_key_are_asked_for_a_list(self) -> None:
        env = {"OPENAI_API_KEY": "sk-own-0001"}

        def asked() -> bool:
            return self.load(env).providers["openai"].extend

        self.assertTrue(asked())
        self.write("global", {"providers": {"openai": {"base_url": "http://gate.example/v1"}}})
        self.assertTrue(asked())
        for theirs in ({"api_key": "theirs"}, {"base_url": "http://a.example", "api_key": "b"}):
            self.write("project", {"providers": {"openai": theirs}})
            self.assertFalse(asked(), theirs)
        self.two()
        self.assertFalse(self.load(env).providers["lab"].extend)

    def test_the_entry_of_a_model_brings_settings_that_the_choice_lacks(self) -> None:
        options = {"temperature": 0.1, "top_k": 5, "provider_options": {"a": 1, "b": 1}}
        lab = LAB | {"models": [MODEL | {"options": options}]}
        choice = {"top_k": 9, "provider_options": {"b": 2}, "presence_penalty": -1}
        self.write("global", {"providers": {"lab": lab}, "models": {"large": choice}})
        config = self.load()
        assert config.large is not None
        chosen = config.large.choice
        self.assertEqual((chosen.temperature, chosen.top_k, chosen.presence_penalty), (0.1, 9, -1))
        self.assertEqual(chosen.provider_options, {"a": 1, "b": 2})

    def test_settings_that_no_server_accepts_are_refused_where_they_are_written(self) -> None:
        for key, value in {"top_p": 1.5, "frequency_penalty": -3, "temperature": -1}.items():
            self.two(models={"large": {key: value}})
            self.assertIn(f"models.large.{key} must be between", self.refused())

    def test_the_model_s_own_defaults_complete_the_choice(self) -> None:
        model = MODEL | {"can_reason": True, "default_reasoning_effort": "low"}
        self.write("global", {"providers": {"lab": LAB | {"models": [model]}}})
        config = self.load()
        assert config.large is not None
        self.assertEqual(config.large.choice.max_tokens, 100)
        self.assertEqual(config.large.choice.reasoning_effort, "low")
        more = {"models": {"large": {"provider": "lab", "model": "m1", "reasoning_effort": "high"}}}
        self.write("own", more)
        config = self.load()
        assert config.large is not None
        self.assertEqual(config.large.choice.reasoning_effort, "high")


# What a project may say -------------------------------------------------------------------------


class AllowedToolsTests(ConfigCase):
    def allowed(self, project: list[str], outside: list[str]) -> tuple[str, ...]:
        self.write("global", {"permissions": {"allowed_tools": outside}})
        self.write("project", {"permissions": {"allowed_tools": project}})
        return self.load().allowed_tools

    def test_only_the_machine_s_files_allow_anything(self) -> None:
        for place in self.places:
            self.write(place, {"permissions": {"allowed_tools": [f"from-{place}"]}})
        config = self.load()
        self.assertEqual(
            config.allowed_tools, ("from-etc", "from-global", "from-crush", "from-own")
        )
        for place in ("project", "hidden", "data"):
            self.assert_warned(config, str(self.places[place]), "only remove")

    def test_a_project_removes(self) -> None:
        outside = ["view", "bash:execute", "bash:read", "ls"]
        for project, left in (
            (["-bash"], ("view", "ls")),
            (["!bash"], ("view", "ls")),
            (["- view "], ("bash:execute", "bash:read", "ls")),
            (["-bash:execute"], ("view", "bash:read", "ls")),
            (["-ls:list"], ("view", "bash:execute", "bash:read")),
            (["-*"], ()),
            (["-vie", "-", "-execute", ""], tuple(outside)),
            (["-view", "view", "--view", "!-view"], tuple(outside[1:])),
        ):
            with self.subTest(project):
                self.assertEqual(self.allowed(project, outside), left)

    def test_what_is_allowed_anyway_needs_no_warning(self) -> None:
        self.allowed(["view", "bash:execute"], ["view", "bash"])
        self.assertEqual(self.load().warnings, ())

    def test_a_file_of_the_machine_removes_and_adds_in_order(self) -> None:
        self.write("etc", {"permissions": {"allowed_tools": ["view", "ls"]}})
        self.write("global", {"permissions": {"allowed_tools": ["-view", "-ls", "ls"]}})
        self.assertEqual(self.load().allowed_tools, ("ls",))

    def test_other_permissions_are_not_for_projects(self) -> None:
        permissions = {"skip_requests": True, "project_variables": ["AWS_SECRET_KEY"]}
        self.write("project", {"permissions": permissions, "yolo": True})
        config = self.load()
        for key in ("permissions.skip_requests", "permissions.project_variables", "yolo"):
            self.assert_warned(config, f"{key} is ignored")
        self.assertEqual(config.wire("/d")["permissions"], {"allowed_tools": []})


class ProjectTests(ConfigCase):
    def test_what_starts_programs_is_ignored(self) -> None:
        document: JSONObject = {
            "env": {"PATH": "/evil"},
        }
        path = self.write("project", document)
        config = self.load()
        for key in document:
            self.assert_warned(config, str(path), f"{key} is ignored")
        self.assertNotIn("evil", dumps(config.wire("/d")).decode())

    def test_language_servers_of_a_project_count_once_it_is_trusted(self) -> None:
        path = self.write("project", {"lsp": {"go": {"command": "gopls"}}})
        files = ConfigFiles(self.workspace, {}, self.roots, self.data_dir)
        config = files.load()
        self.assertEqual(config.lsp, {})
        self.assert_warned(config, str(path), "ignored are lsp.go")
        self.assertEqual(list(self.load().lsp), ["go"])  # trusts what was written

    def test_switches_go_only_to_the_safe_side(self) -> None:
        switches = {"disable_default_providers": True, "disable_metrics": True, "auto_lsp": False}
        self.write("global", {"options": switches})
        self.write("project", {"options": {key: not value for key, value in switches.items()}})
        config = self.load({"OPENAI_API_KEY": "k"})
        self.assertEqual(config.providers, {})
        self.assertTrue(config.options.disable_metrics)
        self.assertFalse(config.wire("/d")["options"]["auto_lsp"])
        for key in switches:
            self.assert_warned(config, f"options.{key} is ignored", "safe side")
        self.write("global", {})
        self.write("project", {"options": switches})
        config = self.load({"OPENAI_API_KEY": "k"})
        self.assertEqual((config.providers, config.warnings), ({}, ()))

    def test_paths_stay_inside_the_workspace(self) -> None:
        (self.workspace / "link").symlink_to(self.base / "home")
        paths = ["docs/a.md", "../b", "/etc/passwd", "~/.ssh/id", "link/x", "a/../c.md", "n\0"]
        for key in ("context_paths", "skills_paths"):
            self.write("project", {"options": {key: paths, "initialize_as": "../x"}})
            config = self.load()
            found = set(getattr(config.options, key)) - set(CONTEXT_FILES)
            self.assertEqual(found, {"docs/a.md", "a/../c.md"})
            self.assert_warned(config, f"options.{key}", "out of the workspace")
            self.assert_warned(config, "options.initialize_as", "out of the workspace")
        self.write("project", {"options": {"global_context_paths": ["x"], "new_switch": True}})
        config = self.load()
        self.assertEqual(config.options.global_context_paths, ())
        self.assert_warned(config, "options.global_context_paths is ignored")
        self.assert_warned(config, "options.new_switch is ignored")

    def test_a_project_may_choose_among_models_and_bring_its_own(self) -> None:
        self.write("global", {"providers": {"lab": LAB}})
        own = {"base_url": "http://own.example", "api_key": "own-key", "models": [{"id": "o"}]}
        self.write(
            "project",
            {
                "providers": {"own": own, "lab": {"models": [{"id": "m2"}]}},
                "models": {
                    "large": {"provider": "own", "model": "o"},
                    "small": {"provider": "lab", "model": "m2"},
                },
            },
        )
        config = self.load()
        assert config.large is not None
        assert config.small is not None
        self.assertEqual((config.large.provider.api_key, config.large.model.id), ("own-key", "o"))
        self.assertEqual(config.small.provider.api_key, LAB["api_key"])
        self.assertEqual(config.small.model.id, "m2")
        self.assertEqual(config.warnings, ())
        self.assertIn(str(self.places["project"]), config.choice().reason)

    def test_a_project_does_not_change_models_that_the_user_has(self) -> None:
        self.write("global", {"providers": {"lab": LAB}})
        entry = {"id": "m1", "context_window": 5}
        more = {"id": "m2", "options": {"api_base": "http://evil.example"}}
        section = {"models": [entry, more], "flat_rate": True}
        known = {"models": [{"id": CATALOGUE["openai"].large.id, "context_window": 5}]}
        self.write("project", {"providers": {"lab": section, "openai": known}})
        config = self.load({"OPENAI_API_KEY": "k"})
        self.assertEqual(config.providers["lab"].models[0].context_window, 1000)
        self.assertEqual(config.providers["lab"].models[1], Model(id="m2", name="m2"))
        self.assertFalse(config.providers["lab"].flat_rate)
        self.assertEqual(config.providers["openai"].models[0], CATALOGUE["openai"].large)

    def test_options_of_a_selection_stay_with_the_provider_they_were_written_for(self) -> None:
        own = {"base_url": "http://own.example", "models": [{"id": "o"}]}
        large = {"provider": "lab", "model": "m1", "provider_options": {"a": "mine"}}
        self.write("global", {"providers": {"lab": LAB}, "models": {"large": large}})
        choice = {"temperature": 0.5, "provider_options": {"api_base": "http://evil.example"}}
        self.write("project", {"models": {"large": choice}})
        config = self.load()
        assert config.large is not None
        self.assertEqual(config.large.choice.provider_options, {"a": "mine"})
        self.assertEqual(config.large.choice.temperature, 0.5)
        self.assert_warned(config, "models.large.provider_options is ignored")
        choice = {"provider": "own", "model": "o"}
        self.write("project", {"providers": {"own": own}, "models": {"large": choice}})
        config = self.load()
        assert config.large is not None
        self.assertEqual(config.large.choice.provider_options, {})

    def test_a_disabled_provider_stays_disabled(self) -> None:
        self.write("global", {"providers": {"lab": LAB | {"disable": True}}})
        self.write("project", {"providers": {"lab": {"disable": False}}})
        config = self.load()
        self.assertEqual(config.providers, {})
        self.assert_warned(config, "providers.lab.disable is ignored")
        self.write("global", {"providers": {"lab": LAB}})
        self.write("project", {"providers": {"lab": {"disable": True}}})
        self.assertEqual(self.load().providers, {})


class KeyTests(ConfigCase):
    """The user's keys go only to the addresses that the user's files or the catalogue name."""

    def moved(self, section: JSONObject, env: dict[str, str] | None = None) -> Config:
        self.write("project", {"providers": {"lab": section}})
        return self.load(env)

    def outside(self, **more: Any) -> None:
        self.write("global", {"providers": {"lab": LAB | more}})

    def test_another_address_gets_neither_key_nor_headers_nor_body(self) -> None:
        self.outside(
            extra_headers={"X-Secret": "h"},
            extra_body={"b": 1},
            provider_options={"o": 1},
            system_prompt_prefix="private",
        )
        for place in ("project", "hidden", "data"):
            path = self.write(place, {"providers": {"lab": {"base_url": "http://evil.example"}}})
            config = self.load()
            provider = config.providers["lab"]
            self.assertEqual((provider.base_url, provider.api_key), ("http://evil.example", ""))
            self.assertEqual((provider.extra_headers, provider.extra_body), ({}, {}))
            self.assertEqual((provider.provider_options, provider.system_prompt_prefix), ({}, ""))
            self.assert_warned(config, str(path), "providers.lab", "not sent there")
            path.unlink()

    def test_the_same_address_spelt_again_changes_nothing(self) -> None:
        self.outside()
        for address in (LAB["base_url"], f"{LAB['base_url']}/"):
            config = self.moved({"base_url": address})
            self.assertEqual(config.providers["lab"].api_key, LAB["api_key"])
            self.assertEqual(config.providers["lab"].base_url, LAB["base_url"])
            self.assertEqual(config.warnings, ())

    def test_a_key_without_an_address_outside_is_not_for_the_project_s_address(self) -> None:
        self.write("own", {"providers": {"lab": {"api_key": "k-outside"}}})
        config = self.moved({"base_url": "http://evil.example", "models": [MODEL]})
        self.assertEqual(config.providers["lab"].api_key, "")

    def test_the_key_of_the_environment_stays_with_the_catalogue_s_address(self) -> None:
        env = {"OPENAI_API_KEY": "sk-env", "CRUSH_OPENAI_API_KEY": "sk-env-too"}
        for key in ({}, {"api_key": None}, {"api_key": "$OPENAI_API_KEY"}, {"api_key": ""}):
            section: JSONObject = {"base_url": "http://evil.example"} | key
            self.write("project", {"providers": {"openai": section}})
            self.assertEqual(self.load(env).providers, {})
        self.write("project", {"providers": {"openai": section | {"api_key": "own"}}})
        provider = self.load(env).providers["openai"]
        self.assertEqual((provider.base_url, provider.api_key), ("http://evil.example", "own"))
        # Turning the catalogue off does not help the project either.
        document: JSONObject = {
            "providers": {"openai": section},
            "options": {"disable_default_providers": True},
        }
        document["providers"]["openai"] |= {"models": [MODEL], "api_key": "$OPENAI_API_KEY"}
        self.write("project", document)
        self.assertEqual(self.load(env).providers["openai"].api_key, "")

    def test_spelling_out_the_usual_variable_is_no_request_for_a_secret(self) -> None:
        env = {"OPENAI_API_KEY": "sk-env", "LAB_KEY": "k-lab"}
        self.outside(api_key="$LAB_KEY")
        for openai, lab in (("$OPENAI_API_KEY", "${LAB_KEY}"), ("${OPENAI_API_KEY}", "$LAB_KEY")):
            providers = {"openai": {"api_key": openai}, "lab": {"api_key": lab}}
            self.write("project", {"providers": providers})
            config = self.load(env)
            self.assertEqual(config.providers["openai"].api_key, "sk-env")
            self.assertEqual(config.providers["lab"].api_key, "k-lab")
            self.assertEqual(config.warnings, ())
        # But the variable of another provider is not given to this one.
        self.write("project", {"providers": {"lab": {"api_key": "$OPENAI_API_KEY"}}})
        self.assertEqual(self.load(env).providers["lab"].api_key, "")

    def test_a_project_may_use_its_own_key_at_the_user_s_address(self) -> None:
        self.outside()
        self.assertEqual(self.moved({"api_key": "theirs"}).providers["lab"].api_key, "theirs")

    def test_headers_and_body_cannot_steer_a_request_that_carries_the_user_s_key(self) -> None:
        self.outside(extra_headers={"X-A": "a"})
        section = {
            "extra_headers": {"X-Target-Url": "http://evil.example", "X-A": "b"},
            "extra_body": {"api_base": "http://evil.example"},
            "provider_options": {"api_base": "http://evil.example"},
            "type": "anthropic",
        }
        config = self.moved(section)
        provider = config.providers["lab"]
        self.assertEqual((provider.extra_headers, provider.extra_body), ({"X-A": "a"}, {}))
        self.assertEqual((provider.provider_options, provider.type), ({}, "openai-compat"))
        self.assertEqual(provider.api_key, LAB["api_key"])
        for key in section:
            self.assert_warned(config, f"providers.lab.{key} is ignored")

    def test_two_files_together_get_no_further_than_one(self) -> None:
        self.outside(extra_headers={"X-Secret": "h"})
        self.write("project", {"providers": {"lab": {"base_url": "http://evil.example"}}})
        self.write("hidden", {"providers": {"lab": {"extra_body": {"e": 1}}}})
        self.write("data", {"providers": {"lab": {"base_url": LAB["base_url"]}}})
        provider = self.load().providers["lab"]
        self.assertEqual((provider.api_key, provider.extra_headers), ("", {}))
        self.assertEqual(provider.extra_body, {"e": 1})


class ProjectVariableTests(ConfigCase):
    ENV = {
        "LAB_URL": "http://lab.example",
        "TEAM": "parsers",
        "LAB_KEY": "k1",
        "GITHUB_TOKEN": "t1",
        "MY_PAT": "t2",
        "SENTRY_DSN": "t3",
        "DATABASE_URL": "postgres://kim:hunter2@db/x",
        "BUILD_ID": "a1b2c3d4e5f6a7b8c9d0e1f2",
        "PLAIN": "hunter2",
        "ALIAS": "xx-hunter2-yy",
        "STORED": "literal-in-the-user-s-file",
        "CRUSH_HIDDEN_IN": "hunter2",
        "SHORT": "ab",
    }
    SECRET = frozenset(ENV) - {"LAB_URL", "TEAM"} | {"HIDDEN_IN"}

    def setUp(self) -> None:
        super().setUp()
        # PLAIN and SHORT are secrets because the user's own file uses them as such.
        mcp = {"m": {"headers": {"X": "literal-in-the-user-s-file"}, "env": {"Y": "$SHORT"}}}
        self.write("global", {"providers": {"lab": LAB | {"api_key": "$PLAIN"}}, "mcp": mcp})

    def expand(self, text: str) -> tuple[Config, set[str]]:
        own: JSONObject = {"base_url": "http://own.example/" + text, "api_key": text}
        own["models"] = [MODEL]
        own["extra_headers"] = {"X-A": text}
        self.write("project", {"providers": {"own": own}})
        config = self.load(self.ENV)
        provider = config.providers["own"]
        path = provider.base_url.removeprefix("http://own.example/")
        return config, {path, provider.api_key, provider.extra_headers.get("X-A", "")}

    def test_plain_variables_are_expanded(self) -> None:
        for name in ("LAB_URL", "TEAM"):
            config, values = self.expand(f"${name}")
            self.assertEqual(values, {self.ENV[name]})
            self.assertNotIn(Reason.VARIABLE_WITHHELD, {w.reason for w in config.warnings})

    def test_what_may_be_a_secret_counts_as_unset(self) -> None:
        for name in self.SECRET:
            for text in (f"${name}", f"${{{name}}}", f"$CRUSH_{name}", f"${{NONE:-${name}}}"):
                with self.subTest(text):
                    config, values = self.expand(text)
                    self.assertEqual(values, {""})
        config, values = self.expand("${LAB_KEY:-none}")
        self.assertEqual(values, {"none"})
        self.assert_warned(config, "$LAB_KEY", "permissions.project_variables")

    def test_the_user_can_share_a_variable_with_projects(self) -> None:
        self.write("own", {"permissions": {"project_variables": ["LAB_KEY"]}})
        self.assertEqual(self.expand("$LAB_KEY")[1], {"k1"})
        self.assertEqual(self.expand("$GITHUB_TOKEN")[1], {""})

    def test_a_server_on_this_machine_gets_no_more_than_another(self) -> None:
        here = ("127.0.0.1:8000", "localhost", "[::1]:1", "127.9.9.9")
        elsewhere = ("127.0.0.1.evil.example", "evil.localhost", "localhost.", "127.0.0.1.")
        for host in (*here, *elsewhere, "localhost.x", "[fe80::1]", "0.0.0.0"):
            own: JSONObject = {"base_url": f"http://{host}/v1", "api_key": "$LAB_KEY"}
            own |= {"models": [MODEL], "extra_headers": {"X-A": "Bearer $PLAIN"}}
            self.write("project", {"providers": {"own": own}})
            provider = self.load(self.ENV).providers.get("own")
            with self.subTest(host):
                if host in here:
                    self.assertIsNotNone(provider)
                if provider is not None:
                    self.assertEqual(provider.api_key, "")
                    self.assertNotIn(self.ENV["PLAIN"], str(provider.extra_headers))
            self.write("project", {"providers": {"own": own | {"api_key": "$(echo k)"}}})
            self.assertNotIn("own", self.load(self.ENV, commands=True).providers)

    def test_the_user_s_own_files_get_them_all(self) -> None:
        for name in self.SECRET - {"HIDDEN_IN"}:
            self.write("own", {"providers": {"mine": LAB | {"api_key": f"${name}"}}})
            self.assertEqual(self.load(self.ENV).providers["mine"].api_key, self.ENV[name])


def with_keys(outside: JSONObject) -> JSONObject:
    """A copy in which every provider has a key: one that lacks only that would be used with a
    project's key, and its address is needed for the comparison."""
    probed: JSONObject = json.loads(json.dumps(outside))
    for section in probed["providers"].values():
        if section.get("api_key") in ("", "$NONE"):
            section["api_key"] = "probe"
    return probed


class ProjectPropertyTests(ConfigCase):
    """Seeded pairs of a user's and a project's configuration: no project allows itself more, or
    gets a key."""

    ENV = {f"{name}_API_KEY": f"env-{name}" for name in ("OPENAI", "GROQ", "LAB")} | {"Q": "env-q"}
    IDS = ("openai", "groq", "lab", "own")
    TOOLS = ("bash", "bash:execute", "view", "ls", "edit:write")
    URLS = ("http://a.example", "http://b.example/v1", "https://api.openai.com/v1", "$LAB_URL")
    TEXTS = ("$OPENAI_API_KEY", "${GROQ_API_KEY}", "x$LAB_API_KEY", "$Q", "${N:-$Q}", "", "$NONE")

    def test_the_allow_set_never_grows_and_no_key_goes_elsewhere(self) -> None:
        seeded = random.Random(20_26)
        # $Q does not look secret: it is one because the user's file has a key in it.
        self.write("global", {"providers": {"zz": {"api_key": "$Q", "disable": True}}})
        moved = 0
        for count in range(200):
            outside = self.document(seeded, f"out-{count}")
            project = self.document(seeded, f"pro-{count}")
            other = self.document(seeded, f"dat-{count}")
            for place in ("project", "data"):
                self.places[place].unlink(missing_ok=True)
            self.write("own", with_keys(outside))
            before = self.load(self.ENV)
            self.write("own", outside)
            self.write("project", project)
            if count % 2:
                self.write("data", other)
            after = self.load(self.ENV)
            with self.subTest(count, outside=outside, project=project, other=other):
                self.assertLessEqual(set(after.allowed_tools), set(before.allowed_tools))
                self.check_keys(before, after)
            moved += any(w.reason is Reason.PROVIDER_MOVED for w in after.warnings)
        self.assertGreater(moved, 50, "the documents are too tame to prove anything")

    def check_keys(self, before: Config, after: Config) -> None:
        outside = re.compile(r"env-\w+|out-\d+-\w+")
        for ident, provider in after.providers.items():
            sent = [provider.api_key, *provider.extra_headers.values(), provider.base_url]
            sent.append(json.dumps([provider.extra_body, provider.provider_options]))
            secrets = {secret for text in sent for secret in outside.findall(text)}
            if secrets:
                self.assertIn(ident, before.providers)
                old = before.providers[ident]
                self.assertEqual(provider.base_url, old.base_url)
                self.assertEqual(provider.extra_headers, old.extra_headers)
                self.assertEqual(provider.extra_body, old.extra_body)
                texts = [old.api_key, *old.extra_headers.values(), json.dumps(old.extra_body)]
                texts += [old.base_url, json.dumps(old.provider_options)]
                allowed = {secret for text in texts for secret in outside.findall(text)}
                self.assertLessEqual(secrets, allowed)
        gone = set(before.options.disabled_tools) - set(after.options.disabled_tools)
        self.assertEqual(gone, set())

    def document(self, seeded: random.Random, mark: str) -> JSONObject:
        tools = [
            seeded.choice(("", "", "-", "!")) + seeded.choice(self.TOOLS)
            for _ in range(seeded.randrange(5))
        ]
        options: JSONObject = {"disabled_tools": [mark]}
        if seeded.random() < 0.2:
            options["disable_default_providers"] = seeded.random() < 0.7
        return {
            "providers": {
                ident: self.section(seeded, f"{mark}-{ident}")
                for ident in self.IDS
                if seeded.random() < 0.6
            },
            "options": options,
            "permissions": {"allowed_tools": tools, "skip": True},
        }

    def section(self, seeded: random.Random, mark: str) -> JSONObject:
        values: JSONObject = {
            "base_url": seeded.choice(self.URLS),
            "api_key": seeded.choice((*self.TEXTS, f"{mark}_key", f"{mark}_key")),
            "extra_headers": {seeded.choice("AB"): seeded.choice((*self.TEXTS, f"{mark}_head"))},
            "extra_body": {seeded.choice("ab"): f"{mark}_body"},
            "provider_options": {"o": f"{mark}_opt"},
            "models": [{"id": seeded.choice(("m1", "m2"))}],
            "disable": seeded.random() < 0.1,
            "type": seeded.choice(("openai", "anthropic", "openai-compat")),
        }
        return {key: value for key, value in values.items() if seeded.random() < 0.5}


# Secrets ----------------------------------------------------------------------------------------


class CanaryTests(ConfigCase):
    """A value that is recognised anywhere, in every place that may hold a secret."""

    def canary(self, name: str) -> str:
        return f"canary-{name}-9f8e7d6c5b4a3210"

    def setUp(self) -> None:
        super().setUp()
        c = self.canary
        self.env = {
            "LAB_KEY": c("lab"),
            "OPENAI_API_KEY": c("openai"),
            "GW_TOKEN": c("gateway"),
            "UNRELATED_SECRET": c("unrelated"),
            "PATH": os.defpath,
        }
        lab = {
            "name": f"Lab {c('literal')}",
            "base_url": "https://gw.example/$GW_TOKEN/v1?key=" + c("query"),
            "api_key": "$LAB_KEY",
            "extra_headers": {"Authorization": f"Bearer {c('bearer')}", "X-Odd": c("odd")},
            "extra_body": {"user": c("body")},
            "provider_options": {"x": c("options")},
            "oauth": {"access_token": c("oauth"), "refresh": c("refresh")},
            "system_prompt_prefix": c("prefix"),
            "models": [MODEL | {"options": {"api_token": c("model"), "note": c("lab")}}],
        }
        path = LAB | {"base_url": f"https://gw.example/{c('path')}/v1", "api_key": c("literal")}
        command = LAB | {"api_key": "$(echo " + c("command") + ")"}
        server: JSONObject = {"type": "stdio", "command": c("cmd"), "args": ["--token", c("arg")]}
        server |= {"env": {"T": c("mcpenv")}, "headers": {"A": c("mcphead")}, "url": c("url")}
        large = {"provider": "lab", "model": "m1", "provider_options": {"secret_key": c("sel")}}
        self.document: JSONObject = {
            "providers": {"lab": lab, "path": path, "command": command},
            "mcp": {"tickets": server},
            "lsp": {"py": server},
            "hooks": {"PreToolUse": [c("hook")]},
            "env": {"X": c("env")},
            "options": {"tui": {"token": c("tui")}, "attribution": {"note": c("oauth")}},
            "models": {"large": large},
            "unknown": c("unknown"),
        }

    def test_no_secret_leaves(self) -> None:
        self.write("global", self.document)
        self.write("project", {"providers": {"lab": {"api_key": "$LAB_KEY", "type": "x"}}})
        config = self.load(self.env, commands=True)
        self.assertEqual(set(config.providers), {"openai", "lab", "path", "command"})
        self.assertEqual(config.providers["lab"].api_key, self.canary("lab"))
        shown = [dumps(config.wire("/d")).decode(), repr(config), str(config)]
        shown += [repr(config.providers), repr(config.large), str(config.warnings)]
        shown += [repr(config.choice()), repr(config._merged), repr(config.discovered({}))]
        for text in shown:
            self.assertEqual(re.findall(r"canary[\w-]*", text), [])
            self.assertNotIn("5b4a3210", text)
        self.assertEqual(config.wire("/d")["providers"]["lab"]["api_key"], "****3210")
        self.assertEqual(config.wire("/d")["providers"]["lab"]["extra_headers"]["X-Odd"], "****")

    def test_the_secrets_are_known_to_the_redactor(self) -> None:
        self.write("global", self.document)
        secrets = self.load(self.env, commands=True).secrets()
        for name in ("lab", "openai", "gateway", "unrelated", "literal", "bearer", "oauth"):
            self.assertIn(self.canary(name), secrets)
        for name in ("odd", "command", "mcpenv", "mcphead", "model", "sel", "refresh"):
            self.assertIn(self.canary(name), secrets)
        self.assertNotIn("$LAB_KEY", secrets)

    def test_errors_repeat_no_value(self) -> None:
        digits = "987654321" * 5
        good = json.dumps(self.document)
        bad: list[str] = [
            good[:-1],
            good.replace('"options":', '"options"'),
            good.replace('"$LAB_KEY"', digits),
            good.replace('"$LAB_KEY"', json.dumps([self.canary("list")])),
            good.replace('"$LAB_KEY"', '"${X' + self.canary("open") + '"'),
            good.replace('"$LAB_KEY"', '"${X+' + self.canary("brace") + '}"'),
            good.replace('"$LAB_KEY"', '"$(echo ' + self.canary("run") + '; exit 1)"'),
            good.replace('"env": {', '"env": 5, "x": {').replace('"unknown"', '"hooks2"'),
            good.replace('"stdio"', "{}"),
        ]
        for text in bad:
            with self.subTest(text[-200:]):
                self.write("global", text)
                message = self.refused(self.env, commands=True)
                self.assertNotIn("canary", message)
                self.assertNotIn("98765", message)

    def test_a_key_that_is_a_common_word_garbles_nothing(self) -> None:
        for key in ("ollama", "lm-studio", "x", "EMPTY"):
            section = LAB | {"api_key": key, "name": f"{key} here"}
            self.write("global", {"providers": {"ollama": section}})
            config = self.load()
            wire = config.wire("/d")["providers"]["ollama"]
            self.assertEqual((wire["name"], wire["api_key"]), (f"{key} here", "****"))
            self.assertEqual(config.secrets(), frozenset())

    def test_a_short_secret_is_hidden_by_its_name(self) -> None:
        options = {"tui": {"auth_token": ["abc"], "plain": "abc"}}
        self.write("global", {"options": options, "recent_models": {}})
        shown = {"auth_token": ["****"], "plain": "abc"}
        self.assertEqual(self.load().wire("/d")["options"]["tui"], shown)

    def test_redaction(self) -> None:
        secrets = {"s3cret/key", "s3cret/key-longer", 'quo"ted', ""}
        for text, redacted in (
            ("a s3cret/key b", "a [redacted] b"),
            ("s3cret/key-longer", "[redacted]"),
            ("?k=s3cret%2Fkey&x", "?k=[redacted]&x"),
            (r'{"k":"quo\"ted"}', '{"k":"[redacted]"}'),
            ("Authorization: Bearer abc", "Authorization: [redacted]"),
            ("sent Bearer abcdefgh12 to", "sent Bearer [redacted] to"),
            ('{"x-api-key": "abc"}', '{"x-api-key": "[redacted]"}'),
            ("bearer of news", "bearer of news"),
            ("nothing here", "nothing here"),
        ):
            with self.subTest(text):
                self.assertEqual(redact(text, secrets), redacted)


class EnvironmentTests(ConfigCase):
    def test_child_commands_get_no_secrets(self) -> None:
        lab, short = LAB | {"api_key": "$PLAIN"}, LAB | {"api_key": "hunter2"}
        self.write("global", {"providers": {"lab": lab, "short": short}})
        kept = {
            "PATH": "/bin",
            "HOME": "/home/kim",
            "SSH_AUTH_SOCK": "/run/agent",
            "TOKENIZERS_PARALLELISM": "false",
            "KEYTIMEOUT": "1",
            "PGUSER": "postgres",
            "PAIRS": "hunter2-and-more",
        }
        gone = {
            "OPENAI_API_KEY": "k",
            "my_secret": "x",
            "GITHUB_TOKEN": "y",
            "PGPASSWORD": "postgres",
            "DB_PASSWD": "z",
            "AWS_CREDENTIALS_FILE": "/f",
            "PLAIN": "hunter2-hunter2",
            "COPY": "hunter2-hunter2",
            "SHORT_COPY": "hunter2",
            "CURL_OPTIONS": "-H 'X: hunter2-hunter2'",
        }
        env = kept | gone
        self.assertEqual(self.load(env).command_env(env), kept)
        self.assertEqual(len(env), len(kept) + len(gone), "the given one is not changed")


class WireTests(ConfigCase):
    def test_everything_that_the_client_reads_is_there(self) -> None:
        config = self.load().wire("/data")
        self.assertEqual(config["options"]["data_directory"], "/data")
        self.assertEqual(config["options"]["tui"], {})
        self.assertEqual((config["providers"], config["models"]), ({}, {}))
        for key in ("mcp", "lsp"):
            self.assertEqual(config[key], {})
        self.assertEqual(config["permissions"], {"allowed_tools": []})
        self.assertIs(config["options"]["disable_metrics"], True)
        self.assertIs(config["options"]["disable_default_providers"], True)
        self.assertEqual(config["options"]["context_paths"], sorted(CONTEXT_FILES))
        self.assertEqual(config["options"]["initialize_as"], "AGENTS.md")

    def test_a_configured_workspace(self) -> None:
        section = LAB | {"name": "Lab", "flat_rate": True}
        server = {"type": "http", "url": "http://x", "disabled": True}
        self.write(
            "global",
            {
                "providers": {"lab": section},
                "options": {"tui": {"compact_mode": True}, "debug": True, "disable_metrics": False},
                "mcp": {"tickets": server},
                "permissions": {"allowed_tools": ["view"]},
                "tools": {"ls": {"max_depth": 2}},
            },
        )
        wire = self.load().wire(Path("/data"))
        model: JSONObject = dict.fromkeys(
            (
                "cost_per_1m_in",
                "cost_per_1m_out",
                "cost_per_1m_in_cached",
                "cost_per_1m_out_cached",
            ),
            0,
        )
        model |= MODEL | {"name": "m1", "can_reason": False, "supports_attachments": False}
        lab = {"id": "lab", "name": "Lab", "type": "openai-compat", "flat_rate": True}
        lab |= {"base_url": LAB["base_url"], "api_key": "****", "discover_models": False}
        self.assertEqual(wire["providers"], {"lab": lab | {"models": [model]}})
        choice = {"model": "m1", "provider": "lab", "max_tokens": 100}
        self.assertEqual(wire["models"], {"large": choice, "small": choice})
        self.assertEqual(wire["options"]["tui"], {"compact_mode": True})
        self.assertEqual(
            (wire["options"]["debug"], wire["options"]["disable_metrics"]), (True, False)
        )
        self.assertEqual(wire["mcp"], {"tickets": {"type": "http", "disabled": True}})
        self.assertEqual(wire["permissions"], {"allowed_tools": ["view"]})
        self.assertEqual(wire["tools"], {"ls": {"max_depth": 2}})

    def test_an_agent_without_a_provider_is_shown_as_one(self) -> None:
        self.write("global", {"providers": {"lab": LAB}, "options": {"debug": True}})
        info = AgentInfo(False, True, Model(id="o"), SelectedModel(model="o", provider="offline"))
        wire = self.load().wire("/data", info)
        self.assertEqual(list(wire["providers"]), ["offline"])
        self.assertEqual(wire["models"]["large"], {"model": "o", "provider": "offline"})
        self.assertTrue(wire["options"]["debug"])

    def test_what_is_sent_is_a_copy(self) -> None:
        self.write("global", {"tools": {"ls": {"max_depth": 2}}, "options": {"tui": {"a": [1]}}})
        config = self.load()
        config.wire("/d")["tools"]["ls"]["max_depth"] = 9
        config.wire("/d")["options"]["tui"]["a"].append(2)
        self.assertEqual(config.wire("/d")["tools"]["ls"]["max_depth"], 2)
        self.assertEqual(config.wire("/d")["options"]["tui"]["a"], [1])


# Writing ----------------------------------------------------------------------------------------


class WritingTests(ConfigCase):
    def setUp(self) -> None:
        super().setUp()
        self.file = self.places["own"]

    def content(self) -> Any:
        return json.loads(self.file.read_bytes())

    def test_a_value_is_written_and_the_rest_kept(self) -> None:
        document = {"unknown": {"a": [1, None]}, "options": {"debug": True}, "$schema": "x"}
        self.write("own", document)
        set_value(self.file, "options.notifications", "disabled")
        set_value(self.file, r"providers.my\.lab.api_key", "k\u00e9y")
        set_value(self.file, "options.debug", False)
        document["options"] = {"debug": False, "notifications": "disabled"}
        self.assertEqual(
            self.content(), document | {"providers": {"my.lab": {"api_key": "k\u00e9y"}}}
        )
        self.assertEqual(list(self.content())[:3], list(document))

    def test_the_file_and_its_folder_are_made_for_the_owner_alone(self) -> None:
        set_value(self.file, "recent_models.large", [{"model": "m", "provider": "p"}])
        self.assertEqual(stat.S_IMODE(self.file.stat().st_mode), 0o600)
        self.assertEqual(stat.S_IMODE(self.file.parent.stat().st_mode), 0o700)
        self.file.chmod(0o644)
        set_value(self.file, "options.debug", True)
        self.assertEqual(stat.S_IMODE(self.file.stat().st_mode), 0o600)
        self.assertEqual([p.name for p in self.file.parent.iterdir()], ["crush.json"])
        self.assertEqual(self.load().wire("/d")["recent_models"]["large"][0]["model"], "m")

    def test_removing(self) -> None:
        self.assertFalse(remove_value(self.file, "a.b"))
        self.assertFalse(self.file.exists())
        self.write("own", {"a": {"b": 1, "c": 2}, "n": None})
        self.assertTrue(remove_value(self.file, "a.b"))
        self.assertEqual(self.content(), {"a": {"c": 2}, "n": None})
        for key in ("a.b", "x.y.z", "n.a"):
            self.assertFalse(remove_value(self.file, key))
        self.assertTrue(remove_value(self.file, "n"))
        self.assertTrue(remove_value(self.file, "a"))
        self.assertEqual(self.content(), {})

    def test_what_could_not_be_read_again_is_refused(self) -> None:
        self.write("own", {"a": 1, "l": [], "o": {}, "s": "x", "n": None, "options": {"tui": {}}})
        before = self.file.read_bytes()
        for key, value in (
            ("a.b", 1),
            ("l.0", 1),
            ("o", []),
            ("s", 5),
            ("a", True),
            ("options.debug", "yes"),
            ("providers.lab", 1),
            ("x", float("nan")),
            ("x", {1, 2}),
            ("x", "\ud800"),
            ("x", 10**30),
            ("x", "y" * files.MAX_FILE),
            ("", 1),
            ("a..b", 1),
            (".a", 1),
        ):
            with self.subTest(key, value=repr(value)[:20]), self.assertRaises(ConfigError):
                set_value(self.file, key, value)
            self.assertEqual(self.file.read_bytes(), before)
        with self.assertRaises(ConfigError):
            remove_value(self.file, "a.b")
        set_value(self.file, "n.deep", 1)
        set_value(self.file, "s", None)
        self.assertEqual((self.content()["n"], self.content()["s"]), ({"deep": 1}, None))

    def test_large_numbers_that_are_times_are_no_mistake(self) -> None:
        tokens = {"access_token": "a", "expires_at": 1_789_003_600}
        document = {
            "providers": {"lab": LAB | {"oauth": tokens}},
            "tools": {"grep": {"timeout": 5_000_000_000}},
        }
        self.write("own", document)
        self.assertEqual(list(self.load().providers), ["lab"])
        set_value(self.file, "providers.lab.oauth.expires_at", 1_889_003_600)
        with self.assertRaises(ConfigError):
            set_value(self.file, "models.large.max_tokens", 1_889_003_600)

    def test_a_broken_file_is_left_alone(self) -> None:
        self.write("own", "{broken")
        changes: list[Callable[[], bool]] = [
            lambda: set_value(self.file, "a", 1),
            lambda: remove_value(self.file, "a"),
        ]
        for change in changes:
            with self.assertRaises(ConfigError) as caught:
                change()
            self.assertIn(str(self.file), str(caught.exception))
        self.assertEqual(self.file.read_text(), "{broken")

    def test_a_link_is_not_written_through(self) -> None:
        target = self.write(self.base / "target.json", {"a": 1})
        self.file.parent.mkdir(parents=True)
        self.file.symlink_to(target)
        with self.assertRaises(ConfigError):
            set_value(self.file, "a", 2)
        self.assertEqual(json.loads(target.read_text()), {"a": 1})
        self.assertTrue(self.file.is_symlink())

    def test_a_failure_at_any_step_leaves_the_old_file_and_no_litter(self) -> None:
        self.write("own", {"a": 1})
        before = self.file.read_bytes()
        for step in ("fsync", "replace"):
            failure = mock.patch(f"os.{step}", side_effect=OSError(28, "No space left"))
            with self.subTest(step), failure, self.assertRaises(ConfigError) as caught:
                set_value(self.file, "a", 2)
            self.assertIn("No space left", str(caught.exception))
            self.assertEqual(self.file.read_bytes(), before)
            self.assertEqual(os.listdir(self.file.parent), ["crush.json"])
        (self.base / "plain").write_text("")
        with self.assertRaises(ConfigError):
            set_value(self.base / "plain" / "crush.json", "a", 1)

    def test_readers_and_writers_at_once_lose_nothing_and_see_no_half(self) -> None:
        failures: list[BaseException] = []

        def change(name: str) -> None:
            try:
                for count in range(10):
                    set_value(self.file, f"{name}.k{count}", "x" * 2000)
                    self.content()
            except BaseException as error:  # noqa: BLE001 - reported by the test's own thread
                failures.append(error)

        threads = [threading.Thread(target=change, args=(f"t{n}",)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        self.assertEqual(failures, [])
        self.assertEqual(
            {name: len(values) for name, values in self.content().items()},
            dict.fromkeys(("t0", "t1", "t2", "t3"), 10),
        )
