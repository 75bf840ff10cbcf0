"""Uploads that are interrupted, malformed or too large: refused with a sentence, and nothing is left."""

import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from api.client import ApiClient
from api.server_process import ServerProcess

from files.conftest import QUOTA_MB, UPLOAD_MB
from files.sample_files import BOUNDARY, END, FORM, clear, list_folder, part, put

MIB = 1024 * 1024
WAIT_SECONDS = 20.0


@pytest.fixture(autouse=True)
def empty(anna: ApiClient, server: ServerProcess) -> Iterator[None]:
    yield
    wait_until_idle(anna, server)
    clear(anna)


def names_on_disk(server: ServerProcess, person: ApiClient) -> list[str]:
    return sorted(os.listdir(server.folder / person.user["workspace_path"]))


def open_drafts(server: ServerProcess, person: ApiClient) -> list[str]:
    """Files of the workspace that the server has open, including unnamed ones."""
    workspace = str(server.folder / person.user["workspace_path"])
    paths: list[str] = []
    for link in Path(f"/proc/{server.process.pid}/fd").iterdir():
        try:
            target = os.readlink(link)
        except FileNotFoundError:
            continue
        if target.startswith(workspace):
            paths.append(target)
    return paths


def wait_until_idle(person: ApiClient, server: ServerProcess) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while open_drafts(server, person):
        assert time.monotonic() < end, open_drafts(server, person)
        time.sleep(0.01)


def wait_for_a_draft(person: ApiClient, server: ServerProcess) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not open_drafts(server, person):
        assert time.monotonic() < end, "no upload was begun"
        time.sleep(0.01)


def open_connection(server: ServerProcess) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=WAIT_SECONDS)


def head(person: ApiClient, *more: str) -> bytes:
    lines = [
        "POST /files HTTP/1.1", f"Host: {person.http.base_url.netloc.decode()}",
        f"Authorization: Bearer {person.token}", f"Content-Type: {FORM['content-type']}", *more,
    ]  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


@pytest.mark.parametrize("has_length", [True, False])
def test_an_interrupted_upload_leaves_nothing(
    anna: ApiClient, server: ServerProcess, has_length: bool
) -> None:
    """The first of two files is complete, the second is truncated."""
    body = part("whole.txt", b"x" * 2 * MIB) + part("cut.txt", b"y" * 2 * MIB)[: MIB + 300_000]
    with open_connection(server) as connection:
        if has_length:
            connection.sendall(head(anna, f"Content-Length: {5 * MIB}") + body)
        else:
            connection.sendall(head(anna, "Transfer-Encoding: chunked") + chunk(body))
        wait_for_a_draft(anna, server)
        assert names_on_disk(server, anna) == []
    wait_until_idle(anna, server)
    assert names_on_disk(server, anna) == []
    assert list_folder(anna) == []
    assert "request_failed" not in server.output


def test_a_killed_server_leaves_nothing_of_an_upload_in_progress(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path) as server,
        ApiClient(server, None).register("carol") as carol,
        open_connection(server) as connection,
    ):
        connection.sendall(head(carol, f"Content-Length: {5 * MIB}") + part("cut.txt", b"y" * 2 * MIB)[:-5])
        wait_for_a_draft(carol, server)
        server.kill()
        assert names_on_disk(server, carol) == []


def test_a_chunked_body_is_accepted(anna: ApiClient) -> None:
    def pieces() -> Iterator[bytes]:
        body = part("a.bin", b"z" * 100_000) + END
        for start in range(0, len(body), 777):
            yield body[start : start + 777]

    uploaded = anna.good("POST", "/files", content=pieces(), headers=FORM)
    assert uploaded["size"] == 100_000
    assert anna.ask("GET", f"/files/{uploaded['id']}").content == b"z" * 100_000


