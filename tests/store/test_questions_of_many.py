"""Questions at several servers of one PostgreSQL: one of them takes the answer, and the run continues."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from api.client import ApiClient
from api.conftest import connect
from api.server_process import ServerProcess
from api.streams import stream_message, stream_run

from luxx.providers.scripted import Call, Finish, Rule, Script, ScriptedProvider, Text, When
from store.databases import new_database

pytestmark = pytest.mark.heavy

SECRET = "a secret that all servers of one database share, long enough"
ROUNDS = 8
OPTIONS = [{"label": "left", "is_recommended": True}, {"label": "right"}]


class Pair(NamedTuple):
    """One user at two servers of one database, and a model that asks questions."""

    here: ApiClient
    there: ApiClient
    servers: tuple[ServerProcess, ServerProcess]


def asks(*seconds: int) -> Script:
    """A model that asks as many questions at once, each with its time limit in seconds."""
    calls = [
        Call(
            name="ask_clarification",
            arguments={
                "question_type": "scope", "question": "Which?", "options": OPTIONS, "timeout_seconds": each,
            },
            id=f"call-{number}",
        )
        for number, each in enumerate(seconds)
    ]  # fmt: skip
    return Script(
        rules=[
            Rule(when=When(has_tool_result=False), reply=[*calls, Finish(reason="tool_calls")]),
            Rule(when=When(has_tool_result=True), reply=[Text(text="So be it.")]),
        ]
    )


@contextmanager
def pair_at_two_servers(postgresql: str, name: str, tmp_path: Path, script: Script) -> Iterator[Pair]:
    with ScriptedProvider(script) as provider:
        settings = {
            "LUXX_DATABASE__URL": new_database(postgresql, name),
            "LUXX_APP__SECRET_KEY": SECRET,
            "LUXX_PROVIDERS__ALLOW_PRIVATE": provider.url.removeprefix("http://"),
            "LUXX_RUNS__LEASE_SECONDS": "2",
        }
        with (
            ServerProcess(tmp_path, data_dir=tmp_path / "one", **settings) as started_server,
            ServerProcess(tmp_path, data_dir=tmp_path / "two", **settings) as two,
            ApiClient(started_server, None).register("ann") as here,
            ApiClient(two, None, here.token) as there,
        ):
            connect(here, provider)
            yield Pair(here, there, (started_server, two))


def waiting_run(person: ApiClient) -> tuple[str, list[dict[str, Any]]]:
    """The id of a waiting run, and its open questions."""
    conversation = person.good("POST", "/conversations", json={})["id"]
    body = {"conversation_id": conversation, "content": "hello"}
    run_id = person.bad("POST", "/messages", 409, json=body)["detail"]["run_id"]
    return run_id, person.good("GET", f"/runs/{run_id}/questions?status=open")["items"]


def answer(person: ApiClient, question: dict[str, Any], words: str) -> int:
    path = f"/runs/{question['run_id']}/questions/{question['id']}/answer"
    return person.ask("POST", path, json={"answer": words}).status_code


def test_of_concurrent_answers_at_two_servers_one_counts(postgresql: str, tmp_path: Path) -> None:
    with (
        pair_at_two_servers(postgresql, "answers", tmp_path, asks(600, 600)) as pair,
        ThreadPoolExecutor(2) as threads,
    ):
        for _ in range(ROUNDS):
            run_id, questions = waiting_run(pair.here)
            with stream_run(pair.there, run_id) as there, stream_run(pair.here, run_id) as here:
                for question in questions:
                    left = threads.submit(answer, pair.here, question, "left")
                    right = threads.submit(answer, pair.there, question, "right")
                    assert sorted([left.result(), right.result()]) == [200, 409]
                received = [frame for frame in here.read_to_end() if frame["seq"]]
                assert [frame for frame in there.read_to_end() if frame["seq"]] == received
            assert [frame["seq"] for frame in received] == list(range(1, len(received) + 1))
            assert [frame["type"] for frame in received].count("question_answered") == 2
            assert received[-1]["status"] == "completed"
            views = pair.there.good("GET", f"/runs/{run_id}/questions")["items"]
            answers = {
                frame["question_id"]: frame["answer"]
                for frame in received
                if frame["type"] == "question_answered"
            }
            assert {view["id"]: view["answer"] for view in views} == answers


def test_an_expired_question_is_closed_by_one_server(postgresql: str, tmp_path: Path) -> None:
    with pair_at_two_servers(postgresql, "times", tmp_path, asks(1, 1, 1)) as pair:
        runs = [waiting_run(person)[0] for person in (pair.here, pair.there) for _ in range(3)]
        for run_id in runs:
            with stream_run(pair.there, run_id) as stream:
                received = [frame for frame in stream.read_to_end() if frame["seq"]]
            answered = [frame for frame in received if frame["type"] == "question_answered"]
            assert [(frame["answer"], frame["answered_by"]) for frame in answered] == [
                ("left", "timeout")
            ] * 3
            assert [frame["seq"] for frame in received] == list(range(1, len(received) + 1))


def test_a_waiting_run_of_a_stopped_server_continues_at_the_other(postgresql: str, tmp_path: Path) -> None:
    with pair_at_two_servers(postgresql, "gone", tmp_path, asks(600)) as pair:
        run_id, (question,) = waiting_run(pair.here)
        other_id, (other,) = waiting_run(pair.here)
        pair.servers[0].kill()
        assert answer(pair.there, question, "right") == 200
        with stream_run(pair.there, run_id) as stream:
            assert stream.read_to_end()[-1]["status"] == "completed"
        pair.there.cancel(other_id)
        assert answer(pair.there, other, "left") == 409


def test_a_stream_continues_when_another_server_takes_the_answer(postgresql: str, tmp_path: Path) -> None:
    with pair_at_two_servers(postgresql, "stream", tmp_path, asks(600)) as pair:
        conversation = pair.here.good("POST", "/conversations", json={})["id"]
        with stream_message(pair.here, conversation, "hello") as stream:
            question = stream.until("question_asked")
            question["id"] = question["question_id"]
            assert answer(pair.there, question, "right") == 200
            assert stream.read_to_end()[-1]["status"] == "completed"
        logged = [frame["seq"] for frame in stream.received if frame["seq"]]
        assert logged == list(range(1, len(logged) + 1))
