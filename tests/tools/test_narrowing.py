"""What narrows the tools of a run: active skills, and the list of a subagent."""

import pytest

from luxx.tools.core import ToolDefinition
from luxx.tools.permissions.rules import allows_name, blocking_narrowing
from luxx.wire.tool import Narrowing

GIVEN = Narrowing(by="", entries=("mychain", "result_read"))
SKILL = Narrowing(by="a-skill", entries=("mychain",))


def tool(name: str, *, only_asks: bool = False) -> ToolDefinition:
    async def handler(arguments: object, context: object) -> None: ...

    parameters = {"type": "object", "properties": {}}
    return ToolDefinition(
        name=name, description="d", parameters=parameters, handler=handler, only_asks=only_asks
    )


def test_a_subagent_may_run_the_members_of_its_composition() -> None:
    member = tool("file_read")
    assert blocking_narrowing([GIVEN], member, is_member=True) is None
    assert blocking_narrowing([GIVEN], member) is GIVEN
    assert blocking_narrowing([GIVEN, SKILL], member, is_member=True) is SKILL


@pytest.mark.parametrize("name", ["activate_skill", "skill_read", "ask_clarification"])
def test_a_subagent_has_only_its_listed_tools_and_a_skill_keeps_tools_that_only_ask_or_report(
    name: str,
) -> None:
    definition = tool(name, only_asks=name.startswith("ask_"))
    assert blocking_narrowing([GIVEN], definition) is GIVEN
    assert blocking_narrowing([SKILL], definition) is None
    assert not allows_name([GIVEN], name, only_asks=definition.only_asks)
    assert allows_name([SKILL], name, only_asks=definition.only_asks)
    assert blocking_narrowing([GIVEN], tool("result_read")) is None
    assert blocking_narrowing([Narrowing(by="", entries=())], tool("result_read")) is not None
