"""Delegation words: what a subagent is asked to do, and under which bounds its run stands."""

import msgspec

from luxx.wire.rule import Narrowing


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """What a call of `delegate` asks for; what is None is as in the run that delegates."""

    task: str
    system_prompt: str | None = None
    tools: tuple[str, ...] | None = None
    model: str | None = None


class Delegated(msgspec.Struct, frozen=True, kw_only=True):
    """Whence a run was delegated, and what it has from there. `root_run_id`: the first of the chain, whose
    limits count for all of it; `most_calls`: how many calls of tools it may make, None: any number."""

    call_id: str
    task: str
    depth: int
    root_run_id: str
    most_calls: int | None = None
    tainted_by: str | None = None
    narrowed: tuple[Narrowing, ...] = ()


class SubagentEnd(msgspec.Struct, frozen=True, kw_only=True):
    """How a subagent ended: its answer, or why there is none. `tool_calls` is how many it made, its own
    subagents' too; `is_tainted`: it holds content that strangers wrote."""

    run_id: str
    status: str
    stop_reason: str | None
    answer: str
    error: str | None
    tool_calls: int
    is_tainted: bool
