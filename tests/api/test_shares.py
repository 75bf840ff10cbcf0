"""Links to conversations, rooms and results of tasks: what they show, to whom, and what ends them."""

import base64
import datetime
from collections.abc import Iterator
from typing import Any

import pytest

from api.client import KEY, ApiClient
from api.conftest import Join, answering, connect, numbers
from api.schema import Document
from api.server_process import ServerProcess
from luxx.providers.scripted import Call, Finish, Rule, ScriptedProvider, Text, Thinking, When

READS_PER_MINUTE = 150
SECRET = "xyzzy-nobody-else-may-read-this"
PNG = base64.b64encode(
    base64.b64decode(
        "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    )
).decode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    settings = {"LUXX_LIMITS__LINK_READS_PER_MINUTE": str(READS_PER_MINUTE)}
    with ServerProcess(tmp_path_factory.mktemp("server"), **settings) as running:
        yield running


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedProvider]:
    reads = Call(name="file_read", arguments={"path": f"{SECRET}.txt"}, id="call-1")
    rules = [
        Rule(
            name="reads",
            when=When(user="Read the file", has_tool_result=False),
            reply=[Thinking(text=f"thought {SECRET}"), reads, Finish(reason="tool_calls")],
        ),
        Rule(
            name="plans",
            when=When(system="Split the goal"),
            reply=[Text(text='{"steps": [{"id": "a", "name": "Do it"}]}'), Finish()],
        ),
        Rule(name="answers", reply=[Text(text="Hello there."), Finish()]),
    ]
    with answering(rules) as provider:
        yield provider


def chat(person: ApiClient, text: str, conversation_id: str = "", **more: Any) -> str:
    """Sends a message, in a new conversation unless one is given; the conversation's id."""
    if not conversation_id:
        conversation_id = person.good("POST", "/conversations", json={"title": "Stars", **more})["id"]
    person.good("POST", "/messages", json={"conversation_id": conversation_id, "content": text})
    return conversation_id


def share(person: ApiClient, kind: str, subject_id: str, **more: Any) -> Any:
    return person.good("POST", "/shares", json={"kind": kind, "subject_id": subject_id, **more})


def allow_anybody(admin: ApiClient, *, allows: bool = True) -> None:
    admin.good("PUT", "/tenant", json={"public_links": allows})


def texts_of(shown: Any) -> list[str]:
    return [message["text"] for message in shown["messages"]]


def ended(reader: ApiClient, token: str) -> None:
    """The link answers as an unknown one does."""
    base = "/tenant/shared" if reader.token else "/shared"
    refused, unknown = reader.bad("GET", f"{base}/{token}", 404), reader.bad("GET", f"{base}/none", 404)
    assert refused == unknown
    assert reader.bad("GET", f"{base}/{token}/images/1/0", 404) == unknown


