"""Models that a provider does not list are refused; where its list is not known, every name is sent to it."""

import msgspec
import pytest

from luxx.errors import UnlistedModel
from luxx.infra.clock import utc_now
from luxx.providers import model_lists
from luxx.providers.catalog import UNKNOWN
from luxx.providers.local.model import LOCAL
from luxx.providers.model_lists import MAX_LISTED, ModelLists, store_list
from luxx.providers.models import ProviderChanges, ProviderRow
from luxx.providers.service import ProviderService
from provider_service.services import ADMIN, FakeLocal, ProviderServices, Upstream, new_provider

LISTED = [
    "gpt-4.1-mini",
    "gpt-4o-2024-08-06",
    "claude-sonnet-4-5-20250929",
    "models/gemini-2.0-flash-001",
    "llama3.2:latest",
    "qwen2.5:0.5b",
    "meta-llama/llama-3.3-70b-instruct",
]


def check(model: str, *names: str) -> None:
    """Checks a name against a provider with this list; none: its list is not known."""
    models = msgspec.json.encode(names).decode() if names else None
    row = ProviderRow(id=1, name="work", provider_type="openai", models=models)
    row.models_at = utc_now() if names else None
    ModelLists().check(row, model)


@pytest.mark.parametrize(
    "model",
    [
        *LISTED,
        "gpt-4o",
        "GPT-4o",
        "gpt-4o-2024-11-20",
        "claude-sonnet-4-5",
        "claude-haiku-9-latest",
        "gemini-2.0-flash",
        "gemini-2.0-flash-latest",
        "llama3.2",
        "meta-llama/llama-3.3-70b-instruct:free",
        "ft:gpt-4o:acme::1",
        "@preset/fast",
    ],
)
def test_listed_models_and_their_aliases_are_not_refused(model: str) -> None:
    check(model, *LISTED)


@pytest.mark.parametrize(
    ("model", "near"),
    [("gpt-4.1-mimi", "gpt-4.1-mini"), ("llama3.2:1b", "llama3.2:latest"), ("zzz", "gpt-4.1-mini")],
)
def test_another_model_is_refused_with_names_like_it(model: str, near: str) -> None:
    with pytest.raises(UnlistedModel) as refused:
        check(model, *LISTED)
    message = refused.value.message
    assert message.startswith(f"provider 'work' has no model '{model}'; it has ")
    assert near in message
    assert "GET /providers/1/models" in message


def test_without_a_list_nothing_is_refused() -> None:
    check("any")


async def test_a_list_that_may_be_cut_is_not_stored(services: ProviderServices) -> None:
    async with services.open() as service:
        mine = await service.create(ADMIN, new_provider())
        names = [f"m{number}" for number in range(MAX_LISTED)]
        for listed, is_known in ((names[1:], True), (names, False), (["one"], True), ([], False)):
            services.store.write_now(lambda session, kept=listed: store_list(session, mine.id, kept))
            assert ((await service.get(ADMIN, mine.id)).models_at is not None) == is_known


async def test_the_list_is_fetched_again_before_a_model_is_refused(
    services: ProviderServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Upstream().serve() as upstream, services.open() as service, services.open() as other:
        mine = await service.create(ADMIN, new_provider(base_url=upstream.base_url))
        services.store.write_now(lambda session: store_list(session, mine.id, ["old"]))
        assert not await service.refetch_models(ADMIN, mine.id), "it was fetched a moment ago"
        await refused(other, mine.id, "two")
        monkeypatch.setattr(model_lists, "FRESH_SECONDS", 0.0)
        assert await service.refetch_models(ADMIN, mine.id)
        for each in (service, other):
            await choose(each, mine.id, "two")
        await refused(other, mine.id, "old")
        upstream.lists = False
        assert await service.refetch_models(ADMIN, mine.id)
        await choose(other, mine.id, "three")


async def test_the_list_of_another_address_is_forgotten(services: ProviderServices) -> None:
    async with Upstream().serve() as upstream, services.open() as service:
        mine = await service.create(ADMIN, new_provider(base_url=upstream.base_url))
        await service.list_models(ADMIN, mine.id)
        await service.update(ADMIN, mine.id, ProviderChanges(base_url=f"{upstream.base_url}/v1"))
        assert (await service.get(ADMIN, mine.id)).models_at is None


async def choose(service: ProviderService, provider_id: int, model: str) -> None:
    await service.update(ADMIN, provider_id, ProviderChanges(default_model=model))


async def refused(service: ProviderService, provider_id: int, model: str) -> None:
    with pytest.raises(UnlistedModel) as refusal:
        await choose(service, provider_id, model)
    assert set(refusal.value.detail["fields"]) == {"$.default_model"}


async def test_a_provider_without_a_list_says_so(services: ProviderServices) -> None:
    async with Upstream().serve() as upstream, services.open() as service:
        mine = await service.create(ADMIN, new_provider(base_url=upstream.base_url))
        offered = await service.list_models(ADMIN, mine.id)
        assert (offered.models, offered.is_known, offered.note) == (["one", "two"], True, None)
        windows = [(card.context_window, card.is_known) for card in offered.cards]
        assert windows == [(UNKNOWN.context_window, False), (9000, False)]
        upstream.lists = False
        offered = await service.list_models(ADMIN, mine.id)
        assert (offered.models, offered.is_known) == ([], False)
        assert "does not list its models" in str(offered.note)


async def test_the_embedded_model_answers_under_its_own_name_only(services: ProviderServices) -> None:
    async with services.open(local=FakeLocal()) as service:
        mine = await service.create(
            ADMIN, new_provider(provider_type=LOCAL, base_url="", api_key="", default_model="an-older-file")
        )
        resolved = await service.resolve(ADMIN, mine.id)
        assert resolved.choice.model == FakeLocal.model_name
        with pytest.raises(UnlistedModel, match=r"it has smollm2-135m-instruct$"):
            await service.resolve(ADMIN, mine.id, "gpt-4o")
