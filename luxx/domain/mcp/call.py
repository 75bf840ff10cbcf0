"""Calls of tools of MCP servers, as the connections get them, and making one again after its server has asked
its user something.

In revision 2026-07-28 the server answers with questions, in the older one with an error that names pages to
open. Not here: questions in between, while a call waits (`elicitation`).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

import msgspec

from luxx.domain.mcp.elicitation import (
    MOST_ASKED,
    MOST_STATE_BYTES,
    AskAll,
    AskedOfUser,
    CallInProgress,
    Continued,
    Elicit,
    Elicitation,
    read_elicitation,
    result_of,
)
from luxx.domain.mcp.sdk import AnsweredWithError
from luxx.errors import ToolFailed
from luxx.tools.core import ToolContext
from luxx.wire.run import ElicitationChoice
from luxx.wire.tool import ToolResult
from luxx.wire.turn import StepFile

KeepImages = Callable[[Sequence[bytes]], Awaitable[list[StepFile | str]]]
"""Stores the images of one call. Returns the image of each, or why it cannot be shown."""


class McpCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call of a server's tool, by the server's own name of it, for the user of `context`.

    `elicit` asks the user while the server waits, `ask_all` before the call is made again; None: nobody can
    be asked. `continued`: the answers to what the server asked before.
    """

    tool: str
    arguments: dict[str, Any]
    is_read_only: bool
    context: ToolContext
    keep_images: KeepImages
    mirrors_arguments: bool
    """Whether the tool's schema has some arguments sent as headers, too."""

    elicit: Elicit | None = None
    ask_all: AskAll | None = None
    continued: Continued | None = None


CallTool = Callable[[McpCall], Awaitable[ToolResult]]


class PagesRequired(Exception):
    """A server refused a call until its user has opened pages."""

    def __init__(self, questions: list[Elicitation]) -> None:
        self.questions = questions


def pages_required(types: Any, error: Any, hidden: Callable[[str], str]) -> PagesRequired | None:
    """What an error of the older revision asks for; None: it is another error, or cannot be read.

    Raises ToolFailed for an address that nobody is to open."""
    data = error.data if error.code == types.URL_ELICITATION_REQUIRED else None
    listed = cast("dict[str, Any]", data).get("elicitations") if isinstance(data, dict) else None
    if not isinstance(listed, list) or not 0 < len(cast("list[Any]", listed)) <= MOST_ASKED:
        return None
    try:
        params = [types.ElicitRequestURLParams.model_validate(one) for one in cast("list[Any]", listed)]
    except ValueError:
        return None
    return PagesRequired([read_elicitation(one, str(at), hidden) for at, one in enumerate(params)])


async def call_until_answered(
    types: Any,
    in_progress: CallInProgress,
    send: Callable[[dict[str, Any]], Awaitable[Any]],
    hidden: Callable[[str], str],
    ask_all: AskAll | None = None,
    continued: Continued | None = None,
) -> Any:
    """The result of a call, which is made again after each time that its server asks something first. `send`:
    makes it, with these parameters more; `ask_all`, `continued`: see McpCall. Raises what these raise, and
    ToolFailed with a predicate that follows the server's name."""
    while True:
        more, rounds = {}, 1
        if continued is not None:
            more, rounds = _more_parameters(types, continued), continued.rounds + 1
        try:
            answer = await send(more)
        except PagesRequired as required:
            if rounds > MOST_ASKED:
                raise AnsweredWithError(f"asks more than {MOST_ASKED} times before it answers") from None
            asked = AskedOfUser(questions=required.questions, rounds=rounds, is_refusal=True)
        else:
            if not isinstance(answer, types.InputRequiredResult):
                return answer
            requests: dict[str, Any] = answer.input_requests or {}
            asked = _asked_by_result(types, requests, answer.request_state, hidden, rounds)
        continued = await (in_progress.ask_each(asked) if ask_all is None else ask_all(asked))


def _more_parameters(types: Any, continued: Continued) -> dict[str, Any]:
    if not continued.is_refusal:
        responses = {key: result_of(types, answer) for key, answer in continued.answers.items()}
        return {"input_responses": responses, "request_state": continued.state}
    if any(answer.action is not ElicitationChoice.ACCEPT for answer in continued.answers.values()):
        raise AnsweredWithError("has its user open a page before the call, which did not happen")
    return {}


def _asked_by_result(
    types: Any, requests: Mapping[str, Any], state: str | None, hidden: Callable[[str], str], rounds: int
) -> AskedOfUser:
    """What a server asks before a call is made again. Raises ToolFailed with a predicate that follows the
    server's name, where it asks for something else than a person's word."""
    if not all(isinstance(request, types.ElicitRequest) for request in requests.values()):
        raise ToolFailed("asks for a model or for files, which it does not get")
    if rounds > MOST_ASKED or len(requests) > MOST_ASKED:
        raise ToolFailed(f"asks more than {MOST_ASKED} times before it answers")
    if state is not None and len(state.encode("utf-8", "replace")) > MOST_STATE_BYTES:
        raise ToolFailed(f"wants more than {MOST_STATE_BYTES // 1024} KiB back with the answer")
    questions = [read_elicitation(request.params, key, hidden) for key, request in requests.items()]
    return AskedOfUser(questions=questions, state=state, rounds=rounds)
