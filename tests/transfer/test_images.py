"""Images of exported conversations: their bytes are exported and imported, and no other data is."""

import base64
import json
from typing import Any

import pytest
from api.client import ApiClient
from api.server_process import ServerProcess
from files.sample_files import GIF, JPEG, png

from luxx.wire.message import MAX_IMAGE_BYTES, MAX_IMAGES, MAX_IMAGES_BYTES
from transfer.imports import all_conversation_ids, check_import_is_refused, import_data, loss_counts, path_of

Json = dict[str, Any]
NONE = {"attachments that are not images": 1}
PAST = "attached images past the limit of a message"


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def export(person: ApiClient, conversation_id: str) -> Json:
    response = person.ask("GET", f"/conversations/{conversation_id}/export")
    assert response.is_success, response.text
    document: Json = response.json()
    return document


def first_message(person: ApiClient, conversation_id: str) -> Json:
    """The first message of the conversation."""
    return path_of(person, conversation_id)[0]


def download(person: ApiClient, message: Json, index: int) -> tuple[str, bytes]:
    response = person.ask("GET", f"/messages/{message['id']}/attachments/{index}")
    assert response.is_success, response.text
    return response.headers["content-type"], response.content


@pytest.fixture
def talk(ann: ApiClient) -> str:
    """A conversation whose first message has an image, a text and another image."""
    conversation_id: str = ann.good("POST", "/conversations", json={"title": "cats"})["id"]
    attachments = [
        {"name": "cat.png", "data": text_of(png(300_000))},
        {"name": "a.md", "content": "# Cats"},
        {"name": "dog.png", "data": text_of(JPEG)},
    ]
    body = {"conversation_id": conversation_id, "content": "Look.", "attachments": attachments}
    ann.good("POST", "/messages", json=body)
    return conversation_id


def check_copy(person: ApiClient, conversation_id: str) -> Json:
    """The first message of the copy; checks that it has everything that the original has."""
    message = first_message(person, conversation_id)
    assert download(person, message, 0) == ("image/png", png(300_000))
    assert download(person, message, 1)[1] == b"# Cats"
    assert download(person, message, 2) == ("image/jpeg", JPEG)
    return message


def test_images_are_exported_and_imported_with_the_same_bytes(
    ann: ApiClient, ben: ApiClient, talk: str
) -> None:
    original = first_message(ann, talk)
    document = export(ann, talk)
    first, second, third = document["messages"][0]["attachments"]
    assert first == {
        "name": "cat.png", "extension": "png", "content": "", "media_type": "image/png",
        "size": len(png(300_000)), "data": text_of(png(300_000)),
    }  # fmt: skip
    assert (set(second), third["data"]) == ({"name", "extension", "content"}, text_of(JPEG))
    report = import_data(ben, document)
    assert (report["conversations"], report["lost"]) == (1, [])
    (conversation_id,) = report["conversation_ids"]
    copy = check_copy(ben, conversation_id)
    old = {file.get("blob_id") for file in original["attachments"]} - {None}
    new = {file.get("blob_id") for file in copy["attachments"]} - {None}
    assert (len(old), len(new), old & new) == (2, 2, set())
    shapes = [[{**file, "blob_id": 0} for file in m["attachments"]] for m in (copy, original)]
    assert shapes[0] == shapes[1]
    ann.bad("GET", f"/messages/{copy['id']}/attachments/0", 404)


def test_a_copy_and_its_fork_are_independent_of_the_original(ann: ApiClient, talk: str) -> None:
    (conversation_id,) = import_data(ann, export(ann, talk))["conversation_ids"]
    fork = ann.good("POST", f"/conversations/{conversation_id}/fork", json={})["id"]
    ann.good("DELETE", f"/conversations/{talk}")
    check_copy(ann, conversation_id)
    check_copy(ann, fork)
    ann.good("DELETE", f"/conversations/{conversation_id}")
    check_copy(ann, fork)
    (again,) = import_data(ann, export(ann, fork))["conversation_ids"]
    check_copy(ann, again)


def with_attachments(document: Json, *attachments: Json) -> Json:
    first, *others = document["messages"]
    return {**document, "messages": [{**first, "attachments": list(attachments)}, *others]}


def image(data: Any, **more: Any) -> Json:
    return {"name": "x.png", "extension": "png", "content": "", "data": data} | more


