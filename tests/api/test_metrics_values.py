"""What the metrics count, asked of a real server after real work."""

import re

from api.client import ApiClient


def counts(person: ApiClient) -> dict[str, float]:
    """The samples of /metrics by name and labels."""
    text = person.http.get("/metrics").text
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def growth(before: dict[str, float], after: dict[str, float], pattern: str) -> float:
    matching = [name for name in after if re.fullmatch(pattern, name)]
    assert matching, f"no metric like {pattern}"
    return sum(after[name] - before.get(name, 0.0) for name in matching)


def test_an_answer_is_counted_as_a_run_a_model_call_tokens_and_writes(anna: ApiClient) -> None:
    before = counts(anna)
    conversation = anna.good("POST", "/conversations", json={})["id"]
    anna.good("POST", "/messages", json={"conversation_id": conversation, "content": "Hello?"})
    after = counts(anna)

    assert growth(before, after, r'luxx_runs_started_total\{kind="chat"\}') == 1
    assert growth(before, after, r'luxx_runs_finished_total\{kind="chat",status="completed"\}') == 1
    assert growth(before, after, r'luxx_upstream_requests_total\{outcome="ok"\}') == 1
    assert growth(before, after, r'luxx_tokens_total\{kind="prompt"\}') == 3
    assert growth(before, after, r'luxx_tokens_total\{kind="completion"\}') == 2
    assert growth(before, after, "luxx_deltas_total") >= 1
    assert growth(before, after, "luxx_db_write_seconds_count") >= 3
    assert after["luxx_runs_active"] == 0


def test_a_failed_model_call_is_counted_by_its_kind(anna: ApiClient) -> None:
    before = counts(anna)
    conversation = anna.good("POST", "/conversations", json={})["id"]
    anna.bad("POST", "/messages", 502, json={"conversation_id": conversation, "content": "refuse this"})
    after = counts(anna)

    assert growth(before, after, r'luxx_upstream_requests_total\{outcome="provider_key_refused"\}') == 1
    assert growth(before, after, r'luxx_runs_finished_total\{kind="chat",status="failed"\}') == 1


def test_a_tool_call_is_counted_by_its_tool_at_every_entry_point(anna: ApiClient) -> None:
    before = counts(anna)
    anna.good("POST", "/tools/file_list/execute", json={"arguments": {}})
    after = counts(anna)

    assert growth(before, after, r'luxx_tool_calls_total\{success="true",tool="file_list"\}') == 1
    assert growth(before, after, r'luxx_tool_seconds_count\{tool="file_list"\}') == 1
