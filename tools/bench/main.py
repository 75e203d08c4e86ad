"""The speed of this checkout beside other servers that speak the protocol, by one command.

  tools/bench/run                             this checkout against the commit in tools/bench/base
  tools/bench/run --quick --gate              under 3 minutes; exit 1 if a row became worse
  tools/bench/run --base v0.1.0 --crush PATH  against a commit and a Crush binary
  tools/bench/run --base none --fixed-points  against toy servers: bare asyncio, uvicorn+starlette
  tools/bench/run --rows turn,worst,stalls --scale 50     20,000 turns a round
  tools/bench/growth                          this checkout alone: what grows, and how fast

Every measurement has a server process and a database of its own; the model is a fake in a third
process. Rounds are interleaved (A B, B A, A B, ...): compare ratios, which are of figures of the
same round, not figures of different days. Linux only, as processor time comes from its clocks.
"""

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import report
from circumstances import allow_many_files, circumstances
from client import BenchError
from rows import ROWS, TOY, Figures, Measure, Row, Stage, idle
from servers import (
    HERE,
    ROOT,
    Recipe,
    checkout,
    crush,
    fake_model,
    fixed_points,
    git,
    say,
    this_checkout,
)

FULL = {"rounds": 5, "scale": 1.0, "idle": 60.0}
QUICK = {"rounds": 3, "scale": 0.25, "idle": 20.0}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/bench/run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="rows: " + " ".join(row.key for row in ROWS),
    )
    add = parser.add_argument
    add("--base", help="commit or checkout to compare with, or none (default: the commit in"
        " tools/bench/base, else the last tag; none with --crush)")  # fmt: skip
    add("--crush", metavar="PATH", help="a Crush binary to compare with")
    add("--fixed-points", metavar="PYTHON", nargs="?", const=sys.executable,
        help="also the toy servers; PYTHON is one that has uvicorn and starlette")  # fmt: skip
    add("--rows", metavar="A,B", default=",".join(row.key for row in ROWS), help="only these")
    add("--quick", action="store_true", help="fewer rounds and repetitions: under 3 minutes")
    add("--rounds", type=int, help=f"{FULL['rounds']}, quick {QUICK['rounds']}")
    scales = f"{FULL['scale']:g}, quick {QUICK['scale']:g}"
    add("--scale", type=float, help=f"of the numbers of repetitions: {scales}")
    seconds = f"{FULL['idle']:g}, quick {QUICK['idle']:g}"
    add("--idle", type=float, help=f"seconds to measure idleness: {seconds}")
    add("--size", type=float, default=1.0, help="of the loads that rows name, for a trial")
    add("--folder", type=Path, help="of the databases (default: that for temporary files); a 202"
        " waits for this disk")  # fmt: skip
    add("--json", type=Path, metavar="FILE", help="write all figures")
    add("--plot", type=Path, metavar="FILE.svg", help="write a plot of the ratios")
    add("--from", dest="stored", type=Path, metavar="FILE", help="measure nothing, take figures"
        " that --json wrote")  # fmt: skip
    add("--gate", action="store_true", help="exit 1 if a row is worse than the base: in every"
        " round, and in the median by more than 10 %%")  # fmt: skip
    parser.set_defaults(**(QUICK if "--quick" in sys.argv else FULL))
    chosen = parser.parse_args()
    if chosen.gate and chosen.rounds < 3 and not chosen.stored:
        parser.error("--gate needs three rounds: fewer show no spread")
    unknown = set(chosen.rows.split(",")) - {row.key for row in ROWS}
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}; --help lists them")
    return chosen


def base_recipe(spec: str, folder: Path) -> Recipe:
    """The base: a checkout, or a commit, whose files are copied to `folder`."""
    if Path(spec).is_dir():
        if Path(spec).samefile(ROOT):
            raise SystemExit("--base is this checkout: there is nothing to compare")
        return checkout("base", Path(spec).resolve(), spec)
    commit = git("rev-parse", "--verify", "--quiet", f"{spec}^{{commit}}")
    if not commit:
        raise SystemExit(f"base {spec!r} is neither a folder nor a commit: say --base COMMIT")
    if commit == git("rev-parse", "HEAD") and not git("status", "--porcelain", "crushlite"):
        raise SystemExit(f"base {spec!r} is what is checked out here: there is nothing to compare")
    # Not a worktree: a benchmark that is killed must leave nothing in the repository.
    archive = subprocess.Popen(["git", "-C", ROOT, "archive", commit], stdout=subprocess.PIPE)
    subprocess.run(["tar", "x", "-C", folder], stdin=archive.stdout, check=True)
    archive.communicate()
    return checkout("base", folder, f"commit {commit[:10]}")


def recipes(chosen: argparse.Namespace, folder: Path) -> list[Recipe]:
    """This checkout first, then what it is compared with."""
    stored = HERE / "base"
    usual = stored.read_text().strip() if stored.is_file() else ""
    usual = usual or git("describe", "--tags", "--abbrev=0")
    spec = chosen.base or ("none" if chosen.crush else usual)
    found = [this_checkout()]
    if spec != "none":
        found.append(base_recipe(spec, folder))
    if chosen.crush:
        found.append(crush(chosen.crush))
    return found + (fixed_points(chosen.fixed_points) if chosen.fixed_points else [])


def attempt(measure: Measure, stage: Stage) -> Figures:
    say(f"{time.strftime('%H:%M:%S')} {measure.__name__}, {stage.recipe.name}")
    try:
        return measure(stage)
    except BenchError as error:
        say(f"FAILED: {error}")
        return {}


def measured(stages: list[Stage], rows: list[Row], rounds: int) -> report.Result:
    """The results by row; see `report`."""
    names = [stage.recipe.name for stage in stages]
    values: dict[str, dict[str, list[float | None]]]
    values = {row.key: {name: [] for name in names} for row in rows}
    for turn in range(rounds):
        order = stages[:: 1 if turn % 2 == 0 else -1]
        for kind in dict.fromkeys(row.measure for row in rows):
            fit = [stage for stage in order if kind in TOY or not stage.recipe.toy]
            with ThreadPoolExecutor() as pool:  # idle servers do not disturb each other
                each = (pool.map if kind is idle else map)(partial(attempt, kind), fit)
                found = dict(zip((stage.recipe.name for stage in fit), each, strict=True))
            for row, name in itertools.product(rows, names):
                if row.measure is kind:
                    values[row.key][name].append(found.get(name, {}).get(row.key))
    return {
        row.key: {"title": row.title, "unit": row.unit, "more": row.more, "values": values[row.key]}
        for row in rows
    }


def results(chosen: argparse.Namespace) -> report.Result:
    rows = [row for row in ROWS if row.key in chosen.rows.split(",")]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        found = recipes(chosen, Path(folder))
        with fake_model() as url:
            much = (url, chosen.folder, chosen.scale, chosen.size, chosen.idle)
            table = measured([Stage(recipe, *much) for recipe in found], rows, chosen.rounds)
    servers = {recipe.name: recipe.what for recipe in found}
    return {"meta": {"servers": servers, **circumstances("tools/bench/run")}, "rows": table}


def main() -> int:
    chosen = options()
    allow_many_files()
    found = json.loads(chosen.stored.read_text()) if chosen.stored else results(chosen)
    print(*(f"{key}: {value}" for key, value in found["meta"].items()), "", sep="\n")
    print(report.table(found))
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")
    if chosen.plot:
        chosen.plot.write_text(report.plot(found))
    bad = report.failures(found) if chosen.gate else []
    for line in bad:
        say(f"GATE: {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
