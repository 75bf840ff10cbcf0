"""kill -9 of the server at every event of a small room: its run goes on, and nothing is lost or repeated."""

import httpx
import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Pause, Rule, Script, ScriptedProvider, Text, When
from scenarios.restarting_client import RestartingClient
from scenarios.rooms import USUAL, RoomScreen, new_room, said

pytestmark = pytest.mark.heavy

ENDS = ("room_completed", "room_paused")


def small_room() -> Script:
    """Anna calls a tool and says its result; Ben answers."""
    call = Call(name="python_eval", arguments='{"expression": "6 * 7"}')
    return Script(
        rules=[
            Rule(
                name="asks", when=When(system="You are Anna in", has_tool_result=False), reply=[call, USUAL]
            ),
            Rule(
                name="tells",
                when=When(system="You are Anna in", has_tool_result=True),
                reply=[Text(text="It "), Pause(seconds=0.05), Text(text="is 42"), USUAL],
            ),
            Rule(
                name="answers",
                when=When(system="You are Ben in"),
                reply=[Text(text="Good "), Pause(seconds=0.05), Text(text="work"), USUAL],
            ),
        ]
    )


async def follow_until(ann: RestartingClient, run_id: str, screen: RoomScreen, seq: int) -> bool:
    """Follows the run until the event `seq` or its end; whether it has ended."""
    while not (screen.frames and screen.frames[-1].event in ENDS):
        try:
            async with ann.follow(run_id, screen) as stream:
                async for frame in stream:
                    if frame.event in ENDS:
                        return True
                    if frame.id is not None and frame.id >= seq:
                        return False
        except httpx.TransportError:
            pass
    return True


async def test_a_room_goes_on_wherever_the_server_is_killed(own_server: ServerProcess) -> None:
    seq, is_over = 0, False
    while not is_over:
        seq += 1
        async with ScriptedProvider(small_room()) as model, RestartingClient(own_server) as ann:
            room = await new_room(ann, model.url, "Anna", "Ben", max_rounds=1)
            start = f"/chat-rooms/{room['id']}/start"
            run = (await ann.ask("POST", start, headers={"accept": "application/json"})).json()["data"]
            screen = RoomScreen()
            is_over = await follow_until(ann, run["id"], screen, seq)
            await ann.kill_and_start()
            await follow_until(ann, run["id"], screen, 1_000_000)
            assert said(screen.frames) == [("Anna", "It is 42"), ("Ben", "Good work")], f"killed at {seq}"
            messages = (await ann.get(f"/chat-rooms/{room['id']}/messages"))["items"][::-1]
            assert [message["text"] for message in messages] == ["It is 42", "Good work"]
            results = [step for step in messages[0]["steps"] if step["type"] == "tool_result"]
            assert len(results) == 1
            ended = await ann.run(run["id"])
            assert (ended["status"], ended["last_seq"]) == ("completed", screen.last_id)
            # Only the call that the kill interrupted is made again.
            assert len(model.requests) <= 4
    assert seq > 12
