"""Broken, huge and malicious files: refused or reported, and never imported in part."""

import io
import json
import struct
import time
import zipfile
from typing import Any

import pytest
from api.client import ApiClient, document_of
from api.server_process import ServerProcess

from luxx.domain.transfer import chatgpt
from luxx.domain.transfer.draft import Losses
from transfer.imports import (
    IMPORT,
    all_conversation_ids,
    check_import_is_refused,
    import_data,
    loss_counts,
    path_of,
    sample,
    tree,
    zipped,
)

CLAUDE = json.loads(sample("claude.json"))
CHATGPT = json.loads(sample("chatgpt.json"))
UNREADABLE = "import_unreadable"
TOO_LARGE = "import_too_large"
UNKNOWN = "import_format_unknown"


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    messages = [
        {"uuid": f"m{position}", "sender": ("human", "assistant")[position % 2], "text": text}
        for position, text in enumerate(texts)
    ]
    return {"uuid": "c", "name": "a chat", "chat_messages": messages, **more}


def nodes(*parents: tuple[str, Any], **more: Any) -> dict[str, Any]:
    """A ChatGPT conversation of these nodes, each with its parent; the roles take turns."""
    mapping: dict[str, Any] = {
        key: {
            "id": key,
            "parent": parent,
            "children": [],
            "message": {
                "author": {"role": ("user", "assistant")[position % 2]},
                "content": {"content_type": "text", "parts": [f"text of {key}"]},
                "create_time": 1_700_000_000 + position,
            },
        }
        for position, (key, parent) in enumerate(parents)
    }
    return {"title": "a tree", "mapping": mapping, "current_node": parents[-1][0], **more}


@pytest.mark.parametrize(
    ("content", "status", "kind"),
    [
        (b"not JSON at all", 400, UNREADABLE),
        (b"<html></html>", 400, UNREADABLE),
        (sample("claude.json")[:-40], 400, UNREADABLE),
        (sample("chatgpt.json") + b"[]", 400, UNREADABLE),
        (b"[" * 1_000_000, 400, UNREADABLE),
        (b'[{"a":' * 100_000, 400, UNREADABLE),
        (b'[{"chat_messages": NaN}]', 400, UNREADABLE),
        (b'["\\udc00"]', 400, UNREADABLE),
        (b'["\xff\xfe"]', 400, UNREADABLE),
        (b"[" + b"9" * 5000 + b"]", 400, UNREADABLE),
        ("[]".encode("utf-16"), 400, UNREADABLE),
        (b"\x00" * 1000, 400, UNREADABLE),
        (b"5", 400, UNKNOWN),
        (b'"chat_messages"', 400, UNKNOWN),
        (b"null", 400, UNKNOWN),
        (b'{"messages": []}', 400, UNKNOWN),
        (b"[{}, [], 1, null]", 400, UNKNOWN),
        (b"[" + b"{}," * 250_000 + b"{}]", 413, TOO_LARGE),
        (b"PK\x03\x04 and nothing more", 400, UNREADABLE),
        (zipped(readme__txt=b"hello"), 400, UNREADABLE),
        (zipped(conversations__json=b"[1"), 400, UNREADABLE),
        (zipped(conversations__json=sample("claude.json"))[:-30], 400, UNREADABLE),
        (zipped(conversations__json=b"[" + b" " * 30_000_000 + b"]"), 413, TOO_LARGE),
    ],
    # Of the texts, not of the bytes: a ZIP contains the time.
    ids=lambda value: f"{len(value)}-bytes" if isinstance(value, bytes) else "",
)
def test_a_broken_file_is_refused_completely(ann: ApiClient, content: bytes, status: int, kind: str) -> None:
    sentence = check_import_is_refused(ann, content, status, kind)
    assert len(sentence) > 20


def test_conversations_before_the_broken_part_are_not_imported(ann: ApiClient) -> None:
    good = json.dumps([chat("hello", f"answer {number}") for number in range(3000)]).encode()
    check_import_is_refused(ann, good[:-1] + b",{]", 400, UNREADABLE)
    check_import_is_refused(
        ann, zipped(**{"conversations-0__json": good, "conversations-1__json": b"[{"}), 400, UNREADABLE
    )


# --- ZIP files


