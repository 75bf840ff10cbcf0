"""Files over HTTP: uploaded, listed, downloaded and deleted, by their owner only."""

import hashlib
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from api.bad_requests import UNKNOWN_ID
from api.client import UUID7, ApiClient
from api.server_process import ServerProcess

from files.sample_files import FORM, clear, list_folder, part, put

VIEW = {"id", "name", "path", "size", "media_type", "sha256", "is_folder", "modified_at"}


@pytest.fixture(autouse=True)
def empty(anna: ApiClient, bob: ApiClient) -> Iterator[None]:
    yield
    clear(anna)
    clear(bob)


def workspace(server: ServerProcess, person: ApiClient) -> Path:
    return server.folder / person.user["workspace_path"]


def write(server: ServerProcess, person: ApiClient, path: str, data: bytes) -> Path:
    """Creates a file without an upload, as a tool does."""
    target = workspace(server, person) / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(data)
    return target


def test_an_uploaded_file_is_listed_downloaded_and_deleted(anna: ApiClient, server: ServerProcess) -> None:
    data = os.urandom(300_000)
    uploaded = put(anna, "report.bin", data)
    assert UUID7.fullmatch(uploaded["id"])
    assert uploaded["sha256"] == hashlib.sha256(data).hexdigest()
    (entry,) = list_folder(anna)
    assert set(entry) == VIEW
    assert entry == {name: uploaded[name] for name in VIEW}
    assert uploaded["files"] == [entry]
    sent = anna.ask("GET", f"/files/{uploaded['id']}")
    assert sent.content == data
    assert (workspace(server, anna) / "report.bin").stat().st_mode & 0o077 == 0
    anna.good("DELETE", f"/files/{uploaded['id']}")
    assert list_folder(anna) == []
    assert anna.bad("GET", f"/files/{uploaded['id']}", 404)["detail"]["kind"] == "file_not_found"
    anna.bad("DELETE", f"/files/{uploaded['id']}", 404)


def test_several_files_come_in_one_request_into_a_folder_that_is_made(anna: ApiClient) -> None:
    files = [("a", ("one.txt", b"1")), ("b", ("two.txt", b"22")), ("a", ("empty.txt", b""))]
    uploaded = anna.good("POST", "/files", files=files, data={"path": "/notes/2025/"})
    assert [each["path"] for each in uploaded["files"]] == [
        "notes/2025/one.txt", "notes/2025/two.txt", "notes/2025/empty.txt",
    ]  # fmt: skip
    assert uploaded["path"] == "notes/2025/one.txt"
    (folder,) = list_folder(anna)
    assert (folder["name"], folder["is_folder"], folder["size"]) == ("notes", True, 0)
    assert [entry["name"] for entry in list_folder(anna, "notes/2025")] == ["empty.txt", "one.txt", "two.txt"]


def test_the_folder_may_come_after_the_files(anna: ApiClient) -> None:
    field = b'--the-boundary\r\nContent-Disposition: form-data; name="path"\r\n\r\nlate\r\n'
    body = part("a.txt", b"a") + field + b"--the-boundary--\r\n"
    assert anna.good("POST", "/files", content=body, headers=FORM)["path"] == "late/a.txt"


def test_a_taken_name_gets_a_number_and_the_existing_file_stays(anna: ApiClient) -> None:
    names = [put(anna, "report.pdf", str(number).encode())["name"] for number in range(3)]
    assert names == ["report.pdf", "report (2).pdf", "report (3).pdf"]
    for entry, content in zip(sorted(list_folder(anna), key=lambda e: e["modified_at"]), b"012", strict=True):
        assert anna.ask("GET", f"/files/{entry['id']}").content == bytes([content])


@pytest.mark.parametrize(
    ("given", "stored"),
    [
        ("../../etc/passwd", "passwd"),
        ("/etc/passwd", "passwd"),
        ("C:\\Users\\ann\\plan.txt", "plan.txt"),
        ("..", "file"),
        (".", "file"),
        ("", "file"),
        (".env", ".env"),
        ("a\tb.txt", "a_b.txt"),
        ("evil\u202etxt.exe", "evil_txt.exe"),
        ('a"b<c>:d|e?f*.txt', "a_b_c__d_e_f_.txt"),
        ("Übersicht 表.txt", "Übersicht 表.txt"),
        ("x" * 300 + ".txt", "x" * 244 + ".txt"),
        ("表" * 200 + ".md", "表" * 81 + ".md"),
        (".luxx-0.tmp", "fileluxx-0.tmp"),
    ],
)
def test_names_are_made_safe(anna: ApiClient, given: str, stored: str) -> None:
    head = 'Content-Disposition: form-data; name="file"; filename="'
    quoted = given.replace('"', "%22").encode()
    body = b"--the-boundary\r\n" + head.encode() + quoted + b'"\r\n\r\nx\r\n--the-boundary--\r\n'
    assert anna.good("POST", "/files", content=body, headers=FORM)["name"] == stored


