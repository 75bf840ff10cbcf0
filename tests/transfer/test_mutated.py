"""Valid exports with random changes: each gives a report or a refusal, and valid rows."""

import copy
import io
import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from whole_prompt import prompt_messages

from luxx.domain.context.messages import PastMessage
from luxx.domain.conversations.access import assistant_steps, user_content
from luxx.domain.conversations.images import image_ids
from luxx.domain.files.names import image_type
from luxx.domain.transfer.child import ImportReader
from luxx.domain.transfer.document import ImportedRows, ReadyConversation, ReadyImage, ReadyMessage, ReadyRow
from luxx.wire.message import AssistantPrompt, ToolPrompt
from transfer.imports import sample

LIMIT = 50_000_000
ROWS = msgspec.json.Decoder(ReadyRow)
OWN = {
    "format": "luxx.conversation", "version": 1, "exported_at": "2025-01-02T03:04:06Z",
    "conversation": {
        "id": "c", "title": "t", "model": None, "system_prompt": "s", "temperature": 0.5, "max_tokens": 9,
        "thinking_enabled": True, "pinned": False, "archived": False, "tags": ["x"], "selected_leaf_id": "b",
        "created_at": "2025-01-02T03:04:05Z", "updated_at": "2025-01-03T00:00:00Z",
    },
    "messages": [
        {"id": "a", "parent_id": None, "role": "user", "text": "hi", "created_at": "2025-01-02T03:04:05Z",
         "attachments": [{"name": "n", "extension": "e", "content": "c"},
                         {"name": "i.gif", "extension": "gif", "content": "", "media_type": "image/gif",
                          "size": 14, "data": "R0lGODlhAQABAAAAADs="}]},
        {"id": "b", "parent_id": "a", "role": "assistant", "created_at": "2025-01-02T03:04:06Z",
         "replay": [{"refusal": "no"}], "usage": {"prompt_tokens": 1}, "steps": [
             {"id": "step-0", "index": 0, "type": "tool_call", "name": "f", "arguments": "{}", "id_ref": "1"},
             {"id": "step-1", "index": 1, "type": "tool_result", "name": "f", "id_ref": "1", "content": "{}"},
             {"id": "step-2", "index": 2, "type": "text", "content": "ho"}]},
    ],
}  # fmt: skip
EXPORTS = [json.loads(sample("chatgpt.json")), json.loads(sample("claude.json")), [OWN, OWN]]
KNOWN_WORDS = [
    "text",
    "user",
    "assistant",
    "a1text",
    "u1",
    "019d8ff4-0002",
    "a",
    "b",
    "tool_use",
    "thoughts",
    "all",
]
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(), st.sampled_from([2**31, 2**63, -(2**70), 10**400, 0, -1]),
    st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=8),
    st.sampled_from(["", " ", "\0", "a\0b", "\ud83d", "NaN", "\u2028", "x" * 70_000, *KNOWN_WORDS]),
    st.just([]), st.just({}), st.just([[[]]]), st.just({"a": {"b": None}}), st.just(["text", None, {}, 3]),
)  # fmt: skip


def positions(value: Any) -> list[tuple[Any, Any]]:
    """Every member and item of a value: its container and its key or index."""
    inner = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
    positions_found = [(value, key) for key, _ in inner]
    for _, each in inner:
        if isinstance(each, dict | list):
            positions_found += positions(each)
    return positions_found


@st.composite
def mutated_export(draw: st.DrawFn) -> bytes:
    export = copy.deepcopy(draw(st.sampled_from(EXPORTS)))
    for _ in range(draw(st.integers(1, 6))):
        there = positions(export)
        if not there:
            break
        inside, key = there[draw(st.integers(0, len(there) - 1))]
        match draw(st.sampled_from(["replace", "remove", "swap", "double"])):
            case "replace":
                inside[key] = copy.deepcopy(draw(ODD))
            case "remove":
                del inside[key]
            case "swap":
                other, other_key = there[draw(st.integers(0, len(there) - 1))]
                inside[key] = copy.deepcopy(other[other_key])
            case _:
                if isinstance(inside, list):
                    inside.append(copy.deepcopy(inside[key]))
    return json.dumps(export).encode()


