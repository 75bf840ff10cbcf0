"""Tools of others: modules named in `tools.modules`, and packages with the entry point `luxx.tools`."""

import importlib
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, cast

from luxx.errors import ConfigError
from luxx.infra.store.engine import Store
from luxx.tools.core import ToolDefinition, ToolRegistry
from luxx.tools.factory import ToolFunction
from luxx.tools.hooks import Hook, describe
from luxx.tools.service_tools import ServiceTool

Found = ToolDefinition | ServiceTool | Hook
ENTRY_POINT_GROUP = "luxx.tools"


def installed_entry_points() -> list[EntryPoint]:
    """The entry points of installed packages that bring tools."""
    return list(entry_points(group=ENTRY_POINT_GROUP))


def load_modules(
    registry: ToolRegistry,
    names: Iterable[str],
    entry_points: Iterable[EntryPoint] = (),
    store: Store | None = None,
) -> list[str]:
    """Register the tools and hooks found there; the names of the tools, in order.

    An entry point may name a module, one tool, or a list of tools. A tool met twice counts once. Tools made
    of service functions have their sessions from `store`, and are left out where there is none.
    Raises ConfigError naming the module that cannot be imported or holds no tool.
    """
    seen: dict[int, Found] = {}
    for name in names:
        _collect(seen, f"tools.modules: {name}", _imported(name))
    for entry in entry_points:
        _collect(seen, f"entry point {entry.name} ({entry.value})", _loaded(entry))
    for hook in seen.values():
        if isinstance(hook, Hook):
            registry.hooks.add(hook)
    tools = [tool for each in seen.values() if (tool := _definition(each, store)) is not None]
    for definition in tools:
        registry.register(definition)
    return [definition.name for definition in tools]


def _definition(found: Found, store: Store | None) -> ToolDefinition | None:
    if isinstance(found, ServiceTool):
        return None if store is None else found.on(store)
    return found if isinstance(found, ToolDefinition) else None


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"tools.modules: {name} cannot be imported: {describe(error)}") from error


def _loaded(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"entry point {entry.name} ({entry.value}) cannot be imported: {describe(error)}"
        ) from error


def _collect(seen: dict[int, Found], where: str, found: Any) -> None:
    tools = list(_tools_in(found))
    if not tools:
        raise ConfigError(f"{where} holds no tool; decorate a function in it with @tool")
    seen.update({id(definition): definition for definition in tools})


def _tools_in(found: Any) -> Iterator[Found]:
    if isinstance(found, ModuleType):
        candidates: Iterable[Any] = list(vars(found).values())
    elif isinstance(found, list | tuple):
        candidates = cast("list[Any] | tuple[Any, ...]", found)
    else:
        candidates = [found]
    for value in candidates:
        if isinstance(value, ToolFunction):
            yield value.definition
        elif isinstance(value, Found):
            yield value
