"""The definition of a tool, the context of a tool call, and the registry of a server's tools.

It re-exports the types of `luxx.wire.tool`. `factory` defines `@tool`; `sources` says which tools exist for a
caller; `executor` executes calls.
"""

import inspect
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from luxx.errors import ConfigError, ToolFailed
from luxx.tools.hooks import CallMetadata, Hooks
from luxx.tools.schema import ArgumentCheck
from luxx.wire.delegation import Delegation, TaskOutcome
from luxx.wire.model_settings import MemoryMode
from luxx.wire.run import Question
from luxx.wire.todos import TodoItem
from luxx.wire.tool import (
    ActiveSkill,
    CommandPermission,
    MemberEnded,
    Narrowing,
    PlacedRule,
    Risk,
    SkillHead,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from luxx.wire.turn_event import UiCommand

__all__ = [
    "ApprovalReason", "Approved", "CallActions", "CallPermissions", "ChainContext", "CommandPermission",
    "FoundTool", "HasDefinition", "NeedsAnswer", "Rejected", "Risk", "StoredOutput", "ToolCall", "ToolCaller",
    "ToolContext", "ToolDefinition", "ToolRegistry", "ToolResult", "ToolSet", "ToolSpec",
]  # fmt: skip


class NeedsAnswer(BaseException):
    """A signal, not an error: the call cannot continue until the run's user has answered `question`.

    It is a BaseException, so that `except Exception` does not catch it. After the answer the tool runs again
    from its beginning. For a composition, `ended` holds the members that had finished; its next call gets
    them as `ChainContext.finished_members`.
    """

    def __init__(self, question: Question, ended: tuple[MemberEnded, ...] = ()) -> None:
        super().__init__()
        self.question = question
        self.ended = ended


class Rejected(ToolFailed):
    """A user rejected this call."""


class ApprovalReason(Protocol):
    """Why the user is asked (`because`), and the rule pattern that "always" creates (`usual`); None if no
    rule of the user can allow the call."""

    @property
    def because(self) -> str: ...

    @property
    def usual(self) -> str | None: ...


class Approved(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments that a user approved; `note` is the user's comment for the model."""

    arguments: dict[str, Any]
    is_edited: bool = False
    note: str | None = None


# The strictest syntax for function names among the model vendors.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")


def _unavailable(what: str) -> Callable[..., Awaitable[Any]]:
    """A default in `CallActions`: a function that fails, because the call belongs to no run."""

    async def fail(*arguments: Any) -> Any:
        raise ToolFailed(f"{what} not available: this call does not belong to a run")

    return fail


def cache_always(result: ToolResult) -> bool:
    """Value for `ToolDefinition.keeps`: every successful result is cached."""
    return True


def cache_never(result: ToolResult) -> bool:
    """Value for `ToolDefinition.keeps`: a call may be repeated after a crash, but no result is cached."""
    return False


async def reject_redirect(url: str, target: str, next_arguments: dict[str, Any]) -> None:
    """Default for `CallPermissions.check_redirect`: no executor made the call, so no rules are checked."""
    raise ToolFailed(f"{url} redirects to {target}, and no redirect is followed here")


async def approve_as_caller(
    tool: "ToolDefinition", arguments: dict[str, Any], why: ApprovalReason
) -> Approved:
    """Default for `CallPermissions.approve`: a user makes the call directly, which is the approval."""
    return Approved(arguments=arguments)


class StoredOutput(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a stored output; `total` is the number of characters of the whole output."""

    output: str
    total: int


class ToolSet(Protocol):
    """Some tools, by name. A set may change: each call looks its tool up anew."""

    def lookup(self, name: str) -> "FoundTool | None":
        """The tool with its argument check."""
        ...

    def list_all(self) -> "list[ToolDefinition]":
        """In a constant order, because a prompt cache holds only as long as its tools stay the same."""
        ...

    def available_to(
        self, level: CommandPermission, names: Iterable[str] | None = None
    ) -> "list[ToolDefinition]":
        """The tools at or below `level`, limited to `names` if given. Ignores unknown names."""
        allowed_names = None if names is None else set(names)
        return [
            tool
            for tool in self.list_all()
            if tool.required_permission <= level and (allowed_names is None or tool.name in allowed_names)
        ]


class ToolCaller(msgspec.Struct, frozen=True, kw_only=True):
    """Who calls a tool: the user, the run if the call belongs to one, and the tools that exist for the user.

    `tools` None: those of the executor's registry. `is_composition`: a composition makes the call, so a
    program reads the result and not a model. `memory`: the mode of the user, the agent and the conversation.
    `knowledge`: the knowledge bases that the agent and the conversation name. `skills`: those of the run or
    of the user.
    """

    user_id: int
    username: str
    permission_level: CommandPermission
    tenant_id: int | None = None
    run_id: str | None = None
    tools: ToolSet | None = None
    is_composition: bool = False
    memory: MemoryMode = MemoryMode.ON
    knowledge: tuple[str, ...] = ()
    skills: Mapping[str, SkillHead] = {}


class CallPermissions(msgspec.Struct, frozen=True, kw_only=True):
    """What a call is allowed to do, and the functions that ask for more.

    - `rules`: the permission rules in addition to the server's, in order.
    - `tainted_by`: the tool that brought untrusted content into the run.
    - `narrowed`: the restrictions of active skills.
    - `offered`: names of the tools that the model was offered. None: a user or a composition makes the call.
    - `approve`: called by the executor with the reason. Returns the approved call, or raises Rejected, or
      ToolFailed where nobody can approve.
    - `earlier_approval`: the user's earlier answer for exactly this call. It overrides a rule that allows.
    - `check_redirect(url, target, next_arguments)`: awaited before a redirect from `url` to `target` is
      followed; `next_arguments` are those of a call that names the target. Raises ToolFailed with the reason
      where such a call would be denied or would need an approval.
    """

    workspace: Path | None = None
    rules: tuple[PlacedRule, ...] = ()
    tainted_by: str | None = None
    narrowed: tuple[Narrowing, ...] = ()
    offered: frozenset[str] | None = None
    approve: "Callable[[ToolDefinition, dict[str, Any], ApprovalReason], Awaitable[Approved]]" = (
        approve_as_caller
    )
    earlier_approval: Callable[[dict[str, Any]], Approved] | None = None
    check_redirect: Callable[[str, str, dict[str, Any]], Awaitable[None]] = reject_redirect

    def is_offered(self, name: str) -> bool:
        """Whether the caller was offered a tool of this name."""
        return self.offered is None or name in self.offered


def without_approval(context: "ToolContext", member: str, tool: str, arguments: str) -> "ToolContext":
    """Default for `ChainContext.context_for_member`: the approval of a composition covers no member."""
    return context.with_permissions(earlier_approval=None)


class ChainContext(msgspec.Struct, frozen=True, kw_only=True):
    """What a composition needs in order to call its members.

    `context_for_member(context, member, tool, arguments)` returns the context for the call of one member; it
    holds the user's approval of exactly that call. `finished_members` are the members that ended before this
    call had to wait for an answer, by key.
    """

    context_for_member: Callable[["ToolContext", str, str, str], "ToolContext"] = without_approval
    finished_members: Mapping[str, MemberEnded] = {}


def _no_todos(items: list[TodoItem]) -> None:
    del items
    raise ToolFailed("to-do lists are not available: this call does not belong to a run")


def _nobody_looks(command: UiCommand) -> None:
    del command
    raise ToolFailed("no page is shown to a person: this call does not belong to a run that somebody follows")


async def without_numbers(result: ToolResult) -> ToolResult:
    """Default for `CallActions.number_pages`: the run writes no reports."""
    return result


class CallActions(msgspec.Struct, frozen=True, kw_only=True):
    """What a tool can do in its run. Without a run, `ask`, `delegate` and `read_result` raise ToolFailed.

    - `ask`: asks the run's user. The tool runs again from its beginning to get the answer, so an
      asynchronous tool asks before it does anything else.
    - `emit`: reports progress to the run.
    - `read_result(ref, offset, limit)`: characters of the stored output of an earlier call of the run.
    - `read_on`: of a call without a run, the sentence that says how to read the rest of a cut output.
    - `delegate`: runs a subagent for each task, once in a call, and returns what became of the tasks.
    - `activate`: makes a skill active in the run once the call has succeeded.
    - `write_todos`: replaces the to-do list of the run once the call has succeeded.
    - `show`: gives the page that follows the run a command, with the result. Raises ToolFailed with the
      reason where it may not.
    - `number_pages(result)`: the result with the names by which a report of the run cites its web pages.
    - `cancelled`: whether to stop; also true after the timeout. A long synchronous tool checks it regularly.
    - `may_commit`: a synchronous tool that can roll back calls it before an irreversible action. After True
      the caller waits past the timeout.
    - `chain`: for compositions only.
    """

    ask: Callable[[dict[str, Any]], Awaitable[dict[str, Any]]] = _unavailable("questions are")
    emit: Callable[[dict[str, Any]], None] = lambda event: None
    read_result: Callable[[str, int, int], Awaitable[StoredOutput]] = _unavailable("stored outputs are")
    read_on: str = ""
    delegate: Callable[[Delegation], Awaitable[Sequence[TaskOutcome]]] = _unavailable("delegation is")
    activate: Callable[[ActiveSkill], None] = lambda skill: None
    write_todos: Callable[[list[TodoItem]], None] = _no_todos
    show: Callable[[UiCommand], None] = _nobody_looks
    number_pages: Callable[[ToolResult], Awaitable[ToolResult]] = without_numbers
    cancelled: Callable[[], bool] = lambda: False
    may_commit: Callable[[], bool] = lambda: True
    chain: ChainContext = ChainContext()


class ToolContext(msgspec.Struct, frozen=True, kw_only=True):
    """The context of one call: who calls, what is allowed, and what the tool can do in its run.

    `metadata` is new for each call; the tool writes into it what does not belong into its result.
    `is_resumed`: of a tool that `resumes`, whether a lost process had begun this call.
    """

    caller: ToolCaller
    permissions: CallPermissions = CallPermissions()
    actions: CallActions = CallActions()
    metadata: CallMetadata = msgspec.field(default_factory=CallMetadata)
    is_resumed: bool = False

    def with_permissions(self, **changes: Any) -> "ToolContext":
        """The context with other values in fields of `permissions`."""
        return replace(self, permissions=replace(self.permissions, **changes))

    def with_actions(self, **changes: Any) -> "ToolContext":
        """The context with other values in fields of `actions`."""
        return replace(self, actions=replace(self.actions, **changes))

    def tools_or(self, default: ToolSet) -> ToolSet:
        """The tools that exist for the caller, or the default if the caller comes without any."""
        return default if self.caller.tools is None else self.caller.tools


class ToolDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """A tool. `handler(arguments, context)`, sync or async, returns data or a ToolResult, or raises.

    `repeatable`: a second call with the same arguments changes nothing and returns the same result within
    the lifetime of a cache entry. `timeout` in seconds; None: the configured one. `only_asks`: the tool only
    asks the run's user, so it needs no approval. `keeps_lines`: the result is a page of stored text, so long
    lines in it are not cut. `keeps(result)`: whether this successful result of a repeatable tool may be
    cached. `is_chain`: the tool only calls other tools, and each of these calls is judged separately.
    `is_trusted`: an untrusted text in the run is no reason to ask about this tool, because its operator
    vouches for it. `is_self_contained`: it uses nothing of the user but what its call gives and what its run
    has. `is_on_demand`: it is offered only where a message, an agent or a skill that fits names it.
    `acts_later`: what it stores has effects after the run, without its taint. `sent_parameters`: the schema
    as models get it; None: `parameters`. `resumes`: it finds out itself what became of a call that was lost.
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
    is_trusted: bool = False
    is_self_contained: bool = False
    is_on_demand: bool = False
    acts_later: bool = False
    sent_parameters: dict[str, Any] | None = None
    resumes: bool = False

    @property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.handler)

    @property
    def is_cacheable(self) -> bool:
        return self.repeatable and self.required_permission == CommandPermission.READ_ONLY

    def to_spec(self) -> ToolSpec:
        """The tool in the form that provider adapters take."""
        parameters = self.parameters if self.sent_parameters is None else self.sent_parameters
        return ToolSpec(name=self.name, description=self.description, parameters=parameters)

    def to_openai_format(self) -> dict[str, Any]:
        """The tool in the form that the OpenAI chat API takes."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


FoundTool = tuple[ToolDefinition, ArgumentCheck]


class HasDefinition(Protocol):
    """An object with a tool definition, such as a function decorated with `@tool`."""

    @property
    def definition(self) -> ToolDefinition: ...


class ToolRegistry(ToolSet):
    """Tools by name, in the order of registration, such as those that the server has for everyone."""

    def __init__(self, tools: Iterable[ToolDefinition | HasDefinition] = ()) -> None:
        self._tools: dict[str, FoundTool] = {}
        self.hooks = Hooks()
        self.register(*tools)

    def register(self, *tools: ToolDefinition | HasDefinition, are_shipped: bool = False) -> None:
        """Raises ConfigError for an invalid or duplicate name, and for parameters that are no JSON schema;
        Luxx's own tools (`are_shipped`) have valid ones, which its tests check and no start."""
        for tool in tools:
            one = tool if isinstance(tool, ToolDefinition) else tool.definition
            if not _NAME.fullmatch(one.name):
                raise ConfigError(
                    f"{one.name!r} cannot be a tool's name: use 1 to 64 letters, digits, _ or -, "
                    "beginning with a letter or _"
                )
            if one.name in self._tools:
                raise ConfigError(f"there is already a tool named {one.name}; rename one of them")
            self._tools[one.name] = (one, ArgumentCheck(one.name, one.parameters, is_known_valid=are_shipped))

    def get(self, name: str) -> ToolDefinition | None:
        return self._tools[name][0] if name in self._tools else None

    def lookup(self, name: str) -> FoundTool | None:
        return self._tools.get(name)

    def list_all(self) -> list[ToolDefinition]:
        return [definition for definition, _ in self._tools.values()]

    def list_by_category(self, category: str) -> list[ToolDefinition]:
        return [tool for tool in self.list_all() if tool.category == category]

    def without(self, names: Collection[str]) -> "ToolRegistry":
        """A new registry with all tools but these."""
        other = ToolRegistry()
        other._tools = {name: entry for name, entry in self._tools.items() if name not in names}
        return other

    def remove(self, name: str) -> bool:
        """Remove a tool; return whether it existed."""
        return self._tools.pop(name, None) is not None