def test_a_download_is_an_attachment_and_never_rendered(anna: ApiClient) -> None:
    uploaded = put(anna, 'page "ö".html', b"<script>alert(1)</script>")
    sent = anna.ask("GET", f"/files/{uploaded['id']}")
    assert sent.headers["content-type"] == "application/octet-stream"
    assert sent.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in sent.headers["content-security-policy"]
    assert sent.headers["content-disposition"] == (
        "attachment; filename=\"page ___.html\"; filename*=UTF-8''page%20_%C3%B6_.html"
    )


@pytest.mark.parametrize(
    ("asked", "status", "content"),
    [
        ("bytes=0-3", 206, b"0123"), ("bytes=4-", 206, b"456789"), ("bytes=-2", 206, b"89"),
        ("bytes=8-100", 206, b"89"), ("bytes=-100", 200, b"0123456789"), ("bytes=10-", 416, None),
        ("bytes=-0", 416, None), ("bytes=5-2", 200, b"0123456789"), ("bytes=0-1,4-5", 200, b"0123456789"),
        ("lines=1-2", 200, b"0123456789"), ("bytes=" + "9" * 18 + "-", 416, None),
        ("bytes=" + "9" * 30 + "-", 200, b"0123456789"), ("bytes=-", 200, b"0123456789"),
    ],
)  # fmt: skip
def test_a_range_is_sent_alone(anna: ApiClient, asked: str, status: int, content: bytes | None) -> None:
    uploaded = put(anna, "ten.txt", b"0123456789")
    sent = anna.ask("GET", f"/files/{uploaded['id']}", headers={"range": asked})
    assert sent.status_code == status
    if content is not None:
        assert sent.content == content
    if status == 206:
        start = b"0123456789".index(content or b"")
        assert sent.headers["content-range"] == f"bytes {start}-{start + len(sent.content) - 1}/10"


def test_a_file_that_a_tool_wrote_is_listed_and_sent_under_a_steady_id(
    anna: ApiClient, server: ServerProcess
) -> None:
    write(server, anna, "out/result.csv", b"a,b\n")
    (entry,) = list_folder(anna, "out")
    assert (entry["path"], entry["sha256"], entry["media_type"]) == ("out/result.csv", None, "text/csv")
    assert list_folder(anna, "out") == [entry]
    assert anna.ask("GET", f"/files/{entry['id']}").content == b"a,b\n"
    write(server, anna, "out/result.csv", b"a,b,c\n")
    assert anna.ask("GET", f"/files/{entry['id']}").content == b"a,b,c\n"


def test_the_hash_of_an_upload_is_shown_only_while_the_file_is_unchanged(
    anna: ApiClient, server: ServerProcess
) -> None:
    uploaded = put(anna, "notes.txt", b"first")
    write(server, anna, "notes.txt", b"other")
    (entry,) = list_folder(anna)
    assert (entry["id"], entry["sha256"], entry["size"]) == (uploaded["id"], None, 5)


def test_a_vanished_file_is_404_and_its_id_opens_no_later_file(
    anna: ApiClient, server: ServerProcess
) -> None:
    uploaded = put(anna, "notes.txt", b"first")
    (workspace(server, anna) / "notes.txt").unlink()
    assert list_folder(anna) == []
    again = put(anna, "notes.txt", b"second")
    assert again["id"] != uploaded["id"]
    anna.bad("GET", f"/files/{uploaded['id']}", 404)


def test_the_file_tools_and_the_routes_see_the_same(anna: ApiClient) -> None:
    put(anna, "tool.txt", b"for a tool", "in")
    result = anna.good("POST", "/tools/file_read/execute", json={"arguments": {"path": "in/tool.txt"}})
    assert result["data"]["content"] == "for a tool"


def test_folders_come_first_and_pages_have_no_gaps(anna: ApiClient, server: ServerProcess) -> None:
    for number in range(7):
        write(server, anna, f"f{number}.txt", b"")
    for name in ("z", "y"):
        (workspace(server, anna) / name).mkdir()
    os.mkfifo(workspace(server, anna) / "pipe")
    (workspace(server, anna) / "link").symlink_to("f0.txt")
    names: list[str] = []
    for page in range(1, 4):
        got = anna.good("GET", f"/files?page={page}&page_size=4")
        assert got["total"] == 9
        names += [entry["name"] for entry in got["items"]]
    assert names == ["y", "z", *(f"f{number}.txt" for number in range(7))]
    (workspace(server, anna) / "pipe").unlink()
    (workspace(server, anna) / "link").unlink()


