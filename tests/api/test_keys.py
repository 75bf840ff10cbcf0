"""Personal API keys on a whole server: the routes of each scope, and the end of streams and sockets."""

import itertools
import time
from collections.abc import Generator
from contextlib import contextmanager

import httpx
import pytest

from api.client import PASSWORD, ApiClient
from api.conftest import connect
from api.owned_ids import ID_KINDS
from api.schema import Document
from api.server_process import ServerProcess
from api.socket_client import open_socket
from api.streams import stream_run
from api.test_cut_streams import CUT_SECONDS, waiting_run
from luxx.providers.scripted import ScriptedProvider

ADMIN_TAGS = {
    *("admin", "auth", "keys", "permissions", "providers", "settings", "shares", "tenants", "tools", "users")
}
"""The tags of which a key with the scope `chat` may only read. It may send the operations of all others."""

NEED_A_SIGN_IN = {("POST", "/keys"), ("POST", "/auth/logout"), ("POST", "/auth/password")}
names = itertools.count()


@contextmanager
def with_key(person: ApiClient, *scopes: str) -> Generator[ApiClient]:
    """The same user with a new key, whose id is `user["key_id"]`."""
    body = {"name": f"key {next(names)}", "scopes": list(scopes)}
    new = person.good("POST", "/keys", json=body)
    with ApiClient(person.server, person.document, new["key"]) as keyed:
        keyed.user = {**person.user, "key_id": new["id"]}
        yield keyed


def kind_of(response: httpx.Response) -> str:
    """The kind of a failure, in the form of its API."""
    body = response.json()
    return body["error"]["code"] if isinstance(body["error"], dict) else body["detail"]["kind"]


@pytest.mark.parametrize("scope", ["read", "chat", "admin"])
def test_each_operation_is_refused_to_keys_without_its_scope(
    scope: str, document: Document, server: ServerProcess, admin: ApiClient
) -> None:
    """Without a body and with unknown ids, a request that the scope allows is refused for another reason."""
    name = f"keyed{next(names)}"
    body = {"username": name, "password": PASSWORD, "permission_level": 4}
    admin.good("POST", "/auth/users", json=body)
    with ApiClient(server, document).sign_in(name, PASSWORD) as person, with_key(person, scope) as keyed:
        for operation in document.operations:
            if operation.about.get("security") == []:
                continue
            path = operation.template
            for parameter in operation.names("path"):
                unknown = ID_KINDS[parameter].unknown if parameter in ID_KINDS else 987_654
                path = path.replace("{" + parameter + "}", str(unknown))
            response = keyed.http.request(operation.method, path)
            kind = kind_of(response) if response.status_code == 403 else None
            key = (operation.method, operation.template)
            if key in NEED_A_SIGN_IN:
                assert kind == "key_refused", key
            elif operation.method == "GET" or key == ("POST", "/auth/ticket") or scope == "admin":
                assert kind not in ("key_scope", "key_refused"), key
            else:
                is_chat = not ADMIN_TAGS & set(operation.about["tags"])
                assert (kind == "key_scope") is not (scope == "chat" and is_chat), (key, response.text)


def test_a_key_for_chat_sends_a_message_and_one_for_reading_reads_it(anna: ApiClient) -> None:
    with with_key(anna, "chat") as writer, with_key(anna, "read") as reader:
        talk = writer.good("POST", "/conversations", json={"title": "by key"})["id"]
        body = {"conversation_id": talk, "content": "hello"}
        reader.bad("POST", "/messages", 403, json=body)
        assert writer.good("POST", "/messages", json=body)["text"] == "Hello there."
        assert len(reader.good("GET", f"/messages?conversation_id={talk}")["items"]) == 2
        assert reader.http.head(f"/conversations/{talk}").status_code == 200
        writer.good("DELETE", f"/conversations/{talk}")


