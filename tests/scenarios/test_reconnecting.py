"""Clients that lose their connection and reconnect: the same text, without losses or repetitions."""

import asyncio
import random
import socket
from urllib.parse import urlsplit

from api.server_process import ServerProcess

from luxx.providers.scripted import (
    Counts,
    Gate,
    Rule,
    Script,
    ScriptedProvider,
    Text,
    Thinking,
    When,
)
from scenarios.client import AsyncApiClient
from scenarios.screen import FrameReader, Screen
from scenarios.scripts import (
    FIRST_THOUGHT,
    PREFACE,
    PROSE,
    SECOND_THOUGHT,
    always_replies,
    two_iterations,
    words,
)
from scenarios.tool_controller import ToolController

SLOW_PROSE = " ".join(f"slow{n}" for n in range(120))


def slow_script(port: int) -> Script:
    """Two iterations whose words come slowly enough that clients can leave and reconnect between them."""
    hurried = two_iterations(port, text=SLOW_PROSE)
    return Script(
        rules=[Rule(name=rule.name, when=rule.when, reply=rule.reply, delay=0.01) for rule in hurried.rules]
    )


async def follow_with_reconnects(
    ann: AsyncApiClient, run_id: str, chance: random.Random
) -> tuple[Screen, int]:
    """Follows a run and disconnects again and again after a random number of frames."""
    screen, lines = Screen(), 0
    while screen.done is None:
        lines += 1
        patience = chance.randint(1, 12)
        async with ann.follow(run_id, screen, in_query=chance.random() < 0.5) as stream:
            async for _ in stream:
                patience -= 1
                if patience == 0:
                    break
    return screen, lines


async def test_clients_that_reconnect_at_a_hundred_random_points_all_see_the_stored_message(
    server: ServerProcess,
) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")

    async with (
        ToolController(answers=True) as controller,
        ScriptedProvider(slow_script(controller.port)) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation, tools=["visit_once"])
        chances = [random.Random(seed + n) for n in range(12)]
        all_screens = await asyncio.gather(
            *(follow_with_reconnects(ann, run["id"], chance) for chance in chances)
        )
        assert sum(lines for _, lines in all_screens) >= 100
        for screen, _ in all_screens:
            message = await ann.answer_shown_by(conversation, screen)
            assert message["text"] == PREFACE + SLOW_PROSE


async def test_after_the_end_a_client_with_any_last_id_gets_exactly_the_rest(server: ServerProcess) -> None:
    async with (
        ToolController(answers=True) as controller,
        ScriptedProvider(two_iterations(controller.port)) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, tools=["visit_once"]) as stream:
            whole = await stream.to_the_end()
        logged = [frame for frame in whole.frames if frame.id is not None]
        for last_id in range(len(logged)):
            for in_query in (False, True):
                screen = Screen(last_id=last_id)
                async with ann.follow(whole.run_id, screen, in_query=in_query) as stream:
                    await stream.to_the_end()
                assert [f.event for f in screen.frames[:1]] == ["run"]
                assert screen.frames[1:] == logged[last_id:]
        assert whole.frames[0].data["run"]["status"] in ("queued", "running")
        assert (await ann.wait_for_end(whole.run_id)).frames[0].data["run"]["status"] == "completed"


async def test_a_client_that_has_seen_the_end_gets_a_stream_that_closes(server: ServerProcess) -> None:
    async with ScriptedProvider(always_replies(Text(text="Hi"))) as model, AsyncApiClient(server.url) as ann:
        async with ann.send_and_follow(await ann.conversation(model.url)) as stream:
            whole = await stream.to_the_end()
        screen = Screen(last_id=whole.last_id)
        async with ann.follow(whole.run_id, screen) as stream:
            await stream.to_the_end(timeout=5)
        assert [frame.event for frame in screen.frames] == ["run"]


async def test_a_client_that_claims_more_than_there_is_is_refused_with_the_end_of_the_log(
    server: ServerProcess,
) -> None:
    async with ScriptedProvider(always_replies(Text(text="Hi"))) as model, AsyncApiClient(server.url) as ann:
        async with ann.send_and_follow(await ann.conversation(model.url)) as stream:
            whole = await stream.to_the_end()
        path = f"/runs/{whole.run_id}/events"
        refused = await ann.ask("GET", path, headers={"last-event-id": str(whole.last_id + 1000)})
        assert refused.status_code == 400
        assert str(whole.last_id) in refused.json()["error"]


async def test_a_client_that_attaches_late_gets_closed_steps_then_one_snapshot_then_deltas(
    server: ServerProcess,
) -> None:
    reply = [Thinking(text=FIRST_THOUGHT), *words(PROSE, "middle")]
    async with ScriptedProvider(always_replies(*reply)) as model, AsyncApiClient(server.url) as ann:
        run = await ann.start_run(await ann.conversation(model.url))
        async with ann.follow(run["id"]) as early:
            await model.reached("middle")
            while "word109 " not in early.screen.text:
                await early.until("process_step", timeout=5)
            async with ann.follow(run["id"]) as late:
                await late.until("process_step", type="thinking")
                snapshot = await late.until("process_step", type="text")
                assert snapshot.id is None
                assert "delta" not in snapshot.step
                assert snapshot.step["content"] == early.screen.text
                model.release("middle")
                screens = [await early.to_the_end(), await late.to_the_end()]
        assert screens[0].ordered() == screens[1].ordered()
        assert screens[1].text == PROSE


