"""One turn of many model calls goes on in a small context window, without a word lost that must stay."""

import json
from collections import Counter
from itertools import product
from typing import Any

import pytest
from api.server_process import ServerProcess

from luxx.providers.scripted import Call, Rule, Script, ScriptedProvider, Text, When
from scenarios.client import AsyncApiClient, Json
from scenarios.screen import Screen
from scenarios.scripts import ASKS_FOR_SUMMARY
from scenarios.test_tasks import execute, step

WINDOWS = {"eight": 8_000, "twenty": 20_000, "large": 128_000}
QUESTION = "Find the number of the pear tree that the gardener forgot, and be kind to her."
TOOLS = ["python_eval", "file_exists"]
SUMMARY = "## Goal and limits\nFind the number of the pear tree.\n\n## Done\nThe first trees were looked at."


def calls_of(count: int) -> list[Rule]:
    """A model that makes this many calls, each with a result of 2 kB, then answers."""
    first = Rule(
        name="look",
        when=When(user="pear", call=1),
        reply=[Call(name="file_exists", arguments={"path": "a.txt"})],
    )
    looks = [
        Rule(
            name=f"call {number}",
            when=When(user="pear", call=number),
            reply=[
                Text(text=f"Tree {number}. ", pieces=1),
                Call(name="python_eval", arguments={"expression": f"'tree {number} of the garden ' * 90"}),
            ],
        )
        for number in range(2, count + 1)
    ]
    summary = Rule(name="summary", when=When(user=ASKS_FOR_SUMMARY), reply=[Text(text=SUMMARY, pieces=1)])
    return [summary, first, *looks, Rule(name="answer", reply=[Text(text="It is tree 7.")])]


async def long_turn(ann: AsyncApiClient, model: ScriptedProvider, name: str) -> tuple[Screen, Json]:
    """A conversation of one turn. Returns what a person sees, and the stored answer."""
    body = {"provider_id": await ann.connect(model.url), "model": name, "max_tokens": 1000}
    body |= {"system_prompt": "You help a gardener."}
    conversation = (await ann.post("/conversations", body))["id"]
    async with ann.send_and_follow(conversation, QUESTION, tools=TOOLS) as stream:
        screen = await stream.to_the_end(timeout=300)
    return screen, (await ann.messages(conversation))[-1]


def passes(screen: Screen) -> list[list[Json]]:
    """The compressions before each model call."""
    found: list[list[Json]] = [[]]
    for frame in screen.frames:
        if frame.event == "context_compressed":
            found[-1].append(frame.data)
        elif frame.event == "cost_update" and frame.data["purpose"] == "answer":
            found.append([])
    return found


def contents(messages: list[Json], role: str) -> list[str]:
    return [str(message["content"]) for message in messages if message["role"] == role]


def check_requests(requests: list[Json], before: list[list[Json]], results: list[str]) -> None:
    """What holds for each request of a turn whose calls had these results."""
    previous: list[Json] = []
    for number, request in enumerate(requests):
        messages = request["messages"]
        assert contents(messages, "system") == ["You help a gardener."]
        assert messages[1] == {"role": "user", "content": QUESTION}
        assert request["tools"] == requests[0]["tools"]
        sent = contents(messages, "tool")
        assert sent[-2:] == results[max(0, number - 2) : number], "the last two completions are whole"
        assert number == 0 or sent[0] == results[0], "so is the result of a protected tool"
        asked = [call["id"] for one in messages for call in one.get("tool_calls", [])]
        assert asked == [one["tool_call_id"] for one in messages if one["role"] == "tool"]
        if not before[number]:
            assert messages[: len(previous)] == previous, "a prompt extends the one before"
        previous = messages


async def check_long_turn(ann: AsyncApiClient, calls: int, name: str, *, cached: float) -> list[Json]:
    """A turn of so many calls ends with an answer, and this share of its prompts was cached at least. Returns
    the compressions."""
    window = WINDOWS[name]
    async with ScriptedProvider(Script(rules=calls_of(calls), window=window, caches=True)) as model:
        screen, answer = await long_turn(ann, model, name)
        received = [request for request in model.requests if request.rule != "summary"]
        assert len(model.requests) - len(received) <= 15, "not more than 15 summaries"
    assert screen.done is not None
    assert (screen.done["status"], screen.done["finish"]) == ("completed", "stop"), screen.frames[-2:]
    assert [request.rule for request in received][-1] == "answer"
    assert "overflow" not in {request.rule for request in received}
    results = [step["content"] for step in answer["steps"] if step["type"] == "tool_result"]
    assert len(results) == calls
    assert all(len(result) > 1_500 for result in results[1:]), "what is stored is whole"
    before = passes(screen)
    check_requests([request.json for request in received], before, results)
    found = [event for events in before for event in events]
    assert all(len(events) <= 1 for events in before), "never two passes without a call"
    assert found
    for event in found:
        check_event(event, window)
    usage: Any = screen.done["usage"]
    assert usage["cached_tokens"] >= cached * usage["prompt_tokens"], usage
    return found


