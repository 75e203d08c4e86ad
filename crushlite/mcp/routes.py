"""The routes about tool servers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..api.context import EMPTY, answer, body
from ..api.entry import Entry, Param, W
from ..errors import BadRequest, NotFound
from ..features.wire import GetPrompt, McpState, NamedServer, UsedServers, WantServers
from ..protocol.sessions import NEVER
from .errors import ServerError
from .wire import McpPrompt, McpPromptArgument

if TYPE_CHECKING:
    from ..api.context import Context
    from ..http.messages import Request, Response, Stream
    from .part import McpPart
    from .server import Server

MCP = W + "/mcp"
SERVER = Param("name", "The tool server.", required=True)


def _part(context: Context, request: Request) -> McpPart | None:
    """The part of the workspace; None if its configuration is of another kind."""
    from .part import McpPart

    workspace = context.workspace(request)
    try:
        return workspace.part(McpPart)
    except NotFound:
        return None


def _server(context: Context, request: Request) -> Server | None:
    """The server that the body names; None if there is none. Raises BadRequest without a name."""
    part, name = _part(context, request), _name(request)
    return part.find(name) if part is not None else None


def _name(request: Request) -> str:
    """The name of a server in the body. Raises BadRequest if it is empty."""
    name = body(NamedServer, request).name
    if not name:
        raise BadRequest("name is required")
    return name


async def states(context: Context, request: Request) -> Response:
    part = _part(context, request)
    return answer({s.name: _state(s) for s in (part.servers if part is not None else ())})


def _state(server: Server) -> McpState:
    when = NEVER
    if server.connected_at is not None:
        from datetime import UTC, datetime  # only now: it takes 2 ms to load

        moment = datetime.fromtimestamp(server.connected_at, UTC)
        when = moment.isoformat().replace("+00:00", "Z")
    return McpState(
        name=server.name,
        state=server.state,
        error=server.error,
        tool_count=len(server.tools),
        prompt_count=len(server.prompts),
        resource_count=len(server.resources),
        connected_at=when,
        tools=[tool.name for tool in server.tools],
        left_out=list(server.left_out),
        last_lines=server.last_words,
    )


async def want_servers(context: Context, request: Request) -> Stream:
    wanted, part = body(WantServers, request), _part(context, request)
    if part is None:
        raise NotFound("no tool servers here: the daemon reads no configuration")
    return part.of_clients.want(wanted.servers, part.configured)


async def prompts(context: Context, request: Request) -> Response:
    part = _part(context, request)
    found = [
        McpPrompt(
            id=f"{server.name}:{prompt.name}",
            title=prompt.title,
            description=prompt.description,
            prompt_id=prompt.name,
            client_id=server.name,
            arguments=[
                McpPromptArgument(a.name, a.title or a.name, a.description, a.required)
                for a in prompt.arguments
            ],
        )
        for server in (part.servers if part is not None else ())
        for prompt in server.prompts
    ]
    return answer(found)


async def get_prompt(context: Context, request: Request) -> Response:
    part, wanted = _part(context, request), body(GetPrompt, request)
    server = part.find(wanted.client_id) if part is not None else None
    known = {prompt.name for prompt in server.prompts} if server is not None else set()
    if server is None or wanted.prompt_id not in known:
        what = f"{wanted.client_id}:{wanted.prompt_id}"
        raise NotFound(f"MCP prompt not found: {what}: no server that runs has it")
    values = {name: str(value) for name, value in wanted.args.items()}
    return answer({"prompt": await server.prompt(wanted.prompt_id, values)})


async def read_resource(context: Context, request: Request) -> Response:
    server = _server(context, request)
    if server is None:
        return answer([])
    contents = await server.resource(body(NamedServer, request).uri)
    return answer([_content(each) for each in contents])


def _content(content: dict[str, Any]) -> dict[str, str]:
    names = {"uri": "uri", "mimeType": "mime_type", "text": "text", "blob": "blob"}
    found = {ours: content.get(theirs) for theirs, ours in names.items()}
    return {key: value for key, value in found.items() if isinstance(value, str)}


async def refresh_tools(context: Context, request: Request) -> Response:
    return await _refresh(context, request, "tools")


async def refresh_prompts(context: Context, request: Request) -> Response:
    return await _refresh(context, request, "prompts")


async def refresh_resources(context: Context, request: Request) -> Response:
    return await _refresh(context, request, "resources")


async def _refresh(context: Context, request: Request, what: str) -> Response:
    server = _server(context, request)
    if server is not None:
        try:
            await server.refresh(what)
        except ServerError as error:
            raise BadRequest(f"the tool server {server.name}: {error.message}") from None
    return EMPTY


# Signing in to servers, and servers in containers: there is neither. ------------------------------


async def pending_sign_ins(context: Context, request: Request) -> Response:
    context.workspace(request)
    return answer([])


async def sign_in_address(context: Context, request: Request) -> Response:
    context.workspace(request)
    if not request.query_one("name"):
        raise BadRequest("name is required")
    return answer({})


async def sign_in(context: Context, request: Request) -> Response:
    context.workspace(request)
    raise NotFound(f"MCP server not found: {_name(request)}: none runs here")


async def containers(context: Context, request: Request) -> Response:
    context.workspace(request)
    raise BadRequest("tool servers in containers are not supported: crushlite starts none")


ROUTES = (
    Entry("GET", MCP + "/states", states, gives=dict[str, McpState]),
    Entry(
        "POST",
        MCP + "/servers",
        want_servers,
        takes=WantServers,
        gives=UsedServers,
    ),
    Entry("GET", MCP + "/prompts", prompts, gives=list[McpPrompt]),
    Entry(
        "POST",
        MCP + "/get-prompt",
        get_prompt,
        takes=GetPrompt,
        gives=dict[str, str],
    ),
    Entry(
        "POST",
        MCP + "/read-resource",
        read_resource,
        takes=NamedServer,
        gives=list[dict[str, str]],
    ),
    Entry("POST", MCP + "/refresh-tools", refresh_tools, takes=NamedServer),
    Entry("POST", MCP + "/refresh-prompts", refresh_prompts, takes=NamedServer),
    Entry("POST", MCP + "/refresh-resources", refresh_resources, takes=NamedServer),
    Entry("GET", MCP + "/pending-auth", pending_sign_ins, gives=list[Any]),
    Entry(
        "GET",
        MCP + "/auth-url",
        sign_in_address,
        gives=dict[str, Any],
        params=(SERVER,),
    ),
    Entry("POST", MCP + "/auth", sign_in, takes=NamedServer),
    Entry("POST", MCP + "/docker/enable", containers),
    Entry("POST", MCP + "/docker/disable", containers),
)