def test_a_zip_that_declares_less_than_it_contains_is_refused(ann: ApiClient) -> None:
    """The size in its directory is a claim; the unpacked bytes count."""
    data = bytearray(zipped(conversations__json=b"[" + b" " * 40_000_000 + b"]"))
    for mark, offset in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        at = data.index(mark) + offset
        data[at : at + 4] = struct.pack("<I", 100)
    before = all_conversation_ids(ann)
    assert ann.bad("POST", IMPORT, 400, content=bytes(data))["detail"]["kind"] == UNREADABLE
    assert all_conversation_ids(ann) == before


def test_a_zip_with_a_password_or_broken_content_is_refused(ann: ApiClient) -> None:
    data = bytearray(zipped(conversations__json=sample("claude.json")))
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        data[data.index(mark) + offset] |= 1
    check_import_is_refused(ann, bytes(data), 400, UNREADABLE)
    data = bytearray(zipped(conversations__json=sample("claude.json")))
    data[200] ^= 0xFF
    check_import_is_refused(ann, bytes(data), 400, UNREADABLE)


@pytest.mark.parametrize("packing", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2, zipfile.ZIP_STORED])
def test_a_zip_that_cannot_be_unpacked_is_refused(ann: ApiClient, packing: int) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", packing) as archive:
        archive.writestr("conversätions.json", b"[" + b'"word", ' * 1000 + b"1]")
    data = packed.getvalue()
    if packing == zipfile.ZIP_STORED:
        data = data.replace("ä".encode(), b"\xff\xfe")
    else:
        data = data[:64] + b"\xff" * 20 + data[84:]
    check_import_is_refused(ann, data, 400, UNREADABLE)


def test_names_in_a_zip_are_never_used_as_paths(ann: ApiClient, server: ServerProcess) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("../../conversations.json", sample("claude.json"))
        archive.writestr("/etc/cron.d/evil", b"* * * * * root true")
    assert import_data(ann, packed.getvalue())["conversations"] == 2
    assert not [file for file in server.folder.rglob("*") if file.name in ("conversations.json", "evil")]


# --- trees


def test_nodes_that_name_only_their_children_are_connected(ann: ApiClient) -> None:
    conversation = nodes(("a", None), ("b", "a"), ("c", "b"), ("d", "a"))
    mapping: dict[str, Any] = conversation["mapping"]
    for node in mapping.values():
        node["children"] = [key for key, other in mapping.items() if other.get("parent") == node["id"]]
    for node in mapping.values():
        del node["parent"]
    unconnected = nodes(("a", None), ("b", "a"), ("c", "b"))
    for node in unconnected["mapping"].values():
        del node["parent"]
    report = import_data(ann, [conversation, unconnected])
    joined, separate = (tree(ann, id_) for id_ in report["conversation_ids"])
    texts = {message["id"]: message["text"] for message in joined}
    parents = {message["text"]: texts.get(message["parent_id"]) for message in joined}
    assert parents == {
        "text of a": None,
        "text of b": "text of a",
        "text of c": "text of b",
        "text of d": "text of a",
    }
    assert [message["parent_id"] for message in separate] == [None, None, None]
    assert loss_counts(report) == {"positions of messages whose predecessor is missing": 2}


def test_circles_missing_parents_and_several_roots_keep_every_text(ann: ApiClient) -> None:
    circle = nodes(("a", "c"), ("b", "a"), ("c", "b"), ("d", "c"))
    itself = nodes(("a", "a"), ("b", "a"))
    lost_parent = nodes(("a", None), ("b", "gone"), ("c", "b"))
    roots = nodes(("a", None), ("b", None), ("c", "a"), ("d", "b"))
    report = import_data(ann, [circle, itself, lost_parent, roots])
    assert (report["conversations"], report["skipped"]) == (4, [])
    trees = [tree(ann, id_) for id_ in report["conversation_ids"]]
    assert [sum(message["text"].count("text of") for message in messages) for messages in trees] == [
        4,
        2,
        3,
        4,
    ]
    for messages in trees:
        known: set[str] = set()
        for message in messages:
            assert message["parent_id"] is None or message["parent_id"] in known
            known.add(message["id"])
    losses = loss_counts(report)
    assert losses["positions of messages in a cycle"] == 2
    assert losses["positions of messages whose predecessor is missing"] == 1
    assert [len([m for m in messages if m["parent_id"] is None]) for messages in trees] == [1, 1, 2, 2]


