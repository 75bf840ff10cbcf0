"""Rules at several servers of one PostgreSQL: "always" at one server answers waiting questions at
the others.
"""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from api.client import ApiClient
from api.streams import stream_run

from luxx.providers.scripted import Call, Finish, Rule, Script, Text, When
from store.test_questions_of_many import Pair, pair_at_two_servers, waiting_run

pytestmark = pytest.mark.heavy

ROUNDS = 6
numbers = itertools.count()
ASKS = [{"tool": "file_list", "action": "ask"}]
LISTS = Script(
    rules=[
        Rule(
            when=When(has_tool_result=False),
            reply=[
                Call(name="file_list", arguments={"path": "docs"}, id="call-1"),
                Call(name="file_list", arguments={"path": "docs"}, id="call-2"),
                Finish(reason="tool_calls"),
            ],
        ),
        Rule(when=When(has_tool_result=True), reply=[Text(text="So be it.")]),
    ]
)


@pytest.fixture
def pair(postgresql: str, tmp_path: Path) -> Iterator[Pair]:
    with pair_at_two_servers(postgresql, f"rules_{next(numbers)}", tmp_path, LISTS) as pair:
        yield pair


def say(person: ApiClient, question: dict[str, Any], words: str) -> int:
    path = f"/runs/{question['run_id']}/questions/{question['id']}/answer"
    return person.ask("POST", path, json={"answer": words}).status_code


def wait_for_end(person: ApiClient, run_id: str) -> dict[str, Any]:
    with stream_run(person, run_id) as stream:
        stream.read_to_end()
    return person.good("GET", f"/runs/{run_id}")


def test_always_at_one_server_continues_runs_that_began_at_the_other(pair: Pair) -> None:
    pair.here.good("PUT", "/permissions/rules", json=ASKS)
    (here, questions), (there, _) = waiting_run(pair.here), waiting_run(pair.there)
    assert len(questions) == 2
    assert say(pair.there, questions[0], "always") == 200
    for run_id in (here, there):
        assert wait_for_end(pair.here, run_id)["status"] == "completed"
    rules = pair.here.good("GET", "/permissions/rules")
    assert [(rule["pattern"], rule["action"]) for rule in rules] == [("*", "ask"), ("=docs", "allow")]
    by = [item["answered_by"] for item in pair.here.good("GET", "/questions?status=answered")["items"]]
    assert sorted(by) == ["person", "rule", "rule", "rule"]


def test_concurrent_always_at_both_servers_is_one_rule_and_one_answer_per_question(pair: Pair) -> None:
    for _ in range(ROUNDS):
        pair.here.good("PUT", "/permissions/rules", json=ASKS)
        (first_run, first), (second_run, second) = waiting_run(pair.here), waiting_run(pair.there)
        with ThreadPoolExecutor(4) as pool:
            rules_seen = [
                pool.submit(say, who, question, "always")
                for question in (first[0], second[1])
                for who in pair[:2]
            ]
            statuses = sorted(each.result() for each in rules_seen)
        assert set(statuses) <= {200, 409}
        assert 200 in statuses
        for run_id in (first_run, second_run):
            assert wait_for_end(pair.here, run_id)["status"] == "completed"
        rules = pair.there.good("GET", "/permissions/rules")
        assert [rule["pattern"] for rule in rules] == ["*", "=docs"]
        assert [rule["place"] for rule in rules] == [0, 1]
