"""Attachments: texts, PDFs and images, sent with the message or as uploaded files, and stored with it."""

import base64
import json
import os
from collections.abc import Iterator
from typing import Any

import pytest
from api.bad_requests import UNKNOWN_ID
from api.client import ApiClient
from api.server_process import ServerProcess
from knowledge_documents import DOCUMENTS, word_xml, zip_of

from files.sample_files import GIF, JPEG, WEBP, Json, clear, large_images, pdf, png, put
from luxx.providers.scripted import ScriptedProvider

IMAGES = {"image/png": png(), "image/jpeg": JPEG, "image/gif": GIF, "image/webp": WEBP}
TEXT_SHAPE = {"name", "extension", "content"}


@pytest.fixture(autouse=True)
def empty(anna: ApiClient) -> Iterator[None]:
    yield
    clear(anna)


@pytest.fixture
def chat(anna: ApiClient) -> str:
    conversation_id: str = anna.good("POST", "/conversations", json={})["id"]
    return conversation_id


def body_of(chat: str, *attachments: Json, **more: Any) -> Json:
    return {"conversation_id": chat, "content": "Look at this.", "attachments": list(attachments), **more}


def send(person: ApiClient, chat: str, *attachments: Json, **more: Any) -> Json:
    """Sends a message. Returns the user's message as stored."""
    answer = person.good("POST", "/messages", json=body_of(chat, *attachments, **more))
    messages = person.good("GET", f"/messages?conversation_id={chat}")["items"]
    (user_message,) = [message for message in messages if message["id"] == answer["parent_id"]]
    return dict(user_message)


def refuse(person: ApiClient, status: int, chat: str, *attachments: Json, **more: Any) -> Json:
    failure = person.bad("POST", "/messages", status, json=body_of(chat, *attachments, **more))
    assert person.good("GET", f"/messages?conversation_id={chat}")["total"] == 0
    return failure


def image(data: bytes, name: str = "cat.png", **more: Any) -> Json:
    return {"name": name, "data": base64.b64encode(data).decode(), **more}


def last_prompt(upstream: ScriptedProvider) -> str:
    """The last user message in the prompt."""
    content = json.loads(upstream.requests[-1].body)["messages"][-1]["content"]
    return content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)


def test_a_text_attachment_has_a_stable_shape(anna: ApiClient, chat: str, upstream: ScriptedProvider) -> None:
    asked = send(anna, chat, {"name": "note.md", "content": "Buy milk."})
    assert asked["attachments"] == [{"name": "note.md", "extension": "md", "content": "Buy milk."}]
    assert "Attached file note.md" in last_prompt(upstream)
    response = anna.ask("GET", f"/messages/{asked['id']}/attachments/0")
    assert (response.text, response.headers["content-type"]) == ("Buy milk.", "text/plain; charset=utf-8")


@pytest.mark.parametrize(
    "data", ["Käse".encode(), "\ufeffKäse".encode(), "Käse".encode("utf-16")], ids=["utf-8", "bom", "utf-16"]
)
def test_a_text_file_is_read_when_the_message_is_sent(
    anna: ApiClient, chat: str, upstream: ScriptedProvider, data: bytes
) -> None:
    uploaded = put(anna, "list.txt", data)
    asked = send(anna, chat, {"file_id": uploaded["id"]})
    anna.good("DELETE", f"/files/{uploaded['id']}")
    assert asked["attachments"] == [{"name": "list.txt", "extension": "txt", "content": "Käse"}]
    assert "Käse" in last_prompt(upstream)


def test_a_pdf_is_sent_as_its_text(anna: ApiClient, chat: str, upstream: ScriptedProvider) -> None:
    uploaded = put(anna, "paper.bin", pdf("The first page.", "The second page."))
    (attachment,) = send(anna, chat, {"file_id": uploaded["id"]})["attachments"]
    assert set(attachment) == TEXT_SHAPE
    assert "The first page." in attachment["content"]
    assert "The second page." in last_prompt(upstream)


def test_office_files_and_books_are_sent_as_their_text(
    anna: ApiClient, chat: str, upstream: ScriptedProvider
) -> None:
    facts = {
        "handbook.docx": "# Bakery handbook\n\nThis handbook is for new bakers.\n\n## Ovens\n\nThe stone",
        "plan.pptx": "# Budget\n\nRent is 84,000 euros",
        "sales.xlsx": "# Sales 2026\n\nProduct | Units | Sold on | In stock\n\nBread type 1 | 7 | 2026-01-02",
        "stock.ods": "Rye | 40",
        "stock.xls": "Rye | 40",
        "novel.epub": "# First night\n\nIda lit the lamp",
    }
    files = [{"file_id": put(anna, name, DOCUMENTS[name]())["id"]} for name in facts]
    for attachment, (name, fact) in zip(send(anna, chat, *files)["attachments"], facts.items(), strict=True):
        assert set(attachment) == TEXT_SHAPE
        assert attachment["name"] == name
        assert fact in attachment["content"]
    assert "The stone oven is heated to 260 degrees." in last_prompt(upstream)


