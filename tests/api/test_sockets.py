"""Sockets as clients use them: tickets open them, sessions send their state, missed ends become
notifications.
"""

import itertools
import re
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from api.client import ApiClient
from api.conftest import answering, connect
from api.schema import Document
from api.server_process import ServerProcess
from api.socket_client import SocketClient, new_ticket, open_socket, open_with_ticket
from api.streams import stream_run
from luxx.api.http.protocol import MAX_FRAGMENTS
from luxx.providers.scripted import Finish, Gate, Rule, ScriptedProvider, Text, When

GATES = ["a", "b", "c", "d", "e", "f", "g", "h"]
gates = iter(GATES)
numbers = itertools.count()


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedProvider]:
    """A model that waits at a separate gate for each test, refuses, or answers."""
    rules = [
        *(
            Rule(when=When(user=f"gate {gate}"), reply=[Text(text="I am"), Gate(name=gate), Finish()])
            for gate in GATES
        ),
        Rule(when=When(user="refuse this"), status=401, message="wrong key"),
        Rule(reply=[Text(text="Hello there."), Finish()]),
    ]
    with answering(rules) as provider:
        yield provider


@pytest.fixture(scope="module")
def cleo(server: ServerProcess, document: Document) -> Iterator[ApiClient]:
    """A user without runs: every message on her sockets is caused by the test."""
    with ApiClient(server, document).register(f"cleo{next(numbers)}") as person:
        yield person


@pytest.fixture
def talker(
    server: ServerProcess, document: Document, admin: ApiClient, upstream: ScriptedProvider
) -> Iterator[ApiClient]:
    """A new user without runs."""
    with ApiClient(server, document).register(f"talker{next(numbers)}") as person:
        connect(person, upstream)
        yield person


def new_session(person: ApiClient, title: str = "a talk") -> str:
    session_id: str = person.good("POST", "/conversations", json={"title": title})["id"]
    return session_id


def begin(person: ApiClient, session_id: str, content: str) -> str:
    """Starts a run that nobody streams. Returns its id."""
    body = {"conversation_id": session_id, "content": content}
    run_id: str = person.good("POST", "/messages/stream", json=body, headers={"accept": "application/json"})[
        "id"
    ]
    return run_id


# --- tickets ----------------------------------------------------------------------------------------


def test_a_ticket_opens_one_socket_and_no_second_one(cleo: ApiClient) -> None:
    ticket = new_ticket(cleo)
    with open_with_ticket(cleo.server.url, ticket) as client:
        assert client.drain() == []
        with open_with_ticket(cleo.server.url, ticket) as second:
            code, reason = second.wait_closed()
        assert code == 4401
        assert "POST /auth/ticket" in reason
        assert client.drain() == []


def test_concurrent_uses_of_one_ticket_open_one_socket(cleo: ApiClient) -> None:
    ticket, together = new_ticket(cleo), threading.Barrier(8)

    def knock(_number: int) -> bool:
        together.wait(10)
        with open_with_ticket(cleo.server.url, ticket) as client:
            try:
                client.send({"type": "ping"})
                return client.receive() == {"type": "pong"}
            except Exception:
                return False

    with ThreadPoolExecutor(8) as threads:
        assert sorted(threads.map(knock, range(8))) == [False] * 7 + [True]


@pytest.mark.parametrize("what", ["nothing", "garbage", "an access token", "a long text", "a refresh token"])
def test_nothing_but_a_ticket_opens_a_socket(cleo: ApiClient, what: str) -> None:
    known = {
        "nothing": "",
        "garbage": "x" * 43,
        "an access token": cleo.token,
        "a long text": "x" * 5000,
        "a refresh token": cleo.refresh_token,
    }
    with open_with_ticket(cleo.server.url, known[what]) as client:
        assert client.wait_closed()[0] == 4401


def test_a_ticket_dies_with_its_sign_in(server: ServerProcess, document: Document, admin: ApiClient) -> None:
    with ApiClient(server, document).register(f"leaves{next(numbers)}") as person:
        ticket = new_ticket(person)
        person.good("POST", "/auth/logout")
        with open_with_ticket(server.url, ticket) as client:
            assert client.wait_closed()[0] == 4401