async def test_reconnecting_while_a_tool_runs_loses_nothing(server: ServerProcess) -> None:
    async with (
        ToolController() as controller,
        ScriptedProvider(two_iterations(controller.port)) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, tools=["visit_once"]) as stream:
            screen = stream.screen
            await controller.wait_for_visit(2)
            await stream.until("process_step", type="tool_call", status="running")
        controller.visits[1].answer("second")
        controller.visits[0].answer("first")
        async with ann.follow(screen.run_id, screen) as stream:
            await stream.to_the_end()
        await ann.answer_shown_by(conversation, screen)
        assert sum(event == "done" for event in screen.events()) == 1


async def test_eighty_simultaneous_clients_see_the_same(server: ServerProcess) -> None:
    async with (
        ToolController(answers=True) as controller,
        ScriptedProvider(slow_script(controller.port)) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation, tools=["visit_once"])
        screens = await asyncio.gather(*(ann.wait_for_end(run["id"]) for _ in range(80)))
        message = await ann.answer_shown_by(conversation, screens[0])
        assert all(screen.ordered() == message["steps"] for screen in screens)


async def test_a_slow_client_misses_nothing_and_delays_nobody(server: ServerProcess) -> None:
    text = "".join(f"line {number} has a length that fills the buffers between\n" for number in range(24_000))

    reply = [Thinking(text=SECOND_THOUGHT), Text(text=text, pieces=4000), Counts(prompt=1, completion=1)]
    async with ScriptedProvider(always_replies(*reply)) as model, AsyncApiClient(server.url) as ann:
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation)
        address = urlsplit(server.url)
        line = socket.socket()
        # Not smaller: an event that does not fit at all is dropped and sent again, later each time.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 * 1024)
        line.setblocking(False)
        await asyncio.get_running_loop().sock_connect(line, (address.hostname, address.port))
        reader, writer = await asyncio.open_connection(sock=line, limit=4096)
        try:
            writer.write(
                f"GET /runs/{run['id']}/events HTTP/1.1\r\nHost: {address.netloc}\r\n"
                f"Authorization: Bearer {ann.token}\r\n\r\n".encode()
            )
            await writer.drain()
            await reader.readuntil(b"\r\n\r\n")
            quick = await ann.wait_for_end(run["id"])
            assert quick.text == text
            slow = Screen(may_fall_behind=True)
            await asyncio.wait_for(_read_chunked(reader, slow), 60)
        finally:
            writer.close()
        assert slow.ordered() == quick.ordered()
        await ann.answer_shown_by(conversation, slow)


async def _read_chunked(reader: asyncio.StreamReader, screen: Screen) -> None:
    frames = FrameReader()
    while size := int(await reader.readuntil(b"\r\n"), 16):
        data = await reader.readexactly(size + 2)
        for frame in frames.feed(data[:-2]):
            screen.show(frame)


async def test_a_closed_client_changes_nothing(server: ServerProcess) -> None:
    async with (
        ScriptedProvider(always_replies(*words(PROSE, "middle"))) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation) as stream:
            await stream.until("process_step")
            await model.reached("middle")
            run_id = stream.screen.run_id
        assert (await ann.run(run_id))["status"] == "running"
        model.release("middle")
        screen = await ann.wait_for_end(run_id)
        message = await ann.answer_shown_by(conversation, screen)
        assert message["text"] == PROSE
        assert message["status"] == "complete"
        assert model.requests[0].is_answered


async def test_a_client_that_leaves_a_waiting_post_changes_nothing(server: ServerProcess) -> None:
    async with (
        ScriptedProvider(always_replies(*words(PROSE, "middle"))) as model,
        AsyncApiClient(server.url) as ann,
    ):
        conversation = await ann.conversation(model.url)
        asking = asyncio.create_task(
            ann.post("/messages", {"conversation_id": conversation, "content": "Hello"})
        )
        await model.reached("middle")
        asking.cancel()
        await asyncio.wait([asking])
        run_id = (await ann.get(f"/conversations/{conversation}"))["run_id"]
        assert run_id is not None
        model.release("middle")
        screen = await ann.wait_for_end(run_id)
        assert (await ann.answer_shown_by(conversation, screen))["text"] == PROSE


async def test_a_run_of_another_user_cannot_be_followed(server: ServerProcess) -> None:
    rules = [Rule(when=When(user="mine"), reply=[Text(text="Hi"), Gate(name="middle"), Text(text=" you")])]
    async with (
        ScriptedProvider(Script(rules=rules)) as model,
        AsyncApiClient(server.url) as ann,
        AsyncApiClient(server.url) as eve,
    ):
        name = f"eve{random.randrange(10**9)}"
        registered = await eve.post("/auth/register", {"username": name, "password": "a-long-password-7"})
        eve.token = registered["access_token"]
        run = await ann.start_run(await ann.conversation(model.url), "mine")
        await model.reached("middle")
        for method, path in (("GET", ""), ("GET", "/events"), ("POST", "/cancel")):
            theirs = await eve.ask(method, f"/runs/{run['id']}{path}")
            nothing = await eve.ask(method, f"/runs/{run['id'][:-1]}x{path}")
            assert theirs.status_code == nothing.status_code == 404
            assert theirs.json()["detail"]["kind"] == nothing.json()["detail"]["kind"]
        model.release("middle")
        assert (await ann.wait_for_end(run["id"])).text == "Hi you"
