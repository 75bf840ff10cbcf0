"""A conversation, a room and a turn with tools that outgrow the context window of their model go on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Received, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.restarting_client import RestartingClient
from scenarios.rooms import run_to_the_end
from scenarios.screen import Screen
from scenarios.scripts import ASKS_FOR_SUMMARY

WINDOW = 4_000
ANSWER = 500
ENVIRONMENT = {
    "LUXX_MODELS": f"[{{pattern: small, context_window: {WINDOW}, max_output: {ANSWER}, tools: true}}, "
    f"{{pattern: large, context_window: 50000, max_output: {ANSWER}}}]",
    "LUXX_TOOLS__MAX_ITERATIONS": "12",
}
FILLER = "The gardener waters the old pear tree behind the wall every evening. " * 4
SPEAKS = Rule(name="answers", reply=[Text(text=FILLER * 3, pieces=1)])
SUMMARISES = Rule(
    name="summary",
    when=When(user=ASKS_FOR_SUMMARY),
    reply=[Text(text="The gardener was spoken of.", pieces=1)],
)
ANSWERS = Rule(name="answers", reply=[Text(text=f"I see. {FILLER}", pieces=1)])


@pytest.fixture(scope="module")
def small_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Its model `small` has a window of 4,000 tokens; the models of other names are unknown."""
    with ServerProcess(tmp_path_factory.mktemp("small"), **ENVIRONMENT) as server:
        yield server


def small_model(*rules: Rule, window: int = WINDOW) -> ScriptedProvider:
    return ScriptedProvider(Script(rules=list(rules), window=window))


async def conversation_with(ann: AsyncApiClient, url: str, model: str = "small", **more: Any) -> str:
    body = {"provider_id": await ann.connect(url), "model": model, "max_tokens": ANSWER, **more}
    return (await ann.post("/conversations", body))["id"]


async def say(ann: AsyncApiClient, conversation: str, text: str, **more: Any) -> Screen:
    """Sends a message and reads its run to the end."""
    async with ann.send_and_follow(conversation, text, **{"tools": False, **more}) as stream:
        return await stream.to_the_end()


def sent_texts(request: Received) -> list[str]:
    return [str(message["content"]) for message in request.json["messages"]]


async def exported(ann: AsyncApiClient, conversation: str) -> Json:
    response = await ann.ask("GET", f"/conversations/{conversation}/export")
    assert response.status_code == 200, response.text
    document = response.json()
    document.pop("exported_at", None)
    return document


async def grow(ann: AsyncApiClient, conversation: str, numbers: range) -> list[Json]:
    """Sends a numbered message for each number; the compressions."""
    found: list[Json] = []
    for number in numbers:
        screen = await say(ann, conversation, f"Message {number}: {FILLER}")
        assert screen.done is not None
        assert screen.done["status"] == "completed", screen.frames[-2:]
        found += screen.data_of("context_compressed")
    return found


def numbers_of(request: Received) -> list[int]:
    """The numbers of the messages that were sent."""
    texts = [text for text in sent_texts(request) if text.startswith("Message ")]
    return [int(text.removeprefix("Message ").partition(":")[0]) for text in texts]


