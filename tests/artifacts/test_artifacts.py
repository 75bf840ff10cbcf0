"""Artifacts by the API: pages, versions, stale edits, downloads, rooms and what deletion leaves."""

import io
import json
import random
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
from api.client import ApiClient
from api.conftest import numbers
from api.schema import Document
from api.server_process import ServerProcess

DECK = "# One\n\n---\n\n# Two\n\n---\n\n# Three\n"


@pytest.fixture(scope="module")
def anna(server: ServerProcess, document: Document) -> Iterator[ApiClient]:
    with ApiClient(server, document).register(f"artist{next(numbers)}") as person:
        yield person


@pytest.fixture(scope="module")
def ben(server: ServerProcess, document: Document) -> Iterator[ApiClient]:
    with ApiClient(server, document).register(f"artist{next(numbers)}") as person:
        yield person


def create(person: ApiClient, type_: str = "ppt", content: str = DECK, **more: Any) -> dict[str, Any]:
    return person.good("POST", "/artifacts", json={"type": type_, "name": "A", "content": content, **more})


def pages(person: ApiClient, artifact_id: str, version: int | None = None) -> list[dict[str, Any]]:
    query = "" if version is None else f"?version={version}"
    return person.good("GET", f"/artifacts/{artifact_id}/content{query}")["pages"]


def save(person: ApiClient, artifact_id: str, base: int, content: str, page: int | None = None) -> Any:
    body = {"content": content, "base_version": base} | ({} if page is None else {"page": page})
    return person.good("PUT", f"/artifacts/{artifact_id}/content", json=body)


def download(person: ApiClient, artifact_id: str, query: str = "") -> bytes:
    response = person.ask("GET", f"/artifacts/{artifact_id}/download{query}")
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "application/octet-stream"
    assert response.headers["x-content-type-options"] == "nosniff"
    assert response.headers["content-disposition"].startswith("attachment; filename=")
    assert "sandbox" in response.headers["content-security-policy"]
    return response.content


def test_a_changed_page_keeps_its_id_and_the_other_pages_are_the_same(anna: ApiClient) -> None:
    artifact = create(anna)
    assert (artifact["head"], artifact["pages"], artifact["right"]) == (1, 3, "owner")
    before = pages(anna, artifact["id"])
    saved = save(anna, artifact["id"], 1, "# Second", 2)
    assert saved == {"version": 2, "pages": 3, "pages_changed": [2], "problems": []}
    after = pages(anna, artifact["id"])
    assert [page["id"] for page in after] == [page["id"] for page in before]
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1]["content"] == "# Second"
    assert pages(anna, artifact["id"], 1) == before
    (changed,) = anna.good("GET", f"/artifacts/{artifact['id']}/diff?from=1&to=2")["pages"]
    assert (changed["index"], changed["change"]) == (2, "changed")
    assert changed["diff"].splitlines()[1:] == ["-# Two", "+# Second"]
    assert save(anna, artifact["id"], 2, "# Second", 2)["version"] == 2, "nothing changed"


def test_the_second_of_two_editors_gets_both_texts(anna: ApiClient) -> None:
    artifact_id = create(anna)["id"]
    save(anna, artifact_id, 1, "# Mine", 2)
    body = {"content": "# Theirs", "base_version": 1, "page": 2}
    refused = anna.bad("PUT", f"/artifacts/{artifact_id}/content", 409, json=body)
    detail = refused["detail"]
    assert (detail["kind"], detail["version"]) == ("artifact_changed", 2)
    assert (detail["current"], detail["yours"]) == ("# Mine", "# Theirs")
    assert anna.good("GET", f"/artifacts/{artifact_id}")["head"] == 2


@pytest.mark.timeout(300)
def test_every_version_of_random_edits_and_restores_is_as_saved(anna: ApiClient) -> None:
    rng = random.Random(7)
    artifact_id = create(anna)["id"]
    saved = {1: [page["content"] for page in pages(anna, artifact_id)]}
    for step in range(2, 50):
        head, choice = max(saved), rng.randrange(4)
        now = saved[head]
        if choice == 0:
            number = rng.choice([number for number in saved if number != head] or [head])
            answer = anna.good("POST", f"/artifacts/{artifact_id}/restore", json={"version": number})
            expected = saved[number]
        elif choice == 1:
            expected = rng.sample([*now, f"# New {step}"], k=rng.randint(1, len(now) + 1))
            answer = save(anna, artifact_id, head, "\n---\n".join(expected))
        else:
            page = rng.randint(1, len(now))
            expected = [*now[: page - 1], f"# Page {step}", *now[page:]]
            answer = save(anna, artifact_id, head, f"# Page {step}", page)
        saved[answer["version"]] = expected
    for number, expected in saved.items():
        assert [page["content"] for page in pages(anna, artifact_id, number)] == expected, number
    listed = anna.good("GET", f"/artifacts/{artifact_id}/versions?page_size=100")
    assert [one["version"] for one in listed["items"]] == sorted(saved, reverse=True)
    assert {one["author"]["name"] for one in listed["items"]} == {anna.user["username"]}


def test_code_is_downloaded_as_a_zip_with_its_paths(anna: ApiClient) -> None:
    files = [{"path": "src/main.py", "content": "print(1)\n"}, {"path": "README.md", "content": "Hi"}]
    body = {"type": "code", "name": "con", "files": files}
    artifact_id = anna.good("POST", "/artifacts", json=body)["id"]
    data = download(anna, artifact_id)
    assert data == download(anna, artifact_id), "the same version has the same bytes"
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        assert {name: archive.read(name).decode() for name in archive.namelist()} == {
            file["path"]: file["content"] for file in files
        }
    body["files"] = [{"path": "../../x", "content": ""}]
    refused = anna.bad("POST", "/artifacts", 400, json=body)
    assert "must be relative" in refused["detail"]["fields"]["$.files[0].path"]


