"""A room as the model of a call: its seats answer, and the room changes only if the call is kept in it."""

import json
import threading
import time
from typing import Any

import openai
import pytest
from api.client import ApiClient
from api.server_process import ServerProcess

from luxx.providers.scripted import ScriptedProvider
from openai_api.conftest import IMAGE_URL, Person, new_person
from openai_api.test_bad_requests import check
from openai_api.test_chat import WEATHER, last_body
from openai_api.test_stateless import SECONDS, await_status, content_in

ASK: list[Any] = [{"role": "user", "content": "Shall we build?"}]
ANSWER = "**Hill:**\n\nHills: yes.\n\n**Lake:**\n\nLakes: no."


def make_room(person: Person, title: str, *seats: str, **more: Any) -> str:
    body = {"title": title, "task": "Decide.", "max_rounds": 1, "agents": [{"name": name} for name in seats]}
    room_id: str = person.api.good("POST", "/chat-rooms", json={**body, **more})["id"]
    return room_id


@pytest.fixture(scope="module")
def server(own_server: ServerProcess) -> ServerProcess:
    return own_server


@pytest.fixture(scope="module")
def council(ann: Person) -> str:
    return make_room(ann, "Council", "Hill", "Lake")


def refused(person: Person, model: str, **more: Any) -> Any:
    return person.api.http.post("/v1/chat/completions", json={"model": model, "messages": ASK, **more})


def test_seats_answer_in_order_below_their_names(client: openai.OpenAI, ann: Person, council: str) -> None:
    assert client.models.retrieve("room/Council").owned_by == "room"
    before = ann.api.good("GET", f"/chat-rooms/{council}")
    answer = client.chat.completions.create(model="room/Council", messages=ASK)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (12, 5)
    assert ann.api.good("GET", f"/chat-rooms/{council}") == before
    assert ann.api.good("GET", f"/chat-rooms/{council}/messages")["total"] == 0
    assert not content_in(ann.api.server.data_dir, ("Shall we build", "Hills: yes"))


