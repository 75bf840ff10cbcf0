"""Temporary chats: nothing is remembered of them, and no text of them is left after their end."""

import json
import sqlite3
import time
import zipfile
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from api.client import ApiClient, document_of
from api.conftest import answering
from api.server_process import ServerProcess
from forked_luxx import run_luxx

from luxx.providers.scripted import Call, Counts, Finish, Gate, Rule, ScriptedProvider, Text, When

SECRET = "quetzalcoatlus"
WRITER = "You write the title of a conversation"
USAGE = Counts(prompt=50, completion=5)


def rules() -> list[Rule]:
    page = {"type": "web", "name": f"The {SECRET}", "content": f"<p>{SECRET}</p>"}
    return [
        Rule(when=When(system=WRITER), reply=[Text(text="A title"), USAGE, Finish()]),
        Rule(
            when=When(user="draw", has_tool_result=False),
            reply=[Call(name="create_artifact", id="c1", arguments=page), USAGE, Finish(reason="tool_calls")],
        ),
        Rule(when=When(user="linger"), reply=[Text(text=SECRET), Gate(name="linger"), USAGE, Finish()]),
        Rule(reply=[Text(text=f"A {SECRET} has wings."), USAGE, Finish()]),
    ]


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedProvider]:
    with answering(rules()) as provider:
        yield provider


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("temporary"), LUXX_RUNS__LEASE_SECONDS="1") as running:
        yield running


@pytest.fixture(scope="module")
def person(server: ServerProcess, model: ScriptedProvider) -> Iterator[ApiClient]:
    with ApiClient(server, document_of(server)).sign_in() as admin:
        admin.good("PUT", "/admin/allowed-hosts", json={"hosts": [model.url.removeprefix("http://")]})
        body = {"name": "scripted", "provider_type": "openai", "base_url": f"{model.url}/v1"}
        keys = {"api_key": "sk-a-key", "default_model": "scripted"}
        provider = admin.good("POST", "/providers", json={**body, **keys})["id"]
        admin.good("PUT", "/settings", json={"default_provider_id": provider, "title_provider_id": provider})
        admin.good("PUT", "/tenant", json={"learn_patterns": True})
        yield admin


def begin(person: ApiClient) -> str:
    chat: str = person.good("POST", "/conversations", json={"is_temporary": True})["id"]
    return chat


def say(person: ApiClient, chat: str, content: str, **more: Any) -> None:
    person.good("POST", "/messages", json={"conversation_id": chat, "content": content, **more})


def tables_with(server: ServerProcess, words: str) -> list[str]:
    """The tables, those of the full-text search included, in which a text or a blob has the words."""
    found: list[str] = []
    with closing(sqlite3.connect(server.data_dir / "luxx.db")) as database:
        names = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
        for (name,) in names:
            for row in database.execute(f'SELECT * FROM "{name}"'):
                values = [value if isinstance(value, bytes) else str(value).encode() for value in row]
                if any(words.encode() in value.lower() for value in values):
                    found.append(name)
                    break
    return found


def spent(person: ApiClient) -> int:
    tokens: int = person.good("GET", "/usage")["sums"]["total_tokens"]
    return tokens


