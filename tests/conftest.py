"""For all tests: each coroutine in a loop of its own and within bounds; and LUXX_FORBID_SKIPS=1 turns a
skipped test into a failed session, so that none hides.
"""

import asyncio
import functools
import gc
import inspect
import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from api.server_process import ServerProcess, model_settings
from command_line import register
from fork_server import lower_password_cost
from hypothesis import settings
from process_environment import scripted_models
from store.databases import postgresql_server

from luxx.providers.scripted import Script

# The profile of hypothesis for CI: the same examples in each run, so that a failure belongs to the change
# that is tested, and no limit of time. --hypothesis-profile=default draws new examples.
settings.load_profile("ci")

# Coloured tracebacks with local variables take ten seconds each.
structlog.configure(
    processors=[
        *structlog.get_config()["processors"][:-1],
        structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback),
    ]
)

lower_password_cost()

HERE = Path(__file__).parent

FOLDER_SECONDS = {
    "accounts": 30.0,
    "bus": 30.0,
    "chaos": 240.0,
    "engine": 60.0,
    "scenarios": 110.0,
    "local": 110.0,
    "mcp_servers": 100.0,
    "provider_service": 60.0,
}
"""How long a coroutine of such a folder may take."""

MARKED_SECONDS = {"long": 900, "heavy": 240}
"""How long a marked test may take; others have the `timeout` of pyproject.toml."""

CLEANUP_SECONDS = 10.0
"""Elsewhere it may take what pytest-timeout allows less this, in which it cleans up."""


@pytest.fixture(scope="session")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """On asyncio's own loop."""
    return "asyncio", {}


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """The URL of a PostgreSQL server that all tests of a process share; each makes databases of its own."""
    with postgresql_server() as url:
        yield url


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the settings of tests for modules that make users of their own: do not stop it."""
    with ServerProcess(tmp_path_factory.mktemp("shared")) as running:
        yield running


@pytest.fixture(scope="session")
def plain_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that all tests of a process share; its model answers nothing, and commands
    warn about its default password.
    """
    folder = tmp_path_factory.mktemp("server")
    with (
        scripted_models(Script(rules=[])) as provider,
        ServerProcess(folder, **model_settings(provider.url), LUXX_ADMIN_PASSWORD="") as running,
    ):
        yield running


@pytest.fixture
def new_user(plain_server: ServerProcess) -> str:
    """The access token of a new user of that server."""
    return register(plain_server)[1]


def seconds_of(test: pytest.Function) -> float:
    if marker := test.get_closest_marker("async_timeout"):
        return marker.args[0]
    if seconds := FOLDER_SECONDS.get(test.path.relative_to(HERE).parts[0]):
        return seconds
    if marker := test.get_closest_marker("timeout"):
        return float(marker.args[0]) - CLEANUP_SECONDS
    option = test.config.getoption("timeout")
    return float(test.config.getini("timeout") if option is None else option) - CLEANUP_SECONDS


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks the long tests that run on every change."""
    if item.get_closest_marker("long") and "short" in item.nodeid:
        item.add_marker("short")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timeout"):
            continue
        seconds = [MARKED_SECONDS[name] for name in MARKED_SECONDS if item.get_closest_marker(name)]
        if seconds:
            item.add_marker(pytest.mark.timeout(max(seconds)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Excludes what is imported and collected from garbage collection, as a server does at its start."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, object, object]:
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test):
        seconds = seconds_of(pyfuncitem)

        @functools.wraps(test)
        async def bounded(**arguments: Any) -> None:
            async with asyncio.timeout(seconds):
                await test(**arguments)

        pyfuncitem.obj = bounded
    return (yield)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if not os.environ.get("LUXX_FORBID_SKIPS") or reporter is None:
        return
    if reporter.stats.get("skipped") and exitstatus == pytest.ExitCode.OK:
        reporter.write_line(
            "\nLUXX_FORBID_SKIPS is set and tests were skipped: this session failed", red=True
        )
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Prints the lines of the property `matrix`, such as the outcomes of attacks by sandbox."""
    lines = [
        str(value)
        for reports in terminalreporter.stats.values()
        for report in reports
        for name, value in getattr(report, "user_properties", [])
        if name == "matrix" and getattr(report, "when", "") == "call"
    ]
    if lines:
        terminalreporter.section("matrix")
        for line in sorted(lines):
            terminalreporter.write_line(line)
