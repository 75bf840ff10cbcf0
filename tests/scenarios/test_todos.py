"""The to-do list of a conversation: the model writes it and reads open items again; a person changes it."""

import asyncio
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from api.server_process import ServerProcess
from command_line import register

from luxx.providers.scripted import Call, Gate, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.restarting_client import RestartingClient
from scenarios.rooms import USUAL, RoomScreen, run_to_the_end
from scenarios.test_plans_in_chats import PLANNED, plan_rule, step_rule


@pytest.fixture(scope="module")
def patient_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """As many rounds of tools as by default."""
    with ServerProcess(tmp_path_factory.mktemp("todos")) as started_server:
        yield started_server


TOOLS = ["todo_write", "file_exists"]
REMINDER = "(From Luxx, not from the person.)"
OF_PERSON = "[A person has changed"


def item(id_: str, title: str, *, completed: bool = False, description: str = "") -> Json:
    return {"id": id_, "title": title, "description": description, "completed": completed}


def write(*items: Json) -> Call:
    return Call(name="todo_write", arguments={"todos": list(items)})


def look(path: str) -> Call:
    return Call(name="file_exists", arguments={"path": path})


def rule(call: int, *reply: Any) -> Rule:
    return Rule(when=When(call=call), reply=[*reply])


def sent(model: ScriptedProvider, number: int) -> list[Json]:
    """The messages of a request, counted from 1."""
    return model.requests[number - 1].json["messages"]


def last(model: ScriptedProvider, number: int) -> str:
    message = sent(model, number)[-1]
    return message["content"] if message["role"] == "user" else ""


async def todos(ann: AsyncApiClient, conversation: str) -> list[Json]:
    return (await ann.get(f"/conversations/{conversation}/todos"))["todos"]


async def put(ann: AsyncApiClient, conversation: str, items: list[Json], base: list[Json] | None) -> Json:
    body = {"todos": items, **({} if base is None else {"base": base})}
    response = await ann.ask("PUT", f"/conversations/{conversation}/todos", body)
    assert response.status_code == 200, response.text
    return response.json()["data"]["todos"]


A, B = item("t1", "Read the mail"), item("t2", "Write the answer")
NEW = [{"title": "Read  the\nmail"}, {"title": "Write the answer"}]


async def test_open_items_are_recited_and_reminded_of_once(patient_server: ServerProcess) -> None:
    script = Script(
        rules=[
            rule(1, write(*NEW)), rule(2, look("a")), rule(3, look("b")), rule(4, look("c")),
            rule(5, Text(text="Done so far.")), rule(6, Text(text="The rest waits.")),
            rule(7, Text(text="Yes.")),
        ]
    )  # fmt: skip
    async with ScriptedProvider(script) as model, AsyncApiClient(patient_server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, "Begin", tools=TOOLS) as stream:
            event = (await stream.until("plan_updated")).data
            assert (event["todos"], event["by"]) == ([A, B], "model")
            screen = await stream.to_the_end()
        # The third call after the write is the first one that gets the open items again.
        recited = "[Open items of your to-do list]\n- t1: Read the mail\n- t2: Write the answer"
        assert [last(model, number) for number in (2, 3, 4, 5)] == ["", "", recited, recited]
        assert last(model, 6) == recited
        said = sent(model, 6)[-2]
        assert said["role"] == "user"
        assert said["content"].startswith(
            f"{REMINDER} 2 items are open in your to-do list:\n- t1: Read the mail"
        )
        # Without the recited items, which come last, each request extends the one before.
        stems = [[one for one in sent(model, n) if one["content"] != recited] for n in range(1, 7)]
        assert all(after[: len(before)] == before for before, after in pairwise(stems))
        assert screen.done is not None
        assert (screen.done["status"], screen.done["open_todos"]) == ("completed", 2)
        message = await ann.answer_shown_by(conversation, screen)
        reminders = [step for step in message["steps"] if step["type"] == "user"]
        assert [(step["name"], "id_ref" in step) for step in reminders] == [("reminder", False)]
        assert message["text"] == "Done so far.The rest waits."
        assert await todos(ann, conversation) == [A, B]
        # The next answer begins with the list, and is not reminded of what it did not write.
        async with ann.send_and_follow(conversation, "Go on", tools=TOOLS) as stream:
            screen = await stream.to_the_end()
        assert last(model, 7).startswith("[Open items of the to-do list of an earlier request]\n- t1:")
        assert sent(model, 7)[: len(stems[5])] == stems[5]
        assert len(model.requests) == 7
        assert screen.done is not None
        assert screen.done["open_todos"] == 2
        # What Luxx said is in no search and no export for people.
        assert (await ann.get("/search", q='"not from the person"'))["items"] == []
        exported = await ann.ask("GET", f"/conversations/{conversation}/export", format="md")
        assert "From Luxx" not in exported.text


