"""Many tools of MCP servers: instead of all of them, a model gets one tool that finds some and one that calls
them, because their definitions would fill the prompt. What the model calls so is run, asked about and
recorded as the tool itself.
"""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from luxx.domain.mcp.offering import own_name, server_of
from luxx.domain.routing.matching import RoutedItem, Router
from luxx.errors import ToolFailed
from luxx.infra.store.search_words import stems_of, words_of
from luxx.tools.core import ToolContext, ToolDefinition, ToolSet
from luxx.tools.factory import tool
from luxx.tools.permissions.subjects import MCP_PREFIX
from luxx.wire.tool import CALL_TOOL, SEARCH_TOOL, ToolSpec
from luxx.wire.turn import Step

MOST_OFFERED = 40
"""Tools of MCP servers in a prompt; more are searched."""

SHARE_OF_WINDOW = 0.1
"""How much of the model's window their definitions may take; bigger ones are searched."""

CHARACTERS_PER_TOKEN = 4
"""Of JSON in English, for the share of the window only."""

MOST_FOUND = 8
MOST_SCHEMA_CHARACTERS = 24_000
"""Of all schemas in one answer; of further tools the answer has the name and the description."""

NOTHING_FOUND = (
    "no tool has one of these words: search with other English words, such as what the tool does, or the "
    "name of a server"
)

_SAME_MEANING = tuple(
    list[str](words.split())
    for words in (
        "appointment meeting event calendar schedule agenda",
        "availability available free busy freebusy slot",
        "big large size bytes length",
        "bug issue ticket problem report",
        "buy order purchase checkout cart",
        "chat message channel conversation post",
        "code source repository repo",
        "contact person people user member colleague",
        "create add new make insert",
        "delete remove erase drop trash clear",
        "document page note wiki article",
        "download fetch save export get",
        "drive route directions walk navigate travel way",
        "edit update change modify set",
        "find search query lookup",
        "folder directory",
        "history log commits changes",
        "invitation invite attendee respond",
        "mail email inbox letter",
        "metrics statistics monitor performance health usage",
        "money payment invoice charge refund",
        "move rename",
        "picture image photo screenshot",
        "place location address restaurant shop nearby",
        "record row entry item",
        "reply respond comment answer",
        "send write post publish",
        "show display view list read open",
        "slow slowest performance duration",
        "spreadsheet sheet table excel",
        "start run execute launch",
        "task todo reminder card",
        "temperature weather forecast rain",
        "time clock hour timezone date",
        "upload attach import",
        "website web page site url link browser",
    )
)
"""Words of requests beside those that names and descriptions of tools have for the same."""

_BETWEEN_WORDS = re.compile(r"[_\-.]+|(?<=[a-z0-9])(?=[A-Z])")


def with_search(offered: Sequence[ToolSpec], known: ToolSet, window: int | None) -> list[ToolSpec]:
    """The tools that a model gets: those of MCP servers, too, or, where these are too many, two that search
    and call them."""
    of_servers = [tool for tool in offered if tool.name.startswith(MCP_PREFIX)]
    tokens = len(msgspec.json.encode(of_servers)) / CHARACTERS_PER_TOKEN
    is_large = window is not None and tokens > SHARE_OF_WINDOW * window
    if len(of_servers) <= MOST_OFFERED and not is_large:
        return list(offered)
    found = (known.lookup(name) for name in (SEARCH_TOOL, CALL_TOOL))
    others = [tool for tool in offered if not tool.name.startswith(MCP_PREFIX)]
    return [*others, *(each[0].to_spec() for each in found if each is not None)]


