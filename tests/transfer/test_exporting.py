"""Exported JSON imports to an equal conversation; Markdown is for people, and no text breaks its
structure.
"""

import json
import re
from typing import Any
from urllib.parse import unquote

import pytest
from api.client import ApiClient
from bs4 import BeautifulSoup

from luxx.providers.scripted import ScriptedProvider
from transfer.imports import IMPORT, import_data, loss_counts, path_of, sample, tree

TITLE = 'Ünïcode/"quoted"\n\\ title'
NASTY = "Text\r\n```\nopen fence\n<!-- open comment <script>\n</details>\n# no heading\n| 日本語 🥬"


def document_of(person: ApiClient, conversation_id: str) -> dict[str, Any]:
    response = person.ask("GET", f"/conversations/{conversation_id}/export")
    assert response.is_success, response.text
    assert int(response.headers["content-length"]) == len(response.content)
    assert response.headers["content-disposition"].startswith("attachment; filename=")
    document: dict[str, Any] = response.json()
    return document


def comparable(document: dict[str, Any]) -> dict[str, Any]:
    """The document with the indexes of messages instead of their ids, because an import gives new ids."""
    indexes = {message["id"]: position for position, message in enumerate(document["messages"])}
    conversation = {**document["conversation"], "id": None}
    conversation["selected_leaf_id"] = indexes.get(conversation["selected_leaf_id"])
    messages = [
        {**message, "id": indexes[message["id"]], "parent_id": indexes.get(message["parent_id"])}
        for message in document["messages"]
    ]
    return {**document, "exported_at": None, "conversation": conversation, "messages": messages}


@pytest.fixture(scope="module")
def talk(ann: ApiClient) -> str:
    """A conversation of three turns: one has an attachment, and one answer is deleted."""
    body = {
        "title": TITLE, "system_prompt": "Be kind.", "temperature": 0.25, "max_tokens": 77,
        "tags": ["a", "ß"], "thinking_enabled": False, "pinned": True, "archived": True,
    }  # fmt: skip
    conversation_id: str = ann.good("POST", "/conversations", json=body)["id"]
    attachment = {"name": "a.md", "extension": "md", "content": NASTY}
    ann.good(
        "POST",
        "/messages",
        json={"conversation_id": conversation_id, "content": NASTY, "attachments": [attachment]},
    )
    ann.good("POST", "/messages", json={"conversation_id": conversation_id, "content": "And?"})
    last = ann.good("POST", "/messages", json={"conversation_id": conversation_id, "content": "So?"})
    ann.good("DELETE", f"/messages/{last['id']}")
    return conversation_id


def test_an_exported_conversation_imports_to_an_equal_tree(ann: ApiClient, ben: ApiClient, talk: str) -> None:
    document = document_of(ann, talk)
    assert (document["format"], document["version"], len(document["messages"])) == ("luxx.conversation", 1, 5)
    for person in (ann, ben):
        report = import_data(person, document)
        assert (report["conversations"], report["messages"], report["lost"]) == (1, 5, [])
        (conversation_id,) = report["conversation_ids"]
        again = document_of(person, conversation_id)
        assert comparable(again) == comparable(document)
        old = {message["id"] for message in document["messages"]} | {talk}
        assert not old & ({message["id"] for message in again["messages"]} | {conversation_id})
        shown = [
            (m["role"], m["text"], m["steps"], m["attachments"]) for m in path_of(person, conversation_id)
        ]
        assert shown == [(m["role"], m["text"], m["steps"], m["attachments"]) for m in path_of(ann, talk)]
    # Which facts an answer was given stays behind, and a file cannot say it.
    assert not any("memories_used" in message for message in document["messages"])
    forged = [{**message, "memories_used": [talk]} for message in document["messages"]]
    (copy,) = import_data(ann, {**document, "messages": forged})["conversation_ids"]
    assert [message["memories_used"] for message in tree(ann, copy)] == [[]] * 5


