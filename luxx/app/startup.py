"""Fast start and small memory: hides optional packages, controls garbage collection, trims memory."""

import ctypes
import gc
import sys
from collections.abc import Generator
from contextlib import contextmanager

RICH_PACKAGES = ("rich", "pygments")
"""structlog and httpx import these, if installed, for tracebacks and a command that a server does not use:
3.5 MB. Both document that the packages are optional."""

PYDANTIC_PACKAGES = ("pydantic",)
"""Litestar imports pydantic for its plugin if it is installed. Luxx uses msgspec structs instead."""

GC_THRESHOLDS = (10_000, 20, 50)
"""Thresholds of `gc`. A server exceeds the default of 700 new objects every few tokens."""


@contextmanager
def hidden_modules(*names: str) -> Generator[None]:
    """Within the context, imports of these modules fail unless they are loaded already."""
    hidden = [name for name in names if name not in sys.modules]
    # The import of a name that is None in `sys.modules` fails as if it were not installed.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def disable_gc() -> None:
    """Until `freeze_gc` or `tune_gc`. A start makes no garbage, but collections take a third of its time."""
    gc.disable()


def freeze_gc() -> None:
    """Excludes all existing objects from collection, and enables collection."""
    gc.freeze()
    gc.enable()


def tune_gc() -> None:
    """For a server that is open: freezes the long-lived objects and sets GC_THRESHOLDS for the rest."""
    gc.collect()
    gc.set_threshold(*GC_THRESHOLDS)
    freeze_gc()


def trim_memory() -> None:
    """Returns free memory to the system. Blocks for tens of milliseconds."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # Only glibc has it.
        trim(0)