@tool(
    name=SEARCH_TOOL,
    is_self_contained=True,
    description=(
        "Find tools of the MCP servers that you can use here. They are too many to be listed, so search "
        "before you say that you cannot do something. Returns up to eight tools with their names, "
        "descriptions and arguments, and the names of all servers. Then call one with tool_call."
    ),
    parameters={
        "query": {
            "type": "string",
            "minLength": 1,
            "maxLength": 1000,
            "description": "What the tool should do, in a few words, such as: create an issue on GitHub",
        }
    },
    required_params=["query"],
    category="agents",
)
def tool_search(arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
    query: str = arguments["query"]
    known = _usable(context)
    if not known:
        raise ToolFailed("no MCP server has a tool that you can use here")
    by_name = {definition.name: definition for definition in known}
    exact = [by_name[query]] if query in by_name else []
    router = Router([_item(definition) for definition in known])
    nearest = router.nearest(query, MOST_FOUND)
    if len(nearest) < MOST_FOUND and (others := _other_words(query)):
        # Only where the words of the request itself find too little, so that they decide.
        nearest += [item for item in router.nearest(others, 2 * MOST_FOUND) if item not in nearest]
    found = [*exact, *(by_name[item.name] for item in nearest if item.name != query)][:MOST_FOUND]
    left, shown = MOST_SCHEMA_CHARACTERS, list[dict[str, Any]]()
    for definition in found:
        entry: dict[str, Any] = {"name": definition.name, "description": definition.description}
        size = len(msgspec.json.encode(definition.parameters))
        if size <= left:
            left -= size
            entry["arguments"] = definition.parameters
        else:
            entry["note"] = f"search for {definition.name} to read its arguments"
        shown.append(entry)
    answer = {"tools": shown, "servers": sorted({server_of(definition.name) for definition in known})}
    return answer if shown else answer | {"note": NOTHING_FOUND}


@tool(
    name=CALL_TOOL,
    is_self_contained=True,
    description="Call a tool that tool_search found, by its name and with the arguments that it takes.",
    parameters={
        "name": {"type": "string", "minLength": 1, "maxLength": 100},
        "arguments": {"type": "object", "description": "As tool_search describes them"},
    },
    required_params=["name"],
    category="agents",
)
def tool_call(arguments: dict[str, Any]) -> None:
    """Reached only by calls that `called_tool` does not understand."""
    name = arguments["name"]
    raise ToolFailed(f"{name} is no tool of an MCP server; call it by its own name, or use {SEARCH_TOOL}")


class _Call(msgspec.Struct, frozen=True):
    """Some models write an object as text."""

    name: str
    arguments: dict[str, Any] | str | None = None


def called_tool(step: Step) -> Step:
    """The call of the tool that a call of `tool_call` names; the call itself if it names none."""
    try:
        call = msgspec.json.decode(str(step.arguments or ""), type=_Call)
    except (msgspec.MsgspecError, RecursionError):
        return step
    if not call.name.startswith(MCP_PREFIX):
        return step
    given = call.arguments
    arguments = given if isinstance(given, str) else msgspec.json.encode(given or {}).decode()
    return replace(step, name=call.name, arguments=arguments)


def searching_tools() -> list[ToolDefinition]:
    """Both tools. A run offers them where tools are searched."""
    return [replace(one.definition, is_on_demand=True) for one in (tool_search, tool_call)]


def _usable(context: ToolContext) -> list[ToolDefinition]:
    """The tools of MCP servers that the run may use."""
    known, offered = context.caller.tools, context.permissions.offered
    tools = [] if known is None else known.available_to(context.caller.permission_level)
    return [
        definition
        for definition in tools
        if definition.name.startswith(MCP_PREFIX) and (offered is None or definition.name in offered)
    ]


def _other_words(query: str) -> str:
    """Words with the meaning of those of a request."""
    asked = set(stems_of(words_of(query)))
    groups = (words for words in _SAME_MEANING if not asked.isdisjoint(stems_of(words)))
    return " ".join(word for words in groups for word in words)


def _item(definition: ToolDefinition) -> RoutedItem:
    name = _BETWEEN_WORDS.sub(" ", own_name(definition.name))
    arguments = _BETWEEN_WORDS.sub(" ", " ".join(definition.parameters.get("properties", {})))
    words = f"{server_of(definition.name)} {name} {name} {arguments} {definition.description}"
    return RoutedItem(kind="skill", name=definition.name, description=words)
