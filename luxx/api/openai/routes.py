"""`/v1`: the routes of the OpenAI-compatible API."""

from dataclasses import dataclass
from functools import partial
from typing import Any

from litestar import Controller, Request, Response, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, JSONBody

from luxx.api.http.authentication import CHAT
from luxx.api.http.event_streams import Streams
from luxx.api.http.request_input import IGNORES_QUERY, TAKES_CUT_TEXT, InjectedCaller, work_on
from luxx.api.openai.answer import AnswerFailure, CollectedAnswer
from luxx.api.openai.chat_answer import ChatChunks, chat_completion
from luxx.api.openai.chat_request import ChatBody, read_messages
from luxx.api.openai.content import Given, ignored_members
from luxx.api.openai.models import AgentModel, ModelEntry, ModelList, ModelNames, ProviderModel, RoomModel
from luxx.api.openai.responses_answer import ResponseEvents, collected_response
from luxx.api.openai.responses_request import ResponsesBody
from luxx.api.openai.speakers import Speakers
from luxx.api.openai.stream import EndCall, StartWatch, collect_answer, failure_response, stream_answer
from luxx.domain.accounts.caller import Caller
from luxx.errors import InvalidInput
from luxx.features.chats.service import ChatService, Submission
from luxx.features.rooms.calls import GivenText, RoomCallService
from luxx.runs.options import NewCall, NewMessage
from luxx.runs.service import RunService
from luxx.runs.streams.watch import FrameEncoder, RunWatch
from luxx.runs.turn.state import GivenPrompt
from luxx.wire.model_settings import PlanningMode, RoutingMode
from luxx.wire.turn import steps_text

InjectedNames = NamedDependency[ModelNames]
InjectedRoomCalls = NamedDependency[RoomCallService]
InjectedChats = NamedDependency[ChatService]
InjectedRuns = NamedDependency[RunService]
InjectedStreams = NamedDependency[Streams]
CONVERSATION = "conversation_id"
"""The key in `metadata` that keeps a call in a conversation, or in the room that is called."""


class OpenAIController(Controller):
    path = "/v1"
    tags = ("openai",)
    opt = {**CHAT, IGNORES_QUERY: True, TAKES_CUT_TEXT: True}

    @get("/models")
    async def list_models(self, caller: InjectedCaller, model_names: InjectedNames) -> ModelList:
        """The models that you may use, as `provider/model`; your agents; and your rooms."""
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
        chats: InjectedChats,
        runs: InjectedRuns,
        room_calls: InjectedRoomCalls,
        streams: InjectedStreams,
        data: JSONBody[ChatBody],
    ) -> Response[Any]:
        """Answer a chat, whole or with `stream` in chunks. Nothing is kept, unless `metadata` has a
        `conversation_id`: then only the last message of the user is new."""
        data.check()
        body = await request.body()
        given = await work_on(body, read_messages, data.messages)
        given.warnings += await work_on(body, ignored_members, body, ChatBody)
        prompt = await work_on(body, data.prompt, given)
        called = Called(data.model, given, prompt, await data.options(), data.metadata or {})
        begun = await self._begin(request, caller, model_names, chats, runs, room_calls, called)
        start, end_call, speakers = begun
        if data.stream:
            options = data.stream_options
            has_usage = options is not None and bool(options.include_usage)
            chunks = ChatChunks(
                data.model, has_usage=has_usage, has_calls=called.has_tools, speakers=speakers
            )
            return await stream_answer(caller, streams, start, chunks, end_call)
        collected = CollectedAnswer(has_calls=called.has_tools, speakers=speakers)
        ended = await collect_answer(request, start, collected, end_call, partial(runs.get, caller))
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
        chats: InjectedChats,
        runs: InjectedRuns,
        room_calls: InjectedRoomCalls,
        streams: InjectedStreams,
        data: JSONBody[ResponsesBody],
    ) -> Response[Any]:
        """Answer the input, whole or with `stream` in events. Nothing is kept, unless `metadata` has a
        `conversation_id`: then only the last message of the user is new."""
        data.check()
        body = await request.body()
        given = await work_on(body, data.read_input)
        given.warnings += await work_on(body, ignored_members, body, ResponsesBody)
        prompt = await work_on(body, data.prompt_of, given)
        called = Called(data.model, given, prompt, await data.options(), data.metadata or {})
        begun = await self._begin(request, caller, model_names, chats, runs, room_calls, called)
        start, end_call, speakers = begun
        if data.stream:
            events = ResponseEvents(data, has_calls=called.has_tools, speakers=speakers)
            return await stream_answer(caller, streams, start, events, end_call)
        collected = CollectedAnswer(has_calls=called.has_tools, speakers=speakers)
        ended = await collect_answer(request, start, collected, end_call, partial(runs.get, caller))
        if isinstance(ended, AnswerFailure):
            return failure_response(ended)
        response = collected_response(data, collected, ended)
        return Response(response, status_code=200, media_type="application/json")

    @staticmethod
    async def _begin(
        request: Request[Any, Any, Any],
        caller: Caller,
        model_names: ModelNames,
        chats: ChatService,
        runs: RunService,
        room_calls: RoomCallService,
        called: "Called",
    ) -> tuple[StartWatch, EndCall | None, Speakers | None]:
        """How to start the run, how to end a call that stores nothing, and how to read the run of a room."""
        model = await model_names.find(caller, called.model)
        end_call = partial(runs.end_call, caller)
        if isinstance(model, RoomModel):
            check_for_room(called, model)
            is_kept = called.conversation_id is not None
            start = partial(start_room, room_calls, caller, model.room_id, called)
            return start, None if is_kept else end_call, Speakers()
        submission = new_submission(model, called, size=len(await request.body()))

        async def start_run(encoder: FrameEncoder) -> RunWatch:
            return await chats.send_and_watch(caller, submission, encoder=encoder)

        return start_run, end_call if isinstance(submission, NewCall) else None, None


