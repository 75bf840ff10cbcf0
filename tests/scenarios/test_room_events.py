"""The sequence of events of rooms: seats and rounds under each policy, tools, errors, people and changes."""

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, Thinking, When
from scenarios.client import AsyncApiClient, AsyncEventStream, Json
from scenarios.rooms import USUAL, new_room, replies, says, started
from scenarios.screen import Frame

CHOOSER = "You choose who speaks next"


def trace(frames: list[Frame], seats: list[Json]) -> list[str]:
    """The logged events without costs, each with what it says."""
    names = {seat["id"]: seat["name"] for seat in seats}
    speakers: dict[str, str] = {}
    lines: list[str] = []
    for frame in frames:
        if frame.id is None or frame.event == "cost_update":
            continue
        data = frame.data
        if frame.event == "message_start":
            speakers[data["msg_id"]] = data["sender_name"]
        who = speakers.get(data.get("msg_id", ""), "")
        match frame.event:
            case "process_step":
                step = frame.step
                done = "" if step["status"] == "done" else f" {step['status']}"
                line = f"{who or 'the chooser'}: {step['type']}{done}"
            case "message":
                message = data["message"]
                state = "" if message["status"] == "complete" else f" ({message['status']})"
                line = f"message of {message['sender_name']}: {message['content'].strip()}{state}"
            case "message_start" | "message_end":
                line = f"{frame.event} {who}"
            case "agent_error":
                line = f"agent_error {data['sender_name']}"
            case "floor_given":
                line = f"floor_given {names[data['seat_id']]} by {data['by']}"
            case "round_start" | "round_end":
                line = f"{frame.event} {data['round']}"
            case "room_completed":
                line = f"room_completed {data['stop_reason']}"
            case "steered":
                line = f"steered {data['action']}"
            case _:
                line = frame.event
        lines.append(line)
    return lines


def turn(name: str, text: str, *steps: str) -> list[str]:
    """The events of an ordinary turn."""
    own = [f"{name}: {step}" for step in (*steps, "text")]
    return [f"message_start {name}", *own, f"message_end {name}", f"message of {name}: {text}"]


def round_of(number: int, *turns: list[str]) -> list[str]:
    return [f"round_start {number}", *(line for one in turns for line in one), f"round_end {number}"]


def whole(stop: str, *rounds: list[str]) -> list[str]:
    return ["room_started", *(line for one in rounds for line in one), f"room_completed {stop}"]


def chosen(name: str, by: str = "selector") -> list[str]:
    warning = ["warning"] if by == "fallback" else []
    return ["selecting", "the chooser: text", *warning, f"floor_given {name} by {by}"]


def chooses(*replies_in_order: str) -> list[Rule]:
    return [
        Rule(name=f"choice {n}", when=When(system=CHOOSER, call=n), reply=[Text(text=text), USUAL])
        for n, text in enumerate(replies_in_order, 1)
    ]


Act = Callable[[AsyncApiClient, Json, AsyncEventStream, ScriptedProvider], Awaitable[Any]]


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """A room, what its models reply, what a person does meanwhile, and the events that follow."""

    name: str
    seats: str
    rules: list[Rule]
    expected: list[str]
    room: dict[str, Any] = {}
    act: Act | None = None
    allows_any_order: bool = False

    def __str__(self) -> str:
        return self.name


TWO = [*says("Anna", "a1", "a2"), *says("Ben", "b1", "b2")]
THREE = [*TWO, *says("Cleo", "c1", "c2")]


def gated(name: str, text: str, *, number: int = 1) -> Rule:
    return replies(name, number, Text(text=f"{text} "), Gate(name="gate"), USUAL)


async def floor_in_order(
    ann: AsyncApiClient, room: Json, stream: AsyncEventStream, _: ScriptedProvider
) -> None:
    for name, before in (("Ben", "round_start"), ("Ben", "message"), ("Anna", "round_start")):
        await stream.until(before)
        seat_id = next(seat["id"] for seat in room["agents"] if seat["name"] == name)
        await ann.post(f"/chat-rooms/{room['id']}/floor", {"seat_id": seat_id})


async def join_in_the_last_turn(
    ann: AsyncApiClient, room: Json, stream: AsyncEventStream, model: ScriptedProvider
) -> None:
    await model.reached("gate")
    seat = {"name": "Cleo", "provider_id": room["agents"][0]["provider_id"]}
    await ann.post(f"/chat-rooms/{room['id']}/agents", seat)
    model.release("gate")


