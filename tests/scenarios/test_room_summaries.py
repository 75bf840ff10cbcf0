"""A room that outgrows the window of its models: one summary for all seats, made once."""

from pathlib import Path

from api.server_process import ServerProcess

from luxx.providers.scripted import Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.conftest import SMALL_WINDOWS
from scenarios.restarting_client import RestartingClient
from scenarios.rooms import RoomScreen, run_to_the_end, said
from scenarios.screen import Frame
from scenarios.scripts import ASKS_FOR_SUMMARY
from scenarios.test_long_turns import contents
from scenarios.test_summaries import summary_rule

SUMMARY = "## Goal and limits\nChoose a tree.\n\n## Decided\nThe pear tree is too old."
TITLE = "[Summary of the earlier discussion, which is not repeated here]"
TASK = "Choose the tree that the gardener should plant, and say why."
SPEECH = "I think of the old pear tree behind the wall, which nobody has watered since the spring. " * 8
"""About 170 tokens."""


def script(*summaries: Rule) -> Script:
    return Script(rules=[*summaries, Rule(name="speaks", reply=[Text(text=SPEECH, pieces=1)])], window=8_000)


async def room_of_three(ann: AsyncApiClient, url: str, rounds: int) -> str:
    seat = {"provider_id": await ann.connect(url), "model": "eight", "max_tokens": 1000, "tools": []}
    seats = [{"name": name, **seat} for name in ("Anna", "Ben", "Cleo")]
    body = {"title": "Garden", "task": TASK, "agents": seats, "max_rounds": rounds}
    return str((await ann.post("/chat-rooms", body))["id"])


def users(request: Json) -> list[str]:
    return contents(request["messages"], "user")


async def test_a_room_of_60_messages_ends_with_its_goal_and_few_summaries(long_server: ServerProcess) -> None:
    summary = summary_rule(Text(text=SUMMARY, pieces=1))
    async with ScriptedProvider(script(summary)) as model, AsyncApiClient(long_server.url) as ann:
        room = await room_of_three(ann, model.url, 20)
        await ann.post(f"/chat-rooms/{room}/messages", {"content": "Cherries are welcome."})
        frames = await run_to_the_end(ann, room)
        sent = await ann.get(f"/chat-rooms/{room}/messages/{msg_ids(frames)[-1]}/context")
        again = await run_to_the_end(ann, room)
    requests = [request.json for request in model.requests]
    asked = [at for at, request in enumerate(model.requests) if request.rule == "summary"]
    assert frames[-1].event == "room_completed"
    assert len(said(frames)) >= 60
    assert "warning" not in {frame.event for frame in [*frames, *again]}
    for request in requests:
        assert users(request)[0].endswith(TASK)
        assert len(request["messages"]) < 45
    last_of_run = requests[59 + sum(at < 60 for at in asked)]
    assert users(last_of_run)[1] == f"{TITLE}\n\n{SUMMARY}"
    assert "[admin] Cherries are welcome." in users(last_of_run)
    assert [one.get("text") for one in sent["messages"]][1:3] == users(last_of_run)[:2]
    # Made once for the room: the next turns of the other seats begin with it, in this run and in the next.
    assert 1 <= len([frame for frame in frames if frame.event == "context_compressed"]) <= 4
    for at in asked:
        for following in requests[at + 2 : at + 4]:
            assert users(following)[1].startswith(TITLE)
            assert SUMMARY in users(following)[1]
            assert len(following["messages"]) < 15
    first_of_next = requests[60 + sum(at <= 60 for at in asked)]
    assert users(first_of_next)[1].startswith(TITLE)


def msg_ids(frames: list[Frame]) -> list[str]:
    return [frame.data["msg_id"] for frame in frames if frame.event == "message_start"]


async def whole_room(ann: RestartingClient, model: ScriptedProvider, *gates: str) -> list[Json]:
    """The messages of the requests of a room, each once; the server is killed at each gate."""
    room = await room_of_three(ann, model.url, 13)
    headers = {"accept": "application/json"}
    run = (await ann.ask("POST", f"/chat-rooms/{room}/start", headers=headers)).json()["data"]
    for gate in gates:
        await model.reached(gate, 60)
        await ann.kill()
        model.release(gate)
        await ann.start()
    screen = RoomScreen()
    async with ann.follow(run["id"], screen) as stream:
        await stream.to_the_end(timeout=60)
    assert screen.frames[-1].event == "room_completed"
    sent: list[Json] = []
    for request in model.requests:
        if request.json["messages"] not in sent:
            sent.append(request.json["messages"])
    return sent


async def test_a_room_that_is_killed_sends_what_it_would_have_sent(tmp_path: Path) -> None:
    """Killed in the summary, and in the turn of the seat after it, which reads the summary from the log."""
    summary = summary_rule(Text(text=SUMMARY, pieces=1))
    with ServerProcess(tmp_path, **SMALL_WINDOWS) as server:
        async with ScriptedProvider(script(summary)) as model, RestartingClient(server) as ann:
            undisturbed = await whole_room(ann, model)
        at = next(at for at, sent in enumerate(undisturbed, 1) if ASKS_FOR_SUMMARY in sent[-1]["content"])
        gates = [
            Rule(
                name=name,
                when=When(call=call),
                reply=[Gate(name=name), Text(text="lost")],
            )
            for name, call in (("summary killed", at), ("speech killed", at + 3))
        ]
        async with ScriptedProvider(script(*gates, summary)) as model, RestartingClient(server) as ann:
            assert await whole_room(ann, model, *[gate.name for gate in gates]) == undisturbed
    assert TITLE in str(undisturbed[-1])
