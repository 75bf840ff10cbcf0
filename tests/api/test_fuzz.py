"""Every operation of the document, asked by schemathesis: whatever it makes up, the answer is as described.

What it is told and what is left out, with reasons, stands in `schemathesis.toml`.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.client import ApiClient
from api.conftest import ASKS, connect
from api.server_process import ServerProcess
from luxx.providers.scripted import Call, Counts, Finish, Rule, Script, ScriptedProvider, Text, When

RULES = Path(__file__).with_name("schemathesis.toml")
SHOWN = 500
"""Characters of a line of the report: addresses may be very long."""

SECONDS = 3000
SOME_KNOWN = 0.5
"""How often an id is one that there is; else what is behind the first 404 would hardly be reached."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedProvider]:
    """A model that lists the files or asks back when it is asked to, and says hello to everything else."""
    use = [Call(name="file_list", arguments={}, id="call-1"), Counts(prompt=3, completion=2)]
    rules = [
        Rule(when=When(user="ask me", has_tool_result=False), reply=ASKS),
        Rule(when=When(user="use a tool", has_tool_result=False), reply=[*use, Finish(reason="tool_calls")]),
        Rule(reply=[Text(text="Hello there."), Counts(prompt=3, completion=2), Finish()]),
    ]
    provider = ScriptedProvider(Script(rules=rules))
    provider.__enter__()
    yield provider
    provider.__exit__(GeneratorExit, None, None)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its tokens outlive the longest test, and nobody is asked to slow down."""
    settings = {"LUXX_AUTH__ACCESS_MINUTES": "600", "LUXX_LIMITS__CONCURRENT_RUNS_PER_USER": "0"}
    with ServerProcess(tmp_path_factory.mktemp("fuzzed"), **settings) as running:
        yield running


def furnished(admin: ApiClient, upstream: ScriptedProvider) -> dict[str, str | int]:
    """Something of every kind that operations take ids of: what deletes one leaves the others."""
    provider_id = connect(admin, upstream)
    chats: list[str] = []
    messages: list[str] = []
    for _ in range(3):
        chat = admin.good("POST", "/conversations", json={})["id"]
        message = admin.good("POST", "/messages", json={"conversation_id": chat, "content": "use a tool"})
        chats.append(chat)
        messages.append(message["id"])
    asking = admin.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": asking, "content": "ask me"}
    run_id = admin.bad("POST", "/messages", 409, json=body)["detail"]["run_id"]
    question = admin.good("GET", f"/runs/{run_id}/questions")["items"][0]
    file = admin.good("POST", "/files", files={"file": ("a.txt", b"a")})
    members = [{"id": "list", "tool": "file_list"}]
    body = {"name": "lists", "description": "Lists.", "members": members}
    return {
        "composition_id": admin.good("POST", "/tools/compositions", json=body)["id"],
        "file_id": file["id"],
        "project_id": admin.good("POST", "/projects", json={"name": "p"})["id"],
        "conversation_id": chats[0],
        "message_id": messages[1],
        "run_id": run_id,
        "question_id": question["id"],
        "call_id": "call-1",
        "provider_id": provider_id,
    }


def rules_with(ids: dict[str, str | int], user_id: int) -> str:
    """The committed rules, the ids that this server happens to have, and the only user to be changed."""
    lines = [
        RULES.read_text("utf-8"),
        # Else it would switch off the asker or end its sign-in, once somebody else is an administrator.
        "[[operations]]",
        'include-name = ["PUT /auth/users/{user_id}", "DELETE /auth/users/{user_id}",',
        '  "POST /auth/users/{user_id}/password"]',
        f'parameters = {{ "path.user_id" = {user_id} }}\n',
    ]
    for name, value in ids.items():
        lines.append(f"[dictionaries.{name}]\nvalues = [{json.dumps(value)}]\n")
    lines.append("[parameters]")
    lines += [f'{name} = {{ dictionary = "{name}", probability = {SOME_KNOWN} }}' for name in ids]
    return "\n".join(lines)


def fuzz(
    server: ServerProcess,
    admin: ApiClient,
    upstream: ScriptedProvider,
    folder: Path,
    *,
    examples: int,
    seed: int,
) -> None:
    print(f"seed {seed}; FUZZ_SEED={seed} asks the same again")
    rules = folder / "rules.toml"
    with ApiClient(server, None).register(f"somebody{examples}") as somebody:
        rules.write_text(rules_with(furnished(admin, upstream), somebody.user["id"]), "utf-8")
    done = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            *("--config-file", str(rules), "run", f"{server.url}/openapi.json"),
            *("--header", f"Authorization: Bearer {admin.token}"),
            # Streams answer JSON then: how they stream is in the tests of journeys.
            *("--header", "Accept: application/json"),
            *("--checks", "all", "--suppress-health-check", "all"),
            *("--max-examples", str(examples), "--seed", str(seed)),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    shown = "\n".join(line[:SHOWN] for line in done.stdout.splitlines())
    assert done.returncode == 0, shown[-30_000:] + done.stderr[-3_000:]
    admin.good("GET", "/auth/me")
    assert "request_failed" not in server.output
    assert '"level":"error"' not in server.output


def seed_or(otherwise: int) -> int:
    return int(os.environ.get("FUZZ_SEED", otherwise))


@pytest.mark.long
@pytest.mark.timeout(600)
def test_short_whatever_is_asked_the_answer_is_as_described(
    server: ServerProcess, admin: ApiClient, upstream: ScriptedProvider, tmp_path: Path
) -> None:
    fuzz(server, admin, upstream, tmp_path, examples=10, seed=seed_or(1))


@pytest.mark.long
@pytest.mark.timeout(SECONDS)
def test_whatever_is_asked_a_hundred_times_the_answer_is_as_described(
    server: ServerProcess, admin: ApiClient, upstream: ScriptedProvider, tmp_path: Path
) -> None:
    seed = seed_or(random.randrange(2**32))
    fuzz(server, admin, upstream, tmp_path, examples=100, seed=seed)