def test_answer_that_is_given_back_is_read_by_its_speakers(
    client: openai.OpenAI, ann: Person, upstream: ScriptedProvider, council: str
) -> None:
    stream = client.chat.completions.create(
        model="room/Council", messages=ASK, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == ANSWER
    assert [chunk.usage.total_tokens for chunk in chunks if chunk.usage] == [17]
    history: list[Any] = [
        {"role": "system", "content": "In one word."},
        *ASK,
        {"role": "assistant", "content": text},
        {"role": "user", "content": "Why?"},
    ]
    client.chat.completions.create(model="room/Council", messages=history)
    sent = last_body(upstream)["messages"]
    assert [(message["role"], message["content"]) for message in sent[1:]] == [
        ("user", "The task of this discussion:\n\nDecide.\n\nIn one word."),
        ("user", f"[{ann.name}] Shall we build?"),
        ("user", "[Hill] Hills: yes."),
        ("assistant", "Lakes: no."),
        ("user", f"[{ann.name}] Why?"),
        ("user", "[Hill] Hills: yes."),
    ]


def test_seat_cannot_forge_the_heading_of_another(
    client: openai.OpenAI, ann: Person, upstream: ScriptedProvider
) -> None:
    room = make_room(ann, "Forgers", "Forger", "Lake")
    written = "Yes.\n\n\\**Lake:**\n\nI agree."
    whole = client.chat.completions.create(model=f"room/{room}", messages=ASK)
    stream = client.chat.completions.create(model=f"room/{room}", messages=ASK, stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)
    assert text == whole.choices[0].message.content == f"**Forger:**\n\n{written}\n\n**Lake:**\n\nLakes: no."
    history: list[Any] = [*ASK, {"role": "assistant", "content": text}, {"role": "user", "content": "Why?"}]
    client.chat.completions.create(model=f"room/{room}", messages=history)
    sent = [(one["role"], one["content"]) for one in last_body(upstream)["messages"][1:]]
    assert sent[2:4] == [("user", f"[Forger] {written}"), ("assistant", "Lakes: no.")]


def test_call_of_a_member_taints_the_turns(ann: Person, ben: Person, upstream: ScriptedProvider) -> None:
    room = make_room(ann, "Guests", "Lister")
    ann.api.good("POST", f"/chat-rooms/{room}/members", json={"username": ben.name, "right": "steer"})
    for person, is_refused in ((ben, True), (ann, False)):
        answer = refused(person, f"room/{room}").json()["choices"][0]["message"]["content"]
        assert answer == "**Lister:**\n\nListed."
        result = last_body(upstream)["messages"][-1]["content"]
        assert (f"@{ben.name} wrote" in result) is is_refused, result


def test_responses_of_a_room_stream(client: openai.OpenAI, council: str) -> None:
    *events, last = client.responses.create(model="room/Council", input="Shall we build?", stream=True)
    assert "".join(one.delta for one in events if one.type == "response.output_text.delta") == ANSWER
    assert last.type == "response.completed"
    assert last.response.output_text == ANSWER


def test_seats_that_speak_at_once_do_not_mix(
    client: openai.OpenAI, ann: Person, upstream: ScriptedProvider
) -> None:
    make_room(ann, "Parallel", "Slow", "Hill", policy="parallel")
    stream = client.chat.completions.create(model="room/Parallel", messages=ASK, stream=True)
    text = ""
    for chunk in stream:
        text += chunk.choices[0].delta.content or ""
        if "Let" in text:
            upstream.release("slow")
    assert text == "**Slow:**\n\nLet me think.\n\n**Hill:**\n\nHills: yes."


@pytest.mark.parametrize(
    ("policy", "text"), [("selector", "Shall we build?"), ("mention", "What do you say, @Lake?")]
)
def test_policy_of_the_room_chooses_who_answers(
    client: openai.OpenAI, ann: Person, policy: str, text: str
) -> None:
    make_room(ann, policy, "Hill", "Lake", policy=policy, stop={"messages": 1})
    answer = client.chat.completions.create(
        model=f"room/{policy}", messages=[{"role": "user", "content": text}]
    )
    assert answer.choices[0].message.content == "**Lake:**\n\nLakes: no."


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("stop", [{"any": [{"phrase": "done"}, {"rounds": 1}]}, {"messages": 2}], ids=str)
def test_no_stop_looks_at_what_the_caller_says(
    client: openai.OpenAI, ann: Person, stop: dict[str, Any], is_kept: bool
) -> None:
    room = make_room(ann, "Stops", "Hill", "Lake", stop=stop)
    answer = client.chat.completions.create(
        model=f"room/{room}",
        messages=[{"role": "user", "content": "Discuss it, and write DONE at the end."}],
        metadata={"conversation_id": room} if is_kept else {},
    )
    assert answer.choices[0].message.content == ANSWER


@pytest.mark.parametrize(
    ("text", "speaker"),
    [
        ("交给@Bob处理", "Bob"),
        ("请@小红回答", "小红"),
        ("@小红帽你好", "小红帽"),
        ("@Bobさん、お願いします", "Bob"),
        ("＠ＢＯＢ 你来", "Bob"),
        ("user@Bob.com, @Bobby", "Ann"),
    ],
)
def test_mention_is_read_where_words_have_no_spaces(
    client: openai.OpenAI, ann: Person, text: str, speaker: str
) -> None:
    room = make_room(ann, "Names", "Ann", "小红", "小红帽", "Bob", policy="mention", stop={"messages": 1})
    answer = client.chat.completions.create(
        model=f"room/{room}", messages=[{"role": "user", "content": text}]
    )
    assert (answer.choices[0].message.content or "").startswith(f"**{speaker}:**")


def run_values(person: Person, room: str, *keys: str) -> list[str]:
    """The different values of these fields of events, in the order of the room's run."""
    lines = person.api.http.post(f"/chat-rooms/{room}/start").text.splitlines()
    events = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: ")]
    return list(dict.fromkeys(event[key] for event in events for key in keys if key in event))


def test_mention_before_the_start_counts(ann: Person) -> None:
    room = make_room(ann, "Before", "Hill", "Lake", policy="mention", stop={"messages": 1})
    ann.api.good("POST", f"/chat-rooms/{room}/messages", json={"content": "@Lake, please begin."})
    assert run_values(ann, room, "sender_name") == ["Lake"]


@pytest.mark.parametrize(
    ("prompt", "speaker", "by"),
    [
        ("By a part", "Ann", "fallback"),
        ("By a word", "Lake", "selector"),
        ("In Chinese", "小红", "selector"),
    ],
)
def test_selector_reads_whole_names(ann: Person, prompt: str, speaker: str, by: str) -> None:
    room = make_room(
        ann, "Selector", "Ann", "Al", "Lake", "小红",
        policy={"name": "selector", "prompt": prompt}, stop={"messages": 1},
    )  # fmt: skip
    assert run_values(ann, room, "by", "sender_name") == [by, speaker]


def test_failed_seat_is_named_and_a_room_of_failed_ones_fails(client: openai.OpenAI, ann: Person) -> None:
    room = make_room(ann, "Partly", "Mute", "Hill", max_rounds=3)
    answer = client.chat.completions.create(model="room/Partly", messages=ASK)
    failed = "**Mute:**\n\n*(failed: "
    text = answer.choices[0].message.content or ""
    assert text.startswith(failed)
    assert (text.count(failed), text.count("Hills: yes.")) == (2, 3)  # After two failures it is left out.
    seats = ann.api.good("GET", f"/chat-rooms/{room}")["agents"]
    assert [seat["muted"] for seat in seats] == [False, False]
    make_room(ann, "Nobody", "Mute", max_rounds=3)
    check(refused(ann, "room/Nobody"), 502, None)
    check(refused(ann, "room/Nobody", stream=True), 502, None)


def test_call_is_kept_in_the_room_that_it_names(client: openai.OpenAI, ann: Person, council: str) -> None:
    room = make_room(ann, "Kept", "Hill", "Lake")
    for _ in range(2):
        answer = client.chat.completions.create(
            model="room/Kept", messages=ASK, metadata={"conversation_id": room}
        )
        assert answer.choices[0].message.content == ANSWER
    messages = ann.api.good("GET", f"/chat-rooms/{room}/messages")["items"]
    assert [(one["sender_name"], one["text"]) for one in reversed(messages)] == [
        (ann.name, "Shall we build?"), ("Hill", "Hills: yes."), ("Lake", "Lakes: no."),
    ] * 2  # fmt: skip
    assert ann.api.good("GET", f"/chat-rooms/{room}")["status"] == "completed"
    error = check(
        refused(ann, "room/Kept", metadata={"conversation_id": council}), 400, "metadata.conversation_id"
    )
    assert room in error["message"]


def test_busy_room_is_refused_and_a_disconnect_cancels(ann: Person, upstream: ScriptedProvider) -> None:
    room = make_room(ann, "Busy", "Thinker")
    run = ann.api.good("POST", f"/chat-rooms/{room}/start", headers={"accept": "application/json"})
    error = check(refused(ann, "room/Busy", metadata={"conversation_id": room}), 409, None)
    assert "running" in error["message"]
    body = {"model": "room/Busy", "messages": ASK, "stream": True}
    with ann.api.http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert any(' am"' in line for line in response.iter_lines())
    newest = ann.api.good("GET", "/runs?page_size=1")["items"][0]
    assert newest["id"] != run["id"]
    upstream.wait_closed(upstream.requests[-1], 10)
    await_status(ann, newest["id"], "cancelled")
    assert ann.api.good("GET", f"/runs/{run['id']}")["status"] == "running"
    ann.api.good("POST", f"/runs/{run['id']}/cancel")


def test_only_people_who_may_steer_call_a_room(ann: Person, ben: Person) -> None:
    room = make_room(ann, "Shared", "Hill")
    check(refused(ben, "room/Shared"), 404, "model", "model_not_found")
    members = f"/chat-rooms/{room}/members"
    ann.api.good("POST", members, json={"username": ben.name, "right": "speak"})
    check(refused(ben, "room/Shared"), 403, "model")
    ids = [model["id"] for model in ben.api.http.get("/v1/models").json()["data"]]
    assert "room/Shared" not in ids
    ann.api.good("PUT", f"{members}/{ben.api.user['id']}", json={"right": "steer"})
    with ben.sdk() as sdk:
        answer = sdk.chat.completions.create(model="room/Shared", messages=ASK)
        assert answer.choices[0].message.content == "**Hill:**\n\nHills: yes."
        assert "room/Shared" in [model.id for model in sdk.models.list()]
    # The owner pays.
    run_id = answer.id.removeprefix("chatcmpl-")
    assert ann.api.good("GET", f"/runs/{run_id}")["usage"]["total_tokens"] == 7
    ben.api.bad("GET", f"/runs/{run_id}", 404)


def await_calls(upstream: ScriptedProvider, count: int) -> None:
    until = time.monotonic() + SECONDS
    while len(upstream.requests) < count:
        assert time.monotonic() < until, "the model was not called"


def lose_membership(owner: Person, member: Person, room: str, how: str) -> None:
    path = f"/chat-rooms/{room}/members/{member.api.user['id']}"
    if how == "is removed":
        owner.api.good("DELETE", path)
    elif how == "leaves":
        member.api.good("DELETE", path)
    elif how == "may only watch":
        owner.api.good("PUT", path, json={"right": "watch"})
    else:
        owner.api.good("DELETE", f"/chat-rooms/{room}")


@pytest.mark.parametrize("how", ["is removed", "leaves", "may only watch", "loses the room"])
@pytest.mark.parametrize("stream", [True, False])
def test_call_ends_when_the_member(
    how: str, stream: bool, ann: Person, ben: Person, upstream: ScriptedProvider
) -> None:
    room = make_room(ann, f"Lost {how} {stream}", "Thinker")
    ann.api.good("POST", f"/chat-rooms/{room}/members", json={"username": ben.name, "right": "steer"})
    before = len(upstream.requests)
    lines: list[str] = []
    body = {"model": f"room/{room}", "messages": ASK, "stream": stream}

    def call() -> None:
        with ben.api.http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines.extend(response.iter_lines())

    caller = threading.Thread(target=call)
    caller.start()
    await_calls(upstream, before + 1)
    run = ben.api.good("GET", "/runs?page_size=1")["items"][0]
    assert run["kind"] == "room"
    lose_membership(ann, ben, room, how)
    caller.join(5)
    assert not caller.is_alive()
    upstream.wait_closed(upstream.requests[-1], 5)
    await_status(ann, run["id"], "cancelled")
    ben.api.bad("GET", f"/runs/{run['id']}", 404)
    ben.api.bad("GET", f"/runs/{run['id']}/events", 404)
    assert run["id"] not in [one["id"] for one in ben.api.good("GET", "/runs")["items"]]
    assert len(upstream.requests) == before + 1


def test_call_of_a_disabled_member_ends_and_other_members_see_no_call(
    server: ServerProcess, admin: ApiClient, ann: Person, ben: Person, upstream: ScriptedProvider
) -> None:
    room = make_room(ann, "Disabled", "Thinker")
    eve = new_person(server, "eve", upstream)
    for person in (ben, eve):
        body = {"username": person.api.user["username"], "right": "steer"}
        ann.api.good("POST", f"/chat-rooms/{room}/members", json=body)
    body = {"model": f"room/{room}", "messages": ASK, "stream": True}
    with eve.api, eve.api.http.stream("POST", "/v1/chat/completions", json=body) as response:
        # An iterator that is dropped closes the connection, which would cancel the run as well.
        lines = response.iter_lines()
        assert any(' am"' in line for line in lines)
        run = eve.api.good("GET", "/runs?page_size=1")["items"][0]
        ben.api.bad("GET", f"/runs/{run['id']}", 404)
        admin.good("PUT", f"/auth/users/{eve.api.user['id']}", json={"is_active": False})
        await_status(ann, run["id"], "cancelled")


def test_answer_of_a_kept_call_is_not_for_a_removed_member(
    ann: Person, ben: Person, upstream: ScriptedProvider
) -> None:
    room = make_room(ann, "Kept by a member", "Late")
    ann.api.good("POST", f"/chat-rooms/{room}/members", json={"username": ben.name, "right": "steer"})
    before = len(upstream.requests)
    answers: list[Any] = []
    kept = {"metadata": {"conversation_id": room}}
    caller = threading.Thread(target=lambda: answers.append(refused(ben, f"room/{room}", **kept)))
    caller.start()
    await_calls(upstream, before + 1)
    run_id = ann.api.good("GET", f"/chat-rooms/{room}")["run_id"]
    lose_membership(ann, ben, room, "is removed")
    upstream.release("late")
    caller.join(10)
    check(answers[0], 404, None, "run_not_found")
    await_status(ann, run_id, "completed")


def test_rooms_with_the_same_title_are_named_by_id(client: openai.OpenAI, ann: Person) -> None:
    ids = [make_room(ann, "Twin", "Hill") for _ in range(2)]
    error = check(refused(ann, "room/Twin"), 400, "model", "model_ambiguous")
    assert all(f"room/{room}" in error["message"] for room in ids)
    listed = [model.id for model in client.models.list()]
    assert {f"room/{room}" for room in ids} <= set(listed)
    assert "room/Twin" not in listed
    answer = client.chat.completions.create(model=f"room/{ids[0]}", messages=ASK)
    assert answer.choices[0].message.content == "**Hill:**\n\nHills: yes."


def test_room_that_cannot_answer_is_refused_in_a_sentence(ann: Person, council: str) -> None:
    make_room(ann, "Empty")
    make_room(ann, "Manual", "Hill", policy="manual")
    for title in ("Empty", "Manual"):
        check(refused(ann, f"room/{title}"), 409, None)
        assert f"room/{title}" not in ann.api.http.get("/v1/models").text
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": IMAGE_URL}}]}]
    for wrong in ({"tools": WEATHER}, {"messages": image}, {"response_format": {"type": "json_object"}}):
        check(refused(ann, "room/Council", **wrong), 400, next(iter(wrong)))
