"""The provider services as a fixture."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from provider_service.services import ProviderServices, make_services


@pytest.fixture
def services(tmp_path: Path) -> Iterator[ProviderServices]:
    services = make_services(tmp_path)
    yield services
    services.store.close()