def changing(name: str, changes: dict[str, Any]) -> Act:
    """Changes a seat while the gate is shut."""

    async def act(ann: AsyncApiClient, room: Json, stream: AsyncEventStream, model: ScriptedProvider) -> None:
        await model.reached("gate")
        seat_id = next(seat["id"] for seat in room["agents"] if seat["name"] == name)
        path = f"/chat-rooms/{room['id']}/agents/{seat_id}"
        answer = await ann.ask("PUT" if changes else "DELETE", path, changes or None)
        assert answer.is_success, answer.text
        model.release("gate")

    return act


async def speak(ann: AsyncApiClient, room: Json, stream: AsyncEventStream, model: ScriptedProvider) -> None:
    await stream.until("message_chunk")
    await ann.post(f"/chat-rooms/{room['id']}/messages", {"content": "Hello"})
    await stream.until("message")
    model.release("gate")


def posting(action: str) -> Act:
    async def act(ann: AsyncApiClient, room: Json, stream: AsyncEventStream, _: ScriptedProvider) -> None:
        await stream.until("message_chunk")
        await ann.post(f"/chat-rooms/{room['id']}/{action}")

    return act


async def change_the_stop(
    ann: AsyncApiClient, room: Json, stream: AsyncEventStream, model: ScriptedProvider
) -> None:
    await model.reached("gate")
    answer = await ann.ask("PUT", f"/chat-rooms/{room['id']}", {"stop": {"rounds": 2}})
    assert answer.is_success, answer.text
    model.release("gate")


TOOL = Call(name="python_eval", arguments='{"expression": "6 * 7"}')
USED_TOOL = ["tool_call pending", "tool_call running", "tool_call", "tool_result"]

