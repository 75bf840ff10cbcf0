"""The executor that runs every call: refusals, arguments, time limits, parallel calls, cache, history."""

import asyncio
import queue
import re
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest

from luxx.errors import ToolFailed
from luxx.infra.config.schema import ToolsConfig
from luxx.runs.turn.turn_log import executed_entry, full_output_row
from luxx.tools.builtin import builtin_tools
from luxx.tools.builtin.run import run_tools
from luxx.tools.core import (
    ApprovalReason,
    Approved,
    CommandPermission,
    NeedsAnswer,
    StoredOutput,
    ToolContext,
    ToolDefinition,
    ToolRegistry,
    ToolResult,
)
from luxx.tools.executor import ToolExecutor
from luxx.tools.factory import tool
from luxx.tools.history import CallStatus, Executed
from luxx.wire.delegation import Delegation, SubagentEnd, TaskOutcome
from luxx.wire.run import Question, QuestionKind
from luxx.wire.tool import PlacedRule, Risk, RuleAction, RuleScope
from luxx.wire.turn import Step, StepType

SCHEMA: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": True}
WAIT = 10.0
# Tools of the web have no minimum level, and no test uses the web.
BUILTIN = [tool.name for tool in builtin_tools() if tool.category != "web"]
ARGUMENTS: dict[str, dict[str, Any]] = {
    "python_eval": {"expression": "1"},
    "file_read": {"path": "a.txt"},
    "file_write": {"path": "b.txt", "content": "b"},
    "file_list": {},
    "file_exists": {"path": "a.txt"},
    "file_grep": {"pattern": "a"},
    "file_glob": {"pattern": "*"},
    "file_edit": {"path": "a.txt", "old_string": "a", "new_string": "b"},
    "file_multi_edit": {"path": "a.txt", "edits": [{"old_string": "a", "new_string": "b"}]},
    "delegate": {"task": "a"},
    "result_read": {"ref": "call-0"},
    "todo_write": {"todos": [{"title": "a"}]},
    "ui_command": {"command": "refresh", "payload": {"target": "tasks"}},
    "process_data": {"data": [1], "operation": "minify"},
    "ask_clarification": {"question_type": "scope", "question": "Which?", "options": []},
    "ask_decision": {"decision_type": "branch", "context": "Which way?", "options": [{"label": "left"}]},
}


async def answer_left(question: dict[str, Any]) -> dict[str, Any]:
    return {"answer": "left"}


async def delegate_nothing(delegation: Delegation) -> list[TaskOutcome]:
    return [
        TaskOutcome(
            assignment=one,
            end=SubagentEnd(
                run_id="run-0",
                status="completed",
                stop_reason="finished",
                answer=one.task,
                error=None,
                tool_calls=0,
                is_tainted=False,
            ),
        )
        for one in delegation.assignments
    ]


async def read_stored_output(ref: str, offset: int, limit: int) -> StoredOutput:
    return StoredOutput(output="abc", total=3)


def define(name: str, handler: Callable[..., Any], **more: Any) -> ToolDefinition:
    return ToolDefinition(name=name, description="d", parameters=SCHEMA, handler=handler, **more)


def executor_of(
    *tools: ToolDefinition, clock: Callable[[], float] | None = None, **config: Any
) -> ToolExecutor:
    more = {"clock": clock} if clock else {}
    return ToolExecutor(ToolRegistry(tools), ToolsConfig(**config), **more)


