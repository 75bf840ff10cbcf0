"""Egress of sandbox processes: none unless hosts are listed, then only to these, per process and per call.

Each backend is attacked from inside. The positive control is a site that the operator listed.
"""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from web.conftest import FakeResolver
from web.site import Site, page, site

from luxx.infra.config.schema import ToolsConfig
from luxx.infra.network.egress import EgressSession
from luxx.infra.network.hosts import Resolve
from luxx.infra.network.proxy import ProxyBounds
from luxx.tools.sandbox.service import Sandbox
from sandbox.client import OpenSandboxClient, SandboxClient, wait_until
from sandbox.test_prewarmed import ready

PROXY = """
import socket
def say(words):
    with socket.create_connection(('127.0.0.1', 3128), timeout=10) as one:
        one.sendall(words.encode())
        answer = b''
        try:
            while piece := one.recv(65536):
                answer += piece
        except OSError:
            pass
        return answer.decode('latin-1')
def status(answer):
    return answer.split(' ', 2)[1] if answer else ''
"""

OpenEgressClient = Callable[
    ..., AbstractAsyncContextManager[tuple[SandboxClient | None, list[EgressSession]]]
]


@pytest.fixture
def public() -> Iterator[Site]:
    with site() as started_site:
        started_site.routes["*"] = page("hello", "text/plain")
        yield started_site


@pytest.fixture
def open_egress_client(tmp_path: Path, public: Site) -> OpenEgressClient:
    """Opens a client and a list of the egress sessions that have ended. `public` is an allowed host.

    The client is None if the host cannot offer the backend."""

    @asynccontextmanager
    async def opened(
        backend: str = "bubblewrap", bounds: ProxyBounds | None = None, **more: Any
    ) -> AsyncIterator[tuple[SandboxClient | None, list[EgressSession]]]:
        names = FakeResolver()

        def resolve_for(user_id: int) -> Resolve:
            return names.resolve

        entry = f"public.example:{public.port}"
        given = {"network_allow": [entry], "web_allow_private": [entry], **more}
        config = ToolsConfig(sandbox=backend, **given)  # type: ignore[arg-type]
        folders = (tmp_path / "data", tmp_path / "workspaces")
        sandbox = Sandbox(config, *folders, resolve_for=resolve_for, bounds=bounds)
        ended: list[EgressSession] = []

        async def end(egress_session: EgressSession) -> None:
            ended.append(egress_session)

        sandbox.egress.on_ended = end
        await sandbox.open()
        try:
            yield SandboxClient(sandbox, config, tmp_path) if sandbox.backend_name == backend else None, ended
        finally:
            await sandbox.close()

    return opened


def fetch_program(url: str) -> str:
    return f"import urllib.request\nprint(urllib.request.urlopen({url!r}, timeout=10).read().decode())"


# --- the control --------------------------------------------------------------------------------------


async def test_a_program_reaches_a_listed_host_and_its_result_names_it(
    open_egress_client: OpenEgressClient, public: Site
) -> None:
    async with open_egress_client() as (client, ended):
        assert client is not None
        for _ in range(2):
            # The second program runs in a prewarmed process.
            executed = await client.python(fetch_program(f"http://public.example:{public.port}/a"))
            assert executed.result.data["stdout"] == "hello\n", executed.result
            (reached,) = executed.result.data["network"]["reached"]
            assert (reached["host"], reached["connections"]) == (f"public.example:{public.port}", 1)
            assert executed.is_untrusted
            await ready(client)
        await wait_until(lambda: len(ended) == 2)
        client_of_session = ended[0].caller
        assert (
            client_of_session.user_id,
            client_of_session.username,
            client_of_session.call_id,
            client_of_session.tool,
        ) == (1, "user1", "1", "python_execute")
    assert public.visits == ["/a", "/a"]


