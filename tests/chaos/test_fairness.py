"""A user with a hundred queued runs and a user with one: the second does not wait for the hundred."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_environment import free_port
from scenarios.client import AsyncApiClient

from chaos.cluster import Cluster
from chaos.postgres import Postgres
from chaos.round_robin_client import RoundRobinClient, until
from luxx.providers.scripted import Gate, Pause, Rule, Script, ScriptedProvider, Text, When

PLACES = 2
QUEUED = 100
RUN_SECONDS = 1.5
SLACK_SECONDS = 1.0
"""An allowance for a busy machine, in addition to the length of one run."""


@pytest.fixture
def model_port() -> int:
    """Chosen before the model starts, because the server must allow its address when it starts."""
    return free_port()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.long, id="postgresql-short")])
def two_slot_cluster(request: pytest.FixtureRequest, tmp_path: Path, model_port: int) -> Iterator[Cluster]:
    """A server with few slots: one process on SQLite, two on PostgreSQL."""
    environment = {
        "LUXX_LIMITS__CONCURRENT_RUNS": str(PLACES),
        "LUXX_LIMITS__CONCURRENT_RUNS_PER_USER": str(PLACES),
        "LUXX_LIMITS__QUEUED_RUNS_PER_USER": str(QUEUED),
        "LUXX_PROVIDERS__ALLOW_PRIVATE": f"127.0.0.1:{model_port}",
    }
    if request.param == "sqlite":
        cluster = Cluster(request.getfixturevalue("sqlite_folder"), environment=environment)
    else:
        postgres: Postgres = request.getfixturevalue("postgres")
        cluster = Cluster(tmp_path, postgres.new_database(), webs=2, environment=environment)
    with cluster:
        yield cluster


async def register_user(name: str, url: str) -> RoundRobinClient:
    """Registers a new user. Returns the user's client."""
    somebody = RoundRobinClient(url, "nobody")
    account = {"username": name, "password": "a-password-of-a-test-1"}
    somebody.token = (await somebody.post("/auth/register", account))["access_token"]
    return somebody


async def fill(somebody: AsyncApiClient, provider_id: int, count: int) -> list[str]:
    """Sends this many messages, each in a new conversation. Returns their runs."""

    async def one() -> str:
        conversation_id = (await somebody.post("/conversations", {"provider_id": provider_id}))["id"]
        return (await somebody.start_run(conversation_id, "one of many"))["id"]

    runs: list[str] = []
    for _ in range(0, count, 10):
        runs += await asyncio.gather(*(one() for _ in range(10)))
    return runs


async def test_a_single_queued_run_starts_within_one_run_of_a_user_with_a_hundred(
    two_slot_cluster: Cluster, model_port: int
) -> None:
    many = Rule(name="many", when=When(user="many"), reply=[Pause(seconds=RUN_SECONDS), Text(text="One.")])
    single = Rule(name="single", when=When(user="single"), reply=[Gate(name="single"), Text(text="Two.")])

    async with ScriptedProvider(Script(rules=[many, single]), port=model_port) as model:
        ann, ben = (
            await register_user("ann", two_slot_cluster.url),
            await register_user("ben", two_slot_cluster.url),
        )
        async with ann, ben:
            anns, bens = await ann.connect(model.url), await ben.connect(model.url)
            conversation_id = (await ben.post("/conversations", {"provider_id": bens}))["id"]
            runs = await fill(ann, anns, QUEUED)
            assert len(set(runs)) == QUEUED
            begun = time.monotonic()
            run = await ben.start_run(conversation_id, "a single one")
            assert run["status"] == "queued"
            # Requests at the model would not do: a run that was claimed before may ask it later.
            waiting = await count_queued(ann)
            await model.reached("single", RUN_SECONDS + SLACK_SECONDS)
            overtook = waiting - await count_queued(ann)
            print(f"{QUEUED - waiting} had begun before, {overtook} overtook")
            print(f"began after {time.monotonic() - begun:.2f} s")
            assert overtook <= PLACES
            model.release("single")
            screen = await ben.wait_for_end(run["id"])
            assert screen.text == "Two."
            await ended_all(ann, runs)


async def ended_all(ann: RoundRobinClient, runs: list[str]) -> None:
    """Cancels the waiting runs, which costs no model call, and waits until all have ended."""
    for run_id in reversed(runs):
        assert (await ann.ask_until_answered("POST", f"/runs/{run_id}/cancel")).status_code in (200, 409)
    for status in ("queued", "running"):
        async with asyncio.timeout(10):
            await until(lambda status=status: none_of(ann, status))


async def count_queued(ann: RoundRobinClient) -> int:
    return (await ann.get("/runs", status="queued"))["total"]


async def none_of(ann: RoundRobinClient, status: str) -> bool:
    return not (await ann.get("/runs", status=status))["total"]