async def check_growing(ann: AsyncApiClient, turns: int) -> None:
    """A conversation of so many turns: what is sent stays valid and stable, and what is stored unchanged."""
    async with small_model(SUMMARISES, ANSWERS) as model:
        conversation = await conversation_with(ann, model.url, system_prompt="Be kind to the gardener.")
        found = await grow(ann, conversation, range(turns // 2))
        stored = await exported(ann, conversation)
        found += await grow(ann, conversation, range(turns // 2, turns))
        now = await exported(ann, conversation)
        requests = [request for request in model.requests if request.rule != "summary"]
        assert len(model.requests) - len(requests) == len(found), "each cut has one summary"
    assert now["messages"][:turns] == [
        {**message, "children": now_message["children"]} if "children" in message else message
        for message, now_message in zip(stored["messages"], now["messages"], strict=False)
    ]
    assert len(now["messages"]) == 2 * turns
    # The provider refuses none: each prompt leaves room for the longest answer.
    assert [request.rule for request in requests] == ["answers"] * turns
    moves = check_extended(requests)
    assert len(moves) == len(found), "a cut stays where it is until it moves"
    for number, request in enumerate(requests):
        roles = [message["role"] for message in request.json["messages"]]
        assert (roles[0], roles[-1]) == ("system", "user")
        answered, sent = roles.count("assistant"), numbers_of(request)
        # The first message and the newest ones stay, the last turns with their answers.
        assert [0, *range(number - len(sent) + 2, number + 1)] == sent
        assert roles[-1 - 2 * answered :] == [*["user", "assistant"] * answered, "user"]
        assert answered >= min(1, number)
    for event, move in zip(found, moves, strict=True):
        answered = [message["role"] for message in requests[move].json["messages"]].count("assistant")
        assert event["messages"] == 2 * (move - answered)
        # Messages of which only the answer is left out are sent.
        assert event["turns"] == move + 1 - len(numbers_of(requests[move]))
        assert (event["window"], event["results"], event["overflow"]) == (WINDOW, 0, False)
        assert (event["compression_strategy"], event["summary"]) == (
            "summarize",
            "The gardener was spoken of.",
        )
        assert event["token_budget"] == WINDOW - ANSWER
        tokens = len(requests[move].body) // 4
        # The estimate is calibrated by what the provider counted.
        assert abs(event["tokens_after"] - tokens) < tokens * 0.05
        assert event["tokens_after"] <= 0.6 * (WINDOW - ANSWER)
        assert event["tokens_before"] > 0.8 * (WINDOW - ANSWER)


def check_extended(requests: list[Received]) -> list[int]:
    """The numbers of the requests that do not extend the one before."""
    sent = [request.json["messages"] for request in requests]
    return [at for at in range(1, len(sent)) if sent[at][: len(sent[at - 1])] != sent[at - 1]]


async def test_a_conversation_goes_on_when_its_window_is_full(small_server: ServerProcess) -> None:
    async with AsyncApiClient(small_server.url) as ann:
        await check_growing(ann, 30)


@pytest.mark.heavy
async def test_a_conversation_of_400_messages_goes_on_in_a_window_of_4000_tokens(
    small_server: ServerProcess,
) -> None:
    async with AsyncApiClient(small_server.url) as ann:
        await check_growing(ann, 200)


async def test_a_larger_model_gets_all_again_and_a_fork_the_same_as_its_original(
    small_server: ServerProcess,
) -> None:
    async with small_model(ANSWERS, window=50_000) as model, AsyncApiClient(small_server.url) as ann:
        conversation = await conversation_with(ann, model.url)
        found = await grow(ann, conversation, range(24))
        assert [event["turns"] for event in found][:1] != []
        fork = await ann.post(f"/conversations/{conversation}/fork")
        await grow(ann, fork["id"], range(24, 25))
        await grow(ann, conversation, range(24, 25))
        assert model.requests[-1].json == model.requests[-2].json
        screen = await say(ann, conversation, "Message 25: all", model="large")
        assert numbers_of(model.requests[-1]) == list(range(26))
        assert [event["messages"] for event in screen.data_of("context_compressed")] == [0]


@pytest.mark.heavy
async def test_after_a_restart_the_same_is_left_out(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, **ENVIRONMENT) as server:
        async with small_model(ANSWERS) as model, RestartingClient(server) as ann:
            conversation = await conversation_with(ann, model.url)
            assert len(await grow(ann, conversation, range(20))) == 1
            await ann.kill_and_start()
            assert await grow(ann, conversation, range(20, 21)) == []
            assert check_extended(model.requests[-2:]) == []


async def test_a_refused_prompt_of_an_unknown_model_is_sent_once_more_with_half(
    small_server: ServerProcess,
) -> None:
    async with small_model(ANSWERS) as model, AsyncApiClient(small_server.url) as ann:
        conversation = await conversation_with(ann, model.url, "unknown")
        found = await grow(ann, conversation, range(24))
        refused = [at for at, request in enumerate(model.requests) if request.rule == "overflow"]
        assert len(refused) == len(found) == 1
        (event,) = found
        assert (event["window"], event["overflow"]) == (None, True)
        assert event["tokens_after"] <= event["tokens_before"] / 2
        first, second = (numbers_of(request) for request in model.requests[refused[0] :][:2])
        assert second == [0, *first[event["turns"] + 1 :]]
        assert len(second) > 3
        path, accept = f"/runs/{event['run_id']}/events", {"accept": "application/json"}
        logged = (await ann.ask("GET", path, headers=accept)).json()["data"]["events"]
        kinds = [one["type"] for one in logged]
        assert kinds[:2] == ["context_compressed", "retrying"]


async def test_a_fallback_that_refuses_the_prompt_too_gets_half_of_it(small_server: ServerProcess) -> None:
    too_long = '{"error": {"message": "too long", "code": "context_length_exceeded"}}'
    refuses = Rule(name="too long", status=400, body=too_long, times=1)
    begins = Rule(name="answers", reply=ANSWERS.reply, times=8)
    async with (
        small_model(begins, refuses, Rule(status=401, message="wrong key"), window=100_000) as first,
        small_model(refuses, ANSWERS, window=100_000) as second,
        AsyncApiClient(small_server.url) as ann,
    ):
        fallbacks = [{"provider_id": await ann.connect(second.url), "model": "unknown-2"}]
        agent = {"name": "Gardener", "provider_id": await ann.connect(first.url), "model": "unknown-1"}
        agent_id = (await ann.post("/agents", agent | {"fallbacks": fallbacks}))["id"]
        conversation = (await ann.post("/conversations", {"agent_id": agent_id}))["id"]
        assert await grow(ann, conversation, range(8)) == []
        found = await grow(ann, conversation, range(8, 9))
        assert [(event["window"], event["overflow"]) for event in found] == [(None, True), (None, True)]
        assert found[1]["tokens_after"] <= found[1]["tokens_before"] / 2


async def test_a_prompt_that_is_refused_twice_fails_with_a_sentence_and_the_conversation_goes_on(
    small_server: ServerProcess,
) -> None:
    async with small_model(ANSWERS) as model, AsyncApiClient(small_server.url) as ann:
        conversation = await conversation_with(ann, model.url, "unknown")
        await grow(ann, conversation, range(4))
        screen = await say(ann, conversation, FILLER * 60)
        assert screen.done is not None
        assert screen.done["status"] == "failed"
        assert [request.rule for request in model.requests[4:]] == ["overflow"] * 2
        (error,) = screen.data_of("error")
        assert error["code"] == "context_too_long"
        assert error["message"].startswith("The prompt is too long for the model: This model's maximum")
        await grow(ann, conversation, range(4, 6))


async def test_a_last_message_that_alone_is_too_large_is_refused_with_figures_and_not_sent(
    small_server: ServerProcess,
) -> None:
    async with small_model(ANSWERS) as model, AsyncApiClient(small_server.url) as ann:
        conversation = await conversation_with(ann, model.url)
        await grow(ann, conversation, range(2))
        screen = await say(ann, conversation, FILLER * 60)
        (error,) = screen.data_of("error")
        assert error["code"] == "context_too_long"
        assert "the context window of small has 4,000. Send less at once" in error["message"]
        assert len(model.requests) == 2
        await grow(ann, conversation, range(2, 4))


async def test_old_results_of_a_turn_are_shortened_and_stay_with_their_calls(
    small_server: ServerProcess,
) -> None:
    rules = [
        *(
            Rule(
                name=f"call {number}",
                when=When(call=number),
                reply=[Call(name="python_eval", arguments={"expression": f"'abcdefgh ' * 200 + '{number}'"})],
            )
            for number in range(1, 7)
        ),
        ANSWERS,
    ]
    async with small_model(*rules) as model, AsyncApiClient(small_server.url) as ann:
        conversation = await conversation_with(ann, model.url)
        screen = await say(ann, conversation, "Look at it", tools=["python_eval"])
        assert screen.done is not None
        assert screen.done["status"] == "completed"
        assert len(model.requests) == 7
        found = screen.data_of("context_compressed")
        assert {(event["messages"], event["compression_strategy"]) for event in found} == {(0, "clear")}
        assert all(event["results"] > 0 for event in found)
        for number, request in enumerate(model.requests):
            messages = request.json["messages"]
            assert [one["role"] for one in messages] == ["user", *["assistant", "tool"] * number]
            for call, result in zip(messages[1::2], messages[2::2], strict=True):
                assert call["tool_calls"][0]["id"] == result["tool_call_id"]
        results = [one for one in model.requests[-1].json["messages"] if one["role"] == "tool"]
        notes = [one for one in results if "characters left out to fit the context window" in one["content"]]
        assert notes == results[: found[-1]["results"]]
        assert 0 < len(notes) < len(results)
        assert all(f"result_read with the ref {one['tool_call_id']}" in one["content"] for one in notes)
        answer = (await ann.messages(conversation))[-1]
        whole = [step["content"] for step in answer["steps"] if step["type"] == "tool_result"]
        assert all(content.count("abcdefgh") == 200 for content in whole)


async def small_seats(ann: AsyncApiClient, url: str, *names: str) -> list[Json]:
    """Seats whose model has the small window."""
    seat = {"provider_id": await ann.connect(url), "model": "small", "max_tokens": ANSWER, "tools": []}
    return [{"name": name, **seat} for name in names]


async def check_room(ann: AsyncApiClient, rounds: int) -> None:
    """A room of two seats with a small model: its task is always sent, and contexts say what was sent."""
    async with small_model(SUMMARISES, SPEAKS) as model:
        seats = await small_seats(ann, model.url, "Anna", "Ben")
        body = {"title": "Talk", "task": "Find it out", "agents": seats, "max_rounds": rounds}
        room = await ann.post("/chat-rooms", body)
        frames = await run_to_the_end(ann, room["id"])
        requests = [request for request in model.requests if request.rule != "summary"]
    assert frames[-1].event == "room_completed"
    assert [request.rule for request in requests] == ["answers"] * 2 * rounds
    found = [frame.data for frame in frames if frame.event == "context_compressed"]
    assert {event["messages"] == event["turns"] > 0 for event in found} == {True}
    for request in requests:
        system, task, *rest = request.json["messages"]
        assert (system["role"], task["content"].endswith("Find it out")) == ("system", True)
        assert len(rest) >= 2 or request in requests[:2]
    starts = [frame.data["msg_id"] for frame in frames if frame.event == "message_start"]
    for number in (0, starts.index(found[0]["msg_id"]), len(starts) - 1):
        sent = await ann.get(f"/chat-rooms/{room['id']}/messages/{starts[number]}/context")
        assert [one.get("text") for one in sent["messages"]] == sent_texts(requests[number])
        assert (sent["left_out"] > 0) == (number > 0)
    # The room's cut stays where it is until it moves.
    assert len(found) < rounds


async def test_a_room_goes_on_when_its_window_is_full(small_server: ServerProcess) -> None:
    async with AsyncApiClient(small_server.url) as ann:
        await check_room(ann, 20)


@pytest.mark.heavy
async def test_a_room_of_200_turns_goes_on(small_server: ServerProcess) -> None:
    async with AsyncApiClient(small_server.url) as ann:
        await check_room(ann, 100)


async def test_the_choices_of_a_selector_go_on_when_their_window_is_full(small_server: ServerProcess) -> None:
    rules = [
        Rule(name="Anna", when=When(user="and nothing else: Anna"), reply=[Text(text="Anna")]),
        Rule(name="Ben", when=When(user="and nothing else: Ben"), reply=[Text(text="Ben")]),
        SPEAKS,
    ]
    async with small_model(*rules) as model, AsyncApiClient(small_server.url) as ann:
        seats = await small_seats(ann, model.url, "Anna", "Ben", "Cleo")
        policy = {"name": "selector", "provider_id": seats[0]["provider_id"], "model": "small"}
        body = {"title": "T", "task": "Find it out", "agents": seats, "max_rounds": 10, "policy": policy}
        room = await ann.post("/chat-rooms", body)
        frames = await run_to_the_end(ann, room["id"])
        assert "overflow" not in {request.rule for request in model.requests}
    cuts = [frame.data["messages"] for frame in frames if frame.event == "context_compressed"]
    of_choices = [
        frame.data["messages"]
        for frame in frames
        if frame.event == "context_compressed" and "step_id" in frame.data
    ]
    choices = [frame for frame in frames if frame.event == "selecting"]
    # The cut of one choice is kept for the next.
    assert 0 < len(of_choices) < len(choices) / 3
    assert of_choices == sorted(set(of_choices))
    assert len(cuts) > len(of_choices)
    assert [frame.data for frame in frames if frame.event == "warning"] == []