def test_circles_and_duplicates_in_claude_and_luxx_files(ann: ApiClient) -> None:
    def row(key: str, parent: str, **more: Any) -> dict[str, Any]:
        return {"uuid": key, "sender": "human", "text": key, "parent_message_uuid": parent, **more}

    circle = {"name": "circle", "chat_messages": [row("a", "b"), row("b", "a"), row("c", "b")]}
    hidden = [row("a", "b", sender="nobody"), row("b", "a", sender="nobody"), row("c", "a")]
    report = import_data(ann, [circle, {"name": "hidden", "chat_messages": hidden}])
    assert [len(tree(ann, id_)) for id_ in report["conversation_ids"]] == [3, 1]
    twice = {"name": "twice", "chat_messages": [row("a", "x"), row("a", "x")]}
    assert import_data(ann, [twice])["skipped"] == [
        {"title": "twice", "reason": "two of its messages have the same id"}
    ]
    again = b'{"chat_messages": [], "chat_messages": [{"sender": "human", "text": "1", "text": "2"}]}'
    (conversation_id,) = import_data(ann, again)["conversation_ids"]
    assert [message["text"] for message in tree(ann, conversation_id)] == ["2"]


@pytest.mark.heavy
def test_a_chain_of_a_hundred_thousand_is_accepted_and_one_more_is_refused(ann: ApiClient) -> None:
    report = import_data(ann, [nodes(*((str(n), str(n - 1) if n else None) for n in range(20_000)))])
    assert report["messages"] == 20_000
    ann.good("DELETE", f"/conversations/{report['conversation_ids'][0]}")
    many = [{"sender": "human", "text": "x"}] * 100_001
    (skipped,) = import_data(ann, {"name": "endless", "chat_messages": many})["skipped"]
    assert skipped == {"title": "endless", "reason": "it has more than 100,000 messages"}


def test_a_single_value_that_is_too_deep_is_skipped_and_the_others_are_taken(ann: ApiClient) -> None:
    deep = b'{"name": "deep", "chat_messages": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    content = b"[" + json.dumps(chat("one", "two")).encode() + b"," + deep + b"]"
    report = import_data(ann, content)
    assert report["conversations"] == 1
    assert report["skipped"] == [{"title": "deep", "reason": "it is nested too deeply"}]


# --- values


@pytest.mark.parametrize(
    "moment",
    ["NaN", "1e999", "", "yesterday", "-99999-01-01", "9999-12-31T23:59:59Z", -1, -1e18, 1e18, 2**62, 1e308,
     True, [], {}, "2025-01-01T00:00:00+99:99", "0001-01-01T00:00:00Z"],
    ids=str,
)  # fmt: skip
def test_an_invalid_time_is_replaced_and_reported(ann: ApiClient, moment: Any) -> None:
    exported_chat = chat("hello", "hi", created_at=moment, updated_at=moment)
    exported_chat["chat_messages"][0]["created_at"] = moment
    other = nodes(("a", None), create_time=moment)
    other["mapping"]["a"]["message"]["create_time"] = moment
    report = import_data(ann, [exported_chat, other])
    assert report["conversations"] == 2
    assert loss_counts(report)["invalid times"] == 5
    for conversation_id in report["conversation_ids"]:
        assert [message["created_at"] for message in path_of(ann, conversation_id)]


def test_nul_and_lone_surrogates_are_replaced_and_reported(ann: ApiClient) -> None:
    report = import_data(ann, [chat("a\0b", "c\0\0d", name="t\0itle")])
    assert loss_counts(report) == {"NUL characters": 4}
    (conversation_id,) = report["conversation_ids"]
    assert [message["text"] for message in path_of(ann, conversation_id)] == ["a\ufffdb", "c\ufffd\ufffdd"]
    assert ann.good("GET", f"/conversations/{conversation_id}")["title"] == "t\ufffditle"
    content = json.dumps([chat("cut \ud83d", "whole 🥬")]).encode()
    assert path_of(ann, import_data(ann, content)["conversation_ids"][0])[1]["text"] == "whole 🥬"


def test_a_title_of_a_megabyte_and_a_text_of_ten_are_cut(ann: ApiClient) -> None:
    report = import_data(ann, [chat("y" * 10_000_000, "z" * 10_000_000, name="x" * 1_000_000)])
    (conversation_id,) = report["conversation_ids"]
    assert ann.good("GET", f"/conversations/{conversation_id}")["title"] == "x" * 300
    assert [len(message["text"]) for message in path_of(ann, conversation_id)] == [1_000_000, 4_000_000]
    assert {loss["conversation"] for loss in report["lost"]} == {"x" * 300}
    assert loss_counts(report) == {
        "text past 4,000,000 characters": 2,
        "text of a user's message past 1,000,000 characters": 1,
    }
    ann.good("DELETE", f"/conversations/{conversation_id}")


