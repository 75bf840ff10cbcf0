"""What callers ask of an answer: a message to send, one to answer again, a call without a conversation. What
they leave open is resolved in `requests.py`.
"""

from typing import Any

from luxx.domain.files.attachments import GivenAttachment
from luxx.runs.turn.state import GivenPrompt
from luxx.wire.message import PromptImage
from luxx.wire.model_settings import ModelSettings, PlanningMode, RoutingMode
from luxx.wire.run import WhenAsked


class AnswerOptions(ModelSettings, frozen=True, kw_only=True):
    """Options of an answer; None means the default.

    `tools`: all that the user may use, none, or the named ones; default: all if the model is known to support
    tools. `skills`: those that a person activates. `response_schema`: a JSON schema for the answer's text.
    `when_asked`: whether the run waits when it must ask a person. `stop`: texts that end a completion.
    `warnings`: what the run begins with. `may_fall_back`: whether fallbacks of the agent may answer instead.
    """

    tools: bool | list[str] | None = None
    model: str | None = None
    provider_id: int | None = None
    response_schema: dict[str, Any] | None = None
    when_asked: WhenAsked | None = None
    stop: list[str] = []
    warnings: list[str] = []
    may_fall_back: bool = True
    skills: list[str] = []


class NewMessage(AnswerOptions, frozen=True, kw_only=True):
    """A message to send, below `parent_id` or by default below the selected leaf. `planning`: whether steps
    of a plan may answer it. `routing`: whether its words choose skills and agents."""

    planning: PlanningMode | None = None
    routing: RoutingMode | None = None
    conversation_id: str
    text: str
    attachments: list[GivenAttachment] = []
    parent_id: str | None = None


class NewInvocation(AnswerOptions, frozen=True, kw_only=True):
    """A call of an agent without a conversation: one message and its answer."""

    agent_id: int
    text: str
    attachments: list[GivenAttachment] = []


class NewCall(AnswerOptions, frozen=True, kw_only=True):
    """A call without a conversation, which gives all its messages: of an agent, or of a model alone.

    `instructions` follow the system prompt of the agent. `size` is the bytes of what is given.
    """

    given: GivenPrompt
    instructions: str = ""
    agent_id: int | None = None
    size: int = 0

    @property
    def images(self) -> dict[str, PromptImage]:
        """The images of the messages."""
        return {id_: image for message in self.given.past for id_, image in message.images.items()}


class Regeneration(AnswerOptions, frozen=True, kw_only=True):
    """A message to answer again: a user's message, or an assistant's whose user message is answered again.
    `repeats_skills`: a person activated the `skills` for the answer before; those that are gone are left out.
    """

    planning: PlanningMode | None = None
    message_id: str
    repeats_skills: bool = False


class NewCompression(AnswerOptions, frozen=True, kw_only=True):
    """A wish that less of a conversation is sent from now on: a run decides it and the answer keeps it."""

    conversation_id: str
    message_id: str
    planning: PlanningMode | None = PlanningMode.OFF
    routing: RoutingMode | None = RoutingMode.OFF
