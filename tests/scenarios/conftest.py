"""Servers for the scenarios: shared ones for tests that leave them running, and one to stop and start."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from api.server_process import ServerProcess

from scenarios.tool_controller import CONTROLLED_TOOLS

ServerMaker = Callable[..., ServerProcess]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Shared: do not stop it. Three rounds of tools; it waits a minute for a silent provider."""
    with ServerProcess(
        tmp_path_factory.mktemp("luxx"), LUXX_TOOLS__MAX_ITERATIONS="3", **CONTROLLED_TOOLS
    ) as started_server:
        yield started_server


@pytest.fixture(scope="session")
def impatient_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Shared: do not stop it. It waits a second for a silent provider and retries once."""
    environment = {"LUXX_PROVIDERS__IDLE_TIMEOUT_SECONDS": "1", "LUXX_PROVIDERS__RETRIES": "1"}
    with ServerProcess(
        tmp_path_factory.mktemp("impatient"), **CONTROLLED_TOOLS, **environment
    ) as started_server:
        yield started_server


SMALL_WINDOWS = {
    "LUXX_MODELS": "[{pattern: eight, context_window: 8000, max_output: 1000, tools: true}, "
    "{pattern: twenty, context_window: 20000, max_output: 1000, tools: true}, "
    "{pattern: large, context_window: 128000, max_output: 1000, tools: true}]",
    "LUXX_TOOLS__MAX_ITERATIONS": "400",
    "LUXX_CONTEXT__PROTECTED_TOOLS": "[file_exists]",
}
"""Models with small context windows, which may make many calls."""


@pytest.fixture(scope="session")
def long_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Shared: do not stop it. The windows of its models `eight`, `twenty` and `large` have 8,000, 20,000 and
    128,000 tokens."""
    with ServerProcess(tmp_path_factory.mktemp("long"), **SMALL_WINDOWS) as started_server:
        yield started_server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server that the test may kill and start again."""
    with ServerProcess(tmp_path, **CONTROLLED_TOOLS) as started_server:
        yield started_server
        started_server.kill()  # Some tests leave runs, which an orderly end waits for.
