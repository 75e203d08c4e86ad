"""Files that go along with a prompt, and whether all of it can be sent: known before it is."""

from __future__ import annotations

import base64
import mimetypes
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..protocol.codec import dumps, encode
from ..protocol.messages import Attachment, Prompt

if TYPE_CHECKING:
    from collections.abc import Sequence

PROMPT_BYTES = 32 << 20  # of a request with a prompt: what a daemon takes
IDS = 1024  # bytes: room for the other fields of the request
MIB = 1 << 20


def read_attachments(names: Sequence[str]) -> list[Attachment]:
    return [_read(Path(name)) for name in names]


def _read(path: Path) -> Attachment:
    try:
        with path.open("rb") as file:
            data = file.read(PROMPT_BYTES + 1)  # not all of it: there are endless files
    except OSError as error:
        raise UsageError(f"cannot attach {path}: {error.strerror}") from None
    if len(data) > PROMPT_BYTES:
        raise UsageError(f"cannot attach {path}: it has more than {PROMPT_BYTES // MIB} MiB")
    try:
        data.decode("utf-8")
        kind = "text/plain"  # whatever it is called, it can be read
    except UnicodeDecodeError:
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    content = base64.b64encode(data).decode("ascii")
    return Attachment(content, str(path.absolute()), path.name, kind)


def check_size(prompt: str, attachments: list[Attachment]) -> None:
    """Attachments grow by a third on their way."""
    size = len(dumps(encode(Prompt("", prompt, attachments=attachments)))) + IDS
    if size > PROMPT_BYTES:
        what = "the prompt with what is attached" if attachments else "the prompt"
        raise UsageError(
            f"{what} would be {-(-size // MIB)} MiB on its way to the daemon, "
            f"which takes {PROMPT_BYTES // MIB} MiB: send less"
        )