def test_a_chunked_body_past_the_limit_is_cut_off_and_leaves_nothing(
    anna: ApiClient, server: ServerProcess
) -> None:
    def endless() -> Iterator[bytes]:
        yield part("a.bin", b"")[:-2]
        for _ in range(UPLOAD_MB * 20):
            yield b"z" * 100_000

    anna.bad("POST", "/files", 413, content=endless(), headers=FORM)
    wait_until_idle(anna, server)
    assert names_on_disk(server, anna) == []


def test_two_gigabytes_are_refused_before_any_is_read(anna: ApiClient, server: ServerProcess) -> None:
    with open_connection(server) as connection:
        connection.sendall(head(anna, f"Content-Length: {2 * 1024 * MIB}"))
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"too_large" in answer


def test_a_client_that_sends_a_refused_body_before_it_reads_receives_the_answer(
    anna: ApiClient, server: ServerProcess
) -> None:
    with open_connection(server) as connection:
        connection.sendall(head(anna, f"Content-Length: {40 * MIB}"))
        for _ in range(40):
            connection.sendall(bytes(MIB))
        answer = b""
        while piece := connection.recv(65_536):
            answer += piece
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"too_large" in answer


def test_a_body_that_exceeds_the_quota_is_refused_before_it_is_read(
    anna: ApiClient, server: ServerProcess
) -> None:
    for name in ("one", "two"):
        put(anna, name, b"x" * (3 * MIB))
    with open_connection(server) as connection:
        connection.sendall(head(anna, f"Content-Length: {3 * MIB}"))
        answer = b""
        while b'"success"' not in answer:
            answer += connection.recv(65_536)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"quota_exceeded" in answer
    assert names_on_disk(server, anna) == ["one", "two"]


def test_the_quota_also_counts_files_that_were_not_uploaded(anna: ApiClient, server: ServerProcess) -> None:
    deep = server.folder / anna.user["workspace_path"] / "a" / ".git" / "b"
    deep.mkdir(parents=True)
    (deep / "big").write_bytes(b"x" * (QUOTA_MB * MIB - 1000))
    put(anna, "fits", b"x" * 1000)
    failure = anna.bad("POST", "/files", 413, files={"file": ("one more", b"x")})
    assert failure["detail"]["kind"] == "quota_exceeded"
    assert "0.0 of your 8 MiB are free" in failure["error"]
    assert names_on_disk(server, anna) == ["a", "fits"]


def test_of_uploads_that_race_for_the_last_quota_only_those_that_fit_are_stored(anna: ApiClient) -> None:
    start = threading.Barrier(3)
    data = b"x" * (3 * MIB)

    def upload(number: int) -> int:
        with httpx.Client(base_url=anna.server.url, timeout=WAIT_SECONDS, trust_env=False) as client:
            start.wait(WAIT_SECONDS)
            headers = {"authorization": f"Bearer {anna.token}"}
            files = {"file": (f"{number}.bin", data)}
            return client.post("/files", headers=headers, files=files).status_code

    with ThreadPoolExecutor(3) as threads:
        statuses = sorted(threads.map(upload, range(3)))
    assert statuses == [201, 201, 413]
    assert sum(entry["size"] for entry in list_folder(anna)) == 6 * MIB


def test_uploads_that_race_for_a_name_all_keep_their_bytes(anna: ApiClient) -> None:
    def upload(number: int) -> str:
        with ApiClient(anna.server, None, anna.token) as again:
            return str(put(again, "same.txt", str(number).encode() * 10)["name"])

    with ThreadPoolExecutor(3) as threads:
        names = set(threads.map(upload, range(3)))
    assert names == {"same.txt", "same (2).txt", "same (3).txt"}
    contents = {anna.ask("GET", f"/files/{entry['id']}").text for entry in list_folder(anna)}
    assert contents == {str(number) * 10 for number in range(3)}


