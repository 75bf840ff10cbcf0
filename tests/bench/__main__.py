"""`python -m tests.bench`: runs the rows, prints the table, saves the figures; exits with 1 if a target is
missed.

`--only ROW` (repeatable) and `--rounds N` limit it; `profile ROW` shows where Luxx spends its time instead.
"""

import argparse
import os
import sys

import uvloop

from tests.bench.figures import Figures
from tests.bench.load import Broken
from tests.bench.peers import install_peers
from tests.bench.processes import ROOT, pin_tools
from tests.bench.profiling import PROFILED, profile
from tests.bench.rows import ROWS
from tests.bench.upstream import Upstream

RESULTS = ROOT / "bench-results"
BUSY_LOAD = 2.5
"""With a higher load something other than the benchmark is running."""


def main() -> int:
    options = _options()
    if os.environ.get("PEERS"):
        install_peers()
    is_pinned = pin_tools()
    if not is_pinned:
        print("Not pinned to cores: figures will vary more.", file=sys.stderr)
    if options.profile is not None:
        uvloop.run(profile(options.profile))
        return 0
    figures = Figures()
    try:
        uvloop.run(_measure(options.only or list(ROWS), options.rounds, figures))
    except (Broken, RuntimeError) as error:
        print(f"Broken: {error}", file=sys.stderr)
        return 1
    print(figures.table())
    load = _load()
    if load > BUSY_LOAD:
        print(f"The machine is busy (load {load}): times are too high, ratios hold.", file=sys.stderr)
    path = figures.save(RESULTS, rounds=options.rounds, is_pinned=is_pinned, load=load)
    print(f"kept in {path.relative_to(ROOT)}")
    for figure in figures.missed:
        measured = f"{figure.median:.2f} {figure.unit}"
        print(f"missed: {figure.row}, {figure.name}: {measured}, target {figure.target}")
    return 1 if figures.missed else 0


def _load() -> float:
    """The number of processes that want a core; the rows keep about one busy. 0 if the system does not report
    it."""
    return round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else 0.0


async def _measure(rows: list[str], rounds: int, figures: Figures) -> None:
    upstream = Upstream()
    await upstream.open()
    for name in rows:
        done = 0
        async for _ in ROWS[name](upstream, figures, rounds):
            done += 1
            print(f"{name}: round {done} of {rounds}", file=sys.stderr)
    await upstream.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="What Luxx costs.")
    parser.add_argument("--only", action="append", choices=list(ROWS), help="only this row; may be repeated")
    parser.add_argument("--rounds", type=int, default=5)
    commands = parser.add_subparsers()
    profiling = commands.add_parser("profile", help="where the event loop's time goes in a row")
    profiling.add_argument("profile", choices=list(PROFILED))
    parser.set_defaults(profile=None)
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
