"""For all tests: LUXX_FORBID_SKIPS=1 turns a skipped test into a failed session, so that none hides."""

import os

import pytest
from hypothesis import HealthCheck, settings

# How fast a busy machine draws its first example says nothing of the code.
settings.register_profile("luxx", suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("luxx")


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
    """Lines that tests put into the property `matrix`, such as what held in which sandbox."""
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