async def test_nobody_is_reminded_without_calls_or_items_that_are_left(
    patient_server: ServerProcess, server: ServerProcess
) -> None:
    """`server` allows three calls with tools."""
    written = rule(1, write(*NEW))
    used_up = Script(rules=[written, rule(2, look("a")), rule(3, Text(text="End."))])
    all_done = write(A | {"completed": True}, B | {"completed": True})
    finished = Script(rules=[written, rule(2, all_done), rule(3, Text(text="End."))])
    for at, script, open_todos in ((server, used_up, 2), (patient_server, finished, 0)):
        async with ScriptedProvider(script) as model, AsyncApiClient(at.url) as ann:
            assert await ended(ann, model) == ("completed", open_todos)
            assert len(model.requests) == 3


async def test_two_calls_follow_a_reminder_at_most(patient_server: ServerProcess) -> None:
    script = Script(
        rules=[
            rule(1, write(*NEW)), rule(2, Text(text="End.")), rule(3, look("a")),
            rule(4, Text(text="Later.")),
        ]
    )  # fmt: skip
    async with ScriptedProvider(script) as model, AsyncApiClient(patient_server.url) as ann:
        assert await ended(ann, model) == ("completed", 2)
        assert len(model.requests) == 4
        assert model.requests[2].json.get("tool_choice") != "none"
        assert model.requests[3].json["tool_choice"] == "none"


async def ended(ann: AsyncApiClient, model: ScriptedProvider) -> tuple[str, int]:
    """How an answer in a new conversation ends."""
    conversation = await ann.conversation(model.url)
    async with ann.send_and_follow(conversation, tools=TOOLS) as stream:
        screen = await stream.to_the_end()
    assert screen.done is not None
    return screen.done["status"], screen.done["open_todos"]


async def test_a_person_and_the_model_write_at_once_and_both_are_kept(patient_server: ServerProcess) -> None:
    """The model's call was made before it could see the change."""
    third = item("t3", "File it")
    script = Script(
        rules=[
            rule(1, write(*NEW)),
            rule(2, Gate(name="busy"), write(A | {"completed": True}, B, {"title": "File it"})),
            rule(3, Gate(name="late"), Text(text="Done.")),
        ]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(patient_server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, "Begin", tools=TOOLS) as stream:
            await model.reached("busy")
            renamed, mine = item("t2", "Write it by hand"), {"title": "Call Ben"}
            first = await put(ann, conversation, [A, renamed, mine], [A, B])
            called = item("t3", "Call Ben")
            assert first == [A, renamed, called]
            assert await todos(ann, conversation) == first
            # A second change before the model has seen the first one, of the page's own older list.
            assert await put(ann, conversation, [A, B | {"description": "Short."}], [A, B]) == [
                A, renamed | {"description": "Short."}, called,
            ]  # fmt: skip
            model.release("busy")
            await model.reached("late")
            # What both changed is the person's, what one of them did is kept, and ids stay apart.
            merged = [
                A | {"completed": True}, renamed | {"description": "Short."}, item("t4", "Call Ben"), third,
            ]  # fmt: skip
            assert await todos(ann, conversation) == merged
            lines = last(model, 3).split("\n")
            assert lines[0] == "[A person has changed your to-do list. Its open items now]"
            assert lines[1:] == ["- t2: Write it by hand", "- t4: Call Ben", "- t3: File it"]
            # The last word is being written: what is ticked now is no reason for a reminder.
            done = [one | {"completed": True} for one in merged]
            await put(ann, conversation, done[:3], merged)
            model.release("late")
            screen = await stream.to_the_end()
        updates = [frame.data for frame in screen.frames if frame.event == "plan_updated"]
        assert [update["by"] for update in updates] == ["model", "model", "person", "person"]
        assert updates[-1]["todos"] == done[:3]
        assert screen.done is not None
        assert screen.done["open_todos"] == 0
        assert len(model.requests) == 3
        assert await todos(ann, conversation) == done[:3]


async def test_a_list_that_would_grow_too_long_is_bounded_or_refused(patient_server: ServerProcess) -> None:
    early = [item(f"t{number}", f"Early {number}") for number in range(60)]
    late = [item(f"m{number}", f"Late {number}") for number in range(30)]
    own = [item(f"p{number}", f"Own {number}") for number in range(40)]
    rules = [
        rule(1, write(*early)),
        rule(2, Gate(name="busy"), write(*early, *late)),
        Rule(reply=[Text(text="Done.")]),
    ]
    async with ScriptedProvider(Script(rules=rules)) as model, AsyncApiClient(patient_server.url) as ann:
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation, tools=TOOLS)
        await model.reached("busy")
        assert await put(ann, conversation, [*early, *own], early) == [*early, *own]
        model.release("busy")
        screen = await ann.wait_for_end(run["id"])
        (warning,) = screen.data_of("warning")
        assert warning["message"] == (
            "The to-do list is full: 30 of the items that were written meanwhile are left out."
        )
        kept = await todos(ann, conversation)
        assert sorted(one["id"] for one in kept) == sorted(one["id"] for one in (*early, *own))
        path = f"/conversations/{conversation}/todos"
        refused = await ann.ask("PUT", path, {"todos": late, "base": []})
        assert (refused.status_code, "the to-do list has 130 items" in refused.text) == (400, True)
        assert await put(ann, conversation, late, None) == late


