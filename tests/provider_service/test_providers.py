"""Providers as users manage them, and the provider that a run gets."""

import asyncio
from typing import Any

import msgspec
import pytest
from sqlalchemy import select, update

from luxx.domain.accounts.models import User
from luxx.errors import Conflict, InvalidInput, NotAllowed, NotFound, Unavailable
from luxx.providers.models import NewProvider, ProviderChanges, ProviderRow, ProviderView
from luxx.wire.tool import CommandPermission
from provider_service.services import (
    ADMIN,
    ANN,
    BOB,
    EVE,
    EVERYBODY,
    KEY,
    OTHER_ADMIN,
    URL,
    FakeLocal,
    ProviderServices,
    ResolvingService,
    caller,
    new_provider,
)

ELSEWHERE = "https://other.example/v1"
CHANGES_OF_A_SHARED_ONE = (
    ProviderChanges(base_url=ELSEWHERE, api_key=KEY),
    ProviderChanges(name="mine"),
    ProviderChanges(enabled=False),
    ProviderChanges(is_shared=False),
)
DEMOTE = update(User).where(User.id == 1).values(permission_level=3, role="user")


async def key_of(service: ResolvingService, view: ProviderView) -> str:
    return (await service.resolve(ADMIN if view.user_id == 1 else ANN, view.id)).target.api_key


async def test_key_is_sealed_at_rest_and_masked_wherever_it_shows(
    services: ProviderServices, capfd: Any
) -> None:
    async with services.open() as service:
        created = await service.create(ANN, new_provider())
        listed, _ = await service.list_page(ANN, page=1, page_size=20)
        updated = await service.update(ANN, created.id, ProviderChanges(name="renamed"))
        resolved = await service.resolve(ANN, created.id)
        for shown in (created, listed, await service.get(ANN, created.id), updated):
            text = repr(shown) + msgspec.json.encode(shown).decode()
            assert KEY not in text
            assert f"****{KEY[-4:]}" in text
        assert resolved.target.api_key == KEY
        assert KEY not in repr(resolved) + repr(new_provider()) + repr(ProviderChanges(api_key=KEY))
    row = await services.store.read(lambda session: session.scalars(select(ProviderRow)).one())
    assert KEY not in row.api_key
    assert KEY[-4:] not in row.api_key
    out, err = capfd.readouterr()
    assert KEY not in out + err


async def test_sealed_key_moved_to_another_row_does_not_open(services: ProviderServices) -> None:
    async with services.open() as service:
        first = await service.create(ANN, new_provider("first"))
        second = await service.create(ANN, new_provider("second", api_key=""))

        def move(session: Any) -> None:
            rows = {row.id: row for row in session.scalars(select(ProviderRow))}
            rows[second.id].api_key = rows[first.id].api_key

        await services.store.write(move)
        with pytest.raises(Unavailable, match="enter it again"):
            await service.resolve(ANN, second.id)
        assert (await service.get(ANN, second.id)).api_key == "****"


async def test_provider_of_another_user_looks_like_a_missing_one(services: ProviderServices) -> None:
    async with services.open() as service:
        mine = await service.create(ANN, new_provider())
        for stranger in (BOB, ADMIN, EVE, OTHER_ADMIN):
            for attempt in (
                service.get(stranger, mine.id),
                service.update(stranger, mine.id, ProviderChanges(name="x")),
                service.delete(stranger, mine.id),
                service.test(stranger, mine.id),
                service.list_models(stranger, mine.id),
                service.resolve(stranger, mine.id),
            ):
                with pytest.raises(NotFound) as caught:
                    await attempt
                with pytest.raises(NotFound) as missing:
                    await service.get(stranger, 999)
                assert caught.value.message.replace(str(mine.id), "999") == missing.value.message
            assert await service.list_page(stranger, page=1, page_size=20) == ([], 0)
        assert (await service.get(ANN, mine.id)).name == "mine"


@pytest.mark.parametrize("provider_id", [0, -1, 2**31, 2**63, 10**40])
async def test_impossible_id_is_not_found(services: ProviderServices, provider_id: int) -> None:
    async with services.open() as service:
        with pytest.raises(NotFound):
            await service.get(ANN, provider_id)


