"""Keys that are set after the first start are connected at the next one, or the log says why not."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from structlog.testing import capture_logs

from luxx.infra.config.schema import Config
from luxx.providers.discovery import DiscoveredProvider, connect_discovered, discover
from luxx.providers.environment_keys import connect_environment_keys
from luxx.providers.models import ProviderChanges, ProviderRow
from provider_service.services import ADMIN, ProviderServices, new_provider

KEY, OTHER_KEY = "sk-an-operators-key-of-the-environment", "sk-another-key-of-the-environment"
OPENAI = {"OPENAI_API_KEY": KEY}


async def first_start(services: ProviderServices, discovered: list[DiscoveredProvider]) -> None:
    await connect_discovered(
        services.store,
        services.vault,
        user_id=ADMIN.user_id,
        tenant_id=ADMIN.tenant_id,
        discovered=discovered,
    )


async def next_start(services: ProviderServices, environ: Mapping[str, str]) -> list[Any]:
    """The log entries of the start."""
    with capture_logs() as entries:
        await connect_environment_keys(services.store, services.vault, environ)
    assert KEY not in str(entries)
    return entries


async def stored(services: ProviderServices) -> list[tuple[str, bool, bool]]:
    """Name, is it the default, is it shared."""
    rows = await services.store.read(
        lambda session: list(session.scalars(select(ProviderRow).order_by(ProviderRow.id)))
    )
    return [(row.name, row.is_default, row.is_shared) for row in rows]


async def test_a_new_key_replaces_the_embedded_model_as_the_default(services: ProviderServices) -> None:
    await first_start(services, discover({}, Config(), [], local_model="smollm2-135m-instruct"))
    (entry,) = await next_start(services, OPENAI)
    assert (entry["event"], entry["source"]) == ("provider_discovered", "OPENAI_API_KEY")
    assert await stored(services) == [("local", False, True), ("openai", True, True)]
    assert await next_start(services, OPENAI) == []
    assert len(await stored(services)) == 2
    async with services.open() as service:
        assert (await service.resolve(ADMIN)).target.api_key == KEY


async def test_a_new_key_does_not_replace_a_default_that_a_person_chose(services: ProviderServices) -> None:
    async with services.open() as service:
        await service.create(ADMIN, new_provider("mine"))
    await next_start(services, OPENAI | {"DEEPSEEK_API_KEY": OTHER_KEY})
    assert await stored(services) == [
        ("mine", True, False),
        ("openai", False, True),
        ("deepseek", False, True),
    ]


async def test_a_new_key_does_not_replace_a_default_that_is_gone(services: ProviderServices) -> None:
    async with services.open() as service:
        chosen = await service.create(ADMIN, new_provider("chosen", is_shared=True))
        await service.delete(ADMIN, chosen.id)
    await next_start(services, OPENAI)
    assert await stored(services) == [("openai", False, True)]


async def test_a_changed_key_is_not_taken_and_the_log_says_so(services: ProviderServices) -> None:
    await first_start(services, discover(OPENAI, Config(), []))
    (entry,) = await next_start(services, {"OPENAI_API_KEY": OTHER_KEY})
    assert (entry["event"], entry["log_level"]) == ("provider_discovered_unusable", "warning")
    assert entry["reason"].startswith("the provider 'openai' has another key; change the key there")
    assert OTHER_KEY not in str(entry)
    assert await stored(services) == [("openai", True, True)]


async def test_a_deleted_provider_does_not_come_back(services: ProviderServices) -> None:
    await first_start(services, discover(OPENAI | {"DEEPSEEK_API_KEY": OTHER_KEY}, Config(), []))
    async with services.open() as service:
        (deleted,) = [
            one for one in (await service.list_page(ADMIN, page=1, page_size=9))[0] if one.name == "openai"
        ]
        await service.delete(ADMIN, deleted.id)
    (entry,) = await next_start(services, OPENAI)
    assert entry["reason"] == "a provider 'openai' was deleted; add it again to use the key"
    assert [name for name, *_ in await stored(services)] == ["deepseek"]


async def test_a_disabled_provider_stays_disabled(services: ProviderServices) -> None:
    await first_start(services, discover(OPENAI, Config(), []))
    async with services.open() as service:
        (provider,) = (await service.list_page(ADMIN, page=1, page_size=9))[0]
        await service.update(ADMIN, provider.id, ProviderChanges(enabled=False))
    assert await next_start(services, OPENAI) == []
    assert len(await stored(services)) == 1


async def test_a_key_that_cannot_be_used_is_named_with_its_reason(services: ProviderServices) -> None:
    async with services.open() as service:
        await service.create(ADMIN, new_provider("mine"))
    (entry,) = await next_start(services, OPENAI | {"OPENAI_BASE_URL": "ftp://x"})
    assert entry["event"] == "provider_discovered_unusable"
    assert await stored(services) == [("mine", True, False)]
