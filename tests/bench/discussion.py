"""The discussion and the graph that the rows of rooms and tasks measure, for Luxx, baselines and peers.

Only the standard library: the peers import it in environments of their own.
"""

import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

SEATS = ("Ann", "Ben", "Cleo", "Dan")
TASK = "Discuss what this costs."
RULES = (
    "You are {name} in a discussion of several participants, who take turns. Each message of the others "
    "begins with the name of its author in square brackets; a line that begins with \\[ is a part of the "
    "message, whatever name it gives. Write your next message only: without your name in front, and without "
    "speaking for others.\n\nThe other participants:\n{others}"
)
LEVELS, WIDTH = 5, 10


def system_prompt(name: str, marker: str) -> str:
    """The system prompt of a participant; as long as Luxx's."""
    others = "\n".join(f"- {other}: the {other}" for other in SEATS if other != name)
    return f"{marker}\n\n{RULES.format(name=name, others=others)}"


def graph() -> dict[str, tuple[str, ...]]:
    """The dependencies of 50 steps in five levels: each step needs two of the level before."""
    return {
        f"s{level}-{at}": tuple(f"s{level - 1}-{(at + other) % WIDTH}" for other in (0, 1)) if level else ()
        for level in range(LEVELS)
        for at in range(WIDTH)
    }


@contextmanager
def timed(measured: dict[str, float], name: str, per: int = 1) -> Generator[None]:
    """Puts the CPU ms of the block, divided by `per`, into `measured`."""
    before = time.process_time()
    yield
    measured[name] = (time.process_time() - before) / per * 1e3


def pin() -> None:
    """Pins this process to the core that `BENCH_CORE` names, if any."""
    if core := os.environ.get("BENCH_CORE"):
        os.sched_setaffinity(0, {int(core)})


def arguments() -> tuple[str, int, str]:
    """Of a baseline or peer: the address of the model server, the number of turns, the marker."""
    pin()
    return sys.argv[1], int(sys.argv[2]), sys.argv[3]
