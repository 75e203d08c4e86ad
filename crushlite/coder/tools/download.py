"""download: put a file of the web into the project.

It asks like fetch, showing the address and the file, for each server on the way. It creates files
only, in the workspace only: nothing is overwritten, so nothing can be lost.
"""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING

from ...errors import BadRequest
from ...hosting.tasks import run_to_the_end
from ...worktree.paths import exists, write_bytes
from .arguments import number, schema
from .base import ToolOutcome
from .files import CHANGE_BYTES, PATH, located
from .scope import download_scope
from .web import MOST_SECONDS, TIMEOUT, URL, WebTool, status_words, unpacked

if TYPE_CHECKING:
    from ...agent.base import Verdict
    from ...worktree.paths import Place
    from .base import ToolUse
    from .web import PageAddress

DOWNLOAD_BYTES = 32 << 20  # it is in memory before it is written


class Download(WebTool):
    name = "download"
    description = (
        "Save what is at an address as a new file of the project, whatever it is: at most "
        f"{DOWNLOAD_BYTES >> 20} MiB. To read a page use fetch."
    )
    parameters = schema({"url": URL, "file_path": PATH, "timeout": TIMEOUT}, "url", "file_path")
    read_only = False

    async def run(self, call: ToolUse) -> ToolOutcome:
        place = await located(call)
        await call.context.blocking(_require_new, place)
        timeout = number(call, "timeout", 0)
        ask = partial(_permission, call, place, timeout)
        got = await self._follow(call, ask, timeout or MOST_SECONDS, DOWNLOAD_BYTES)
        if isinstance(got, ToolOutcome):
            return got
        address, page = got
        if page.status != 200:
            raise BadRequest(f"{address} answered {status_words(page.status)}: nothing was saved")
        data = await call.context.blocking(unpacked, page, DOWNLOAD_BYTES + 1)
        if page.cut or len(data) > DOWNLOAD_BYTES:
            raise BadRequest(f"{address} has more than {DOWNLOAD_BYTES} bytes: nothing was saved")
        await run_to_the_end(_save(call, place, data))
        kind = (page.headers.get("content-type") or "of an unknown kind")[:100]
        metadata = {"file_path": str(place.path), "size": len(data)}
        content = f"{place.shown} created: {len(data)} bytes, {kind}"
        return ToolOutcome(content, metadata=json.dumps(metadata))


def _require_new(place: Place) -> None:
    """Raise BadRequest unless the place is in the workspace and holds nothing. Blocks."""
    if not place.inside:
        raise BadRequest(f"{place.shown} is outside of the project: choose a file inside of it")
    if exists(place):
        raise BadRequest(f"{place.shown} exists already: choose another name")


async def _permission(call: ToolUse, place: Place, timeout: int, address: PageAddress) -> Verdict:
    params: dict[str, str | int] = {"url": str(address), "file_path": str(place.path)}
    if timeout:
        params["timeout"] = timeout
    return await call.turn.permission(
        call.name,
        "download",
        description=f"Download {address} to {place.path}",
        params=params,
        path=str(place.path),
        tool_call_id=call.id,
        scope=download_scope(address.origin, place),
    )


async def _save(call: ToolUse, place: Place, data: bytes) -> None:
    """Create the file, and record a text that can be undone. Raises Conflict if it exists now."""
    await call.context.blocking(write_bytes, place, data, None)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return  # the history holds texts only
    if len(data) <= CHANGE_BYTES and "\0" not in text:
        await call.turn.file_changed(str(place.path), None, text)
