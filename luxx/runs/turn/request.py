"""The request of a run or of a turn: what it was asked, by whom, and the values that hold for it.

It is stored as JSON, in the row of a chat's run and in the event that begins a turn of a room or a task.
"""

from typing import Any

import msgspec

from luxx.domain.context.messages import PastMessage
from luxx.wire.model_settings import ModelSettings
from luxx.wire.run import Delegated, InConversation, Invocation, OrchestratedTurn, RoomCopyTurn, WhenAsked
from luxx.wire.tool import ToolChoice, ToolSpec


class FallbackTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A provider and a model that make the calls of a run after the ones before have failed for good; with a
    `problem`, a sentence, they cannot and are passed over."""

    provider_id: int
    provider_name: str | None = None
    model: str
    problem: str = ""


class GivenPrompt(msgspec.Struct, frozen=True, kw_only=True, tag="given"):
    """The origin of a call that has no conversation: what its client gives, the messages and its own tools.

    The model's calls of these tools end the run; the client makes them and sends the results in its next
    call. The answer is not stored, and the messages are removed when the run ends.
    """

    past: list[PastMessage]
    tools: list[ToolSpec] = []
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None


Origin = InConversation | Invocation | GivenPrompt | Delegated | OrchestratedTurn | RoomCopyTurn
"""What a run or a turn was asked."""


class ChatRequest(ModelSettings, frozen=True, kw_only=True):
    """The request of a run or a turn. Every default is resolved at its start: later changes do not alter it.

    `agent_id` is the agent that the values come from, if any. `max_iterations`: model calls with tools; None:
    as configured. `skills`: names of the skills that the model may activate; None: all. `fallbacks` are tried
    in order. `tools` are the names offered to the model, which gets the images with `takes_images`.
    `response_schema`: a JSON schema for the answer's text. `when_asked`: whether the run waits when it must
    ask a person. `stop`: texts that end a completion. `warnings` begin the log."""

    origin: Origin = OrchestratedTurn()
    provider_id: int
    provider_name: str | None = None
    model: str
    agent_id: int | None = None
    max_iterations: int | None = None
    skills: list[str] | None = None
    fallbacks: list[FallbackTarget] = []
    tools: list[str] = []
    takes_images: bool = False
    max_tokens: int | None = None  # A user's default may be larger than what others may choose.
    system_prompt: str = ""
    response_schema: dict[str, Any] | None = None
    when_asked: WhenAsked = WhenAsked.WAIT
    stop: list[str] = []
    warnings: list[str] = []

    @property
    def rule_agents(self) -> tuple[int, ...]:
        """The agents whose permission rules apply: the run's own (0: none), then those of the runs above."""
        above = self.origin.agent_ids if isinstance(self.origin, Delegated) else ()
        return (self.agent_id or 0, *above)

    @property
    def stores_nothing(self) -> bool:
        """Whether it is that of a call whose client gives the messages, or of a subagent of one."""
        origin = self.origin
        return isinstance(origin, GivenPrompt) or (isinstance(origin, Delegated) and origin.is_of_given)
