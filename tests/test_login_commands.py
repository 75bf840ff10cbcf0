"""`luxx login` and `luxx logout`, and how the other commands use what they store."""

import json
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from api.server_process import ServerProcess
from command_line import PASSWORD, register, run
from forked_luxx import run_luxx
from process_environment import plain_environ
from screen_terminal import ScreenTerminal

from luxx.domain.accounts.authentication import Claims, claims_of, signed_token
from luxx.infra.secrets import derive_key

FILE = Path("luxx") / "sign-ins.json"
Luxx = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def luxx(plain_server: ServerProcess, tmp_path: Path) -> Luxx:
    """Runs a command as a user whose files are in `tmp_path`."""

    def run_command(*arguments: str, given: str = "", **environ: str) -> "subprocess.CompletedProcess[str]":
        env = plain_environ(LUXX_URL=plain_server.url, XDG_CONFIG_HOME=str(tmp_path)) | environ
        return run_luxx(*arguments, cwd=plain_server.folder, env=env, input=given)

    return run_command


def stored(folder: Path) -> dict[str, Any]:
    return json.loads((folder / FILE).read_text("utf-8"))["servers"]


def expire(server: ServerProcess, folder: Path) -> None:
    """Replaces the stored access token by one that has expired."""
    secret = (server.folder / "data" / "secret_key").read_text("utf-8").strip()
    key = derive_key(secret, "tokens")
    file = json.loads((folder / FILE).read_text("utf-8"))
    sign_in = file["servers"][server.url]
    claims = claims_of(sign_in["access_token"], key, Claims)
    old = msgspec.structs.replace(claims, iat=claims.iat - 7200, exp=claims.exp - 7200)
    sign_in["access_token"] = signed_token(old, key)
    (folder / FILE).write_text(json.dumps(file), "utf-8")


def test_a_sign_in_is_kept_in_a_private_file_and_used_by_all_commands(
    plain_server: ServerProcess, luxx: Luxx, tmp_path: Path
) -> None:
    name, _ = register(plain_server)
    finished = luxx("login", "--username", name, given=f"{PASSWORD}\n")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout == f"signed in to {plain_server.url} as {name}; `luxx logout` ends it\n"
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "luxx").stat().st_mode) == 0o700
    assert PASSWORD not in (tmp_path / FILE).read_text("utf-8")
    for command in (("agent", "list"), ("key", "list"), ("room", "list"), ("task", "list")):
        used = luxx(*command)
        assert (used.returncode, used.stderr) == (0, ""), used
    elsewhere = luxx("agent", "list", XDG_CONFIG_HOME=str(tmp_path / "other"))
    assert "signed in as admin with the default password" in elsewhere.stderr, "without the file: as before"


def test_signing_out_ends_the_sign_in_on_the_server_and_deletes_it_here(
    plain_server: ServerProcess, luxx: Luxx, tmp_path: Path
) -> None:
    name, _ = register(plain_server)
    luxx("login", "--username", name, LUXX_PASSWORD=PASSWORD)
    token = stored(tmp_path)[plain_server.url]["access_token"]
    assert luxx("logout").stdout == f"signed out of {plain_server.url}\n"
    assert stored(tmp_path) == {}
    assert run(plain_server, token, "agent", "list").returncode == 1
    again = luxx("logout")
    assert (again.returncode, again.stderr) == (1, f"luxx: you are not signed in to {plain_server.url}\n")


@pytest.mark.heavy
def test_a_personal_api_key_is_kept_like_a_sign_in(
    plain_server: ServerProcess, new_user: str, luxx: Luxx, tmp_path: Path
) -> None:
    key = run(plain_server, new_user, "key", "create", "laptop").stdout.strip()
    assert luxx("login", "--key", given=f"{key}\n").returncode == 0
    assert luxx("key", "list").stdout.split("\t")[1] == "laptop"
    assert "the API key itself stays valid" in luxx("logout").stdout
    assert run(plain_server, key, "key", "list").returncode == 0
    wrong = luxx("login", "--key", "luxx_wrong")
    assert (wrong.returncode, wrong.stdout, wrong.stderr.count("\n")) == (1, "", 1)
    assert stored(tmp_path) == {}


