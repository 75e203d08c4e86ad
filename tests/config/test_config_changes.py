"""Clients change the configuration: the right file, one event each, and later runs follow."""

from __future__ import annotations

import asyncio
import json
import stat
from typing import TYPE_CHECKING, Any

from crushlite.cli.agent_names import find_agent
from crushlite.clock import SystemClock
from crushlite.coder.wing import CoderWing
from crushlite.config.factory import FollowsConfig
from crushlite.config.files import Roots
from crushlite.config.loading import ConfigFiles
from crushlite.fake_model import End, FakeModel, Say, obedient
from crushlite.testing import LocalDaemon
from tests.support.basics import BoundedTestCase

if TYPE_CHECKING:
    from pathlib import Path

    from crushlite.fake_model import ModelCall, Step
    from crushlite.testing import Answer, Participant

MODELS = [{"id": name, "name": name.title(), "default_max_tokens": 100} for name in ("big", "wee")]


def script(request: dict[str, Any]) -> list[Step]:
    """Answer at once; a turn whose prompt says "slowly" is left for the test to answer."""
    last = json.dumps(request["messages"][-1])
    if "tools" in request and ("@bash" in last or request["messages"][-1]["role"] == "tool"):
        return obedient(request)
    slow = "tools" in request and "slowly" in last
    return [] if slow else [Say("ok"), End()]


class ConfiguredTestCase(BoundedTestCase):
    """A daemon that decides on its agent as `serve` does, with a model server to choose from."""

    agent = "auto"

    async def asyncSetUp(self) -> None:
        self.model = await self.enterAsyncContext(FakeModel(script=script))
        self.daemon = LocalDaemon(find_agent(self.agent, SystemClock(), [CoderWing(local=())]))
        self.home = self.daemon.root / "home"
        self.user_file = self.home / ".local/share/crushlite/crush.json"
        self.project = self.daemon.root / "project"
        self.own_file = self.project / ".crushlite/crush.json"
        self.configure(self.configuration())
        await self.enterAsyncContext(self.daemon)
        self.anna = await self.daemon.join()

    def configuration(self) -> dict[str, Any]:
        lab = {"base_url": self.model.base_url, "api_key": "key-of-lab-000001", "models": MODELS}
        return {"providers": {"lab": lab}}

    def configure(self, document: dict[str, Any]) -> None:
        file = self.home / ".config/crush/crush.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(document))

    async def change(self, what: str, body: Any = None, *, by: Participant | None = None) -> Answer:
        return await (by or self.anna).call("POST", f"/config/{what}", body)

    async def changed(self, what: str, body: Any) -> None:
        answer = await self.change(what, body)
        self.assertEqual((answer.status, answer.json), (200, None))

    def written(self, file: Path) -> Any:
        return json.loads(file.read_text()) if file.exists() else {}

    async def shown(self, who: Participant | None = None) -> dict[str, Any]:
        config: dict[str, Any] = (await (who or self.anna).call("GET", "")).json["config"]
        return config

    async def model_in_use(self) -> str:
        info = (await self.anna.call("GET", "/agent")).json
        return f"{info['model_cfg']['provider']}/{info['model']['id']}"

    async def answered_by(self) -> str:
        session = await self.anna.session()
        run = (await self.anna.prompt(session, "hello")).json["run_id"]
        await self.anna.events.wait_for("run_complete", run_id=run)
        return str(next(m["model"] for m in await self.anna.messages(session) if m["model"]))

    async def slow_turn(self, session: str) -> tuple[str, ModelCall]:
        """A run that is waiting for its model, and the request to be answered by hand."""
        before = len(self.model.calls)
        run = (await self.anna.prompt(session, "slowly")).json["run_id"]
        while True:
            before += 1
            call = await self.model.call(before)
            if not script(call.request):
                return run, call

    async def settled(self, who: Participant | None = None) -> None:
        """Wait until this client has received everything that was published so far."""
        who = who or self.anna
        await who.events.wait_for("session", id=await who.session())

    def events(self, who: Participant | None = None) -> int:
        return len((who or self.anna).events.all("config_changed"))


