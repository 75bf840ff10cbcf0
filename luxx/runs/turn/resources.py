"""Who a run works with: the provider with its key, the tools its user may use, the user's workspace."""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
from msgspec.structs import replace
from sqlalchemy import Connection
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.domain.accounts.service import user_as_caller
from luxx.domain.accounts.workspaces import Workspaces
from luxx.domain.skills.registry import Shelf
from luxx.domain.usage.ledger import UsageEntry
from luxx.errors import Gone, LuxxError, NotFound, ProviderError, ToolFailed
from luxx.providers.adapter import Target
from luxx.providers.catalog import ModelCard
from luxx.providers.service import Picked, ProviderService
from luxx.runs.engine.cancel import CancelSignal
from luxx.runs.log.events import Entry
from luxx.runs.log.replay import ReplayService
from luxx.runs.turn.restrictions import rules_for
from luxx.runs.turn.spec import ChatBrief, ChatRequest
from luxx.tools.builtin.run import DELEGATE_TOOL
from luxx.tools.compositions.service import OwnToolsIn
from luxx.tools.core import KeptOutput, OwnTools, ToolContext, own_available_to
from luxx.tools.executor import READ_RESULT_TOOL, ToolExecutor
from luxx.tools.permissions.narrowing import ACTIVATE_TOOL
from luxx.wire.rule import PlacedRule
from luxx.wire.tool import ToolSpec


class Cut(Exception):
    """A completion ended before its end: its open steps, closed with what they had, and what it used."""

    def __init__(self, completed: "Completed", because: ProviderError | None) -> None:
        super().__init__()
        self.completed = completed
        self.because = because


class Completed(msgspec.Struct, frozen=True):
    """A completion that is not yet in the log: its closing entries, and its line of the ledger if a provider
    may bill it."""

    entries: list[Entry]
    usage: UsageEntry | None


class Crew(msgspec.Struct, frozen=True, kw_only=True):
    """Who a run works with. `context` is what the user might do as the drive began; `context_in` reads that
    anew, rules too, so that a demotion counts at once. `skills` is what the model is told of them."""

    target: Target
    card: ModelCard
    tools: list[ToolSpec]
    skills: str
    context: ToolContext
    context_in: Callable[[Connection], ToolContext | LuxxError]


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What the database says of a brief's user and provider."""

    caller: Caller
    picked: Picked
    rules: tuple[PlacedRule, ...]
    own_tools: OwnTools | None


class CrewFinder:
    """For the loop, at each drive; what the user may do is read again before tools run."""

    def __init__(
        self,
        providers: ProviderService,
        executor: ToolExecutor,
        workspaces: Workspaces,
        replay: ReplayService,
        own_tools_in: OwnToolsIn,
        shelf: Shelf,
    ) -> None:
        self._own_tools_in = own_tools_in
        self._shelf = shelf
        self._providers = providers
        self._executor = executor
        self._workspaces = workspaces
        self._replay = replay

    def read(self, session: Session, brief: ChatBrief) -> Seen:
        """In the transaction that reads the brief. Raises NotAllowed for a disabled user, NotFound or
        InvalidInput for a provider that is gone."""
        caller = user_as_caller(session.connection(), brief.user_id)
        asked = brief.request
        return Seen(
            caller=caller,
            picked=self._providers.pick(session, caller, asked.provider_id, asked.model),
            # Where no tools are offered none is expected; before one runs, the rules are read in any case.
            rules=rules_for(session.connection(), caller, brief.conversation_id) if asked.tools else (),
            own_tools=self._own_tools(session.connection(), brief),
        )

    def _own_tools(self, connection: Connection, brief: ChatBrief) -> OwnTools | None:
        """The user's, where the run was offered any that are not the server's."""
        known = self._executor.registry
        is_any = any(known.get(name) is None for name in brief.request.tools)
        return self._own_tools_in(connection, brief.user_id) if is_any else None

    async def make(
        self, brief: ChatBrief, seen: Seen, signal: CancelSignal, *, delegation_depth: int
    ) -> Crew:
        """`delegation_depth`: how deep may be delegated at all.

        Raises Unavailable where the embedded model cannot be started.
        """
        resolved = await self._providers.reach(seen.picked)
        # The directory is made now and in a thread: a slow disk must not hold up the database's writes.
        workspace = await asyncio.to_thread(self._workspaces.prepare_if_wanted, brief.user_id)
        await self._executor.registry.wait_for(brief.request.tools)
        level, judge = seen.caller.permission_level, self._executor.judge
        offer = _offered(brief.request, delegation_depth)
        tools = self._executor.registry.available_to(level, offer, tenant_id=seen.caller.tenant_id)
        if seen.own_tools is not None:
            tools += own_available_to(seen.own_tools, level, brief.request.tools)

        def context_of(
            caller: Caller, rules: tuple[PlacedRule, ...], own_tools: OwnTools | None
        ) -> ToolContext:
            return replace(
                _context(caller, rules, brief, signal, workspace),
                read_result=partial(self._read_result, caller, brief.run_id),
                own_tools=own_tools,
                offered=frozenset(offer),
            )

        def context_in(connection: Connection) -> ToolContext | LuxxError:
            try:
                caller = user_as_caller(connection, brief.user_id)
            except LuxxError as error:
                return error
            rules = rules_for(connection, caller, brief.conversation_id)
            return context_of(caller, rules, self._own_tools(connection, brief))

        offered = [tool.to_spec() for tool in tools if judge.is_offered(tool, seen.rules)]
        may_activate = any(tool.name == ACTIVATE_TOOL for tool in offered)
        return Crew(
            target=resolved.target,
            card=resolved.choice.card,
            tools=offered,
            skills=self._shelf.prompt if may_activate else "",
            context=context_of(seen.caller, seen.rules, seen.own_tools),
            context_in=context_in,
        )

    async def _read_result(
        self, caller: Caller, run_id: str, ref: str, offset: int, limit: int
    ) -> KeptOutput:
        """Of this run only, whatever the model names. Raises ToolFailed where there is no such output."""
        try:
            if "\0" in ref:
                raise NotFound("no call has such an id")
            found = await self._replay.result(caller, run_id, ref, offset=offset, limit=limit)
        except (NotFound, Gone) as error:
            raise ToolFailed(
                "no output of this run has this ref; an answer that was cut names its own, and what was not "
                "cut is known already"
            ) from error
        return KeptOutput(output=found.output, total=found.total)


def _offered(asked: ChatRequest, delegation_depth: int) -> list[str]:
    """What was asked for, and with any tool the one that reads on where an answer of it was cut."""
    depth = 0 if asked.delegated is None else asked.delegated.depth
    names = [name for name in asked.tools if depth < delegation_depth or name != DELEGATE_TOOL]
    return [*names, READ_RESULT_TOOL] if names else []


def _context(
    caller: Caller,
    rules: tuple[PlacedRule, ...],
    brief: ChatBrief,
    signal: CancelSignal,
    workspace: Path,
) -> ToolContext:
    return ToolContext(
        tenant_id=caller.tenant_id,
        rules=rules,
        user_id=caller.user_id,
        username=caller.username,
        user_permission_level=caller.permission_level,
        workspace=workspace,
        run_id=brief.run_id,
        cancelled=lambda: signal.is_fired,
    )
