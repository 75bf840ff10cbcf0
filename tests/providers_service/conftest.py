"""The house as a fixture."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from providers_service.house import House, make_house


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    made = make_house(tmp_path)
    yield made
    made.store.close()