async def test_a_change_without_a_run_is_said_in_the_next_answer_alone(patient_server: ServerProcess) -> None:
    script = Script(rules=[rule(1, write(A)), rule(2, Text(text="x")), Rule(reply=[Text(text="Well.")])])
    async with ScriptedProvider(script) as model, AsyncApiClient(patient_server.url) as ann:
        conversation = await ann.conversation(model.url)
        early = await ann.ask("PUT", f"/conversations/{conversation}/todos", {"todos": [A]})
        assert (early.status_code, early.json()["detail"]["kind"]) == (409, "no_answer_yet")
        assert await todos(ann, conversation) == []
        sent_message = await ann.post(
            "/messages", {"conversation_id": conversation, "content": "Begin", "tools": TOOLS}
        )
        assert await put(ann, conversation, [], None) == []
        again = {"conversation_id": conversation, "content": "Next", "tools": TOOLS}
        at = len(model.requests)
        second = await ann.post("/messages", again)
        assert last(model, at + 1).startswith(f"{OF_PERSON} the to-do list of an earlier request. It has no")
        assert await put(ann, conversation, [A, B], None) == [A, B]
        parts = (await ann.get(f"/conversations/{conversation}/context"))["parts"]
        # There is no system prompt, but agents to which the model can delegate.
        assert [part["name"] for part in parts] == ["tools", "skills", "history", "tail"]
        # A branch has the list of its own path, and its change is not that of the other.
        path, headers = f"/messages/{second['id']}/regenerate", {"accept": "application/json"}
        await ann.wait_for_end((await ann.ask("POST", path, {}, headers)).json()["data"]["id"])
        assert await todos(ann, conversation) == []
        assert await put(ann, conversation, [B], None) == [B]
        changed = await ann.ask("PUT", f"/conversations/{conversation}", {"selected_leaf_id": second["id"]})
        assert changed.status_code == 200
        assert await todos(ann, conversation) == [A, B]
        await ann.post("/messages", again)
        assert last(model, len(model.requests)).startswith(f"{OF_PERSON} the to-do list of an earlier")
        await ann.post("/messages", again)
        assert last(model, len(model.requests)).startswith("[Open items of the to-do list of an earlier")
        # Exports are what they were: a copy has the messages without the list.
        whole = (await ann.ask("GET", f"/conversations/{conversation}/export", format="json")).json()
        (copy,) = (await ann.post("/conversations/import", whole))["conversation_ids"]
        assert await todos(ann, copy) == []
        assert sent_message["status"] == "complete"


