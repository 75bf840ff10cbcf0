"""A tool's schema and its typed arguments, both made from the signature of its function."""

import copy
import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any

import msgspec

from luxx.errors import ConfigError, ToolFailed
from luxx.tools.core import ToolContext


class Signature:
    """What `function` takes, as a schema, and how to call it with arguments that came as JSON.

    Every parameter needs a type msgspec knows; one annotated ToolContext gets the context.
    `Annotated[int, msgspec.Meta(description=…)]` describes a parameter. Raises ConfigError.
    """

    def __init__(self, tool: str, function: Callable[..., Any]) -> None:
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except (NameError, TypeError) as error:
            raise ConfigError(f"tool {tool}: its annotations cannot be read: {error}") from error
        self.context_name: str | None = None
        fields: list[Any] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name not in hints:
                raise ConfigError(f"tool {tool}: its parameter {parameter.name} has no type")
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ConfigError(f"tool {tool}: its parameter {parameter.name} cannot be given by name")
            if hints[parameter.name] is ToolContext:
                self.context_name = parameter.name
            else:
                fields.append(_field(parameter, hints[parameter.name]))
        self._struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self.schema = _schema(tool, self._struct)

    def bind(self, arguments: dict[str, Any], context: ToolContext) -> dict[str, Any]:
        """The keyword arguments for one call. Raises ToolFailed where a value does not fit its type."""
        try:
            values = msgspec.convert(arguments, self._struct)
        except msgspec.ValidationError as error:
            raise ToolFailed(f"wrong arguments: {error}") from error
        bound = {name: getattr(values, name) for name in values.__struct_fields__}
        if self.context_name:
            bound[self.context_name] = context
        return bound


def _field(parameter: inspect.Parameter, hint: Any) -> Any:
    if parameter.default is parameter.empty:
        return (parameter.name, hint)
    default: Any = parameter.default
    if isinstance(default, list | dict | set):
        fresh = functools.partial(copy.deepcopy, typing.cast(Any, default))
        return (parameter.name, hint, msgspec.field(default_factory=fresh))
    return (parameter.name, hint, parameter.default)


def _schema(tool: str, struct: type[msgspec.Struct]) -> dict[str, Any]:
    try:
        (top,), parts = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"tool {tool}: its parameters have a type without a schema: {error}") from error
    schema = parts.pop(top["$ref"].removeprefix("#/$defs/"))
    schema.pop("title", None)
    return {**schema, "$defs": parts} if parts else schema
