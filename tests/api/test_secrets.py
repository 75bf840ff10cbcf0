"""A provider's key never leaves the server: not in answers, streams, logs or files."""

import json
from pathlib import Path

import pytest

from api.client import KEY, PASSWORD, ApiClient
from api.conftest import connect
from api.schema import Document
from api.server_process import ADMIN_PASSWORD, ServerProcess
from api.streams import stream_message
from luxx.providers.scripted import ScriptedProvider


@pytest.fixture(scope="module")
def server(own_server: ServerProcess) -> ServerProcess:
    return own_server


def test_a_key_is_shown_by_its_last_four_characters(anna: ApiClient) -> None:
    provider = anna.good("GET", "/providers")["items"][0]
    for shown in (provider, anna.good("GET", f"/providers/{provider['id']}")):
        assert shown["api_key"] == f"****{KEY[-4:]}"


def test_a_short_key_is_not_shown_whole(anna: ApiClient) -> None:
    body = {"name": "short", "provider_type": "openai", "api_key": "abc"}
    created = anna.good("POST", "/providers", json=body)
    assert "abc" not in created["api_key"]
    assert created["api_key"]
    anna.good("DELETE", f"/providers/{created['id']}")


def test_a_masked_key_sent_back_is_not_taken_for_a_key(anna: ApiClient, upstream: ScriptedProvider) -> None:
    provider = anna.good("GET", "/providers")["items"][0]
    path = f"/providers/{provider['id']}"
    anna.ask("PUT", path, json={"name": "renamed", "api_key": provider["api_key"]})
    assert anna.good("GET", path)["api_key"] == provider["api_key"]
    assert anna.good("POST", f"{path}/test")["ok"] is True
    keys = [each.headers.get("authorization") for each in upstream.requests]
    assert set(keys) <= {f"Bearer {KEY}"}


def test_a_new_address_drops_the_key(anna: ApiClient, upstream: ScriptedProvider) -> None:
    default = anna.good("GET", "/providers")["items"][0]["id"]
    provider_id = connect(anna, upstream)
    moved = anna.good("PUT", f"/providers/{provider_id}", json={"base_url": "https://models.example/v1"})
    assert moved["api_key"] == ""
    anna.good("PUT", f"/providers/{default}", json={"is_default": True})
    anna.good("DELETE", f"/providers/{provider_id}")


def test_a_key_that_the_upstream_repeats_is_in_no_answer_stream_or_log(
    anna: ApiClient, server: ServerProcess, upstream: ScriptedProvider
) -> None:
    conversation_id = anna.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": conversation_id, "content": "refuse this"}
    failure = anna.bad("POST", "/messages", 502, json=body)
    assert set(failure["detail"]) >= {"kind", "run_id", "message_id"}
    with stream_message(anna, conversation_id, "refuse this") as stream:
        frames = stream.read_to_end()
    assert KEY not in json.dumps(frames)
    assert {frame["type"] for frame in frames} >= {"run", "error", "done"}
    run = anna.good("GET", f"/runs/{failure['detail']['run_id']}")
    assert run["status"] == "failed"
    assert KEY not in json.dumps(anna.state())
    log = anna.good("GET", f"/runs/{run['id']}/events", headers={"accept": "application/json"})
    assert KEY not in json.dumps(log)
    used = [each.headers["authorization"] for each in upstream.requests if each.method == "POST"]
    assert f"Bearer {KEY}" in used


def test_no_secret_is_in_the_log_or_at_rest(
    server: ServerProcess, document: Document, anna: ApiClient, admin: ApiClient
) -> None:
    anna.bad(
        "POST", "/auth/login", 401, json={"username": anna.user["username"], "password": "a-wrong-password-9"}
    )
    anna.bad("POST", "/providers", 400, json={"name": "x", "api_key": KEY, "nonsense": KEY})
    anna.bad("PUT", "/settings", 400, json={"temperature": "x", "system_prompt": KEY})
    secrets = (KEY, PASSWORD, ADMIN_PASSWORD, "a-wrong-password-9", anna.token, anna.refresh_token)
    for secret in secrets:
        assert secret not in server.output
    files = [path for path in Path(server.data_dir).rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {"luxx.db", "secret_key"}
    for path in files:
        content = path.read_bytes()
        for secret in secrets:
            assert secret.encode() not in content, path.name
    assert (server.data_dir / "secret_key").stat().st_mode & 0o777 == 0o600


def test_unreadable_bodies_are_not_repeated_in_the_log(anna: ApiClient, server: ServerProcess) -> None:
    anna.bad("POST", "/providers", 400, content=b'{"api_key": "' + KEY.encode() + b'"')
    assert KEY not in server.output
