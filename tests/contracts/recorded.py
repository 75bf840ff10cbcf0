"""The folders of recorded provider streams: where they are, what their manifests list.

`LUXX_WIRE_FIXTURES` names the folders, separated like those in PATH; `LUXX_FORBID_SKIPS=1` turns their
absence into a failure. CONTRIBUTING.md says how to run one folder by hand.
"""

import json
import os
import re
from pathlib import Path
from typing import Any

BUILT = frozenset({"anthropic", "gemini", "openai", "openai-responses"})
"""The dialects that have an adapter."""


OPTIONAL = frozenset({"expected_citations", "expected_usage_details"})
"""A manifest with one of them has all optional fields, so that an absent one means none."""


def folders() -> list[Path]:
    named = os.environ.get("LUXX_WIRE_FIXTURES", "")
    return [Path(folder) for folder in named.split(os.pathsep) if folder]


def may_skip() -> bool:
    return os.environ.get("LUXX_FORBID_SKIPS") != "1"


def all_entries() -> list[dict[str, Any]]:
    """The entries of all manifests; `folder` is the one that holds the entry's file."""
    return [
        {**entry, "folder": folder, "has_optional": any(OPTIONAL & each.keys() for each in manifest)}
        for folder in folders()
        for manifest in [entries_of(folder)]
        for entry in manifest
    ]


def entries_of(folder: Path) -> list[dict[str, Any]]:
    manifest = folder / "manifest.json"
    return json.loads(manifest.read_text("utf-8"))["fixtures"] if manifest.is_file() else []


def entries(api: str) -> list[dict[str, Any]]:
    return [entry for entry in all_entries() if entry["api"] == api]


def name_of(entry: dict[str, Any]) -> str:
    """A name that no entry of another folder has."""
    return f"{entry['folder'].name}/{entry['file']}"


def begins_within_another(entry: dict[str, Any]) -> bool:
    """Whether a message of the Anthropic dialect begins before the one before it has ended. The vendor's SDK
    joins such messages; for Luxx it is an error, because nobody knows which of them is meant."""
    is_open = False
    for line in stream_of(entry).splitlines() if entry["api"] == "anthropic" else []:
        kind = json.loads(line[5:]).get("type") if line.startswith(b"data:") and b"{" in line else None
        if kind == "message_start" and is_open:
            return True
        if kind in ("content_block_start", "message_stop"):
            is_open = kind == "content_block_start"
    return False


def error_sentence(entry: dict[str, Any]) -> str:
    """The provider's sentence in the expected error, in which Google's SDK quotes the whole answer."""
    message = entry["expected_error"]["message"]
    quoted = re.search(r"'message': '([^']*)'", message)
    return quoted[1] if quoted else message


def stream_of(entry: dict[str, Any]) -> bytes:
    return (entry["folder"] / entry["file"]).read_bytes()