class WritingTests(ConfiguredTestCase):
    async def test_each_scope_has_its_file_and_both_are_private(self) -> None:
        await self.changed("set", {"scope": 0, "key": "options.tui.transparent", "value": True})
        await self.changed("set", {"scope": 1, "key": "options.notifications", "value": "off"})
        self.assertEqual(self.written(self.user_file), {"options": {"tui": {"transparent": True}}})
        self.assertEqual(self.written(self.own_file), {"options": {"notifications": "off"}})
        for file in (self.user_file, self.own_file):
            self.assertEqual(stat.S_IMODE(file.stat().st_mode), 0o600)
        options = (await self.shown())["options"]
        self.assertEqual((options["tui"], options["notifications"]), ({"transparent": True}, "off"))

    async def test_compact_mode_and_removal(self) -> None:
        await self.changed("compact", {"scope": 0, "enabled": True})
        self.assertEqual((await self.shown())["options"]["tui"], {"compact_mode": True})
        await self.changed("remove", {"scope": 0, "key": "options.tui.compact_mode"})
        self.assertEqual(self.written(self.user_file), {"options": {"tui": {}}})
        self.assertEqual((await self.shown())["options"]["tui"], {})

    async def test_crush_s_own_file_is_never_written(self) -> None:
        crush = self.home / ".local/share/crush/crush.json"
        crush.parent.mkdir(parents=True)
        crush.write_text("{}")
        await self.changed("set", {"scope": 0, "key": "options.debug", "value": True})
        self.assertEqual(crush.read_text(), "{}")

    async def test_what_is_refused_changes_nothing_and_is_not_announced(self) -> None:
        refused: tuple[tuple[str, dict[str, Any], str], ...] = (
            ("set", {"scope": 2, "key": "a", "value": 1}, "scope 2"),
            ("set", {"scope": -1, "key": "a", "value": 1}, "scope -1"),
            ("set", {"scope": 0, "key": "", "value": 1}, "key"),
            ("set", {"scope": 0, "key": "options.debug", "value": "yes"}, "options.debug"),
            ("set", {"scope": 0, "key": "providers", "value": []}, "providers"),
            ("remove", {"scope": 3, "key": "a"}, "scope 3"),
            ("model", {"scope": 0, "model_type": "huge", "model": {}}, "large or small"),
            ("model", {"scope": 0, "model_type": "large", "model": {"model": "x"}}, "provider"),
            ("provider-key", {"scope": 0, "provider_id": "lab", "kind": "x"}, "kind"),
            ("provider-key", {"provider_id": "lab", "kind": "string", "api_key": 1}, "string"),
            ("provider-key", {"provider_id": "lab", "kind": "oauth", "api_key": "k"}, "object"),
            ("provider-key", {"provider_id": "", "kind": "string", "api_key": "k"}, "provider_id"),
        )
        for what, body, reason in refused:
            with self.subTest(what, body=body):
                answer = await self.change(what, body)
                self.assertEqual(answer.status, 400, answer.json)
                self.assertIn(reason, answer.json["message"])
        for model in ({"model": "huge", "provider": "lab"}, {"model": "big", "provider": "nosuch"}):
            body = {"scope": 0, "model_type": "large", "model": model}
            answer = await self.change("model", body)
            self.assertEqual(answer.status, 400)
            self.assertIn("lab", answer.json["message"])
        self.assertEqual((self.written(self.user_file), self.written(self.own_file)), ({}, {}))
        await self.settled()
        self.assertEqual(self.events(), 0)

    async def test_what_the_workspace_s_file_has_no_say_in_is_refused_there(self) -> None:
        for key, value in (("env.A", "b"), ("foo.bar", 1)):
            answer = await self.change("set", {"scope": 1, "key": key, "value": value})
            self.assertEqual((answer.status, answer.json["code"]), (400, "bad_config"), key)
            self.assertIn("scope 0", answer.json["message"])
        self.assertEqual(self.written(self.own_file), {})
        await self.settled()
        self.assertEqual(self.events(), 0)

    async def test_the_words_of_a_warning_refuse_nothing(self) -> None:
        # The provider is left out with a warning that holds its name.
        key = "providers.a is ignored: b.base_url"
        await self.changed("set", {"scope": 1, "key": key, "value": "no address"})
        written = {"a is ignored: b": {"base_url": "no address"}}
        self.assertEqual(self.written(self.own_file), {"providers": written})

    async def test_a_value_at_odds_with_another_file_is_refused_before_it_is_written(self) -> None:
        self.configure(self.configuration() | {"odd": {"thing": {"deep": 1}}})
        await self.changed("set", {"scope": 0, "key": "fine", "value": 1})
        before = self.user_file.read_bytes()
        answer = await self.change("set", {"scope": 0, "key": "odd.thing", "value": "text"})
        self.assertEqual((answer.status, answer.json["code"]), (400, "bad_config"))
        self.assertIn("odd.thing", answer.json["message"])
        self.assertEqual(self.user_file.read_bytes(), before)

    async def test_changes_at_once_all_survive(self) -> None:
        ben = await self.daemon.join()
        await asyncio.gather(
            *(
                self.change("set", {"scope": 0, "key": f"x.k{n}", "value": n}, by=who)
                for n, who in enumerate([self.anna, ben] * 8)
            )
        )
        self.assertEqual(self.written(self.user_file), {"x": {f"k{n}": n for n in range(16)}})


