"""The section `mcp`: what is expanded, what cannot be used, and what a project may say."""

from __future__ import annotations

from crushlite.config.loading import ConfigFiles
from crushlite.config.toolservers import ToolServer
from crushlite.config.warnings import Reason
from tests.config.test_config import ConfigCase


class ToolServerTests(ConfigCase):
    def untrusted(self) -> ConfigFiles:
        return ConfigFiles(self.workspace, {}, self.roots, self.data_dir)

    def test_values_are_expanded_and_empty_headers_left_out(self) -> None:
        env = {"TOKEN": "secret-token-0001", "DIR": "/d"}
        program = {"command": "$DIR/run", "args": ["-v", "${DIR}"], "env": {"T": "$TOKEN"}}
        headers = {"Authorization": "Bearer $TOKEN", "X-Other": "$NOT_SET"}
        web = {"type": "http", "url": "http://h$DIR", "headers": headers, "timeout": 20}
        limited = {"command": "c", "enabled_tools": ["a", "b"], "disabled_tools": ["b"]}
        servers = {"p": program, "w": web, "l": limited}
        self.write("global", {"mcp": servers})
        found = self.load(env).tool_servers
        wanted = ToolServer("p", command="/d/run", args=("-v", "/d"), env=(("T", env["TOKEN"]),))
        self.assertEqual(found["p"], wanted)
        self.assertEqual(found["w"].url, "http://h/d")
        self.assertEqual(found["w"].headers, (("Authorization", "Bearer secret-token-0001"),))
        self.assertEqual(found["w"].timeout, 20)
        self.assertEqual([found["l"].offers(name) for name in "abc"], [True, False, False])
        self.assertIn(env["TOKEN"], self.load(env).secrets())
        self.assertNotIn(env["TOKEN"], repr(found))

    def test_a_token_in_an_address_is_a_secret(self) -> None:
        token = "sk-ant-0123456789abcdefghijklmnop"
        urls = [f"https://h/s/{token}1/mcp", f"https://h/mcp?api_key={token}2", "http://["]
        servers = {f"s{n}": {"type": "http", "url": url} for n, url in enumerate(urls)}
        self.write("global", {"mcp": servers})
        config = self.load()
        self.assertEqual([name for name, s in config.tool_servers.items() if s.problem], [])
        self.assertLessEqual({f"{token}1", f"{token}2"}, config.secrets())

    def test_one_that_cannot_be_used_says_why_and_costs_no_other(self) -> None:
        servers = {
            "a": {"command": ""},
            "b": {"type": "http"},
            "c": {"type": "odd"},
            "d": {"command": "${GONE:?set it}"},
            "e": {"type": "http", "url": "http://h", "headers": {"a b": "c"}},
            "off": {"command": "${GONE:?set it}", "disabled": True},
            "good": {"command": "x"},
        }
        self.write("global", {"mcp": servers})
        config = self.load()
        problems = {name for name, server in config.tool_servers.items() if server.problem}
        self.assertEqual(problems, set("abcde"))
        warned = [w.key for w in config.warnings if w.reason is Reason.SERVER_LEFT_OUT]
        self.assertEqual(warned, [f"mcp.{name}" for name in "abcde"])

    def test_a_project_brings_servers_only_when_it_is_trusted_and_changes_none(self) -> None:
        self.write("global", {"mcp": {"mine": {"command": "mine"}, "other": {"command": "o"}}})
        theirs = {"mine": {"command": "evil"}, "new": {"command": "new", "env": {"K": "$KEY"}}}
        self.write("project", {"mcp": {**theirs, "other": {"disabled": True}}})
        before = self.untrusted().load()
        self.assertEqual(set(before.tool_servers), {"mine", "other"})
        self.assertIn(Reason.UNTRUSTED, {warning.reason for warning in before.warnings})
        config = self.load({"KEY": "a-secret-key-00001"})
        found = config.tool_servers
        self.assertEqual((found["mine"].command, found["new"].command), ("mine", "new"))
        self.assertEqual(found["new"].env, (("K", ""),), "projects get no secrets")
        self.assertTrue(found["other"].disabled)
        self.assert_warned(config, "mcp.mine is ignored")
        self.write("project", {"mcp": {"new": {"command": "changed"}}})
        self.assertNotIn("new", self.untrusted().load().tool_servers)
