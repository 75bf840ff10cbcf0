"""What a tool is, what it is told when it runs, and the registry that knows which tools there are.

Public names: ToolDefinition, ToolContext, ToolRegistry, and the words of `luxx.wire.tool`.
Not here: how a tool is written (factory), how a call is carried out (executor).
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import msgspec

from luxx.errors import ConfigError, ToolFailed
from luxx.tools.hooks import Hooks
from luxx.tools.marks import CallMetadata
from luxx.tools.schema import ArgumentCheck
from luxx.wire.composition import MemberEnded
from luxx.wire.delegation import Assignment, SubagentEnd
from luxx.wire.question import Question
from luxx.wire.rule import Narrowing, PlacedRule, SkillHead
from luxx.wire.tool import CommandPermission, Risk, ToolCall, ToolResult, ToolSpec

__all__ = [
    "Approved",
    "ChainContext",
    "OwnTools",
    "ApprovalReason",
    "CommandPermission",
    "StoredOutput",
    "NeedsAnswer",
    "Rejected",
    "Risk",
    "ToolCall",
    "ToolContext",
    "ToolDefinition",
    "ToolRegistry",
    "ToolResult",
    "ToolSource",
    "ToolSpec",
]


class NeedsAnswer(BaseException):
    """A signal, not an error: the call cannot go on until its run's person has answered `question`.

    It passes through everything that does not mean to catch it; once there is an answer, the tool runs anew.
    A composition that does finds those members of it `recalled` that had `ended`.
    """

    def __init__(self, question: Question, ended: tuple[MemberEnded, ...] = ()) -> None:
        super().__init__()
        self.question = question
        self.ended = ended


class Rejected(ToolFailed):
    """A person does not want this call to be made."""


class ApprovalReason(Protocol):
    """Why a person is asked, and the pattern of what they most likely mean by "always"."""

    @property
    def because(self) -> str: ...

    @property
    def usual(self) -> str: ...


class Approved(msgspec.Struct, frozen=True, kw_only=True):
    """A call as a person allows it; `note` is what they tell the model with that."""

    arguments: dict[str, Any]
    is_edited: bool = False
    note: str | None = None


# The narrowest of what model vendors accept as a function's name.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


async def ask_unavailable(question: dict[str, Any]) -> dict[str, Any]:
    """The `ask` of a call behind which no person waits."""
    raise ToolFailed("nobody can be asked here: this call does not belong to a run")


def discard_event(event: dict[str, Any]) -> None:
    """The `emit` of a call that no log listens to."""


def never_cancelled() -> bool:
    """The `cancelled` of a call that nothing can end early."""
    return False


def always_may_commit() -> bool:
    """The `may_conclude` of a call that is waited for whatever it does."""
    return True


def ignore_activation(skill: SkillHead) -> None:
    """The `activate` of a call that belongs to no run."""


async def delegation_unavailable(assignment: Assignment) -> SubagentEnd:
    """The `delegate` of a call that belongs to no run."""
    raise ToolFailed("there is nobody to delegate to: this call does not belong to a run")


def cache_always(result: ToolResult) -> bool:
    """The `keeps` of a tool whose every success is good for as long as the cache lives."""
    return True


def cache_never(result: ToolResult) -> bool:
    """The `keeps` of a tool whose call may be made again after a crash, but whose answer is of it alone."""
    return False


async def no_stored_output(ref: str, offset: int, limit: int) -> "StoredOutput":
    """The `read_result` of a call that belongs to no run."""
    raise ToolFailed("there are no outputs here: this call does not belong to a run, which would keep them")


async def no_pending_tools(names: Iterable[str]) -> None:
    """The `arrival` of a registry whose tools are all there from the start."""


async def reject_redirect(url: str, target: str, next_arguments: dict[str, Any]) -> None:
    """The `check_redirect` of a call that no executor has judged."""
    raise ToolFailed(f"{url} redirects to {target}, and no redirect is followed here")


async def approve_as_caller(
    tool: "ToolDefinition", arguments: dict[str, Any], reason: ApprovalReason
) -> Approved:
    """The `approve` of a call that a person makes by hand: whoever calls has approved."""
    return Approved(arguments=arguments)


class StoredOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a tool call's whole output, and how many characters there are in all."""

    output: str
    total: int


def unchanged_context(context: "ToolContext", member: str, tool: str, arguments: str) -> "ToolContext":
    """The `told` of a call in which nobody is asked."""
    return msgspec.structs.replace(context, earlier_approval=None)


class ChainContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a call is told that makes calls of other tools, which are its members.

    `told(context, member, tool, arguments)` is the context for one of them, with what a person has said of
    just that call, at the place `member`; `recalled` are those that had ended before this call had to wait,
    by their keys. `is_member`: the call is one, so it is read by a program and not cut for a model.
    """

    call_id: str = ""
    context_for_member: Callable[["ToolContext", str, str, str], "ToolContext"] = unchanged_context
    finished_members: Mapping[str, MemberEnded] = {}
    is_member: bool = False


class OwnTools(Protocol):
    """Tools that one user has beside those of the server, such as their compositions."""

    def lookup(self, name: str) -> "tuple[ToolDefinition, ArgumentCheck] | None": ...

    def list_all(self) -> "list[ToolDefinition]": ...


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """For whom a tool runs, and its ways to the outside.

    `ask` puts a question to the run's person: an asynchronous tool gets the answer by being run again from
    its beginning, so it asks before it does anything. `approve` is told why it is asked; it gives the call as
    a person allows it, or raises Rejected, or ToolFailed where nobody can allow it; the executor calls it.
    `answered` is what a person has said of just this call before, which counts more than a rule that allows.
    `rules` are the permission rules above the server's own, in order; `tainted_by` names what brought
    untrusted content into the run. `read_result(ref, offset, limit)` gives characters of the whole output of
    an earlier call of the run, or raises ToolFailed. `emit` reports progress to the run, `cancelled` says
    whether to stop: a long synchronous tool looks at it between pieces of work. It also becomes true when the
    tool has overrun its time. A synchronous tool that undoes what it did when it is given up asks
    `may_conclude` before it does what cannot be undone: from a yes on it is waited for past its time.
    `own_tools` are the user's beside those of the registry. In `marks`, which are
    new for each call, a tool tells what its result does not. `narrowed`: what skills leave of the tools;
    `activate` makes a skill active in the run, once the call has succeeded. `delegate` has a subagent do
    something, and gives how that ended; it raises ToolFailed where there is no answer. `offered` are the
    names of the tools that the calling model was offered; None: a person calls, or a composition does.
    `check_redirect(url, target, next_arguments)` is awaited before a redirect from `url` to `target` is
    followed; `next_arguments` are those of a call that names the target. It raises ToolFailed with the reason
    where such a call would be denied or would have to ask.
    """

    user_id: int
    username: str
    user_permission_level: CommandPermission
    workspace: Path | None = None
    run_id: str | None = None
    ask: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]] = ask_unavailable
    approve: "Callable[[ToolDefinition, dict[str, Any], ApprovalReason], Awaitable[Approved]]" = (
        approve_as_caller
    )
    read_result: Callable[[str, int, int], Awaitable[StoredOutput]] = no_stored_output
    emit: Callable[[dict[str, Any]], None] = discard_event
    cancelled: Callable[[], bool] = never_cancelled
    may_commit: Callable[[], bool] = always_may_commit
    tenant_id: int | None = None
    rules: tuple[PlacedRule, ...] = ()
    tainted_by: str | None = None
    earlier_approval: Callable[[dict[str, Any]], Approved] | None = None
    own_tools: OwnTools | None = None
    chain_context: ChainContext = ChainContext()
    metadata: CallMetadata = msgspec.field(default_factory=CallMetadata)
    narrowed: tuple[Narrowing, ...] = ()
    activate: Callable[[SkillHead], None] = ignore_activation
    delegate: Callable[[Assignment], Awaitable[SubagentEnd]] = delegation_unavailable
    offered: frozenset[str] | None = None
    check_redirect: Callable[[str, str, dict[str, Any]], Awaitable[None]] = reject_redirect

    def is_offered(self, name: str) -> bool:
        """Whether a tool of this name may be called at all."""
        return self.offered is None or name in self.offered

    def find(self, registry: "ToolRegistry", name: str) -> "tuple[ToolDefinition, ArgumentCheck] | None":
        """The server's tool of this name, or else the user's own, with the check of its arguments."""
        entry = registry.lookup_for(name, self.tenant_id)
        return entry or (None if self.own_tools is None else self.own_tools.lookup(name))


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A tool. `handler(arguments, context)`, sync or async, returns data or a ToolResult, or raises.

    `repeatable`: running it again with the same arguments changes nothing and gives the same answer
    for as long as the cache lives. `timeout` in seconds; None: the configured one. `only_asks`: all it does
    is to ask the run's person, so nobody is asked whether it may. `keeps_lines`: its answer is a page of
    something kept whole, so long lines in it are not cut. `keeps(result)`: whether this success of a
    repeatable tool may be given again. `is_chain`: all it does is to call other tools, and each of these
    calls is judged by itself. `tenant_id`: whose it is alone; None: everybody's.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    handler: Callable[[dict[str, Any], ToolContext], Any]
    category: str = "general"
    required_permission: CommandPermission = CommandPermission.READ_ONLY
    risk: Risk = Risk.LOW
    repeatable: bool = False
    timeout: float | None = None
    only_asks: bool = False
    keeps_lines: bool = False
    subject: str = ""
    brings_untrusted: bool = False
    is_egress: bool = False
    starts_programs: bool = False
    keeps: Callable[[ToolResult], bool] = cache_always
    is_chain: bool = False
    tenant_id: int | None = None

    def is_for(self, tenant_id: int | None) -> bool:
        """Whether the tool exists for this tenant; to others it is unknown."""
        return self.tenant_id is None or self.tenant_id == tenant_id

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.handler)

    @property
    def is_cacheable(self) -> bool:
        return self.repeatable and self.required_permission == CommandPermission.READ_ONLY

    def to_spec(self) -> ToolSpec:
        """The tool as a provider adapter is told of it."""
        return ToolSpec(name=self.name, description=self.description, parameters=self.parameters)

    def to_openai_format(self) -> dict[str, Any]:
        """The tool as the OpenAI chat API is told of it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