def test_a_pdf_whose_password_is_empty_is_read(anna: ApiClient, chat: str) -> None:
    uploaded = put(anna, "open.pdf", pdf("Not much of a secret.", password=""))
    (attachment,) = send(anna, chat, {"file_id": uploaded["id"]})["attachments"]
    assert attachment["content"] == "Not much of a secret."


LOOP = (
    b"%PDF-1.4\n1 0 obj<</Type/Catalog/Pages 2 0 R>>endobj\n"
    b"2 0 obj<</Type/Pages/Kids[2 0 R]/Count 1>>endobj\ntrailer<</Root 1 0 R>>\n%%EOF"
)


@pytest.mark.parametrize(
    ("name", "data", "status", "words"),
    [
        ("binary.txt", b"text\x00and more", 400, "neither text"),
        ("latin.txt", "Käse".encode("latin-1"), 400, "neither text"),
        ("odd.txt", b"\xff\xfea", 400, "neither text"),
        ("wide.txt", "a\0b".encode("utf-16"), 400, "neither text"),
        ("long.txt", b"x" * 2_000_001, 413, "2.0 MB"),
        ("big.png", png(5 * 1024 * 1024), 413, "5.2 MB"),
        ("secret.pdf", pdf("x", password="secret"), 400, "encrypted"),
        ("broken.pdf", b"%PDF-1.7\nnothing more", 400, "damaged"),
        ("loop.pdf", LOOP, 400, "loop.pdf"),
        ("images.pdf", pdf(""), 400, "no text"),
        ("packed.zip", zip_of({"a.txt": "a"}), 400, "is a ZIP archive; what can be read is PDF, Word (docx)"),
        ("bomb.docx", word_xml(" " * 60_000_000), 413, "unpacked it has more than 200 times its size"),
        ("macros.docm", zip_of({"a.txt": "a"}), 400, "has macros; use a copy without macros"),
    ],
)
def test_a_file_that_cannot_be_attached_says_why_and_nothing_is_sent(
    anna: ApiClient, chat: str, name: str, data: bytes, status: int, words: str
) -> None:
    uploaded = put(anna, name, data)
    attachment = {"file_id": uploaded["id"]}
    failure = refuse(anna, status, chat, attachment)
    assert words in failure["error"]
    assert name in failure["error"]
    # A client can know before it sends the message.
    body = {"attachments": [attachment]}
    assert anna.bad("POST", "/messages/attachments/check", status, json=body)["error"] == failure["error"]


@pytest.mark.parametrize("kind", IMAGES)
def test_an_image_is_stored_with_its_message_and_not_returned_in_lists(
    anna: ApiClient, chat: str, kind: str
) -> None:
    """The declared type does not matter, neither in the name nor in the request."""
    data = IMAGES[kind]
    file = put(anna, "picture.txt", data)
    asked = send(
        anna, chat, image(data, "a.png", media_type="text/html"), {"file_id": file["id"]}, image(data, "b")
    )
    first, second, third = asked["attachments"]
    assert set(first) == TEXT_SHAPE | {"media_type", "size", "blob_id"}
    assert (first["name"], first["extension"], first["content"]) == ("a.png", "png", "")
    assert (first["media_type"], first["size"]) == (kind, len(data))
    assert second["name"] == "picture.txt"
    assert third["extension"] == kind.removeprefix("image/")
    anna.good("DELETE", f"/files/{file['id']}")
    for index in range(3):
        response = anna.ask("GET", f"/messages/{asked['id']}/attachments/{index}")
        assert (response.content, response.headers["content-type"]) == (data, kind)
        assert response.headers["content-disposition"].startswith("attachment")
    assert base64.b64encode(data).decode() not in json.dumps(anna.state())


LARGE = large_images(10_001)


@pytest.mark.parametrize(
    ("name", "data"),
    [*LARGE.items(), ("bomb.png", png()[:16] + b"\x7f\xff\xff\xff" * 2 + png()[24:])],
    ids=[*LARGE, "bomb.png"],
)
def test_an_image_of_too_many_pixels_is_refused_before_anything_decodes_it(
    anna: ApiClient, chat: str, name: str, data: bytes
) -> None:
    uploaded = put(anna, name, data)
    for attachment in (image(data, name), {"file_id": uploaded["id"]}):
        failure = refuse(anna, 413, chat, attachment)
        assert failure["error"] == (
            f"{name} has more than 100 million pixels, the limit for an image; attach a smaller copy"
        )
        body = {"attachments": [attachment]}
        assert anna.bad("POST", "/messages/attachments/check", 413, json=body)["error"] == failure["error"]


def test_an_image_of_100_million_pixels_is_sent(anna: ApiClient, chat: str) -> None:
    asked = send(anna, chat, *(image(data, name) for name, data in large_images(10_000).items()))
    assert [each["name"] for each in asked["attachments"]] == list(large_images(10_000))


