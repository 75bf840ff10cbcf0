"""A process that starts soon and stays small: what is loaded for nothing, and when garbage is looked for and
memory given back."""

import ctypes
import gc
import sys
from collections.abc import Generator
from contextlib import contextmanager

RICH_PACKAGES = ("rich", "pygments")
"""structlog and httpx load these for tracebacks and a command of their own, where they find them: 3.5 MB of
every server's memory, for nothing. Both go without where an import fails, which is their documented way."""

PYDANTIC_PACKAGES = ("pydantic",)
"""Litestar loads its plugin for it, and so all of it, where it finds it. Here structs come and go."""

GC_THRESHOLDS = (10_000, 20, 50)
"""Objects made before the collector looks: the language's own 700 would be met every few tokens."""


@contextmanager
def hidden_modules(*names: str) -> Generator[None]:
    """Within it these modules are not there for whoever has not loaded them; tools of others may, later."""
    hidden = [name for name in names if name not in sys.modules]
    # An import of a name that is None here fails as if it were not installed.
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def disable_gc() -> None:
    """Until `go_on` or `settle`: nothing that a start makes dies then, and looking takes a third of it."""
    gc.disable()


def freeze_gc() -> None:
    """What is there by now stays, and is never looked through again."""
    gc.freeze()
    gc.enable()


def tune_gc() -> None:
    """A server has all that it lives with; what comes now dies young."""
    gc.collect()
    gc.set_threshold(*GC_THRESHOLDS)
    freeze_gc()


def trim_memory() -> None:
    """Returns free memory to the system, after a load is gone; takes some tens of milliseconds."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:  # Only glibc has it.
        trim(0)
