"""`crushlite doctor`: what works, what does not, and what to do about it.

The checks are in doctor_checks.py: functions that return findings. They change nothing, start
nothing, and show no secret.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from .common import add_connection, add_json, command, show, show_json
from .doctor_checks import examine
from .text import Style, clean, count

if TYPE_CHECKING:
    import argparse

    from .doctor_checks import Finding

DESCRIPTION = """\
Look at everything crushlite needs, and say what works, what does not, and what to do: Python, the
directory of the socket, the daemon, token files, data directory and database, configuration,
model, browser, terminal. Nothing is changed or started, and no secret is shown. Exit code 1 if
something is broken.
"""
EXAMPLES = """\
  crushlite doctor
  crushlite doctor --json | jq '.[] | select(.state == "broken")'
"""


def add_parser(commands: Any) -> None:
    parser = command(commands, "doctor", DESCRIPTION, run, EXAMPLES)
    add_json(parser, "the findings")
    add_connection(parser, start=False)


async def run(options: argparse.Namespace) -> int:
    findings = [finding async for finding in examine(options)]
    broken = sum(finding.state == "broken" for finding in findings)
    if options.json:
        show_json(findings)
    else:
        _show(findings, broken, Style(sys.stdout))
    return 1 if broken else 0


def _show(findings: list[Finding], broken: int, style: Style) -> None:
    """Print all findings. Lines are not cut: what to do may be a command to paste."""
    paint = {"ok": style.green, "note": style.yellow, "broken": style.red}
    room = max(len(finding.name) for finding in findings)
    for each in findings:
        state = paint[each.state](each.state) + " " * (8 - len(each.state))
        show(f"{state}{each.name:<{room}}  {clean(each.detail)}")
        if each.advice:
            show(f"{' ' * 8}-> {clean(each.advice)}")
    show(f"\n{count(broken, 'thing')} broken" if broken else "\nnothing is broken")