class ToolSource(Protocol):
    """Anything that carries a definition, such as what `@tool` makes of a function."""

    @property
    def definition(self) -> ToolDefinition: ...


class ToolRegistry:
    """The tools of one server, by name, in the order they were registered.

    `arrival(names)` waits for those of these tools that are still on their way, within bounds.
    """

    def __init__(self, tools: Iterable[ToolDefinition | ToolSource] = ()) -> None:
        self._tools: dict[str, tuple[ToolDefinition, ArgumentCheck]] = {}
        self.hooks = Hooks()
        self.wait_for_tools: Callable[[Iterable[str]], Awaitable[None]] = no_pending_tools
        for tool in tools:
            self.register(tool)

    def register(self, tool: ToolDefinition | ToolSource) -> None:
        """Raises ConfigError for a bad name, a name already taken, or parameters that are no JSON schema."""
        definition = tool if isinstance(tool, ToolDefinition) else tool.definition
        if not _NAME.fullmatch(definition.name):
            raise ConfigError(
                f"{definition.name!r} cannot be a tool's name: use 1 to 64 letters, digits, _ or -, "
                "beginning with a letter or _"
            )
        if definition.name in self._tools:
            raise ConfigError(f"there is already a tool named {definition.name}; rename one of them")
        self._tools[definition.name] = (definition, ArgumentCheck(definition.name, definition.parameters))

    def get(self, name: str) -> ToolDefinition | None:
        entry = self._tools.get(name)
        return entry[0] if entry else None

    def lookup(self, name: str) -> tuple[ToolDefinition, ArgumentCheck] | None:
        """The tool with the check of its arguments."""
        return self._tools.get(name)

    def lookup_for(self, name: str, tenant_id: int | None) -> tuple[ToolDefinition, ArgumentCheck] | None:
        """The same, if the tool exists for this tenant."""
        entry = self._tools.get(name)
        return entry if entry is not None and entry[0].is_for(tenant_id) else None

    def list_all(self) -> list[ToolDefinition]:
        return [definition for definition, _ in self._tools.values()]

    def list_by_category(self, category: str) -> list[ToolDefinition]:
        return [tool for tool in self.list_all() if tool.category == category]

    def available_to(
        self, level: CommandPermission, names: Iterable[str] | None = None, *, tenant_id: int | None = None
    ) -> list[ToolDefinition]:
        """A tenant's tools at or below `level`; of these only `names` where given, unknown ones left out."""
        allowed_names = None if names is None else set(names)
        return [
            tool
            for tool in self.list_all()
            if tool.required_permission <= level
            and tool.is_for(tenant_id)
            and (allowed_names is None or tool.name in allowed_names)
        ]

    async def wait_for(self, names: Iterable[str]) -> None:
        """Returns once those of these tools are there that come later than the server."""
        missing = [name for name in names if name not in self._tools]
        if missing:
            await self.wait_for_tools(missing)

    def replace_tools(self, prepared: "ToolRegistry", prefix: str) -> None:
        """Have the tools of `prepared` in place of those whose names begin with `prefix`."""
        remaining = {name: entry for name, entry in self._tools.items() if not name.startswith(prefix)}
        self._tools = remaining | prepared._tools

    def without(self, names: Collection[str]) -> "ToolRegistry":
        """Another registry with the other tools."""
        other = ToolRegistry()
        other._tools = {name: entry for name, entry in self._tools.items() if name not in names}
        return other

    def remove(self, name: str) -> bool:
        """Whether there was such a tool."""
        return self._tools.pop(name, None) is not None


def available_own_tools(
    own: OwnTools, level: CommandPermission, names: Iterable[str] | None = None
) -> list[ToolDefinition]:
    """A user's own tools as `available_to` gives those of the server."""
    allowed_names = None if names is None else set(names)
    return [
        tool
        for tool in own.list_all()
        if tool.required_permission <= level and (allowed_names is None or tool.name in allowed_names)
    ]