class EventTests(ConfiguredTestCase):
    async def test_every_client_gets_one_event_for_a_change_of_any_client(self) -> None:
        ben = await self.daemon.join()
        await self.changed("compact", {"scope": 0, "enabled": True})
        for who in (self.anna, ben):
            event = await who.events.wait_for("config_changed")
            self.assertEqual(event.payload, {"workspace_id": who.workspace["id"]})
            await self.settled(who)
            self.assertEqual(self.events(who), 1)

    async def test_a_change_that_changes_nothing_is_fine_and_not_announced(self) -> None:
        body = {"scope": 0, "key": "options.debug", "value": True}
        await self.changed("set", body)
        await self.anna.events.wait_for("config_changed")
        inode = self.user_file.stat().st_ino
        await self.changed("set", body)
        await self.changed("remove", {"scope": 0, "key": "options.nothing.here"})
        await self.changed("remove", {"scope": 1, "key": "options"})
        await self.settled()
        self.assertEqual((self.events(), self.user_file.stat().st_ino), (1, inode))
        self.assertFalse(self.own_file.exists())

    async def test_other_workspaces_get_an_event_if_the_change_concerns_them(self) -> None:
        away = await self.daemon.join(path=self.daemon.root / "away")
        await self.changed("set", {"scope": 1, "key": "options.debug", "value": True})
        await self.anna.events.wait_for("config_changed")
        await self.settled(away)
        self.assertEqual(self.events(away), 0)
        await self.changed("compact", {"scope": 0, "enabled": True})
        event = await away.events.wait_for("config_changed")
        self.assertEqual(event.payload, {"workspace_id": away.workspace["id"]})
        self.assertEqual((await self.shown(away))["options"]["tui"], {"compact_mode": True})

    async def test_a_project_that_was_set_up_is_announced(self) -> None:
        self.assertEqual((await self.anna.call("POST", "/project/init")).status, 200)
        await self.anna.events.wait_for("config_changed")

    async def test_a_file_edited_by_hand_counts_after_an_update(self) -> None:
        document = self.configuration() | {"options": {"debug": True}}
        self.configure(document)
        self.assertNotIn("debug", (await self.shown())["options"])
        self.assertEqual((await self.anna.call("POST", "/agent/update")).status, 200)
        await self.anna.events.wait_for("config_changed")
        self.assertTrue((await self.shown())["options"]["debug"])
        await self.anna.call("POST", "/agent/update")
        await self.settled()
        self.assertEqual(self.events(), 1)

    async def test_a_broken_file_is_named_and_what_was_in_force_stays(self) -> None:
        file = self.home / ".config/crush/crush.json"
        file.write_text("{broken")
        answer = await self.anna.call("POST", "/agent/update")
        self.assertEqual((answer.status, answer.json["code"]), (400, "bad_config"))
        self.assertIn(str(file), answer.json["message"])
        self.assertEqual(await self.answered_by(), "big")


