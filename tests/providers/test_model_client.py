"""Retries: only if they may help, only before the first delta, and a bounded number of times."""

import pytest
from provider_calls import ASK, KEY, ask_scripted, calling, target_of

from luxx.errors import (
    InvalidInput,
    MalformedStream,
    ProviderFailed,
    ProviderRefused,
    RateLimited,
    StreamStalled,
)
from luxx.providers.client import MAX_COMPLETION_CHARACTERS, Completion
from luxx.providers.scripted import (
    Call,
    Counts,
    Fail,
    Faults,
    Finish,
    Rule,
    Script,
    ScriptedProvider,
    Text,
    Thinking,
    When,
)
from luxx.wire.turn import FinishReason, Usage

ANSWER = Rule(reply=[Text(text="at last")])


def failing_rule(status: int, times: int = 1, **headers: str) -> Rule:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Rule(status=status, times=times, headers=named)


async def test_failed_attempts_are_retried_and_reported() -> None:
    called = await ask_scripted(failing_rule(500, times=2), ANSWER, retries=3)

    assert called.error is None
    assert called.text == "at last"
    assert [retry.attempt for retry in called.retries] == [2, 3]
    assert [retry.delay_ms for retry in called.retries] == [round(wait * 1000) for wait in called.waits]
    assert "scripted failure" in called.retries[0].reason


async def test_waits_grow_and_are_jittered() -> None:
    low = (await ask_scripted(failing_rule(500, times=4), retries=3, rand=lambda: 0.0)).waits
    high = (await ask_scripted(failing_rule(500, times=4), retries=3, rand=lambda: 1.0)).waits

    assert low == [0.25, 0.5, 1.0]
    assert high == [0.5, 1.0, 2.0]


async def test_retry_after_is_waited_for_up_to_a_minute() -> None:
    called = await ask_scripted(failing_rule(429, retry_after="7"), ANSWER, retries=3)
    assert called.text == "at last"
    assert 7 <= called.waits[0] < 8

    too_long = await ask_scripted(failing_rule(429, retry_after="61"), retries=3)
    assert isinstance(too_long.error, RateLimited)
    assert (too_long.waits, too_long.error.retry_after) == ([], 61)


async def test_the_sum_of_the_waits_is_bounded() -> None:
    called = await ask_scripted(failing_rule(429, times=9, retry_after="50"), retries=10)

    assert isinstance(called.error, RateLimited)
    assert sum(called.waits) <= 180


async def test_the_last_attempt_raises_its_error() -> None:
    called = await ask_scripted(failing_rule(503, times=3), retries=2)

    assert isinstance(called.error, ProviderFailed)
    assert len(called.retries) == 2


async def test_refused_request_is_not_retried() -> None:
    called = await ask_scripted(failing_rule(401), retries=3)

    assert isinstance(called.error, ProviderRefused)
    assert called.retries == []


async def test_error_in_the_stream_before_the_first_delta_is_retried() -> None:
    overloaded = Rule(reply=[Fail(message="overloaded", kind="overloaded_error")], times=1)

    called = await ask_scripted(overloaded, ANSWER, retries=1)

    assert called.text == "at last"


async def test_error_after_the_first_delta_is_not_retried() -> None:
    broken = Rule(reply=[Text(text="half"), Fail(message="overloaded")])

    called = await ask_scripted(broken, retries=3)

    assert isinstance(called.error, ProviderFailed)
    assert called.text == "half"
    assert called.retries == []


async def test_stall_and_drop_before_the_first_delta_are_retried() -> None:
    stalled = Rule(reply=[Text(text="x")], times=1, faults=Faults(stall_at=0))
    dropped = Rule(reply=[Text(text="x")], times=1, faults=Faults(drop_at=0))

    called = await ask_scripted(stalled, dropped, ANSWER, retries=2, idle_timeout_seconds=0.2)

    assert called.text == "at last"
    assert "did not start" in called.retries[0].reason
    assert "closed the connection" in called.retries[1].reason


