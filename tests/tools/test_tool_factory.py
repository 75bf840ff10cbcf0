"""`@tool`: the forms of a tool function, and the results of what it returns or raises."""

import asyncio
import functools
from typing import Annotated, Any

import msgspec
import pytest

from luxx.errors import ConfigError, ToolFailed
from luxx.tools.core import CommandPermission, ToolCaller, ToolContext, ToolResult
from luxx.tools.factory import tool


class Place(msgspec.Struct):
    city: str
    zip_code: int = 0


def test_a_returned_value_becomes_a_success() -> None:
    @tool(name="t", description="d", parameters={"a": {"type": "string"}}, required_params=["a"])
    def t(arguments: dict[str, Any]) -> Any:
        return {"items": [arguments["a"]], "count": 1}

    assert t({"a": "x"}).to_dict() == {
        "success": True,
        "data": {"items": ["x"], "count": 1},
        "error": None,
    }
    assert t.definition.parameters["required"] == ["a"]
    assert t.definition.parameters["additionalProperties"] is False


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("msg"), "ValueError: msg"),
        (ToolFailed("in its own words"), "in its own words"),
        (Exception(), "Exception"),
        (KeyError("k"), "KeyError: 'k'"),
        (UnprintableError(), "UnprintableError"),
    ],
)
def test_a_raised_error_becomes_a_failure(error: Exception, words: str) -> None:
    @tool(name="t", description="d", parameters={})
    def t(arguments: dict[str, Any]) -> Any:
        raise error

    assert t({}).to_dict() == {"success": False, "data": None, "error": words}


def test_a_returned_tool_result_passes_as_it_is() -> None:
    @tool(name="t", description="d", parameters={})
    def t(arguments: dict[str, Any]) -> ToolResult:
        return ToolResult(success=False, data={"half": 1}, error="only half")

    assert t({}).to_dict() == {"success": False, "data": {"half": 1}, "error": "only half"}


def test_missing_required_arguments_are_named_and_the_function_is_not_run() -> None:
    runs: list[dict[str, Any]] = []

    @tool(name="t", description="d", parameters={"arg1": {"type": "string"}}, required_params=["arg1"])
    def t(arguments: dict[str, Any]) -> None:
        runs.append(arguments)

    result = t({})
    assert not result.success
    assert 'the argument "arg1" is missing' in result.error
    assert runs == []


async def test_an_async_function_with_a_context_gets_it() -> None:
    @tool(name="t", description="d", parameters={})
    async def t(arguments: dict[str, Any], context: ToolContext) -> str:
        await asyncio.sleep(0)
        return context.caller.username

    context = ToolContext(
        caller=ToolCaller(user_id=1, username="ann", permission_level=CommandPermission.READ_ONLY)
    )
    assert t.definition.is_async
    assert (await t({}, context)).data == "ann"


async def test_cancellation_passes_through_an_async_tool() -> None:
    @tool(name="t", description="d", parameters={})
    async def t(arguments: dict[str, Any]) -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await t({})


def test_an_annotated_function_needs_no_schema() -> None:
    @tool()
    def find(
        place: Place,
        limit: Annotated[int, msgspec.Meta(ge=1, le=9, description="how many")] = 5,
        tags: list[str] = ["a"],  # noqa: B006
    ) -> Any:
        """Find a place."""
        return [place.city, place.zip_code, limit, tags]

    schema = find.definition.parameters
    assert (find.definition.name, find.definition.description) == ("find", "Find a place.")
    assert schema["required"] == ["place"]
    assert schema["properties"]["limit"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 9,
        "description": "how many",
        "default": 5,
    }
    assert find({"place": {"city": "Rome"}}).data == ["Rome", 0, 5, ["a"]]
    assert "limit" in find({"place": {"city": "Rome"}, "limit": 10}).error
    assert 'no argument "plac"; did you mean "place"?' in find({"plac": 1}).error


async def test_an_annotated_async_function_gets_the_context_and_does_not_show_it() -> None:
    @tool()
    async def who(context: ToolContext, greeting: str = "hi") -> str:
        """Who asks."""
        return f"{greeting} {context.caller.username}"

    assert list(who.definition.parameters["properties"]) == ["greeting"]
    context = ToolContext(
        caller=ToolCaller(user_id=1, username="ann", permission_level=CommandPermission.READ_ONLY)
    )
    assert (await who({}, context)).data == "hi ann"


def test_a_complete_schema_is_used_unchanged() -> None:
    schema = {"type": "object", "properties": {"type": {"type": "string"}}, "additionalProperties": True}

    @tool(name="t", description="d", parameters=schema, required_params=["type"])
    def t(arguments: dict[str, Any]) -> Any:
        return arguments

    assert t({"type": "x", "more": 1}).success
    assert not t({"more": 1}).success


def test_a_parameter_may_have_the_name_of_a_schema_keyword() -> None:
    @tool(name="t", description="d", parameters={"type": {"type": "string"}, "title": {"type": "string"}})
    def t(arguments: dict[str, Any]) -> Any:
        return arguments

    assert set(t.definition.parameters["properties"]) == {"type", "title"}


def without_docstring(arguments: dict[str, Any]) -> None: ...


def untyped(a) -> None:  # type: ignore[no-untyped-def]
    """Doc."""


def starred(*a: int) -> None:
    """Doc."""


def unknown_type(a: functools.partial) -> None:  # type: ignore[type-arg]
    """Doc."""


def three(arguments: dict[str, Any], context: ToolContext, more: int) -> None:
    """Doc."""


@pytest.mark.parametrize("function", [without_docstring, untyped, starred, unknown_type, three])
def test_a_function_that_cannot_be_a_tool_is_refused_by_name(function: Any) -> None:
    with pytest.raises(ConfigError, match=f"tool {function.__name__}"):
        tool()(function)


@pytest.mark.parametrize(
    "settings",
    [{"risk": "huge"}, {"timeout": 0}, {"parameters": {}, "required_params": ["ghost"]}],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="tool t"):
        tool(name="t", description="d", **settings)(without_docstring)


@pytest.mark.parametrize("value", [object(), asyncio, {"a": object()}])
def test_a_result_that_json_cannot_encode_is_a_failure(value: Any) -> None:
    @tool(name="t", description="d", parameters={})
    def t(arguments: dict[str, Any]) -> Any:
        return value

    assert "cannot be written as JSON" in t({}).error


def test_an_answer_that_contains_itself_is_a_failure() -> None:
    @tool(name="t", description="d", parameters={})
    def t(arguments: dict[str, Any]) -> Any:
        loop: list[Any] = []
        loop.append(loop)
        return loop

    assert "cannot be written as JSON" in t({}).error