@pytest.mark.parametrize(
    ("data", "losses"),
    [
        ("no base64!", NONE),
        ("\u00e9\u0000", NONE | {"NUL characters": 1}),
        (text_of(png())[:-1], NONE),
        (f" {text_of(png())}", NONE),
        (text_of(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), NONE),
        (text_of(b"%PDF-1.7"), NONE),
        ("", NONE),
        (7, NONE),
        ([text_of(png())], NONE),
        ({"a": {}}, NONE),
        (text_of(png(MAX_IMAGE_BYTES)), {PAST: 1}),
        ("A" * 20_000_000, {PAST: 1}),
        (text_of(png()[:16] + b"\x7f\xff\xff\xff" * 2 + png()[24:]), {PAST: 1}),
    ],
    ids=[
        "no base64",
        "odd",
        "cut",
        "space",
        "svg",
        "pdf",
        "empty",
        "int",
        "list",
        "map",
        "large",
        "endless",
        "pixels",
    ],
)
def test_bad_images_are_counted_and_everything_else_is_imported(
    ann: ApiClient, talk: str, data: Any, losses: dict[str, int]
) -> None:
    bad = {name: value for name, value in image(data).items() if name != "content"}
    document = with_attachments(export(ann, talk), bad, image(text_of(GIF)))
    report = import_data(ann, document)
    assert (report["conversations"], report["messages"], loss_counts(report)) == (1, 2, losses)
    message = first_message(ann, report["conversation_ids"][0])
    assert message["attachments"][0] == {"name": "x.png", "extension": "png", "content": ""}
    assert download(ann, message, 0)[1] == b""
    assert download(ann, message, 1) == ("image/gif", GIF)


def test_the_declared_type_of_an_image_is_not_trusted(ann: ApiClient, ben: ApiClient, talk: str) -> None:
    blob_id = first_message(ann, talk)["attachments"][0]["blob_id"]
    said = {"blob_id": blob_id, "media_type": "text/html", "size": -1, "content": "<script>"}
    with_bytes = image(text_of(GIF), **said)
    without = {**image(None, **said), "media_type": ["x"], "size": 2**70}
    report = import_data(ben, with_attachments(export(ann, talk), with_bytes, without))
    assert loss_counts(report) == {"attached files that are not in the document": 1}
    message = first_message(ben, report["conversation_ids"][0])
    assert download(ben, message, 0) == ("image/gif", GIF)
    assert message["attachments"][0]["size"] == len(GIF)
    assert message["attachments"][1] == {"name": "x.png", "extension": "png", "content": "<script>"}
    assert blob_id not in json.dumps(message)
    check_copy(ann, talk)


def test_an_imported_message_has_the_image_limit_of_a_sent_one(ann: ApiClient, talk: str) -> None:
    document = export(ann, talk)
    many = [image(text_of(GIF))] * (MAX_IMAGES + 2)
    size = MAX_IMAGE_BYTES - 1000
    heavy = [image(text_of(png(size)))] * (MAX_IMAGES_BYTES // size + 1)
    report = import_data(ann, [with_attachments(document, *many), with_attachments(document, *heavy)])
    assert [(entry["what"], entry["count"]) for entry in report["lost"]] == [(PAST, 2), (PAST, 1)]
    attachments = [first_message(ann, made)["attachments"] for made in report["conversation_ids"]]
    assert [sum("blob_id" in file for file in files) for files in attachments] == [10, 3]


def test_images_count_towards_the_import_limit_of_a_user(tmp_path: Any) -> None:
    with (
        ServerProcess(tmp_path, LUXX_FILES__QUOTA_MB="4") as small,
        ApiClient(small, None).register("cat") as cat,
    ):
        talk = {
            "format": "luxx.conversation", "version": 1, "exported_at": "2025-01-02T03:04:06Z",
            "conversation": {"id": "c", "title": "t", "created_at": "2025-01-02T03:04:05Z",
                             "updated_at": "2025-01-02T03:04:05Z"},
            "messages": [{"id": "m", "parent_id": None, "role": "user", "text": "q",
                          "created_at": "2025-01-02T03:04:05Z",
                          "attachments": [image(text_of(png(2_000_000)))]}],
        }  # fmt: skip
        content = json.dumps(talk).encode()
        import_data(cat, content)
        check_import_is_refused(cat, content, 413, "quota_exceeded")
        cat.good("DELETE", f"/conversations/{all_conversation_ids(cat)[0]}")
        import_data(cat, content)


def test_no_image_caused_an_internal_error(server: ServerProcess, ann: ApiClient) -> None:
    ann.good("GET", "/auth/me")
    assert "request_failed" not in server.output
    assert "import_reader_failed" not in server.output
