"""A fixture with each backend of the sandbox, and the shared server without what tests before have added."""

import pytest
from api.client import ApiClient
from api.server_process import ServerProcess


@pytest.fixture(params=["bubblewrap", pytest.param("landlock", marks=pytest.mark.heavy)])
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def shared_server(shared_server: ServerProcess) -> ServerProcess:
    """Has no MCP servers: tools of other tests would be offered, or too many to offer any."""
    with ApiClient(shared_server, None).sign_in() as admin:
        for server in admin.good("GET", "/mcp/servers", params={"page_size": 100})["items"]:
            admin.good("DELETE", f"/mcp/servers/{server['name']}")
    return shared_server
