"""Sample files for imports, and what a user sees of an import."""

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


def check_import_is_refused(person: ApiClient, content: bytes, status: int, kind: str) -> str:
    """Sends an import that must be refused and must leave nothing. Returns the error."""
    before = all_conversation_ids(person)
    failure = person.bad("POST", IMPORT, status, content=content)
    assert failure["detail"]["kind"] == kind, failure
    assert all_conversation_ids(person) == before
    return str(failure["error"])


def all_conversation_ids(person: ApiClient) -> list[str]:
    """The ids of all conversations of the user."""
    conversation_ids: list[str] = []
    page = 1
    while items := person.good("GET", f"/conversations?page={page}&page_size=100")["items"]:
        conversation_ids += [item["id"] for item in items]
        page += 1
    return conversation_ids


def tree(person: ApiClient, conversation_id: str) -> list[dict[str, Any]]:
    """All messages of a conversation, oldest first."""
    messages: list[dict[str, Any]] = []
    page = 1
    path = f"/messages?conversation_id={conversation_id}&page_size=100"
    while items := person.good("GET", f"{path}&page={page}")["items"]:
        messages += items
        page += 1
    return messages[::-1]


def path_of(person: ApiClient, conversation_id: str) -> list[dict[str, Any]]:
    """The messages of the selected path, oldest first."""
    by_id = {message["id"]: message for message in tree(person, conversation_id)}
    leaf = person.good("GET", f"/conversations/{conversation_id}")["selected_leaf_id"]
    path: list[dict[str, Any]] = []
    while leaf is not None:
        path.append(by_id[leaf])
        leaf = by_id[leaf]["parent_id"]
    return path[::-1]


def loss_counts(report: dict[str, Any]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for entry in report["lost"]:
        counts[entry["what"]] = counts.get(entry["what"], 0) + entry["count"]
    return counts
