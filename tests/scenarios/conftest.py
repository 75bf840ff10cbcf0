"""Servers for the journeys: one for those who leave it as it is, and a maker for those who need their own."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scenarios.server import LuxxServer

ServerMaker = Callable[..., LuxxServer]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LuxxServer]:
    """Shared: do not stop it. Three rounds of tools; a provider's silence is borne for a minute."""
    with LuxxServer(tmp_path_factory.mktemp("luxx"), {"LUXX_TOOLS__MAX_ITERATIONS": "3"}) as one:
        yield one


@pytest.fixture(scope="session")
def impatient_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LuxxServer]:
    """Shared: do not stop it. It bears a second of silence and tries once more."""
    environment = {"LUXX_PROVIDERS__IDLE_TIMEOUT_SECONDS": "1", "LUXX_PROVIDERS__RETRIES": "1"}
    with LuxxServer(tmp_path_factory.mktemp("impatient"), environment) as one:
        yield one


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[LuxxServer]:
    """To be killed and started again."""
    with LuxxServer(tmp_path / "data") as one:
        yield one