async def test_a_shell_command_reaches_a_listed_host_too(
    open_egress_client: OpenEgressClient, public: Site
) -> None:
    async with open_egress_client() as (client, _ended):
        assert client is not None
        program = client.sandbox.interpreter
        assert program is not None
        code = fetch_program(f"http://public.example:{public.port}/b")
        executed = await client.shell(f"{program.program} -c '{code.replace(chr(39), chr(34))}'")
        assert executed.result.data["stdout"] == "hello\n", executed.result
        assert executed.is_untrusted
    assert public.visits == ["/b"]


async def test_a_call_without_connections_is_not_untrusted(
    open_egress_client: OpenEgressClient,
) -> None:
    async with open_egress_client() as (client, _ended):
        if client is None:
            return
        executed = await client.python("print(1)")
        assert not executed.is_untrusted
        assert executed.result.data["network"] == {"reached": [], "refused": [], "problem": None}
        tools = client.executor.registry.list_all()
        assert [tool.is_egress for tool in tools] == [True, True]
        assert all("public.example" in tool.description for tool in tools)


# --- attacks ------------------------------------------------------------------------------------------

DIRECT = """
import socket, sys
out = []
for family, kind, address in (
    (socket.AF_INET, socket.SOCK_STREAM, ('127.0.0.1', PORT)),
    (socket.AF_INET, socket.SOCK_STREAM, (OWN, PORT)),
    (socket.AF_INET, socket.SOCK_STREAM, ('169.254.169.254', 80)),
    (socket.AF_INET, socket.SOCK_STREAM, ('192.88.99.1', 443)),
    (socket.AF_INET, socket.SOCK_DGRAM, ('127.0.0.1', UDP)),
    (socket.AF_INET, socket.SOCK_DGRAM, ('192.88.99.1', 53)),
    (socket.AF_INET6, socket.SOCK_STREAM, ('::1', PORT)),
):
    try:
        with socket.socket(family, kind) as one:
            one.settimeout(3)
            one.connect(address)
            one.send(b'out')
            if kind == socket.SOCK_DGRAM:
                one.recv(10)
        out.append(address)
    except OSError as error:
        pass
print(out)
"""


async def test_no_socket_of_a_program_reaches_anything_directly(
    open_egress_client: OpenEgressClient, backend: str, public: Site
) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as udp:
        udp.bind(("127.0.0.1", 0))
        udp.setblocking(False)
        own = socket.gethostbyname(socket.gethostname())
        facts = f"PORT = {public.port}\nUDP = {udp.getsockname()[1]}\nOWN = {own!r}\n"

        async with open_egress_client(backend) as (client, _ended):
            if client is None:
                return
            executed = await client.python(facts + DIRECT)
            assert executed.result.data["stdout"] == "[]\n", executed.result
        with pytest.raises(BlockingIOError):
            udp.recv(10)
    assert public.connections == 0


async def test_the_proxy_refuses_unlisted_hosts_and_bad_requests(
    open_egress_client: OpenEgressClient, public: Site
) -> None:
    with site() as forbidden_site:
        hosts = [
            f"{host}:{forbidden_site.port}"
            for host in ("127.0.0.1", "localhost", "2130706433", "0x7f000001", "[::1]", "public.example")
        ]
        hosts += ["169.254.169.254:80", "other.example:443"]

        async with open_egress_client() as (client, ended):
            if client is None:
                return
            asking = f"""{PROXY}
for host in {hosts!r}:
    print(status(say(f'CONNECT {{host}} HTTP/1.1\\r\\nHost: {{host}}\\r\\n\\r\\n')), end=' ')
    print(status(say(f'GET http://{{host}}/ HTTP/1.1\\r\\nHost: public.example:{public.port}\\r\\n\\r\\n')))
"""
            executed = await client.python(asking)
            assert executed.result.data["stdout"].split() == ["403"] * 2 * len(hosts), executed.result
            assert not executed.is_untrusted
            await wait_until(lambda: len(ended) == 1)
            assert {refusal.kind for refusal in ended[0].refused} == {"host_not_listed"}
        assert (forbidden_site.connections, public.connections) == (0, 0)


