"""Imports have the bounds of the API: longer texts and lists are cut, and the report says so."""

import base64
import gc
import io
import json
import time
from typing import Any

import msgspec
import pytest
from api.client import ApiClient

from luxx.domain.transfer.child import ImportReader
from luxx.domain.transfer.document import ImportedRows
from luxx.domain.transfer.draft import (
    MAX_CONTENT,
    WITHOUT_TEXT,
    ConversationDraft,
    DraftMessage,
    Losses,
    StepBuilder,
    cut_to_limits,
)
from luxx.wire.message import (
    MAX_ATTACHED_TEXT,
    MAX_ATTACHMENTS,
    MAX_EXTENSION,
    MAX_FILE_NAME,
    MAX_MESSAGE_TEXT,
)
from luxx.wire.turn import Step, StepType
from transfer.imports import import_data, loss_counts, tree

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * 16).decode()
TIME = "2026-01-01T00:00:00Z"
MAX_FACTOR = 9.0
"""A factor; quadratic growth would give sixteen."""


def document(*messages: dict[str, Any]) -> dict[str, Any]:
    """A document in Luxx's own format with these messages, each the child of the one before."""
    header = {"id": "c", "title": "bounds", "created_at": TIME, "updated_at": TIME}
    listed = [
        {
            "id": f"m{position}",
            "parent_id": f"m{position - 1}" if position else None,
            "created_at": TIME,
            **message,
        }
        for position, message in enumerate(messages)
    ]
    return {
        "format": "luxx.conversation", "version": 1, "exported_at": TIME, "conversation": header,
        "messages": listed,
    }  # fmt: skip


def test_a_persons_message_is_cut_to_what_can_be_sent(ann: ApiClient) -> None:
    files = [{"name": "n" * 300, "extension": "e" * 30, "content": "c" * (MAX_ATTACHED_TEXT + 1)}]
    files += [{"name": "", "extension": "", "content": ""}] * (MAX_ATTACHMENTS - 1)
    files += [{"name": "late.png", "extension": "png", "content": "", "data": PNG}]
    report = import_data(
        ann,
        document(
            {"role": "user", "text": "t" * (MAX_MESSAGE_TEXT + 1), "attachments": files}, {"role": "user"}
        ),
    )
    assert loss_counts(report) == {
        "text of a user's message past 1,000,000 characters": 1,
        "attached files past 20": 1,
        "names of attached files past 255 characters": 1,
        "extensions of attached files past 20 characters": 1,
        "attached text past 2,000,000 characters": 1,
        "messages without visible text": 1,
    }
    spoken, silent = tree(ann, report["conversation_ids"][0])
    assert spoken["text"] == "t" * MAX_MESSAGE_TEXT
    assert len(spoken["attachments"]) == MAX_ATTACHMENTS
    first, second = spoken["attachments"][:2]
    assert (len(first["name"]), len(first["extension"])) == (MAX_FILE_NAME, MAX_EXTENSION)
    assert len(first["content"]) == MAX_ATTACHED_TEXT
    assert second["name"]
    assert silent["text"] == WITHOUT_TEXT


def test_an_imported_message_can_be_sent_again(ann: ApiClient) -> None:
    """An edit with the same text and files is accepted, because the bounds are those of the API."""
    files = [{"name": "n" * 300, "extension": "e" * 30, "content": "c"}]
    report = import_data(
        ann, document({"role": "user", "text": "t" * (MAX_MESSAGE_TEXT + 1), "attachments": files})
    )
    (message,) = tree(ann, report["conversation_ids"][0])
    body = {"content": message["text"], "attachments": message["attachments"]}
    assert ann.good("PUT", f"/messages/{message['id']}", json=body)["text"] == message["text"]
    ann.bad("PUT", f"/messages/{message['id']}", 400, json={**body, "content": message["text"] + "t"})


