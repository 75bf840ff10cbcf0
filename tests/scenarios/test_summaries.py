"""The run's own model summarises what no longer fits its window; a summary that fails ends nothing."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from api.server_process import ServerProcess
from msgspec.structs import replace

from luxx.providers.scripted import Call, Faults, Finish, Gate, Rule, Script, ScriptedProvider, Text, When
from luxx.providers.scripted.script import ReplyEvent
from scenarios.client import AsyncApiClient, Json
from scenarios.conftest import SMALL_WINDOWS
from scenarios.restarting_client import RestartingClient
from scenarios.screen import Screen
from scenarios.scripts import ASKS_FOR_SUMMARY
from scenarios.test_long_turns import QUESTION, SUMMARY, contents, passes

CALLS = 30


def script(*summaries: Rule, calls: int = CALLS, says: str = "") -> Script:
    """A model that looks at so many trees, and `says` something each time, then answers; its summaries follow
    these rules."""
    looks = [
        Rule(
            name=f"call {number}",
            when=When(user="pear tree", call=number),
            reply=[
                *([Text(text=says, pieces=1)] if says else []),
                Call(name="python_eval", arguments={"expression": f"'tree {number} of the garden ' * 90"}),
            ],
        )
        for number in range(1, calls + 1)
    ]
    answer = Rule(name="answer", when=When(user="pear tree"), reply=[Text(text="It is tree 7.")])
    return Script(rules=[*summaries, *looks, answer], window=8_000, caches=True)


def summary_rule(*reply: ReplyEvent, **more: Any) -> Rule:
    written = reply or (Text(text=SUMMARY, pieces=1),)
    return Rule(name="summary", when=When(user=ASKS_FOR_SUMMARY), reply=[*written], **more)


async def begin(ann: AsyncApiClient, model: ScriptedProvider) -> str:
    body = {"provider_id": await ann.connect(model.url), "model": "eight", "max_tokens": 1000}
    return (await ann.post("/conversations", body))["id"]


async def turn_of(ann: AsyncApiClient, model: ScriptedProvider) -> tuple[str, Screen]:
    """A long turn in a new conversation, to its end."""
    conversation = await begin(ann, model)
    async with ann.send_and_follow(conversation, QUESTION, tools=["python_eval"]) as stream:
        screen = await stream.to_the_end(timeout=120)
    assert screen.done is not None
    assert (screen.done["status"], screen.done["finish"]) == ("completed", "stop"), screen.frames[-3:]
    return conversation, screen


async def test_a_long_turn_is_summarised_by_its_own_model(long_server: ServerProcess) -> None:
    async with ScriptedProvider(script(summary_rule())) as model, AsyncApiClient(long_server.url) as ann:
        conversation, screen = await turn_of(ann, model)
        asked = [at for at, request in enumerate(model.requests) if request.rule == "summary"]
        assert 1 <= len(asked) <= 4
        for at in asked:
            before, request, after = (model.requests[at + step].json for step in (-1, 0, 1))
            # The prompt that did not fit, and one message: nearly all of it is cached.
            assert request["messages"][: len(before["messages"])] == before["messages"]
            assert request["tools"] == before["tools"]
            assert "tool_choice" not in request
            assert ASKS_FOR_SUMMARY in request["messages"][-1]["content"]
            first, summary, *rest = after["messages"]
            assert first == {"role": "user", "content": QUESTION}
            assert summary["role"] == "user"
            assert summary["content"].endswith(SUMMARY)
            assert rest == request["messages"][-1 - len(rest) : -1]
            assert len(rest) >= 4, "the last two completions stay"
        await check_events(ann, conversation, screen, len(asked))
        # A branch from before the answer has no word of the summary.
        (question, _) = await ann.messages(conversation)
        async with ann.send_and_follow(conversation, "And the apple? pear tree", tools=False) as stream:
            await stream.to_the_end()
        summary = contents(model.requests[-1].json["messages"], "user")[1]
        assert summary.endswith(SUMMARY), "the next turn begins with it"
        fork = await ann.post(f"/conversations/{conversation}/fork", {"message_id": question["id"]})
        async with ann.send_and_follow(fork["id"], "The pear tree?", tools=False) as stream:
            await stream.to_the_end()
        assert "were looked at" not in model.requests[-1].body.decode()


async def check_events(ann: AsyncApiClient, conversation: str, screen: Screen, count: int) -> None:
    """What clients and the ledger see of so many summaries."""
    found = [
        one for one in screen.data_of("context_compressed") if one["compression_strategy"] == "summarize"
    ]
    assert len(found) == count
    for event in found:
        assert event["summary"] == SUMMARY
        assert event["summarized_message_count"] > 0
        assert event["tokens_after"] <= 0.6 * event["token_budget"]
        assert event["summary_usage"]["cached_tokens"] >= 0.85 * event["summary_usage"]["prompt_tokens"]
    costs = screen.data_of("cost_update")
    assert [one["purpose"] for one in costs].count("summary") == count
    totals = [one["usage"]["total_tokens"] for one in costs]
    assert totals == sorted(totals)
    assert screen.done is not None
    assert screen.done["usage"]["total_tokens"] == totals[-1]
    used = await ann.get("/usage", group_by="conversation")
    (row,) = [one for one in used["items"] if one["key"] == conversation]
    assert row["total_tokens"] == totals[-1]
    answer = (await ann.messages(conversation))[-1]
    assert len([step for step in answer["steps"] if step["type"] == "tool_result"]) == CALLS


FAILING = {
    "it fails": (summary_rule(status=400, message="no summaries today"), "no summaries today"),
    "it is empty": (summary_rule(Text(text=" \n")), "short enough"),
    "it is too long": (summary_rule(Text(text="far too long " * 700, pieces=1)), "short enough"),
    "it is withheld in part": (
        summary_rule(Text(text="## Goal and limits", pieces=1), Finish(reason="content_filter")),
        "short enough",
    ),
    "it repeats itself": (summary_rule(Text(text="and again " * 250, pieces=1)), "short enough"),
    "it calls a tool": (
        summary_rule(Call(name="python_eval", arguments={"expression": "1"})),
        "short enough",
    ),
}


@pytest.mark.parametrize(("rule", "said"), FAILING.values(), ids=FAILING)
async def test_without_a_summary_the_oldest_part_is_left_out_and_the_turn_goes_on(
    long_server: ServerProcess, rule: Rule, said: str
) -> None:
    async with ScriptedProvider(script(rule)) as model, AsyncApiClient(long_server.url) as ann:
        _, screen = await turn_of(ann, model)
        asked = [request for request in model.requests if request.rule == "summary"]
        warnings = screen.data_of("warning")
        assert len(warnings) == len(asked) > 0
        assert all(said in one["message"] for one in warnings)
        strategies = [one["compression_strategy"] for one in screen.data_of("context_compressed")]
        assert strategies.count("truncate") == len(asked)
        assert "summarize" not in strategies
        assert all(len(events) <= 1 for events in passes(screen)), "no pass follows a failed one"


async def test_what_a_model_thinks_in_its_text_is_no_part_of_the_summary(
    long_server: ServerProcess,
) -> None:
    rule = summary_rule(Text(text=f"I think of the trees.</think>{SUMMARY}", pieces=9))
    async with ScriptedProvider(script(rule)) as model, AsyncApiClient(long_server.url) as ann:
        _, screen = await turn_of(ann, model)
        summaries = [one["summary"] for one in screen.data_of("context_compressed") if "summary" in one]
        assert summaries
        assert set(summaries) == {SUMMARY}


async def test_a_lost_attempt_at_a_summary_counts_where_tokens_are_limited(tmp_path: Path) -> None:
    lost = summary_rule(Text(text="lost"), faults=Faults(drop_at=0), times=1)
    summary = summary_rule(Gate(name="summary"), Text(text=SUMMARY, pieces=1))
    limits = {"LUXX_LIMITS__TOKENS_PER_RUN": "10000000"}
    async with ScriptedProvider(script(lost, summary, calls=18)) as model:
        with ServerProcess(tmp_path, **SMALL_WINDOWS, **limits) as server:
            async with AsyncApiClient(server.url) as ann:
                conversation = await begin(ann, model)
                run = await ann.start_run(conversation, QUESTION, tools=["python_eval"])
                await model.reached("summary", 60)
                assert (await ann.get(f"/runs/{run['id']}"))["phase"] == "thinking"
                model.release("summary")
                screen = await ann.wait_for_end(run["id"])
                assert len(screen.data_of("retrying")) == 1
                used = await ann.get("/usage", group_by="conversation")
    assert screen.done is not None
    assert screen.done["status"] == "completed"
    (row,) = [one for one in used["items"] if one["key"] == conversation]
    # The prompt that did not fit was sent once more than the log counts.
    assert row["total_tokens"] - screen.done["usage"]["total_tokens"] > 4_000


async def test_for_a_fallback_with_a_smaller_window_more_is_left_out_before_the_same_call(
    long_server: ServerProcess,
) -> None:
    fails = Rule(name="fails", status=401, message="wrong key")
    larger = [*script(calls=16, says="The pear tree stands here. " * 60).rules[:-1], fails]
    smaller = [Rule(name="answer", reply=[Text(text="It is tree 7.")])]
    async with (
        ScriptedProvider(Script(rules=larger, window=20_000)) as first,
        ScriptedProvider(Script(rules=smaller, window=8_000)) as second,
        AsyncApiClient(long_server.url) as ann,
    ):
        agent = {
            "name": "Gardener",
            "provider_id": await ann.connect(first.url),
            "model": "twenty",
            "max_tokens": 1000,
            "fallbacks": [{"provider_id": await ann.connect(second.url), "model": "eight"}],
        }
        agent_id = (await ann.post("/agents", agent))["id"]
        conversation = (await ann.post("/conversations", {"agent_id": agent_id}))["id"]
        async with ann.send_and_follow(conversation, QUESTION, tools=["python_eval"]) as stream:
            screen = await stream.to_the_end(timeout=120)
        assert screen.done is not None
        assert screen.done["status"] == "completed", screen.frames[-3:]
        assert screen.text.endswith("It is tree 7.")
        assert [one["fallback"] for one in screen.data_of("retrying")] == [1]
        cuts = [(one["window"], one["overflow"]) for one in passes(screen)[-2]]
        assert cuts == [(20_000, False), (8_000, False)]


def requests_of(model: ScriptedProvider) -> list[Json]:
    """The requests, with the ids of calls replaced by their numbers."""
    texts = "\n".join(json.dumps(request.json) for request in model.requests)
    ids = list(dict.fromkeys(re.findall(r"call_[0-9a-f]{32}", texts)))
    for number, each in enumerate(ids):
        texts = texts.replace(each, f"call-{number}")
    return [json.loads(text) for text in texts.splitlines()]


async def test_a_run_that_is_killed_before_in_and_after_a_summary_sends_what_it_would_have_sent(
    tmp_path: Path,
) -> None:
    plain = script(summary_rule(), calls=20)
    with ServerProcess(tmp_path, **SMALL_WINDOWS) as server:
        async with RestartingClient(server) as ann:
            async with ScriptedProvider(plain) as model:
                await turn_of(ann, model)
                wanted = requests_of(model)
                rules = [request.rule for request in model.requests]
            at = rules.index("summary")
            killed = [rules[at - 1], "summary", rules[at + 1]]
            replies = {rule.name: rule.reply for rule in plain.rules}
            gated = [
                Rule(reply=reply, times=1)
                for name in rules
                for reply in ([[Gate(name=name)]] if name in killed else []) + [replies[name]]
            ]
            async with ScriptedProvider(replace(plain, rules=gated)) as model:
                conversation = await begin(ann, model)
                run_id = await ann.send_until_accepted(conversation, QUESTION, tools=["python_eval"])
                for name in killed:
                    await model.reached(name, 60)
                    await ann.kill()
                    model.release(name)
                    await ann.start()
                screen = await ann.follow_to_end(run_id)
                sent = requests_of(model)
    assert screen.done is not None
    assert screen.done["status"] == "completed"
    # One surplus call for each kill, the log says so, and each request is repeated as it was.
    assert len(sent) == len(wanted) + 3
    assert len(screen.data_of("retrying")) == 3
    assert [each for each, after in pairwise([*sent, None]) if each != after] == wanted
    assert contents(wanted[at + 1]["messages"], "user")[1].endswith(SUMMARY)


async def test_a_run_that_is_cancelled_in_a_summary_ends_and_pays_for_it(
    long_server: ServerProcess,
) -> None:
    summary = summary_rule(Text(text="## Goal", pieces=1), Gate(name="summary"))
    async with (
        ScriptedProvider(Script(rules=script(summary, calls=17).rules[:-1], window=8_000)) as model,
        AsyncApiClient(long_server.url) as ann,
    ):
        conversation = await begin(ann, model)
        run = await ann.start_run(conversation, QUESTION, tools=["python_eval"])
        await model.reached("summary", 60)
        await ann.post(f"/runs/{run['id']}/cancel")
        async with ann.follow(run["id"], Screen()) as stream:
            screen = await stream.to_the_end()
        model.release("summary")
    assert screen.done is not None
    assert screen.done["status"] == "stopped"
    costs = screen.data_of("cost_update")
    assert screen.done["usage"]["total_tokens"] > costs[-1]["usage"]["total_tokens"]
