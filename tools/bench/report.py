"""What was measured, as a table, as a plot, and as a verdict.

Results are `{"meta": ..., "rows": {key: {"title", "unit", "more", "values"}}}`, where `values` has
a list for each server, one figure a round, None where there is none. The first server is the one in
question; a ratio is its figure over another's in the same round.
"""

import html
import math
import statistics
from itertools import zip_longest
from typing import Any

TOLERANCE = 1.10  # a median ratio that is worse by less than this passes the gate
UNGATED = ("worst",)  # the figure of a single turn is that of the machine
COLOURS = ("#1f6feb", "#d9730d", "#2f8f4e", "#8957e5")
LEFT, WIDTH, STEP, TOP = 250, 520, 22, 58  # of the plot

Result = dict[str, Any]


def ratios(row: Result, other: str) -> list[float]:
    """The ratio of each round in which both have a figure. Some against none is bad, more is worse;
    none against none is 1."""
    pairs = zip(next(iter(row["values"].values())), row["values"].get(other, ()), strict=False)
    return [a / b if b else 1.0 + a for a, b in pairs if a is not None and b is not None]


def costs(row: Result, other: str) -> list[float]:
    """The ratios, turned so that above 1 is bad."""
    return [1 / value if row["more"] else value for value in ratios(row, other) if value]


def worse(row: Result, other: str) -> bool:
    """Whether every round is on the bad side of 1, and the median by more than the tolerance."""
    found = costs(row, other)
    return bool(found) and min(found) > 1 and statistics.median(found) > TOLERANCE


def failures(results: Result) -> list[str]:
    """Rows in which the first server is worse than the base, or has no figure but the base has."""
    bad = []
    for key, row in results["rows"].items():
        found = ratios(row, "base")
        if worse(row, "base") and key not in UNGATED:
            bad.append(f"{row['title'].strip()}: {spread(found)} times the base")
        elif not found and any(value is not None for value in row["values"].get("base", ())):
            bad.append(f"{row['title'].strip()}: no figure")
    return bad


def number(value: float) -> str:
    digits = 2 - math.floor(math.log10(value)) if value > 0 else 0
    return f"{value:,.{min(max(digits, 0), 3)}f}"


def spread(values: list[float]) -> str:
    if not values:
        return "-"
    low, middle, high = (number(of(values)) for of in (min, statistics.median, max))
    return f"{middle} [{low}-{high}]"


def table(results: Result) -> str:
    one, *others = names = list(results["meta"]["servers"])
    lines = [["median [min-max]", "", *names, *(f"{one} / {other}" for other in others)]]
    for row in results["rows"].values():
        cells = [spread([v for v in row["values"][name] if v is not None]) for name in names]
        for other in others:
            mark = " worse" if other == "base" and worse(row, other) else ""
            cells += [spread(ratios(row, other)) + mark]
        lines.append([row["title"], row["unit"], *cells])
    return aligned(lines)


def aligned(lines: list[list[str]]) -> str:
    """Lines of cells as text in columns; a line may have fewer cells than others."""
    columns = zip_longest(*lines, fillvalue="")
    widths = [max(map(len, column)) for column in columns]
    # Not strict: a short line has no further cells.
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def plot(results: Result) -> str:
    """An SVG: for each row and other server the cost ratio on a logarithmic axis, the median as a
    dot and the spread as a line; left of 1 the first server is better."""
    one, *others = results["meta"]["servers"]
    found = [
        (row["title"].strip(), other, costs(row, other))
        for row in results["rows"].values()
        for other in others
        if costs(row, other)
    ]
    reach = max([2.0, *(max(v, 1 / v) for _, _, values in found for v in values)])
    height = TOP + STEP * len(found) + 16

    def x(value: float) -> float:
        return round(LEFT + WIDTH / 2 * (1 + math.log(value) / math.log(reach)), 1)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 120}" height="{height}" '
        'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>',
        f'<text x="{LEFT}" y="18">cost of {one} in terms of others: median, spread; left of 1 is '
        "better</text>",
    ]
    step = math.floor(math.log2(reach)) // 4 + 1
    most = math.floor(math.log2(reach) / step) * step
    for tick in (2.0**power for power in range(-most, most + 1, step)):
        parts.append(f'<path d="M{x(tick)} {TOP - 12}V{height - 8}" stroke="#ddd"/>')
        parts.append(f'<text x="{x(tick)}" y="{TOP - 18}" text-anchor="middle">{tick:.3g}</text>')
    parts.append(f'<path d="M{x(1)} {TOP - 12}V{height - 8}" stroke="#555"/>')
    for line, (title, other, values) in enumerate(found):
        y, colour = TOP + STEP * line + 6, COLOURS[others.index(other) % len(COLOURS)]
        low, middle, high = min(values), statistics.median(values), max(values)
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 4}" text-anchor="end">{html.escape(title)}</text>',
            f'<path d="M{x(low)} {y}H{x(high)}" stroke="{colour}" stroke-width="3"/>',
            f'<circle cx="{x(middle)}" cy="{y}" r="5" fill="{colour}"/>',
            f'<text x="{LEFT + WIDTH + 8}" y="{y + 4}" fill="{colour}">{number(middle)} {other}'
            "</text>",
        ]
    return "\n".join([*parts, "</svg>", ""])
