"""What the first start discovers; later starts discover nothing."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from sqlalchemy import select

from luxx.infra.config.schema import Config, LlmConfig
from luxx.providers.discovery import DiscoveredProvider, Probe, connect_discovered, discover, probe_loopback
from luxx.providers.models import ProviderRow
from provider_service.services import ADMIN, ANN, KEY, FakeLocal, ProviderServices, Upstream

EMPTY_OLLAMA = Probe(name="ollama", base_url="http://127.0.0.1:11434/v1", models=[])
OLLAMA = Probe(name="ollama", base_url="http://127.0.0.1:11434/v1", models=["nomic-embed-text", "qwen3:8b"])


def names(discovered: list[DiscoveredProvider]) -> list[str]:
    return [f"{provider.name}{' (not yet)' if provider.problem else ''}" for provider in discovered]


def test_everything_is_found_in_the_documented_order() -> None:
    environ = {f"{name}_API_KEY": KEY + name for name in ("GEMINI", "DEEPSEEK", "ANTHROPIC", "OPENAI")}
    llm = LlmConfig(provider="glm", api_key=KEY, api_url="https://models.example/v4", model="glm-4.6")
    discovered = discover(environ, Config(llm=llm), [OLLAMA], local_model="smollm2-135m-instruct")
    assert names(discovered) == [
        "openai",
        "anthropic",
        "deepseek",
        "gemini",
        "glm",
        "ollama",
    ]
    assert discovered[-1].default_model == "qwen3:8b"


@pytest.mark.parametrize(
    ("environ", "probes", "expected"),
    [
        ({}, [], ["local"]),
        ({"OPENAI_API_KEY": "  "}, [], ["local"]),
        ({"ANTHROPIC_API_KEY": KEY}, [], ["anthropic"]),
        (
            {},
            [Probe(name="ollama", base_url="http://127.0.0.1:11434/v1", models=[])],
            ["ollama (not yet)", "local"],
        ),
        ({}, [OLLAMA], ["ollama"]),
        ({"DEEPSEEK_API_KEY": KEY}, [], ["deepseek"]),
        ({"GEMINI_API_KEY": KEY}, [], ["gemini"]),
        ({"OPENAI_API_KEY": "not a\nkey"}, [], ["openai (not yet)", "local"]),
        ({"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "ftp://x"}, [], ["openai (not yet)", "local"]),
        (
            {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": "http://169.254.1.1/"},
            [],
            ["openai (not yet)", "local"],
        ),
    ],
)
def test_embedded_model_is_taken_only_where_nothing_else_is_usable(
    environ: dict[str, str], probes: list[Probe], expected: list[str]
) -> None:
    assert names(discover(environ, Config(), probes, local_model="smollm2")) == expected
    assert "local" not in names(discover(environ, Config(), probes, local_model=""))


def test_shipped_llm_section_without_its_key_is_no_provider() -> None:
    llm = LlmConfig(provider="deepseek", api_key="", api_url="https://api.deepseek.com/v1")
    assert discover({}, Config(llm=llm), []) == []


def test_llm_section_that_names_the_environments_key_is_the_same_provider() -> None:
    llm = LlmConfig(
        provider="deepseek", api_key=KEY, api_url="https://api.deepseek.com/v1", model="deepseek-reasoner"
    )
    discovered = discover({"DEEPSEEK_API_KEY": KEY}, Config(llm=llm), [])
    assert [(provider.name, provider.default_model) for provider in discovered] == [
        ("deepseek", "deepseek-reasoner")
    ]
    moved = discover(
        {"DEEPSEEK_API_KEY": KEY, "DEEPSEEK_BASE_URL": "https://models.example/v1"}, Config(llm=llm), []
    )
    assert [provider.base_url for provider in moved] == ["https://models.example/v1"]


def test_llm_section_with_a_loopback_address_needs_no_key_and_is_not_found_twice() -> None:
    llm = LlmConfig(provider="openai_compatible", api_url="http://127.0.0.1:11434/v1", model="qwen3:8b")
    assert names(discover({}, Config(llm=llm), [OLLAMA])) == ["openai_compatible"]


def test_no_discovered_provider_shows_its_key() -> None:
    discovered = discover({"OPENAI_API_KEY": KEY}, Config(), [])
    assert KEY not in repr(discovered)


async def test_first_start_connects_discovered_providers_and_the_second_changes_nothing(
    services: ProviderServices, capfd: Any
) -> None:
    environ = {
        "OPENAI_API_KEY": KEY,
        "ANTHROPIC_API_KEY": KEY,
        "GEMINI_API_KEY": KEY,
        "DEEPSEEK_API_KEY": KEY,
        "DEEPSEEK_BASE_URL": "http://10.0.0.9:8000/v1",
    }
    discovered = discover(environ, Config(), [OLLAMA])

    first = await connect_discovered(
        services.store, services.vault, user_id=1, tenant_id=1, discovered=discovered
    )
    assert len(first) == 5
    assert (
        await connect_discovered(
            services.store, services.vault, user_id=1, tenant_id=1, discovered=discovered
        )
        == []
    )
    rows = await services.store.read(
        lambda session: list(session.scalars(select(ProviderRow).order_by(ProviderRow.id)))
    )
    assert [(row.name, row.is_default, row.is_shared) for row in rows] == [
        ("openai", True, True),
        ("anthropic", False, True),
        ("deepseek", False, True),
        ("gemini", False, True),
        ("ollama", False, True),
    ]
    async with services.open() as service:
        assert (await service.resolve(ANN)).target.api_key == KEY
        hosts = {host.host for host in await service.allowed_hosts(ADMIN)}
        assert hosts == {"10.0.0.9:8000", "127.0.0.1:11434"}
    out, err = capfd.readouterr()
    output = out + err
    assert output.count("provider_discovered ") == 5
    assert "provider_discovered_unusable" not in output
    assert KEY not in output


async def test_embedded_model_found_at_the_first_start_answers_for_the_tenant(
    services: ProviderServices,
) -> None:
    discovered = discover({}, Config(), [], local_model="smollm2-135m-instruct")
    await connect_discovered(services.store, services.vault, user_id=1, tenant_id=1, discovered=discovered)
    async with services.open(local=FakeLocal()) as service:
        resolved = await service.resolve(ANN)
        assert (resolved.choice.name, resolved.target.base_url) == ("local", "http://127.0.0.1:40001/v1")
        view = await service.get(ANN, resolved.choice.provider_id)
        assert (view.name, view.provider_type, view.base_url) == ("local", "local", "")


def answers(content: Any) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """A server of one page."""

    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(content).encode()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    return page


async def test_wrong_row_of_a_list_of_models_hides_no_other() -> None:
    rows = [{"id": "one"}, {"id": 2}, "three", {"name": "four"}, {"id": "five"}]
    server = await asyncio.start_server(answers({"object": "list", "data": rows}), "127.0.0.1", 0)
    async with server:
        (probe,) = await probe_loopback([("odd", server.sockets[0].getsockname()[1])])
    assert probe.models == ["one", "five"]


async def test_probe_accepts_only_a_model_server() -> None:
    left = asyncio.Event()

    async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()
        await writer.wait_closed()
        left.set()

    async with Upstream().serve() as upstream:
        upstream.is_open_list = True
        other = await asyncio.start_server(answers({"hello": "world"}), "127.0.0.1", 0)
        quiet = await asyncio.start_server(silence, "127.0.0.1", 0)
        ports = [server.sockets[0].getsockname()[1] for server in (other, quiet)]
        requests = [("one", upstream.port), ("page", ports[0]), ("quiet", ports[1]), ("closed", 1)]
        assert await probe_loopback(requests) == [
            Probe(name="one", base_url=upstream.base_url, models=["one", "two"])
        ]
        await left.wait()
        assert await probe_loopback(requests[:1], except_ports=[upstream.port]) == []
        other.close()
        quiet.close()