class ModelTests(ConfiguredTestCase):
    async def choose(self, model: str, role: str = "large", scope: int = 1, **more: Any) -> None:
        choice = {"model": model, "provider": "lab", **more}
        await self.changed("model", {"scope": scope, "model_type": role, "model": choice})

    async def test_a_chosen_model_answers_later_runs(self) -> None:
        self.assertEqual(await self.answered_by(), "big")
        await self.choose("wee")
        self.assertEqual(await self.model_in_use(), "lab/wee")
        self.assertEqual(await self.answered_by(), "wee")
        self.assertEqual((await self.shown())["models"]["large"]["model"], "wee")
        written = self.written(self.own_file)["models"]["large"]
        self.assertEqual(written, {"model": "wee", "provider": "lab"})

    async def test_a_choice_for_all_directories_counts_where_one_was_made_for_this_one(
        self,
    ) -> None:
        await self.choose("wee")
        await self.choose("big", scope=0)
        self.assertEqual(await self.answered_by(), "big")
        for file in (self.user_file, self.own_file):
            self.assertEqual(self.written(file)["models"]["large"]["model"], "big")

    async def test_a_turn_under_way_keeps_its_model(self) -> None:
        session = await self.anna.session()
        run, call = await self.slow_turn(session)
        await self.choose("wee")
        self.assertEqual(await self.model_in_use(), "lab/wee")
        await call.text("ok")
        await call.finish()
        done = await self.anna.events.wait_for("run_complete", run_id=run)
        self.assertEqual((done["text"], done["cancelled"], done["error"]), ("ok", None, None))
        used = [m["model"] for m in await self.anna.messages(session) if m["role"] == "assistant"]
        self.assertEqual(used, ["big"])

    async def test_the_last_five_are_remembered_newest_first(self) -> None:
        for model in ("big", "wee", "big", "wee"):
            await self.choose(model, scope=0)
        recent = self.written(self.user_file)["recent_models"]["large"]
        self.assertEqual([one["model"] for one in recent], ["wee", "big"])
        self.assertEqual((await self.shown())["recent_models"]["large"], recent)
        models = [{"id": f"m{n}"} for n in range(7)]
        document = self.configuration()
        document["providers"]["lab"]["models"] = models
        self.configure(document)
        await self.anna.call("POST", "/agent/update")
        for n in range(7):
            await self.choose(f"m{n}", role="small", scope=0)
        recent = self.written(self.user_file)["recent_models"]["small"]
        self.assertEqual([one["model"] for one in recent], ["m6", "m5", "m4", "m3", "m2"])

    async def test_what_was_set_for_one_model_is_not_inherited_by_the_next(self) -> None:
        await self.choose("big", scope=0, max_tokens=7, temperature=0.5)
        await self.choose("wee")
        large = (await self.shown())["models"]["large"]
        self.assertEqual(large, {"model": "wee", "provider": "lab", "max_tokens": 100})
        await self.choose("wee", temperature=0.1)
        await self.choose("wee")
        self.assertNotIn("temperature", (await self.shown())["models"]["large"])

    async def test_the_small_model_of_a_provider(self) -> None:
        path = "/agent/default-small-model"
        for query, status in (("", 400), ("?provider_id=", 400), ("?provider_id=nosuch", 404)):
            self.assertEqual((await self.anna.call("GET", path + query)).status, status)
        answer = await self.anna.call("GET", path + "?provider_id=lab")
        self.assertEqual(answer.json, {"model": "big", "provider": "lab"})
        await self.choose("wee")
        answer = await self.anna.call("GET", path + "?provider_id=lab")
        self.assertEqual(answer.json, {"model": "wee", "provider": "lab"})

    async def test_the_providers_are_listed_without_their_keys(self) -> None:
        [lab] = (await self.anna.call("GET", "/providers")).json
        self.assertEqual((lab["id"], [m["id"] for m in lab["models"]]), ("lab", ["big", "wee"]))
        self.assertNotIn("key-of-lab", json.dumps(lab))
        self.assertEqual((await self.daemon.call("GET", "/v1/config")).json, {})

    async def test_losing_the_last_model_falls_back_and_comes_back(self) -> None:
        await self.changed("set", {"scope": 0, "key": "providers.lab.disable", "value": True})
        self.assertEqual(await self.model_in_use(), "offline/offline")
        self.assertEqual(await self.answered_by(), "offline")
        await self.changed("remove", {"scope": 0, "key": "providers.lab.disable"})
        self.assertEqual(await self.answered_by(), "big")


class PermissionTests(ConfiguredTestCase):
    async def test_a_tool_that_is_allowed_meanwhile_is_not_asked_for(self) -> None:
        session = await self.anna.session()
        await self.anna.prompt(session, "@bash touch one")
        asked = await self.anna.events.wait_for("permission_request")
        await self.anna.grant(asked.payload)
        await self.anna.events.wait_for("run_complete")
        body = {"scope": 0, "key": "permissions.allowed_tools", "value": ["bash"]}
        await self.changed("set", body)
        await self.anna.prompt(session, "@bash touch two")
        await self.anna.events.wait_for("run_complete")
        self.assertEqual(len(self.anna.events.all("permission_request")), 1)
        self.assertTrue((self.project / "two").exists())


class OnlyCoderTests(ConfiguredTestCase):
    agent = "coder"

    async def test_without_a_usable_model_prompts_are_refused_until_there_is_one(self) -> None:
        session = await self.anna.session()
        run, call = await self.slow_turn(session)
        queued = (await self.anna.prompt(session, "later", run_id="q")).json["run_id"]
        await self.changed("set", {"scope": 0, "key": "providers.lab.disable", "value": True})
        self.assertFalse((await self.anna.call("GET", "/agent")).json["is_ready"])
        refused = await self.anna.try_prompt(session, "no")
        self.assertEqual((refused.status, refused.json["code"]), (400, "no_agent"))
        await call.text("ok")
        await call.finish()
        # Prompts that were accepted before are answered by the agent of that time.
        for promised in (run, queued):
            done = await self.anna.events.wait_for("run_complete", run_id=promised)
            self.assertEqual((done["text"], done["error"]), ("ok", None))
        await self.changed("remove", {"scope": 0, "key": "providers.lab.disable"})
        self.assertEqual(await self.answered_by(), "big")


