"""Usage and cost: what the provider reported, and estimates for what it did not report."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from api.client import KEY, ApiClient
from api.conftest import answering, connect
from api.schema import Document
from api.server_process import ServerProcess
from api.streams import stream_message, stream_run
from luxx.providers.scripted import (
    Counts,
    Finish,
    Gate,
    Rule,
    ScriptedProvider,
    Text,
    When,
)

SUMS = {
    "completions", "prompt_tokens", "completion_tokens", "total_tokens", "cached_tokens",
    "cache_write_tokens", "reasoning_tokens", "cost", "unpriced", "estimated",
}  # fmt: skip
PRICED = "gpt-4o"
"""2.50 dollars per million tokens in, 1.25 from the cache, 10.00 out."""

SAID = "Seventeen letters"
numbers = itertools.count()


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedProvider]:
    rules = [
        Rule(name="waits", when=When(user="wait"), reply=[Text(text=SAID), Gate(name="g"), Finish()]),
        Rule(name="silent", when=When(user="count nothing"), reply=[Text(text=SAID), Finish()]),
        Rule(name="refuses", when=When(user="refuse"), status=401, message="no"),
        Rule(
            name="counts",
            reply=[
                Text(text="Hello."),
                Counts(prompt=1000, completion=100, reasoning=40, cached=600),
                Finish(),
            ],
        ),
    ]
    with answering(rules) as provider:
        yield provider


@pytest.fixture
def carol(
    server: ServerProcess, document: Document, admin: ApiClient, upstream: ScriptedProvider
) -> Iterator[ApiClient]:
    """A new user without usage."""
    with ApiClient(server, document).register(f"carol{next(numbers)}") as person:
        connect(person, upstream)
        yield person


def talk(person: ApiClient, content: str = "hello", model: str = "scripted", chat: str = "") -> str:
    chat = chat or person.good("POST", "/conversations", json={"title": f"about {content}"})["id"]
    body = {"conversation_id": chat, "content": content, "model": model}
    person.good("POST", "/messages", json=body)
    return chat


def report(person: ApiClient, **query: Any) -> dict[str, Any]:
    report_body: dict[str, Any] = person.good("GET", "/usage", params=query)
    assert set(report_body) == {"items", "total", "page", "page_size", "sums"}
    assert set(report_body["sums"]) == SUMS
    assert all(set(group) == {*SUMS, "key", "name"} for group in report_body["items"])
    return report_body


def check_same_report(person: ApiClient, chat: str, sums: dict[str, Any]) -> None:
    """Checks that the run and the message report the same sums as the ledger."""
    run = person.good("GET", f"/runs?subject_id={chat}")["items"][0]
    message = person.good("GET", f"/messages?conversation_id={chat}")["items"][0]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert run["usage"][name] == message["usage"][name] == sums[name] > 0
    assert message["token_count"] == sums["completion_tokens"]
    assert run["cost"] == pytest.approx(sums["cost"])


def test_a_user_without_usage_spent_nothing(carol: ApiClient) -> None:
    report_body = report(carol)
    assert (report_body["items"], report_body["total"]) == ([], 0)
    assert report_body["sums"] == {**dict.fromkeys(SUMS, 0), "cost": 0.0}


def test_tokens_and_money_are_summed_and_unknown_prices_are_reported(carol: ApiClient) -> None:
    chat = talk(carol, model=PRICED)
    talk(carol, chat=chat, model=PRICED)
    other = talk(carol, model="nobody-knows")
    cost = (400 * 2.50 + 600 * 1.25 + 100 * 10.00) / 1e6
    (today,) = report(carol)["items"]
    assert today["key"] == datetime.now(UTC).date().isoformat()
    assert today["completions"] == 3
    assert (today["prompt_tokens"], today["completion_tokens"], today["total_tokens"]) == (3000, 300, 3300)
    assert (today["cached_tokens"], today["reasoning_tokens"]) == (1800, 120)
    assert today["cost"] == pytest.approx(2 * cost)
    assert (today["unpriced"], today["estimated"]) == (1, 0)
    assert report(carol)["sums"] == {name: today[name] for name in SUMS}

    priced, unpriced = report(carol, group_by="model")["items"]
    assert (priced["key"], priced["completions"], priced["unpriced"]) == (PRICED, 2, 0)
    assert (unpriced["key"], unpriced["cost"], unpriced["unpriced"]) == ("nobody-knows", None, 1)

    groups = report(carol, group_by="conversation")["items"]
    assert [(group["key"], group["name"]) for group in groups] == [
        (chat, "about hello"),
        (other, "about hello"),
    ]
    usage = carol.good("GET", f"/conversations/{chat}/usage")
    assert [group["key"] for group in usage["items"]] == [PRICED]
    assert usage["sums"]["cost"] == pytest.approx(2 * cost)
    assert report(carol, conversation_id=chat)["sums"] == usage["sums"]
    (provider,) = report(carol, group_by="provider")["items"]
    assert provider["name"] == "scripted"
    for kind in ("room", "task"):
        assert report(carol, group_by=kind)["items"] == []


def test_a_page_has_its_groups_and_the_sums_of_all(carol: ApiClient) -> None:
    chats = [talk(carol, model=PRICED) for _ in range(3)]
    whole = report(carol, group_by="conversation")
    keys: list[str] = []
    for page in (1, 2, 3):
        report_body = report(carol, group_by="conversation", page=page, page_size=2)
        assert (report_body["total"], report_body["sums"]) == (3, whole["sums"])
        keys += [group["key"] for group in report_body["items"]]
    assert sorted(keys) == sorted(chats)


def test_days_bound_what_is_counted(carol: ApiClient) -> None:
    talk(carol)
    today = datetime.now(UTC).date()
    before, after = today - timedelta(days=1), today + timedelta(days=1)
    for first, last, many in (
        (before, after, 1),
        (today, today, 1),
        (after, after, 0),
        (before, before, 0),
        ("0001-01-01", "9999-12-31", 1),
    ):
        assert report(carol, **{"from": str(first), "to": str(last)})["sums"]["completions"] == many
    refused = carol.bad("GET", "/usage", 400, params={"from": str(after), "to": str(before)})
    assert set(refused["detail"]["fields"]) == {"from"}
    for wrong in ("yesterday", "2026-13-01", "2026-02-30", "0000-01-01", "", "2026-1-1", "1"):
        refused = carol.bad("GET", "/usage", 400, params={"to": wrong})
        assert set(refused["detail"]["fields"]) == {"to"}
    carol.bad("GET", "/usage", 400, params={"group_by": "weather"})


def test_deleting_the_conversation_or_the_provider_keeps_its_cost(carol: ApiClient) -> None:
    chat = talk(carol, model=PRICED)
    before = report(carol)["sums"]
    carol.good("DELETE", f"/conversations/{chat}")
    carol.good("DELETE", f"/providers/{report(carol, group_by='provider')['items'][0]['key']}")
    assert report(carol)["sums"] == before
    (group,) = report(carol, group_by="conversation")["items"]
    assert (group["key"], group["name"]) == (chat, None)
    assert report(carol, group_by="provider")["items"][0]["name"] is None
    assert report(carol, conversation_id=chat)["sums"] == before
    carol.bad("GET", f"/conversations/{chat}/usage", 404)


def test_a_cancelled_completion_is_in_the_ledger_with_what_was_sent_and_what_came(carol: ApiClient) -> None:
    chat = carol.good("POST", "/conversations", json={"system_prompt": "s" * 4000})["id"]
    with stream_message(carol, chat, "wait", model=PRICED, tools=False) as stream:
        stream.until("process_step")
        run_id = stream.received[0]["run"]["id"]
        carol.good("POST", f"/runs/{run_id}/cancel")
        stream.read_to_end()
    sums = report(carol)["sums"]
    assert (sums["completions"], sums["estimated"], sums["unpriced"]) == (1, 1, 0)
    # 4,000 and 4 lower-case letters, and the delimiters of two messages.
    assert sums["prompt_tokens"] == 1_040 + 2 + 2 * 4
    assert sums["completion_tokens"] == 5
    assert sums["cost"] == pytest.approx((sums["prompt_tokens"] * 2.50 + 5 * 10.00) / 1e6)
    check_same_report(carol, chat, sums)
    assert stream.received[-1]["token_count"] == 5


def test_usage_of_an_uncounted_completion_is_estimated_and_a_refused_one_is_not_recorded(
    carol: ApiClient,
) -> None:
    chat = talk(carol, "count nothing", PRICED)
    sums = report(carol)["sums"]
    assert (sums["completions"], sums["estimated"], sums["completion_tokens"]) == (1, 1, 5)
    assert sums["cost"] > 0
    run = carol.good("GET", f"/runs?subject_id={chat}")["items"][0]
    assert run["cost"] == pytest.approx(sums["cost"])
    check_same_report(carol, chat, sums)
    body = {"conversation_id": chat, "content": "refuse"}
    assert carol.ask("POST", "/messages", json=body).status_code == 502
    assert report(carol)["sums"] == sums


def test_administrators_see_the_usage_of_others_without_titles(
    carol: ApiClient, admin: ApiClient, bob: ApiClient
) -> None:
    chat = talk(carol, model=PRICED)
    for scope in ("tenant", "all"):
        carol.bad("GET", "/usage", 403, params={"scope": scope})
        names = {group["name"] for group in report(admin, scope=scope, group_by="user")["items"]}
        assert carol.user["username"] in names
        groups = report(admin, scope=scope, group_by="conversation", page_size=100)["items"]
        assert {group["name"] for group in groups if group["key"] == chat} == {None}
    assert report(admin, scope="all", group_by="tenant")["items"][0]["name"] == "default"
    assert report(admin)["sums"]["completions"] == 0
    assert report(bob, conversation_id=chat)["items"] == []
    own = report(carol, group_by="user")["items"]
    assert [(group["key"], group["name"]) for group in own] == [
        (str(carol.user["id"]), carol.user["username"])
    ]


def test_cancelled_completions_count_towards_the_daily_limit(
    tmp_path_factory: pytest.TempPathFactory, upstream: ScriptedProvider
) -> None:
    settings = {
        # Headroom for the worst case of one such call, but not after the usage of a cancelled one.
        "LUXX_LIMITS__TOKENS_PER_DAY": "5000",
        "LUXX_MODELS": "[{pattern: own-model, context_window: 9000, max_output: 900}]",
    }
    with (
        ServerProcess(tmp_path_factory.mktemp("limited"), **settings) as server,
        ApiClient(server, None) as admin,
    ):
        admin.sign_in()
        admin.good("PUT", "/admin/allowed-hosts", json={"hosts": [upstream.url.removeprefix("http://")]})
        provider_id = connect(admin, upstream)
        chat = admin.good("POST", "/conversations", json={"system_prompt": "s" * 8000})["id"]
        with stream_message(admin, chat, "wait", tools=False) as stream:
            stream.until("process_step")
            admin.good("POST", f"/runs/{stream.received[0]['run']['id']}/cancel")
            stream.read_to_end()
        refused = admin.bad("POST", "/messages", 429, json={"conversation_id": chat, "content": "hello"})
        assert refused["detail"]["kind"] == "tokens_per_day"
        offered = admin.good("GET", f"/providers/{provider_id}/models")
        assert offered["models"] == ["scripted"]
        assert [(card["name"], card["is_known"]) for card in offered["cards"]] == [("scripted", True)]
        assert KEY not in str(offered)


@pytest.mark.heavy
def test_a_completion_of_a_killed_process_is_recorded_with_unknown_usage(
    tmp_path: Path, upstream: ScriptedProvider
) -> None:
    with ServerProcess(tmp_path) as first, ApiClient(first, None) as admin:
        admin.sign_in()
        admin.good("PUT", "/admin/allowed-hosts", json={"hosts": [upstream.url.removeprefix("http://")]})
        connect(admin, upstream)
        chat = admin.good("POST", "/conversations", json={})["id"]
        with stream_message(admin, chat, "wait", model=PRICED) as stream:
            stream.until("process_step")
            run_id = stream.received[0]["run"]["id"]
            first.kill()
    with ServerProcess(tmp_path, data_dir=first.data_dir) as second, ApiClient(second, None) as admin:
        admin.sign_in()
        with stream_run(admin, run_id) as stream:
            assert "not known" in stream.until("warning")["message"]
            sums = report(admin)["sums"]
            assert (sums["completions"], sums["unpriced"], sums["estimated"]) == (1, 1, 1)
            assert (sums["total_tokens"], sums["cost"]) == (0, None)
            stream.until("process_step")
            admin.good("POST", f"/runs/{run_id}/cancel")
            stream.read_to_end()
        sums = report(admin)["sums"]
        assert (sums["completions"], sums["unpriced"], sums["estimated"]) == (2, 1, 2)
        assert sums["cost"] > 0
