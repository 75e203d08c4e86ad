"""A fake model server on a loopback port: the test decides on every byte of its answers.

It speaks `/chat/completions`, `/messages` (the Anthropic API), `/responses` (OpenAI),
`/models/NAME:streamGenerateContent` (Gemini) and `/models`, below any prefix, with real sockets,
chunked streams and kept-alive connections; a call is answered in the API that it used. Either the
test plays the model, call by call:

    async with FakeModel() as model:
        ...                                   # make something ask model.base_url
        call = await model.call(1)            # the first request has arrived
        await call.text("hel")
        await call.tool_call("c1", "bash", '{"command": "ls"}', pieces=3)
        await call.finish("tool_calls", usage=(10, 5))

or a script does, which maps a request to steps that are played at once:

    FakeModel(script=lambda request: [Say("Hello."), End()])
    FakeModel(script=obedient)                # does what the last user message says

Every wait is bounded by `patience`: a hang is a failure that says what was waited for. Writing to a
client that has closed its connection does nothing.
"""

from __future__ import annotations

from .dialects import Counts
from .scripts import Break, Drop, End, Fail, Refuse, Say, Script, Step, Think, Use, Wait, obedient
from .server import FakeModel, ModelCall

__all__ = [
    "Break",
    "Counts",
    "Drop",
    "End",
    "Fail",
    "FakeModel",
    "ModelCall",
    "Refuse",
    "Say",
    "Script",
    "Step",
    "Think",
    "Use",
    "Wait",
    "obedient",
]