def test_nothing_is_served_as_a_page(anna: ApiClient) -> None:
    hostile = "<html><script>fetch('/auth')</script></html>"
    for type_, content, format_ in (
        ("web", hostile, "html"),
        ("diagram", "graph TD\n A-->B", "mmd"),
        ("chart", '{"type": "bar", "data": {"labels": ["a"], "datasets": [{"data": [1]}]}}', "json"),
        ("report", hostile, "md"),
    ):
        artifact_id = create(anna, type_, content)["id"]
        assert download(anna, artifact_id, f"?format={format_}")
        for path in ("", "/preview", "/content", "/versions"):
            response = anna.ask("GET", f"/artifacts/{artifact_id}{path}")
            assert response.headers["content-type"].startswith("application/json")
    refused = anna.bad("GET", f"/artifacts/{create(anna)['id']}/download?format=html", 400)
    assert "pptx, pdf, md" in refused["error"]


def test_a_copy_in_the_workspace_gets_a_number_and_stays_in_it(anna: ApiClient) -> None:
    content = json.dumps({"sheets": [{"name": "S", "columns": [{"name": "c"}]}]})
    artifact_id = create(anna, "sheet", content)["id"]
    path = f"/artifacts/{artifact_id}/save"
    saved = [anna.good("POST", path, json={"path": "out/table", "format": "csv"})["path"] for _ in range(2)]
    assert saved == ["out/table.csv", "out/table (2).csv"]
    assert anna.good("POST", path, json={"path": "out/", "format": "csv"})["path"] == "out/A.csv"
    assert anna.bad("POST", path, 400, json={"path": "../../x", "format": "csv"})


def test_members_read_speakers_edit_and_removed_members_find_nothing(anna: ApiClient, ben: ApiClient) -> None:
    body = {"title": "R", "task": "t", "agents": [{"name": "x", "system_prompt": "y"}]}
    room_id = anna.good("POST", "/chat-rooms", json=body)["id"]
    artifact_id = create(anna, room_id=room_id)["id"]
    ben.bad("GET", f"/artifacts/{artifact_id}", 404)
    anna.good("POST", f"/chat-rooms/{room_id}/members", json={"user_id": ben.user["id"], "right": "watch"})
    assert ben.good("GET", f"/artifacts/{artifact_id}")["right"] == "read"
    assert ben.good("GET", f"/artifacts?room_id={room_id}")["total"] == 1
    change = {"content": "# Ben", "base_version": 1}
    ben.bad("PUT", f"/artifacts/{artifact_id}/content", 403, json=change)
    new = {"type": "ppt", "name": "B", "content": "# B", "room_id": room_id}
    ben.bad("POST", "/artifacts", 403, json=new)
    anna.good("PUT", f"/chat-rooms/{room_id}/members/{ben.user['id']}", json={"right": "speak"})
    assert save(ben, artifact_id, 1, "# Ben")["version"] == 2
    ben.bad("DELETE", f"/artifacts/{artifact_id}", 403)
    assert ben.good("POST", "/artifacts", json=new)["user_id"] == anna.user["id"]
    anna.good("DELETE", f"/chat-rooms/{room_id}/members/{ben.user['id']}")
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/content"), ("GET", "/download?format=md")):
        ben.bad(method, f"/artifacts/{artifact_id}{path}", 404)
    anna.good("DELETE", f"/chat-rooms/{room_id}")
    kept = anna.good("GET", f"/artifacts/{artifact_id}")
    assert (kept["subject_kind"], kept["subject_id"]) == (None, None)


@pytest.mark.parametrize("choice", ["", "keep", "delete"])
def test_artifacts_outlive_their_conversation_unless_a_person_says_otherwise(
    anna: ApiClient, choice: str
) -> None:
    conversation_id = anna.good("POST", "/conversations", json={"title": "c"})["id"]
    artifact_id = create(anna, conversation_id=conversation_id)["id"]
    assert anna.good("GET", f"/artifacts/{artifact_id}")["subject_id"] == conversation_id
    query = f"?artifacts={choice}" if choice else ""
    anna.good("DELETE", f"/conversations/{conversation_id}{query}")
    if choice == "delete":
        anna.bad("GET", f"/artifacts/{artifact_id}", 404)
    else:
        assert anna.good("GET", f"/artifacts/{artifact_id}")["subject_kind"] is None


def test_another_theme_is_a_version_and_a_name_is_not(anna: ApiClient) -> None:
    artifact_id = create(anna)["id"]
    assert anna.good("PUT", f"/artifacts/{artifact_id}", json={"name": "B"})["head"] == 1
    changed = anna.good("PUT", f"/artifacts/{artifact_id}", json={"theme": "night", "language": "de"})
    assert (changed["head"], changed["name"], changed["theme"], changed["language"]) == (
        2,
        "B",
        "night",
        "de",
    )
    refused = anna.bad("PUT", f"/artifacts/{artifact_id}", 400, json={"theme": "dark"})
    assert all(
        name in refused["detail"]["fields"]["$.theme"] for name in ("clear", "forest", "night", "paper")
    )


def test_old_versions_are_deleted_with_their_parts(anna: ApiClient) -> None:
    artifact_id = create(anna, "web", "<p>0")["id"]
    for number in range(1, 55):
        save(anna, artifact_id, number, f"<p>{number}")
    assert anna.good("GET", f"/artifacts/{artifact_id}/versions")["total"] == 50
    anna.bad("GET", f"/artifacts/{artifact_id}/content?version=5", 404)
    assert pages(anna, artifact_id, 6)[0]["content"] == "<p>5\n"