def test_a_live_link_follows_the_conversation_and_a_snapshot_does_not(
    anna: ApiClient, bob: ApiClient, nobody: ApiClient
) -> None:
    conversation_id = chat(anna, "What is a star?")
    live = share(anna, "conversation", conversation_id, is_live=True)
    snapshot = share(anna, "conversation", conversation_id)
    assert live["path"] == f"/ui/s/{live['token']}"
    chat(anna, "And a moon?", conversation_id)
    anna.good("PUT", f"/conversations/{conversation_id}", json={"title": "Moons"})
    followed = bob.good("GET", f"/tenant/shared/{live['token']}")
    kept = bob.good("GET", f"/tenant/shared/{snapshot['token']}")
    assert texts_of(followed) == ["What is a star?", "Hello there.", "And a moon?", "Hello there."]
    assert texts_of(kept) == ["What is a star?", "Hello there."]
    assert (followed["title"], kept["title"]) == ("Moons", "Stars")
    assert (followed["total"], followed["messages"][2]["number"], kept["kind"]) == (4, 3, "conversation")
    part = bob.good("GET", f"/tenant/shared/{live['token']}?after=1&limit=2")
    assert (texts_of(part), part["total"]) == (["Hello there.", "And a moon?"], 4)
    assert texts_of(bob.good("GET", f"/tenant/shared/{live['token']}?after=9")) == []
    # A snapshot stays when another branch is selected, and loses what is deleted.
    first = anna.good("GET", f"/messages?conversation_id={conversation_id}")["items"][-1]
    anna.good("PUT", f"/messages/{first['id']}", json={"content": "What is a planet?"})
    assert texts_of(bob.good("GET", f"/tenant/shared/{live['token']}"))[0] == "What is a planet?"
    assert texts_of(bob.good("GET", f"/tenant/shared/{snapshot['token']}"))[0] == "What is a star?"
    anna.good("DELETE", f"/messages/{first['id']}")
    assert texts_of(bob.good("GET", f"/tenant/shared/{snapshot['token']}")) == []
    ended(nobody, live["token"])
    own = anna.good("GET", f"/shares?subject_id={conversation_id}")
    assert [one["id"] for one in own["items"]] == [snapshot["id"], live["id"]]
    assert not {"token", "path", "token_hash"} & set(own["items"][0])
    assert bob.good("GET", "/shares")["total"] == 0
    anna.good("DELETE", f"/conversations/{conversation_id}")
    ended(bob, live["token"])
    assert anna.good("GET", f"/shares?subject_id={conversation_id}")["total"] == 0


def test_a_link_shows_texts_and_images_and_nothing_of_tools_thinking_prompts_and_memory(
    anna: ApiClient, admin: ApiClient, nobody: ApiClient
) -> None:
    allow_anybody(admin)
    file = {"file": (f"{SECRET}.txt", f"the file says {SECRET}".encode())}
    anna.good("POST", "/files", files=file)
    anna.good("POST", "/memories", json={"text": f"The file is about {SECRET}"})
    conversation_id = anna.good(
        "POST", "/conversations", json={"title": "Stars", "system_prompt": f"Say nothing of {SECRET}."}
    )["id"]
    sent = {
        "conversation_id": conversation_id,
        "content": "Read the file",
        "attachments": [
            {"name": "dot.png", "data": PNG},
            {"name": f"{SECRET}.md", "extension": "md", "content": SECRET},
        ],
    }
    answer = anna.good("POST", "/messages", json=sent)
    assert str(answer).count(SECRET) >= 3, answer
    link = share(anna, "conversation", conversation_id, audience="anybody")
    response = nobody.ask("GET", f"/shared/{link['token']}")
    assert SECRET not in response.text
    assert KEY not in response.text
    shown = response.json()["data"]
    assert [(one["role"], one["text"]) for one in shown["messages"]] == [
        ("user", "Read the file"), ("assistant", "Hello there.")
    ]  # fmt: skip
    assert shown["messages"][0]["images"] == [{"index": 0, "name": "dot.png", "offset": 0}]
    image = nobody.http.get(f"/shared/{link['token']}/images/1/0")
    assert (image.headers["content-type"], image.content) == ("image/png", base64.b64decode(PNG))
    for index, number in ((1, 1), (0, 2), (0, 3), (9, 1)):
        nobody.bad("GET", f"/shared/{link['token']}/images/{number}/{index}", 404)
    for answered in (response, image, nobody.http.get("/shared/none")):
        headers = answered.headers
        assert (headers["cache-control"], headers["x-robots-tag"]) == ("no-store", "noindex")
        assert headers["referrer-policy"] == "no-referrer"


