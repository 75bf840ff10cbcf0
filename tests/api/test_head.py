"""HEAD answers like GET, without a body, and starts nothing."""

import re
import time

import httpx
import pytest

from api.bad_requests import UNKNOWN_ID
from api.client import ApiClient
from api.schema import Document

CHANGING = {"date", "x-request-id", "transfer-encoding"}
GROWING = ("/metrics", "/ready", "/admin/processes", "/audit")
"""Paths whose content differs from one request to the next."""


@pytest.fixture(scope="module")
def ids(anna: ApiClient) -> dict[str, str]:
    conversation = anna.good("POST", "/conversations", json={"title": "kept"})["id"]
    body = {"content": "use a tool", "attachments": [{"name": "a.txt", "content": "text"}], "tools": True}
    message = anna.good("POST", "/messages", json=body | {"conversation_id": conversation})
    run = anna.good("GET", "/runs")["items"][0]["id"]
    provider = anna.good("GET", "/providers")["items"][0]["id"]
    file = anna.good("POST", "/files", files={"file": ("a.txt", b"some text")})
    return {
        "conversation_id": conversation,
        "message_id": message["parent_id"],
        "run_id": run,
        "file_id": file["id"],
        "provider_id": str(provider),
        "index": "0",
        "name": "file_read",
        "call_id": "call-1",
    }


def headers(response: httpx.Response, path: str) -> dict[str, str]:
    is_growing = path.endswith(GROWING)
    return {
        name: value
        for name, value in response.headers.items()
        if name not in CHANGING and not (is_growing and name == "content-length")
    }


@pytest.mark.parametrize("is_known", [True, False])
def test_head_answers_like_get_on_every_route(
    anna: ApiClient, document: Document, ids: dict[str, str], *, is_known: bool
) -> None:
    paths = [operation for operation in document.operations if operation.method == "GET"]
    assert len(paths) > 40
    statuses = set[int]()
    for operation in [*paths]:
        path = re.sub(
            r"\{(\w+)\}", lambda name: ids.get(name[1], "1") if is_known else UNKNOWN_ID, operation.template
        )
        query = {"conversation_id": ids["conversation_id"], "q": "text", "tool": "file_read"}
        wanted = {each["name"] for each in operation.parameters if each["in"] == "query" and each["required"]}
        params = {name: value for name, value in query.items() if name in wanted}
        got = anna.http.get(path, params=params)
        head = anna.http.head(path, params=params)
        assert head.content == b"", path
        assert head.status_code == got.status_code, f"{path}: {head.status_code}, GET {got.status_code}"
        assert headers(head, path) == headers(got, path), path
        statuses.add(head.status_code)
    assert statuses >= ({200, 403} if is_known else {200, 404})


def test_head_of_a_page_and_a_part_of_a_file(anna: ApiClient, ids: dict[str, str]) -> None:
    assert anna.http.head("/ui/").headers["content-type"] == anna.http.get("/ui/").headers["content-type"]
    part = anna.http.head(f"/files/{ids['file_id']}", headers={"range": "bytes=0-3"})
    assert (part.status_code, part.headers["content-length"]) == (206, "4")
    assert part.headers["content-range"] == "bytes 0-3/9"


def test_head_of_a_stream_ends_at_once_and_takes_no_place(anna: ApiClient) -> None:
    conversation = anna.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": conversation, "content": "ask me"}
    run = anna.bad("POST", "/messages", 409, json=body)["detail"]["run_id"]
    began = time.monotonic()
    for _ in range(60):
        head = anna.http.head(f"/runs/{run}/events")
        assert (head.status_code, head.content) == (200, b"")
        assert head.headers["content-type"].startswith("text/event-stream")
    assert time.monotonic() - began < 30
    assert anna.http.head(f"/runs/{run}/events?last_event_id=100000").status_code == 400
    anna.good("POST", f"/runs/{run}/cancel", json={})


def test_head_of_a_route_without_get_is_refused(anna: ApiClient) -> None:
    refused = anna.http.head("/auth/login")
    assert refused.status_code == 405
    assert "POST" in refused.headers["allow"]
    assert "HEAD" in anna.http.options("/runs").headers["allow"]
