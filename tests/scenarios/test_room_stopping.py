"""A room that is stopped in mid-turn: the text is kept, the upstream closed, and resume goes on with the
seats that were cut, then with the next ones, under each policy.
"""

import time
from typing import Any

import msgspec
import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, AsyncEventStream, Json
from scenarios.rooms import USUAL, new_room, order, replies, said, says, started, until_said

CLOSE_SECONDS = 0.5
"""Within which a stop answers and closes the upstream, on a machine that has nothing else to do."""

BOUND_SECONDS = 4 * CLOSE_SECONDS
"""What the tests demand, so that they pass on a busy machine; they print what it took."""


async def stop_promptly(ann: AsyncApiClient, room: Json, model: ScriptedProvider, *indexes: int) -> Json:
    """Stops the room; checks that the answer and the closes of the upstream's sockets come in time."""
    begun = time.monotonic()
    run = await ann.post(f"/chat-rooms/{room['id']}/stop")
    answered = time.monotonic() - begun
    closed: list[float] = []
    for index in indexes:
        request = model.requests[index]
        await request.wait_closed(10)
        assert request.closed_at is not None
        closed.append(request.closed_at - begun)
    print(
        f"answered after {answered * 1000:.0f} ms, closed after", [f"{one * 1000:.0f} ms" for one in closed]
    )
    assert max([answered, *closed]) < BOUND_SECONDS
    assert run["status"] == "paused"
    return run


def gated(name: str, text: str, number: int = 1) -> Rule:
    return replies(name, number, Text(text=f"{text} "), Gate(name="gate"), Text(text="never"), USUAL)


def cut_then_says(name: str, cut: str, *texts: str) -> list[Rule]:
    """The seat begins to say the first text and is held; it says the others in its next turns."""
    return [gated(name, cut), *says(name, "none", *texts)[1:]]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """`before` is said before the turn that is cut, `cut` are its texts. After the resume the cut seats say
    `again`, and `after` is said next.
    """

    policy: str
    rules: list[Rule]
    before: list[tuple[str, str]] = []
    cut: list[tuple[str, str]]
    again: list[tuple[str, str]]
    after: list[tuple[str, str]]
    room: dict[str, Any] = {}
    rounds_before: int = 0
    ends: str = "rounds"

    def __str__(self) -> str:
        return f"{self.policy}{len(self.before)}"


CASES = [
    Case(
        policy="round_robin",
        rules=[*cut_then_says("Anna", "a1", "a2"), *says("Ben", "b1"), *says("Cleo", "c1")],
        cut=[("Anna", "a1")],
        again=[("Anna", "a2")],
        after=[("Ben", "b1"), ("Cleo", "c1")],
    ),
    Case(
        policy="round_robin",
        rules=[*says("Anna", "a1"), *says("Ben", "b1"), *cut_then_says("Cleo", "c1", "c2")],
        before=[("Anna", "a1"), ("Ben", "b1")],
        cut=[("Cleo", "c1")],
        again=[("Cleo", "c2")],
        after=[],
    ),
    Case(
        policy="sequential",
        rules=[*says("Anna", "a1"), *cut_then_says("Ben", "b1", "b2"), *says("Cleo", "c1")],
        before=[("Anna", "a1")],
        cut=[("Ben", "b1")],
        again=[("Ben", "b2")],
        after=[("Cleo", "c1")],
        room={"max_rounds": 2},
        ends="finished",
    ),
    Case(
        policy="mention",
        rules=[*cut_then_says("Anna", "@Ben or @Cleo?", "@Cleo or @Ben?", "a3"), *says("Cleo", "c1")],
        cut=[("Anna", "@Ben or @Cleo?")],
        again=[("Anna", "@Cleo or @Ben?")],
        after=[("Cleo", "c1"), ("Anna", "a3")],
        room={"stop": {"messages": 4}},
        ends="messages",
    ),
    Case(
        policy="parallel",
        rules=[
            rule
            for name in ("Anna", "Ben", "Cleo")
            for rule in cut_then_says(name, "one", "two", "three")
        ],
        cut=[("Anna", "one"), ("Ben", "one"), ("Cleo", "one")],
        again=[("Anna", "two"), ("Ben", "two"), ("Cleo", "two")],
        after=[("Anna", "three"), ("Ben", "three"), ("Cleo", "three")],
        room={"max_rounds": 2},
    ),
    Case(
        policy="parallel",
        rules=[*says("Anna", "a1", "a2"), *cut_then_says("Ben", "b1", "b2", "b3"), *says("Cleo", "c1", "c2")],
        before=[("Anna", "a1"), ("Cleo", "c1")],
        cut=[("Ben", "b1")],
        again=[("Ben", "b2")],
        after=[("Anna", "a2"), ("Ben", "b3"), ("Cleo", "c2")],
        room={"max_rounds": 2},
    ),
]  # fmt: skip


