"""Every operation of the document, called by schemathesis with generated input: the answers match the
document.

`schemathesis.toml` has its settings, and which operations are left out and why.
"""

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from api.client import ApiClient, document_of
from api.conftest import ASKS, answering, connect
from api.owned_ids import ID_KINDS
from api.schema import Document
from api.server_process import ServerProcess
from luxx.providers.scripted import Call, Counts, Finish, Rule, ScriptedProvider, Text, When

RULES = Path(__file__).with_name("schemathesis.toml")
SHOWN = 500
"""Characters of a report line that are printed: addresses may be very long."""

SECONDS = 3000
SOME_KNOWN = 0.5
"""The share of ids that exist. With random ids alone, most requests would end in 404."""


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedProvider]:
    """A model that lists files or asks a question on demand, and answers hello to everything else."""
    use = [Call(name="file_list", arguments={}, id="call-1"), Counts(prompt=3, completion=2)]
    rules = [
        Rule(when=When(user="ask me", has_tool_result=False), reply=ASKS),
        Rule(when=When(user="use a tool", has_tool_result=False), reply=[*use, Finish(reason="tool_calls")]),
        Rule(reply=[Text(text="Hello there."), Counts(prompt=3, completion=2), Finish()]),
    ]
    with answering(rules) as provider:
        yield provider


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    """Access tokens outlive the longest test, and requests are not rate-limited."""
    settings = {"LUXX_AUTH__ACCESS_MINUTES": "600", "LUXX_LIMITS__CONCURRENT_RUNS_PER_USER": "0"}
    with ServerProcess(tmp_path / "fuzzed", **settings) as running:
        yield running


@pytest.fixture
def admin(server: ServerProcess, upstream: ScriptedProvider) -> Iterator[ApiClient]:
    """The operator, who has allowed the scripted provider's address."""
    with ApiClient(server, document_of(server)).sign_in() as person:
        host = upstream.url.removeprefix("http://")
        person.good("PUT", "/admin/allowed-hosts", json={"hosts": [host]})
        yield person


def sample_ids(admin: ApiClient, upstream: ScriptedProvider) -> dict[str, str | int]:
    """Creates several of everything that operations take ids of, so that deleting one leaves others."""
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
    agent = admin.good("POST", "/agents", json={"name": "Writer", "tools": ["file_list"]})
    room = {"title": "Talk", "task": "Discuss.", "agents": [{"name": "A"}, {"agent_id": agent["id"]}]}
    room = admin.good("POST", "/chat-rooms", json=room)
    task = {"name": "t", "goal": "g", "steps": [{"id": "step", "name": "s"}]}
    tasks = [admin.good("POST", "/tasks", json=task)["id"] for _ in range(3)]
    ids: dict[str, str | int] = {
        "agent_id": agent["id"],
        "task_id": tasks[0],
        "step_id": "step",
        "conversation_id": chats[0],
        "message_id": messages[1],
        "run_id": run_id,
        "question_id": question["id"],
        "call_id": "call-1",
        "provider_id": provider_id,
        "room_id": room["id"],
        "seat_id": room["agents"][0]["id"],
    }
    document = Document(admin.good_document())
    named = {name for operation in document.operations for name in operation.names("path")}
    # In the order of the table: some are made of those before.
    for name, kind in ID_KINDS.items():
        if name in named and name.endswith("_id") and name not in (*ids, "user_id"):
            ids[name] = kind.make(admin, ids, "sample")
    return ids


def rules_with(ids: dict[str, str | int], user_id: int) -> str:
    """The committed rules plus the ids of this server and the only user that may be changed."""
    lines = [
        RULES.read_text("utf-8"),
        # Otherwise, once there is another administrator, it would disable the caller or end its sign-in.
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
    paths: str = "/",
) -> None:
    """`paths`: a regular expression of the paths whose operations are called."""
    print(f"seed {seed}; FUZZ_SEED={seed} asks the same again")
    rules = folder / "rules.toml"
    with ApiClient(server, None).register("somebody") as somebody:
        rules.write_text(rules_with(sample_ids(admin, upstream), somebody.user["id"]), "utf-8")
    finished = subprocess.run(
        [
            str(Path(sys.executable).with_name("schemathesis")),
            *("--config-file", str(rules), "run", f"{server.url}/openapi.json"),
            *("--header", f"Authorization: Bearer {admin.token}"),
            # Streams then answer JSON; the scenario tests check how they stream.
            *("--header", "Accept: application/json"),
            *("--checks", "all", "--suppress-health-check", "all"),
            *("--max-examples", str(examples), "--seed", str(seed)),
            *("--include-path-regex", paths),
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    shown = "\n".join(line[:SHOWN] for line in finished.stdout.splitlines())
    assert finished.returncode == 0, shown[-30_000:] + finished.stderr[-3_000:]
    admin.good("GET", "/auth/me")
    assert "request_failed" not in server.output
    assert '"level":"error"' not in server.output


def seed_or(otherwise: int) -> int:
    return int(os.environ.get("FUZZ_SEED", otherwise))


# Two halves, so that two workers share the time.
@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("paths", ["^/[a-k]", "^/([^a-k]|$)"], ids=["a to k", "others"])
def test_short_answers_to_generated_requests_match_the_document(
    server: ServerProcess, admin: ApiClient, upstream: ScriptedProvider, tmp_path: Path, paths: str
) -> None:
    fuzz(server, admin, upstream, tmp_path, examples=2, seed=seed_or(1), paths=paths)


@pytest.mark.long
@pytest.mark.timeout(SECONDS)
def test_answers_to_a_hundred_generated_requests_match_the_document(
    server: ServerProcess, admin: ApiClient, upstream: ScriptedProvider, tmp_path: Path
) -> None:
    seed = seed_or(random.randrange(2**32))
    fuzz(server, admin, upstream, tmp_path, examples=100, seed=seed)
