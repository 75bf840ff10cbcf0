"""Figures: the measurements of rows, their targets, the table and the file."""

import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec

PACKAGES = (
    "luxx",
    "uvloop",
    "uvicorn",
    "litestar",
    "msgspec",
    "sqlalchemy",
    "aiohttp",
    "httpx",
    "fastapi",
    "openai",
)


class Figure(msgspec.Struct):
    """One measurement with a value per round. `at_most` or `at_least` is the target for the median."""

    row: str
    name: str
    unit: str
    values: list[float] = []
    at_most: float | None = None
    at_least: float | None = None

    @property
    def median(self) -> float:
        return statistics.median(self.values)

    @property
    def is_missed(self) -> bool:
        over = self.at_most is not None and self.median > self.at_most
        return over or (self.at_least is not None and self.median < self.at_least)

    @property
    def target(self) -> str:
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        return f"≥ {self.at_least:g}" if self.at_least is not None else ""


class Figures:
    """All figures of a run, in the order of their first value."""

    def __init__(self) -> None:
        self._all: dict[tuple[str, str], Figure] = {}

    def add(
        self,
        row: str,
        name: str,
        value: float,
        unit: str,
        *,
        at_most: float | None = None,
        at_least: float | None = None,
    ) -> None:
        """Adds the value of one round."""
        figure = self._all.get((row, name))
        if figure is None:
            figure = self._all[row, name] = Figure(row, name, unit, at_most=at_most, at_least=at_least)
            figure.values = []
        figure.values.append(value)

    def __iter__(self):
        return iter(self._all.values())

    @property
    def missed(self) -> list[Figure]:
        return [figure for figure in self if figure.is_missed]

    def table(self) -> str:
        """The table for people: a line per figure."""
        lines = [f"{'row':<7} {'figure':<56} {'min':>9} {'median':>9} {'max':>9} {'unit':<5} target"]
        for figure in self:
            low, high = min(figure.values), max(figure.values)
            verdict = "" if not figure.target else "  MISSED" if figure.is_missed else "  met"
            lines.append(
                f"{figure.row:<7} {figure.name:<56} {low:>9.2f} {figure.median:>9.2f} {high:>9.2f} "
                f"{figure.unit:<5} {figure.target}{verdict}"
            )
        return "\n".join(lines)

    def save(self, folder: Path, *, rounds: int, is_pinned: bool, load: float) -> Path:
        """Saves the figures as JSON with the commit and the versions, so that runs can be compared."""
        commit, is_changed = _commit()
        now = datetime.now(UTC)
        content = {
            "at": now.isoformat(timespec="seconds"),
            "commit": commit,
            "is_changed_since": is_changed,
            "python": sys.version.split()[0],
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "cores": os.cpu_count(),
            "is_pinned": is_pinned,
            "load": load,
            "rounds": rounds,
            "versions": {name: version for name in PACKAGES if (version := _version(name))},
            "figures": [
                {
                    "row": figure.row,
                    "name": figure.name,
                    "unit": figure.unit,
                    "min": min(figure.values),
                    "median": figure.median,
                    "max": max(figure.values),
                    "values": figure.values,
                    "target": figure.target or None,
                    "is_missed": figure.is_missed,
                }
                for figure in self
            ],
        }
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{now:%Y%m%dT%H%M%SZ}-{commit[:10]}.json"
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        return path


def _commit() -> tuple[str, bool]:
    def git(*words: str) -> str:
        finished = subprocess.run(("git", *words), capture_output=True, text=True, check=False)
        return finished.stdout.strip() if finished.returncode == 0 else ""

    return git("rev-parse", "HEAD") or "unknown", bool(git("status", "--porcelain", "--", "luxx"))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