async def until_chunks(stream: AsyncEventStream, case: Case) -> None:
    """Reads until the turns that will be cut have all begun to speak, and the others have ended."""
    await until_said(stream, len(case.before))
    wanted = sorted(text for _, text in case.cut)
    screen: Any = stream.screen
    while sorted(text.strip() for at, text in screen.texts.items() if at not in screen.whole) != wanted:
        await stream.until("message_chunk")


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_a_stop_in_mid_turn_keeps_the_text_and_resume_goes_on(
    server: ServerProcess, case: Case
) -> None:
    async with ScriptedProvider(Script(rules=case.rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(
            ann, model.url, "Anna", "Ben", "Cleo", policy=case.policy, **({"max_rounds": 1} | case.room)
        )
        async with started(ann, room["id"]) as stream:
            await until_chunks(stream, case)
            heads = [f"You are {name} in" for name, _ in case.cut]
            prompts = [request.json["messages"][0]["content"] for request in model.requests]
            cut = [at for at, prompt in enumerate(prompts) if any(head in prompt for head in heads)]
            assert len(cut) == len(case.cut)
            run = await stop_promptly(ann, room, model, *cut)
            frames = (await stream.to_the_end()).frames
        assert sorted(said(frames)) == sorted([*case.before, *case.cut])
        assert order(frames)[-1] == "room_paused"
        assert (await ann.get(f"/chat-rooms/{room['id']}"))["status"] == "paused"
        messages = (await ann.get(f"/chat-rooms/{room['id']}/messages"))["items"]
        partial = sorted(
            (one["sender_name"], one["text"].strip()) for one in messages if one["status"] != "complete"
        )
        assert partial == sorted(case.cut)
        assert {one["status"] for one in messages if one["status"] != "complete"} == {"partial"}
        async with started(ann, room["id"], "resume") as stream:
            rest = (await stream.to_the_end()).frames
        heard = said(rest)
        again, after = heard[: len(case.again)], heard[len(case.again) :]
        assert (sorted(again) if case.policy == "parallel" else again) == case.again
        assert (sorted(after) if case.policy == "parallel" else after) == case.after
        assert rest[-1].data["stop_reason"] == case.ends
        assert rest[-1].data["run_id"] == run["id"]


async def test_a_choice_that_is_cut_is_made_again_after_the_resume(server: ServerProcess) -> None:
    chooser = When(system="You choose who speaks next")
    rules = [
        Rule(name="cut", when=msgspec.structs.replace(chooser, call=1), reply=[Gate(name="gate"), USUAL]),
        Rule(name="chosen", when=msgspec.structs.replace(chooser, call=2), reply=[Text(text="Ben"), USUAL]),
        *says("Ben", "b1"),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        provider_id = await ann.connect(model.url)
        policy = {"name": "selector", "provider_id": provider_id, "model": "scripted"}
        room = await new_room(ann, model.url, "Anna", "Ben", policy=policy, stop={"messages": 1})
        async with started(ann, room["id"]) as stream:
            await model.reached("gate")
            await stop_promptly(ann, room, model, 0)
            frames = (await stream.to_the_end()).frames
        assert order(frames) == ["room_started", "round_start", "selecting", "steered", "room_paused"]
        async with started(ann, room["id"], "resume") as stream:
            rest = (await stream.to_the_end()).frames
        assert said(rest) == [("Ben", "b1")]
        assert [frame.data["by"] for frame in rest if frame.event == "floor_given"] == ["selector"]


async def test_a_turn_that_a_person_gave_is_taken_again_after_a_stop(server: ServerProcess) -> None:
    rules = [*cut_then_says("Ben", "b1", "b2"), *says("Anna", "a1")]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", "Ben", policy="manual", stop={"messages": 3})
        seats = {seat["name"]: seat["id"] for seat in room["agents"]}
        async with started(ann, room["id"]) as stream:
            await stream.until("round_start")
            await ann.post(f"/chat-rooms/{room['id']}/floor", {"seat_id": seats["Ben"]})
            await stream.until("message_chunk")
            run = await stop_promptly(ann, room, model, 0)
            assert said((await stream.to_the_end()).frames) == [("Ben", "b1")]
        async with started(ann, room["id"], "resume") as stream:
            await until_said(stream, 1)
            await ann.until_status(run["id"], "waiting")
            await ann.post(f"/chat-rooms/{room['id']}/floor", {"seat_id": seats["Anna"]})
            assert said((await stream.to_the_end()).frames) == [("Ben", "b2"), ("Anna", "a1")]


async def test_a_room_that_waits_for_a_person_can_be_stopped_and_resumed(server: ServerProcess) -> None:
    async with ScriptedProvider(Script(rules=says("Ben", "b1"))) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Ben", policy="manual", stop={"messages": 1})
        async with started(ann, room["id"]) as stream:
            run_id = (await stream.until("round_start")).data["run_id"]
            await ann.until_status(run_id, "waiting")
            await ann.post(f"/chat-rooms/{room['id']}/stop")
            assert order((await stream.to_the_end()).frames)[-1] == "room_paused"
        refused = await ann.ask("POST", f"/chat-rooms/{room['id']}/stop")
        assert refused.status_code == 409
        async with started(ann, room["id"], "resume") as stream:
            await ann.until_status(run_id, "waiting")
            await ann.post(f"/chat-rooms/{room['id']}/floor", {"seat_id": room["agents"][0]["id"]})
            assert said((await stream.to_the_end()).frames) == [("Ben", "b1")]
