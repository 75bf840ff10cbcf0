"""What replaces the text of a client that reconnects with its last id: after kill -9 in the middle of a text,
and where its new server has less of the text than the one that it left."""

from typing import Any

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, Thinking, When
from scenarios.client import AsyncApiClient
from scenarios.restarting_client import SOON_SECONDS, RestartingClient
from scenarios.rooms import USUAL, RoomScreen, new_room, replies
from scenarios.screen import Frame, Screen
from scenarios.scripts import FIRST_THOUGHT
from scenarios.test_tasks import new_task, step

LOST = "Once upon a time "
CALL = Call(name="python_eval", arguments='{"expression": "6 * 7"}')


def cut_and_told_anew(*first: Any, **when: Any) -> Script:
    """The first call stops in the middle of a text; the second says something else, once it may."""
    anew = [Gate(name="anew"), Text(text="It was "), Gate(name="more"), Text(text="late."), USUAL]
    return Script(
        rules=[
            Rule(
                name="lost", when=When(call=1, **when), reply=[*first, Text(text=LOST), Gate(name="middle")]
            ),
            Rule(name="anew", when=When(call=2, **when), reply=anew),
        ]
    )


def growing(frames: list[Frame]) -> list[tuple[str, str]]:
    """The text of the frames without an id, each with whether it is added or replaces what is shown."""
    grown: list[tuple[str, str]] = []
    for frame in frames:
        if frame.event == "message_chunk":
            grown.append(("replaces" if frame.data.get("is_snapshot") else "added", frame.data["content"]))
        elif frame.event == "process_step" and frame.id is None and frame.step["type"] == "text":
            delta = frame.step.get("delta")
            grown.append(("replaces", frame.step["content"]) if delta is None else ("added", delta))
    return grown


def check_replaced(frames: list[Frame], text: str) -> None:
    """The first frame replaces what the client has, the others add to it."""
    kinds, texts = zip(*growing(frames), strict=True)
    assert kinds == ("replaces", *["added"] * (len(kinds) - 1))
    assert "".join(texts) == text


async def restart_and_follow(
    ann: RestartingClient, model: ScriptedProvider, run_id: str, screen: Screen
) -> list[Frame]:
    """Kills the server in the middle of the text; what the same client gets from then on."""
    async with ann.follow(run_id, screen) as stream:
        await model.reached("middle")
        async for _ in stream:
            if LOST in "".join(text for _, text in growing(screen.frames)):
                break
        await ann.kill()
    seen = len(screen.frames)
    await ann.start()
    await model.reached("anew", SOON_SECONDS)
    async with ann.follow(run_id, screen) as stream:
        await stream.until("retrying")
        model.release("anew")
        await model.reached("more")
        model.release("more")
        await stream.to_the_end()
    return screen.frames[seen:]


@pytest.mark.parametrize(
    "first",
    [
        pytest.param([], id="text first"),
        pytest.param([Thinking(text=FIRST_THOUGHT)], id="after thinking", marks=pytest.mark.heavy),
    ],
)
async def test_the_text_of_a_chat_is_replaced(own_server: ServerProcess, first: list[Any]) -> None:
    script = cut_and_told_anew(*first)
    async with ScriptedProvider(script) as model, RestartingClient(own_server) as ann:
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        screen = Screen()
        frames = await restart_and_follow(ann, model, run["id"], screen)
        check_replaced(frames, "It was late.")
        assert (await ann.answer_shown_by(conversation, screen))["text"] == "It was late."
        retrying, warning = [f.data for f in frames if f.event in ("retrying", "warning")]
        assert "The server stopped" in retrying["reason"]
        assert "not known" in warning["message"]