def test_tools_with_invalid_names_and_arguments_become_valid_calls(ann: ApiClient) -> None:
    blocks: list[Any] = [
        {"type": "tool_result", "tool_use_id": "nobody asked", "content": "42"},
        {"type": "tool_use", "id": 5, "name": "a b/c\n" * 50, "input": {"n": 2**80, "f": 1e400, "d": {}}},
        {"type": "tool_result", "content": [{"type": "image", "source": {}}, None], "is_error": True},
    ]
    exported_chat = chat("x", "y")
    exported_chat["chat_messages"][1]["content"] = json.loads(json.dumps(blocks).replace("Infinity", "1e308"))
    (conversation_id,) = import_data(ann, exported_chat)["conversation_ids"]
    steps = path_of(ann, conversation_id)[1]["steps"]
    assert [step["type"] for step in steps] == ["tool_call", "tool_result"] * 2
    for call, result in (steps[:2], steps[2:]):
        assert call["id_ref"] == result["id_ref"]
        assert len(call["name"]) <= 64
        assert isinstance(json.loads(call["arguments"]), dict)
    answer = ann.good("POST", "/messages", json={"conversation_id": conversation_id, "content": "Go on."})
    assert answer["status"] == "complete"


def test_many_losses_and_skips_are_counted_and_the_first_are_listed(ann: ApiClient) -> None:
    files = {"files": [{"file_name": "a.png"}]}
    loud = [chat("x", "y") for _ in range(300)]
    for error in loud:
        error["chat_messages"][0] |= files
    report = import_data(ann, [*loud, *({"mapping": None, "title": str(n)} for n in range(300))])
    assert (report["conversations"], report["lost_total"], report["skipped_total"]) == (300, 300, 300)
    assert (len(report["lost"]), len(report["skipped"]), len(report["conversation_ids"])) == (200, 200, 200)


def seconds_to_read(count: int) -> float:
    """CPU seconds to read a chat with this many instructions."""
    said = nodes(*((str(position), None) for position in range(count)), ("end", None))
    for position in range(count):
        message = said["mapping"][str(position)]["message"]
        message["metadata"] = {"is_user_system_message": True}
        message["content"]["parts"] = [f"{position:06}"]
    begun = time.process_time()
    prompt = chatgpt.draft_of(said, Losses()).system_prompt
    assert prompt is not None
    assert len(prompt) <= 100_000
    return time.process_time() - begun


def test_many_instructions_are_read_in_linear_time() -> None:
    few = min(seconds_to_read(2_000) for _ in range(3))
    assert seconds_to_read(16_000) < 24 * few


# --- limits


@pytest.fixture
def small(tmp_path: Any) -> Any:
    """A server with one megabyte for an upload and two for everything."""
    with ServerProcess(tmp_path, LUXX_FILES__MAX_UPLOAD_MB="1", LUXX_FILES__QUOTA_MB="2") as running:
        yield running


def test_the_limits_of_the_configuration_hold(small: ServerProcess) -> None:
    with ApiClient(small, document_of(small)).register("cat") as cat:
        text = " ".join(f"word{number}" for number in range(80_000))
        check_import_is_refused(cat, json.dumps([chat(text * 2, "y")]).encode(), 413, "too_large")
        repeated = json.dumps([chat(text[:20_000] * 600, "y")]).encode()
        check_import_is_refused(cat, zipped(conversations__json=repeated), 413, TOO_LARGE)
        fitting = json.dumps([chat(text, "y")]).encode()
        assert import_data(cat, fitting)["conversations"] == 1
        assert import_data(cat, fitting)["conversations"] == 1
        check_import_is_refused(cat, fitting, 413, "quota_exceeded")
        cat.good("DELETE", f"/conversations/{all_conversation_ids(cat)[0]}")
        assert import_data(cat, fitting)["conversations"] == 1
    assert '"level":"error"' not in small.output


def test_no_hostile_file_caused_an_internal_error(server: ServerProcess, ann: ApiClient) -> None:
    ann.good("GET", "/auth/me")
    assert "request_failed" not in server.output
    assert "import_reader_failed" not in server.output
