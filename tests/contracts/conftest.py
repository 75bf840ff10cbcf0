"""Loads the SDKs of the vendors; prints how many recorded streams run, and how many have no adapter yet."""

from collections import Counter

import pytest
import recorded
import sdk_types


@pytest.fixture(scope="session", autouse=True)
def loaded_sdks() -> None:
    """Before the first test, because hypothesis measures how long an example takes."""
    sdk_types.load()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Removes tests of a dialect of which the given folders have no stream."""
    if recorded.folders():
        items[:] = [item for item in items if not _has_no_stream(item)]


def _has_no_stream(item: pytest.Item) -> bool:
    reasons = [str(mark.kwargs.get("reason")) for mark in item.iter_markers("skip")]
    return any("empty parameter set" in reason for reason in reasons)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not recorded.folders():
        terminalreporter.write_line("recorded streams: none, LUXX_WIRE_FIXTURES is not set")
        return
    counted = Counter(entry["api"] for entry in recorded.all_entries())
    for api, count in sorted(counted.items()):
        state = "run" if api in recorded.BUILT else "deselected, this dialect has no adapter yet"
        terminalreporter.write_line(f"recorded streams: {count} of {api} {state}")