@pytest.mark.parametrize(
    "step",
    [
        {"type": "tool_call", "name": "n" * 10_001, "id_ref": "x", "arguments": "{}"},
        {"type": "tool_call", "name": "n", "id_ref": "x" * 10_000, "arguments": "{}"},
        {"type": "tool_call", "name": "n", "id_ref": "x", "arguments": " " * 4_000_001},
        {"type": "text", "content": "a", "level": "l" * 10_001},
    ],
)
def test_a_step_that_no_run_could_store_is_left_out(ann: ApiClient, step: dict[str, Any]) -> None:
    steps = [
        {"id": "step-0", "index": 0, **step},
        {"id": "step-1", "index": 1, "type": "text", "content": "b"},
    ]
    report = import_data(ann, document({"role": "assistant", "steps": steps}))
    assert loss_counts(report) == {"steps with a name or arguments that are too long": 1}
    (message,) = tree(ann, report["conversation_ids"][0])
    assert [(each["index"], each["content"]) for each in message["steps"]] == [(0, "b")]


def test_an_answer_has_no_more_steps_than_a_run_makes() -> None:
    step = {"id": "s", "index": 0, "type": "text", "content": "x"}
    outcome, rows = read(document({"role": "assistant", "steps": [step] * 100_003}))
    assert [(loss.what, loss.count) for loss in outcome.report.lost] == [
        ("steps past 100,000 of an answer", 3)
    ]
    message = json.loads(rows.splitlines()[1])
    assert len(json.loads(message["content"])["steps"]) == 100_000


def test_a_stored_answer_fits_into_a_backup_row() -> None:
    """Escaped characters count as they are stored."""
    step = Step(id="step-0", index=0, type=StepType.TEXT, content='"' * 4_000_000)
    answer = DraftMessage(key="m", parent=None, role="assistant", steps=[step] * 18)
    draft = ConversationDraft(title="t", messages=[answer], losses=Losses())
    cut_to_limits(draft)
    assert draft.losses.counts == {"steps past 64 MiB of an answer": 10}
    assert len(answer.steps) == 8
    assert len(msgspec.json.encode(answer.steps)) < MAX_CONTENT


# --- time


def read(value: Any) -> tuple[ImportedRows, bytes]:
    """The report of the reader for this value, and its rows."""
    data, rows = json.dumps(value).encode(), io.BytesIO()
    outcome = ImportReader(rows).read(io.BytesIO(data), len(data) + 1)
    assert isinstance(outcome, ImportedRows), outcome
    return outcome, rows.getvalue()


def node(parent: str | None, role: str, parts: list[Any], **more: Any) -> dict[str, Any]:
    content = {"content_type": "text", "parts": parts}
    return {"parent": parent, "message": {"author": {"role": role}, "content": content, **more}}


def many_below_a_long_one(size: int) -> dict[str, Any]:
    """Nodes that are all children of one node with a long empty text."""
    mapping = {"top": node(None, "user", [""] * size)}
    mapping |= {f"n{position}": node("top", "user", ["hi"]) for position in range(size)}
    return {"title": "t", "mapping": mapping}


def answered_backwards(size: int) -> StepBuilder:
    """All calls first, then their results in reverse order."""
    writer = StepBuilder()
    for position in range(size):
        writer.add_call(f"c{position}", "a_tool", "{}")
    while (call := writer.open_call()) is not None:
        writer.add_result(*call, "{}", success=True)
    assert len(writer.steps) == 2 * size
    return writer


def cost(work: Any, given: Any) -> float:
    """CPU seconds, the minimum of a few attempts, without collections of what other tests have left."""
    costs: list[float] = []
    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            began = time.thread_time()
            work(given)
            costs.append(time.thread_time() - began)
    finally:
        gc.enable()
    return min(costs)


@pytest.mark.heavy
def test_a_file_four_times_as_long_takes_about_four_times_as_long() -> None:
    cheap, dear = (cost(read, many_below_a_long_one(size)) for size in (3_000, 12_000))
    assert dear < MAX_FACTOR * cheap


def test_four_times_as_many_calls_take_about_four_times_as_long() -> None:
    cheap, dear = (cost(answered_backwards, size) for size in (20_000, 80_000))
    assert dear < MAX_FACTOR * cheap
