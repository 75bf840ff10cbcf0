"""Compositions: data that passes between members, branches, retries, and the permission check of
each call.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from luxx.errors import InvalidInput, ToolFailed
from luxx.infra.config.schema import ToolsConfig
from luxx.runs.turn.state import TurnState, count_calls
from luxx.runs.turn.turn_log import executed_entry
from luxx.tools.builtin.run import run_tools
from luxx.tools.compositions.chain import schema_of, traits_of
from luxx.tools.compositions.checking import check_composition
from luxx.tools.compositions.service import Compositions, StoredComposition, document_of
from luxx.tools.compositions.templates import fill_template, next_member_id, read_path, value_at
from luxx.tools.core import (
    Approved,
    ChainContext,
    CommandPermission,
    NeedsAnswer,
    Rejected,
    Risk,
    ToolCall,
    ToolContext,
    ToolDefinition,
    ToolRegistry,
    ToolResult,
)
from luxx.tools.executor import ToolExecutor
from luxx.tools.factory import tool
from luxx.tools.history import CallStatus, Executed
from luxx.tools.permissions.judge import DecidedBy, PermissionVerdict
from luxx.tools.permissions.rules import sort_rules
from luxx.tools.sources import CallerTools
from luxx.wire.run import Question, QuestionKind
from luxx.wire.tool import (
    Branch,
    Composition,
    MemberStatus,
    Parameter,
    ParameterType,
    PlacedRule,
    RuleAction,
    RuleScope,
)
from luxx.wire.turn import Step, StepType

Json = dict[str, Any]
Maker = Callable[..., ToolContext]


class CompositionHarness:
    """An executor whose tools record the calls they get."""

    def __init__(self) -> None:
        self.called: list[tuple[str, Any]] = []
        self.at_once = 0
        self.most_at_once = 0
        self.counted: list[tuple[str, bool]] = []
        self.gate, self.entered = asyncio.Event(), asyncio.Event()
        self.registry = ToolRegistry(self._tools())
        self.refused: list[str] = []

        async def on_refused(context: ToolContext, name: str, verdict: PermissionVerdict) -> None:
            self.refused.append(name)

        self.executor = ToolExecutor(self.registry, ToolsConfig(), on_refused=on_refused)

    def _tools(self) -> list[ToolDefinition]:
        @tool(name="say")
        def say(what: Any = None) -> Any:
            """Says it."""
            self.called.append(("say", what))
            return {"said": what, "items": [{"n": 1}, {"n": 2}]}

        @tool(name="fail")
        def fail(what: Any = None) -> Any:
            """Fails."""
            self.called.append(("fail", what))
            raise ToolFailed("it always does")

        @tool(name="risky", risk="high", required_permission=CommandPermission.EXECUTE)
        def risky(what: Any = None) -> Any:
            """Needs a person."""
            self.called.append(("risky", what))
            return f"risked {what}"

        @tool(name="strangers", brings_untrusted=True)
        def strangers() -> Any:
            """Strangers wrote it."""
            return {"text": "obey", "sources": [{"url": "https://a.example/", "title": "A"}]}

        @tool(name="outside", is_egress=True)
        def outside(what: Any = None) -> Any:
            """Goes outside."""
            self.called.append(("outside", what))
            return "sent"

        @tool(name="wait")
        async def wait(seconds: float = 0.0) -> Any:
            """Waits for two."""
            self.at_once += 1
            self.entered.set()
            self.most_at_once = max(self.at_once, self.most_at_once)
            if self.at_once == 2:
                self.gate.set()
            try:
                await self.gate.wait()
            finally:
                self.at_once -= 1
            return "waited"

        @tool(name="long")
        def long() -> str:
            """Long."""
            return "x" * 100_000

        @tool(name="asks")
        async def asks(arguments: Json, context: ToolContext) -> Any:
            """Asks."""
            return await context.actions.ask({"kind": "clarification", "prompt": "Who?"})

        made = (say, fail, risky, strangers, outside, wait, long, asks)
        return [each.definition for each in made]

    def tools_with(self, *compositions: Json) -> CallerTools:
        """The tools of a user who has these compositions."""
        return CallerTools([self.registry, self.own(*compositions)])

    def own(self, *compositions: Json) -> Compositions:
        stored: list[StoredComposition] = []
        for index, body in enumerate(compositions):
            whole = composition(**body)
            stored.append(
                StoredComposition(
                    id=str(index),
                    name=whole.name,
                    description=whole.description,
                    kind=whole.kind.value,
                    document=document_of(whole),
                    timeout_seconds=whole.timeout_seconds,
                )
            )

        async def on_ended(composition_id: str, is_success: bool) -> None:
            self.counted.append((composition_id, is_success))

        return Compositions(stored, self.registry, self.executor, on_ended)

    async def execute(self, body: Json, context: ToolContext, arguments: Json | None = None) -> Executed:
        caller = msgspec.structs.replace(context.caller, tools=self.tools_with(body))
        call_context = msgspec.structs.replace(context, caller=caller)
        call = ToolCall(
            call_id="call",
            name=self.own(body).list_all()[0].name,
            arguments=msgspec.json.encode(arguments or {}).decode(),
        )
        return await self.executor.execute(call, call_context)


def composition(*members: Json, **more: Any) -> Composition:
    given = {"name": "chain", "description": "A chain.", "members": list(members), **more}
    return msgspec.convert(given, Composition)


def run_composition(
    harness: CompositionHarness, context: ToolContext, body: Json, arguments: Json | None = None
) -> Executed:
    return asyncio.run(harness.execute(body, context, arguments))


@pytest.fixture
def harness() -> CompositionHarness:
    return CompositionHarness()


def member(member_id: str, name: str, arguments: Json | None = None, **more: Any) -> Json:
    return {"id": member_id, "tool": name, "arguments": arguments or {}, **more}


def source(source: str, path: str | None = None, **more: Any) -> Json:
    return {"$from": source, **({} if path is None else {"path": path}), **more}


# --- sequential -------------------------------------------------------------------------------------


def test_the_result_of_a_member_is_passed_to_the_next(harness: CompositionHarness, context_of: Maker) -> None:
    body = {
        "parameters": [{"name": "word"}, {"name": "more", "required": False}],
        "members": [
            member("first", "say", {"what": source("input", "word")}),
            member("second", "say", {"what": {"deep": [source("previous", "data.items[1].n"), "as is"]}}),
            member("third", "say", {"what": [source("first"), source("input", "more", default=7)]}),
        ],
    }
    executed = run_composition(harness, context_of(), body, {"word": "hello"})
    first = {"said": "hello", "items": [{"n": 1}, {"n": 2}]}
    assert [what for _, what in harness.called] == ["hello", {"deep": [2, "as is"]}, [first, 7]]
    assert executed.status == CallStatus.DONE
    assert executed.result.data["output"]["said"] == [first, 7]
    assert [(m["id"], m["tool"], m["status"]) for m in executed.result.data["members"]] == [
        ("first", "say", "done"),
        ("second", "say", "done"),
        ("third", "say", "done"),
    ]
    assert harness.counted == [("0", True)]
    records = [(record.name, record.call_id, record.status) for record in harness.executor.get_history()]
    assert records == [
        ("chain", "call", CallStatus.DONE),
        ("say", "call.third", CallStatus.DONE),
        ("say", "call.second", CallStatus.DONE),
        ("say", "call.first", CallStatus.DONE),
    ]


def test_a_chain_ends_at_the_first_member_that_fails(harness: CompositionHarness, context_of: Maker) -> None:
    body = {"members": [member("a", "fail"), member("b", "say")]}
    executed = run_composition(harness, context_of(), body)
    assert executed.result.error == "chain: its member a (fail) failed: it always does"
    assert [name for name, _ in harness.called] == ["fail"]
    assert harness.counted == [("0", False)]


def test_a_missing_value_fails_the_member_that_needs_it(
    harness: CompositionHarness, context_of: Maker
) -> None:
    body = {"members": [member("a", "say"), member("b", "say", {"what": source("previous", "data.no[3].x")})]}
    executed = run_composition(harness, context_of(), body)
    assert "say was not run: previous has no value at data.no[3].x" in (executed.result.error or "")
    assert len(harness.called) == 1


def test_fallbacks_are_tried_in_order_until_one_does_not_fail(
    harness: CompositionHarness, context_of: Maker
) -> None:
    others = [{"tool": "fail", "arguments": {"what": 2}}, {"tool": "say", "arguments": {"what": 3}}]
    body = {"members": [member("a", "gone", fallbacks=[*others, {"tool": "say", "arguments": {"what": 4}}])]}
    executed = run_composition(harness, context_of(), body)
    assert harness.called == [("fail", 2), ("say", 3)]
    assert executed.result.data["output"]["said"] == 3
    statuses = [(m["tool"], m["status"]) for m in executed.result.data["members"]]
    assert statuses == [("gone", "failed"), ("fail", "failed"), ("say", "done")]
    assert "there is no tool named 'gone'" in executed.result.data["members"][0]["error"]


def test_members_pass_on_results_that_a_model_would_get_cut(
    harness: CompositionHarness, context_of: Maker
) -> None:
    body = {"members": [member("a", "long"), member("b", "say", {"what": source("previous")})]}
    executed = run_composition(harness, context_of(run_id="r"), body)
    assert harness.called == [("say", "x" * 100_000)]
    assert len(msgspec.json.encode(executed.result)) < 52_000
    assert "x" * 100_000 in (executed.full_output or "")


def test_arguments_of_a_composition_are_checked_like_those_of_a_tool(
    harness: CompositionHarness, context_of: Maker
) -> None:
    body = {"parameters": [{"name": "n", "type": "integer"}], "members": [member("a", "say")]}
    for arguments in ({}, {"n": "1"}, {"n": 1, "m": 2}):
        assert run_composition(harness, context_of(), body, arguments).status == CallStatus.INVALID
    assert harness.called == []


# --- parallel and conditional -----------------------------------------------------------------------


def test_parallel_members_run_at_the_same_time_and_their_results_are_joined(
    harness: CompositionHarness, context_of: Maker
) -> None:
    members = [member("b", "wait"), member("a", "wait"), member("c", "fail")]
    executed = run_composition(harness, context_of(), {"kind": "parallel", "members": members})
    assert harness.most_at_once == 2
    assert executed.result.data["output"] == {"b": "waited", "a": "waited"}
    assert executed.result.error == "chain: its member c (fail) failed: it always does"
    good = run_composition(CompositionHarness(), context_of(), {"kind": "parallel", "members": members[:2]})
    assert good.result.success


@pytest.mark.parametrize(
    ("branches", "first", "then"),
    [
        ([], "say", ["b", "c"]),
        ([], "fail", None),
        ([{"go": "c"}], "say", ["c"]),
        ([{"go": "c"}], "fail", None),
        ([{"on": "failure", "go": "c"}], "fail", ["c"]),
        ([{"on": "any", "go": "end"}], "fail", []),
        ([{"go": "end"}], "say", []),
        ([{"path": "data.items[1].n", "compare": "greater", "value": 5, "go": "c"}], "say", ["b", "c"]),
        ([{"path": "data.items[1].n", "compare": "greater", "value": 1, "go": "c"}], "say", ["c"]),
        (
            [{"on": "failure", "path": "error", "compare": "contains", "value": "does", "go": "c"}],
            "fail",
            ["c"],
        ),
    ],
)
def test_a_result_decides_which_member_is_next(
    harness: CompositionHarness, context_of: Maker, branches: list[Json], first: str, then: list[str] | None
) -> None:
    members = [
        member("a", first, {"what": "a"}, then=branches),
        member("b", "say", {"what": "b"}),
        member("c", "say", {"what": "c"}),
    ]
    executed = run_composition(harness, context_of(), {"kind": "conditional", "members": members})
    assert executed.result.success == (then is not None)
    assert [what for _, what in harness.called] == ["a", *(then or [])]


@pytest.mark.parametrize(
    ("compare", "value", "holds"),
    [
        ("equal", 1, {"int": True, "float": True, "true": False, "text": False, "gone": False}),
        ("unequal", 1, {"int": False, "true": True, "gone": True}),
        ("less", 2, {"int": True, "text": False, "true": False, "gone": False, "none": False}),
        ("greater", "a", {"text": True, "int": False, "list": False}),
        ("contains", "b", {"text": True, "list": True, "object": True, "int": False, "gone": False}),
        ("contains", 1, {"text": False, "list": False, "object": False}),
        ("exists", None, {"none": True, "gone": False}),
    ],
)
def test_comparisons_never_raise(compare: str, value: Any, holds: dict[str, bool]) -> None:
    values = {"int": 1, "float": 1.0, "true": True, "text": "abc", "list": ["b", [1]], "object": {"b": 1},
             "none": None}  # fmt: skip
    for name, expected in holds.items():
        branch = msgspec.convert(
            {"path": f"data.{name}", "compare": compare, "value": value, "go": "x"}, Branch
        )
        assert (next_member_id([branch], ToolResult.ok(values)) == "x") == expected, name


# --- each member is checked -------------------------------------------------------------------------


def rule(text: str) -> PlacedRule:
    action, _, name = text.partition(" ")
    return PlacedRule(tool=name, pattern="*", action=RuleAction(action), scope=RuleScope.USER, place=0)


def test_level_and_risk_are_those_of_the_highest_member_and_are_enforced(
    harness: CompositionHarness, context_of: Maker
) -> None:
    body = {"members": [member("a", "say"), member("b", "say", fallbacks=[{"tool": "risky"}])]}
    definition = harness.own(body).list_all()[0]
    assert (definition.required_permission, definition.risk) == (CommandPermission.EXECUTE, Risk.HIGH)
    executed = run_composition(harness, context_of(level=2), body)
    assert (executed.status, harness.called) == (CallStatus.DENIED, [])
    verdict = harness.executor.judge.verdict(definition, {}, context_of())
    assert (verdict.action, verdict.decided_by) == (RuleAction.ALLOW, DecidedBy.MEMBERS)


def test_rules_for_a_member_and_for_the_composition_are_enforced(
    harness: CompositionHarness, context_of: Maker
) -> None:
    body = {"members": [member("a", "say", fallbacks=[{"tool": "outside"}])]}
    executed = run_composition(harness, context_of(rules=sort_rules([rule("deny say")])), body)
    assert [m["status"] for m in executed.result.data["members"]] == ["denied", "done"]
    assert harness.refused == ["say"]
    assert run_composition(harness, context_of(rules=(rule("deny chain"),)), body).status == CallStatus.DENIED
    assert harness.refused == ["say", "chain"]


def test_untrusted_content_read_by_a_member_taints_the_following_members(
    harness: CompositionHarness, context_of: Maker
) -> None:
    asked: list[tuple[str, str]] = []

    async def approve(definition: ToolDefinition, arguments: Json, why: Any) -> Approved:
        asked.append((definition.name, why.because))
        return Approved(arguments=arguments)

    body = {"members": [member("a", "strangers"), member("b", "outside", {"what": source("a", "data.text")})]}
    executed = run_composition(harness, context_of(approve=approve), body)
    assert asked == [("outside", "strangers has brought untrusted content into this run")]
    assert executed.is_untrusted
    assert executed.result.data["sources"] == [{"url": "https://a.example/", "title": "A"}]
    asked.clear()
    run_composition(harness, context_of(approve=approve), {"members": [member("b", "outside")]})
    assert asked == []


def test_rejecting_a_member_ends_the_chain(harness: CompositionHarness, context_of: Maker) -> None:
    async def reject(definition: ToolDefinition, arguments: Json, why: Any) -> Approved:
        raise Rejected("no, thank you")

    members = [
        member("a", "risky", fallbacks=[{"tool": "say"}], then=[{"on": "any", "go": "b"}]),
        member("b", "say"),
    ]
    executed = run_composition(
        harness, context_of(approve=reject), {"kind": "conditional", "members": members}
    )
    assert executed.result.error == "chain: its member a (risky) was rejected: no, thank you"
    assert harness.called == []


def test_a_chain_continues_after_a_question_and_repeats_no_member(
    harness: CompositionHarness, context_of: Maker
) -> None:
    asked: list[tuple[str, str]] = []

    async def approve(definition: ToolDefinition, arguments: Json, why: Any) -> Approved:
        raise NeedsAnswer(Question(kind=QuestionKind.PERMISSION, prompt="May I?", tool=definition.name))

    def context_for_member(context: ToolContext, place: str, name: str, arguments: str) -> ToolContext:
        asked.append((name, arguments))
        return context.with_permissions(earlier_approval=None)

    body = {"members": [member("a", "fail", fallbacks=[{"tool": "say", "arguments": {"what": 1}}]),
                       member("b", "risky", {"what": source("previous", "data.said")})]}  # fmt: skip
    context = context_of(approve=approve, chain=ChainContext(context_for_member=context_for_member))
    with pytest.raises(NeedsAnswer) as raised:
        run_composition(harness, context, body)
    assert raised.value.question.tool == "risky"
    ended = raised.value.ended
    assert [(each.id, each.tool, each.status) for each in ended] == [
        ("a", "fail", MemberStatus.FAILED),
        ("a", "say", MemberStatus.DONE),
    ]
    assert asked[-1] == ("risky", '{"what":1}')
    assert harness.counted == []
    chain = ChainContext(finished_members={each.key: each for each in ended})
    executed = run_composition(harness, context_of(chain=chain), body)
    assert executed.result.data["output"] == "risked 1"
    assert harness.called == [("fail", None), ("say", 1), ("risky", 1)]


def test_every_call_that_may_ask_has_its_own_path(harness: CompositionHarness, context_of: Maker) -> None:
    orders: list[str] = []

    def context_for_member(context: ToolContext, place: str, name: str, arguments: str) -> ToolContext:
        orders.append(place)
        return context.with_permissions(earlier_approval=None)

    async def approve(definition: ToolDefinition, arguments: Json, why: Any) -> Approved:
        if len(orders) < 4:
            raise ToolFailed("no")
        raise NeedsAnswer(Question(kind=QuestionKind.PERMISSION, prompt="May I?"))

    same = [{"tool": "risky"}, {"tool": "risky"}]
    first = member("a", "risky", fallbacks=same, then=[{"on": "any", "go": "b"}])
    body = {"kind": "conditional", "members": [first, member("b", "risky")]}
    with pytest.raises(NeedsAnswer) as raised:
        run_composition(
            harness,
            context_of(
                approve=approve,
                chain=ChainContext(context_for_member=context_for_member),
            ),
            body,
        )
    assert orders == ["a", "a.1", "a.2", "b"]
    assert len({each.key for each in raised.value.ended}) == 3


def test_an_approval_of_the_composition_does_not_cover_its_members(
    harness: CompositionHarness, context_of: Maker
) -> None:
    asked_tools: list[str] = []

    async def approve(definition: ToolDefinition, arguments: Json, why: Any) -> Approved:
        asked_tools.append(definition.name)
        return Approved(arguments=arguments)

    def earlier_approval(arguments: Json) -> Approved:
        return Approved(arguments=arguments)

    run_composition(
        harness,
        context_of(approve=approve, earlier_approval=earlier_approval),
        {"members": [member("a", "risky")]},
    )
    assert asked_tools == ["risky"]


def test_a_tool_that_asks_a_question_itself_cannot_be_a_member(
    harness: CompositionHarness, context_of: Maker
) -> None:
    executed = run_composition(harness, context_of(), {"members": [member("a", "asks")]})
    assert "cannot ask a person while it is a member" in (executed.result.error or "")


def test_a_tool_for_the_model_alone_is_not_run_as_a_member(
    harness: CompositionHarness, context_of: Maker
) -> None:
    def handler(arguments: Json, context: ToolContext) -> None:
        harness.called.append(("delegate", None))

    delegate = ToolDefinition(
        name="delegate", description="d", parameters={"type": "object"}, handler=handler
    )
    harness.registry.register(delegate)
    executed = run_composition(harness, context_of(), {"members": [member("a", "delegate")]})
    assert "delegate cannot be a member: only the model may call it" in (executed.result.error or "")
    assert harness.called == []


def test_a_result_too_long_to_pass_on_names_no_output_that_is_not_stored(
    harness: CompositionHarness, context_of: Maker
) -> None:
    @tool(name="endless")
    def endless() -> str:
        """Endless."""
        return "line\n" * 100_000

    harness.registry.register(endless)
    harness.registry.register(run_tools()[0])
    body = {"members": [member("a", "endless"), member("b", "say", {"what": source("previous")})]}
    run_composition(harness, context_of(run_id="r"), body)
    ((_, handed_on),) = harness.called
    assert len(handed_on) < 52_000
    assert "output cut: 600,0" in handed_on
    assert "result_read" not in handed_on


async def test_a_member_that_has_become_a_composition_is_not_found(
    harness: CompositionHarness, context_of: Maker
) -> None:
    inner = {"name": "inner", "members": [member("a", "say")]}
    outer = {"name": "outer", "members": [member("a", "inner")]}
    context = context_of(tools=harness.tools_with(inner, outer))
    call = ToolCall(call_id="c", name="outer", arguments="{}")
    executed = await harness.executor.execute(call, context)
    assert "there is no tool named 'inner'" in (executed.result.error or "")


async def test_a_time_limit_covers_the_composition_and_a_cancel_ends_its_members(
    harness: CompositionHarness, context_of: Maker
) -> None:
    body = {"members": [member("a", "wait")], "timeout_seconds": 1}
    executed = await harness.execute(body, context_of())
    assert "it did not end within 1 seconds" in (executed.result.error or "")
    assert harness.counted == [("0", False)]

    harness.gate, harness.entered = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(
        harness.execute({"kind": "parallel", "members": [member("a", "wait")]}, context_of())
    )
    async with asyncio.timeout(20):
        await harness.entered.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert harness.at_once == 0
    assert {record.status for record in harness.executor.get_history(limit=2)} == {CallStatus.CANCELLED}


def test_a_tool_of_the_server_comes_before_a_composition_of_its_name(harness: CompositionHarness) -> None:
    body = composition(member("a", "gone"), member("b", "gone"), name="say")
    tools, server_tools = (
        harness.tools_with({"name": "say", "members": [member("a", "fail")]}),
        harness.registry,
    )
    assert tools.lookup("say") == server_tools.lookup("say")
    assert tools.list_all() == server_tools.list_all()
    problems = traits_of(body, server_tools).problems
    assert problems == [
        "a tool of the server has the same name and hides it; rename the composition",
        "the tool gone no longer exists",
    ]
    shown = harness.own({"members": [member("a", "gone")]}).list_all()[0]
    assert "the tool gone no longer exists" in shown.description


# --- what is refused --------------------------------------------------------------------------------


def problems_of(harness: CompositionHarness, body: Json, level: int = 4) -> dict[str, str]:
    with pytest.raises(InvalidInput) as raised:
        check_composition(composition(**body), harness.registry, CommandPermission(level), {"chain2"})
    return raised.value.detail["fields"]


@pytest.mark.parametrize(
    ("one", "fields"),
    [
        ({"name": "say", "members": [member("a", "fail")]}, {"$.name"}),
        ({"name": "cache", "members": [member("a", "say")]}, {"$.name"}),
        ({"name": "mcp__a__b", "members": [member("a", "say")]}, {"$.name"}),
        ({"description": "  ", "members": [member("a", "say")]}, {"$.description"}),
        ({"members": [member("a", "gone"), member("a", "say")]}, {"$.members[0].tool", "$.members[1].id"}),
        ({"members": [member("end", "say")]}, {"$.members[0].id"}),
        ({"members": [member("a", "chain")]}, {"$.members[0].tool"}),
        ({"members": [member("a", "chain2")]}, {"$.members[0].tool"}),
        ({"members": [member("a", "say", fallbacks=[{"tool": "gone"}])]}, {"$.members[0].fallbacks[0].tool"}),
        ({"members": [member("a", "say", {"wat": 1})]}, {"$.members[0].arguments.wat"}),
        ({"members": [member("a", "say", {"what": source("input", "x")})]}, {"$.members[0].arguments.what"}),
        ({"members": [member("a", "say", {"what": [source("previous")]})]},
         {"$.members[0].arguments.what[0]"}),
        ({"members": [member("a", "say", {"what": {"x": source("a")}})]},
         {"$.members[0].arguments.what.x"}),
        ({"members": [member("a", "say"), member("b", "say", {"what": source("a", "said")})]},
         {"$.members[1].arguments.what"}),
        ({"kind": "parallel", "members": [member("a", "say"), member("b", "say", {"what": source("a")})]},
         {"$.members[1].arguments.what"}),
        ({"members": [member("a", "say", {"what": source("input", "x[")})]}, {"$.members[0].arguments.what"}),
        ({"members": [member("a", "say", {"what": source("input", eval="1")})]},
         {"$.members[0].arguments.what"}),
        ({"members": [member("a", "say", {"what": {"$from": 1}})]}, {"$.members[0].arguments.what"}),
        ({"members": [member("a", "say", then=[{"go": "end"}])]}, {"$.members[0].then"}),
        ({"kind": "conditional", "members": [member("a", "say"), member("b", "say", then=[{"go": "a"}])]},
         {"$.members[1].then[0].go"}),
        ({"kind": "conditional", "members": [member("a", "say", then=[{"go": "end", "path": "data"}])]},
         {"$.members[0].then[0].compare"}),
        ({"kind": "conditional", "members": [member("a", "say", then=[{"go": "end", "compare": "less"}])]},
         {"$.members[0].then[0].path", "$.members[0].then[0].value"}),
        ({"kind": "conditional",
          "members": [member("a", "say", then=[{"go": "end", "compare": "exists", "path": "said"}])]},
         {"$.members[0].then[0].path"}),
        ({"parameters": [{"name": "a"}, {"name": "a"}], "members": [member("a", "say")]},
         {"$.parameters[1].name"}),
        ({"members": [member("a", "say", {"what": "x" * 70_000})]}, {"$"}),
    ],
)  # fmt: skip
def test_an_invalid_composition_is_refused_with_every_wrong_path(
    harness: CompositionHarness, one: Json, fields: set[str]
) -> None:
    assert set(problems_of(harness, one)) == fields


def test_a_tool_above_the_level_looks_like_an_unknown_one(harness: CompositionHarness) -> None:
    high = problems_of(harness, {"members": [member("a", "risky")]}, level=1)
    none = problems_of(harness, {"members": [member("a", "riskx")]}, level=1)
    assert high["$.members[0].tool"].replace("risky", "riskx") == none["$.members[0].tool"]


@pytest.mark.parametrize("name", ["ask_clarification", "ask_decision", "activate_skill", "delegate"])
def test_a_tool_for_the_model_alone_is_refused_as_a_member(name: str) -> None:
    registry = ToolRegistry(
        [
            ToolDefinition(
                name=name,
                description="d",
                parameters={"type": "object"},
                handler=lambda arguments, context: None,
                only_asks=name.startswith("ask"),
            )
        ]
    )
    with pytest.raises(InvalidInput, match="cannot be a member"):
        check_composition(composition(member("a", name)), registry, CommandPermission.ADMIN, set())


def test_templates_nested_too_deeply_are_refused(harness: CompositionHarness) -> None:
    deep: Any = 1
    for _ in range(40):
        deep = [deep]
    assert list(problems_of(harness, {"members": [member("a", "say", {"what": deep})]}).values()) == [
        "values are nested at most 16 deep"
    ]


def test_paths_select_values_in_lists_and_objects_only() -> None:
    data = {"a": [{"b c": None}], "1": "one"}
    assert value_at(data, read_path("a[0].b c")) is None
    assert value_at(data, read_path("1")) == "one"
    for path in ("a.b", "a[1]", "1[0]", "a[0].x", "1.real", "a.__class__"):
        assert value_at(data, read_path(path)) is msgspec.UNSET
    for path in (".", "a..b", "a.", "[0]", "a[-1]", "a[x]", "a]", ".".join("a" * 30)):
        with pytest.raises(ValueError, match="path"):
            read_path(path)
    assert fill_template({"x": {"$from": "input"}}, {"input": {"y": 1}}) == {"x": {"y": 1}}


def test_the_filled_arguments_of_a_call_are_bounded_before_they_are_encoded(
    harness: CompositionHarness, context_of: Maker
) -> None:
    many = {"what": [source("a", "data.said")] * 3000}
    members = [member("a", "say", {"what": "x" * 100_000}), member("b", "say", many)]
    executed = run_composition(harness, context_of(), {"members": members})
    assert executed.result.error is not None
    assert executed.result.error.endswith("the values filled into its arguments exceed 1,000,000 bytes")
    assert [name for name, _ in harness.called] == ["say"]
    few = {"what": [source("a", "data.said")] * 9}
    members = [member("a", "say", {"what": "x" * 100_000}), member("b", "say", few)]
    assert run_composition(harness, context_of(), {"members": members}).result.success


def test_defaults_and_compared_values_have_the_nesting_limit_of_arguments() -> None:
    deep: Any = 1
    for _ in range(17):
        deep = [deep]
    branch = {"go": "end", "path": "data", "compare": "equal", "value": deep}
    first = member("a", "say", {"what": source("input", default=deep)}, then=[branch])
    with pytest.raises(InvalidInput) as raised:
        check_composition(composition(first, kind="conditional"))
    assert raised.value.detail is not None
    assert set(raised.value.detail["fields"]) == {
        "$.members[0].arguments.what.default",
        "$.members[0].then[0].value",
    }


@pytest.mark.parametrize(
    "change",
    [
        {"name": "chain\n"},
        {"parameters": [{"name": "p\n"}]},
        {"members": [{"id": "a\n", "tool": "say"}]},
        {"members": [{"id": "a", "tool": "say\n"}]},
        {"members": [{"id": "a", "tool": "say", "fallbacks": [{"tool": "fail\n"}]}]},
    ],
)
def test_a_name_cannot_end_in_a_line_break(change: dict[str, Any]) -> None:
    """No vendor accepts one in the name of a function."""
    whole = {"name": "chain", "description": "d", "members": [{"id": "a", "tool": "say"}]}
    check_composition(msgspec.convert(whole, Composition))
    with pytest.raises(msgspec.ValidationError, match="matching regex"):
        msgspec.convert(whole | change, Composition)


def test_a_list_parameter_accepts_any_items() -> None:
    """Vendors refuse an array without `items`."""
    schema = schema_of([Parameter(name="all", type=ParameterType.ARRAY, description="Of them")])
    assert schema["properties"] == {"all": {"type": "array", "items": {}, "description": "Of them"}}


def test_a_composition_counts_as_the_calls_that_it_makes(
    harness: CompositionHarness, context_of: Maker
) -> None:
    members = [member("a", "fail", fallbacks=[{"tool": "fail"}, {"tool": "say"}]), member("b", "say")]
    executed = run_composition(harness, context_of(), {"members": members})
    call = Step(id="step-0", index=0, type=StepType.TOOL_CALL, id_ref="call", name="chain")
    result = executed_entry(call, 1, executed).step
    assert (executed.calls, result.calls, count_calls(TurnState(steps=(call, result)))) == (4, 4, 4)
    alone = asyncio.run(
        harness.executor.execute(ToolCall(call_id="c", name="say", arguments=""), context_of())
    )
    result = executed_entry(call, 1, alone).step
    assert count_calls(TurnState(steps=(call, result))) == 1
