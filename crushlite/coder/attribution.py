"""What commits say of the agent that wrote them: the part of the system prompt about commits, as
`options.attribution` of the configuration asks for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..version import NAME

if TYPE_CHECKING:
    from ..config.options import Attribution

# A trailer wants an address. The top-level domain can belong to nobody.
ADDRESS = f"{NAME} <noreply@{NAME}.invalid>"
GENERATED = f"Generated with {NAME}"


def commit_instructions(wanted: Attribution, model: str) -> str:
    """What the system prompt says about the messages of commits. `model` is the id of the model
    that is asked. The same text for the same arguments: it is part of a prefix that is cached."""
    lines = attribution_lines(wanted, model)
    if not lines:
        return (
            "Commit messages and pull requests say nothing of who or what wrote them: no trailer, "
            "no signature, no name of a tool or model."
        )
    shown = "\n".join(lines)
    text = f"End every commit message with a blank line and then exactly:\n{shown}"
    if wanted.generated_with:
        text += f"\nEnd the description of a pull request with: {GENERATED}"
    return f"{text}\nAdd no other trailer or signature."


def attribution_lines(wanted: Attribution, model: str) -> list[str]:
    """The lines at the end of a commit message: the trailers come last, where git looks for
    them."""
    lines = [GENERATED] if wanted.generated_with else []
    trailer = {
        "assisted-by": f"Assisted-by: {NAME}:{_one_word(model)}",
        "co-authored-by": f"Co-Authored-By: {ADDRESS}",
    }.get(wanted.trailer_style)
    if trailer and lines:
        lines.append("")
    return [*lines, trailer] if trailer else lines


def _one_word(model: str) -> str:
    # A server may list any text as a model; in the prompt it must not become instructions.
    return "".join(c for c in model[:100] if c.isprintable() and not c.isspace()) or "unknown"
