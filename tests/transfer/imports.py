"""Files to import, and what a person sees of what was imported."""

import io
import json
import zipfile
from pathlib import Path
from typing import Any

from api.client import ApiClient

SAMPLES = Path(__file__).parent / "samples"
IMPORT = "/conversations/import"


def sample(name: str) -> bytes:
    return (SAMPLES / name).read_bytes()


def zipped(**files: bytes) -> bytes:
    """A ZIP file; two underscores in a name stand for a dot."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "."), content)
    return packed.getvalue()


def import_data(person: ApiClient, content: bytes | Any) -> dict[str, Any]:
    """The report of an import that must succeed."""
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    report: dict[str, Any] = person.good("POST", IMPORT, content=data)
    return report


def refused(person: ApiClient, content: bytes, status: int, kind: str) -> str:
    """The sentence of an import that must be refused, with nothing of it there."""
    before = everything(person)
    failure = person.bad("POST", IMPORT, status, content=content)
    assert failure["detail"]["kind"] == kind, failure
    assert everything(person) == before
    return str(failure["error"])


def everything(person: ApiClient) -> list[str]:
    """The ids of all that the person has."""
    found: list[str] = []
    page = 1
    while items := person.good("GET", f"/conversations?page={page}&page_size=100")["items"]:
        found += [item["id"] for item in items]
        page += 1
    return found


def tree(person: ApiClient, conversation_id: str) -> list[dict[str, Any]]:
    """All messages of a conversation, oldest first."""
    found: list[dict[str, Any]] = []
    page = 1
    path = f"/messages?conversation_id={conversation_id}&page_size=100"
    while items := person.good("GET", f"{path}&page={page}")["items"]:
        found += items
        page += 1
    return found[::-1]


def path_of(person: ApiClient, conversation_id: str) -> list[dict[str, Any]]:
    """The messages of the selected path, oldest first."""
    by_id = {message["id"]: message for message in tree(person, conversation_id)}
    leaf = person.good("GET", f"/conversations/{conversation_id}")["selected_leaf_id"]
    path: list[dict[str, Any]] = []
    while leaf is not None:
        path.append(by_id[leaf])
        leaf = by_id[leaf]["parent_id"]
    return path[::-1]


def lost(report: dict[str, Any]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in report["lost"]:
        counts[entry["what"]] = counts.get(entry["what"], 0) + entry["count"]
    return counts