async def test_a_cancelled_answer_keeps_the_change_of_a_person(patient_server: ServerProcess) -> None:
    script = Script(rules=[rule(1, write(*NEW)), Rule(reply=[Text(text="So far "), Gate(name="busy")])])
    async with ScriptedProvider(script) as model, AsyncApiClient(patient_server.url) as ann:
        conversation = await ann.conversation(model.url)
        async with ann.send_and_follow(conversation, tools=TOOLS) as stream:
            run_id = (await stream.until("plan_updated")).data["run_id"]
            await model.reached("busy")
            await put(ann, conversation, [B], [A, B])
            assert await ann.get(f"/conversations/{conversation}/queue") == {
                "items": [], "paused": False, "problem": None,
            }  # fmt: skip
            await ann.cancel(run_id)
            screen = await stream.to_the_end()
        assert screen.done is not None
        assert (screen.done["status"], screen.done["open_todos"]) == ("stopped", 1)
        assert await todos(ann, conversation) == [B]


async def test_lists_and_changes_survive_kill_9(own_server: ServerProcess) -> None:
    script = Script(
        rules=[
            rule(1, write(*NEW)),
            rule(2, Gate(name="busy"), look("a")),
            rule(3, look("b")),
            rule(4, Text(text="End.")),
            rule(5, Text(text="Still open.")),
        ]
    )
    async with ScriptedProvider(script) as model, RestartingClient(own_server) as ann:
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation, tools=TOOLS)
        await model.reached("busy")
        await put(ann, conversation, [A | {"completed": True}, B], [A, B])
        await ann.kill_and_start()
        model.release("busy")
        screen = await ann.follow_to_end(run["id"])
        updates = [frame.data for frame in screen.frames if frame.event == "plan_updated"]
        assert [update["by"] for update in updates] == ["model", "person"]
        assert await todos(ann, conversation) == [A | {"completed": True}, B]
        assert screen.done is not None
        assert screen.done["open_todos"] == 1
        assert sum(REMINDER in str(one["content"]) for one in sent(model, len(model.requests))) == 1


async def test_a_planned_answer_takes_a_change_and_ends(patient_server: ServerProcess) -> None:
    script = Script(
        rules=[
            plan_rule(), *(step_rule(one) for one in "ab"),
            step_rule("c", Gate(name="step"), Text(text="C."), USUAL),
            Rule(name="answer", reply=[Gate(name="answer"), Text(text="The answer."), USUAL]),
        ]
    )  # fmt: skip
    async with ScriptedProvider(script) as model, AsyncApiClient(patient_server.url) as ann:
        conversation = await ann.conversation(model.url)
        run = await ann.start_run(conversation, tools=["todo_write"], **PLANNED)
        await model.reached("step")
        first, second = A | {"completed": True}, B | {"completed": True}
        await put(ann, conversation, [first], None)
        model.release("step")
        await model.reached("answer")
        assert last(model, len(model.requests)).startswith(f"{OF_PERSON} your to-do list.")
        await put(ann, conversation, [first, second], None)
        model.release("answer")
        await ann.wait_for_end(run["id"], RoomScreen())
        assert await todos(ann, conversation) == [first, second]
        assert (await ann.messages(conversation))[-1]["text"] == "The answer."


