"""Real server processes on their databases: one per data directory, and a whole scenario on PostgreSQL."""

import sqlite3
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from api.client import UUID7, ApiClient
from api.conftest import connect
from api.schema import Document
from api.server_process import ServerProcess, environment
from api.streams import stream_message, stream_run
from forked_luxx import run_luxx

from luxx.providers.scripted import Counts, Finish, Gate, Rule, Script, ScriptedProvider, Text
from store.databases import new_database

pytestmark = pytest.mark.heavy

SECRET = "a secret that all servers of one database share, long enough"
CUT_SECONDS = 5.0


def luxx(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return run_luxx(*arguments, cwd=folder, env=environment(folder, **settings))


def test_a_second_server_on_the_same_data_directory_is_refused_with_a_sentence(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as first:
        second = ServerProcess(tmp_path, data_dir=first.data_dir)
        second.launch()
        assert second.wait(60) != 0
        assert "another Luxx server is using" in second.output
        assert "Traceback" not in second.output
        with ApiClient(first, None) as person:
            person.good("GET", "/ready")
    with ServerProcess(tmp_path, data_dir=first.data_dir) as third, ApiClient(third, None) as person:
        person.good("GET", "/ready")


def test_a_second_data_directory_with_the_same_sqlite_file_is_refused_with_a_sentence(tmp_path: Path) -> None:
    settings = {"LUXX_DATABASE__URL": f"sqlite:///{tmp_path}/elsewhere/luxx.db"}
    (tmp_path / "second").mkdir()
    with ServerProcess(tmp_path, **settings):
        refused = luxx(tmp_path / "second", "serve", "--port", "0", "--data-dir", "own", **settings)
    assert refused.returncode != 0
    assert f"another Luxx server is using {tmp_path}/elsewhere/luxx.db" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_killed_server_releases_its_data_directory(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as first:
        with ApiClient(first, None).register("dora") as person:
            user = person.user
        first.kill()
    with (
        ServerProcess(tmp_path) as again,
        ApiClient(again, None).sign_in("dora", "a-password-of-a-test-1") as person,
    ):
        assert person.good("GET", "/auth/me") == user


def test_a_server_refuses_a_database_of_a_newer_version_with_a_sentence(tmp_path: Path) -> None:
    assert luxx(tmp_path, "migrate", "--data-dir", "data").returncode == 0
    with sqlite3.connect(tmp_path / "data" / "luxx.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    for command in (["migrate"], ["serve", "--port", "0"]):
        refused = luxx(tmp_path, *command, "--data-dir", "data")
        output = refused.stdout + refused.stderr
        assert refused.returncode != 0
        assert "9999" in output
        assert "newer version" in output
        assert "Traceback" not in output


def test_postgresql_without_a_secret_key_is_refused_with_a_sentence(postgresql: str, tmp_path: Path) -> None:
    url = new_database(postgresql, "nokey")
    refused = luxx(tmp_path, "serve", "--port", "0", "--data-dir", "data", LUXX_DATABASE__URL=url)
    output = refused.stdout + refused.stderr
    assert refused.returncode != 0
    assert "secret_key" in output
    assert "Traceback" not in output


@pytest.fixture
def upstream() -> Any:
    reply = [Text(text="From the other database, with a NUL-free ä."), Counts(completion=7), Finish()]
    with ScriptedProvider(Script(rules=[Rule(reply=reply)])) as provider:
        yield provider


def test_a_scenario_on_postgresql(postgresql: str, tmp_path: Path, upstream: ScriptedProvider) -> None:
    settings = {"LUXX_DATABASE__URL": new_database(postgresql, "scenario"), "LUXX_APP__SECRET_KEY": SECRET}
    host = upstream.url.removeprefix("http://")
    with ServerProcess(tmp_path, LUXX_PROVIDERS__ALLOW_PRIVATE=host, **settings) as server:
        with ApiClient(server, None) as nobody:
            document = Document(nobody.good_document())
            assert nobody.good("GET", "/health")["database"] == "postgresql"
        with ApiClient(server, document).register("petra") as petra:
            connect(petra, upstream)
            conversation = petra.good("POST", "/conversations", json={"title": "on PostgreSQL"})
            assert UUID7.fullmatch(conversation["id"])
            with stream_message(petra, conversation["id"], "hello") as stream:
                frames = stream.read_to_end()
            assert frames[-1]["type"] == "done"
            assert frames[-1]["status"] == "completed"
            path = f"/messages?conversation_id={conversation['id']}"
            newest, oldest = petra.good("GET", path)["items"]
            assert newest["id"] == frames[-1]["message_id"]
            assert newest["text"] == "From the other database, with a NUL-free ä."
            assert oldest["text"] == "hello"
    with (
        ServerProcess(tmp_path, data_dir=tmp_path / "elsewhere", **settings) as other,
        ApiClient(other, document, petra.token) as petra_again,
    ):
        assert petra_again.good("GET", path)["items"] == [newest, oldest]


def test_values_that_postgresql_cannot_store_are_refused_before_the_query(
    postgresql: str, tmp_path: Path
) -> None:
    """NUL characters and integers that its columns cannot store, in every field that takes text or an id."""
    settings = {"LUXX_DATABASE__URL": new_database(postgresql, "wild"), "LUXX_APP__SECRET_KEY": SECRET}
    with ServerProcess(tmp_path, **settings) as server, ApiClient(server, None).register("wild") as person:
        own = person.good("POST", "/conversations", json={})["id"]
        texts = {
            "/conversations": ("title", "model", "system_prompt", "project_id"),
            "/providers": ("name", "provider_type", "base_url", "api_key", "default_model"),
            "/messages": ("conversation_id", "content", "model"),
            "/auth/login": ("username", "password"),
            "/auth/register": ("username", "password", "email"),
            "/auth/refresh": ("refresh_token",),
            "/auth/password": ("current_password", "new_password"),
        }
        whole = {
            "/conversations": {},
            "/providers": {"name": "p", "provider_type": "openai"},
            "/messages": {"conversation_id": own, "content": "x"},
            "/auth/login": {"username": "wild", "password": "x"},
            "/auth/register": {"username": "new-user", "password": "x" * 12},
            "/auth/refresh": {"refresh_token": "x"},
            "/auth/password": {"current_password": "x", "new_password": "x" * 12},
        }
        requests: list[tuple[str, str, Any]] = [
            ("POST", path, whole[path] | {name: "a\x00b"}) for path, names in texts.items() for name in names
        ]
        requests += [("PUT", "/settings", {"system_prompt": "\x00"})]
        requests += [("PUT", f"/conversations/{own}", {"tags": ["\x00"]})]
        file = {"name": "a", "content": "\x00"}
        requests += [("POST", "/messages", whole["/messages"] | {"attachments": [file]})]
        requests += [("POST", "/messages", whole["/messages"] | {"tools": ["\x00"]})]
        requests += [
            (method, path, body)
            for place in ("/conversations", "/messages", "/runs", "/tools")
            for method, path, body in (
                ("GET", f"{place}/%00", None),
                ("DELETE", f"{place}/a%00b", None),
                ("GET", f"{place}?before=%00&conversation_id={own}", None),
                ("GET", f"{place}?conversation_id=%00&subject_id=%00&category=%00", None),
            )
        ]
        requests += [("POST", "/runs/%00/cancel", None), ("GET", "/runs/%00/events", None)]
        requests += [("POST", "/tools/%00/execute", {})]
        for number in (2**31 - 1, 2**31, 2**63, 10**30, -1):
            requests += [("GET", f"/providers/{number}", None), ("DELETE", f"/providers/{number}", None)]
            requests += [("PUT", f"/auth/users/{number}", {"is_active": True})]
            requests += [("POST", "/conversations", {"provider_id": number})]
            requests += [("PUT", "/settings", {"default_provider_id": number})]
        requests += [("GET", f"/conversations?page={number}", None) for number in (2**31, 2**63, 10**6)]
        broken: list[str] = []
        for method, path, body in requests:
            response = person.http.request(method, path, json=body)
            if response.status_code not in (200, 400, 401, 403, 404, 405):
                broken.append(f"{method} {path} {body}: {response.status_code}")
        assert not broken, "\n".join(broken)
        assert "request_failed" not in server.output


def test_two_servers_on_one_postgresql_start_together_and_share_everything(
    postgresql: str, tmp_path: Path, upstream: ScriptedProvider
) -> None:
    settings = {
        "LUXX_DATABASE__URL": new_database(postgresql, "two"),
        "LUXX_APP__SECRET_KEY": SECRET,
        "LUXX_PROVIDERS__ALLOW_PRIVATE": upstream.url.removeprefix("http://"),
    }
    first_server = ServerProcess(tmp_path, data_dir=tmp_path / "one", **settings)
    second_server = ServerProcess(tmp_path, data_dir=tmp_path / "two", **settings)
    first_server.launch()
    second_server.launch()
    try:
        for server in (first_server, second_server):
            server.await_start()
        with (
            ApiClient(first_server, None).register("pair") as here,
            ApiClient(second_server, None, here.token) as there,
        ):
            connect(here, upstream)
            conversation = here.good("POST", "/conversations", json={"title": "made on one"})
            assert there.good("GET", f"/conversations/{conversation['id']}") == conversation
            body = {"conversation_id": conversation["id"], "content": "hello"}
            answer = there.good("POST", "/messages", json=body)
            path = f"/messages?conversation_id={conversation['id']}"
            assert here.good("GET", path)["items"][0] == answer
            with ApiClient(second_server, None).sign_in() as admin:
                users = [user["username"] for user in admin.good("GET", "/auth/users")["items"]]
            assert sorted(users) == ["admin", "pair"]
    finally:
        for server in (first_server, second_server):
            if server.process.poll() is None:
                server.stop()


class Pair(NamedTuple):
    """One user at two servers of one database, and a model that stops in the middle of its answer."""

    here: ApiClient
    there: ApiClient
    conversation_id: str
    provider: ScriptedProvider


@contextmanager
def pair_at_two_servers(postgresql: str, name: str, tmp_path: Path) -> Iterator[Pair]:
    reply = [Text(text="I am"), Gate(name="waiting"), Text(text=" back."), Finish()]
    with ScriptedProvider(Script(rules=[Rule(reply=reply)])) as provider:
        settings = {
            "LUXX_DATABASE__URL": new_database(postgresql, name),
            "LUXX_APP__SECRET_KEY": SECRET,
            "LUXX_PROVIDERS__ALLOW_PRIVATE": provider.url.removeprefix("http://"),
        }
        with (
            ServerProcess(tmp_path, data_dir=tmp_path / "one", **settings) as started_server,
            ServerProcess(tmp_path, data_dir=tmp_path / "two", **settings) as two,
            ApiClient(started_server, None).register("ann") as here,
            ApiClient(two, None, here.token) as there,
        ):
            connect(here, provider)
            conversation_id = here.good("POST", "/conversations", json={})["id"]
            yield Pair(here, there, conversation_id, provider)


def test_a_run_of_one_server_is_followed_to_its_end_at_another(postgresql: str, tmp_path: Path) -> None:
    with pair_at_two_servers(postgresql, "follow", tmp_path) as pair:
        with stream_message(pair.here, pair.conversation_id, "hello") as driven:
            run_id = next(driven.frames())["run_id"]
            with stream_run(pair.there, run_id) as followed:
                assert next(followed.frames())["run"]["status"] == "running"
                pair.provider.release("waiting")
                logged = [frame for frame in driven.read_to_end() if frame["seq"]]
                assert [frame for frame in followed.read_to_end() if frame["seq"]] == logged
        assert logged[-1]["type"] == "done"


def test_a_run_of_one_server_is_cancelled_at_another(postgresql: str, tmp_path: Path) -> None:
    with pair_at_two_servers(postgresql, "cancel", tmp_path) as pair:
        with stream_message(pair.here, pair.conversation_id, "hello") as driven:
            run_id = next(driven.frames())["run_id"]
            driven.until("process_step")
            pair.there.good("POST", f"/runs/{run_id}/cancel")
            assert driven.read_to_end()[-1]["status"] == "stopped"
        assert pair.there.good("GET", f"/runs/{run_id}")["status"] == "cancelled"
        pair.provider.wait_closed(pair.provider.requests[0], timeout=5.0)


def test_a_conversation_whose_run_another_server_drives_can_be_deleted(
    postgresql: str, tmp_path: Path
) -> None:
    """Cancelling answers in time, whichever server drives; deleting waits until the driver has noticed it."""
    with pair_at_two_servers(postgresql, "delete", tmp_path) as pair:
        with stream_message(pair.here, pair.conversation_id, "hello") as driven:
            run_id = next(driven.frames())["run_id"]
            driven.until("process_step")
            pair.there.good("DELETE", f"/conversations/{pair.conversation_id}")
            assert driven.read_to_end()[-1]["status"] == "stopped"
        pair.here.bad("GET", f"/runs/{run_id}", 404)
        again = pair.here.good("POST", "/conversations", json={})["id"]
        with stream_message(pair.here, again, "hello") as driven:
            run_id = next(driven.frames())["run_id"]
            driven.until("process_step")
            asked = pair.there.good("GET", f"/messages?conversation_id={again}")["items"][0]
            pair.there.good("DELETE", f"/messages/{asked['id']}")
        pair.there.bad("GET", f"/runs/{run_id}", 404)
        assert pair.there.good("GET", f"/messages?conversation_id={again}")["items"] == []


def test_of_concurrent_messages_one_gets_the_conversation(
    postgresql: str, tmp_path: Path, upstream: ScriptedProvider
) -> None:
    settings = {
        "LUXX_DATABASE__URL": new_database(postgresql, "once"),
        "LUXX_APP__SECRET_KEY": SECRET,
        "LUXX_PROVIDERS__ALLOW_PRIVATE": upstream.url.removeprefix("http://"),
    }
    with ServerProcess(tmp_path, **settings) as server, ApiClient(server, None).register("hasty") as hasty:
        connect(hasty, upstream)
        conversation_id = hasty.good("POST", "/conversations", json={})["id"]
        body = {"conversation_id": conversation_id, "content": "hello"}
        headers = {"accept": "application/json"}
        with ThreadPoolExecutor(8) as threads:
            send = partial(hasty.ask, "POST", "/messages/stream", json=body, headers=headers)
            answers = [future.result() for future in [threads.submit(send) for _ in range(8)]]
        runs = hasty.good("GET", "/runs")["items"]
        sent = [answer for answer in answers if answer.status_code == 202]
        assert {answer.status_code for answer in answers} <= {202, 409}
        assert len(sent) == len(runs) >= 1
        messages = hasty.good("GET", f"/messages?conversation_id={conversation_id}&page_size=100")["items"]
        user_messages = [message for message in messages if message["role"] == "user"]
        assert len(user_messages) == len(sent)
        parents = [message["parent_id"] for message in user_messages]
        assert len(set(parents)) == len(parents), "two messages were sent at the same place"


def test_signing_out_at_one_server_ends_streams_of_another(postgresql: str, tmp_path: Path) -> None:
    with pair_at_two_servers(postgresql, "cut", tmp_path) as pair:
        with stream_message(pair.there, pair.conversation_id, "hello") as stream:
            assert next(stream.frames())["type"] == "run"
            pair.here.good("POST", "/auth/logout")
            started = time.monotonic()
            frames = stream.read_to_end()
            assert time.monotonic() - started < CUT_SECONDS
            assert "done" not in {frame["type"] for frame in frames}
        pair.there.bad("GET", "/auth/me", 401)
