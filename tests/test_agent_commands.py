"""`luxx agent list|show|export|import` against a real server."""

import json
from pathlib import Path

import httpx
from api.server_process import ServerProcess
from command_line import printed, refusal, run

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


BROUGHT = "The document brought permission rules for turns of this agent: deny shell_execute(*)\n"


def imported(server: ServerProcess, token: str, *more: str, given: str) -> str:
    """What the import of a document with the rule of WRITER prints."""
    return printed(server, token, "agent", "import", *more, given=given, notice=BROUGHT)


def test_an_imported_agent_is_listed_shown_and_exported_as_it_was(
    plain_server: ServerProcess, new_user: str, tmp_path: Path
) -> None:
    agent_id, name = imported(plain_server, new_user, given=WRITER).split()
    assert name == "Writer"
    lines = [line.split("\t") for line in printed(plain_server, new_user, "agent", "list").splitlines()]
    assert lines[0] == [agent_id, "Writer", "own", "writes short texts"]
    assert {line[2] for line in lines[1:]} == {"shipped"}
    shown = printed(plain_server, new_user, "agent", "show", "writer")
    assert f"id: {agent_id}\n" in shown
    assert "  Name no colors." in shown
    assert printed(plain_server, new_user, "agent", "export", "Writer") == WRITER
    assert printed(plain_server, new_user, "agent", "export", agent_id) == WRITER
    file = tmp_path / "writer.yaml"
    assert printed(plain_server, new_user, "agent", "export", "Writer", "-o", str(file)) == ""
    assert file.read_text("utf-8") == WRITER
    as_json = printed(plain_server, new_user, "agent", "export", "Writer", "--format", "json")
    assert json.loads(as_json)["rules"] == [{"tool": "shell_execute", "action": "deny"}]
    for source, given in ((str(file), ""), ("-", as_json)):
        copy = imported(plain_server, new_user, source, given=given).split()[0]
        assert printed(plain_server, new_user, "agent", "export", copy) == WRITER


def test_a_name_of_several_agents_is_refused_with_their_ids(
    plain_server: ServerProcess, new_user: str
) -> None:
    first = imported(plain_server, new_user, given=WRITER).split()[0]
    second = imported(plain_server, new_user, given=WRITER).split()[0]
    assert refusal(plain_server, new_user, "agent", "show", "Writer") == (
        f"2 agents are named 'Writer'; name one by its id: {second}, {first}"
    )
    imported(plain_server, new_user, given=WRITER.replace("name: Writer", "name: writer"))
    assert "2 agents" in refusal(plain_server, new_user, "agent", "export", "Writer"), (
        "case decides before the number"
    )
    assert "name: writer\n" in printed(plain_server, new_user, "agent", "show", "writer")
    assert "3 agents" in refusal(plain_server, new_user, "agent", "export", "WRITER")
    numbered = imported(plain_server, new_user, given=WRITER.replace("name: Writer", f"name: '{first}'"))
    assert numbered.split()[1] == first
    assert f"id: {first}\n" in printed(plain_server, new_user, "agent", "show", first), (
        "an id is meant before a name"
    )


def test_all_agents_are_found_over_several_pages(plain_server: ServerProcess, new_user: str) -> None:
    oldest = imported(plain_server, new_user, given=WRITER).split()[0]
    headers = {"authorization": f"Bearer {new_user}"}
    with httpx.Client(base_url=plain_server.url, headers=headers, trust_env=False) as client:
        for number in range(100):
            assert client.post("/agents", json={"name": f"agent {number}"}).is_success
        project = client.post("/projects", json={"name": "Reports"}).json()["data"]["id"]
        assert client.post("/agents", json={"name": "Of it", "project_id": project}).is_success
    lines = printed(plain_server, new_user, "agent", "list").splitlines()
    assert len(lines) == 110
    assert lines[0].split("\t")[1:3] == ["Of it", f"project:{project}"]
    assert f"id: {oldest}\n" in printed(plain_server, new_user, "agent", "show", "Writer")


def test_wrong_input_is_one_sentence(plain_server: ServerProcess, new_user: str, tmp_path: Path) -> None:
    before = printed(plain_server, new_user, "agent", "list")
    assert (
        refusal(plain_server, new_user, "agent", "show", "Nobody")
        == "there is no agent 'Nobody'; `luxx agent list` lists yours"
    )
    assert "$.colour: unknown field" in refusal(
        plain_server, new_user, "agent", "import", given=f"{WRITER}colour: red\n"
    )
    assert "there is no tool named nothing" in refusal(
        plain_server, new_user, "agent", "import", given=WRITER.replace("file_read", "nothing")
    )
    assert "not valid YAML" in refusal(plain_server, new_user, "agent", "import", given="a: [")
    assert (
        refusal(plain_server, new_user, "agent", "import", str(tmp_path / "none"))
        == f"{tmp_path}/none: No such file or directory"
    )
    assert "200,000 characters" in refusal(plain_server, new_user, "agent", "import", given="#" * 800_001)
    assert refusal(plain_server, new_user, "agent", "export", "Code", "-o", str(tmp_path)).endswith(
        "Is a directory"
    )
    assert run(plain_server, new_user, "agent", "export", "Code", "--format", "xml").returncode == 2
    assert run(plain_server, new_user, "agent", "delete", "Code").returncode == 2
    assert printed(plain_server, new_user, "agent", "list") == before


def test_without_a_right_sign_in_nothing_is_shown(plain_server: ServerProcess, new_user: str) -> None:
    assert "sign in" in refusal(plain_server, "nonsense", "agent", "list")
    finished = run(plain_server, "", "agent", "list", "--username", "nobody", LUXX_PASSWORD="wrong-password")
    assert (finished.returncode, finished.stderr) == (1, "luxx: wrong username or password\n")
    finished = run(plain_server, "", "agent", "list")
    assert finished.returncode == 0
    assert "signed in as admin with the default password" in finished.stderr
    assert "no server answers" in refusal(
        plain_server, new_user, "agent", "list", "--url", "http://127.0.0.1:1"
    )


def test_the_text_of_an_agent_cannot_control_the_terminal(plain_server: ServerProcess, new_user: str) -> None:
    printed(
        plain_server,
        new_user,
        "agent",
        "import",
        given='version: 1\nname: "a\\u009b2Jb"\nsystem_prompt: "c\\e[2Jd"\n',
    )
    shown = printed(plain_server, new_user, "agent", "list") + printed(
        plain_server, new_user, "agent", "show", "a\u009b2Jb"
    )
    assert "\x1b" not in shown
    assert "\x9b" not in shown
    assert printed(plain_server, new_user, "agent", "export", "a\u009b2Jb").count("\\e[2J") == 1
