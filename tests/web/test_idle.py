"""A server that reads no web pages does not load their libraries; and real name resolution."""

import subprocess
import sys

import pytest

from luxx.errors import Unavailable
from luxx.tools.web.clients import DnsLookups

HEAVY = ("lxml", "bs4", "pypdf", "charset_normalizer", "ddgs", "primp")


def test_a_server_does_not_import_modules_that_only_readers_need() -> None:
    program = f"import sys, luxx.app.application; print([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


async def test_a_name_is_resolved_by_the_system() -> None:
    assert "127.0.0.1" in (await DnsLookups().for_user(1)("localhost", 80))


async def test_an_unknown_name_is_reported_in_a_sentence() -> None:
    for name in ("nobody.invalid", "a" * 64 + ".example"):
        with pytest.raises(Unavailable, match="cannot be resolved"):
            await DnsLookups().for_user(1)(name, 80)