def read(content: bytes) -> tuple[Any, list[ReadyRow]]:
    rows = io.BytesIO()
    outcome = ImportReader(rows).read(io.BytesIO(content), LIMIT)
    return outcome, [ROWS.decode(line) for line in rows.getvalue().splitlines()]


def check(rows: list[ReadyRow]) -> None:
    """Checks what the database, the views and the prompt require of a row."""
    known: dict[str, ReadyRow] = {}
    leaves: dict[str, str | None] = {}
    named: list[str] = []
    for row in rows:
        assert row.id not in known
        assert "\0" not in msgspec.json.encode(row).decode().replace("\\u0000", "\0")
        known[row.id] = row
        if isinstance(row, ReadyConversation):
            assert 0 < len(row.title) <= 300
            assert len(row.system_prompt or "") <= 100_000
            leaves[row.id] = row.selected_leaf_id
        elif isinstance(row, ReadyImage):
            check_image(row, known)
        else:
            check_message(row, known)
            named += image_ids(user_content(row.content)) if row.role == "user" else []
    assert sorted(named) == sorted(row.id for row in rows if isinstance(row, ReadyImage))
    assert all(leaf is None or leaf in known for leaf in leaves.values())


def check_image(row: ReadyImage, known: dict[str, ReadyRow]) -> None:
    message = known[row.message_id]
    assert isinstance(message, ReadyMessage)
    assert row.id in image_ids(user_content(message.content))
    assert image_type(row.data) == row.media_type


def check_message(row: ReadyMessage, known: dict[str, ReadyRow]) -> None:
    assert isinstance(known[row.conversation_id], ReadyConversation)
    if row.parent_id is not None:
        parent = known[row.parent_id]
        assert isinstance(parent, ReadyMessage)
        assert parent.conversation_id == row.conversation_id
        assert parent.created_at <= row.created_at
        assert parent.id < row.id
    assert 0 <= row.token_count < 2**31
    if row.role == "user":
        assert user_content(row.content).text is not None
        return
    steps = assistant_steps(row.content)
    assert [(step.id, step.index) for step in steps] == [(f"step-{n}", n) for n in range(len(steps))]
    replay = tuple(msgspec.json.decode(row.replay)) if row.replay else ()
    asked: set[str] = set()
    for message in prompt_messages("", [PastMessage(steps=tuple(steps), replay=replay)]):
        if isinstance(message, AssistantPrompt):
            asked = {call.call_id for call in message.tool_calls}
        elif isinstance(message, ToolPrompt):
            assert message.call_id in asked, "a result without its call, which every model refuses"


@settings(max_examples=300, deadline=None)
@given(content=mutated_export())
def test_random_values_in_an_export_give_valid_rows_or_a_reason(content: bytes) -> None:
    outcome, rows = read(content)
    if isinstance(outcome, ImportedRows):
        check(rows)
        report = outcome.report
        assert report.conversations == sum(isinstance(row, ReadyConversation) for row in rows)
        assert report.messages == sum(isinstance(row, ReadyMessage) for row in rows)
        assert len(report.skipped) == report.skipped_total
    else:
        assert len(outcome.reason) > 20


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(EXPORTS), st.data())
def test_changed_or_truncated_bytes_give_valid_rows_or_a_reason(export: Any, data: st.DataObject) -> None:
    content = bytearray(json.dumps(export).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    outcome, rows = read(bytes(content[: data.draw(st.integers(1, len(content)))]))
    if isinstance(outcome, ImportedRows):
        check(rows)


def test_unchanged_exports_pass_all_checks() -> None:
    for export, conversations, messages in zip(EXPORTS, (2, 2, 2), (11, 8, 4), strict=True):
        outcome, rows = read(json.dumps(export).encode())
        assert (outcome.report.conversations, outcome.report.messages) == (conversations, messages)
        check(rows)
    assert sum(isinstance(row, ReadyImage) for row in rows) == 2