async def test_shared_provider_is_used_by_its_tenant_and_changed_by_its_owner_alone(
    services: ProviderServices,
) -> None:
    async with services.open() as service:
        shared = await service.create(ADMIN, new_provider("ours", is_shared=True))
        shown = await service.get(BOB, shared.id)
        assert (shown.name, shown.api_key, shown.is_own) == ("ours", "", False)
        assert (await service.resolve(BOB)).target.api_key == KEY
        for forbidden in (
            service.update(BOB, shared.id, ProviderChanges(base_url=ELSEWHERE)),
            service.delete(BOB, shared.id),
        ):
            with pytest.raises(NotAllowed, match="owner"):
                await forbidden
        for stranger in (EVE, OTHER_ADMIN):
            with pytest.raises(NotFound):
                await service.get(stranger, shared.id)
            with pytest.raises(InvalidInput, match="connect a model"):
                await service.resolve(stranger)


async def test_only_an_administrator_shares(services: ProviderServices) -> None:
    async with services.open() as service:
        with pytest.raises(NotAllowed):
            await service.create(ANN, new_provider(is_shared=True))
        mine = await service.create(ANN, new_provider())
        with pytest.raises(NotAllowed):
            await service.update(ANN, mine.id, ProviderChanges(is_shared=True))


async def test_former_administrator_cannot_change_shared_providers(
    services: ProviderServices,
) -> None:
    async with services.open() as service:
        shared = await service.create(ADMIN, new_provider(is_shared=True))
        private = await service.create(ADMIN, new_provider("private"))
        services.store.write_now(lambda session: session.execute(DEMOTE))
        # The caller of a new request, and one whose request began before the demotion.
        for demoted in (caller(1, 1, CommandPermission.EXECUTE), ADMIN):
            for changes in CHANGES_OF_A_SHARED_ONE:
                with pytest.raises(NotAllowed):
                    await service.update(demoted, shared.id, changes)
            with pytest.raises(NotAllowed):
                await service.delete(demoted, shared.id)
            with pytest.raises(NotAllowed):
                await service.create(demoted, new_provider(is_shared=True))
            with pytest.raises(NotAllowed):
                await service.update(demoted, private.id, ProviderChanges(is_shared=True))
        with pytest.raises(NotAllowed):
            await service.create(ADMIN, new_provider(base_url="http://127.0.0.1:9/v1"))
        with pytest.raises(NotAllowed):
            await service.set_allowed_hosts(ADMIN, ["127.0.0.1:9"])
        assert (await service.get(BOB, shared.id)).base_url == shared.base_url
        assert (await service.resolve(BOB)).target.api_key == KEY


async def test_user_has_at_most_one_default(services: ProviderServices) -> None:
    async with services.open() as service:
        others = await service.create(BOB, new_provider("bobs"))
        first = await service.create(ANN, new_provider("first"))
        second = await service.create(ANN, new_provider("second"))
        assert (first.is_default, second.is_default) == (True, False)
        await service.update(ANN, second.id, ProviderChanges(is_default=True))
        made = await asyncio.gather(
            *[service.create(ANN, new_provider(f"p{n}", is_default=True)) for n in range(8)]
        )
        await asyncio.gather(
            *[service.update(ANN, provider.id, ProviderChanges(is_default=True)) for provider in made]
        )
        views, total = await service.list_page(ANN, page=1, page_size=100)
        assert total == 10
        assert sum(view.is_default for view in views) == 1
        assert (await service.get(BOB, others.id)).is_default


