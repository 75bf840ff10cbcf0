"""The test of a provider: whether it really answers, and what is wrong if it does not."""

import asyncio
import contextlib
from typing import Any

import msgspec
import pytest

from luxx.errors import ProviderError, ProviderRefused
from luxx.infra.config.schema import ProvidersConfig
from luxx.providers.adapter import Target
from luxx.providers.check import check_provider
from luxx.providers.client import ModelClient
from luxx.providers.models import ProviderChanges
from luxx.providers.transport import Transport
from provider_service.services import ADMIN, ANN, KEY, ProviderServices, Upstream, new_provider


async def test_a_provider_check_reports_key_url_model_and_reachability(services: ProviderServices) -> None:
    async with Upstream().serve() as upstream, services.open() as service:
        mine = await service.create(ADMIN, new_provider(base_url=upstream.base_url))

        async def verdict(**changes: Any) -> tuple[bool, Any]:
            await service.update(ADMIN, mine.id, ProviderChanges(**changes))
            check = await service.test(ADMIN, mine.id)
            assert KEY not in repr(check)
            assert "sk-wrong" not in repr(check)
            assert check.latency_ms >= 0
            return check.ok, check.kind

        good = (True, msgspec.UNSET)
        assert await verdict() == good
        assert (await service.test(ADMIN, mine.id)).models == ["one", "two"]
        assert await verdict(api_key="sk-wrong-key-entirely-0000") == (False, "wrong_key")
        upstream.is_open_list = True
        assert await verdict() == (False, "wrong_key")
        assert await verdict(api_key=KEY, default_model="three") == (False, "wrong_model")
        upstream.lists = False
        assert await verdict(default_model="one") == good
        assert await verdict(default_model="") == (False, "wrong_url")
        wrong = {"base_url": upstream.base_url + "/nowhere", "api_key": KEY, "default_model": "one"}
        assert await verdict(**wrong) == (False, "wrong_url")
        upstream.page = True
        assert await verdict(base_url=upstream.base_url, api_key=KEY) == (False, "wrong_url")
    async with services.open() as service:
        check = await service.test(ADMIN, mine.id)
        assert (check.ok, check.kind) == (False, "unreachable")


async def test_address_is_checked_again_whenever_it_is_called(services: ProviderServices) -> None:
    async with Upstream().serve() as upstream, services.open() as service:
        mine = await service.create(ADMIN, new_provider(base_url=upstream.base_url))
        named = await service.create(ANN, new_provider(base_url=f"http://models.example:{upstream.port}/v1"))
        assert (await service.test(ADMIN, mine.id)).ok
        await service.set_allowed_hosts(ADMIN, [])
        services.names["models.example"] = ["127.0.0.1"]
        for user, provider in ((ADMIN, mine), (ANN, named)):
            check = await service.test(user, provider.id)
            assert (check.ok, check.kind) == (False, "private_address")
            with pytest.raises(ProviderRefused, match="private"):
                await service.list_models(user, provider.id)
        assert all(KEY not in authorization for _, authorization in upstream.requests_seen[2:])
        await service.set_allowed_hosts(ADMIN, [f"models.example:{upstream.port}"])
        assert (await service.test(ANN, named.id)).ok


async def test_models_are_the_upstreams_and_its_refusal_does_not_repeat_the_key(
    services: ProviderServices,
) -> None:
    async with Upstream().serve() as upstream, services.open() as service:
        mine = await service.create(ADMIN, new_provider(base_url=upstream.base_url))
        assert (await service.list_models(ADMIN, mine.id)).models == ["one", "two"]
        upstream.key = "changed"
        with pytest.raises(ProviderError) as caught:
            await service.list_models(ADMIN, mine.id)
        assert KEY not in str(caught.value) + repr(caught.value.__cause__)


class CountOnlyServer:
    """A server that reports token counts for ever and sends no text; it lists no models."""

    def __init__(self) -> None:
        self.talks: list[asyncio.Task[Any]] = []

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.talks.append(task)
        lists = (await reader.readuntil(b"\r\n\r\n")).startswith(b"GET")
        status = b"404 X" if lists else b"200 X\r\ncontent-type: text/event-stream"
        writer.write(b"HTTP/1.1 %b\r\nconnection: close\r\n\r\n" % status)
        with contextlib.suppress(OSError):
            while not lists:
                writer.write(b'data: {"id": "1", "choices": [], "usage": {"completion_tokens": 1}}\n\n')
                await writer.drain()
                await asyncio.sleep(0.02)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def test_a_server_that_only_counts_tokens_times_out(services: ProviderServices) -> None:
    upstream = CountOnlyServer()
    server = await asyncio.start_server(upstream.answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    config = ProvidersConfig(idle_timeout_seconds=5)
    transport = Transport(config, services.guard(f"127.0.0.1:{port}"))
    target = Target(provider_id=1, provider_type="openai_compatible", base_url=f"http://127.0.0.1:{port}/v1")
    async with server:
        check = await check_provider(ModelClient(transport, config), target, "one", seconds=2.5)
        await transport.aclose()
        await asyncio.gather(*upstream.talks)
    assert len(upstream.talks) == 2
    assert (check.ok, check.kind) == (False, "unreachable")
    assert isinstance(check.error, str)
    assert "no complete response" in check.error
