"""The sources of the web UI: the types of the API are current, and the tests of vitest pass."""

import pytest

from luxx.web.build import WEB, run_script
from web_ui.api_types import TYPES, api_shape, first_line


def test_the_types_of_the_api_are_generated_from_the_present_document() -> None:
    assert TYPES.read_text("utf-8").startswith(first_line(api_shape())), "run make ui-types"


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_the_tests_of_the_sources_pass() -> None:
    assert run_script("test") == 0


def test_the_lock_file_names_no_registry() -> None:
    assert "resolved" not in (WEB / "package-lock.json").read_text("utf-8")