def test_branches_of_other_formats_survive_a_second_round_trip(ann: ApiClient, ben: ApiClient) -> None:
    made = [
        id_
        for name in ("chatgpt.json", "claude.json")
        for id_ in import_data(ann, sample(name))["conversation_ids"]
    ]
    documents = [document_of(ann, id_) for id_ in made]
    report = import_data(ben, documents)
    assert (report["conversations"], report["lost"], report["skipped"]) == (4, [], [])
    again = [document_of(ben, id_) for id_ in report["conversation_ids"]]
    assert [comparable(document) for document in again] == [comparable(document) for document in documents]


def test_replay_notes_usage_and_every_field_of_a_step_are_exported(ann: ApiClient) -> None:
    steps = [
        {"id": "step-0", "index": 0, "type": "thinking", "content": "hm", "status": "interrupted",
         "level": "task"},
        {"id": "step-1", "index": 1, "type": "tool_call", "content": "", "name": "file_read",
         "arguments": "{\"path\": 1", "id_ref": "c/1", "status": "done"},
        {"id": "step-2", "index": 2, "type": "tool_result", "content": "{}", "name": "file_read",
         "id_ref": "c/1", "success": False, "status": "error", "duration_ms": 12},
        {"id": "step-3", "index": 3, "type": "text", "content": "", "status": "cancelled"},
    ]  # fmt: skip
    notes = [{"reasoning_details": [{"data": "abc", "n": 1.5, "big": 2**60, "none": None}]}, {}]
    usage = {"prompt_tokens": 5, "completion_tokens": 6, "total_tokens": 11, "reasoning_tokens": 2,
             "cached_tokens": 1, "cache_write_tokens": 2}  # fmt: skip
    message = {
        "id": "m2", "parent_id": "m1", "role": "assistant", "text": "", "attachments": [], "steps": steps,
        "replay": notes, "token_count": 6, "usage": usage, "status": "partial", "sender_name": "Bo",
        "sender_color": "#fff", "round_number": 3, "created_at": "2025-01-02T03:04:06.789123Z",
        "finish": "length", "provider_name": "P", "model": "m-1",
    }  # fmt: skip
    asked = {
        **message, "id": "m1", "parent_id": None, "role": "user", "text": "q", "steps": [], "replay": [],
        "usage": None, "status": "complete", "created_at": "2025-01-02T03:04:05Z",
        "finish": None, "provider_name": None, "model": None,
    }  # fmt: skip
    document = {
        "format": "luxx.conversation", "version": 1, "exported_at": "2025-01-02T03:04:06Z",
        "conversation": {
            "id": "c", "title": "t", "model": "m", "system_prompt": None, "temperature": None,
            "max_tokens": None, "thinking_enabled": None, "reasoning_effort": "high",
            "planning": "auto", "routing": "off", "sliding_window": None, "memory": "off", "record": False,
            "pinned": False, "archived": False, "tags": [], "selected_leaf_id": "m1",
            "created_at": "2025-01-02T03:04:05Z", "updated_at": "2025-01-03T00:00:00Z",
        },
        "messages": [asked, message],
    }  # fmt: skip
    (conversation_id,) = import_data(ann, document)["conversation_ids"]
    # With one exception: the author of a file is unknown after an import, so its results count as untrusted.
    steps[2]["is_untrusted"] = True
    assert comparable(document_of(ann, conversation_id)) == comparable(document)


def test_a_document_that_selects_a_missing_message_selects_its_newest(ann: ApiClient, talk: str) -> None:
    document = document_of(ann, talk)
    for named, losses in (
        ("nowhere", {"selected messages that are missing": 1}),
        (None, {}),
    ):
        document["conversation"]["selected_leaf_id"] = named
        report = import_data(ann, document)
        assert {name: n for name, n in loss_counts(report).items() if name.startswith("selected")} == losses
        (conversation_id,) = report["conversation_ids"]
        newest = ann.good("GET", f"/messages?conversation_id={conversation_id}")["items"][0]["id"]
        assert path_of(ann, conversation_id)[-1]["id"] == newest
        ann.good("POST", "/messages", json={"conversation_id": conversation_id, "content": "and now?"})
        assert path_of(ann, conversation_id)[-2]["parent_id"] == newest
    del document["conversation"]["selected_leaf_id"]
    assert path_of(ann, import_data(ann, document)["conversation_ids"][0])
    empty = {**document, "messages": []}
    assert path_of(ann, import_data(ann, empty)["conversation_ids"][0]) == []


