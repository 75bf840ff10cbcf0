"""A server is killed while it runs a subagent; another server of the same PostgreSQL continues it."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from api.server_process import ServerProcess
from store.databases import new_database

from luxx.providers.scripted import Counts, Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient
from scenarios.test_delegation import (
    CHILD,
    child,
    delegates,
    new_delegating_chat,
    parent,
    requests_of,
    results,
    subagents,
)

pytestmark = pytest.mark.heavy

SOON_SECONDS = 25.0


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, postgresql: str) -> Iterator[list[ServerProcess]]:
    folder: Path = tmp_path_factory.mktemp("delegation")
    with ExitStack() as hold:
        environment = {
            "LUXX_DATABASE__URL": new_database(postgresql, folder.name),
            "LUXX_APP__SECRET_KEY": "a secret that all servers of one database share, long enough",
            "LUXX_WORKSPACE__ROOT": str(folder / "workspaces"),
            "LUXX_RUNS__LEASE_SECONDS": "2",
            "LUXX_LIMITS__TOKENS_PER_RUN": "1000000",
            "LUXX_LIMITS__CONCURRENT_RUNS": "1",
        }
        yield [hold.enter_context(ServerProcess(folder / name, **environment)) for name in ("a", "b")]


async def test_another_server_continues_a_run_and_its_one_subagent(
    servers: list[ServerProcess],
) -> None:
    rules = [
        *parent(delegates(tools=[]), delegates("Second.", call_id="call-2", tools=[])),
        Rule(
            name="second",
            when=When(system=CHILD, user="Second"),
            reply=[Text(text="Two."), Counts(prompt=5, completion=5)],
        ),
        child(Text(text="Half "), Gate(name="killed here"), user="Count", call=1),
        child(Text(text="One."), user="Count"),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(servers[0].url) as ann:
        conversation = await new_delegating_chat(ann, model)
        run = await ann.start_run(conversation, tools=["delegate"])
        await model.reached("killed here")
        await ann.reconnect_to(servers[1].url)
        servers[0].kill()
        async with ann.follow(run["id"]) as stream:
            await stream.until("done", timeout=SOON_SECONDS)
        assert len(await subagents(ann, run["id"])) == 2
        results_by_call = await results(ann, conversation)
        assert (
            results_by_call["call-sub"]["data"]["answer"],
            results_by_call["call-2"]["data"]["answer"],
        ) == ("One.", "Two.")
        assert len(requests_of(model, "parent begins")) == len(requests_of(model, "parent ends")) == 1
