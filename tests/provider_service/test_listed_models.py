"""Models that a provider does not list are refused; where its list is not known, every name is sent to it."""

import pytest

from luxx.errors import UnlistedModel
from luxx.providers import catalog
from luxx.providers.catalog import ModelLists
from luxx.providers.local.model import LOCAL
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


def lists(*names: str) -> ModelLists:
    kept = ModelLists()
    kept.keep(1, names)
    return kept


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
    lists(*LISTED).check(1, "work", model)


@pytest.mark.parametrize(
    ("model", "near"),
    [("gpt-4.1-mimi", "gpt-4.1-mini"), ("llama3.2:1b", "llama3.2:latest"), ("zzz", "gpt-4.1-mini")],
)
def test_another_model_is_refused_with_names_like_it(model: str, near: str) -> None:
    with pytest.raises(UnlistedModel) as refused:
        lists(*LISTED).check(1, "work", model)
    message = refused.value.message
    assert message.startswith(f"provider 'work' has no model '{model}'; it has ")
    assert near in message
    assert "GET /providers/1/models" in message


def test_without_a_list_nothing_is_refused() -> None:
    kept = lists("one")
    kept.check(2, "other", "any")
    kept.keep(1, ())
    kept.check(1, "work", "any")
    kept.keep(1, [f"m{number}" for number in range(catalog.MAX_LISTED)])
    kept.check(1, "work", "any")


async def test_the_list_is_fetched_again_before_a_model_is_refused(
    services: ProviderServices, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Upstream().serve() as upstream, services.open() as service:
        mine = await service.create(ADMIN, new_provider(base_url=upstream.base_url))
        service.model_lists.keep(mine.id, ["old"])
        assert not await service.refetch_models(ADMIN, mine.id), "it was fetched a moment ago"
        monkeypatch.setattr(catalog, "FRESH_SECONDS", 0.0)
        assert await service.refetch_models(ADMIN, mine.id)
        service.model_lists.check(mine.id, "mine", "two")
        upstream.lists = False
        assert await service.refetch_models(ADMIN, mine.id)
        service.model_lists.check(mine.id, "mine", "three")


async def test_a_provider_without_a_list_says_so(services: ProviderServices) -> None:
    async with Upstream().serve() as upstream, services.open() as service:
        mine = await service.create(ADMIN, new_provider(base_url=upstream.base_url))
        offered = await service.list_models(ADMIN, mine.id)
        assert (offered.models, offered.is_known, offered.note) == (["one", "two"], True, None)
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
