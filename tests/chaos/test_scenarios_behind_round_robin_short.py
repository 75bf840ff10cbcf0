"""The scenarios of one server once more, with several processes behind a round robin: they must not notice
it.

Scenarios that end their own server are left out; other modules of this folder test the clients of ended
processes.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
import scenarios.test_cancelling
import scenarios.test_gemini
import scenarios.test_pausing_providers
import scenarios.test_reconnecting
import scenarios.test_streaming
from scenarios.client import AsyncApiClient

from chaos.cluster import Cluster
from chaos.postgres import Postgres
from chaos.round_robin_client import RoundRobinClient

pytestmark = pytest.mark.long

SCENARIO_FIXTURES = frozenset({"server"})
"""Fixtures of a scenario that only uses its server; its other arguments are parameters."""


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with the settings of the one server, whose clients reach another process each time."""
    folder = tmp_path_factory.mktemp("round-robin")
    environment = {"LUXX_TOOLS__MAX_ITERATIONS": "3"}
    with (
        pytest.MonkeyPatch.context() as patch,
        Cluster(folder, postgres.new_database(), webs=2, workers=2, environment=environment) as cluster,
    ):
        patch.setattr(AsyncApiClient, "_make", staticmethod(RoundRobinClient._make))
        yield cluster
        assert min(cluster.proxy.taken.values()) > 0


def scenarios_in(*modules: Any) -> dict[str, Any]:
    tests_by_name: dict[str, Any] = {}
    for module in modules:
        for name, test in vars(module).items():
            if not name.startswith("test_"):
                continue
            given = set(inspect.signature(test).parameters)
            own = {
                argument.strip()
                for mark in getattr(test, "pytestmark", [])
                if mark.name == "parametrize"
                for argument in mark.args[0].split(",")
            }
            if given - own <= SCENARIO_FIXTURES:
                assert name not in tests_by_name, f"two scenarios are called {name}"
                tests_by_name[name] = test
    return tests_by_name


globals().update(
    scenarios_in(
        scenarios.test_gemini,
        scenarios.test_pausing_providers,
        scenarios.test_reconnecting,
        scenarios.test_cancelling,
        scenarios.test_streaming,
    )
)