async def test_new_base_url_drops_the_key_unless_a_new_one_comes_with_it(services: ProviderServices) -> None:
    async with services.open() as service:
        mine = await service.create(ANN, new_provider())
        same = await service.update(ANN, mine.id, ProviderChanges(base_url="HTTPS://Models.Example:443/v1/"))
        assert await key_of(service, same) == KEY
        moved = await service.update(ANN, mine.id, ProviderChanges(base_url=ELSEWHERE))
        assert (moved.api_key, await key_of(service, moved)) == ("", "")

        await service.update(ANN, mine.id, ProviderChanges(api_key=KEY))
        both = await service.update(
            ANN, mine.id, ProviderChanges(base_url=URL, api_key="another-key-of-mine")
        )
        assert await key_of(service, both) == "another-key-of-mine"
        echoed = await service.update(ANN, mine.id, ProviderChanges(base_url=ELSEWHERE, api_key=both.api_key))
        assert await key_of(service, echoed) == ""


async def test_a_new_type_alone_keeps_a_custom_address_and_its_key(services: ProviderServices) -> None:
    async with services.open() as service:
        mine = await service.create(ANN, new_provider())
        for provider_type in ("deepseek", "anthropic", "openai_compatible"):
            same = await service.update(ANN, mine.id, ProviderChanges(provider_type=provider_type))
            assert (same.provider_type, same.base_url) == (provider_type, mine.base_url)
            assert await key_of(service, same) == KEY


async def test_a_new_type_alone_never_removes_a_key(services: ProviderServices) -> None:
    openai = new_provider(provider_type="openai", base_url="")
    deepseek = ProviderChanges(provider_type="deepseek")
    async with services.open() as service:
        mine = await service.create(ANN, openai)
        compatible = await service.update(ANN, mine.id, ProviderChanges(provider_type="openai_compatible"))
        assert (compatible.base_url, await key_of(service, compatible)) == (mine.base_url, KEY)

        mine = await service.create(ANN, openai)
        for changes in (deepseek, msgspec.structs.replace(deepseek, api_key=mine.api_key)):
            with pytest.raises(InvalidInput, match="keep address and key") as caught:
                await service.update(ANN, mine.id, changes)
            assert (caught.value.kind, mine.base_url in caught.value.message) == ("key_would_be_lost", True)
        assert (await key_of(service, mine), (await service.get(ANN, mine.id)).provider_type) == (
            KEY,
            "openai",
        )

        with_key = msgspec.structs.replace(deepseek, api_key="a-key-of-deepseek")
        moved = await service.update(ANN, mine.id, with_key)
        assert (moved.base_url, await key_of(service, moved)) == (
            "https://api.deepseek.com/v1",
            "a-key-of-deepseek",
        )
        without_key = await service.update(ANN, mine.id, ProviderChanges(provider_type="groq", api_key=None))
        assert (without_key.base_url, without_key.api_key) == ("https://api.groq.com/openai/v1", "")


async def test_mask_sent_back_leaves_the_key_and_an_empty_key_removes_it(services: ProviderServices) -> None:
    async with services.open() as service:
        mine = await service.create(ANN, new_provider())
        same = await service.update(ANN, mine.id, ProviderChanges(api_key=mine.api_key, max_tokens=5))
        assert (await key_of(service, same), same.max_tokens) == (KEY, 5)
        for empty in ("", None):
            await service.update(ANN, mine.id, ProviderChanges(api_key=KEY))
            bare = await service.update(ANN, mine.id, ProviderChanges(api_key=empty, max_tokens=None))
            assert (bare.api_key, bare.max_tokens, await key_of(service, bare)) == ("", None, "")


@pytest.mark.parametrize("key", ["a b", "line\nbreak: x", "nul\x00", "schlüssel"])
async def test_key_that_no_header_can_carry_is_refused_without_being_repeated(
    services: ProviderServices, key: str
) -> None:
    async with services.open() as service:
        with pytest.raises(InvalidInput) as caught:
            await service.create(ANN, new_provider(api_key=key))
        assert key not in caught.value.message


async def test_unknown_type_and_missing_url_are_refused_with_valid_values(
    services: ProviderServices,
) -> None:
    async with services.open() as service:
        with pytest.raises(InvalidInput, match="deepseek"):
            await service.create(ANN, new_provider(provider_type="nonsense"))
        with pytest.raises(InvalidInput, match="needs a base_url"):
            await service.create(ANN, new_provider(base_url=""))
        with pytest.raises(InvalidInput, match="embedded"):
            await service.create(ADMIN, new_provider(provider_type="local"))
        with pytest.raises(NotAllowed):
            await service.create(ANN, new_provider(provider_type="local", base_url=""))