@pytest.mark.heavy
async def test_the_text_of_a_seat_is_replaced_but_not_what_it_said_before_a_tool(
    own_server: ServerProcess,
) -> None:
    asks = Rule(name="asks", when=When(has_tool_result=False), reply=[Text(text="Well. "), CALL, USUAL])
    script = cut_and_told_anew(has_tool_result=True)
    script = Script(rules=[asks, *script.rules])
    async with ScriptedProvider(script) as model, RestartingClient(own_server) as ann:
        room = await new_room(ann, model.url, "Anna", max_rounds=1)
        started = await ann.ask(
            "POST", f"/chat-rooms/{room['id']}/start", headers={"accept": "application/json"}
        )
        screen = RoomScreen()
        frames = await restart_and_follow(ann, model, started.json()["data"]["id"], screen)
        check_replaced(frames, "Well. It was late.")
        assert list(screen.whole.values()) == ["Well. It was late."]
        assert screen.texts == screen.whole


@pytest.mark.heavy
async def test_the_text_of_a_step_of_a_task_is_replaced(own_server: ServerProcess) -> None:
    async with ScriptedProvider(cut_and_told_anew()) as model, RestartingClient(own_server) as ann:
        task_id = await new_task(ann, model.url, step("a"))
        started = await ann.ask("POST", f"/tasks/{task_id}/execute", headers={"accept": "application/json"})
        screen = Screen()
        frames = await restart_and_follow(ann, model, started.json()["data"]["id"], screen)
        check_replaced(frames, "It was late.")
        (retrying,) = [frame.data for frame in frames if frame.event == "retrying"]
        assert retrying["step_id"] == "a"
        assert (await ann.get(f"/tasks/{task_id}"))["result"] == "It was late."


TOLD = [Text(text="Once "), Gate(name="more"), Text(text="upon "), Text(text="a time."), USUAL]


async def follow_with_newer_text(
    ann: AsyncApiClient, model: ScriptedProvider, run_id: str, screen: Screen, newer: Frame
) -> list[Frame]:
    """Follows the run with a screen that shows a frame which this server does not have yet, as after a change
    from the server that drives the run. Returns the frames from then on."""
    screen.show(newer)
    seen = len(screen.frames)
    async with ann.follow(run_id, screen) as stream:
        await stream.until("run")
        model.release("late")
        model.release("more")
        await stream.to_the_end()
    return screen.frames[seen:]


@pytest.mark.parametrize(
    ("rules", "newer"),
    [
        pytest.param(
            [Rule(reply=[Gate(name="late"), *TOLD])], {"type": "text", "delta": "Once upon "}, id="text"
        ),
        pytest.param(
            [
                Rule(when=When(call=1), reply=[Gate(name="late"), CALL, USUAL]),
                Rule(when=When(call=2), reply=TOLD),
            ],
            {"type": "tool_call", "delta": '{"expression'},
            id="tool call",
        ),
    ],
)
async def test_what_a_client_of_a_chat_has_from_a_server_that_is_ahead_is_replaced(
    server: ServerProcess, rules: list[Rule], newer: dict[str, str]
) -> None:
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        await model.reached("late")
        screen = Screen()
        async with ann.follow(run["id"], screen) as stream:
            await stream.until("run")
        step = {"id": "step-0", "index": 0, "status": "running", **newer}
        held = Frame(event="process_step", data={"step": step})
        frames = await follow_with_newer_text(ann, model, run["id"], screen, held)
        first = next(frame for frame in frames if frame.event == "process_step")
        assert first.id is None
        assert "delta" not in first.step
        assert (await ann.answer_shown_by(conversation, screen))["text"] == "Once upon a time."


async def test_what_a_client_of_a_room_has_from_a_server_that_is_ahead_is_replaced(
    server: ServerProcess,
) -> None:
    script = Script(rules=[replies("Anna", 1, Gate(name="late"), *TOLD)])
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", max_rounds=1)
        started = await ann.ask(
            "POST", f"/chat-rooms/{room['id']}/start", headers={"accept": "application/json"}
        )
        run_id, screen = started.json()["data"]["id"], RoomScreen()
        async with ann.follow(run_id, screen) as stream:
            start = await stream.until("message_start")
        held = Frame(event="message_chunk", data={"msg_id": start.data["msg_id"], "content": "Once upon "})
        check_replaced(await follow_with_newer_text(ann, model, run_id, screen, held), "Once upon a time.")
        assert screen.texts == screen.whole