@pytest.mark.parametrize("level", list(CommandPermission))
@pytest.mark.parametrize("name", BUILTIN)
async def test_every_tool_runs_at_its_level_and_is_refused_below_it(
    name: str, level: CommandPermission, builtin_executor: ToolExecutor, context_of: Any, call: Any
) -> None:
    context = context_of(
        level,
        ask=answer_left,
        read_result=read_stored_output,
        delegate=delegate_nothing,
        write_todos=lambda items: None,
        show=lambda command: None,
    )
    (context.permissions.workspace / "a.txt").write_text("a")
    needed = builtin_executor.registry.get(name).required_permission  # type: ignore[union-attr]
    executed = await builtin_executor.execute(call(name, ARGUMENTS[name]), context)
    if needed <= level:
        assert executed.result.success, executed.result.error
    else:
        assert executed.status == CallStatus.DENIED
        assert executed.result.error == (
            f"{name} needs permission level {int(needed)} ({needed.name}); "
            f"yours is {int(level)} ({level.name})"
        )
        assert not (context.permissions.workspace / "b.txt").exists()
        assert (context.permissions.workspace / "a.txt").read_text() == "a"


async def test_a_denied_call_does_not_reveal_the_schema_of_the_tool(context_of: Any, call: Any) -> None:
    executor = executor_of(*builtin_tools())
    executed = await executor.execute(call("python_eval", "{bad"), context_of(1))
    assert executed.status == CallStatus.DENIED


async def test_an_unknown_tool_is_answered_with_similar_names_available_to_the_caller(
    context_of: Any, call: Any
) -> None:
    executor = executor_of(*builtin_tools())
    executed = await executor.execute(call("file_reed"), context_of())
    assert executed.status == CallStatus.UNKNOWN
    assert "did you mean file_read" in str(executed.result.error)
    hidden = await executor.execute(call("python_evel"), context_of(1))
    assert "python_eval" not in str(hidden.result.error)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"path": ', "not valid JSON"),
        ('{"path": "a"} x', "trailing characters (byte"),
        ("[1]", "must be a JSON object, not list"),
        ("null", "must be a JSON object"),
        ("[" * 50_000, "not valid JSON"),
        ('{"path": "\ud800"}', "not valid JSON"),
        ('{"path": "a", "path": "b"}', "$.path appears twice"),
        ('{"path": "a", "\\u0070ath": "b"}', "$.path appears twice"),
        ("", 'the argument "path" is missing'),
        ("{}", 'the argument "path" is missing'),
        ('{"path": 1}', "arguments.path: 1 is not of type 'string'"),
        ('{"path": "a", "ofset": 1}', 'no argument "ofset"; did you mean "offset"?'),
        ('{"path": "a", "offset": -1}', "arguments.offset: -1 is less than the minimum of 0"),
        ('{"path": "a", "offset": 1.5}', "arguments.offset"),
    ],
)
async def test_arguments_that_do_not_fit_are_named_and_the_tool_is_not_run(
    text: str, words: str, builtin_executor: ToolExecutor, context_of: Any, call: Any
) -> None:
    executed = await builtin_executor.execute(call("file_read", text), context_of())
    assert executed.status == CallStatus.INVALID
    assert words in str(executed.result.error)
    assert executed.problems


async def test_all_problems_are_named_at_once_but_never_without_end(context_of: Any, call: Any) -> None:
    executed = await executor_of(*builtin_tools()).execute(
        call("file_read", {f"x{n}": "y" * 10_000 for n in range(1000)}), context_of()
    )
    assert len(executed.problems) > 2
    assert len(msgspec.json.encode(executed)) < 300_000


async def test_a_schemas_pattern_runs_in_linear_time(context_of: Any, call: Any) -> None:
    bomb = tool(name="t", description="d", parameters={"a": {"type": "string", "pattern": "^(a+)+$"}})
    executor = executor_of(bomb(lambda arguments: 1).definition)
    executed = await executor.execute(call("t", {"a": "a" * 50_000 + "!"}), context_of())
    assert executed.status == CallStatus.INVALID


async def test_synchronous_tools_that_wait_for_each_other_all_finish_and_keep_their_order(
    context_of: Any, call: Any
) -> None:
    barrier = threading.Barrier(4)
    meet = define("meet", lambda arguments, context: barrier.wait(WAIT) * 0 + arguments["n"])
    calls = [call("meet", {"n": n}, call_id=f"c{n}") for n in range(4)]
    executions = await executor_of(meet).process_tool_calls_parallel(calls, context_of())
    assert [item.result.data for item in executions] == [0, 1, 2, 3]
    assert [item.call_id for item in executions] == ["c0", "c1", "c2", "c3"]