def test_a_fourth_concurrent_upload_waits(anna: ApiClient, server: ServerProcess) -> None:
    lines = [open_connection(server) for _ in range(3)]
    try:
        for connection in lines:
            connection.sendall(head(anna, f"Content-Length: {MIB}") + part("slow", b"x" * 1000)[:-5])
        end = time.monotonic() + WAIT_SECONDS
        while len(open_drafts(server, anna)) < 3:
            assert time.monotonic() < end
            time.sleep(0.01)
        refused = anna.ask("POST", "/files", files={"file": ("one more", b"x")})
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
    finally:
        for connection in lines:
            connection.close()
    wait_until_idle(anna, server)
    put(anna, "now", b"x")


NAMED = b'--the-boundary\r\nContent-Disposition: form-data; name="'
WRONG: dict[str, tuple[bytes, dict[str, str]]] = {
    "no body": (b"", FORM),
    "no form": (b"{}", {"content-type": "application/json"}),
    "no type": (b"x", {}),
    "no boundary": (END, {"content-type": "multipart/form-data"}),
    "an empty boundary": (END, {"content-type": "multipart/form-data; boundary="}),
    "an endless boundary": (END, {"content-type": "multipart/form-data; boundary=" + "x" * 3000}),
    "a boundary that is another": (part("a", b"a") + b"--other--\r\n", FORM),
    "no parts": (END, FORM),
    "no end": (part("a", b"a"), FORM),
    "half an end": (part("a", b"a") + END[:5], FORM),
    "only a folder": (NAMED + b'path"\r\n\r\na\r\n' + END, FORM),
    "an unknown field": (part("a", b"a") + NAMED + b'user%0A_id"\r\n\r\n1\r\n' + END, FORM),
    "two folders": (part("a", b"a") + (NAMED + b'path"\r\n\r\na\r\n') * 2 + END, FORM),
    "an endless folder": (part("a", b"a") + NAMED + b'path"\r\n\r\n' + b"a/" * 5000 + b"\r\n" + END, FORM),
    "a folder with a NUL": (part("a", b"a") + NAMED + b'path"\r\n\r\na\x00b\r\n' + END, FORM),
    "a folder that is no text": (part("a", b"a") + NAMED + b'path"\r\n\r\n\xff\xfe\r\n' + END, FORM),
    "too many files": (part("a", b"a") * 25 + END, FORM),
    "too many headers": (f"--{BOUNDARY}\r\n".encode() + b"X: y\r\n" * 20 + b"\r\na\r\n" + END, FORM),
    "an endless header": (f"--{BOUNDARY}\r\nX: ".encode() + b"y" * 100_000 + b"\r\n\r\na\r\n" + END, FORM),
    "a part without a disposition": (f"--{BOUNDARY}\r\nX: y\r\n\r\na\r\n".encode() + END, FORM),
    "a name that is no text": (
        NAMED + b'file"; filename="\xff\xfe"\r\n\r\na\r\n' + END, FORM,
    ),
    "a length that is wrong": (
        NAMED + b'file"; filename="a"\r\nContent-Length: 5\r\n\r\na\r\n' + END, FORM,
    ),
}  # fmt: skip


@pytest.mark.parametrize("why", WRONG)
def test_an_incomplete_form_is_refused(anna: ApiClient, server: ServerProcess, why: str) -> None:
    content, headers = WRONG[why]
    failure = anna.bad("POST", "/files", 400, content=content, headers=headers)
    assert failure["detail"]["kind"] in ("upload_invalid", "path_refused"), failure
    assert names_on_disk(server, anna) == []


def test_if_one_file_cannot_be_stored_the_others_are_deleted(anna: ApiClient, server: ServerProcess) -> None:
    (server.folder / anna.user["workspace_path"] / "taken").write_text("a file, no folder")
    files = [("file", ("one.txt", b"1")), ("file", ("two.txt", b"2"))]
    anna.bad("POST", "/files", 404, files=files, data={"path": "taken"})
    assert names_on_disk(server, anna) == ["taken"]


def test_an_upload_without_a_sign_in_is_not_read(nobody: ApiClient, server: ServerProcess) -> None:
    nobody.bad("POST", "/files", 401, files={"file": ("a", b"a" * 100_000)})
