"""The sources of tools: what exists for which caller, in which order, and what is read for it."""

from collections.abc import Iterable
from typing import Any

import pytest
from sqlalchemy.orm import Session

from luxx.domain.accounts.caller import Caller
from luxx.errors import InvalidInput
from luxx.tools.compositions.chain import traits_of
from luxx.tools.compositions.checking import check_composition
from luxx.tools.core import CommandPermission, ToolContext, ToolDefinition, ToolRegistry, ToolSet
from luxx.tools.sources import ToolSource, ToolSources
from luxx.wire.tool import Composition, Member

LEVEL = CommandPermission.EXECUTE


def definition(name: str, description: str = "d") -> ToolDefinition:
    def handler(arguments: dict[str, Any], context: ToolContext) -> None:
        """Does nothing."""

    return ToolDefinition(
        name=name,
        description=description,
        parameters={"type": "object"},
        handler=handler,
        required_permission=LEVEL,
    )


def caller_of(tenant_id: int) -> Caller:
    return Caller(user_id=1, tenant_id=tenant_id, username="ann", permission_level=LEVEL, sign_in_id="s")


class ToolsOfTenants(ToolSource):
    """A source whose tools belong to tenants, and that counts how often it is asked."""

    def __init__(self, names_by_tenant: dict[int, list[str]]) -> None:
        self._tools = {
            tenant_id: ToolRegistry(definition(name, f"of tenant {tenant_id}") for name in names)
            for tenant_id, names in names_by_tenant.items()
        }
        self.asked = 0
        self.awaited: list[str] = []

    def for_caller(self, session: Session, caller: Caller) -> ToolSet:
        self.asked += 1
        return self._tools.get(caller.tenant_id, ToolRegistry())

    async def wait_for(self, names: Iterable[str]) -> None:
        self.awaited += names


class StoredTools(ToolsOfTenants):
    reads_database = True


def test_each_caller_has_the_tools_of_the_own_tenant_in_the_order_of_the_sources() -> None:
    server = ToolRegistry([definition("b"), definition("a")])
    tenants = ToolsOfTenants({1: ["z", "a"], 2: ["y"]})
    sources = ToolSources(server, tenants, ToolsOfTenants({1: ["x", "z"]}))
    with Session() as session:
        ours, theirs = (sources.for_caller(session, caller_of(tenant_id)) for tenant_id in (1, 2))
    assert [tool.name for tool in ours.list_all()] == ["b", "a", "z", "x"]
    assert [tool.name for tool in theirs.list_all()] == ["b", "a", "y"]
    assert (ours.lookup("y"), theirs.lookup("z"), theirs.lookup("x")) == (None, None, None)


def test_of_several_tools_with_one_name_the_first_source_counts() -> None:
    sources = ToolSources(ToolRegistry([definition("a", "of the server")]), ToolsOfTenants({1: ["a"]}))
    with Session() as session:
        tools = sources.for_caller(session, caller_of(1))
    found = tools.lookup("a")
    assert found is not None
    assert [tool.description for tool in (found[0], *tools.list_all())] == ["of the server"] * 2


def test_a_source_that_reads_the_database_is_asked_only_for_names_that_the_others_do_not_have() -> None:
    tenants = ToolsOfTenants({1: ["b"]})
    own = StoredTools({1: ["c"]})
    sources = ToolSources(ToolRegistry([definition("a")]), tenants).followed_by(own)
    with Session() as session:
        for names, asked in (((), 0), (("a", "b"), 0), (("a", "c"), 1), (None, 2)):
            tools = sources.for_caller(session, caller_of(1), names)
            assert own.asked == asked
            # The others are complete whatever the names are.
            assert [tool.name for tool in tools.list_all()][:2] == ["a", "b"]
    assert tenants.asked == 4


def test_a_tool_that_is_added_later_is_found_by_a_caller_who_asked_before() -> None:
    server = ToolRegistry([definition("a")])
    with Session() as session:
        tools = ToolSources(server).for_caller(session, caller_of(1))
    server.register(definition("b"))
    assert tools.lookup("b") is not None
    server.remove("a")
    assert [tool.name for tool in tools.list_all()] == ["b"]


async def test_waiting_for_tools_reaches_every_source() -> None:
    first, second = ToolsOfTenants({}), StoredTools({})
    await ToolSources(ToolRegistry(), first, second).wait_for(["a", "b"])
    assert (first.awaited, second.awaited) == (["a", "b"], ["a", "b"])


def test_tools_of_the_owners_tenant_can_be_members_and_those_of_others_are_unknown() -> None:
    def composition(tool: str) -> Composition:
        return Composition(name="chain", description="A chain.", members=[Member(id="a", tool=tool)])

    sources = ToolSources(ToolRegistry(), ToolsOfTenants({1: ["mcp__crm__find"], 2: ["mcp__other__find"]}))
    with Session() as session:
        shared = sources.for_caller(session, caller_of(1))
    ours, theirs = composition("mcp__crm__find"), composition("mcp__other__find")
    check_composition(ours, shared, LEVEL)
    assert traits_of(ours, shared).problems == []
    with pytest.raises(InvalidInput):
        check_composition(theirs, shared, LEVEL)
    traits = traits_of(theirs, shared)
    assert traits.required_permission == CommandPermission.READ_ONLY
    assert traits.problems == ["the tool mcp__other__find no longer exists"]
