"""Servers for the scenarios: shared ones for tests that leave them running, and one to stop and start."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from scenarios.server import LuxxServer

ServerMaker = Callable[..., LuxxServer]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LuxxServer]:
    """Shared: do not stop it. Three rounds of tools; it waits a minute for a silent provider."""
    with LuxxServer(tmp_path_factory.mktemp("luxx"), {"LUXX_TOOLS__MAX_ITERATIONS": "3"}) as started_server:
        yield started_server


@pytest.fixture(scope="session")
def impatient_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LuxxServer]:
    """Shared: do not stop it. It waits a second for a silent provider and retries once."""
    environment = {"LUXX_PROVIDERS__IDLE_TIMEOUT_SECONDS": "1", "LUXX_PROVIDERS__RETRIES": "1"}
    with LuxxServer(tmp_path_factory.mktemp("impatient"), environment) as started_server:
        yield started_server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[LuxxServer]:
    """A server that the test may kill and start again."""
    with LuxxServer(tmp_path / "data") as started_server:
        yield started_server
