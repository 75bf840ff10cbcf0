"""The demo provider: absent unless enabled, never a default, never charged, not changed into another."""

import pytest

from luxx.errors import InvalidInput, Unavailable
from luxx.providers.demo.server import DEMO_NAME, store_demo_provider
from luxx.providers.models import ProviderChanges
from luxx.providers.queries import has_no_provider
from luxx.wire.turn import Usage
from provider_service.services import ADMIN, ANN, EVE, ProviderServices, new_provider


async def test_the_demo_is_offered_to_the_samples_and_is_nobodys_default(services: ProviderServices) -> None:
    async def switch(is_enabled: bool) -> list[str]:
        for _ in range(2):
            await services.store.write(lambda session: store_demo_provider(session, is_enabled=is_enabled))
        return [one.name for one in (await service.list_page(ANN, page=1, page_size=9))[0]]

    async with services.open() as service:
        assert await switch(False) == []
        assert await switch(True) == [DEMO_NAME]
        demo = (await service.list_page(ADMIN, page=1, page_size=9))[0][0]
        assert (await service.list_page(EVE, page=1, page_size=9))[0] == []
        assert await service.usable(ANN) == []
        assert await services.store.read(lambda session: has_no_provider(session, ADMIN.user_id))
        for preferred_id in (None, demo.id):
            with pytest.raises(InvalidInput, match="connect a model"):
                await service.resolve(ANN, preferred_id=preferred_id)
        with pytest.raises(InvalidInput, match="cannot be the default"):
            await service.update(ADMIN, demo.id, ProviderChanges(is_default=True))
        with pytest.raises(InvalidInput, match="take no base_url"):
            await service.update(ADMIN, demo.id, ProviderChanges(base_url="https://models.example/v1"))
        with pytest.raises(InvalidInput, match="added by the configuration"):
            await service.create(ADMIN, new_provider(provider_type="demo"))
        with pytest.raises(Unavailable, match=r"demo\.enabled"):
            await service.resolve(ANN, demo.id)
        selection = await services.store.read(
            lambda session: service.select_provider(session, ANN, demo.id, None)
        )
        assert selection.choice.model == "demo"
        assert selection.choice.card.cost(Usage(prompt_tokens=10**6, completion_tokens=10**6)) == 0
        assert await switch(False) == []