def test_a_link_for_anybody_ends_with_the_switch_the_expiry_the_revocation_and_the_user(
    server: ServerProcess, document: Document, admin: ApiClient, upstream: ScriptedProvider, nobody: ApiClient
) -> None:
    with ApiClient(server, document).register(f"carol{next(numbers)}") as carol:
        connect(carol, upstream)
        conversation_id = chat(carol, "What is a star?")
        allow_anybody(admin, allows=False)
        body = {"kind": "conversation", "subject_id": conversation_id, "audience": "anybody"}
        assert carol.bad("POST", "/shares", 403, json=body)["detail"]["kind"] == "public_links_off"
        allow_anybody(admin)
        link = carol.good("POST", "/shares", json=body)
        path = f"/shared/{link['token']}"
        assert texts_of(nobody.good("GET", path)) == ["What is a star?", "Hello there."]
        allow_anybody(admin, allows=False)
        ended(nobody, link["token"])
        ended(admin, link["token"])
        allow_anybody(admin)
        nobody.good("GET", path)
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=0.6)
        brief = carol.good("POST", "/shares", json={**body, "ends_at": until.isoformat()})
        while nobody.http.get(f"/shared/{brief['token']}").status_code == 200:
            assert datetime.datetime.now(datetime.UTC) < until + datetime.timedelta(seconds=5)
        assert datetime.datetime.now(datetime.UTC) >= until
        ended(nobody, brief["token"])
        second = carol.good("POST", "/shares", json=body)
        carol.good("DELETE", f"/shares/{second['id']}")
        ended(nobody, second["token"])
        nobody.good("GET", path)
        user = f"/auth/users/{carol.user['id']}"
        admin.good("PUT", user, json={"is_active": False})
        ended(nobody, link["token"])
        admin.good("PUT", user, json={"is_active": True})
        nobody.good("GET", path)
        elsewhere = admin.good("POST", "/admin/tenants", json={"name": f"tenant {next(numbers)}"})["id"]
        admin.good("PUT", user, json={"tenant_id": elsewhere})
        ended(nobody, link["token"])
        admin.good("PUT", user, json={"tenant_id": admin.user["tenant_id"]})
        nobody.good("GET", path)
        admin.good("DELETE", user)
        ended(nobody, link["token"])
    for action in ("share_create", "share_revoke"):
        entries = admin.good("GET", f"/admin/audit?action={action}")["items"]
        assert (conversation_id, "anybody") in [(one["target_id"], one["detail"]["kind"]) for one in entries]


def test_links_of_a_tenant_show_nothing_to_another_one(
    anna: ApiClient, join: Join, tenant_id: int, admin: ApiClient
) -> None:
    allow_anybody(admin)
    conversation_id = chat(anna, "What is a star?")
    theirs = share(anna, "conversation", conversation_id)
    anybodys = share(anna, "conversation", conversation_id, audience="anybody")
    other = join(tenant_id=tenant_id, level=4)
    ended(other, theirs["token"])
    other.good("GET", f"/tenant/shared/{anybodys['token']}")
    for share_id in (theirs["id"], anybodys["id"]):
        other.bad("DELETE", f"/shares/{share_id}", 404)
    body = {"kind": "conversation", "subject_id": conversation_id}
    other.bad("POST", "/shares", 404, json=body)
    # The switch of another tenant does not count.
    other.good("PUT", "/tenant", json={"public_links": False})
    other.good("GET", f"/tenant/shared/{anybodys['token']}")