async def test_asynchronous_tools_that_wait_for_each_other_all_finish(context_of: Any, call: Any) -> None:
    arrived: list[int] = []
    everyone = asyncio.Event()

    async def meet(arguments: dict[str, Any], context: ToolContext) -> int:
        arrived.append(arguments["n"])
        if len(arrived) == 20:
            everyone.set()
        await asyncio.wait_for(everyone.wait(), WAIT)
        return int(arguments["n"])

    calls = [call("meet", {"n": n}) for n in range(20)]
    result = await executor_of(define("meet", meet)).process_tool_calls_parallel(calls, context_of())
    assert [item.result.data for item in result] == list(range(20))


async def test_sequential_calls_run_one_after_the_other(context_of: Any, call: Any) -> None:
    events: list[str] = []

    async def work(arguments: dict[str, Any], context: ToolContext) -> None:
        events.append(f"start {arguments['n']}")
        await asyncio.sleep(0)
        events.append(f"end {arguments['n']}")

    calls = [call("work", {"n": n}) for n in range(2)]
    await executor_of(define("work", work)).process_tool_calls(calls, context_of())
    assert events == ["start 0", "end 0", "start 1", "end 1"]


async def test_results_arrive_as_they_finish_with_their_index(context_of: Any, call: Any) -> None:
    gate = asyncio.Event()

    async def first(arguments: dict[str, Any], context: ToolContext) -> None:
        await asyncio.wait_for(gate.wait(), WAIT)

    async def second(arguments: dict[str, Any], context: ToolContext) -> None:
        return None

    executor = executor_of(define("first", first), define("second", second))
    indexes: list[int] = []
    async for batch in executor.as_finished([call("first"), call("second")], context_of()):
        indexes.extend(place for place, _ in batch)
        gate.set()
    assert indexes == [1, 0]


class NeedsPerson(BaseException):
    """A signal, like a question to the user."""


async def test_a_signal_passes_after_the_other_calls_have_ended(context_of: Any, call: Any) -> None:
    async def asks(arguments: dict[str, Any], context: ToolContext) -> None:
        raise NeedsPerson

    async def works(arguments: dict[str, Any], context: ToolContext) -> str:
        await asyncio.sleep(0)
        return "worked"

    executor = executor_of(define("asks", asks), define("works", works))
    results: list[Any] = []

    async def collect() -> None:
        async for batch in executor.as_finished([call("asks"), call("works")], context_of()):
            results.extend(item.result.data for _, item in batch)

    with pytest.raises(NeedsPerson):
        await collect()
    assert results == ["worked"]


async def test_a_signal_of_a_synchronous_tool_passes(context_of: Any, call: Any) -> None:
    def asks(arguments: dict[str, Any], context: ToolContext) -> None:
        raise NeedsPerson

    with pytest.raises(NeedsPerson):
        await executor_of(define("asks", asks)).execute(call("asks"), context_of())


@pytest.mark.parametrize("error", [SystemExit(1), StopIteration(), MemoryError(), RecursionError()])
async def test_any_exception_of_a_tool_is_a_failed_call(
    error: BaseException, context_of: Any, call: Any
) -> None:
    def sync(arguments: dict[str, Any], context: ToolContext) -> None:
        raise error

    async def not_sync(arguments: dict[str, Any], context: ToolContext) -> None:
        raise error

    for handler in (sync, not_sync):
        executed = await executor_of(define("t", handler)).execute(call("t"), context_of())
        assert executed.status == CallStatus.FAILED
        assert type(error).__name__ in str(executed.result.error) or isinstance(error, StopIteration)


