"""Tools that wings offer to the coder: they are described after its own, ask, and are bounded."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
from typing import TYPE_CHECKING, Any

from crushlite.coder.loop import CoderOptions
from crushlite.coder.providers.base import CallPiece, ModelStop
from crushlite.coder.tools.results import RESULT_CHARS
from crushlite.coder.tools.toolbox import FOUND, MOST, SEARCH
from crushlite.coder.tools.view import View
from crushlite.features.offers import OfferingPart
from crushlite.features.tools import OfferedTool, ToolAnswer, ToolMedia, ToolQuestion
from crushlite.guards.part import GuardPart, Ruling, ToolUsed
from crushlite.hosting.dialogs import Permissions
from crushlite.protocol.config import Model
from crushlite.protocol.permissions import PermissionRequest
from tests.support.images import png
from tests.support.model import CoderBench, EchoTool, PlannedProvider, said

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from crushlite.agent.base import Turn
    from crushlite.coder.providers.base import Piece


class Offered(OfferedTool):
    """Answers as the test says, and keeps its calls."""

    def __init__(self, name: str, answer: ToolAnswer | None = None, **options: Any) -> None:
        self.name = name
        self.description = options.pop("description", f"does {name}")
        self.parameters = {"type": "object", "properties": {"a": {"type": "string"}}}
        self.answer = answer or ToolAnswer(f"{name} was here")
        self.calls: list[tuple[dict[str, Any], str]] = []
        self.asks = options.pop("asks", False)
        self.read_only = options.pop("read_only", False)
        self.searchable = options.pop("searchable", False)

    def question(self, arguments: Mapping[str, Any]) -> ToolQuestion | None:
        return super().question(arguments) if self.asks else None

    async def call(self, turn: Turn, arguments: dict[str, Any], call_id: str) -> ToolAnswer:
        self.calls.append((arguments, call_id))
        return self.answer


class Offers(OfferingPart):
    def __init__(self, *tools: OfferedTool, told: Sequence[tuple[str, str]] = ()) -> None:
        self.offered = list(tools)
        self.told = told

    async def tools(self, turn: Turn) -> Sequence[OfferedTool]:
        return self.offered

    def instructions(self) -> Sequence[tuple[str, str]]:
        return self.told


class Faulty(OfferingPart):
    async def tools(self, turn: Turn) -> Sequence[OfferedTool]:
        raise RuntimeError("broken")

    def instructions(self) -> Sequence[tuple[str, str]]:
        raise RuntimeError("broken")


def use(*names: str, arguments: str = '{"a": "b"}') -> list[Piece | BaseException]:
    calls = [CallPiece(n, f"{name}-{n}", name, arguments) for n, name in enumerate(names)]
    return [*calls, ModelStop("tool_use")]


class OfferedToolTests(CoderBench):
    def offer(self, *tools: OfferedTool, **more: Any) -> Offers:
        part = Offers(*tools, **more)
        self.parts.append(part)
        return part

    async def results(self, *tools: OfferedTool, **more: Any) -> list[Any]:
        """The results of one call of each tool, as the next request holds them."""
        self.offer(*tools)
        provider = PlannedProvider(use(*(tool.name for tool in tools)), said("done"))
        model = Model(id="m", context_window=1_000_000, supports_attachments=True)
        await self.converse(self.coder(provider, model=model, **more))
        return [m for m in provider.requests[1].messages if m.role == "tool"]

    async def test_they_follow_the_coder_s_own_in_a_stable_order(self) -> None:
        first, second = Offered("zeta"), Offered("alpha")
        part = self.offer(first, second)
        self.parts.append(Faulty())  # costs nobody else anything
        self.offer(Offered("zeta", ToolAnswer("hidden")), Offered("echo"))
        provider = PlannedProvider(use("zeta"), use("echo"), said("done"))
        own = EchoTool()
        with self.assertLogs("crushlite.hosting.workspace_base", "ERROR"):
            await self.converse(self.coder(provider, tools=[own]))
        names = [[tool.name for tool in request.tools] for request in provider.requests]
        self.assertEqual(names, [["echo", "zeta", "alpha"]] * 3)
        self.assertEqual(first.calls, [({"a": "b"}, "zeta-0")])
        self.assertEqual(len(own.ran), 1)
        part.offered = [second]
        provider = PlannedProvider(said("done"))
        with self.assertLogs("crushlite.hosting.workspace_base", "ERROR"):
            await self.converse(self.coder(provider))
        self.assertEqual([t.name for t in provider.requests[0].tools], ["alpha", "zeta", "echo"])

    async def test_a_denied_call_is_not_made_and_ends_the_turn(self) -> None:
        tool = Offered("danger", asks=True)
        self.offer(tool)
        provider = PlannedProvider(use("danger"), use("danger"), said("done"))
        agent = self.coder(provider)
        requests: asyncio.Queue[PermissionRequest] = asyncio.Queue()

        def show(event: object) -> None:
            if isinstance(event, PermissionRequest):
                requests.put_nowait(event)

        self.workspace.permissions = Permissions(show, clock=self.clock)
        for action, calls in (("deny", 0), ("allow", 1)):
            turn = asyncio.create_task(self.converse(agent, action, run_id=action))
            asked = await requests.get()
            shown = (asked.tool_name, asked.action, asked.params, asked.path)
            self.assertEqual(shown, ("danger", "execute", {"a": "b"}, str(self.path)))
            self.workspace.permissions.resolve(asked.id, action)
            await turn
            self.assertEqual(len(tool.calls), calls)
        self.assertEqual(len(provider.requests), 3, "the denied turn had no second step")

    async def test_errors_and_images_reach_the_model(self) -> None:
        image = ToolMedia("image/png", base64.b64encode(png()).decode())
        wrong = ToolMedia("image/png", "not base64")
        sound = ToolMedia("audio/wav", base64.b64encode(b"RIFF").decode())
        results = await self.results(
            Offered("failing", ToolAnswer("no luck", is_error=True)),
            Offered("drawing", ToolAnswer("see", media=(wrong, sound, image, image))),
        )
        self.assertEqual((results[0].text, results[0].is_error), ("Error: no luck", True))
        self.assertEqual([shown.data for shown in results[1].images], [image.data])
        for words in ("it is damaged", "audio/wav: not shown", "only one image"):
            self.assertIn(words, results[1].text)

    async def test_a_long_result_is_cut_and_can_be_viewed_as_a_whole(self) -> None:
        long = "".join(f"line {n}\n" for n in range(20_000))
        (result,) = await self.results(Offered("talks", ToolAnswer(long)))
        self.assertLess(len(result.text), RESULT_CHARS + 400)
        self.assertIn("line 0\n", result.text)
        self.assertIn("line 19999", result.text)
        self.assertNotIn("line 10000\n", result.text)
        path = result.text.split("All of it is in ")[1].split(":")[0]
        with open(path) as file:
            self.assertEqual(file.read(), long)

    async def test_the_file_of_a_long_result_is_viewed_without_asking(self) -> None:
        self.offer(Offered("talks", ToolAnswer("x\n" * RESULT_CHARS)))
        provider = PlannedProvider(use("talks"), said("done"))
        agent = self.coder(provider, tools=[View()])
        await self.converse(agent)
        text = provider.requests[1].messages[-1].text
        path = text.split("All of it is in ")[1].split(":")[0]
        again = PlannedProvider(use("view", arguments=f'{{"file_path": "{path}"}}'), said("done"))
        agent._large = dataclasses.replace(agent._large, provider=again)
        await self.converse(agent)
        self.assertIn("     1|x", again.requests[1].messages[-1].text)

    async def test_disabled_ones_are_left_out_and_hooked_ones_refused(self) -> None:
        class Refuses(GuardPart):
            async def before_tool(self, used: ToolUsed) -> Ruling | None:
                return Ruling(denied="it must be asked first" * (used.name == "hooked"))

        self.parts.append(Refuses())
        options = CoderOptions(disabled_tools=("off",))
        off, hooked = Offered("off"), Offered("hooked")
        results = await self.results(off, hooked, options=options)
        self.assertIn("there is no tool 'off'", results[0].text)
        self.assertIn("must be asked first", results[1].text)
        self.assertEqual((off.calls, hooked.calls), ([], []))

    async def test_instructions_are_told_and_told_again_when_they_change(self) -> None:
        part = self.offer(told=[("skills", "there is a skill")])
        provider = PlannedProvider(said("one"), said("two"))
        agent = self.coder(provider)
        await self.converse(agent)
        part.told = [("skills", "there are two")]
        await self.converse(agent, "again")
        first, second = provider.requests
        self.assertIn("there is a skill", first.system)
        self.assertEqual(first.system, second.system, "the cached beginning stays")
        self.assertIn("there are two", second.messages[-2].text)


class ToolSearchTests(CoderBench):
    async def test_many_tools_are_found_by_a_search_and_offered_from_then_on(self) -> None:
        many = [Offered(f"mcp_a_tool{n}", searchable=True) for n in range(MOST)]
        wanted = Offered("mcp_a_weather", searchable=True, description="Forecast for a city")
        self.parts.append(Offers(Offered("agent"), *many, wanted))
        find = use(SEARCH, arguments='{"query": "city weather"}')
        provider = PlannedProvider(find, use("mcp_a_weather"), said("done"), said("later"))
        agent = self.coder(provider)
        await self.converse(agent)
        names = [[tool.name for tool in request.tools] for request in provider.requests]
        found = ["agent", SEARCH, "mcp_a_weather"]
        self.assertEqual(names, [found[:2], found, found])
        self.assertEqual(len(wanted.calls), 1)
        await self.converse(agent, "again")
        self.assertEqual([tool.name for tool in provider.requests[3].tools], found)

    async def test_a_small_window_is_reached_by_few_tools(self) -> None:
        few = [Offered(f"t{n}", searchable=True, description="d" * 2000) for n in range(10)]
        self.parts.append(Offers(*few))
        for window, there in ((8_000, [SEARCH]), (200_000, [f"t{n}" for n in range(10)])):
            provider = PlannedProvider(said("done"))
            model = Model(id="m", context_window=window)
            await self.converse(self.coder(provider, model=model))
            self.assertEqual([tool.name for tool in provider.requests[0].tools], there)

    async def test_a_search_gives_a_bounded_number_and_says_when_nothing_fits(self) -> None:
        many = [Offered(f"mcp_a_tool{n}", searchable=True) for n in range(5_000)]
        self.parts.append(Offers(*many))
        finds = [use(SEARCH, arguments=f'{{"query": "{q}"}}') for q in ("tool", "zebra")]
        provider = PlannedProvider(*finds, said("done"))
        await self.converse(self.coder(provider))
        self.assertEqual(provider.requests[1].messages[-1].text.count("\n- "), FOUND)
        self.assertEqual(len(provider.requests[2].tools), FOUND + 1)
        self.assertIn("no tool fits", provider.requests[2].messages[-1].text)
