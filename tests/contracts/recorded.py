"""The folder of recorded provider streams: where it is, what its manifest lists.

`LUXX_WIRE_FIXTURES` names the folder, `LUXX_FORBID_SKIPS=1` turns its absence into a failure.
"""

import json
import os
from pathlib import Path
from typing import Any

BUILT = frozenset({"anthropic", "gemini", "openai"})
"""The dialects that have an adapter."""


def folder() -> Path | None:
    named = os.environ.get("LUXX_WIRE_FIXTURES")
    return Path(named) if named else None


def may_skip() -> bool:
    return os.environ.get("LUXX_FORBID_SKIPS") != "1"


def all_entries() -> list[dict[str, Any]]:
    where = folder()
    if where is None or not (where / "manifest.json").is_file():
        return []
    return json.loads((where / "manifest.json").read_text("utf-8"))["fixtures"]


def entries(api: str) -> list[dict[str, Any]]:
    return [entry for entry in all_entries() if entry["api"] == api]


def stream_of(entry: dict[str, Any]) -> bytes:
    where = folder()
    assert where is not None
    return (where / entry["file"]).read_bytes()
