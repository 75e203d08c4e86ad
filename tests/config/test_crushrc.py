"""The user's own crushrc: run once, bounded, and read as the crush.json that says the same."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from unittest import mock

from crushlite.config import script
from crushlite.config.loading import ConfigFiles
from crushlite.config.script import ScriptRuns
from crushlite.config.warnings import Reason
from tests.config.test_config import ConfigCase
from tests.support.configured import marked, new_mark

if TYPE_CHECKING:
    from pathlib import Path

    from crushlite.config.view import Config

ENV = {"PATH": os.environ["PATH"]}


class ScriptCase(ConfigCase):
    def setUp(self) -> None:
        super().setUp()
        self.script = self.places["global"].with_name("crushrc")
        self.runs = ScriptRuns()

    def crushrc(self, text: str) -> Path:
        self.write(self.script, text)
        self.script.chmod(0o600)
        return self.script

    def load(self, env: dict[str, str] | None = None, *, commands: bool = False) -> Config:
        files = ConfigFiles(
            self.workspace, ENV | (env or {}), self.roots, self.data_dir, commands, self.runs
        )
        return files.load()

    def said(self, text: str, env: dict[str, str] | None = None) -> dict[tuple[str, ...], Any]:
        self.crushrc(text)
        return {path: value for path, value, _ in self.load(env).entries()}


class MeaningTests(ScriptCase):
    def test_providers_and_models(self) -> None:
        self.crushrc(
            """
            # comments and the whole of Bash are allowed
            url=http://lab.example
            provider add lab --name "The Lab" --type openai-compat --api-key "$LAB_KEY" \\
              --base-url "$url/v1" --extra-header X-Team parsers X-More 'a b' \\
              --extra-body '{"a": {"b": 1}}' --system-prompt-prefix "Be brief."
            for size in 7 70; do
              model add lab/toy-${size}b --context-window ${size}000 --price-input 1.5 \\
                --price-cache-hit 0.25 --can-reason --supports-images=true
            done
            model add lab/gone; model rm lab/gone
            model large lab/toy-70b --temperature 0.2 --top-k 5 --think --reasoning-effort high
            model small lab/toy-7b
            model large
            """
        )
        config = self.load({"LAB_KEY": "key-of-the-lab-0001"})
        self.assertEqual(config.warnings, ())
        provider = config.providers["lab"]
        self.assertEqual((provider.name, provider.base_url), ("The Lab", "http://lab.example/v1"))
        self.assertEqual(provider.api_key, "key-of-the-lab-0001")
        self.assertEqual(provider.extra_headers, {"X-Team": "parsers", "X-More": "a b"})
        self.assertEqual(provider.extra_body, {"a": {"b": 1}})
        self.assertEqual([model.id for model in provider.models], ["toy-7b", "toy-70b"])
        large, small = config.large, config.small
        assert large is not None
        assert small is not None
        self.assertEqual((large.model.id, small.model.id), ("toy-70b", "toy-7b"))
        self.assertEqual(large.model.context_window, 70000)
        self.assertEqual(
            (large.model.cost_per_1m_in, large.model.cost_per_1m_out_cached), (1.5, 0.25)
        )
        self.assertTrue(large.model.can_reason and large.model.supports_attachments)
        self.assertEqual((large.choice.temperature, large.choice.top_k), (0.2, 5))
        self.assertTrue(large.choice.think)
        self.assertIn(f"chosen in {self.script}", config.choice().reason)
        self.assertIn("key-of-the-lab-0001", config.secrets())

    def test_servers_hooks_permissions_and_options(self) -> None:
        said = self.said(
            """
            mcp add tickets --type stdio --command npx --args -y tickets --env A 1 B 2 --timeout 9
            lsp add gopls --command gopls --filetypes go mod --disabled false
            hook add PreToolUse --name guard --matcher '^bash$' --command ./guard.sh
            hook add PreToolUse --name other --command x; hook rm PreToolUse --name other
            permissions allow view ls
            permissions deny fetch
            option disable-auto-summarize true
            option context_paths docs/a.md docs/b.md
            option attribution.trailer-style assisted-by
            option debug true; option reset debug
            option ui compact on; option ui completions-max-items 7
            """
        )
        wanted = {
            ("mcp", "tickets", "args"): ["-y", "tickets"],
            ("mcp", "tickets", "env", "B"): "2",
            ("mcp", "tickets", "timeout"): 9,
            ("lsp", "gopls", "filetypes"): ["go", "mod"],
            ("lsp", "gopls", "disabled"): False,
            ("hooks", "PreToolUse", "0", "matcher"): "^bash$",
            ("permissions", "allowed_tools"): ["view", "ls"],
            ("options", "disabled_tools"): ["fetch"],
            ("options", "disable_auto_summarize"): True,
            ("options", "context_paths"): ["docs/a.md", "docs/b.md"],
            ("options", "attribution", "trailer_style"): "assisted-by",
            ("options", "tui", "compact_mode"): True,
            ("options", "tui", "completions", "max_items"): 7,
        }
        self.assertEqual({key: said.get(key) for key in wanted}, wanted)
        self.assertNotIn(("options", "debug"), said)
        self.assertNotIn(("hooks", "PreToolUse", "1", "name"), said)

    def test_a_script_is_stronger_than_the_json_beside_it_and_weaker_than_later_files(self) -> None:
        for place in ("global", "own"):
            self.write(place, {"options": {"initialize_as": place}})
        self.crushrc("option initialize-as script; option debug true")
        self.write("global", {"options": {"initialize_as": "json", "debug": False}})
        config = self.load()
        self.assertEqual((config.options.initialize_as, config.options.debug), ("own", True))
        self.assertEqual(config.files, (self.places["global"], self.script, self.places["own"]))

    def test_a_variable_that_is_not_set_is_an_empty_value(self) -> None:
        said = self.said('provider add lab --api-key "$NOT_SET" --base-url http://lab.example')
        self.assertEqual(said["providers", "lab", "api_key"], "")
        self.assertEqual(self.load().warnings, ())

    def test_a_provider_that_is_removed_is_not_used_whoever_brought_it(self) -> None:
        self.crushrc("provider rm groq")
        self.assertEqual(dict(self.load({"GROQ_API_KEY": "k"}).providers), {})

    def test_what_is_not_understood_is_named_and_the_rest_counts(self) -> None:
        self.crushrc(
            """
            provider add lab --base-url http://lab.example --api-keys hunter2-secret
            provider frobnicate lab
            model add nosuchslash
            model large lab/m --temperature warm --top-p 0.5
            optoin debug true
            option nosuch 1
            """
        )
        config = self.load()
        told = [w.text for w in config.warnings if w.reason is Reason.CALL_IGNORED]
        for words in (
            "`provider add`: --api-keys is not known",
            "`provider frobnicate` has no effect: use add or rm",
            "`model add` has no effect: wants PROVIDER/MODEL",
            "`model large`: --temperature wants a number",
            "`optoin` has no effect: there is no such command",
            "`option nosuch` has no effect: there is no such option",
        ):
            self.assertTrue(any(words in text for text in told), f"{words} not in {told}")
        self.assertNotIn("hunter2", str(config.warnings))
        keys = [w.key for w in config.warnings if w.reason is Reason.CALL_IGNORED]
        self.assertEqual(keys[1::3], ["provider frobnicate", "optoin"], "people are told these")
        assert config.large is not None
        self.assertEqual(config.large.choice.top_p, 0.5)

    def test_wrong_values_are_refused_as_in_a_json_file(self) -> None:
        self.crushrc("model large lab/m --top-p 7")
        self.assertIn(f"{self.script}: models.large.top_p must be between", self.refused())


class RunningTests(ScriptCase):
    def test_it_runs_in_its_folder_with_its_variables_and_nothing_of_bash_before_it(self) -> None:
        before = self.write(self.base / "before.sh", "option notifications before\n")
        said = self.said(
            'set -u; option notifications "$PWD|$CRUSH_GLOBAL_CONFIG|${CRUSH_VERSION:+yes}|'
            '${CRUSH_SKILLS_DIR##*/}|${CRUSH_GLOBAL_DATA##*/}|$(cat)"',
            {"BASH_ENV": str(before)},
        )
        folder = self.script.parent
        self.assertEqual(said["options", "notifications"], f"{folder}|{folder}|yes|skills|crush|")

    def test_what_it_prints_is_no_call(self) -> None:
        said = self.said("printf '2\\0option\\0debug\\0'; echo model; option debug true")
        self.assertEqual(said, {("options", "debug"): True})

    def test_a_script_that_does_not_come_to_its_end_is_an_error_that_says_so(self) -> None:
        for text, reason in {
            "if true; then": "no valid Bash",
            "option debug true; exit 3": "it left before its end, with status 3",
            "set -e; false; option debug true": "it left before its end, with status 1",
            "kill -9 $$": "it did not come to its end",
        }.items():
            self.crushrc(text)
            with self.subTest(text):
                self.assertIn(f"{self.script}: {reason}", self.refused())
        self.assertEqual(
            self.said("option debug true; exit 0; nonsense"), {("options", "debug"): True}
        )
        self.assertEqual(
            self.said("option debug true; [ -f nosuch ] && x"), {("options", "debug"): True}
        )

    def test_one_that_hangs_is_killed_with_all_that_it_started(self) -> None:
        mark = new_mark()
        self.crushrc(f"(setsid sleep {mark} &)\nsleep {mark}")
        with mock.patch.object(script, "SCRIPT_SECONDS", 0.3):
            self.assertIn("did not end in 0.3 s", self.refused())
        self.assertEqual(marked(mark), [])
        self.crushrc("while :; do option debug true; done")
        with mock.patch.object(script, "MAX_RECORDED", 10_000):
            self.assertIn("configures more than 10000 bytes", self.refused())

    def test_it_is_run_once_until_it_changes_or_somebody_asks(self) -> None:
        counter = self.base / "counter"
        text = f"echo x >> {counter}; option debug true"
        self.crushrc(text)
        for _ in range(3):
            self.load()
        self.assertEqual(counter.read_text(), "x\n")
        self.runs.forget()
        self.load()
        self.assertEqual(counter.read_text(), "x\n" * 2)
        self.crushrc(f"{text}\n")
        self.load()
        self.load({"ANOTHER": "environment"})
        self.assertEqual(counter.read_text(), "x\n" * 4)

    def test_a_file_that_others_can_write_to_is_not_run(self) -> None:
        ran = self.base / "ran"
        self.crushrc(f"touch {ran}").chmod(0o622)
        self.assertIn("others can write to it", self.refused())
        self.assertFalse(ran.exists())

    def test_the_script_of_a_project_is_never_run_and_this_is_said(self) -> None:
        ran = self.base / "ran"
        for name in ("crushrc", ".crushrc"):
            self.write(self.workspace / name, f"touch {ran}")
            (self.workspace / name).chmod(0o600)
        config = self.load()
        self.assertFalse(ran.exists())
        skipped = [w.file for w in config.warnings if w.reason is Reason.FILE_SKIPPED]
        self.assertEqual(skipped, [self.workspace / "crushrc", self.workspace / ".crushrc"])
        self.assert_warned(config, "the script of a project is never run")

    def test_an_empty_script_and_a_missing_bash(self) -> None:
        self.crushrc(" \n")
        self.assertEqual(self.load().files, ())
        self.crushrc("option debug true")
        self.assertIn("cannot run bash", self.refused({"PATH": str(self.base)}))
