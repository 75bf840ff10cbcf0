"""Exports of ChatGPT and Claude keep branches, steps and times, and their conversations can be continued."""

import json
from typing import Any

from api.client import ApiClient

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


def roles_and_texts(messages: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(message["role"], message["text"].strip()) for message in messages]


def kinds(message: dict[str, Any]) -> list[str]:
    return [step["type"] for step in message["steps"]]


def by_title(person: ApiClient, report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    made = [person.good("GET", f"/conversations/{id_}") for id_ in report["conversation_ids"]]
    return {conversation["title"]: conversation for conversation in made}


def test_chatgpts_export_keeps_branches_steps_and_instructions(ann: ApiClient) -> None:
    report = import_data(ann, sample("chatgpt.json"))
    assert (report["conversations"], report["messages"]) == (2, 9 + 2)
    assert report["skipped"] == [{"title": "New chat", "reason": "it has no messages"}]
    beds = by_title(ann, report)["Vegetable beds"]
    assert beds["system_prompt"] == "I grow vegetables in Graz.\n\nAnswer briefly."
    assert (beds["pinned"], beds["archived"]) == (True, False)
    assert beds["created_at"] == "2025-07-01T09:00:00Z"
    path = path_of(ann, beds["id"])
    assert roles_and_texts(path) == [
        ("user", "How many beds of 1.2 × 4 m fit into 60 m²?"),
        ("assistant", "Twelve beds fit, with no paths between them."),
        ("user", "And with paths of 40 cm?"),
        ("assistant", "Nine beds in three rows."),
        ("user", "Which of these is frost-hardy?"),
        ("assistant", "Kale and leek are."),
    ]
    assert kinds(path[1]) == ["thinking", "tool_call", "tool_result", "text"]
    thinking, call, result, _text = path[1]["steps"]
    assert thinking["content"] == "**Dividing areas**\n\nA bed is 4.8 m², so 12.5."
    assert (call["name"], json.loads(call["arguments"])) == ("python", {"code": "60 / (1.2 * 4)"})
    assert call["id_ref"] == result["id_ref"]
    assert result["is_untrusted"] is True
    assert json.loads(result["content"]) == {"success": True, "data": "12.5", "error": None}
    assert path[5]["steps"][0]["name"] == "web_run"
    assert "Kale and leek stand frost." in path[5]["steps"][1]["content"]
    everyone = tree(ann, beds["id"])
    others = {message["text"]: message["status"] for message in everyone if message not in path}
    assert others == {"And with paths?": "complete", "About eight.": "partial", "Nine.": "complete"}
    losses = loss_counts(report)
    assert losses["pictures"] == losses["attached files"] == losses["sound recordings"] == 1
    assert losses["references to search results"] == losses["the custom GPT"] == 1


def test_a_voice_conversation_keeps_its_text_and_its_archive(ann: ApiClient) -> None:
    report = import_data(ann, sample("chatgpt.json"))
    voice_conversation = by_title(ann, report)["New conversation"]
    assert voice_conversation["archived"] is True
    assert roles_and_texts(path_of(ann, voice_conversation["id"])) == [
        ("user", "Tell me a joke."),
        ("assistant", "A leek walks into a bar and drips."),
    ]


def test_claudes_export_keeps_branches_tools_and_attached_text(ann: ApiClient) -> None:
    report = import_data(ann, sample("claude.json"))
    assert (report["conversations"], report["messages"], report["skipped"]) == (2, 8, [])
    conversations_by_title = by_title(ann, report)
    path = path_of(ann, conversations_by_title["The list of leeks"]["id"])
    assert [message["text"] for message in path[::2]] == ["What is in the list?", "And by count?"]
    assert kinds(path[1]) == ["thinking", "text", "tool_call", "tool_result", "text", "text"]
    assert path[1]["text"] == "Let me count.\n\nIt lists three leeks."
    assert json.loads(path[1]["steps"][2]["arguments"]) == {"code": "3 + 0"}
    assert path[1]["steps"][3]["success"] is True
    assert path[1]["steps"][3]["is_untrusted"] is True
    (attachment,) = path[0]["attachments"]
    assert attachment["name"] == "list.csv"
    assert attachment["content"] == "name,count\nleek,3\n"
    assert loss_counts(report) == {"attached files": 1, "references to sources": 1}
    assert len(tree(ann, conversations_by_title["The list of leeks"]["id"])) == 6
    old = path_of(ann, conversations_by_title["New conversation"]["id"])
    assert roles_and_texts(old) == [("user", "Good morning"), ("assistant", "Good morning to you.")]
    assert old[0]["created_at"] == "2024-03-01T08:00:00Z"


def test_an_imported_conversation_can_be_continued(ann: ApiClient) -> None:
    for name in ("chatgpt.json", "claude.json"):
        for conversation_id in import_data(ann, sample(name))["conversation_ids"]:
            before = path_of(ann, conversation_id)
            answer = ann.good(
                "POST", "/messages", json={"conversation_id": conversation_id, "content": "Go on."}
            )
            assert answer["status"] == "complete"
            after = path_of(ann, conversation_id)
            assert after[:-2] == before
            assert after[-1] == answer


def test_imported_conversations_are_listed_by_their_own_times(ann: ApiClient) -> None:
    import_data(ann, sample("claude.json"))
    import_data(ann, sample("chatgpt.json"))
    ann.good("POST", "/conversations", json={"title": "today"})
    items = ann.good("GET", "/conversations?page_size=100")["items"]
    times = [item["created_at"] for item in items]
    assert times == sorted(times, reverse=True)
    assert items[0]["title"] == "today"


def test_zip_files_and_forms_import_the_same_as_the_plain_file(ann: ApiClient) -> None:
    bare = import_data(ann, sample("claude.json"))
    archive = zipped(conversations__json=sample("claude.json"), users__json=b"[]", projects__json=b"[{}]")
    split = json.loads(sample("claude.json"))
    parts = {
        f"conversations-00{number}__json": json.dumps([conversation]).encode()
        for number, conversation in enumerate(split)
    }
    for content in (archive, zipped(**parts), zipped(**{"data/conversations__json": sample("claude.json")})):
        report = import_data(ann, content)
        assert {**report, "conversation_ids": None} == {**bare, "conversation_ids": None}
    for content in (sample("claude.json"), archive):
        files = {"file": ("export.zip", content, "application/octet-stream")}
        report = ann.good("POST", IMPORT, files=files, data={"note": "from my old place"})
        assert report["conversations"] == 2


def test_a_list_in_an_object_and_a_byte_order_mark_are_read(ann: ApiClient) -> None:
    listed = json.loads(sample("claude.json"))
    assert import_data(ann, {"version": 3, "conversations": listed, "more": {"a": [1]}})["conversations"] == 2
    assert import_data(ann, b"\xef\xbb\xbf" + sample("claude.json"))["conversations"] == 2
    assert import_data(ann, listed[0])["conversations"] == 1
    assert import_data(ann, [])["conversations"] == 0


def test_imports_are_visible_to_their_user_only(ann: ApiClient, ben: ApiClient) -> None:
    before = all_conversation_ids(ben)
    report = import_data(ann, sample("claude.json"))
    assert all_conversation_ids(ben) == before
    for conversation_id in report["conversation_ids"]:
        ben.bad("GET", f"/conversations/{conversation_id}", 404)
        ben.bad("GET", f"/conversations/{conversation_id}/export", 404)
        ben.bad("GET", f"/conversations/{conversation_id}/export?format=md", 404)


def test_a_request_without_a_file_is_refused(ann: ApiClient) -> None:
    check_import_is_refused(ann, b"", 400, "file_missing")
    answer = ann.bad("POST", IMPORT, 400, files={"file": ("empty.json", b"", "application/json")})
    assert answer["detail"]["kind"] == "file_missing"
    headers = {"content-type": "multipart/form-data; boundary=x"}
    for content in (
        b"",
        b"--x\r\n",
        b"no form at all",
        b"--x\r\nContent-Disposition: form-data\r\n\r\n1\r\n--x--",
    ):
        kind = ann.bad("POST", IMPORT, 400, content=content, headers=headers)["detail"]["kind"]
        assert kind in ("form_unreadable", "file_missing")
    ann.bad("POST", IMPORT, 400, content=b"x", headers={"content-type": "multipart/form-data"})
