"""The ports that a server opens for itself: they need a credential, and no user may name them."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from api.client import KEY, PASSWORD, ApiClient
from api.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server"), LUXX_DEMO__ENABLED="true") as running:
        yield running


def listening_ports(pid: int) -> set[int]:
    """The TCP ports on which a process listens."""
    links = [link.readlink() for link in Path(f"/proc/{pid}/fd").iterdir()]
    inodes = {str(link)[8:-1] for link in links if str(link).startswith("socket:[")}
    rows = [line.split() for line in Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]]
    return {int(row[1].split(":")[1], 16) for row in rows if row[3] == "0A" and row[9] in inodes}


def test_no_user_of_any_tenant_reaches_the_demos_port(server: ServerProcess) -> None:
    own = httpx.URL(server.url).port
    ports = listening_ports(server.process.pid) - {own}
    assert ports, "the demo listens"
    with ApiClient(server, None).sign_in() as admin:
        demo = next(one for one in admin.good("GET", "/providers")["items"] if one["provider_type"] == "demo")
        assert admin.good("POST", f"/providers/{demo['id']}/test")["models"] == ["demo"]
        tenant_id = admin.good("POST", "/admin/tenants", json={"name": "elsewhere"})["id"]
        body = {"username": "mallory", "password": PASSWORD, "permission_level": 2, "tenant_id": tenant_id}
        admin.good("POST", "/auth/users", json=body)
        with ApiClient(server, None).sign_in("mallory", PASSWORD) as mallory:
            new = {"current_password": PASSWORD, "new_password": PASSWORD + "2"}
            mallory.good("POST", "/auth/password", json=new)
            mallory.sign_in("mallory", PASSWORD + "2")
            for port in ports:
                unsigned = httpx.get(f"http://127.0.0.1:{port}/v1/models", trust_env=False)
                assert unsigned.status_code == 401
                provider = {"provider_type": "openai_compatible", "api_key": KEY, "default_model": "demo"}
                for host in ("127.0.0.1", "localhost"):
                    admin.good("PUT", "/admin/allowed-hosts", json={"hosts": [f"{host}:{port}"]})
                    provider |= {"base_url": f"http://{host}:{port}/v1", "name": f"{host} {port}"}
                    for person in (mallory, admin):
                        refused = person.bad("POST", "/providers", 403, json=provider)
                        assert refused["detail"]["kind"] == "address_internal"