async def test_attempt_that_never_starts_has_its_own_error() -> None:
    overloaded = Rule(reply=[Fail(message="overloaded", kind="overloaded_error")], times=1)
    silent = Rule(reply=[Text(text="x")], times=1, faults=Faults(never_start=True))

    called = await ask_scripted(overloaded, silent, ANSWER, retries=2, idle_timeout_seconds=0.2)

    assert called.text == "at last"
    assert "overloaded" in called.retries[0].reason
    assert "did not start" in called.retries[1].reason


async def test_key_is_not_in_the_reason_of_a_retry() -> None:
    rule = Rule(reply=[Fail(message=f"key {KEY} overloaded")], times=1)

    called = await ask_scripted(rule, ANSWER, retries=1)

    assert KEY not in called.retries[0].reason


@pytest.mark.parametrize("split", [0, 1, 7])
async def test_stream_gives_all_kinds_of_deltas(split: int) -> None:
    assert (await _complete(split)) == Completion(
        text="The sum is 2.",
        thinking="I add.",
        tool_calls=(await _complete(0)).tool_calls,
        usage=Usage(
            prompt_tokens=9, completion_tokens=5, total_tokens=14, reasoning_tokens=2, cached_tokens=3
        ),
        finish=FinishReason.TOOL_CALLS,
    )


async def _complete(split: int) -> Completion:
    reply = [
        Thinking(text="I add."),
        Text(text="The sum is 2."),
        Call(name="add", arguments={"x": 1}),
        Call(name="say", arguments="not json"),
        Counts(prompt=9, completion=5, reasoning=2, cached=3),
    ]
    rule = Rule(reply=reply, faults=Faults(split=split))
    async with ScriptedProvider(Script(rules=[rule])) as server, calling() as caller:
        completion = await caller.client.complete(ASK, target_of(server.url))
    assert [(call.name, call.arguments) for call in completion.tool_calls] == [
        ("add", '{"x":1}'),
        ("say", "not json"),
    ]
    return completion


async def test_test_call_is_not_retried() -> None:
    async with ScriptedProvider(Script(rules=[failing_rule(500)])) as server, calling(retries=3) as caller:
        with pytest.raises(ProviderFailed):
            await caller.client.complete(ASK, target_of(server.url))
        assert len(server.requests) == 1


async def test_test_call_refuses_an_answer_without_an_end() -> None:
    script = Script(rules=[Rule(reply=[Text(text="x" * (MAX_COMPLETION_CHARACTERS + 1))])])
    async with ScriptedProvider(script) as server, calling() as caller:
        with pytest.raises(MalformedStream, match="longer"):
            await caller.client.complete(ASK, target_of(server.url))


async def test_models_are_listed() -> None:
    async with ScriptedProvider(Script(rules=[], models=["a", "b"])) as server, calling() as caller:
        result = await caller.client.list_models(target_of(server.url))
    assert result == ["a", "b"]


async def test_refused_list_of_models_is_reported() -> None:

    with pytest.raises(ProviderRefused):
        async with ScriptedProvider(Script(rules=[], models_status=401)) as server, calling() as caller:
            await caller.client.list_models(target_of(server.url))


async def test_provider_of_no_known_type_is_refused_before_any_request() -> None:
    async with ScriptedProvider(Script(rules=[])) as server, calling() as caller:
        with pytest.raises(InvalidInput):
            await caller.call(target_of(server.url, "nonsense"))
        assert server.requests == []


async def test_length_finish_is_reported() -> None:
    rule = Rule(reply=[Text(text="cut"), Finish(reason="length")], when=When(model="m"))

    async with ScriptedProvider(Script(rules=[rule])) as server, calling() as caller:
        result = (await caller.client.complete(ASK, target_of(server.url))).finish
    assert result is FinishReason.LENGTH


async def test_stall_is_an_error_with_the_time_in_it() -> None:
    rule = Rule(reply=[Text(text="x")], faults=Faults(never_start=True))

    error = (await ask_scripted(rule, idle_timeout_seconds=0.25)).error

    assert isinstance(error, StreamStalled)
    assert "0.25 s" in error.message
