"""What narrows a run's tools: skills, and the list that a subagent was given, which leaves nothing else."""

import pytest

from luxx.tools.core import ToolDefinition
from luxx.tools.permissions.narrowing import closed_by, leaves_name
from luxx.wire.rule import Narrowing

GIVEN = Narrowing(by="", entries=("mychain", "result_read"))
SKILL = Narrowing(by="a-skill", entries=("mychain",))


def tool(name: str, *, only_asks: bool = False) -> ToolDefinition:
    async def handler(arguments: object, context: object) -> None: ...

    parameters = {"type": "object", "properties": {}}
    return ToolDefinition(
        name=name, description="d", parameters=parameters, handler=handler, only_asks=only_asks
    )


def test_members_of_a_composition_that_a_subagent_was_given_are_not_closed_to_it() -> None:
    member = tool("file_read")
    assert closed_by([GIVEN], member, is_member=True) is None
    assert closed_by([GIVEN], member) is GIVEN
    assert closed_by([GIVEN, SKILL], member, is_member=True) is SKILL


@pytest.mark.parametrize("name", ["activate_skill", "skill_read", "ask_clarification"])
def test_a_subagent_has_only_the_tools_it_was_given_and_a_skill_leaves_what_does_nothing_but_tell(
    name: str,
) -> None:
    one = tool(name, only_asks=name.startswith("ask_"))
    assert closed_by([GIVEN], one) is GIVEN
    assert closed_by([SKILL], one) is None
    assert not leaves_name([GIVEN], name, only_asks=one.only_asks)
    assert leaves_name([SKILL], name, only_asks=one.only_asks)
    assert closed_by([GIVEN], tool("result_read")) is None
    assert closed_by([Narrowing(by="", entries=())], tool("result_read")) is not None
