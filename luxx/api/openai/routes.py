"""`/v1`: the routes of the OpenAI-compatible API."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from luxx.api.http.authentication import CHAT
from luxx.api.http.event_streams import Streams
from luxx.api.http.request_input import InjectedCaller
from luxx.api.openai.answer import AnswerFailure, CollectedAnswer
from luxx.api.openai.chat_answer import ChatChunks, chat_completion
from luxx.api.openai.chat_request import ChatBody, read_messages
from luxx.api.openai.content import Given
from luxx.api.openai.models import AgentModel, ModelEntry, ModelList, ModelNames, NamedModel, RoomModel
from luxx.api.openai.responses_answer import ResponseEvents, collected_response
from luxx.api.openai.responses_request import ResponsesBody
from luxx.api.openai.stream import EndCall, StartWatch, collect_answer, failure_response, stream_answer
from luxx.domain.accounts.caller import Caller
from luxx.errors import InvalidInput
from luxx.runs.requests import NewCall, NewMessage
from luxx.runs.service import RunService, Submission
from luxx.runs.streams.watch import FrameEncoder, RunWatch
from luxx.runs.turn.state import GivenPrompt

InjectedNames = NamedDependency[ModelNames]
InjectedRuns = NamedDependency[RunService]
InjectedStreams = NamedDependency[Streams]
CONVERSATION = "conversation_id"
"""The key in `metadata` that keeps a call in a conversation."""


class OpenAIController(Controller):
    path = "/v1"
    tags = ("openai",)
    opt = CHAT

    @get("/models")
    async def list_models(self, caller: InjectedCaller, model_names: InjectedNames) -> ModelList:
        """The models that you may use, as `provider/model`; and your agents."""
        return await model_names.list_all(caller)

    @get("/models/{model:path}")
    async def show_model(
        self, caller: InjectedCaller, model_names: InjectedNames, model: FromPath[str]
    ) -> ModelEntry:
        """One model."""
        return await model_names.entry(caller, model.removeprefix("/"))

    @post("/chat/completions", status_code=200)
    async def complete_chat(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        model_names: InjectedNames,
        runs: InjectedRuns,
        streams: InjectedStreams,
        data: JSONBody[ChatBody],
    ) -> Response[Any]:
        """Answer a chat, whole or with `stream` in chunks. Nothing is kept, unless `metadata` has a
        `conversation_id`: then only the last message of the user is new."""
        data.check()
        given = read_messages(data.messages)
        prompt = data.prompt(given)
        called = Called(data.model, given, prompt, await data.options(), data.metadata or {})
        start, end_call = await self._starter(request, caller, model_names, runs, called)
        if data.stream:
            options = data.stream_options
            has_usage = options is not None and bool(options.include_usage)
            chunks = ChatChunks(data.model, has_calls=bool(prompt.tools), has_usage=has_usage)
            return await stream_answer(caller, streams, start, chunks, end_call)
        collected = CollectedAnswer(has_calls=bool(prompt.tools))
        ended = await collect_answer(request, start, collected, end_call)
        if isinstance(ended, AnswerFailure):
            return failure_response(ended)
        completion = chat_completion(collected, ended, data.model)
        return Response(completion, status_code=200, media_type="application/json")

    @post("/responses", status_code=200)
    async def respond(
        self,
        request: Request[Any, Any, Any],
        caller: InjectedCaller,
        model_names: InjectedNames,
        runs: InjectedRuns,
        streams: InjectedStreams,
        data: JSONBody[ResponsesBody],
    ) -> Response[Any]:
        """Answer the input, whole or with `stream` in events. Nothing is kept, unless `metadata` has a
        `conversation_id`: then only the last message of the user is new."""
        data.check()
        given = data.read_input()
        prompt = data.prompt_of(given)
        called = Called(data.model, given, prompt, await data.options(), data.metadata or {})
        start, end_call = await self._starter(request, caller, model_names, runs, called)
        if data.stream:
            events = ResponseEvents(data, has_calls=bool(prompt.tools))
            return await stream_answer(caller, streams, start, events, end_call)
        collected = CollectedAnswer(has_calls=bool(prompt.tools))
        ended = await collect_answer(request, start, collected, end_call)
        if isinstance(ended, AnswerFailure):
            return failure_response(ended)
        response = collected_response(data, collected, ended)
        return Response(response, status_code=200, media_type="application/json")

    @staticmethod
    async def _starter(
        request: Request[Any, Any, Any],
        caller: Caller,
        model_names: ModelNames,
        runs: RunService,
        called: "Called",
    ) -> tuple[StartWatch, EndCall | None]:
        """How to start the run, and how to end a call that stores nothing."""
        model = await model_names.find(caller, called.model)
        submission = new_submission(model, called, size=len(await request.body()))

        async def start(encoder: FrameEncoder) -> RunWatch:
            return await runs.send_and_watch(caller, submission, encoder=encoder)

        return start, partial(runs.end_call, caller) if isinstance(submission, NewCall) else None


@dataclass(frozen=True, slots=True)
class Called:
    """A request, in the same form for both routes."""

    model: str
    given: Given
    prompt: GivenPrompt
    options: dict[str, Any]
    metadata: dict[str, str]


def new_submission(model: NamedModel, called: Called, *, size: int) -> Submission:
    """What to run. Raises InvalidInput for what does not go together."""
    given, prompt, options = called.given, called.prompt, called.options
    conversation_id = called.metadata.get(CONVERSATION)
    if isinstance(model, RoomModel):
        raise InvalidInput(
            "rooms do not answer here; run one with POST /chat-rooms/{room_id}/start", field="$.model"
        )
    is_agent = isinstance(model, AgentModel)
    if prompt.tools and (is_agent or conversation_id is not None):
        where = "an agent uses its own tools" if is_agent else "a conversation uses the tools of the server"
        raise InvalidInput(
            f"{where}; leave out tools, or name a model as provider/model without a conversation_id",
            field="$.tools",
        )
    if conversation_id is not None:
        if is_agent:
            raise InvalidInput(
                "the agent of a conversation is set with PUT /conversations/{conversation_id}; name a model "
                "as provider/model",
                field="$.model",
            )
        text, images = given.last_user()
        return NewMessage(
            conversation_id=conversation_id, text=text, attachments=images, **_target(model), **options
        )
    instructions = "\n\n".join(text for text in given.instructions if text.strip())
    return NewCall(given=prompt, instructions=instructions, size=size, **_target(model), **options)


def _target(model: NamedModel) -> dict[str, Any]:
    match model:
        case AgentModel(agent_id=agent_id):
            return {"agent_id": agent_id}
        case RoomModel():
            return {}
        case _:
            return {"provider_id": model.provider_id, "model": model.model}
