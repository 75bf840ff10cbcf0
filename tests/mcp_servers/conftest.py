"""A fixture with each backend of the sandbox."""

import pytest


@pytest.fixture(params=["bubblewrap", pytest.param("landlock", marks=pytest.mark.heavy)])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param
