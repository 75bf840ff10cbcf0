"""Loads plugin tools: modules named in `tools.modules`, and packages with the entry point `luxx.tools`."""

import importlib
from collections.abc import Iterable, Iterator
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Any, cast

from luxx.errors import ConfigError
from luxx.infra.store.engine import Store
from luxx.tools.core import ToolDefinition, ToolRegistry
from luxx.tools.factory import ToolFunction
from luxx.tools.hooks import ToolHook, describe_error
from luxx.tools.service_tools import ServiceTool

LoadedItem = ToolDefinition | ServiceTool | ToolHook
ENTRY_POINT_GROUP = "luxx.tools"


def installed_entry_points() -> list[EntryPoint]:
    """The entry points of installed packages in the group `luxx.tools`."""
    return list(entry_points(group=ENTRY_POINT_GROUP))


def load_modules(
    registry: ToolRegistry,
    names: Iterable[str],
    entry_points: Iterable[EntryPoint] = (),
    store: Store | None = None,
) -> list[str]:
    """Register the tools and hooks of these modules and entry points; return the tool names, in order.

    An entry point may name a module, one tool, or a list of tools. Duplicates are registered once. Service
    tools take their sessions from `store` and are skipped without one.
    Raises ConfigError that names a module without tools or one that cannot be imported.
    """
    items_by_id: dict[int, LoadedItem] = {}
    for name in names:
        _collect(items_by_id, f"tools.modules: {name}", _import_module(name))
    for entry in entry_points:
        _collect(items_by_id, f"entry point {entry.name} ({entry.value})", _load_entry_point(entry))
    for hook in items_by_id.values():
        if isinstance(hook, ToolHook):
            registry.hooks.add(hook)
    tools = [tool for each in items_by_id.values() if (tool := _definition(each, store)) is not None]
    for definition in tools:
        registry.register(definition)
    return [definition.name for definition in tools]


def _definition(item: LoadedItem, store: Store | None) -> ToolDefinition | None:
    if isinstance(item, ServiceTool):
        return None if store is None else item.bind_store(store)
    return item if isinstance(item, ToolDefinition) else None


def _import_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"tools.modules: {name} cannot be imported: {describe_error(error)}") from error


def _load_entry_point(entry: EntryPoint) -> Any:
    try:
        return entry.load()
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"entry point {entry.name} ({entry.value}) cannot be imported: {describe_error(error)}"
        ) from error


def _collect(items_by_id: dict[int, LoadedItem], where: str, item: Any) -> None:
    tools = list(_tools_in(item))
    if not tools:
        raise ConfigError(f"{where} contains no tool; decorate a function in it with @tool")
    items_by_id.update({id(tool): tool for tool in tools})


def _tools_in(item: Any) -> Iterator[LoadedItem]:
    if isinstance(item, ModuleType):
        candidates: Iterable[Any] = list(vars(item).values())
    elif isinstance(item, list | tuple):
        candidates = cast("list[Any] | tuple[Any, ...]", item)
    else:
        candidates = [item]
    for value in candidates:
        if isinstance(value, ToolFunction):
            yield value.definition
        elif isinstance(value, LoadedItem):
            yield value