def check_event(event: Json, window: int) -> None:
    """What a compression says, in the words of today and in those of the contract."""
    assert event["was_compressed"] is True
    assert event["compression_strategy"] in ("clear", "summarize")
    assert (event["window"], event["overflow"]) == (window, False)
    assert event["token_budget"] == window - 1000
    assert event["tokens_before"] > 0.8 * event["token_budget"] >= event["tokens_after"]
    assert event["estimated_tokens"] == event["tokens_after"] <= 0.6 * event["token_budget"]
    assert event["budget_utilization_pct"] == round(100 * event["tokens_after"] / event["token_budget"], 1)
    assert event["original_message_count"] >= event["final_message_count"] > 0
    has_summary = event["compression_strategy"] == "summarize"
    assert event["results"] > 0 or has_summary
    assert (event["summarized_message_count"] > 0) == has_summary
    assert event.get("summary") == (SUMMARY if has_summary else None)


async def test_60_calls_in_a_window_of_8000_tokens_end_with_an_answer(long_server: ServerProcess) -> None:
    async with AsyncApiClient(long_server.url) as ann:
        found = await check_long_turn(ann, 60, "eight", cached=0.65)
    strategies = {event["compression_strategy"] for event in found}
    assert strategies == {"clear", "summarize"}, json.dumps(found)


@pytest.mark.heavy
@pytest.mark.parametrize(("name", "cached"), [("twenty", 0.8), ("large", 0.95)])
async def test_300_calls_in_a_larger_window_end_with_an_answer(
    long_server: ServerProcess, name: str, cached: float
) -> None:
    async with AsyncApiClient(long_server.url) as ann:
        await check_long_turn(ann, 300, name, cached=cached)


@pytest.mark.heavy
async def test_300_calls_in_a_window_of_8000_tokens_end_with_the_goal_in_the_last_request(
    long_server: ServerProcess,
) -> None:
    async with (
        ScriptedProvider(Script(rules=calls_of(300), window=WINDOWS["eight"])) as model,
        AsyncApiClient(long_server.url) as ann,
    ):
        screen, answer = await long_turn(ann, model, "eight")
        assert screen.done is not None
        assert (screen.done["status"], screen.done["finish"]) == ("completed", "stop"), screen.frames[-2:]
        assert sum(step["type"] == "tool_result" for step in answer["steps"]) == 300
        assert "overflow" not in {request.rule for request in model.requests}
        last = model.requests[-1].json["messages"]
        assert last[1] == {"role": "user", "content": QUESTION}
        assert len(contents(last, "tool")) < 30


async def test_a_task_of_20_steps_in_a_window_of_8000_tokens_ends_with_the_goal_in_the_last_request(
    long_server: ServerProcess,
) -> None:
    """Each step reads the result of the one before, and its own calls alone outgrow the window."""
    names = [f"s{number}" for number in range(20)]
    looks = [Call(name="python_eval", arguments={"expression": f"'tree {n} ' * 300"}) for n in range(10)]
    rules = [Rule(name="summary", when=When(user=ASKS_FOR_SUMMARY), reply=[Text(text=SUMMARY, pieces=1)])]
    for name, call in product(names, range(2)):
        when = When(user=rf"Your step \[{name}\]", call=call + 1)
        rules.append(Rule(when=when, reply=looks[5 * call : 5 * call + 5]))
    seen = " ".join(f"There is the tree {number}." for number in range(150))
    rules += [
        Rule(name="result", when=When(system="Write its final result"), reply=[Text(text="Seven trees.")]),
        Rule(name="after the summary", reply=[Text(text=seen, pieces=1)]),
    ]
    steps = [step(name, *names[:number][-1:]) for number, name in enumerate(names)]
    async with (
        ScriptedProvider(Script(rules=rules, window=WINDOWS["eight"])) as model,
        AsyncApiClient(long_server.url) as ann,
    ):
        agent = {
            "name": "Anna",
            "provider_id": await ann.connect(model.url),
            "model": "eight",
            "tools": TOOLS,
        }
        body = {"agent_id": (await ann.post("/agents", agent))["id"], "goal": QUESTION, "steps": steps}
        task_id = (await ann.post("/tasks", {"name": "Trees", **body}))["id"]
        frames = await execute(ann, task_id)
        assert (frames[-1].event, frames[-1].data["status"]) == ("task_complete", "completed"), frames[-2:]
        assert (await ann.get(f"/tasks/{task_id}"))["result"] == "Seven trees."
        assert any(frame.event == "context_compressed" for frame in frames)
        used = Counter(request.rule for request in model.requests)
        assert (used["summary"], used["after the summary"], used["result"]) == (20, 20, 1)
        assert all(QUESTION in str(request.json["messages"]) for request in model.requests)
        after = [str(each.json["messages"]) for each in model.requests if each.rule == "after the summary"]
        assert all(f"Your step [{name}]" in sent for name, sent in zip(names, after, strict=True))