@pytest.mark.parametrize("how", ["is revoked", "is of a user who is disabled"])
def test_streams_and_sockets_end_within_5_seconds_when_their_key(
    how: str, server: ServerProcess, document: Document, admin: ApiClient, upstream: ScriptedProvider
) -> None:
    with ApiClient(server, document).register(f"keyed{next(names)}") as person:
        connect(person, upstream)
        talk, run_id = waiting_run(person)
        with (
            with_key(person, "read") as keyed,
            stream_run(keyed, run_id) as stream,
            open_socket(keyed) as socket,
        ):
            assert next(stream.frames())["type"] == "run"
            assert socket.subscribe(talk)["data"]["run_id"] == run_id
            if how == "is revoked":
                person.good("DELETE", f"/keys/{keyed.user['key_id']}")
            else:
                admin.good("PUT", f"/auth/users/{person.user['id']}", json={"is_active": False})
            started = time.monotonic()
            rest = stream.read_to_end()
            assert socket.wait_closed()[0] == 4401
            assert time.monotonic() - started < CUT_SECONDS
            assert not [frame for frame in rest if frame["type"] == "done"]
            keyed.bad("GET", "/auth/me", 401)
        if how == "is revoked":
            person.cancel(run_id)


def test_a_key_keeps_its_streams_when_another_key_is_revoked_or_the_password_changes(
    server: ServerProcess, document: Document, admin: ApiClient, upstream: ScriptedProvider
) -> None:
    with ApiClient(server, document).register(f"keyed{next(names)}") as person:
        connect(person, upstream)
        _talk, run_id = waiting_run(person)
        with (
            with_key(person, "chat") as keyed,
            with_key(person, "read") as other,
            stream_run(keyed, run_id) as stream,
            stream_run(other, run_id) as ended,
        ):
            assert next(stream.frames())["type"] == "run"
            assert next(ended.frames())["type"] == "run"
            body = {"current_password": PASSWORD, "new_password": PASSWORD + "-new"}
            person.good("POST", "/auth/password", json=body)
            person.good("DELETE", f"/keys/{other.user['key_id']}")
            ended.read_to_end()
            keyed.good("POST", f"/runs/{run_id}/cancel")
            assert stream.until("done")["status"] == "stopped"


def test_lists_are_paged_newest_first(server: ServerProcess, document: Document, admin: ApiClient) -> None:
    with ApiClient(server, document).register(f"keyed{next(names)}") as person:
        for name in ("first", "second", "third"):
            person.good("POST", "/keys", json={"name": name, "scopes": ["read"], "expires_at": None})
        page = person.good("GET", "/keys?page=2&page_size=2")
        assert (page["total"], [key["name"] for key in page["items"]]) == (3, ["first"])
        person.bad("DELETE", "/keys/none", 404)
        person.bad("GET", "/keys?page_size=101", 400)


RULES = [{"tool": "*", "pattern": "*", "action": "allow"}]


def test_a_document_with_rules_needs_the_scope_that_rules_need(anna: ApiClient) -> None:
    plain = {"version": 1, "name": "Brought", "tools": ["shell_execute"]}
    document = {**plain, "rules": RULES}
    with with_key(anna, "chat") as chat, with_key(anna, "admin") as admin_key:
        for method, path, body in (
            ("PUT", "/permissions/rules?scope=user", RULES),
            ("POST", "/agents/import", document),
        ):
            assert kind_of(chat.ask(method, path, json=body)) == "key_scope", path
        assert "Brought" not in [one["name"] for one in anna.good("GET", "/agents")["items"]]
        assert chat.good("POST", "/agents/import", json=plain)["rules"] == []
        agent = admin_key.good("POST", "/agents/import", json=document)
        assert agent["rules"] == RULES
        stored = anna.good("GET", f"/permissions/rules?scope=agent&id={agent['id']}")
        assert [rule["action"] for rule in stored] == ["allow"]


def test_a_key_for_chat_answers_once_and_writes_no_rule(anna: ApiClient) -> None:
    path = "/permissions/rules?scope=user"
    anna.good("PUT", path, json=[{"tool": "file_list", "action": "ask"}])
    talk = anna.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": talk, "content": "use a tool"}
    run = anna.good("POST", "/messages/stream", json=body, headers={"accept": "application/json"})
    questions = f"/runs/{run['id']}/questions"
    until = time.monotonic() + CUT_SECONDS
    while not (asked := anna.good("GET", questions)["items"]):
        assert time.monotonic() < until
    answer = f"{questions}/{asked[0]['id']}/answer"
    with with_key(anna, "chat") as chat:
        labels = [option["label"] for option in chat.good("GET", questions)["items"][0]["options"]]
        assert labels == ["once", "reject"]
        refused = chat.ask("POST", answer, json={"answer": "always"})
        assert (refused.status_code, kind_of(refused)) == (403, "key_scope")
        assert len(anna.good("GET", path)) == 1
        assert chat.good("POST", answer, json={"answer": "once"})["answer"] == "once"
    anna.good("PUT", path, json=[])
