"""Rooms at a real server: who speaks when, what clients see, what people can do meanwhile."""

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Gate, Pause, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, AsyncEventStream, Json
from scenarios.rooms import USUAL, RoomScreen, new_room, order, replies, run_to_the_end, said, says, started

TURN = ["message_start", "message_end", "message"]


async def test_seats_speak_in_order_and_the_events_follow_the_document(server: ServerProcess) -> None:
    script = Script(rules=[*says("Anna", "I begin", "I agree"), *says("Ben", "I doubt it", "We end")])
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", "Ben", max_rounds=2)
        frames = await run_to_the_end(ann, room["id"])
        round_ = ["round_start", *TURN, *TURN, "round_end"]
        assert frames[0].event == "run"
        assert order(frames) == ["room_started", *round_, *round_, "room_completed"]
        assert said(frames) == [
            ("Anna", "I begin"),
            ("Ben", "I doubt it"),
            ("Anna", "I agree"),
            ("Ben", "We end"),
        ]
        ends = [frame.data["msg_id"] for frame in frames if frame.event == "message_end"]
        room = await ann.get(f"/chat-rooms/{room['id']}")
        assert (room["status"], room["stop_reason"], room["current_round"]) == ("completed", "rounds", 2)
        messages = (await ann.get(f"/chat-rooms/{room['id']}/messages"))["items"][::-1]
        assert [message["id"] for message in messages] == ends
        assert [message["round_number"] for message in messages] == [1, 1, 2, 2]
        run = await ann.run(room["run_id"])
        assert run["usage"]["completion_tokens"] == 20


async def test_a_seat_reads_the_others_by_name_and_its_own_prefix_is_stable(server: ServerProcess) -> None:
    script = Script(rules=[*says("Anna", "I begin", "I agree"), *says("Ben", "I doubt it", "We end")])
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", "Ben", max_rounds=2)
        await run_to_the_end(ann, room["id"])
        first, second = (model.requests[at].json["messages"] for at in (0, 2))
        assert second[: len(first)] == first
        assert "Ben: Ben's role" in first[0]["content"]
        assert first[1]["content"].endswith("Find it out")
        assert second[len(first) :] == [
            {"role": "assistant", "content": "I begin "},
            {"role": "user", "content": "[Ben] I doubt it "},
        ]
        messages = (await ann.get(f"/chat-rooms/{room['id']}/messages"))["items"]
        sent = await ann.get(f"/chat-rooms/{room['id']}/messages/{messages[1]['id']}/context")
        system, *others = [message.get("text") for message in sent["messages"]]
        # The list of agents that follows is not kept.
        assert second[0]["content"].startswith(f"{system}\n\nThere are agents")
        assert others == [one["content"] for one in second[1:]]


async def test_tools_and_thinking_are_steps_of_the_message(server: ServerProcess) -> None:
    call = Call(name="python_eval", arguments='{"expression": "6 * 7"}')
    rules = [replies("Anna", 1, call, USUAL), *says("Anna", "none", "It is 42")[1:], *says("Ben", "Good")]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", "Ben", max_rounds=1)
        frames = await run_to_the_end(ann, room["id"])
        assert said(frames) == [("Anna", "It is 42"), ("Ben", "Good")]
        message_id = next(frame.data["msg_id"] for frame in frames if frame.event == "message_start")
        steps = [frame for frame in frames if frame.event == "process_step" and frame.id is not None]
        assert {"tool_call", "tool_result"} <= {frame.step["type"] for frame in steps}
        assert {frame.data["msg_id"] for frame in steps if frame.step["type"] != "text"} == {message_id}
        # The next seat reads the text, not the tools.
        assert [one["role"] for one in model.requests[-1].json["messages"]] == ["system", "user", "user"]