def test_references_to_rows_of_another_server_are_not_trusted(ann: ApiClient, talk: str) -> None:
    document = document_of(ann, talk)
    document["messages"][0]["attachments"][0]["blob_id"] = "01890a5d-ac96-774b-bcce-b302099a8057"
    document["conversation"] |= {"provider_id": 1, "user_id": 1, "run_id": talk, "import_id": talk}
    report = import_data(ann, document)
    assert loss_counts(report) == {"attached files that are not in the document": 1}
    made = ann.good("GET", f"/conversations/{report['conversation_ids'][0]}")
    assert (made["provider_id"], made["user_id"], made["run_id"]) == (None, ann.user["id"], None)
    assert "01890a5d" not in json.dumps(document_of(ann, made["id"]))


def test_a_document_of_a_newer_version_or_another_shape_is_skipped(ann: ApiClient, talk: str) -> None:
    document = document_of(ann, talk)
    wrong = [
        {**document, "version": 2},
        {**document, "messages": None},
        {**document, "messages": [{**document["messages"][0], "role": "system"}]},
        {**document, "messages": [document["messages"][0]] * 2},
        {**document, "conversation": {**document["conversation"], "temperature": 9}},
    ]
    report = import_data(ann, [*wrong, document])
    assert (report["conversations"], report["skipped_total"]) == (1, 5)
    assert all(entry["reason"] and entry["title"] for entry in report["skipped"])


def test_an_export_during_a_run_contains_the_stored_messages(
    ann: ApiClient, upstream: ScriptedProvider
) -> None:
    conversation_id = ann.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": conversation_id, "content": "wait here"}
    run = ann.good("POST", "/messages/stream", json=body, headers={"accept": "application/json"})
    document = document_of(ann, conversation_id)
    assert [message["role"] for message in document["messages"]] == ["user"]
    (imported_id,) = import_data(ann, document)["conversation_ids"]
    assert ann.good("GET", f"/conversations/{imported_id}")["run_id"] is None
    ann.good("POST", f"/runs/{run['id']}/cancel")


@pytest.mark.heavy
def test_a_long_conversation_is_exported_and_imported_completely(ann: ApiClient) -> None:
    talk = {"uuid": "x", "name": "long", "chat_messages": []}
    talk["chat_messages"] = [
        {"uuid": f"m{n}", "sender": ("human", "assistant")[n % 2], "text": f"message {n}"}
        for n in range(5000)
    ]
    (conversation_id,) = import_data(ann, talk)["conversation_ids"]
    document = document_of(ann, conversation_id)
    texts = [m["text"] or m["steps"][0]["content"] for m in document["messages"]]
    assert texts == [f"message {n}" for n in range(5000)]
    (again,) = import_data(ann, document)["conversation_ids"]
    assert comparable(document_of(ann, again)) == comparable(document)
    assert len(tree(ann, again)) == 5000
    assert ann.ask("GET", f"/conversations/{again}/export?format=md").text.count("\n> message ") == 5000


# --- Markdown


def markdown(person: ApiClient, conversation_id: str) -> str:
    response = person.ask("GET", f"/conversations/{conversation_id}/export", params={"format": "md"})
    assert response.is_success
    assert response.headers["content-type"] == "text/markdown; charset=utf-8"
    return response.text