async def test_a_bad_list_is_refused_with_a_sentence(server: ServerProcess) -> None:
    bad: list[tuple[Json, str]] = [
        ({}, "todos"),
        ({"todos": "x"}, "$.todos"),
        ({"todos": ["x"]}, "$.todos[0]"),
        ({"todos": [{}]}, "title"),
        ({"todos": [{"title": ""}]}, "$.todos[0].title"),
        ({"todos": [{"title": " \n "}]}, "$.todos[0].title"),
        ({"todos": [{"title": "x" * 301}]}, "$.todos[0].title"),
        ({"todos": [{"title": "x", "description": "x" * 2001}]}, "$.todos[0].description"),
        ({"todos": [{"title": "x", "completed": 1}]}, "$.todos[0].completed"),
        ({"todos": [{"title": "x", "id": ""}]}, "$.todos[0].id"),
        ({"todos": [{"title": "x", "id": "a\nb"}]}, "$.todos[0].id"),
        ({"todos": [{"title": "x", "id": "a"}, {"title": "y", "id": "a"}]}, "$.todos[1].id"),
        ({"todos": [{"title": "x", "other": 1}]}, "other"),
        ({"todos": [{"title": "x\0"}]}, "NUL"),
        ({"todos": [{"title": "x"}] * 101}, "$.todos"),
        ({"todos": [{"title": "x", "description": "x" * 2000}] * 40}, "bytes"),
        ({"todos": [], "base": [{"title": ""}]}, "$.base[0].title"),
        ({"todos": [], "more": 1}, "more"),
    ]
    script = Script(
        rules=[
            rule(1, write({"title": "x", "id": "a"}, {"title": "y", "id": "a"})),
            rule(2, write({"title": " "})),
            Rule(reply=[Text(text="Refused.")]),
        ]
    )  # fmt: skip
    async with (
        ScriptedProvider(script) as model,
        AsyncApiClient(server.url) as ann,
        AsyncApiClient(server.url, token=await asyncio.to_thread(lambda: register(server)[1])) as ben,
    ):
        conversation = await ann.conversation(model.url)
        answer = await ann.post(
            "/messages", {"conversation_id": conversation, "content": "Begin", "tools": TOOLS}
        )
        problems = [step["content"] for step in answer["steps"] if step["type"] == "tool_result"]
        assert "two to-do items have the id 'a'" in problems[0]
        assert "the title of a to-do item is not empty" in problems[1]
        path = f"/conversations/{conversation}/todos"
        for body, named in bad:
            response = await ann.ask("PUT", path, body)
            assert response.status_code == 400, (body, response.text)
            assert named in response.text
        assert await todos(ann, conversation) == []
        for method, body in (("GET", None), ("PUT", {"todos": []})):
            assert (await ben.ask(method, path, body)).status_code == 404
            assert (await ann.ask(method, "/conversations/x/todos", body)).status_code == 404
        called = await ann.ask("POST", "/tools/todo_write/execute", {"arguments": {"todos": NEW}})
        assert "this call does not belong to a run" in called.text


async def test_a_room_keeps_a_list_in_one_turn_alone(server: ServerProcess) -> None:
    script = Script(
        rules=[rule(1, write(*NEW)), rule(2, Text(text="Mine.")), Rule(reply=[Text(text="Next.")])]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(server.url) as ann:
        provider_id = await ann.connect(model.url)
        seats = [
            {"name": name, "provider_id": provider_id, "model": "scripted", "tools": ["todo_write"]}
            for name in ("Planner", "Critic")
        ]
        room = await ann.post(
            "/chat-rooms", {"title": "R", "task": "Think.", "max_rounds": 2, "agents": seats}
        )
        await run_to_the_end(ann, room["id"])
        texts = [str(one["content"]) for request in model.requests for one in request.json["messages"]]
        # In its second turn the seat has what it read in the first, and no list.
        assert len({text for text in texts if text.startswith(REMINDER)}) == 1
        assert not any("of an earlier request" in text for text in texts)


async def test_a_compression_keeps_the_list_and_a_change_meanwhile(patient_server: ServerProcess) -> None:
    summary = "Nothing at all was decided here. " * 20
    script = Script(
        rules=[
            rule(1, write(*NEW)),
            Rule(when=When(user="[Ss]ummar"), reply=[Gate(name="summary"), Text(text=summary)]),
            Rule(reply=[Text(text=" ".join(f"w{number}" for number in range(7000)))]),
        ]
    )
    async with ScriptedProvider(script) as model, AsyncApiClient(patient_server.url) as ann:
        conversation = await ann.conversation(model.url)
        body = {"conversation_id": conversation, "tools": TOOLS}
        for number in range(3):
            await ann.post("/messages", {**body, "content": f"go {number}"})
        path, headers = f"/conversations/{conversation}/compress", {"accept": "application/json"}
        run = (await ann.ask("POST", path, {}, headers)).json()["data"]
        await model.reached("summary")
        await put(ann, conversation, [B], [A, B])
        model.release("summary")
        await ann.wait_for_end(run["id"])
        assert (await ann.run(run["id"]))["status"] == "completed"
        assert await todos(ann, conversation) == [B]
        at = len(model.requests)
        await ann.post("/messages", {**body, "content": "next"})
        assert last(model, at + 1).startswith(f"{OF_PERSON} the to-do list of an earlier request.")