async def test_a_synchronous_tool_that_times_out_fails_and_leaves_threads_for_others(
    context_of: Any, call: Any
) -> None:
    release = threading.Event()
    results: queue.Queue[bool] = queue.Queue()

    def hang(arguments: dict[str, Any], context: ToolContext) -> None:
        release.wait(WAIT)
        results.put(context.actions.cancelled())

    quick = define("quick", lambda arguments, context: "ok")
    executor = executor_of(define("hang", hang, timeout=0.05), quick, max_workers=2)
    hung = await executor.process_tool_calls_parallel([call("hang")] * 4, context_of())
    assert [item.status for item in hung] == [CallStatus.TIMEOUT] * 4
    assert "did not finish within 0.05 seconds" in str(hung[0].result.error)
    after = await asyncio.wait_for(
        executor.process_tool_calls_parallel([call("quick")] * 4, context_of()), WAIT
    )
    assert [item.result.data for item in after] == ["ok"] * 4
    release.set()
    assert [results.get(timeout=WAIT) for _ in range(4)] == [True] * 4


async def test_a_user_with_too_many_overrun_tools_is_refused_and_others_are_not(
    context_of: Any, call: Any
) -> None:
    release = threading.Event()

    hang = define("hang", lambda arguments, context: release.wait(WAIT), timeout=0.02)
    quick = define("quick", lambda arguments, context: "ok")
    executor = executor_of(hang, quick, max_workers=1)
    await executor.process_tool_calls_parallel([call("hang")] * 4, context_of(user_id=1))
    refused = await executor.execute(call("quick"), context_of(user_id=1))
    assert "too many of your earlier calls" in str(refused.result.error)
    other = await executor.execute(call("quick"), context_of(user_id=2))
    assert other.result.data == "ok"
    release.set()


async def test_one_users_slow_tools_do_not_delay_another_user(context_of: Any, call: Any) -> None:
    release = threading.Event()

    slow = define("slow", lambda arguments, context: release.wait(WAIT))
    quick = define("quick", lambda arguments, context: "ok")
    executor = executor_of(slow, quick, max_workers=2)
    busy = asyncio.gather(*(executor.execute(call("slow"), context_of(user_id=1)) for _ in range(8)))
    executed = await asyncio.wait_for(executor.execute(call("quick"), context_of(user_id=2)), WAIT)
    assert executed.result.data == "ok"
    release.set()
    assert all(item.result.success for item in await busy)


async def test_no_more_synchronous_tools_of_a_user_run_at_once_than_configured(
    context_of: Any, call: Any
) -> None:
    lock = threading.Lock()
    three = threading.Barrier(3)
    running: list[int] = [0]
    most: list[int] = []

    def work(arguments: dict[str, Any], context: ToolContext) -> None:
        with lock:
            running[0] += 1
            most.append(running[0])
        three.wait(WAIT)
        with lock:
            running[0] -= 1

    executor = executor_of(define("work", work), max_workers=3)
    executions = await executor.process_tool_calls_parallel([call("work")] * 21, context_of())
    assert all(item.result.success for item in executions)
    assert max(most) == 3


