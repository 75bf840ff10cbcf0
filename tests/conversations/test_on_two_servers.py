"""Temporary chats and links in PostgreSQL, with two servers: both delete what is due, and neither shows a
link that the other has ended.
"""

from pathlib import Path

import pytest
from api.client import ApiClient, document_of
from api.conftest import answering
from api.server_process import ServerProcess
from conversations.test_temporary_chats import begin, rules, say, until_gone
from sqlalchemy import create_engine, text
from store.databases import new_database

from luxx.providers.scripted import ScriptedProvider

pytestmark = pytest.mark.heavy


def test_two_servers_delete_temporary_chats_and_end_links_together(tmp_path: Path, postgresql: str) -> None:
    url = new_database(postgresql, "twochats")
    environment = {
        "LUXX_DATABASE__URL": url,
        "LUXX_APP__SECRET_KEY": "a secret that all servers of one database share, long enough",
        "LUXX_WORKSPACE__ROOT": str(tmp_path / "workspaces"),
        "LUXX_RUNS__LEASE_SECONDS": "5",
    }
    with (
        answering(rules()) as model,
        ServerProcess(tmp_path / "a", **environment) as one,
        ServerProcess(tmp_path / "b", **environment) as other,
    ):
        document, servers = document_of(one), (one, other)
        with ApiClient(one, document).sign_in() as person, ApiClient(other, document).sign_in() as elsewhere:
            connect(person, model)
            due = [begin(who) for who in (person, elsewhere) for _ in range(10)]
            kept = person.good("POST", "/conversations", json={"title": "Kept"})["id"]
            say(person, due[0], "draw a picture", tools=True)
            say(person, kept, "What is it?")
        # Each server looks for what is due when it starts.
        for server in servers:
            server.kill()
        engine = create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
        with engine.begin() as database:
            ages = "UPDATE conversations SET updated_at = updated_at - interval '61 minutes'"
            aged = database.execute(text(f"{ages} WHERE temporary_minutes IS NOT NULL"))
            assert aged.rowcount == len(due)
        engine.dispose()
        for server in servers:
            server.launch()
        for server in servers:
            server.await_start()
        with ApiClient(one, document).sign_in() as person, ApiClient(other, document).sign_in() as elsewhere:
            for chat in due:
                until_gone(elsewhere, chat)
            assert person.good("GET", "/artifacts")["items"] == []
            assert [each["id"] for each in elsewhere.good("GET", "/conversations")["items"]] == [kept]
            for server in servers:
                assert server.lines_with('"level":"error"') == []
            links_end_on_both(person, elsewhere, kept)


def connect(person: ApiClient, model: ScriptedProvider) -> None:
    person.good("PUT", "/admin/allowed-hosts", json={"hosts": [model.url.removeprefix("http://")]})
    body = {"name": "scripted", "provider_type": "openai", "base_url": f"{model.url}/v1"}
    keys = {"api_key": "sk-a-key", "default_model": "scripted"}
    provider = person.good("POST", "/providers", json={**body, **keys})["id"]
    person.good("PUT", "/settings", json={"default_provider_id": provider})


def links_end_on_both(person: ApiClient, elsewhere: ApiClient, conversation: str) -> None:
    live, snapshot = (
        person.good(
            "POST", "/shares", json={"kind": "conversation", "subject_id": conversation, "is_live": is_live}
        )
        for is_live in (True, False)
    )
    for link in (live, snapshot):
        assert len(elsewhere.good("GET", f"/tenant/shared/{link['token']}")["messages"]) == 2
    person.good("DELETE", f"/shares/{live['id']}")
    elsewhere.bad("GET", f"/tenant/shared/{live['token']}", 404)
    elsewhere.good("DELETE", f"/conversations/{conversation}")
    person.bad("GET", f"/tenant/shared/{snapshot['token']}", 404)
    assert person.good("GET", "/shares")["items"] == []