def test_a_user_who_must_choose_a_password_gets_no_ticket(
    server: ServerProcess, document: Document, admin: ApiClient
) -> None:
    with ApiClient(server, document).register(f"reset{next(numbers)}") as person:
        body = {"new_password": "a-password-that-an-admin-chose"}
        admin.good("POST", f"/auth/users/{person.user['id']}/password", json=body)
        person.sign_in(person.user["username"], body["new_password"])
        assert person.bad("POST", "/auth/ticket", 403)["detail"]["kind"] == "password_change_needed"


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "null"}, 403),
        ({"additional_headers": {"Host": "evil.example"}}, 400),
    ],
    ids=["another site", "a page from nowhere", "two names"],
)
def test_another_site_is_refused_before_the_handshake_and_the_ticket_stays_good(
    cleo: ApiClient, more: dict[str, Any], status: int
) -> None:
    ticket = new_ticket(cleo)
    with pytest.raises(InvalidStatus) as refused, open_with_ticket(cleo.server.url, ticket, **more):
        pass
    assert refused.value.response.status_code == status
    assert b'"success":false' in bytes(refused.value.response.body or b"")
    with open_with_ticket(cleo.server.url, ticket, origin=cleo.server.url) as client:
        assert client.drain() == []


def test_a_ticket_appears_in_no_log(cleo: ApiClient, server: ServerProcess) -> None:
    ticket = new_ticket(cleo)
    with open_with_ticket(server.url, ticket) as client:
        assert client.drain() == []
    with open_with_ticket(server.url, ticket) as client:
        assert client.wait_closed()[0] == 4401
    with pytest.raises(InvalidStatus), open_with_ticket(server.url, ticket, origin="http://evil.example"):
        pass
    assert ticket not in server.output
    assert '"level":"error"' not in server.output


# --- sessions ---------------------------------------------------------------------------------------


def test_a_session_sends_its_state_at_once_and_whenever_it_changes(
    talker: ApiClient, upstream: ScriptedProvider
) -> None:
    session_id, gate = new_session(talker), next(gates)
    with open_socket(talker) as client:
        first = client.subscribe(session_id)
        assert (first["type"], first["session_id"]) == ("session_update", session_id)
        assert first["data"] == {
            "status": "idle", "title": "a talk", "run_id": None, "message_id": None, "stop_reason": None,
            "error": None, "started_at": None, "finished_at": None,
        }  # fmt: skip
        run_id = begin(talker, session_id, f"gate {gate}")
        running = client.until(type="session_update", status="running")["data"]
        assert running["run_id"] == run_id
        assert running["finished_at"] is None
        upstream.release(gate)
        ended = client.until(type="session_update", status="completed")["data"]
        run = talker.good("GET", f"/runs/{run_id}")
        for name in ("message_id", "stop_reason", "error", "started_at", "finished_at"):
            assert ended[name] == run[name], name
        assert client.drain() == [], (
            "what is the same is not said again, and a subscriber needs no notification"
        )


def test_a_returning_client_learns_what_happened_meanwhile(
    talker: ApiClient, upstream: ScriptedProvider
) -> None:
    session_id, gate = new_session(talker), next(gates)
    with open_socket(talker) as client:
        client.subscribe(session_id)
        run_id = begin(talker, session_id, f"gate {gate}")
        client.until(status="running")
    upstream.release(gate)
    with stream_run(talker, run_id) as stream:
        stream.until("done")
    with open_socket(talker) as client:
        state = client.subscribe(session_id)["data"]
        assert (state["status"], state["run_id"]) == ("completed", run_id)


def test_a_second_subscription_sends_the_state_again(cleo: ApiClient) -> None:
    session_id = new_session(cleo)
    with open_socket(cleo) as client:
        assert client.subscribe(session_id) == client.subscribe(session_id)


def test_an_unsubscribed_client_gets_no_more_states(talker: ApiClient, upstream: ScriptedProvider) -> None:
    session_id, other = new_session(talker), new_session(talker)
    with open_socket(talker) as client:
        client.subscribe(session_id)
        client.subscribe(other)
        client.send({"type": "unsubscribe", "session_id": session_id})
        client.send({"type": "unsubscribe", "session_id": "never subscribed to"})
        assert client.drain() == []
        begin(talker, session_id, "hello")
        assert client.receive()["type"] == "notification"
        begin(talker, other, "hello")
        assert client.receive()["session_id"] == other


