"""The journeys of one server once more, at several processes behind a round robin: nothing may tell.

Those that end their server themselves stay where they are; what becomes of clients then is told in the
other modules here.
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
"""Fixtures of a journey that leaves its server as it is; what else it takes are parameters of its own."""


@pytest.fixture(scope="module")
def server(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """In the place of the one server, with its settings, and people who meet another process each time."""
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
    found: dict[str, Any] = {}
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
                assert name not in found, f"two journeys are called {name}"
                found[name] = test
    return found


globals().update(
    scenarios_in(
        scenarios.test_gemini,
        scenarios.test_pausing_providers,
        scenarios.test_reconnecting,
        scenarios.test_cancelling,
        scenarios.test_streaming,
    )
)
