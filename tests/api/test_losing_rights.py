"""A user who loses rights loses them at once in open streams, runs and tools, also by the command line."""

import itertools
import subprocess
import time
from collections.abc import Iterator

import pytest
from forked_luxx import run_luxx

from api.client import PASSWORD, ApiClient
from api.conftest import answering, connect
from api.schema import Document
from api.server_process import ServerProcess, environment
from api.streams import stream_run
from api.test_cut_streams import CUT_SECONDS, waiting_run
from luxx.providers.scripted import Call, Finish, Gate, Rule, ScriptedProvider, Text, When

WAYS_OF_DEMOTING = ["by an administrator", "by the command line", "not at all"]
numbers = itertools.count()


@pytest.fixture(scope="module")
def server(own_server: ServerProcess) -> ServerProcess:
    return own_server


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedProvider]:
    """A model that waits, and one that writes a file when the test opens its gate."""
    write = Call(name="file_write", arguments={"path": "a.txt", "content": "written"})
    rules = [
        Rule(when=When(has_tool_result=True), reply=[Text(text="So be it."), Finish()]),
        *(
            Rule(when=When(user=how), reply=[Text(text="I write"), Gate(name=how), write, Finish()])
            for how in WAYS_OF_DEMOTING
        ),
        Rule(when=When(user="wait here"), reply=[Text(text="I am"), Gate(name="waiting"), Finish()]),
    ]
    with answering(rules) as provider:
        yield provider


@pytest.fixture
def user(
    server: ServerProcess, document: Document, admin: ApiClient, upstream: ScriptedProvider
) -> Iterator[ApiClient]:
    """A user of level 3 with the scripted model."""
    with ApiClient(server, document).register(f"loser{next(numbers)}") as person:
        admin.good("PUT", f"/auth/users/{person.user['id']}", json={"permission_level": 3})
        person.sign_in(person.user["username"], PASSWORD)
        connect(person, upstream)
        yield person


def luxx(server: ServerProcess, *arguments: str, says: str = "") -> subprocess.CompletedProcess[str]:
    """Runs `luxx user …` on the database of the running server."""
    command = ("user", *arguments, "--data-dir", str(server.data_dir))
    return run_luxx(*command, cwd=server.folder, env=environment(server.folder), input=says)


def take_rights(how: str, admin: ApiClient, user: ApiClient, server: ServerProcess) -> None:
    path, name = f"/auth/users/{user.user['id']}", user.user["username"]
    match how:
        case "is deleted":
            admin.good("DELETE", path)
        case "gets another password":
            admin.good("POST", f"{path}/password", json={"new_password": PASSWORD + "-new"})
        case "is moved":
            tenant = admin.good("POST", "/admin/tenants", json={"name": f"other {next(numbers)}"})
            admin.good("PUT", path, json={"tenant_id": tenant["id"]})
        case "is disabled by the command line":
            assert luxx(server, "disable", name).returncode == 0
        case "is demoted by the command line":
            assert luxx(server, "level", name, "1").returncode == 0
        case "is deleted by the command line":
            assert luxx(server, "delete", name, "--yes").returncode == 0
        case _:
            assert luxx(server, "passwd", name, says=PASSWORD + "-new\n").returncode == 0


@pytest.mark.parametrize(
    "how",
    [
        "is deleted",
        "gets another password",
        "is moved",
        "is disabled by the command line",
        "is demoted by the command line",
        "is deleted by the command line",
        "gets another password by the command line",
    ],
)
def test_open_streams_end_within_5_seconds_when_the_user(
    how: str, user: ApiClient, admin: ApiClient, server: ServerProcess
) -> None:
    _talk, run_id = waiting_run(user)
    with stream_run(user, run_id) as stream:
        assert next(stream.frames())["type"] == "run"
        take_rights(how, admin, user, server)
        started = time.monotonic()
        stream.read_to_end()
        assert time.monotonic() - started < CUT_SECONDS
    if "demoted" in how:
        assert user.good("GET", f"/runs/{run_id}")["status"] == "running", "what may still run goes on"
        user.good("POST", f"/runs/{run_id}/cancel")
    else:
        user.bad("GET", f"/runs/{run_id}", 401)


