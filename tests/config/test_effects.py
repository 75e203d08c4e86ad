"""Nothing that is configured is silently ignored: keys without an effect, unknown keys, hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from crushlite.config.loading import ConfigFiles
from crushlite.config.warnings import Reason
from crushlite.wings import has_wing
from tests.config.test_config import LAB, MODEL, ConfigCase
from tests.support.configured import ConfiguredTestCase, results, use
from tests.support.wings import without

if TYPE_CHECKING:
    from pathlib import Path


class EffectTests(ConfigCase):
    def told(self, document: dict[str, Any], reason: Reason) -> list[str]:
        self.write("global", document)
        return [w.key for w in self.load().warnings if w.reason is reason]

    def test_every_key_of_a_feature_that_does_not_exist_is_named(self) -> None:
        document = {
            "env": {"A": "b"},
            "tools": {"ls": {"max_depth": 3}},
            "hooks": {"SessionStart": [{"command": "x"}]},
            "options": {"skills_paths": ["a"], "disabled_skills": ["b"]},
            "providers": {"lab": LAB | {"oauth": {"access_token": "t"}}},
        }
        wanted = ["env", "tools.ls", "hooks.SessionStart"]
        wanted += ["options.skills_paths", "options.disabled_skills", "providers.lab.oauth"]
        with without("hooks", "skills"):
            self.assertCountEqual(self.told(document, Reason.NO_EFFECT), wanted)

    def test_what_asks_for_nothing_is_not_named(self) -> None:
        document = {"mcp": {}, "env": {}, "options": {"auto_lsp": True, "skills_paths": []}}
        self.assertEqual(self.told(document, Reason.NO_EFFECT), [])

    def test_keys_that_nobody_knows_are_named_wherever_they_are(self) -> None:
        model = MODEL | {"contxt_window": 5}
        document = {
            "$schema": "https://charm.land/crush.json",
            "optoins": {"debug": True},
            "options": {"dbug": True, "tui": {"anything": 1}},
            "providers": {"lab": LAB | {"basurl": "x", "models": [model], "extra_body": {"y": 1}}},
            "models": {"medium": {"model": "m1"}, "large": {"model": "m1", "temprature": 1}},
            "permissions": {"allow": ["bash"]},
            "recent_models": {"large": [{"model": "m", "provider": "p", "z": 1}]},
        }
        wanted = ["optoins", "options.dbug", "providers.lab.basurl", "models.medium"]
        wanted += ["providers.lab.models.0.contxt_window", "models.large.temprature"]
        wanted += ["permissions.allow"]
        self.assertCountEqual(self.told(document, Reason.KEY_UNKNOWN), wanted)

    def test_a_flood_of_unknown_keys_is_named_in_part(self) -> None:
        document = {f"key{n}": 1 for n in range(500)}
        self.assertEqual(len(self.told(document, Reason.KEY_UNKNOWN)), 20)

    def test_every_setting_of_a_full_file_has_an_effect_or_is_named(self) -> None:
        sampling = {"temperature": 0.1, "top_p": 0.9, "top_k": 4, "frequency_penalty": 1}
        sampling |= {"presence_penalty": 1, "max_tokens": 9, "think": True}
        lab = LAB | {"extra_body": {"x": 1}, "provider_options": {"y": 1}, "flat_rate": True}
        large = {"provider": "lab", "model": "m1", "provider_options": {"z": 1}, **sampling}
        self.write("global", {"providers": {"lab": lab}, "models": {"large": large}})
        config = self.load()
        self.assertEqual(config.warnings, ())
        assert config.large is not None
        chosen = config.large.choice
        self.assertEqual({name: getattr(chosen, name) for name in sampling}, sampling)
        self.assertEqual(chosen.provider_options, {"z": 1})
        provider = config.large.provider
        self.assertEqual((provider.extra_body, provider.provider_options), ({"x": 1}, {"y": 1}))
        self.assertEqual(config.large.model.cost_per_1m_in, 0)

    def test_hooks_before_tools_match_by_expression_whatever_their_spelling(self) -> None:
        for event in ("PreToolUse", "pre_tool_use", "PRETOOLUSE"):
            for matcher, matched in {
                "^bash$": ["bash"],
                "Edit|write": ["edit", "multiedit", "write"],
                "^Read$": ["view"],
                "": ["bash", "edit", "multiedit", "view", "write"],
                "*": ["bash", "edit", "multiedit", "view", "write"],
                "(?P<": ["bash", "edit", "multiedit", "view", "write"],
                "mcp_": [],
            }.items():
                self.write("global", {"hooks": {event: [{"matcher": matcher, "command": "x"}]}})
                hooks = self.load().tool_hooks
                tools = ("bash", "edit", "multiedit", "view", "write")
                found = [tool for tool in tools if any(hook.matches(tool) for hook in hooks)]
                with self.subTest(event, matcher=matcher):
                    self.assertEqual(found, matched)

    def test_what_is_no_hook_is_one_for_every_tool(self) -> None:
        for wrong in ("x", {"command": "x"}, [5], [{"matcher": 5}]):
            self.write("global", {"hooks": {"PreToolUse": wrong}})
            self.assertTrue(any(hook.matches("view") for hook in self.load().tool_hooks), wrong)

    def test_hooks_of_a_project_count_when_it_is_trusted_and_not_before(self) -> None:
        self.write("project", {"hooks": {"pre_tool_use": [{"command": "x"}]}})
        files = ConfigFiles(self.workspace, {}, self.roots, self.data_dir)
        untrusted = files.load()
        self.assertEqual((untrusted.tool_hooks, untrusted.hooks), ((), ()))
        self.assert_warned(untrusted, "ignored are hooks.pre_tool_use")
        (hook,) = self.load().hooks
        self.assertEqual((hook.event, hook.is_machine), ("PreToolUse", False))

    def test_an_event_for_which_no_hook_is_run_is_named(self) -> None:
        hooks = {"PreCompact": [{"command": "x"}], "stop": [{"command": "y"}]}
        told = ["hooks.PreCompact"] if has_wing("hooks") else ["hooks.PreCompact", "hooks.stop"]
        self.assertEqual(self.told({"hooks": hooks}, Reason.NO_EFFECT), told)


class RefusalTests(ConfiguredTestCase):
    async def asyncSetUp(self) -> None:
        self.enterContext(without("hooks"))
        await super().asyncSetUp()

    async def test_a_tool_that_a_hook_must_be_asked_about_is_refused_and_others_run(self) -> None:
        guard = {"name": "guard", "matcher": "^bash$", "command": "./guard.sh"}
        self.configure(hooks={"PreToolUse": [guard]}, permissions={"allowed_tools": ["bash"]})
        folder = self.folder("guarded")
        client = await self.daemon.join(folder)
        self.plan = [use("bash", command="touch made"), use("ls", path=".")]
        session = await client.session()
        await self.turn(client, session, "work")
        refused, listed = results(await client.messages(session))
        self.assertTrue(refused["is_error"])
        self.assertIn("bash was not run: hooks.PreToolUse in ", refused["content"])
        self.assertIn("remove that hook or narrow its matcher", refused["content"])
        self.assertFalse(listed["is_error"], listed)
        self.assertFalse((folder / "made").exists())
        warning = client.workspace["warning"]
        self.assertIn("hooks.PreToolUse cannot be run: the tools it matches are refused", warning)

    def own_file(self) -> Path:
        return self.home / ".config/crush/crush.json"

    async def test_clients_are_told_of_everything_that_is_not_as_it_is_written(self) -> None:
        works = {
            "base_url": self.model.base_url,
            "models": [{"id": "listed"}],
            "extra_headers": {"Host": "x"},
        }
        self.configure(
            providers={"works": works, "broken": {"base_url": "ftp://x"}},
            models={"large": {"model": "new", "provider": "works"}},
            permissions={"rules": [{"tool": "bash"}]},
        )
        folder = self.folder("strange")
        (folder / "crush.json").write_text('{"options": {"global_context_paths": ["/x"]}}')
        client = await self.daemon.join(folder)
        broken, unlisted, project, own = client.workspace["warning"].splitlines()
        self.assertIn("providers.broken is left out: its base_url is not an http", broken)
        self.assertIn(f"{self.own_file()}: models.large is used as it is written", unlisted)
        for key in ("providers.works.extra_headers.Host", "permissions.rules"):
            self.assertIn(key, own)
        self.assertTrue(own.startswith(f"{self.own_file()}: "), own)
        self.assertIn(" have no effect: ", own)
        self.assertIn("crush.json: options.global_context_paths has no effect", project)
        self.assertFalse(project.startswith("/"))

    async def test_clients_are_told_which_keys_have_no_effect(self) -> None:
        self.configure(tools={"ls": {"max_depth": 3}}, optoins={})
        with self.assertLogs("crushlite", "WARNING") as logged:
            client = await self.daemon.join(self.folder("configured"))
        wanted = "tools.ls, optoins have no effect: `crushlite doctor` says why"
        self.assertEqual(client.workspace["warning"], f"{self.own_file()}: {wanted}")
        self.assertIn("tools.ls has no effect: searches have limits", str(logged.output))
