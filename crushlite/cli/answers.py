"""The words with which a user answers a permission request, in every command."""

from __future__ import annotations

# What is typed, and the action that it means on the wire.
ANSWERS = {
    **dict.fromkeys(("y", "yes"), "allow"),
    **dict.fromkeys(("n", "no"), "deny"),
    **dict.fromkeys(("a", "always"), "allow_session"),
    **dict.fromkeys(("r", "rule"), "allow_rule"),
    **dict.fromkeys(("k", "keep"), "allow_always"),
}