async def test_an_asynchronous_tool_that_outlives_its_time_is_cancelled(context_of: Any, call: Any) -> None:
    cleaned: list[bool] = []

    async def hang(arguments: dict[str, Any], context: ToolContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append(True)

    executor = executor_of(define("hang", hang), timeout_seconds=0.05)
    executed = await executor.execute(call("hang"), context_of())
    assert executed.status == CallStatus.TIMEOUT
    assert cleaned == [True]


async def test_a_timeout_error_raised_by_a_tool_is_an_ordinary_failure(context_of: Any, call: Any) -> None:
    async def gives_up(arguments: dict[str, Any], context: ToolContext) -> None:
        raise TimeoutError("upstream was slow")

    executed = await executor_of(define("t", gives_up)).execute(call("t"), context_of())
    assert (executed.status, executed.result.error) == (CallStatus.FAILED, "TimeoutError: upstream was slow")


@pytest.mark.parametrize("is_async", [True, False])
async def test_cancelling_a_call_passes_stops_the_tool_and_is_recorded(
    is_async: bool, context_of: Any, call: Any
) -> None:
    stopped = threading.Event()

    started = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def hang(arguments: dict[str, Any], context: ToolContext) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    def poll(arguments: dict[str, Any], context: ToolContext) -> None:
        loop.call_soon_threadsafe(started.set)
        while not context.actions.cancelled():
            threading.Event().wait(0.001)
        stopped.set()

    executor = executor_of(define("hang", hang if is_async else poll))
    task = asyncio.create_task(executor.execute(call("hang"), context_of()))
    await asyncio.wait_for(started.wait(), WAIT)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert executor.get_history()[0].status == CallStatus.CANCELLED
    assert stopped.wait(WAIT)


async def test_an_early_end_of_the_iteration_cancels_what_still_runs(context_of: Any, call: Any) -> None:
    cancelled: list[bool] = []

    async def hang(arguments: dict[str, Any], context: ToolContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.append(True)

    async def quick(arguments: dict[str, Any], context: ToolContext) -> None:
        return None

    executor = executor_of(define("hang", hang), define("quick", quick))
    batches = executor.as_finished([call("hang"), call("quick")], context_of())
    await anext(batches)
    await batches.aclose()  # type: ignore[attr-defined]
    assert cancelled == [True]


class Counted:
    """A tool that counts its calls and returns the count."""

    def __init__(self, *, succeeds: bool = True) -> None:
        self.runs = 0
        self._succeeds = succeeds

    def __call__(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        self.runs += 1
        return ToolResult(success=self._succeeds, data={"run": self.runs}, error=None)


async def test_a_cached_result_serves_the_same_arguments_in_any_order_until_it_expires(
    context_of: Any, call: Any
) -> None:
    time = 0.0
    counted = Counted()
    executor = executor_of(define("t", counted, repeatable=True), clock=lambda: time, cache_ttl=300)

    first = await executor.execute(call("t", '{"a": 1, "b": {"c": 1, "d": 2}}'), context_of())
    again = await executor.execute(call("t", '{"b": {"d": 2, "c": 1}, "a": 1}'), context_of())
    assert (first.cached, again.cached, again.result.data) == (False, True, {"run": 1})
    again.result.data["run"] = "spoiled"
    time = 299.9
    cached = await executor.execute(call("t", '{"a": 1, "b": {"c": 1, "d": 2}}'), context_of())
    assert (cached.cached, cached.result.data) == (True, {"run": 1})
    time = 300.0
    assert not (await executor.execute(call("t", '{"a": 1, "b": {"c": 1, "d": 2}}'), context_of())).cached
    assert not (await executor.execute(call("t", '{"a": 2}'), context_of())).cached


async def test_a_user_never_gets_another_users_cached_answer_nor_clears_it(
    context_of: Any, call: Any
) -> None:
    counted = Counted()
    executor = executor_of(define("t", counted, repeatable=True))

    for user_id in (1, 2):
        executed = await executor.execute(call("t"), context_of(user_id=user_id))
        assert not executed.cached
    assert executor.clear_cache(1) == 1
    assert not (await executor.execute(call("t"), context_of(user_id=1))).cached
    assert (await executor.execute(call("t"), context_of(user_id=2))).cached
    assert executor.clear_cache() == 2
    assert counted.runs == 3


@pytest.mark.parametrize(
    ("settings", "config", "succeeds"),
    [
        ({"repeatable": False}, {}, True),
        ({"repeatable": True, "required_permission": CommandPermission.WRITE}, {}, True),
        ({"repeatable": True}, {"enable_cache": False}, True),
        ({"repeatable": True}, {"cache_ttl": 0}, True),
        ({"repeatable": True}, {}, False),
    ],
)
async def test_changing_failed_and_uncached_tools_are_not_cached(
    settings: dict[str, Any], config: dict[str, Any], succeeds: bool, context_of: Any, call: Any
) -> None:
    counted = Counted(succeeds=succeeds)
    executor = executor_of(define("t", counted, **settings), **config)
    for _ in range(2):
        assert not (await executor.execute(call("t"), context_of())).cached
    assert counted.runs == 2


async def test_a_cached_result_is_not_returned_below_the_level(context_of: Any, call: Any) -> None:
    executor = executor_of(define("t", Counted(), repeatable=True))
    await executor.execute(call("t"), context_of(1))
    executor.registry.remove("t")
    assert (await executor.execute(call("t"), context_of(1))).status == CallStatus.UNKNOWN


async def test_the_cache_stays_bounded(context_of: Any, call: Any) -> None:
    executor = executor_of(define("t", Counted(), repeatable=True))

    for n in range(1100):
        await executor.execute(call("t", {"n": n}), context_of())
    assert executor.clear_cache() == 1000


async def test_the_history_keeps_the_last_thousand_calls_latest_first_and_apart_by_user(
    context_of: Any, call: Any
) -> None:
    async def quick(arguments: dict[str, Any], context: ToolContext) -> None:
        return None

    executor = executor_of(define("t", quick))

    for n in range(1010):
        await executor.execute(call("t", call_id=f"c{n}"), context_of(user_id=1 + n % 2))
    assert len(executor.get_history(limit=5000)) == 1000
    assert [record.call_id for record in executor.get_history(2, 2)] == ["c1009", "c1007"]
    latest = executor.get_history(limit=1)[0]
    assert latest.status == CallStatus.DONE
    assert latest.started_at <= latest.ended_at


async def test_a_cut_result_comes_with_the_whole_output_and_a_call_that_reads_it(
    context_of: Any, call: Any
) -> None:
    text = "line\n" * 20_000
    tools = [define("big", lambda arguments, context: text)]
    executor = executor_of(*tools)
    executed = await executor.execute(call("big"), context_of(run_id="r"))
    assert executed.full_output == text
    assert "ask again for a smaller part" in executed.result.data
    executor.registry.register(define("result_read", lambda arguments, context: None))
    executed = await executor.execute(call("big", call_id="abc"), context_of(run_id="r"))
    assert 'result_read {"ref": "abc"' in executed.result.data


@pytest.mark.parametrize("call_id", ["a" * 200, "a" * 500, 'say "hi" \\ there', "é" * 300, "𝄞" * 200])
async def test_the_note_of_a_cut_result_names_the_reference_of_the_whole_output(
    call_id: str, context_of: Any, call: Any
) -> None:
    tools = [define("big", lambda arguments, context: "line\n" * 20_000), *run_tools()]
    executor = executor_of(*tools)
    asked: list[str] = []

    async def read_result(ref: str, offset: int, limit: int) -> StoredOutput:
        asked.append(ref)
        return StoredOutput(output="rest", total=4)

    context = context_of(run_id="r", read_result=read_result)
    executed = await executor.execute(call("big", call_id=call_id), context)
    named = re.search(
        r'Read on with result_read (\{"ref": ".*"), "offset": …, "limit": …\}\.\]$', executed.result.data
    )
    assert named is not None, executed.result.data[-1200:]
    arguments = msgspec.json.decode(named[1] + "}")
    read = await executor.execute(call("result_read", arguments), context)
    assert read.result.success, read.result.error
    assert asked == [full_output_row("r", call_id, "")["call_id"]]


async def test_the_note_of_a_cut_result_names_no_tool_that_may_not_be_called(
    context_of: Any, call: Any
) -> None:
    tools = [define("big", lambda arguments, context: "line\n" * 20_000), *run_tools()]
    executor = executor_of(*tools)
    rule = PlacedRule(tool="result_read", pattern="*", action=RuleAction.DENY, scope=RuleScope.USER, place=0)
    executed = await executor.execute(call("big"), context_of(run_id="r", rules=(rule,)))
    assert "result_read" not in executed.result.data
    assert "ask again for a smaller part" in executed.result.data


@pytest.mark.parametrize("given", [{"n": 1}, {"n": 2}], ids=["fails", "denied"])
def test_the_result_says_that_the_user_changed_the_call_however_it_ends(
    given: dict[str, Any], context_of: Any, call: Any
) -> None:
    def fail(arguments: dict[str, Any], context: ToolContext) -> None:
        raise ToolFailed("no")

    def as_said(approved: Approved, arguments: dict[str, Any]) -> Approved:
        return approved

    executor = executor_of(define("act", fail, subject="n"))
    rule = PlacedRule(tool="act", pattern="2", action=RuleAction.DENY, scope=RuleScope.USER, place=0)
    earlier_approval = partial(as_said, Approved(arguments=given, is_edited=True))
    context = context_of(earlier_approval=earlier_approval, rules=(rule,))
    executed = asyncio.run(executor.execute(call("act", {"n": 0}), context))
    step = executed_entry(Step(id="", index=0, type=StepType.TOOL_CALL), 1, executed).step
    assert (executed.status, step.outcome) == (
        (CallStatus.FAILED, "corrected") if given["n"] == 1 else (CallStatus.DENIED, "denied")
    )
    assert f"""changed the arguments {"before" if given["n"] == 1 else 'to {"n":2}'}""" in str(executed.note)


# --- people -----------------------------------------------------------------------------------------

QUESTION = Question(kind=QuestionKind.PERMISSION, prompt="May it?")


async def ask_the_person(tool: ToolDefinition, arguments: dict[str, Any], why: ApprovalReason) -> Approved:
    raise NeedsAnswer(QUESTION)


@pytest.mark.parametrize("ask_from", list(Risk))
@pytest.mark.parametrize("risk", list(Risk))
async def test_a_tool_asks_before_it_runs_from_the_configured_risk_on(
    risk: Risk, ask_from: Risk, context_of: Any, call: Any
) -> None:
    ran: list[str] = []
    executor = executor_of(
        define("act", lambda arguments, context: ran.append("act"), risk=risk), ask_from=ask_from
    )
    context = context_of(approve=ask_the_person)
    asks = list(Risk).index(risk) >= list(Risk).index(ask_from)
    assert (await executor.asks_first(call("act", {}), context)) is asks
    if asks:
        with pytest.raises(NeedsAnswer):
            await executor.execute(call("act", {}), context)
        assert ran == []
        assert executor.get_history() == []
    else:
        assert (await executor.execute(call("act", {}), context)).result.success


def test_arguments_changed_by_the_user_are_checked_like_those_of_the_model(
    context_of: Any, call: Any
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}
    act = ToolDefinition(
        name="act", description="d", parameters=schema, handler=lambda given, _: given["n"], risk=Risk.HIGH
    )

    def done_with(given: dict[str, Any]) -> Executed:
        async def approve(tool: ToolDefinition, arguments: dict[str, Any], why: ApprovalReason) -> Approved:
            return Approved(arguments=given, is_edited=True)

        context = context_of(approve=approve)
        return asyncio.run(executor_of(act).execute(call("act", {"n": 1}), context))

    assert done_with({"n": 2}).result.data == 2
    assert done_with({"n": "two"}).status == CallStatus.INVALID


async def test_a_tool_that_only_asks_needs_no_approval(context_of: Any, call: Any) -> None:
    executor = executor_of(*builtin_tools(), ask_from="low")
    context = context_of(approve=ask_the_person, ask=answer_left)
    executed = await executor.execute(call("ask_decision", ARGUMENTS["ask_decision"]), context)
    assert executed.result.data == {"answer": "left"}
