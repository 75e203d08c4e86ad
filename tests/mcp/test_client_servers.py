"""Tool servers that clients name while they are connected."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from crushlite.client import Client
from crushlite.errors import BadRequest
from crushlite.features import requests
from crushlite.features.wire import ClientServer, UsedServers
from crushlite.mcp import client_servers
from tests.support.configured import marked, new_mark, until
from tests.support.mcp import McpTestCase, scripted

if TYPE_CHECKING:
    from crushlite.client import RemoteWorkspace

SECRET = "a-value-that-nobody-may-see"


class Wanted:
    """A request of a client, in a task of its own."""

    def __init__(self, workspace: RemoteWorkspace, *servers: ClientServer) -> None:
        self.answers: asyncio.Queue[UsedServers] = asyncio.Queue()
        self._task = asyncio.create_task(self._run(workspace, list(servers)))

    async def _run(self, workspace: RemoteWorkspace, servers: list[ClientServer]) -> None:
        async for answer in requests.use_tool_servers(workspace, servers):
            self.answers.put_nowait(answer)

    async def end(self) -> None:
        self._task.cancel()
        await asyncio.wait([self._task])


def named(name: str, *switches: str, **more: Any) -> ClientServer:
    found = scripted(*switches)
    return ClientServer(name, command=found["command"], args=found["args"], **more)


class ClientServerTests(McpTestCase):
    servers = {"mine": scripted()}

    async def client(self) -> RemoteWorkspace:
        client = await self.enterAsyncContext(Client(f"unix://{self.daemon.socket}"))
        return await client.create(str(self.project), env=self.env)

    async def wanted(
        self, workspace: RemoteWorkspace, *servers: ClientServer
    ) -> tuple[Wanted, UsedServers]:
        request = Wanted(workspace, *servers)
        self.addAsyncCleanup(request.end)
        return request, await request.answers.get()

    async def test_they_run_until_the_last_client_that_named_them_is_gone(self) -> None:
        anna = await self.join()
        mark = new_mark()
        one, answer = await self.wanted(await self.client(), named("extra", mark))
        self.assertEqual(answer, UsedServers(["extra"]))
        await self.connected(anna, "extra")
        self.assertEqual(set(await self.states(anna)), {"extra", "mine"})
        self.assertEqual(len(marked(mark)), 1)
        other = await self.client()
        two, answer = await self.wanted(other, named("extra", mark))
        self.assertEqual(answer.used, ["extra"])
        part = self.part(anna)
        server = part.server("extra")
        await one.end()
        _, answer = await self.wanted(other, named("extra", "noisy"))
        self.assertIn("different", answer.refused["extra"])
        self.assertIs(part.find("extra"), server, "the other client still wants it")
        await two.end()
        await until(lambda: part.find("extra") is None, "nobody wants it any more")
        await until(lambda: not marked(mark), "its process has ended")
        self.assertIsNotNone(part.find("mine"))

    async def test_a_configured_one_counts_more_and_what_cannot_be_used_is_said(self) -> None:
        anna = await self.join()
        await self.connected(anna, "mine")
        part = self.part(anna)
        before = part.server("mine")
        bad = [
            ClientServer("mine", command="/no/such/program"),
            ClientServer("none"),
            ClientServer("pigeon", type="carrier-pigeon"),
            ClientServer("nul", command="a\0b"),
            ClientServer("head", type="http", url="http://h/", headers={"a b": "c"}),
            ClientServer("x" * 1000, command="c"),
            ClientServer("mine_too", command="c"),
            ClientServer("args", command="c", args=["a"] * 201),
            ClientServer("long", command="c", env={"A": "a" * 70_000}),
        ]
        _, answer = await self.wanted(await self.client(), *bad)
        self.assertEqual((answer.used, len(answer.refused)), ([], len(bad)))
        self.assertIn("configuration", answer.refused["mine"])
        self.assertIs(part.server("mine"), before)
        *most, last = (
            ClientServer(f"s{n}", command="/no/such") for n in range(client_servers.MOST + 1)
        )
        workspace = await self.client()
        with self.assertRaisesRegex(BadRequest, "at most 50"):
            await anext(requests.use_tool_servers(workspace, [*most, last]))
        _, answer = await self.wanted(workspace, *most)
        self.assertEqual((len(answer.used), answer.refused), (client_servers.MOST, {}))
        _, answer = await self.wanted(workspace, last)
        self.assertEqual(list(answer.refused), [last.name])

    async def test_what_they_were_given_is_shown_and_kept_nowhere(self) -> None:
        anna = await self.join()
        script = "echo token is $TOKEN >&2; exit 3"
        env = {"TOKEN": SECRET}
        secret = ClientServer("leaky", command="/bin/sh", args=["-c", script], env=env)
        await self.wanted(await self.client(), secret)
        (server,) = await self.ready(anna, "leaky")
        self.assertEqual(server.state, "error")
        state = (await self.states(anna))["leaky"]
        self.assertIn("token is", state["last_lines"])
        shown = [str(state), str((await anna.call("GET", "/config")).json), repr(secret)]
        shown += [str(event) for event in anna.events.seen]
        self.assertNotIn(SECRET, "".join(shown))
        files = [path for path in self.daemon.root.rglob("*") if path.is_file()]
        self.assertFalse([path for path in files if SECRET.encode() in path.read_bytes()])

    async def test_a_workspace_that_closes_ends_the_requests(self) -> None:
        workspace = await self.client()
        request, _ = await self.wanted(workspace, named("extra"))
        await workspace.release()
        await asyncio.wait([request._task])
