"""Files that are sent with a prompt, and a check of the size before anything is sent."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..itself import require_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..protocol.messages import Attachment

PROMPT_BYTES = 32 << 20  # that a daemon accepts in a request with a prompt
ESCAPED = 12  # bytes that a character may take in JSON, at most
IDS = 1024  # bytes: room for the other fields of the request
MIB = 1 << 20


def read_attachments(names: Sequence[str]) -> list[Attachment]:
    """Read files. Raises UsageError for one that cannot be read or named, or is too large."""
    if not names:
        return []
    from pathlib import Path  # only here: most prompts come without files

    return [_read(Path(name)) for name in names]


def _read(path: Path) -> Attachment:
    try:
        with path.open("rb") as file:
            data = file.read(PROMPT_BYTES + 1)  # not all of it: there are endless files
    except OSError as error:
        raise UsageError(f"cannot attach {path}: {error.strerror}") from None
    if len(data) > PROMPT_BYTES:
        raise UsageError(f"cannot attach {path}: it has more than {PROMPT_BYTES // MIB} MiB")
    require_text(str(path.absolute()))
    from ..protocol.messages import Attachment  # only here: most prompts come without files

    content = base64.b64encode(data).decode("ascii")
    return Attachment(content, str(path.absolute()), path.name, _type_of(path, data))


def _type_of(path: Path, data: bytes) -> str:
    """The MIME type: text/plain for everything that is UTF-8, whatever the file is called, except
    for PDF documents, some of which are."""
    if data.startswith(b"%PDF-"):
        return "application/pdf"
    try:
        data.decode("utf-8")
        return "text/plain"
    except UnicodeDecodeError:
        import mimetypes  # only here: most prompts come without files

        return mimetypes.guess_type(path.name)[0] or "application/octet-stream"


def check_size(prompt: str, attachments: list[Attachment]) -> None:
    """Raises UsageError if the request would be larger than a daemon accepts. Attachments grow by a
    third in it."""
    if not attachments and len(prompt) * ESCAPED + IDS <= PROMPT_BYTES:
        return
    from ..protocol.codec import dumps, encode  # only here: most prompts are short
    from ..protocol.messages import Prompt

    size = len(dumps(encode(Prompt("", prompt, attachments=attachments)))) + IDS
    if size > PROMPT_BYTES:
        what = "the prompt with what is attached" if attachments else "the prompt"
        raise UsageError(
            f"{what} would be {-(-size // MIB)} MiB on its way to the daemon, "
            f"which takes {PROMPT_BYTES // MIB} MiB: send less"
        )
