"""Which tools exist for whom: the sources of a server's tools, asked for one caller.

The sources, in the order in which their tools are listed: the registry (built-in tools and those of plugins),
skills, MCP servers, and the compositions of a user. Everything that asks which tools there are, asks here.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import ClassVar, Protocol

from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.tools.core import FoundTool, ToolCaller, ToolDefinition, ToolRegistry, ToolSet
from luxx.wire.model_settings import MemoryMode
from luxx.wire.tool import SkillHead


class ToolSource(Protocol):
    """Where tools of one kind come from."""

    reads_database: ClassVar[bool] = False
    """Whether `for_caller` reads the database. Such a source is not asked for names that others have."""

    is_empty: bool = False
    """Whether it has no tools for anybody now, so that it is not asked."""

    def for_caller(self, session: Session, caller: Caller) -> ToolSet:
        """The tools of this source that exist for the caller, also those above the caller's level.

        The set outlives the session.
        """
        ...

    async def wait_for(self, names: Iterable[str]) -> None:
        """Waits, for a bounded time, for those of these tools that come some time after the start."""


class CallerTools(ToolSet):
    """The tools that exist for one caller, in the order of their sources. Of several tools with one name, the
    first counts."""

    def __init__(self, sets: Sequence[ToolSet]) -> None:
        self._sets = sets

    def lookup(self, name: str) -> FoundTool | None:
        for tools in self._sets:
            if (found := tools.lookup(name)) is not None:
                return found
        return None

    def list_all(self) -> list[ToolDefinition]:
        by_name: dict[str, ToolDefinition] = {}
        for tools in self._sets:
            for tool in tools.list_all():
                by_name.setdefault(tool.name, tool)
        return list(by_name.values())


class ToolSources:
    """The registry, whose tools are for everyone, and then the other sources in their order."""

    def __init__(self, registry: ToolRegistry, *sources: ToolSource) -> None:
        self._registry = registry
        self._sources = sources

    @property
    def on_demand(self) -> frozenset[str]:
        """The names of the tools of everyone that are offered only where something asks for them."""
        return frozenset(tool.name for tool in self._registry.list_all() if tool.is_on_demand)

    def followed_by(self, source: ToolSource) -> "ToolSources":
        """These sources and one more."""
        return ToolSources(self._registry, *self._sources, source)

    def for_caller(
        self, session: Session, caller: Caller, names: Collection[str] | None = None
    ) -> CallerTools:
        """The tools that exist for the caller, also those above the caller's level.

        With `names`, tools that are read from the database are among them only if one of the names is not
        found without them.
        """
        sets: list[ToolSet] = [self._registry]
        missing = None if names is None else _not_in(self._registry, names)
        for source in self._sources:
            if source.is_empty:
                continue
            if missing or missing is None or not source.reads_database:
                tools = source.for_caller(session, caller)
                sets.append(tools)
                missing = missing and _not_in(tools, missing)
        return CallerTools(sets)

    async def wait_for(self, names: Iterable[str]) -> None:
        """Waits, for a bounded time, for those of these tools that come some time after the start."""
        for source in self._sources:
            await source.wait_for(names)


def _not_in(tools: ToolSet, names: Iterable[str]) -> list[str]:
    return [name for name in names if tools.lookup(name) is None]


def tool_caller(
    caller: Caller,
    run_id: str | None = None,
    tools: ToolSet | None = None,
    memory: MemoryMode = MemoryMode.ON,
    knowledge: Sequence[str] = (),
    skills: Mapping[str, SkillHead] | None = None,
) -> ToolCaller:
    """The caller of a service as the caller of a tool."""
    return ToolCaller(
        user_id=caller.user_id,
        username=caller.username,
        permission_level=caller.permission_level,
        tenant_id=caller.tenant_id,
        run_id=run_id,
        tools=tools,
        memory=memory,
        knowledge=tuple(knowledge),
        skills={} if skills is None else skills,
    )
