"""A server that reads no web pages does not import their libraries, and resolves names with the system."""

import subprocess
import sys

import pytest

from luxx.errors import Unavailable
from luxx.tools.web.clients import DnsLookups

READER_MODULES = ("lxml", "bs4", "pypdf", "charset_normalizer", "ddgs", "primp")


def test_a_server_does_not_import_modules_that_only_readers_need() -> None:
    program = (
        "import sys, luxx.app.application; "
        f"print([name for name in {READER_MODULES!r} if name in sys.modules])"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert finished.stdout.strip() == "[]"


async def test_a_name_is_resolved_by_the_system() -> None:
    assert "127.0.0.1" in (await DnsLookups().for_user(1)("localhost", 80))


async def test_a_name_that_cannot_be_resolved_is_reported_in_a_sentence() -> None:
    # The first name does not exist; the second has a label of more than the 63 characters that DNS allows.
    for name in ("nobody.invalid", "a" * 64 + ".example"):
        with pytest.raises(Unavailable, match="cannot be resolved"):
            await DnsLookups().for_user(1)(name, 80)
