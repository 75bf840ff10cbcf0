"""The folders of recorded provider streams: where they are, what their manifests list.

`LUXX_WIRE_FIXTURES` names the folders, separated like those in PATH; `LUXX_FORBID_SKIPS=1` turns their
absence into a failure. CONTRIBUTING.md says how to run one folder by hand.
"""

import json
import os
from pathlib import Path
from typing import Any

BUILT = frozenset({"anthropic", "gemini", "openai"})
"""The dialects that have an adapter."""


def folders() -> list[Path]:
    named = os.environ.get("LUXX_WIRE_FIXTURES", "")
    return [Path(folder) for folder in named.split(os.pathsep) if folder]


def may_skip() -> bool:
    return os.environ.get("LUXX_FORBID_SKIPS") != "1"


def all_entries() -> list[dict[str, Any]]:
    """The entries of all manifests; `folder` is the one that holds the entry's file."""
    return [{**entry, "folder": folder} for folder in folders() for entry in entries_of(folder)]


def entries_of(folder: Path) -> list[dict[str, Any]]:
    manifest = folder / "manifest.json"
    return json.loads(manifest.read_text("utf-8"))["fixtures"] if manifest.is_file() else []


def entries(api: str) -> list[dict[str, Any]]:
    return [entry for entry in all_entries() if entry["api"] == api]


def name_of(entry: dict[str, Any]) -> str:
    """A name that no entry of another folder has."""
    return f"{entry['folder'].name}/{entry['file']}"


def stream_of(entry: dict[str, Any]) -> bytes:
    return (entry["folder"] / entry["file"]).read_bytes()