class KeyTests(ConfiguredTestCase):
    async def set_key(self, key: Any, kind: str = "string", scope: int = 0) -> None:
        body = {"scope": scope, "provider_id": "lab", "kind": kind, "api_key": key}
        await self.changed("provider-key", body)

    async def test_a_key_is_used_and_never_shown(self) -> None:
        await self.set_key("a-brand-new-key-4711")
        self.assertEqual(
            self.written(self.user_file),
            {"providers": {"lab": {"api_key": "a-brand-new-key-4711"}}},
        )
        await self.answered_by()
        sent = {call.headers["authorization"] for call in self.model.calls}
        self.assertEqual(sent, {"Bearer a-brand-new-key-4711"})
        for path in ("", "/config", "/providers"):
            self.assertNotIn("brand-new", json.dumps((await self.anna.call("GET", path)).json))

    async def test_tokens_are_kept_and_the_access_token_used(self) -> None:
        tokens = {"access_token": "acc-000000001", "refresh_token": "ref-000000001"}
        await self.set_key(tokens, "oauth")
        lab = self.written(self.user_file)["providers"]["lab"]
        self.assertEqual(lab, {"api_key": "acc-000000001", "oauth": tokens})
        self.assertNotIn("ref-0000", json.dumps(await self.shown()))

    async def test_a_key_in_any_spelling_for_the_user_s_own_provider_stays_in_the_user_s_file(
        self,
    ) -> None:
        for key in ("$LAB_KEY_OF_MINE", " pasted-key-4711\n"):
            await self.set_key(key)
            self.assertEqual(self.written(self.user_file)["providers"]["lab"]["api_key"], key)
            self.assertFalse(self.own_file.exists(), "the project learns nothing of it")

    async def test_a_key_for_a_project_s_own_provider_goes_to_the_workspace_s_file(self) -> None:
        self.configure({})
        (self.project / "crush.json").write_text(
            json.dumps({"providers": {"lab": {"base_url": self.model.base_url, "models": MODELS}}})
        )
        files = ConfigFiles(self.project, {}, Roots.below(self.home), self.own_file.parent)
        files.trust(files.project_files())
        await self.anna.call("POST", "/agent/update")
        await self.set_key("key-for-the-project")
        key = self.written(self.own_file)["providers"]["lab"]["api_key"]
        self.assertEqual(key, "key-for-the-project")
        self.assertFalse(self.user_file.exists(), "the user's own file is not touched")
        await self.answered_by()
        sent = {call.headers["authorization"] for call in self.model.calls}
        self.assertEqual(sent, {"Bearer key-for-the-project"})


class OwnAgentTests(BoundedTestCase):
    async def test_an_agent_given_by_hand_is_made_once_and_stays(self) -> None:
        made: list[Any] = []

        class Own:
            def __init__(self, path: Any, env: Any, config: Any) -> None:
                made.append(config)

            async def run(self, turn: Any) -> None:
                await turn.say("mine")

        async with LocalDaemon(Own) as daemon:
            anna = await daemon.join()
            body: dict[str, Any] = {"scope": 1, "key": "options.debug", "value": True}
            self.assertEqual((await anna.call("POST", "/config/set", body)).status, 200)
            await anna.events.wait_for("config_changed")
            await anna.call("POST", "/agent/update")
            # Choosing the agent's own model is no mistake, and nothing is stored.
            model = (await anna.call("GET", "/agent")).json["model_cfg"]
            body = {"scope": 1, "model_type": "large", "model": model}
            self.assertEqual((await anna.call("POST", "/config/model", body)).status, 200)
            small = await anna.call(
                "GET", f"/agent/default-small-model?provider_id={model['provider']}"
            )
            self.assertEqual(small.json["model"], model["model"])
            await anna.events.wait_for("session", id=await anna.session())
            self.assertEqual((len(made), len(anna.events.all("config_changed"))), (1, 1))
        self.assertNotIsInstance(find_agent("offline", SystemClock(), [CoderWing()]), FollowsConfig)


class NotesTests(ConfiguredTestCase):
    async def test_the_prompt_for_notes_names_the_file_to_write(self) -> None:
        await self.changed("set", {"scope": 1, "key": "options.initialize_as", "value": "NOTES.md"})
        prompt = (await self.anna.call("GET", "/project/init-prompt")).json["prompt"]
        self.assertIn("NOTES.md", prompt)
