"""A server with a small quota, and users of it."""

from collections.abc import Iterator

import pytest
from api.conftest import admin, anna, bob, document, nobody, upstream
from api.server_process import ServerProcess

__all__ = ["admin", "anna", "bob", "document", "nobody", "server", "upstream"]

UPLOAD_MB = 6
QUOTA_MB = 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {"LUXX_FILES__MAX_UPLOAD_MB": str(UPLOAD_MB), "LUXX_FILES__QUOTA_MB": str(QUOTA_MB)}
    with ServerProcess(tmp_path_factory.mktemp("server"), **settings) as running:
        yield running