@pytest.mark.parametrize("how", ["is disabled", "is moved", "is disabled by the command line"])
def test_runs_are_stopped_when_the_user(
    how: str, user: ApiClient, admin: ApiClient, server: ServerProcess
) -> None:
    _talk, run_id = waiting_run(user)
    path = f"/auth/users/{user.user['id']}"
    if how == "is disabled":
        admin.good("PUT", path, json={"is_active": False})
    else:
        take_rights(how, admin, user, server)
    admin.good("PUT", path, json={"is_active": True})
    user.sign_in(user.user["username"], PASSWORD)
    with stream_run(user, run_id) as stream:
        assert stream.until("done")["status"] == "stopped"
    assert user.good("GET", f"/runs/{run_id}")["status"] == "cancelled"


def test_a_user_with_a_long_conversation_and_a_run_is_deleted_whole(
    user: ApiClient, admin: ApiClient, server: ServerProcess, upstream: ScriptedProvider
) -> None:
    talk, _run_id = waiting_run(user)
    user.good("POST", "/conversations", json={"title": "another"})
    admin.good("DELETE", f"/auth/users/{user.user['id']}")
    admin.bad("GET", f"/auth/users/{user.user['id']}", 404)
    user.bad("GET", f"/conversations/{talk}", 401)
    user.bad("POST", "/auth/login", 401, json={"username": user.user["username"], "password": PASSWORD})
    assert "run_crashed" not in server.output
    assert "drive_failed" not in server.output


@pytest.mark.parametrize("how", WAYS_OF_DEMOTING)
def test_a_running_run_loses_the_tools_above_the_new_level_at_once(
    how: str, user: ApiClient, admin: ApiClient, server: ServerProcess, upstream: ScriptedProvider
) -> None:
    talk = user.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": talk, "content": how, "tools": ["file_write"]}
    run = user.good("POST", "/messages/stream", json=body, headers={"accept": "application/json"})
    match how:
        case "by an administrator":
            admin.good("PUT", f"/auth/users/{user.user['id']}", json={"permission_level": 1})
        case "by the command line":
            assert luxx(server, "level", user.user["username"], "1").returncode == 0
        case _:
            pass
    upstream.release(how)
    with stream_run(user, run["id"]) as stream:
        assert stream.until("done")["status"] == "completed"
    (answer, _question) = user.good("GET", f"/messages?conversation_id={talk}")["items"]
    (result,) = [step for step in answer["steps"] if step["type"] == "tool_result"]
    assert result["success"] is (how == "not at all")
    if how != "not at all":
        assert "permission level 2" in result["content"]
    exists = {"arguments": {"path": "a.txt"}}
    there = user.good("POST", "/tools/file_exists/execute", json=exists)
    assert ("true" in str(there["data"]).lower()) is (how == "not at all"), there


@pytest.mark.heavy
def test_the_command_line_adds_changes_lists_and_deletes(admin: ApiClient, server: ServerProcess) -> None:
    tenant = admin.good("POST", "/admin/tenants", json={"name": f"of the line {next(numbers)}"})
    name = f"line{next(numbers)}"
    added = luxx(server, "add", name, "--level", "2", "--tenant", tenant["name"], says=PASSWORD + "\n")
    assert added.stdout == f"added {name}, level 2\n", added.stderr
    for arguments, answer in (
        (("level", name, "4"), f"{name} has level 4 and is active\n"),
        (("disable", name), f"{name} has level 4 and is disabled\n"),
        (("enable", name.upper()), f"{name} has level 4 and is active\n"),
    ):
        assert luxx(server, *arguments).stdout == answer
    (line,) = luxx(server, "list", "--tenant", tenant["name"]).stdout.splitlines()
    assert line.split("\t")[1:] == [name, "level 4", "active", tenant["name"]]
    refused = luxx(server, "delete", name)
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
    assert "--yes" in refused.stderr
    assert luxx(server, "delete", name, "--yes").stdout == f"deleted {name}\n"
    for arguments in (
        ("level", name, "2"), ("delete", name, "--yes"), ("disable", "admin"), ("level", "admin", "3"),
        ("delete", "admin", "--yes"), ("list", "--tenant", "none such"),
        ("add", "another", "--tenant", "none such"),
    ):  # fmt: skip
        failed = luxx(server, *arguments, says=PASSWORD + "\n")
        assert (failed.returncode, failed.stderr.count("\n")) == (1, 1), failed
    admin.good("GET", "/auth/me")
    audit_entries = admin.good("GET", f"/admin/audit?tenant_id={tenant['id']}&page_size=100")["items"]
    actions = [(each["action"], each["username"]) for each in reversed(audit_entries)]
    by_line = [action for action, who in actions if who == "command line"]
    assert by_line == ["user_create", *["user_change"] * 4, "user_delete"]