def test_a_foreign_session_looks_like_a_missing_one(talker: ApiClient, bob: ApiClient) -> None:
    theirs, nothing = new_session(bob), "01a00000-0000-7000-8000-000000000000"
    with open_socket(talker) as client:
        answers = [client.subscribe(session_id) for session_id in (theirs, nothing, "x")]
        assert [answer.pop("session_id") for answer in answers] == [theirs, nothing, "x"]
        assert answers[0] == answers[1] == answers[2]
        assert answers[0]["code"] == 404
        assert answers[0]["detail"] == {"kind": "session_not_found"}
        begin(bob, theirs, "hello")
        begin(talker, new_session(talker, "my own"), "hello")
        assert client.receive()["data"]["title"] == "my own", "nothing of the other one came before"


# --- notifications ----------------------------------------------------------------------------------


def test_the_end_of_an_unwatched_run_becomes_a_notification(talker: ApiClient) -> None:
    session_id, failing = new_session(talker, "the weather"), new_session(talker, "the end")
    with open_socket(talker) as client:
        run_id = begin(talker, session_id, "hello")
        assert client.receive() == {
            "type": "notification",
            "data": {
                "title": "the weather", "message": "The answer is ready.", "session_id": session_id,
                "run_id": run_id, "status": "completed",
            },
        }  # fmt: skip
        begin(talker, failing, "refuse this")
        data = client.receive()["data"]
        assert (data["title"], data["status"]) == ("the end", "failed")
        assert data["message"].startswith("The answer failed: ")
        assert len(data["message"]) > len("The answer failed: ")


def test_a_user_who_watches_or_cancels_the_run_gets_no_notification(
    talker: ApiClient, upstream: ScriptedProvider
) -> None:
    followed, cancelled, gate = new_session(talker), new_session(talker), next(gates)
    with open_socket(talker) as client:
        run_id = begin(talker, followed, f"gate {gate}")
        with stream_run(talker, run_id) as stream:
            stream.until("run")
            upstream.release(gate)
            stream.until("done")
        stuck = begin(talker, cancelled, f"gate {next(gates)}")
        talker.cancel(stuck)
        begin(talker, new_session(talker, "the next"), "hello")
        assert client.receive()["data"]["title"] == "the next"


def test_all_sockets_of_a_user_are_notified_and_no_others(talker: ApiClient, bob: ApiClient) -> None:
    with open_socket(talker) as connection, open_socket(talker) as other, open_socket(bob) as foreign:
        begin(talker, new_session(talker, "seen twice"), "hello")
        assert connection.receive() == other.receive()
        begin(bob, new_session(bob, "of bob"), "hello")
        assert foreign.until(title="of bob")["type"] == "notification"


# --- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        "", "no", "{", "[]", "null", "5", '"ping"', "{}", '{"type": "nope"}', '{"type": null}', '{"type": 1}',
        '{"type": "subscribe"}', '{"type": "subscribe", "session_id": 5}',
        '{"type": "subscribe", "session_id": ""}',
        '{"type": "subscribe", "session_id": "a\\u0000"}', '{"type": "subscribe", "session_id": "\\ud800"}',
        '{"type": "ping", "more": 1}', '{"type": "subscribe", "session_id": "' + "x" * 65 + '"}',
        '{"type": "ping", "x": ' + "[" * 8000 + "}", '{"type": "ping", "x": 1e999}', b"", b"\xff\x00",
        b'{"type": "ping"}',
    ],
)  # fmt: skip
def test_an_invalid_message_is_answered_and_the_socket_stays_open(
    cleo: ApiClient, message: str | bytes
) -> None:
    with open_socket(cleo) as client:
        client.send(message)
        answer = client.receive()
        assert (answer["type"], answer["code"]) == ("error", 400)
        assert re.fullmatch(r"[a-z_]+", answer["detail"]["kind"])
        assert len(answer["error"]) > 20
        assert client.drain() == []


def test_a_message_past_16_kb_closes_the_socket(cleo: ApiClient) -> None:
    with open_socket(cleo) as client:
        client.send(" " * (16 * 1024 + 1))
        assert client.wait_closed()[0] == 1009


