"""`luxx mcp list|add|test|login|tools` against a real server and real MCP servers."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from api.server_process import ServerProcess, model_settings
from command_line import printed, refusal, register, run
from forked_luxx import ForkedProcess
from mcp_servers.oauth_server import OAuthServer
from mcp_servers.remote_server import RemoteMcp
from process_environment import plain_environ, scripted_models

from luxx.providers.scripted import Call, Rule, Script, Text, When

ASKS = Call(name="mcp__u2_people__who_am_i", arguments={})
SCRIPT = Script(
    rules=[Rule(when=When(has_tool_result=False), reply=[ASKS]), Rule(reply=[Text(text="Done.")])]
)
LOGIN_SECONDS = 30.0


@pytest.fixture
def writer(plain_server: ServerProcess, new_user: str) -> str:
    """The access token of a user of level 2, who may add servers."""
    with httpx.Client(base_url=plain_server.url, trust_env=False) as client:
        me = client.get("/auth/me", headers={"authorization": f"Bearer {new_user}"}).json()["data"]
        as_admin(client)
        body = {"permission_level": 2}
        client.put(f"/auth/users/{me['id']}", json=body).raise_for_status()
    return new_user


def as_admin(client: httpx.Client) -> None:
    body = {"username": "admin", "password": "admin123"}
    signed_in = client.post("/auth/login", json=body).raise_for_status().json()["data"]
    client.headers["authorization"] = f"Bearer {signed_in['access_token']}"


def allow(server: ServerProcess, *ports: int) -> None:
    """Lets the server reach these ports of this machine."""
    with httpx.Client(base_url=server.url, trust_env=False) as client:
        as_admin(client)
        client.put(
            "/admin/allowed-hosts", json={"hosts": [f"127.0.0.1:{port}" for port in ports]}
        ).raise_for_status()


@pytest.fixture(scope="module")
def notes(plain_server: ServerProcess) -> Iterator[RemoteMcp]:
    with RemoteMcp() as running:
        allow(plain_server, running.port)
        yield running


def test_servers_are_added_listed_tested_and_their_tools_shown(
    plain_server: ServerProcess, writer: str, notes: RemoteMcp
) -> None:
    def luxx(*arguments: str) -> list[str]:
        return printed(plain_server, writer, "mcp", *arguments).splitlines()

    url = f"{notes.url}/mcp"
    assert luxx("list") == []
    added = ["notes", "user", "ready", "4 tools", url]
    assert luxx("add", url, "--name", "notes") == ["\t".join(added)]
    assert luxx("list") == ["\t".join(added)]
    assert luxx("test", "notes") == ["\t".join(added)]
    luxx("add", f"{notes.url}/old/mcp", "--name", "kept")
    kept = luxx("test", "kept")[0].split("\t")
    assert kept[-1].startswith("in the process "), "the older revision keeps a state"
    tools = {line.split("\t")[0]: line.split("\t")[1:] for line in luxx("tools", "notes")}
    assert tools["add"][1:] == ["reads", "Adds two numbers."]
    assert tools["add"][0].endswith("_notes__add")
    assert tools["keep"][1] == "changes"
    assert luxx("login", "notes") == ["notes needs no sign-in"]
    gone = run(plain_server, writer, "mcp", "add", f"{notes.url}/gone", "--name", "gone")
    assert (gone.returncode, gone.stdout.split("\t")[:3]) == (1, ["gone", "user", "failed"])
    assert run(plain_server, writer, "mcp", "test", "gone").returncode == 1
    for arguments, reason in (
        (("add", url, "--name", "notes"), "notes"),
        (("add", url, "--name", "other", "--tenant"), "ADMIN"),
        (("add", "--name", "other", "--", "python3", "/opt/server.py"), "ADMIN"),
        (("add", "python3"), "give --name"),
        (("add", url, "python3"), "an address stands alone"),
        (
            ("add", url, "--name", "other", "--header", "X=NO_SUCH_VARIABLE"),
            "'NO_SUCH_VARIABLE' is not set",
        ),
        (("add", url, "--project", "Garden"), "there is no project 'Garden'"),
        (("add", "https:///mcp"), "has no host"),
        (("tools", "nothing"), "there is no MCP server 'nothing'; yours: gone, kept, notes"),
    ):
        assert reason in refusal(plain_server, writer, "mcp", *arguments), arguments
    assert "1 to 300" in refusal(plain_server, writer, "mcp", "login", "notes", "--wait", "0", code=2)


def test_a_person_signs_in_with_a_browser_and_a_chat_waits_for_it(tmp_path: Path) -> None:
    with OAuthServer() as people, scripted_models(SCRIPT) as model:
        settings = model_settings(model.url) | {
            "LUXX_AUTH__DEFAULT_PERMISSION_LEVEL": "3",
            "LUXX_PROVIDERS__ALLOW_PRIVATE": json.dumps(
                [f"127.0.0.1:{people.port}", model.url.removeprefix("http://")]
            ),
        }
        with ServerProcess(tmp_path, **settings) as server:
            _name, token = register(server)
            headers = {"authorization": f"Bearer {token}"}
            with httpx.Client(base_url=server.url, headers=headers, trust_env=False) as client:
                sign_in_and_chat(server, token, client, people)


def sign_in_and_chat(server: ServerProcess, token: str, client: httpx.Client, people: OAuthServer) -> None:
    def agree(address: str) -> None:
        """As the page to which the browser comes back does."""
        client.post("/mcp/oauth/complete", json=people.agree(address)).raise_for_status()

    assert run(server, token, "mcp", "add", people.url, "--name", "people").stdout.startswith(
        "people\tuser\t"
    )
    environ = plain_environ(LUXX_URL=server.url, LUXX_TOKEN=token)
    login = ForkedProcess(["mcp", "login", "people"], server.folder, environ)
    with login.stdout as lines:
        assert lines.readline() == "open this address in a browser:\n"
        agree(lines.readline().strip())
        assert login.wait(LOGIN_SECONDS) == 0
        assert lines.readline().split("\t")[:4] == ["people", "user", "ready", "2 tools"]
    client.post("/mcp/servers/people/disconnect").raise_for_status()
    late = run(server, token, "mcp", "login", "people", "--wait", "1")
    assert (late.returncode, "nobody signed in within 1 seconds" in late.stderr) == (1, True)
    asked = run(server, token, "chat", "--tools", "Who am I?")
    assert (asked.returncode, asked.stdout) == (3, "")
    [address] = re.findall(r"open this address in a browser: (\S+)", asked.stderr)
    agree(address)
    followed = run(server, token, "chat", "--continue")
    assert (followed.returncode, followed.stdout) == (0, "Done.\n"), followed
