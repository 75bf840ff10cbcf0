"""Delegation: the task of a subagent, the limits of its run, and its end."""

import msgspec

from luxx.wire.rule import Narrowing


class Assignment(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of a `delegate` call; None means the value of the delegating run."""

    task: str
    system_prompt: str | None = None
    tools: tuple[str, ...] | None = None
    model: str | None = None


class Delegated(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of a subagent's run and what it inherits. `root_run_id`: the first run of the chain, whose
    limits all its subagents share. `most_calls`: its limit of tool calls; None: no limit."""

    call_id: str
    task: str
    depth: int
    root_run_id: str
    most_calls: int | None = None
    tainted_by: str | None = None
    narrowed: tuple[Narrowing, ...] = ()


class SubagentEnd(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a subagent: its answer, or why there is none. `tool_calls` includes those of its own
    subagents; `is_tainted`: the run has untrusted content."""

    run_id: str
    status: str
    stop_reason: str | None
    answer: str
    error: str | None
    tool_calls: int
    is_tainted: bool