def test_nothing_of_a_temporary_chat_is_remembered_or_left(server: ServerProcess, person: ApiClient) -> None:
    before = spent(person)
    attached = [{"name": f"{SECRET}.txt", "content": f"about the {SECRET}"}]
    chat = begin(person)
    say(person, chat, f"What is a {SECRET}?", attachments=attached)
    say(person, chat, f"draw a {SECRET}", tools=True)
    person.good("PUT", f"/conversations/{chat}", json={"title": f"The {SECRET}", "tags": [SECRET]})
    copy = person.good("POST", f"/conversations/{chat}/fork", json={})
    shown = person.good("GET", f"/conversations/{chat}")
    assert (shown["temporary_minutes"], shown["memory"], shown["record"]) == (60, "off", False)
    assert copy["temporary_minutes"] == 60
    # It is in no list, no search and no export while it is there.
    assert person.good("GET", "/conversations")["items"] == []
    assert person.good("GET", f"/search?q={SECRET}")["items"] == []
    assert person.good("GET", f"/search?q={SECRET}&conversation_id={chat}")["items"] == []
    assert "search_texts" not in tables_with(server, SECRET)
    file = server.folder / "export.zip"
    made = run_luxx("export", "admin", str(file), cwd=server.folder, env=server.environ)
    assert made.returncode == 0, made.stderr
    with zipfile.ZipFile(file) as archive:
        assert json.loads(archive.read("conversations.json")) == []
    # Nothing of it can be remembered.
    for change in ({"memory": "on"}, {"record": True}, {"memory": None}):
        assert (
            person.bad("PUT", f"/conversations/{chat}", 400, json=change)["detail"]["kind"] == "is_temporary"
        )
    assert {"messages", "run_events", "artifacts", "conversations"} <= set(tables_with(server, SECRET))

    person.good("DELETE", f"/conversations/{chat}")
    person.good("DELETE", f"/conversations/{copy['id']}")
    assert tables_with(server, SECRET) == []
    person.bad("GET", f"/conversations/{chat}", 404)
    assert person.good("GET", "/artifacts")["items"] == []
    assert person.good("GET", "/runs?kind=title")["items"] == []
    assert spent(person) - before == 3 * 55


def test_the_server_deletes_unused_chats_also_after_a_crash(
    server: ServerProcess, person: ApiClient, model: ScriptedProvider
) -> None:
    unused, used, busy = begin(person), begin(person), begin(person)
    say(person, unused, "draw a picture", tools=True)
    say(person, used, "What is it?")
    body = {"conversation_id": busy, "content": "linger"}
    person.ask("POST", "/messages/stream", json=body, headers={"accept": "application/json"})
    server.kill()
    long_ago = (datetime.now(UTC) - timedelta(minutes=61)).replace(tzinfo=None).isoformat(" ")
    with closing(sqlite3.connect(server.data_dir / "luxx.db")) as database, database:
        changed = database.execute(
            "UPDATE conversations SET updated_at = ? WHERE id IN (?, ?)", (long_ago, unused, busy)
        )
        assert changed.rowcount == 2
    server.start()
    with ApiClient(server, person.document).sign_in() as again:
        until_gone(again, unused)
        assert again.good("GET", "/artifacts")["items"] == []
        again.good("GET", f"/conversations/{used}")
        # Its answer was being written: that is a use.
        assert again.good("GET", f"/conversations/{busy}")["run_id"] is not None
        model.release("linger")
        for chat in (used, busy):
            again.good("DELETE", f"/conversations/{chat}")
    assert tables_with(server, SECRET) == []


def until_gone(person: ApiClient, chat: str) -> None:
    for _ in range(300):
        if person.ask("GET", f"/conversations/{chat}").status_code == 404:
            return
        time.sleep(0.1)
    raise AssertionError("the chat is still there after 30 s")


def test_a_chat_that_is_kept_is_listed_and_found(server: ServerProcess, person: ApiClient) -> None:
    with ApiClient(server, person.document).sign_in() as again:
        keep_and_find(again)


def keep_and_find(person: ApiClient) -> None:
    chat = begin(person)
    say(person, chat, "Which bird is it?")
    kept = person.good("PUT", f"/conversations/{chat}", json={"is_temporary": False})
    assert (kept["temporary_minutes"], kept["memory"], kept["record"]) == (None, None, None)
    assert [one["id"] for one in person.good("GET", "/conversations")["items"]] == [chat]
    kinds = [hit["kind"] for hit in person.good("GET", f'/search?q="which bird" {SECRET}')["items"]]
    assert sorted(kinds) == ["conversation", "message"]
    hits = person.good("GET", f"/search?q={SECRET}")["items"]
    assert [hit["role"] for hit in hits] == ["assistant"]
    refused = person.bad("PUT", f"/conversations/{chat}", 400, json={"is_temporary": True})
    assert refused["detail"]["kind"] == "not_temporary"
    person.good("DELETE", f"/conversations/{chat}")