@pytest.mark.parametrize("earlier", [[QUESTION], []], ids=["after another", "as the first"])
async def test_the_newest_question_is_sent_where_hardly_anything_else_fits(
    long_server: ServerProcess, earlier: list[str]
) -> None:
    """The result of a protected tool is left out before it."""
    question = " ".join(f"Is this the pear tree {number}?" for number in range(195))
    looked = Text(text=" ".join(f"this is tree {number}" for number in range(230)), pieces=1)
    trees = [f"'tree {number} of the garden ' * 90" for number in range(8)]
    rules = [
        *(Rule(reply=[Text(text="I begin.")], times=1) for _ in earlier),
        Rule(reply=[looked, Call(name="file_exists", arguments={"path": "a.txt"})], times=1),
        Rule(reply=[Call(name="python_eval", arguments={"expression": tree}) for tree in trees], times=1),
        Rule(reply=[Text(text="It is tree 7.")]),
    ]
    async with (
        ScriptedProvider(Script(rules=rules, window=WINDOWS["eight"])) as model,
        AsyncApiClient(long_server.url) as ann,
    ):
        body = {"provider_id": await ann.connect(model.url), "model": "eight", "max_tokens": 1000}
        conversation = (await ann.post("/conversations", body))["id"]
        for text in (*earlier, question):
            async with ann.send_and_follow(conversation, text, tools=TOOLS) as stream:
                screen = await stream.to_the_end()
        assert screen.text.endswith("It is tree 7."), screen.frames[-2:]
        assert screen.data_of("context_compressed")[-1]["overflow"]
        assert contents(model.requests[-1].json["messages"], "user") == [*earlier, question]


async def test_the_next_prompt_is_counted_as_its_provider_counts_it(long_server: ServerProcess) -> None:
    """In texts of several kinds, from the third call on."""
    kinds = [
        "The gardener waters the old pear tree {} behind the wall every evening. ",
        "老园丁每天傍晚给墙后的第{}棵梨树浇水，并记下它的叶子。",
        '{{"id": {0}, "at": "2026-11-{0:02}", "is_wet": null, "leaves": [{0}, 3.5]}},',
        "def water_{}(tree: Tree) -> int:\n    return sum(leaf.size for leaf in tree.leaves if leaf)\n\n",
        "Der Gärtner gießt abends den Birnbaum {}; 🌳🌧️ Садовник поливает грушу. ",
    ]
    texts = ["".join(kind.format(number) for number in range(40)) for kind in kinds]
    rules = [Rule(when=When(call=at + 1), reply=[Text(text=texts[at % 5], pieces=1)]) for at in range(20)]
    async with (
        ScriptedProvider(Script(rules=rules, window=WINDOWS["large"])) as model,
        AsyncApiClient(long_server.url) as ann,
    ):
        body = {"provider_id": await ann.connect(model.url), "model": "large", "max_tokens": 1000}
        conversation = (await ann.post("/conversations", body))["id"]
        errors: list[float] = []
        estimated = 0
        for number in range(20):
            async with ann.send_and_follow(conversation, "So?") as stream:
                screen = await stream.to_the_end()
            assert screen.done is not None
            if number > 2:
                errors.append(estimated / screen.done["usage"]["prompt_tokens"] - 1)
            estimated = (await ann.get(f"/conversations/{conversation}/context"))["estimated_tokens"]
    assert sum(map(abs, errors)) / len(errors) < 0.02, errors
    assert sorted(map(abs, errors))[-1] < 0.05, errors
