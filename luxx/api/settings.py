"""`/settings`: the signed-in user's defaults for new conversations."""

from typing import Annotated

import msgspec
from litestar import Controller, get, put
from litestar.di import NamedDependency
from litestar.params import JSONBody
from msgspec import UNSET, Meta, UnsetType

from luxx.accounts.caller import Caller
from luxx.accounts.settings import SettingsChange, SettingsService, SettingsView
from luxx.api.envelope import Success, success

LARGEST = 2**31 - 1


class SettingsBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A field left out stays as it is; null clears it."""

    default_provider_id: Annotated[int, Meta(ge=1, le=LARGEST)] | UnsetType | None = UNSET
    temperature: Annotated[float, Meta(ge=0, le=2)] | UnsetType | None = UNSET
    max_tokens: Annotated[int, Meta(ge=1, le=LARGEST)] | UnsetType | None = UNSET
    thinking_enabled: bool | UnsetType | None = UNSET
    system_prompt: Annotated[str, Meta(max_length=100_000, pattern=r"^[^\x00]*$")] | UnsetType | None = UNSET


class SettingsController(Controller):
    path = "/settings"
    tags = ("settings",)

    @get()
    async def read(
        self, user_settings: NamedDependency[SettingsService], caller: NamedDependency[Caller]
    ) -> Success[SettingsView]:
        """The own defaults."""
        return success(await user_settings.get(caller))

    @put()
    async def update(
        self,
        user_settings: NamedDependency[SettingsService],
        caller: NamedDependency[Caller],
        data: JSONBody[SettingsBody],
    ) -> Success[SettingsView]:
        """Change the own defaults."""
        change = SettingsChange(
            default_provider_id=data.default_provider_id,
            temperature=data.temperature,
            max_tokens=data.max_tokens,
            thinking_enabled=data.thinking_enabled,
            system_prompt=data.system_prompt,
        )
        return success(await user_settings.update(caller, change), "saved")