async def test_a_listed_name_that_resolves_to_this_machine_needs_web_allow_private(
    open_egress_client: OpenEgressClient, public: Site
) -> None:
    async with open_egress_client(web_allow_private=[]) as (client, _ended):
        if client is None:
            return
        words = f"CONNECT public.example:{public.port} HTTP/1.1\r\nHost: x\r\n\r\n"
        executed = await client.python(f"{PROXY}\nprint(status(say({words!r})))")
        assert executed.result.data["stdout"] == "403\n"
        (refused,) = executed.result.data["network"]["refused"]
        assert refused["kind"] == "private_address"
    assert public.connections == 0


async def test_landlock_has_no_egress_and_says_so(open_egress_client: OpenEgressClient, public: Site) -> None:
    async with open_egress_client("landlock") as (client, _ended):
        if client is None:
            return
        executed = await client.python("import os\nprint(os.environ.get('HTTP_PROXY'))")
        assert executed.result.data["stdout"] == "None\n"
        problem = executed.result.data["network"]["problem"]
        assert (
            problem == "there is no network: tools.network_allow needs bubblewrap, and landlock is in force"
        )
    assert public.connections == 0


async def test_without_an_allow_list_there_is_no_proxy_socket(
    open_sandbox_client: OpenSandboxClient, backend: str
) -> None:
    async with open_sandbox_client(backend) as client:
        if client is None:
            return
        code = "import os\nprint(os.environ.get('HTTP_PROXY'))\ntry: say('x')\nexcept OSError: print('none')"
        executed = await client.python(f"{PROXY}\n{code}")
        assert executed.result.data["stdout"] == "None\nnone\n"
        assert "network" not in executed.result.data
        assert [tool.is_egress for tool in client.executor.registry.list_all()] == [False, False]
        assert all("without network" in tool.description for tool in client.executor.registry.list_all())


async def test_the_proxy_socket_of_a_prewarmed_process_reaches_nothing_and_ends_with_its_one_program(
    open_egress_client: OpenEgressClient, public: Site
) -> None:
    async with open_egress_client() as (client, _ended):
        if client is None:
            return
        await client.python("print(1)")
        first = await ready(client)
        # The process of another workspace has another proxy socket, so its calls are not counted here.
        url = f"http://public.example:{public.port}/"
        mine, yours = await asyncio.gather(
            client.python(fetch_program(url)), client.python("print(2)", user_id=2)
        )
        assert len(mine.result.data["network"]["reached"]) == 1
        assert yours.result.data["network"]["reached"] == []
        await wait_until(lambda: not Path(f"/proc/{first}").exists())


async def test_a_flood_of_connections_ends_and_the_next_call_has_its_own_proxy_socket(
    open_egress_client: OpenEgressClient, public: Site
) -> None:
    flood = """
import socket
count = 0
held = []
try:
    for count in range(300):
        one = socket.create_connection(('127.0.0.1', 3128), timeout=10)
        one.close()
except OSError as error:
    pass
print(count)
"""

    async with open_egress_client(bounds=ProxyBounds(connections=100)) as (client, _ended):
        assert client is not None
        executed = await client.python(flood)
        assert 100 <= int(executed.result.data["stdout"]) < 299, executed.result
        after = await client.python(fetch_program(f"http://public.example:{public.port}/after"))
        assert after.result.data["stdout"] == "hello\n"
    assert public.visits == ["/after"]


async def test_a_cancelled_call_leaves_no_connection(
    open_egress_client: OpenEgressClient, public: Site
) -> None:
    is_closed: list[bool] = []

    def hold(talking: socket.socket, head: str) -> None:
        is_closed.append(talking.recv(10) == b"")

    public.routes["/hold"] = hold

    async with open_egress_client() as (client, ended):
        if client is None:
            return
        call = asyncio.create_task(client.python(fetch_program(f"http://public.example:{public.port}/hold")))
        await asyncio.to_thread(public.visited, 1)
        call.cancel()
        await asyncio.wait({call})
        await wait_until(lambda: is_closed == [True])
        await wait_until(lambda: len(ended) == 1)
        assert len(ended[0].reached) == 1