def test_a_link_to_a_room_ends_when_its_maker_may_no_longer_share_it(anna: ApiClient, bob: ApiClient) -> None:
    seats = [{"name": "Vera", "system_prompt": SECRET}]
    body = {"title": "Debate", "task": "Talk about stars", "agents": seats, "max_rounds": 1}
    room_id = anna.good("POST", "/chat-rooms", json=body)["id"]
    with anna.http.stream("POST", f"/chat-rooms/{room_id}/start") as stream:
        stream.read()
    request = {"kind": "room", "subject_id": room_id, "is_live": True}
    bob.bad("POST", "/shares", 404, json=request)
    members = f"/chat-rooms/{room_id}/members"
    anna.good("POST", members, json={"user_id": bob.user["id"], "right": "speak"})
    bob.bad("POST", "/shares", 403, json=request)
    anna.good("PUT", f"{members}/{bob.user['id']}", json={"right": "steer"})
    bobs, annas = bob.good("POST", "/shares", json=request), share(anna, "room", room_id)
    shown = bob.good("GET", f"/tenant/shared/{annas['token']}")
    assert [(one["sender"], one["text"]) for one in shown["messages"]] == [("Vera", "Hello there.")]
    assert SECRET not in str(shown)
    anna.good("POST", f"/chat-rooms/{room_id}/messages", json={"content": "And moons?"})
    assert texts_of(anna.good("GET", f"/tenant/shared/{bobs['token']}"))[-1] == "And moons?"
    assert texts_of(bob.good("GET", f"/tenant/shared/{annas['token']}")) == ["Hello there."]
    bob.good("DELETE", f"{members}/{bob.user['id']}")
    ended(anna, bobs["token"])
    bob.good("GET", f"/tenant/shared/{annas['token']}")
    anna.good("DELETE", f"/chat-rooms/{room_id}")
    ended(bob, annas["token"])


def test_a_link_to_a_task_shows_its_result(anna: ApiClient, bob: ApiClient) -> None:
    body = {"name": "Write", "goal": "Write about stars", "metadata": {"note": SECRET}}
    step = {"id": "a", "name": "Draft", "goal": f"Follow {SECRET}", "thought_prompt": SECRET}
    task_id = anna.good("POST", "/tasks", json={**body, "steps": [step]})["id"]
    request = {"kind": "task", "subject_id": task_id}
    assert anna.bad("POST", "/shares", 409, json=request)["detail"]["kind"] == "no_result"
    passing = anna.good("POST", "/conversations", json={"is_temporary": True})["id"]
    request = {"kind": "conversation", "subject_id": passing}
    assert anna.bad("POST", "/shares", 409, json=request)["detail"]["kind"] == "is_temporary"
    with anna.http.stream("POST", f"/tasks/{task_id}/execute") as stream:
        stream.read()
    snapshot, live = share(anna, "task", task_id), share(anna, "task", task_id, is_live=True)
    anna.good("PUT", f"/tasks/{task_id}/steps/a", json={"name": "Draft again"})
    kept = bob.good("GET", f"/tenant/shared/{snapshot['token']}")
    assert kept["task"] == {
        "goal": "Write about stars",
        "result": "Hello there.",
        "steps": [{"name": "Draft", "status": "completed", "output": "Hello there."}],
    }
    followed = bob.good("GET", f"/tenant/shared/{live['token']}")
    assert followed["task"]["steps"][0]["name"] == "Draft again"
    assert SECRET not in str(kept) + str(followed)
    anna.good("DELETE", f"/tasks/{task_id}")
    ended(bob, snapshot["token"])


def test_the_table_holds_no_token_and_a_user_has_a_bounded_number_of_links(
    server: ServerProcess, join: Join, upstream: ScriptedProvider
) -> None:
    person = join()
    connect(person, upstream)
    conversation_id = chat(person, "What is a star?")
    tokens = [share(person, "conversation", conversation_id, is_live=True)["token"] for _ in range(200)]
    request = {"kind": "conversation", "subject_id": conversation_id}
    assert person.bad("POST", "/shares", 409, json=request)["detail"]["kind"] == "shares_full"
    assert len(set(tokens)) == 200
    assert min(len(token) for token in tokens) >= 43
    data = b"".join(file.read_bytes() for file in server.data_dir.glob("*.db*"))
    assert not [token for token in tokens if token.encode() in data]


def test_what_links_show_is_read_a_bounded_number_of_times_from_one_network(
    anna: ApiClient, nobody: ApiClient
) -> None:
    for _ in range(READS_PER_MINUTE + 50):
        response = nobody.http.get("/shared/none")
        if response.status_code == 429:
            break
    assert response.status_code == 429
    assert response.headers["cache-control"] == "no-store"
    assert "retry-after" in response.headers
    nobody.bad("GET", "/shared/none/images/1/0", 429)
    anna.good("GET", "/shares")
