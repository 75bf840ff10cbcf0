"""The settings of model calls: a user, a conversation, an agent, a seat and a request each may choose them.

A new setting is a line in `ModelSettings` and `ModelSettingsChange`, one in `ModelSettingsColumns`
(`infra/store/tables.py`), a migration, and what the dialects send for it (`providers/`).
"""

from enum import StrEnum
from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

MAX_ID = 2**31 - 1

ProviderId = Annotated[int, Meta(ge=1, le=MAX_ID)]
Temperature = Annotated[float, Meta(ge=0, le=2)]
MaxTokens = Annotated[int, Meta(ge=1, le=10_000_000)]


SlidingWindow = Annotated[int, Meta(ge=0, le=10_000)]
"""How many of the newest messages of a conversation its model reads; 0: all that fit."""


class ReasoningEffort(StrEnum):
    """How much a model thinks, where it thinks. Vendors have more names for it; these all of them take."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class MemoryMode(StrEnum):
    """Whether runs use memory. `off`: they read and write nothing; `ask`: a model's write asks, and nothing
    is extracted."""

    OFF = "off"
    ASK = "ask"
    ON = "on"


class Extraction(StrEnum):
    """Whether facts are taken out of conversations by themselves."""

    OFF = "off"
    ON = "on"

    def __bool__(self) -> bool:
        return self is Extraction.ON


class TitleMode(StrEnum):
    """Whether a model names conversations after their first answer. `off`: they keep the first words."""

    OFF = "off"
    ON = "on"


class PlanningMode(StrEnum):
    """Whether messages are answered by a plan of steps: never, where they look complex, or always."""

    OFF = "off"
    AUTO = "auto"
    ALWAYS = "always"


class RoutingMode(StrEnum):
    """Whether the words of a message choose skills and agents. `off`: no; `suggest`: the model gets the
    best three; `auto`: the best one acts."""

    OFF = "off"
    SUGGEST = "suggest"
    AUTO = "auto"


class ModelSettings(Struct, frozen=True, kw_only=True):
    """A null value is left to the next source, and in the end to the provider.

    `max_tokens`: of a completion. `reasoning_effort` counts only where the model thinks.
    """

    temperature: Temperature | None = None
    max_tokens: MaxTokens | None = None
    thinking_enabled: bool | None = None
    reasoning_effort: ReasoningEffort | None = None


class ModelSettingsChange(Struct, frozen=True, kw_only=True):
    """Settings to change: UNSET leaves a value as it is, None clears it."""

    temperature: Temperature | UnsetType | None = UNSET
    max_tokens: MaxTokens | UnsetType | None = UNSET
    thinking_enabled: bool | UnsetType | None = UNSET
    reasoning_effort: ReasoningEffort | UnsetType | None = UNSET


MODEL_SETTINGS = ModelSettings.__struct_fields__