async def test_run_gets_the_named_then_the_preferred_then_the_own_then_the_shared_provider(
    services: ProviderServices,
) -> None:
    async with services.open() as service:
        with pytest.raises(InvalidInput, match="connect a model"):
            await service.resolve(ANN)
        plain = await service.create(ADMIN, new_provider("shared", is_shared=True, is_default=False))
        assert (await service.resolve(ANN)).choice.provider_id == plain.id
        shared = await service.create(ADMIN, new_provider("shared default", is_shared=True, is_default=True))
        assert (await service.resolve(ANN)).choice.provider_id == shared.id
        other = await service.create(ANN, new_provider("own", is_default=False))
        assert (await service.resolve(ANN)).choice.provider_id == shared.id
        own = await service.create(ANN, new_provider("own default", is_default=True, max_tokens=77))
        assert (await service.resolve(ANN)).choice.provider_id == own.id
        assert (await service.resolve(ANN, preferred_id=other.id)).choice.provider_id == other.id
        with pytest.raises(Conflict, match="choose another default"):
            await service.resolve(ANN, preferred_id=12345)
        named = (await service.resolve(ANN, shared.id, "gpt-4o", preferred_id=other.id)).choice
        assert (named.provider_id, named.model, named.card.context_window) == (
            shared.id,
            "gpt-4o",
            128_000,
        )
        assert (await service.resolve(ANN)).choice.max_tokens == 77

        await service.update(ANN, own.id, ProviderChanges(enabled=False))
        with pytest.raises(InvalidInput, match="your default provider 'own default' is disabled"):
            await service.resolve(ANN)
        with pytest.raises(InvalidInput, match="disabled"):
            await service.resolve(ANN, own.id)
        await service.delete(ANN, own.id)
        with pytest.raises(NotFound):
            await service.resolve(ANN, own.id)


async def test_provider_without_a_model_says_so(services: ProviderServices) -> None:
    async with services.open() as service:
        mine = await service.create(ANN, new_provider(default_model=""))
        with pytest.raises(InvalidInput, match="name a model"):
            await service.resolve(ANN)
        assert (await service.resolve(ANN, mine.id, "two")).choice.model == "two"


async def test_embedded_model_is_resolved_at_its_current_address_and_gets_no_tools(
    services: ProviderServices,
) -> None:
    local = FakeLocal()
    async with services.open(local=local) as service:
        await service.create(ADMIN, NewProvider(name="local", provider_type="local", is_shared=True))
        resolved = await service.resolve(ANN)
        assert (resolved.target.base_url, resolved.target.api_key) == (
            "http://127.0.0.1:40001/v1",
            "of-this-start",
        )
        assert (resolved.choice.model, resolved.choice.card.tools) == ("smollm2-135m-instruct", False)
        local.problem = "its file is gone"
        with pytest.raises(Unavailable, match="gone"):
            await service.resolve(ANN)
        check = await service.test(ANN, resolved.choice.provider_id)
        assert (check.ok, check.error) == (False, "its file is gone")
    async with services.open() as service:
        with pytest.raises(Unavailable, match="disabled"):
            await service.resolve(ANN)


async def test_list_is_paged_newest_first(services: ProviderServices) -> None:
    async with services.open() as service:
        for number in range(5):
            await service.create(ANN, new_provider(f"p{number}"))
        await service.create(ADMIN, new_provider("shared", is_shared=True))
        views, total = await service.list_page(ANN, page=1, page_size=4)
        assert ([view.name for view in views], total) == (["shared", "p4", "p3", "p2"], 6)
        rest, _ = await service.list_page(ANN, page=2, page_size=4)
        assert [view.name for view in rest] == ["p1", "p0"]


async def test_lists_of_an_empty_database_are_empty_for_everybody(services: ProviderServices) -> None:
    async with services.open() as service:
        for caller in EVERYBODY:
            assert await service.list_page(caller, page=1, page_size=20) == ([], 0)