def test_what_can_be_attached_passes_the_check_and_nothing_is_stored(anna: ApiClient, chat: str) -> None:
    uploaded = put(anna, "list.txt", b"milk")
    body = {"attachments": [{"file_id": uploaded["id"]}, image(png()), {"name": "a.md", "content": "x"}]}
    assert anna.good("POST", "/messages/attachments/check", json=body) is None
    assert anna.good("GET", f"/messages?conversation_id={chat}")["total"] == 0


def test_an_attachment_is_its_owners_alone_and_counted_from_0(
    anna: ApiClient, bob: ApiClient, chat: str
) -> None:
    asked = send(anna, chat, image(png()))
    path = f"/messages/{asked['id']}/attachments"
    foreign = bob.bad("GET", f"{path}/0", 404)
    assert foreign == bob.bad("GET", f"/messages/{UNKNOWN_ID}/attachments/0", 404)
    for index in ("1", "1000", "99999", "-1", "x", str(10**30)):
        assert anna.ask("GET", f"{path}/{index}").status_code in (400, 404)


def test_the_file_of_another_cannot_be_attached(anna: ApiClient, bob: ApiClient) -> None:
    uploaded = put(anna, "mine.txt", b"mine")
    chat = bob.good("POST", "/conversations", json={})["id"]
    foreign = refuse(bob, 404, chat, {"file_id": uploaded["id"]})
    assert foreign == refuse(bob, 404, chat, {"file_id": UNKNOWN_ID})
    assert foreign["detail"]["kind"] == "file_not_found"


def test_a_file_that_vanished_cannot_be_attached(anna: ApiClient, chat: str, server: ServerProcess) -> None:
    uploaded = put(anna, "gone.txt", b"gone")
    os.unlink(server.folder / anna.user["workspace_path"] / "gone.txt")
    refuse(anna, 404, chat, {"file_id": uploaded["id"]})


@pytest.mark.parametrize(
    ("attachment", "fields"),
    [
        ({}, ["content"]),
        ({"name": "a"}, ["content"]),
        ({"content": "a"}, ["name"]),
        ({"data": "aGk="}, ["name"]),
        ({"name": "a", "data": "aGk="}, ["data"]),
        ({"name": "a", "data": ""}, ["data"]),
        ({"name": "a", "data": "no base64"}, ["data"]),
        ({"name": "a", "data": 5}, ["data"]),
        ({"name": "a", "content": "a", "data": "aGk="}, ["data"]),
        ({"name": "a", "content": "a", "file_id": "x"}, ["file_id"]),
        ({"file_id": "x", "name": "a"}, ["name"]),
        ({"file_id": "x", "extension": "a", "media_type": "b"}, ["extension", "media_type"]),
        ({"file_id": ""}, ["file_id"]),
        ({"file_id": "x" * 65}, ["file_id"]),
        ({"file_id": "a\0b"}, ["file_id"]),
        ({"name": "a", "content": "a", "blob_id": UNKNOWN_ID}, ["blob_id"]),
    ],
)
def test_a_wrong_attachment_is_named_by_its_path(
    anna: ApiClient, chat: str, attachment: Json, fields: list[str]
) -> None:
    good = {"name": "good.txt", "content": "good"}
    failure = refuse(anna, 400, chat, good, attachment)
    assert sorted(failure["detail"]["fields"]) == [f"$.attachments[1].{name}" for name in fields]


def test_images_are_bounded_by_number_and_together(anna: ApiClient, chat: str) -> None:
    small = image(png())
    assert "10 images" in refuse(anna, 413, chat, *[small] * 11)["error"]
    assert len(send(anna, chat, *[small] * 10)["attachments"]) == 10


def test_a_model_without_image_input_gets_no_images(
    anna: ApiClient, chat: str, upstream: ScriptedProvider
) -> None:
    failure = refuse(anna, 400, chat, image(png()), model="deepseek-chat")
    assert failure["detail"]["kind"] == "images_not_taken"
    assert "deepseek-chat" in failure["error"]
    send(anna, chat, image(png(), "cat.png"))
    answer = {"conversation_id": chat, "content": "And now?", "model": "deepseek-chat"}
    anna.good("POST", "/messages", json=answer)
    sent_messages = json.loads(upstream.requests[-1].body)["messages"]
    assert "Attached image cat.png (not shown to this model)." in sent_messages[1]["content"]


def test_deleting_a_message_or_a_conversation_deletes_its_images(anna: ApiClient, chat: str) -> None:
    first = send(anna, chat, image(png()))
    anna.good("DELETE", f"/messages/{first['id']}")
    anna.bad("GET", f"/messages/{first['id']}/attachments/0", 404)
    second = send(anna, chat, image(png()))
    anna.good("DELETE", f"/conversations/{chat}")
    anna.bad("GET", f"/messages/{second['id']}/attachments/0", 404)
