"""Another server, to which exports are imported."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from migrated_databases import POSTGRESQL_HEAVY
from sample_user import add_user
from store.conftest import numbers
from store.databases import new_database

from backup.sample_data import data_paths_of, initialise, store_of
from luxx.domain.backup.backup import DataPaths


@pytest.fixture(params=POSTGRESQL_HEAVY)
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[DataPaths]:
    """Another server, with a user ann who has no data."""
    url = ""
    if request.param == "postgresql":
        url = new_database(request.getfixturevalue("postgresql"), f"there{next(numbers)}")
    data_paths = data_paths_of(tmp_path / "there", url)
    initialise(data_paths)
    with store_of(data_paths) as store:
        store.write_now(add_user)
    yield data_paths
    data_paths.close()