def test_a_message_in_endless_fragments_closes_the_socket(cleo: ApiClient) -> None:
    with open_socket(cleo) as client:
        client.connection.send(itertools.chain(["{"], itertools.repeat("", MAX_FRAGMENTS - 1)))
        assert client.wait_closed() == (1009, "too many fragments")


def test_a_user_has_20_sockets_and_may_open_another_when_one_closes(
    server: ServerProcess, document: Document, admin: ApiClient, cleo: ApiClient
) -> None:
    with ApiClient(server, document).register(f"many{next(numbers)}") as person, ExitStack() as lines:
        first = lines.enter_context(open_socket(person))
        for _ in range(19):
            lines.enter_context(open_socket(person)).drain()
        with open_socket(person) as too_many:
            assert too_many.wait_closed()[0] == 1013
        with open_socket(cleo) as others:
            assert others.drain() == []
        first.connection.close()
        assert opens_within(person, attempts=50)


def opens_within(person: ApiClient, *, attempts: int) -> bool:
    """Whether a socket opens within this many attempts: the server notices a close with a delay."""
    for _ in range(attempts):
        with open_socket(person) as client:
            try:
                return client.drain() == []
            except Exception:
                continue
    return False


@pytest.mark.heavy
def test_a_socket_takes_500_subscriptions_and_more_when_one_ends(cleo: ApiClient) -> None:
    with open_socket(cleo) as client:
        session_id = new_session(cleo)
        client.subscribe(session_id)
        sessions = [new_session(cleo) for _ in range(499)]
        for each in sessions:
            assert client.subscribe(each)["type"] == "session_update"
        refused = client.subscribe(new_session(cleo))
        assert refused["detail"]["kind"] == "too_many_subscriptions"
        assert client.subscribe(session_id)["type"] == "session_update", "one that there is may be repeated"
        client.send({"type": "unsubscribe", "session_id": session_id})
        assert client.subscribe(new_session(cleo))["type"] == "session_update"


def test_a_flood_of_messages_closes_the_socket_and_no_other(cleo: ApiClient) -> None:
    with open_socket(cleo) as flooding, open_socket(cleo) as other:
        stream_message = threading.Thread(target=flood, args=(flooding,))
        stream_message.start()
        code, reason = flooding.wait_closed(30)
        stream_message.join(30)
        assert code == 1008
        assert "too many" in reason
        assert other.drain() == []


def flood(client: SocketClient) -> None:
    try:
        for _ in range(5000):
            client.send({"type": "ping"})
    except Exception:
        return


# --- metrics, document and shutdown ------------------------------------------------------------------


def test_the_metrics_count_open_sockets(cleo: ApiClient) -> None:
    def count() -> float:
        match = re.search(r"^luxx_sockets (\S+)$", cleo.http.get("/metrics").text, re.MULTILINE)
        assert match
        return float(match[1])

    def wait_for_count(expected: float) -> None:
        end = time.monotonic() + 10
        while count() != expected:
            assert time.monotonic() < end, f"{count()} sockets are counted; {expected} are open"
            time.sleep(0.02)

    wait_for_count(0)  # the server may still be closing sockets of other tests
    with open_socket(cleo) as client:
        client.drain()
        assert count() == 1
    wait_for_count(0)


def test_the_document_describes_the_messages_of_a_socket(document: Document) -> None:
    description = document.content["paths"]["/auth/ticket"]["post"]["description"]
    for word in ("subscribe", "unsubscribe", "ping", "pong", "session_update", "notification", "error"):
        assert f"`{word}`" in description
    assert {"Subscribe", "SessionUpdate", "Notification"} <= set(document.content["components"]["schemas"])


def test_a_server_that_stops_closes_sockets_as_it_says(tmp_path: Any) -> None:
    with ServerProcess(tmp_path) as server, ApiClient(server, None).sign_in() as person:
        with open_socket(person) as client, open_socket(person) as other:
            client.drain()
            other.drain()
            server.stop()
            assert [client.wait_closed()[0], other.wait_closed()[0]] == [1012, 1012]
        assert '"level":"error"' not in server.output
        assert "Traceback" not in server.output