def text_outside_quotes(text: str) -> str:
    """The text that is neither in a quotation nor in a fence."""
    lines: list[str] = []
    fence = ""
    for line in text.split("\n"):
        opened = re.match("`{3,}", line)
        if fence:
            fence = "" if line == fence else fence
        elif opened:
            fence = opened[0]
        elif not line.startswith(">"):
            lines.append(line)
    assert not fence, "a fence is open at the end"
    return "\n".join(lines)


def test_markdown_names_the_speakers_and_no_text_breaks_its_structure(ann: ApiClient, talk: str) -> None:
    text = markdown(ann, talk)
    structure = text_outside_quotes(text)
    assert re.findall("^#+ .*$", structure, re.MULTILINE) == [
        '# Ünïcode/"quoted" \\\\ title', "## You", "## Assistant", "## You", "## Assistant", "## You",
    ]  # fmt: skip
    assert [summary.string for summary in BeautifulSoup(structure, "lxml").find_all("summary")] == [
        "Instructions", "Attached: a.md", "Thinking", "Thinking",
    ]  # fmt: skip
    assert structure.count("<details>") == structure.count("</details>") == 4
    assert "<script" not in structure
    assert "<!--" not in structure
    for line in NASTY.replace("\r\n", "\n").split("\n"):
        assert f"> {line}" in text
        assert f"\n{line}\n" in text
    assert "> Hello there." in text
    assert "\r" not in text


def test_markdown_names_tools_and_counts_other_branches(ann: ApiClient) -> None:
    conversation_id = import_data(ann, sample("chatgpt.json"))["conversation_ids"][0]
    text = markdown(ann, conversation_id)
    assert "- 3 more messages are on other branches" in text
    assert "<summary>Called python</summary>" in text
    assert "<summary>Result: python</summary>" in text
    assert "> Kale and leek are." in text
    assert "Nine.\n" not in text


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (1, ""),
        (2, "- 1 more message is on another branch, which is not shown here"),
        (3, "- 2 more messages are on other branches, which are not shown here"),
    ],
)
def test_markdown_counts_one_message_on_other_branches_as_one(
    ann: ApiClient, answers: int, expected: str
) -> None:
    said = [{"uuid": "m0", "sender": "human", "text": "Hello?"}]
    said += [
        {
            "uuid": f"a{position}",
            "sender": "assistant",
            "text": f"Answer {position}.",
            "parent_message_uuid": "m0",
        }
        for position in range(answers)
    ]
    chat = {"uuid": "c", "name": "branches", "chat_messages": said, "current_leaf_message_uuid": "a0"}
    (conversation_id,) = import_data(ann, chat)["conversation_ids"]
    lines = [line for line in markdown(ann, conversation_id).split("\n") if "more message" in line]
    assert lines == ([expected] if expected else [])


def test_names_and_titles_cannot_leave_their_line(ann: ApiClient, talk: str) -> None:
    document = document_of(ann, talk)
    document["conversation"]["title"] = "[x](javascript:1)\n\n# <b>`"
    document["messages"][1]["sender_name"] = "</summary>\n# *boss*"
    document["messages"][0]["attachments"][0]["name"] = "</summary><script>\n.md"
    structure = text_outside_quotes(markdown(ann, import_data(ann, document)["conversation_ids"][0]))
    assert "# \\[x\\](javascript:1) \\# \\<b\\>\\`\n" in structure
    assert "## \\</summary\\> \\# \\*boss\\*\n" in structure
    assert "<summary>Attached: &lt;/summary&gt;&lt;script&gt; .md</summary>" in structure


def test_the_download_is_named_after_the_title(ann: ApiClient, talk: str) -> None:
    header = ann.ask("GET", f"/conversations/{talk}/export?format=md").headers["content-disposition"]
    assert 'filename="ncodequoted title.md"' in header
    assert unquote(header.rpartition("''")[2]) == "Ünïcodequoted title.md"
    ann.bad("GET", f"/conversations/{talk}/export?format=pdf", 400)
    ann.bad("GET", "/conversations/01890a5d-ac96-774b-bcce-b302099a8057/export", 404)
    ann.bad("GET", IMPORT, 405)