CASES = [
    Case(
        name="round robin: three seats, two rounds",
        seats="Anna Ben Cleo",
        rules=THREE,
        room={"max_rounds": 2},
        expected=whole(
            "rounds",
            round_of(1, turn("Anna", "a1"), turn("Ben", "b1"), turn("Cleo", "c1")),
            round_of(2, turn("Anna", "a2"), turn("Ben", "b2"), turn("Cleo", "c2")),
        ),
    ),
    Case(
        name="sequential: one pass, whatever the number of rounds",
        seats="Anna Ben",
        rules=[TWO[0], TWO[2]],
        room={"policy": "sequential", "max_rounds": 9},
        expected=whole("finished", round_of(1, turn("Anna", "a1"), turn("Ben", "b1"))),
    ),
    Case(
        name="parallel: all begin before any ends, twice",
        seats="Anna Ben Cleo",
        rules=THREE,
        room={"policy": "parallel", "max_rounds": 2},
        expected=whole(
            "rounds",
            round_of(1, turn("Anna", "a1"), turn("Ben", "b1"), turn("Cleo", "c1")),
            round_of(2, turn("Anna", "a2"), turn("Ben", "b2"), turn("Cleo", "c2")),
        ),
        allows_any_order=True,
    ),
    Case(
        name="mention: the named seat, never the last speaker; a round is three turns",
        seats="Anna Ben Cleo",
        rules=[*says("Anna", "@Ben?", "@Ben?"), *says("Ben", "@Anna!", "a rest"), *says("Cleo", "I at last")],
        room={"policy": "mention", "stop": {"messages": 5}},
        expected=whole(
            "messages",
            round_of(1, turn("Anna", "@Ben?"), turn("Ben", "@Anna!"), turn("Anna", "@Ben?")),
            ["round_start 2", *turn("Ben", "a rest"), *turn("Cleo", "I at last")],
        ),
    ),
    Case(
        name="selector: a model chooses, a bad choice falls back, one candidate needs no choice",
        seats="Anna Ben",
        rules=[*chooses("I say Ben"), *says("Ben", "b1"), *says("Anna", "a1")],
        room={"policy": "selector", "max_rounds": 1},
        expected=whole("rounds", round_of(1, [*chosen("Ben"), *turn("Ben", "b1")], turn("Anna", "a1"))),
    ),
    Case(
        name="selector: a model that names nobody",
        seats="Anna Ben",
        rules=[*chooses("nobody"), *says("Anna", "a1"), *says("Ben", "b1")],
        room={"policy": "selector", "max_rounds": 1},
        expected=whole(
            "rounds", round_of(1, [*chosen("Anna", "fallback"), *turn("Anna", "a1")], turn("Ben", "b1"))
        ),
    ),
    Case(
        name="manual: a person gives the floor, also twice to the same seat",
        seats="Anna Ben",
        rules=[*says("Ben", "b1", "b2"), *says("Anna", "a1")],
        room={"policy": "manual", "stop": {"messages": 3}},
        act=floor_in_order,
        expected=whole(
            "messages",
            round_of(
                1,
                ["floor_given Ben by person", *turn("Ben", "b1")],
                ["floor_given Ben by person", *turn("Ben", "b2")],
            ),
            ["round_start 2", "floor_given Anna by person", *turn("Anna", "a1")],
        ),
    ),
    Case(
        name="thinking and a tool within a turn",
        seats="Anna Ben",
        rules=[
            replies("Anna", 1, Thinking(text="Hm. "), TOOL, USUAL),
            replies("Anna", 2, Text(text="It is 42"), USUAL),
            *says("Ben", "b1"),
        ],
        room={"max_rounds": 1},
        expected=whole(
            "rounds",
            round_of(1, turn("Anna", "It is 42", "thinking", *USED_TOOL), turn("Ben", "b1")),
        ),
    ),
    Case(
        name="an overloaded model is called again",
        seats="Anna",
        rules=[
            Rule(name="busy", when=When(system="You are Anna in", call=1), status=503, message="busy"),
            replies("Anna", 2, Text(text="a1 "), USUAL),
        ],
        room={"max_rounds": 1},
        expected=whole(
            "rounds",
            round_of(
                1,
                [
                    "message_start Anna",
                    "retrying",
                    "Anna: text",
                    "message_end Anna",
                    "message of Anna: a1",
                ],
            ),
        ),
    ),
    Case(
        name="a failure, a success, and two failures in a row: only these mute the seat",
        seats="Anna Ben",
        rules=[
            Rule(name="no 1", when=When(system="You are Anna in", call=1), status=401, message="no"),
            replies("Anna", 2, Text(text="a2 "), USUAL),
            Rule(name="no 3", when=When(system="You are Anna in", call=3), status=401, message="no"),
            Rule(name="no 4", when=When(system="You are Anna in", call=4), status=401, message="no"),
            *says("Ben", "b1", "b2", "b3", "b4", "b5"),
        ],
        room={"max_rounds": 5},
        expected=whole(
            "rounds",
            round_of(1, ["message_start Anna", "agent_error Anna"], turn("Ben", "b1")),
            round_of(2, turn("Anna", "a2"), turn("Ben", "b2")),
            round_of(3, ["message_start Anna", "agent_error Anna"], turn("Ben", "b3")),
            round_of(4, ["message_start Anna", "agent_error Anna", "warning"], turn("Ben", "b4")),
            round_of(5, turn("Ben", "b5")),
        ),
    ),
    Case(
        name="a failure after some text keeps the text",
        seats="Anna Ben",
        rules=[
            replies("Anna", 1, Text(text="half a "), TOOL, USUAL),
            Rule(name="no", when=When(system="You are Anna in", call=2), status=401, message="no"),
            *says("Ben", "b1"),
        ],
        room={"max_rounds": 1},
        expected=whole(
            "rounds",
            round_of(
                1,
                [
                    "message_start Anna",
                    "Anna: text",
                    *(f"Anna: {step}" for step in USED_TOOL),
                    "agent_error Anna",
                    "message_end Anna",
                    "message of Anna: half a (partial)",
                ],
                turn("Ben", "b1"),
            ),
        ),
    ),
    Case(
        name="a person speaks within a turn",
        seats="Anna Ben",
        rules=[gated("Anna", "a1"), *says("Ben", "b1")],
        room={"max_rounds": 1},
        act=speak,
        expected=whole(
            "rounds",
            round_of(
                1,
                ["message_start Anna", "message of admin: Hello", *turn("Anna", "a1")[1:]],
                turn("Ben", "b1"),
            ),
        ),
    ),
    Case(
        name="a seat that joins in the last turn speaks in the same round",
        seats="Anna Ben",
        rules=[*says("Anna", "a1"), gated("Ben", "b1"), *says("Cleo", "c1")],
        room={"max_rounds": 1},
        act=join_in_the_last_turn,
        expected=whole("rounds", round_of(1, turn("Anna", "a1"), turn("Ben", "b1"), turn("Cleo", "c1"))),
    ),
    Case(
        name="a seat that is muted meanwhile has no turn",
        seats="Anna Ben Cleo",
        rules=[gated("Anna", "a1"), *says("Cleo", "c1")],
        room={"max_rounds": 1},
        act=changing("Ben", {"muted": True}),
        expected=whole("rounds", round_of(1, turn("Anna", "a1"), turn("Cleo", "c1"))),
    ),
    Case(
        name="a seat that is removed meanwhile has no turn",
        seats="Anna Ben Cleo",
        rules=[gated("Anna", "a1"), *says("Cleo", "c1")],
        room={"max_rounds": 1},
        act=changing("Ben", {}),
        expected=whole("rounds", round_of(1, turn("Anna", "a1"), turn("Cleo", "c1"))),
    ),
    Case(
        name="seats that change places",
        seats="Anna Ben Cleo",
        rules=[gated("Anna", "a1"), *says("Cleo", "c1"), *says("Ben", "b1")],
        room={"max_rounds": 1},
        act=changing("Ben", {"turn_order": 9}),
        expected=whole("rounds", round_of(1, turn("Anna", "a1"), turn("Cleo", "c1"), turn("Ben", "b1"))),
    ),
    Case(
        name="a stop that changes in the last turn",
        seats="Anna",
        rules=[gated("Anna", "a1"), replies("Anna", 2, Text(text="a2 "), USUAL)],
        room={"stop": {"rounds": 1}},
        act=change_the_stop,
        expected=whole("rounds", round_of(1, turn("Anna", "a1")), round_of(2, turn("Anna", "a2"))),
    ),
    Case(
        name="a phrase ends the room within a round",
        seats="Anna Ben",
        rules=says("Anna", "All is DONE."),
        room={"stop": {"any": [{"phrase": "done"}, {"rounds": 4}]}},
        expected=[*whole("phrase", ["round_start 1", *turn("Anna", "All is DONE.")])],
    ),
    Case(
        name="a person skips a turn",
        seats="Anna Ben",
        rules=[gated("Anna", "a1"), *says("Ben", "b1")],
        room={"max_rounds": 1},
        act=posting("skip"),
        expected=whole(
            "rounds",
            round_of(
                1,
                [
                    "message_start Anna",
                    "steered skip",
                    "Anna: text cancelled",
                    "message_end Anna",
                    "message of Anna: a1 (partial)",
                ],
                turn("Ben", "b1"),
            ),
        ),
    ),
    Case(
        name="a person ends the room",
        seats="Anna Ben",
        rules=[gated("Anna", "a1")],
        act=posting("finish"),
        expected=[
            "room_started",
            "round_start 1",
            "message_start Anna",
            "steered finish",
            "Anna: text cancelled",
            "message_end Anna",
            "message of Anna: a1 (partial)",
            "room_completed person",
        ],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=str)
async def test_the_events_of_a_room(server: ServerProcess, case: Case) -> None:
    async with ScriptedProvider(Script(rules=case.rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, *case.seats.split(), **case.room)
        if case.room.get("policy") == "selector":
            provider_id = room["agents"][0]["provider_id"]
            policy = {"name": "selector", "provider_id": provider_id, "model": "scripted"}
            await ann.ask("PUT", f"/chat-rooms/{room['id']}", {"policy": policy})
        async with started(ann, room["id"]) as stream:
            if case.act is not None:
                await case.act(ann, room, stream, model)
            frames = (await stream.to_the_end()).frames
        lines = trace(frames, room["agents"])
        if not case.allows_any_order:
            assert lines == case.expected
            return
        # Turns at once: the same events, those of each seat in order, and rounds around them.
        assert sorted(lines) == sorted(case.expected)
        for name in case.seats.split():
            own = [line for line in lines if name in line]
            assert own == [line for line in case.expected if name in line]
        first_round = lines[: lines.index("round_end 1")]
        assert lines[2:5] == [f"message_start {name}" for name in case.seats.split()]
        assert sorted(first_round) == sorted(case.expected[: case.expected.index("round_end 1")])
