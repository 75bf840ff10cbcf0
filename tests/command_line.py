"""Runs `luxx` commands that use a server; the fixtures `plain_server` and `new_user` are in `conftest.py`."""

import subprocess
import uuid

import httpx
from api.server_process import ServerProcess
from forked_luxx import run_luxx
from process_environment import plain_environ

PASSWORD = "a-password-of-a-test-1"


def register(server: ServerProcess) -> tuple[str, str]:
    """A new user: the name and the access token."""
    name = f"user-{uuid.uuid4().hex[:12]}"
    body = {"username": name, "password": PASSWORD}
    answer = httpx.post(f"{server.url}/auth/register", json=body, trust_env=False)
    assert answer.is_success, answer.text
    return name, str(answer.json()["data"]["access_token"])


def run(
    server: ServerProcess, token: str, *arguments: str, given: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    env = plain_environ(LUXX_URL=server.url, LUXX_TOKEN=token, **environ)
    return run_luxx(*arguments, cwd=server.folder, env=env, input=given)


def printed(server: ServerProcess, token: str, *arguments: str, given: str = "", notice: str = "") -> str:
    """What a command prints that must succeed, with this notice on stderr."""
    finished = run(server, token, *arguments, given=given)
    assert (finished.returncode, finished.stderr) == (0, notice), finished
    return finished.stdout


def refusal(server: ServerProcess, token: str, *arguments: str, given: str = "", code: int = 1) -> str:
    """The sentence of a command that must be refused."""
    finished = run(server, token, *arguments, given=given)
    assert (finished.returncode, finished.stdout) == (code, ""), finished
    (line,) = finished.stderr.splitlines()
    return line.removeprefix("luxx: ")