async def test_a_pause_keeps_the_text_and_the_seat_that_it_cut_speaks_again(server: ServerProcess) -> None:
    rules = [
        replies("Anna", 1, Text(text="I think "), Gate(name="gate"), Text(text="more"), USUAL),
        replies("Anna", 2, Text(text="As I said"), USUAL),
        *says("Ben", "I go on"),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", "Ben", max_rounds=1)
        async with started(ann, room["id"]) as stream:
            await stream.until("message_chunk")
            run = await ann.post(f"/chat-rooms/{room['id']}/stop")
            frames = (await stream.to_the_end()).frames
        assert run["status"] == "paused"
        begun = ["room_started", "round_start", "message_start"]
        assert order(frames) == [*begun, "steered", "message_end", "message", "room_paused"]
        assert said(frames) == [("Anna", "I think")]
        assert (await ann.get(f"/chat-rooms/{room['id']}"))["status"] == "paused"
        refused = await ann.ask("POST", f"/chat-rooms/{room['id']}/start")
        assert refused.status_code == 409
        rest = await run_to_the_end(ann, room["id"], "resume")
        assert said(rest) == [("Anna", "As I said"), ("Ben", "I go on")]
        assert order(rest)[-2:] == ["round_end", "room_completed"]
        messages = (await ann.get(f"/chat-rooms/{room['id']}/messages"))["items"]
        assert [message["status"] for message in messages] == ["complete", "complete", "partial"]
        again = await ann.ask("POST", f"/chat-rooms/{room['id']}/resume")
        assert again.status_code == 409


async def test_a_person_speaks_in_the_middle_and_the_next_seat_reads_it(server: ServerProcess) -> None:
    rules = [
        replies("Anna", 1, Text(text="I think "), Gate(name="gate"), Text(text="so"), USUAL),
        *says("Ben", "I heard you"),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", "Ben", max_rounds=1)
        async with started(ann, room["id"]) as stream:
            await stream.until("message_chunk")
            spoken = await ann.post(f"/chat-rooms/{room['id']}/messages", {"content": "Mind the cost"})
            assert spoken["sender_name"] == "admin"
            await stream.until("message")
            model.release("gate")
            frames = (await stream.to_the_end()).frames
        assert said(frames) == [
            ("admin", "Mind the cost"),
            ("Anna", "I think so"),
            ("Ben", "I heard you"),
        ]
        assert [one["content"] for one in model.requests[1].json["messages"][2:]] == [
            "[admin] Mind the cost",
            "[Anna] I think so",
        ]


async def test_words_of_a_person_during_a_turn_are_in_its_next_call(server: ServerProcess) -> None:
    call = Call(name="python_eval", arguments={"expression": "6 * 7"})
    words = "[admin] Mind the cost"
    rules = [
        replies("Anna", 1, Gate(name="gate"), call, USUAL),
        *[replies("Anna", number, Text(text=f"Cheap {number}"), USUAL) for number in (2, 3)],
        *says("Ben", "I heard you", "Fine"),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", "Ben", max_rounds=2)
        async with started(ann, room["id"]) as stream:
            await model.reached("gate")
            spoken = await ann.post(f"/chat-rooms/{room['id']}/messages", {"content": "Mind the cost"})
            await stream.until("message")
            model.release("gate")
            frames = (await stream.to_the_end()).frames
        assert [name for name, _ in said(frames)] == ["admin", "Anna", "Ben", "Anna", "Ben"]
        steps = [frame.step for frame in frames if frame.event == "process_step"]
        heard = [step for step in steps if step["type"] == "user"]
        assert [(step["content"], step["id_ref"]) for step in heard] == [(words, spoken["id"])]
        sent = {request.rule: request.json["messages"] for request in model.requests}
        second, third = sent["Anna 2"], sent["Anna 3"]
        assert [each["role"] for each in second[2:]] == ["assistant", "tool", "user"]
        assert second[-1]["content"] == words
        # Her next turn reads it where she heard it, the other seat where it was said.
        assert third[: len(second)] == second
        del sent["Anna 1"]
        for messages in sent.values():
            assert sum("Mind the cost" in str(each["content"]) for each in messages) == 1
        assert [each["content"] for each in sent["Ben 1"][2:]] == [words, "[Anna] Cheap 2"]


@pytest.mark.parametrize(
    ("policy", "stop", "words", "answers"),
    [
        ("round_robin", {"rounds": 1}, "And the cost?", ["Anna"]),
        ("sequential", {"rounds": 5}, "And the cost?", ["Anna"]),
        ("round_robin", {"messages": 2}, "@Ben, and the cost?", ["Ben"]),
        ("parallel", {"rounds": 1}, "And the cost?", ["Anna", "Ben"]),
    ],
)
async def test_the_last_words_of_a_person_are_answered_before_the_end(
    server: ServerProcess, policy: str, stop: Json, words: str, answers: list[str]
) -> None:
    last = replies("Ben", 1, Text(text="I "), Gate(name="gate"), Text(text="end"), USUAL)
    rules = [
        *says("Anna", "I begin"),
        last,
        *(replies(name, 2, Text(text="It costs 5"), USUAL) for name in answers),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", "Ben", policy=policy, stop=stop)
        async with started(ann, room["id"]) as stream:
            while (await stream.until("message_start")).data["sender_name"] != "Ben":
                pass
            await ann.post(f"/chat-rooms/{room['id']}/messages", {"content": words})
            while (await stream.until("message")).data["message"]["sender_name"] != "admin":
                pass
            model.release("gate")
            frames = (await stream.to_the_end()).frames
        assert sorted(said(frames)[-len(answers) :]) == [(name, "It costs 5") for name in answers]
        assert ("Ben", "I end") in said(frames)[: -len(answers)]
        assert order(frames)[-1] == "room_completed"
        assert frames[-1].data["stop_reason"] == ("finished" if policy == "sequential" else next(iter(stop)))


async def test_who_ends_a_room_hears_no_more(server: ServerProcess) -> None:
    rules = [*says("Anna", "I begin"), replies("Ben", 1, Text(text="I "), Gate(name="gate"), USUAL)]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", "Ben", max_rounds=1)
        async with started(ann, room["id"]) as stream:
            while (await stream.until("message_start")).data["sender_name"] != "Ben":
                pass
            await ann.post(f"/chat-rooms/{room['id']}/messages", {"content": "Enough"})
            await ann.post(f"/chat-rooms/{room['id']}/finish")
            frames = (await stream.to_the_end()).frames
        assert said(frames)[-1] == ("Ben", "I")
        assert frames[-1].data["stop_reason"] == "person"


async def test_a_skipped_turn_ends_and_the_room_goes_on(server: ServerProcess) -> None:
    rules = [replies("Anna", 1, Text(text="Well "), Gate(name="gate"), USUAL), *says("Ben", "My turn")]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", "Ben", max_rounds=1)
        async with started(ann, room["id"]) as stream:
            await stream.until("message_chunk")
            await ann.post(f"/chat-rooms/{room['id']}/skip")
            frames = (await stream.to_the_end()).frames
        assert said(frames) == [("Anna", "Well"), ("Ben", "My turn")]
        assert order(frames)[-1] == "room_completed"


async def test_all_seats_speak_at_once_and_read_each_other_in_the_next_round(server: ServerProcess) -> None:
    names = ("Anna", "Ben", "Cleo")
    rules = [rule for name in names for rule in says(name, f"{name} one", f"{name} two")]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, *names, max_rounds=2, policy="parallel")
        frames = await run_to_the_end(ann, room["id"])
        assert sorted(said(frames)[:3]) == [(name, f"{name} one") for name in names]
        assert sorted(said(frames)[3:]) == [(name, f"{name} two") for name in names]
        starts = [at for at, frame in enumerate(frames) if frame.event == "message_start"]
        assert all(frame.event == "message_start" for frame in frames[starts[0] : starts[0] + 3])
        assert all(len(request.json["messages"]) == 2 for request in model.requests[:3])
        # The seat whose own message is the last one reads that it is its turn.
        lengths = sorted(len(request.json["messages"]) for request in model.requests[3:])
        assert lengths == [5, 5, 6]


async def test_a_model_chooses_who_speaks_and_a_wrong_choice_falls_back(server: ServerProcess) -> None:
    chooser = "You choose who speaks next"
    rules = [
        Rule(name="choice 1", when=When(system=chooser, call=1), reply=[Text(text="Ben."), USUAL]),
        Rule(name="choice 2", when=When(system=chooser, call=2), reply=[Text(text="Nobody"), USUAL]),
        Rule(name="choice 3", when=When(system=chooser, call=3), reply=[Text(text="Let Anna speak"), USUAL]),
        *says("Ben", "First"),
        *says("Cleo", "Second"),
        *says("Anna", "Third"),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        provider_id = await ann.connect(model.url)
        policy = {"name": "selector", "provider_id": provider_id, "model": "scripted"}
        room = await new_room(ann, model.url, "Anna", "Ben", "Cleo", max_rounds=1, policy=policy)
        frames = await run_to_the_end(ann, room["id"])
        given = [frame.data["by"] for frame in frames if frame.event == "floor_given"]
        assert given == ["selector", "fallback", "selector"]
        purposes = [frame.data["purpose"] for frame in frames if frame.event == "cost_update"]
        assert purposes[:4] == ["choice", "answer", "choice", "answer"]
        assert [name for name, _ in said(frames)][:2] == ["Ben", "Cleo"]


async def test_a_person_gives_the_floor_where_the_policy_is_manual(server: ServerProcess) -> None:
    async with (
        ScriptedProvider(Script(rules=[*says("Ben", "Thank you")])) as model,
        AsyncApiClient(server.url) as ann,
    ):
        room = await new_room(ann, model.url, "Anna", "Ben", policy="manual", stop={"messages": 1})
        seats = {seat["name"]: seat["id"] for seat in room["agents"]}
        async with started(ann, room["id"]) as stream:
            await stream.until("round_start")
            refused = await ann.ask("POST", f"/chat-rooms/{room['id']}/floor", {"seat_id": 999_999})
            assert refused.status_code == 404
            await ann.post(f"/chat-rooms/{room['id']}/floor", {"seat_id": seats["Ben"]})
            frames = (await stream.to_the_end()).frames
        assert said(frames) == [("Ben", "Thank you")]
        run = await ann.run((await ann.get(f"/chat-rooms/{room['id']}"))["run_id"])
        assert (run["status"], run["stop_reason"]) == ("completed", "messages")


async def test_a_failing_seat_is_skipped_then_muted_and_the_room_without_seats_pauses(
    server: ServerProcess,
) -> None:
    broken = Rule(name="broken", status=401, message="wrong key")
    async with ScriptedProvider(Script(rules=[broken])) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", max_rounds=5)
        frames = await run_to_the_end(ann, room["id"])
        errors = [frame.data for frame in frames if frame.event == "agent_error"]
        assert [error["sender_name"] for error in errors] == ["Anna", "Anna"]
        assert "wrong key" in errors[0]["message"]
        assert order(frames)[-3:] == ["warning", "error", "room_paused"]
        room = await ann.get(f"/chat-rooms/{room['id']}")
        assert (room["status"], room["agents"][0]["muted"]) == ("error", True)
        async with ScriptedProvider(Script(rules=[*says("Anna", "Here again")])) as repaired:
            provider_id = await ann.connect(repaired.url)
            path = f"/chat-rooms/{room['id']}/agents/{room['agents'][0]['id']}"
            answer = await ann.ask("PUT", path, {"muted": False, "provider_id": provider_id})
            assert answer.status_code == 200, answer.text
            await ann.ask("PUT", f"/chat-rooms/{room['id']}", {"max_rounds": 3})
            frames = await run_to_the_end(ann, room["id"], "resume")
        assert said(frames) == [("Anna", "Here again")]
        assert order(frames)[-1] == "room_completed"


async def test_a_seat_reads_its_own_tool_steps_and_not_those_of_others(server: ServerProcess) -> None:
    call = Call(name="python_eval", arguments='{"expression": "6 * 7"}', id="call-anna")
    rules = [
        replies("Anna", 1, call, USUAL),
        replies("Anna", 2, Text(text="It is 42"), USUAL),
        replies("Anna", 3, Text(text="Still"), USUAL),
        *says("Ben", "Is it?", "Fine"),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", "Ben", max_rounds=2)
        await run_to_the_end(ann, room["id"])
        by_rule = {request.rule: request.json["messages"] for request in model.requests}
        assert [one["role"] for one in by_rule["Anna 3"]] == [
            "system", "user", "assistant", "tool", "assistant", "user"
        ]  # fmt: skip
        assert by_rule["Anna 3"][: len(by_rule["Anna 2"])] == by_rule["Anna 2"]
        assert all(one["role"] != "tool" for one in by_rule["Ben 2"])
        assert "call-anna" not in str(by_rule["Ben 2"])


async def test_each_chunk_has_the_text_so_far_for_clients_that_want_it(server: ServerProcess) -> None:
    async with (
        ScriptedProvider(Script(rules=says("Anna", "one two three"))) as model,
        AsyncApiClient(server.url) as ann,
    ):
        room = await new_room(ann, model.url, "Anna", max_rounds=1)
        start = f"/chat-rooms/{room['id']}/start"
        async with ann.streaming("POST", start, accumulated="1") as response:
            frames = (await AsyncEventStream(response, RoomScreen()).to_the_end()).frames
        chunks = [frame.data for frame in frames if frame.event == "message_chunk"]
        text = ""
        for chunk in chunks:
            text += chunk["content"]
            assert chunk["accumulated"] == text
        assert text == "one two three "


@pytest.mark.parametrize(
    ("stop", "turns"),
    [({"tokens": 40}, 3), ({"all": [{"tokens": 20}, {"messages": 4}]}, 4), ({"seconds": 1}, 1)],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_a_room_ends_when_its_stop_fires(server: ServerProcess, stop: Json, turns: int) -> None:
    pause = [Pause(seconds=1.2)] if "seconds" in stop else []
    texts = [f"a{number}" for number in range(1, turns + 1)]
    rules = [replies("Anna", number, *pause, Text(text=text), USUAL) for number, text in enumerate(texts, 1)]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", stop=stop)
        frames = await run_to_the_end(ann, room["id"])
        assert [text for _, text in said(frames)] == texts
        shown = await ann.get(f"/chat-rooms/{room['id']}")
        assert (shown["status"], shown["stop_reason"]) == ("completed", next(iter(stop)))
        outcome = await ann.get(f"/chat-rooms/{room['id']}/outcome")
        assert outcome["stop_reason"] == shown["stop_reason"]
        listed = (await ann.get("/usage", group_by="room", page_size=100))["items"]
        mine = next(one for one in listed if one["key"] == room["id"])
        assert mine["completion_tokens"] == 5 * turns


async def test_a_room_that_runs_can_be_deleted_and_its_stream_ends(server: ServerProcess) -> None:
    rules = [replies("Anna", 1, Text(text="Well "), Gate(name="gate"), USUAL)]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna")
        async with started(ann, room["id"]) as stream:
            run_id = (await stream.until("message_chunk")).data["run_id"]
            answer = await ann.ask("DELETE", f"/chat-rooms/{room['id']}")
            assert answer.status_code == 200, answer.text
            await model.requests[0].wait_closed(5)
            await stream.to_the_end()
        assert (await ann.ask("GET", f"/runs/{run_id}")).status_code == 404
        assert (await ann.ask("GET", f"/chat-rooms/{room['id']}")).status_code == 404


async def test_a_room_that_ended_starts_again_after_its_messages(server: ServerProcess) -> None:
    rules = says("Anna", "first", "second")
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(server.url) as ann:
        room = await new_room(ann, model.url, "Anna", max_rounds=1)
        first = await run_to_the_end(ann, room["id"])
        second = await run_to_the_end(ann, room["id"])
        assert said(second) == [("Anna", "second")]
        assert first[0].data["run_id"] != second[0].data["run_id"]
        assert "first " in [one["content"] for one in model.requests[1].json["messages"]]
        assert (await ann.get(f"/chat-rooms/{room['id']}/messages"))["total"] == 2
        reset = await ann.post(f"/chat-rooms/{room['id']}/reset")
        assert (reset["status"], reset["run_id"], reset["current_round"]) == ("idle", None, 0)
        assert (await ann.get(f"/chat-rooms/{room['id']}/messages"))["total"] == 0
        assert (await ann.get("/runs", subject_id=room["id"]))["total"] == 0