@dataclass(frozen=True, slots=True)
class Called:
    """A request, in the same form for both routes."""

    model: str
    given: Given
    prompt: GivenPrompt
    options: dict[str, Any]
    metadata: dict[str, Any]

    @property
    def has_tools(self) -> bool:
        """Whether the client has tools of its own."""
        return bool(self.prompt.tools)

    @property
    def conversation_id(self) -> str | None:
        """The conversation, or the room, that keeps the call. Raises InvalidInput."""
        kept_in = self.metadata.get(CONVERSATION)
        if not isinstance(kept_in, str | None):
            raise InvalidInput("must be text: the id of a conversation", field=f"$.metadata.{CONVERSATION}")
        return kept_in


def new_submission(model: ProviderModel | AgentModel, called: Called, *, size: int) -> Submission:
    """What to run. Raises InvalidInput for what does not go together."""
    given, prompt = called.given, called.prompt
    options: dict[str, Any] = {**called.options, "warnings": given.warnings}
    conversation_id = called.conversation_id
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
            conversation_id=conversation_id,
            text=text,
            attachments=images,
            planning=PlanningMode.OFF,
            routing=RoutingMode.OFF,
            **_target(model),
            **options,
        )
    instructions = "\n\n".join(text for text in given.instructions if text.strip())
    return NewCall(given=prompt, instructions=instructions, size=size, **_target(model), **options)


def _target(model: ProviderModel | AgentModel) -> dict[str, Any]:
    match model:
        case AgentModel(agent_id=agent_id):
            return {"agent_id": agent_id}
        case ProviderModel(provider_id=provider_id, model=name):
            return {"provider_id": provider_id, "model": name}


def check_for_room(called: Called, model: RoomModel) -> None:
    """Raises InvalidInput for what a room cannot do."""
    kept_in = called.conversation_id
    problems = {
        "$.tools": "the seats of a room use their own tools; leave out tools"
        if called.prompt.tools
        else None,
        "$.response_format": "a room answers in texts; leave out the format of the answer"
        if called.options.get("response_schema") is not None
        else None,
        "$.messages": "the messages of a room have no images; leave them out"
        if called.given.image_count
        else None,
        f"$.metadata.{CONVERSATION}": "a call of a room is kept in that room; give its id, "
        f"{model.room_id}, or leave it out"
        if kept_in not in (None, model.room_id)
        else None,
    }
    for field, problem in problems.items():
        if problem is not None:
            raise InvalidInput(problem, field=field)


async def start_room(
    room_calls: RoomCallService, caller: Caller, room_id: str, called: Called, encoder: FrameEncoder
) -> RunWatch:
    """Starts the run of a room, which is watched."""
    if called.conversation_id is not None:
        text, _ = called.given.last_user()
        return await room_calls.speak(caller, room_id, text, encoder=encoder, warnings=called.given.warnings)
    given = [
        GivenText(text=f"[{message.name}] {message.user.text}" if message.name else message.user.text)
        if message.user is not None
        else GivenText(text=steps_text(message.steps), is_answer=True)
        for message in called.given.past
    ]
    instructions = "\n\n".join(text for text in called.given.instructions if text.strip())
    return await room_calls.call(
        caller, room_id, given, instructions=instructions, encoder=encoder, warnings=called.given.warnings
    )