def test_names_that_are_not_utf8_and_invalid_times_are_listed(anna: ApiClient, server: ServerProcess) -> None:
    odd = os.fsencode(workspace(server, anna)) + b"/\xff\n.txt"
    with open(odd, "wb") as file:
        file.write(b"odd")
    os.utime(odd, (2**33, 2**40))
    (entry,) = list_folder(anna)
    assert entry["name"] == "\ufffd\n.txt"
    sent = anna.ask("GET", f"/files/{entry['id']}")
    assert sent.content == b"odd"
    assert re.fullmatch(r"[ -~]+", sent.headers["content-disposition"])
    anna.good("DELETE", f"/files/{entry['id']}")


def test_an_empty_folder_is_deleted_and_has_no_file_routes(anna: ApiClient) -> None:
    uploaded = put(anna, "a.txt", b"a", "box")
    (box,) = list_folder(anna)
    assert anna.bad("DELETE", f"/files/{box['id']}", 409)["detail"]["kind"] == "folder_not_empty"
    assert anna.bad("GET", f"/files/{box['id']}", 400)["detail"]["kind"] == "is_folder"
    anna.good("DELETE", f"/files/{uploaded['id']}")
    anna.good("DELETE", f"/files/{box['id']}")
    assert list_folder(anna) == []


@pytest.mark.parametrize("path", ["..", "a/../..", "../other", "x" * 300, "a/" * 100])
def test_a_path_outside_the_workspace_or_an_invalid_one_is_refused(anna: ApiClient, path: str) -> None:
    listed_wrong = anna.bad("GET", "/files", 400, params={"path": path})
    assert listed_wrong["detail"]["kind"] == "path_refused"
    uploaded = anna.bad("POST", "/files", 400, files={"file": ("a", b"a")}, data={"path": path})
    assert uploaded["detail"]["kind"] == "path_refused"
    assert list_folder(anna) == []


@pytest.mark.parametrize("path", ["nowhere", "a.txt", "a.txt/b"])
def test_a_folder_that_is_not_there_is_404(anna: ApiClient, path: str) -> None:
    put(anna, "a.txt", b"a")
    anna.bad("GET", "/files", 404, params={"path": path})


def test_a_folder_that_is_a_link_outside_is_neither_read_nor_written(
    anna: ApiClient, server: ServerProcess
) -> None:
    outside = server.folder / "outside"
    outside.mkdir(exist_ok=True)
    (outside / "secret").write_text("secret")
    link = workspace(server, anna) / "out"
    link.symlink_to(outside)
    anna.bad("GET", "/files", 404, params={"path": "out"})
    anna.bad("POST", "/files", 404, files={"file": ("a", b"a")}, data={"path": "out"})
    anna.bad("POST", "/files", 404, files={"file": ("a", b"a")}, data={"path": "out/deeper"})
    assert os.listdir(outside) == ["secret"]
    link.unlink()


def test_a_file_that_became_something_else_is_not_sent(anna: ApiClient, server: ServerProcess) -> None:
    outside = server.folder / "not-yours.txt"
    outside.write_text("secret")
    for place in (
        lambda path: path.symlink_to(outside), os.mkfifo, lambda path: path.symlink_to("/proc/self/environ"),
    ):  # fmt: skip
        uploaded = put(anna, "a.txt", b"a")
        path = workspace(server, anna) / "a.txt"
        path.unlink()
        place(path)
        anna.bad("GET", f"/files/{uploaded['id']}", 404)
        anna.bad("DELETE", f"/files/{uploaded['id']}", 404)
        path.unlink()
    assert outside.read_text() == "secret"


def test_files_of_another_user_are_404_by_id_and_by_path(anna: ApiClient, bob: ApiClient) -> None:
    secret = "only anna may read this"
    uploaded = put(anna, "mine.txt", secret.encode())
    for method in ("GET", "DELETE"):
        foreign = bob.bad(method, f"/files/{uploaded['id']}", 404)
        unknown = bob.bad(method, f"/files/{UNKNOWN_ID}", 404)
        assert foreign == unknown
    own = anna.user["workspace_path"]
    for path in (own, f"../{Path(own).name}", f"/{own}", f"x/../../{Path(own).name}"):
        answer = bob.ask("GET", "/files", params={"path": path})
        assert answer.status_code in (400, 404)
        assert "mine.txt" not in json.dumps(answer.json())
    put(bob, "mine.txt", b"bob's")
    assert anna.ask("GET", f"/files/{uploaded['id']}").text == secret
    assert [entry["size"] for entry in list_folder(bob)] == [5]


def test_a_reader_of_the_lowest_level_may_upload(anna: ApiClient) -> None:
    assert anna.user["permission_level"] == 1
    assert put(anna, "own.txt", b"mine")["size"] == 4


def test_the_document_describes_the_form_and_the_bytes(anna: ApiClient) -> None:
    document = anna.good_document()
    upload = document["paths"]["/files"]["post"]
    assert list(upload["requestBody"]["content"]) == ["multipart/form-data"]
    download = document["paths"]["/files/{file_id}"]["get"]
    assert {"200", "206", "416"} <= set(download["responses"])
    assert [each["name"] for each in download["parameters"]] == ["file_id", "Range"]