def test_an_expired_sign_in_is_refreshed_and_stored_again(
    plain_server: ServerProcess, luxx: Luxx, tmp_path: Path
) -> None:
    name, _ = register(plain_server)
    luxx("login", "--username", name, LUXX_PASSWORD=PASSWORD)
    before = stored(tmp_path)[plain_server.url]
    expire(plain_server, tmp_path)
    used = luxx("agent", "list")
    assert (used.returncode, used.stderr) == (0, ""), used
    after = stored(tmp_path)[plain_server.url]
    assert after["refresh_token"] != before["refresh_token"]
    assert luxx("agent", "list").returncode == 0


@pytest.mark.heavy
def test_a_sign_in_that_has_ended_is_one_sentence_that_says_what_to_do(
    plain_server: ServerProcess, luxx: Luxx, tmp_path: Path
) -> None:
    name, _ = register(plain_server)
    luxx("login", "--username", name, LUXX_PASSWORD=PASSWORD)
    token = stored(tmp_path)[plain_server.url]["access_token"]
    headers = {"authorization": f"Bearer {token}"}
    assert httpx.post(f"{plain_server.url}/auth/logout", headers=headers, trust_env=False).is_success
    used = luxx("agent", "list")
    sentence = f"your sign-in to {plain_server.url} has ended; sign in again with `luxx login --url"
    assert (used.returncode, used.stderr) == (1, f"luxx: {sentence} {plain_server.url}`\n")
    assert luxx("logout").returncode == 0


def test_wrong_input_is_one_sentence_and_keeps_nothing(
    plain_server: ServerProcess, luxx: Luxx, tmp_path: Path
) -> None:
    for given, reason in (
        (luxx("login", "--username", "nobody", given="wrong-password\n"), "wrong username or password"),
        (luxx("login", "--username", "nobody"), "there is no password; type it, or write it to stdin"),
        (luxx("login"), "there is no username; give --username, or an API key with --key"),
        (luxx("login", "--key"), "there is no API key; type it, or write it to stdin"),
        (luxx("login", "--url", "nonsense"), "'nonsense' is not a URL"),
        (
            luxx("login", "--url", "http://127.0.0.1:1", "--key", "k"),
            "no server answers at http://127.0.0.1:1",
        ),
    ):
        assert (given.returncode, given.stdout, given.stderr.count("\n")) == (1, "", 1), given
        assert reason in given.stderr
    assert not (tmp_path / FILE).exists()
    (tmp_path / "luxx").mkdir(exist_ok=True)
    (tmp_path / FILE).write_text("{", "utf-8")
    broken = luxx("agent", "list")
    assert (broken.returncode, broken.stderr.count("\n")) == (1, 1)
    assert f"{tmp_path / FILE} cannot be read; delete it" in broken.stderr


@pytest.mark.heavy
def test_the_server_is_the_one_of_the_configuration_unless_another_is_named(
    plain_server: ServerProcess, luxx: Luxx, tmp_path: Path
) -> None:
    port = httpx.URL(plain_server.url).port
    file = tmp_path / "config.yaml"
    file.write_text(f"app:\n  port: {port}\n", "utf-8")
    found = luxx("login", "--config", str(file), "--key", "luxx_wrong", LUXX_URL="")
    assert "no server answers" not in found.stderr
    assert luxx("agent", "list", "--config", str(file), LUXX_URL="").returncode == 0
    set_by_variable = luxx("agent", "list", LUXX_URL="", LUXX_APP__PORT=str(port))
    assert set_by_variable.returncode == 0
    named = luxx("agent", "list", "--config", str(file), LUXX_URL="http://127.0.0.1:1")
    assert "no server answers at http://127.0.0.1:1;" in named.stderr
    file.write_text("app:\n  port: far\n", "utf-8")
    assert str(file) in luxx("agent", "list", "--config", str(file), LUXX_URL="").stderr


def test_a_password_is_asked_for_at_a_terminal_and_not_shown(
    plain_server: ServerProcess, tmp_path: Path
) -> None:
    name, _ = register(plain_server)
    terminal = ScreenTerminal("login", url=plain_server.url, cwd=tmp_path, XDG_CONFIG_HOME=str(tmp_path))
    terminal.expect("username:")
    terminal.type(f"{name}\r")
    terminal.expect("password:")
    terminal.type(f"{PASSWORD}\r")
    terminal.expect(f"signed in to {plain_server.url} as {name}")
    assert terminal.end() == 0
    assert PASSWORD not in terminal.shown
    assert plain_server.url in stored(tmp_path)
