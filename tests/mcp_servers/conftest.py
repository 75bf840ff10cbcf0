"""A fixture with each backend of the sandbox."""

import pytest


@pytest.fixture(params=["bubblewrap", "landlock"])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param
