"""`luxx agent list|show|export|import` against a real server."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from forked_luxx import run_luxx
from live_server import LiveServer, live_server, plain_environ, scripted_models

from luxx.providers.scripted import Script

WRITER = """version: 1
name: Writer
role: writes short texts
color: '#112233'
tools:
  - file_read
rules:
  - tool: shell_execute
    action: deny
system_prompt: |
  Write plainly.

  Name no colors.
"""
PASSWORD = "a-password-of-a-test-1"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    with (
        scripted_models(Script(rules=[])) as provider,
        live_server(tmp_path_factory.mktemp("server"), provider.url) as running,
    ):
        yield running


@pytest.fixture
def user(server: LiveServer, request: pytest.FixtureRequest) -> str:
    """The access token of a new user."""
    body = {"username": f"user{abs(hash(request.node.name))}"[:30], "password": PASSWORD}
    answer = httpx.post(f"{server.url}/auth/register", json=body, trust_env=False)
    assert answer.is_success, answer.text
    return str(answer.json()["data"]["access_token"])


def run(
    server: LiveServer, token: str, *arguments: str, given: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    env = plain_environ(LUXX_URL=server.url, LUXX_TOKEN=token, **environ)
    return run_luxx("agent", *arguments, cwd=server.folder, env=env, input=given)


def printed(server: LiveServer, token: str, *arguments: str, given: str = "") -> str:
    """What a command prints that must succeed."""
    finished = run(server, token, *arguments, given=given)
    assert (finished.returncode, finished.stderr) == (0, ""), finished
    return finished.stdout


def refusal(server: LiveServer, token: str, *arguments: str, given: str = "") -> str:
    """The sentence of a command that must be refused."""
    finished = run(server, token, *arguments, given=given)
    assert (finished.returncode, finished.stdout) == (1, ""), finished
    (line,) = finished.stderr.splitlines()
    return line.removeprefix("luxx: ")


def test_an_imported_agent_is_listed_shown_and_exported_as_it_was(
    server: LiveServer, user: str, tmp_path: Path
) -> None:
    agent_id, name = printed(server, user, "import", given=WRITER).split()
    assert name == "Writer"
    lines = [line.split("\t") for line in printed(server, user, "list").splitlines()]
    assert lines[0] == [agent_id, "Writer", "own", "writes short texts"]
    assert {(line[1], line[2]) for line in lines[1:]} == {(n, "shipped") for n in ("Basic", "Code", "Plan")}
    shown = printed(server, user, "show", "writer")
    assert f"id: {agent_id}\n" in shown
    assert "  Name no colors." in shown
    assert printed(server, user, "export", "Writer") == WRITER
    assert printed(server, user, "export", agent_id) == WRITER
    file = tmp_path / "writer.yaml"
    assert printed(server, user, "export", "Writer", "-o", str(file)) == ""
    assert file.read_text("utf-8") == WRITER
    as_json = printed(server, user, "export", "Writer", "--format", "json")
    assert json.loads(as_json)["rules"] == [{"tool": "shell_execute", "action": "deny"}]
    for source, given in ((str(file), ""), ("-", as_json)):
        copy = printed(server, user, "import", source, given=given).split()[0]
        assert printed(server, user, "export", copy) == WRITER


def test_a_name_of_several_agents_is_refused_with_their_ids(server: LiveServer, user: str) -> None:
    first = printed(server, user, "import", given=WRITER).split()[0]
    second = printed(server, user, "import", given=WRITER).split()[0]
    assert refusal(server, user, "show", "Writer") == (
        f"2 agents are named 'Writer'; name one by its id: {second}, {first}"
    )
    printed(server, user, "import", given=WRITER.replace("name: Writer", "name: writer"))
    assert "2 agents" in refusal(server, user, "export", "Writer"), "case decides before the number"
    assert "name: writer\n" in printed(server, user, "show", "writer")
    assert "3 agents" in refusal(server, user, "export", "WRITER")
    numbered = printed(server, user, "import", given=WRITER.replace("name: Writer", f"name: '{first}'"))
    assert numbered.split()[1] == first
    assert f"id: {first}\n" in printed(server, user, "show", first), "an id is meant before a name"


def test_all_agents_are_found_over_several_pages(server: LiveServer, user: str) -> None:
    oldest = printed(server, user, "import", given=WRITER).split()[0]
    headers = {"authorization": f"Bearer {user}"}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False) as client:
        for number in range(100):
            assert client.post("/agents", json={"name": f"agent {number}"}).is_success
    assert len(printed(server, user, "list").splitlines()) == 104
    assert f"id: {oldest}\n" in printed(server, user, "show", "Writer")


def test_wrong_input_is_one_sentence(server: LiveServer, user: str, tmp_path: Path) -> None:
    before = printed(server, user, "list")
    assert (
        refusal(server, user, "show", "Nobody") == "there is no agent 'Nobody'; `luxx agent list` lists yours"
    )
    assert "$.colour: unknown field" in refusal(server, user, "import", given=f"{WRITER}colour: red\n")
    assert "there is no tool named nothing" in refusal(
        server, user, "import", given=WRITER.replace("file_read", "nothing")
    )
    assert "not valid YAML" in refusal(server, user, "import", given="a: [")
    assert (
        refusal(server, user, "import", str(tmp_path / "none"))
        == f"{tmp_path}/none: No such file or directory"
    )
    assert "200,000 characters" in refusal(server, user, "import", given="#" * 800_001)
    assert refusal(server, user, "export", "Code", "-o", str(tmp_path)).endswith("Is a directory")
    assert run(server, user, "export", "Code", "--format", "xml").returncode == 2
    assert run(server, user, "delete", "Code").returncode == 2
    assert printed(server, user, "list") == before


def test_without_a_right_sign_in_nothing_is_shown(server: LiveServer, user: str) -> None:
    assert "sign in" in refusal(server, "nonsense", "list")
    finished = run(server, "", "list", "--username", "nobody", LUXX_PASSWORD="wrong-password")
    assert (finished.returncode, finished.stderr) == (1, "luxx: wrong username or password\n")
    finished = run(server, "", "list")
    assert finished.returncode == 0
    assert "signed in as admin with the default password" in finished.stderr
    assert "no server answers" in refusal(server, user, "list", "--url", "http://127.0.0.1:1")


def test_the_text_of_an_agent_cannot_control_the_terminal(server: LiveServer, user: str) -> None:
    printed(server, user, "import", given='version: 1\nname: "a\\u009b2Jb"\nsystem_prompt: "c\\e[2Jd"\n')
    shown = printed(server, user, "list") + printed(server, user, "show", "a\u009b2Jb")
    assert "\x1b" not in shown
    assert "\x9b" not in shown
    assert printed(server, user, "export", "a\u009b2Jb").count("\\e[2J") == 1
