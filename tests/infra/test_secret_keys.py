"""The secret key of a real server: its length, a wrong key, and a safe change."""

import subprocess
from pathlib import Path

import httpx
import pytest
from api.server_process import ServerProcess, model_settings
from process_environment import plain_environ, scripted_models

from luxx.providers.scripted import Rule, Script, Text

SCRIPT = Script(rules=[Rule(name="any", reply=[Text(text="answered")])])
PASSWORD = "a-new-password-1"
FIRST, SECOND, THIRD = ("first-" * 6, "second-" * 6, "third-" * 6)
KEYED = {"LUXX_LLM__API_KEY": "sk-the-key-of-the-provider", "LUXX_ADMIN_PASSWORD": PASSWORD}


def luxx(folder: Path, secret: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    environ = plain_environ(
        LUXX_APP__SECRET_KEY=secret,
        LUXX_APP__PORT="0",
        LUXX_LOCAL__ENABLED="false",
        LUXX_TOOLS__SANDBOX="auto",
    )
    command = ["luxx", *arguments]
    return subprocess.run(
        command, cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False
    )


def sign_in(server: ServerProcess) -> str:
    body = {"username": "admin", "password": PASSWORD}
    answer = httpx.post(f"{server.url}/auth/login", json=body, timeout=30)
    assert answer.is_success, answer.text
    return answer.json()["data"]["access_token"]


def ask(server: ServerProcess) -> str:
    """An answer of the model, which needs the provider's sealed key."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        client.headers["Authorization"] = f"Bearer {sign_in(server)}"
        conversation = client.post("/conversations", json={}).json()["data"]["id"]
        answer = client.post("/messages", json={"conversation_id": conversation, "content": "hello"})
        assert answer.is_success, answer.text
        return answer.json()["data"]["text"]


def test_a_secret_key_under_32_bytes_stops_the_start_and_says_what_to_do(tmp_path: Path) -> None:
    started = luxx(tmp_path, "x" * 31, "serve")
    assert started.returncode == 1
    assert "app.secret_key: a secret key needs at least 32 bytes, this one has 31" in started.stderr
    assert "openssl rand -hex 32" in started.stderr
    assert "Traceback" not in started.stderr


@pytest.mark.heavy
def test_a_wrong_secret_key_is_detected_and_a_new_one_opens_values_of_the_previous_one(
    tmp_path: Path,
) -> None:
    with scripted_models(SCRIPT) as model:
        with ServerProcess(
            tmp_path, **model_settings(model.url), LUXX_APP__SECRET_KEY=FIRST, **KEYED
        ) as server:
            assert ask(server) == "answered"
            token = sign_in(server)

        refused = luxx(tmp_path, SECOND, "serve")
        assert refused.returncode == 1
        assert "app.secret_key does not match this database" in refused.stderr
        assert "Traceback" not in refused.stderr
        examined = luxx(tmp_path, SECOND, "doctor").stdout
        assert "BAD  secret key" in examined
        assert "app.previous_secret_keys" in examined

        changed = {"LUXX_APP__SECRET_KEY": SECOND, "LUXX_APP__PREVIOUS_SECRET_KEYS": FIRST}
        with ServerProcess(tmp_path, **model_settings(model.url), **changed, **KEYED) as server:
            with_old_token = httpx.get(
                f"{server.url}/auth/me", headers={"Authorization": f"Bearer {token}"}, timeout=30
            )
            assert with_old_token.status_code == 401
            assert ask(server) == "answered"
        with ServerProcess(
            tmp_path, **model_settings(model.url), LUXX_APP__SECRET_KEY=SECOND, **KEYED
        ) as server:
            assert ask(server) == "answered"
        assert luxx(tmp_path, FIRST, "serve").returncode == 1


@pytest.mark.heavy
def test_a_server_can_continue_after_its_secret_key_was_lost(tmp_path: Path) -> None:
    with scripted_models(SCRIPT) as model:
        with ServerProcess(
            tmp_path, **model_settings(model.url), LUXX_APP__SECRET_KEY=FIRST, **KEYED
        ) as server:
            assert ask(server) == "answered"
        refused = luxx(tmp_path, THIRD, "serve")
        assert "luxx migrate --forget-sealed-keys" in refused.stderr
        forgotten = luxx(tmp_path, THIRD, "migrate", "--forget-sealed-keys")
        assert "deleted 1 secrets" in forgotten.stdout, forgotten.stderr
        with ServerProcess(
            tmp_path, **model_settings(model.url), LUXX_APP__SECRET_KEY=THIRD, **KEYED
        ) as server:
            assert sign_in(server)


@pytest.mark.parametrize("command", ["serve", "doctor"])
def test_no_command_shows_a_secret_key(tmp_path: Path, command: str) -> None:
    output = luxx(tmp_path, "only-31-bytes-that-nobody-shows", command)
    assert output.returncode == 1
    assert "nobody-shows" not in output.stdout + output.stderr
