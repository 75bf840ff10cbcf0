"""A tool's schema and its typed arguments, both made from the signature of its function."""

import copy
import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from luxx.errors import ConfigError, ToolFailed
from luxx.tools.core import ToolContext


class Signature:
    """What `function` takes, as a schema, and how to call it with arguments that came as JSON.

    Every parameter needs a type msgspec knows; one annotated with a type in `given`, such as ToolContext, is
    not an argument: it gets what each call brings of this type.
    `Annotated[int, msgspec.Meta(description=…)]` describes a parameter. Raises ConfigError.
    """

    def __init__(
        self, tool: str, function: Callable[..., Any], given: tuple[type, ...] = (ToolContext,)
    ) -> None:
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except (NameError, TypeError) as error:
            raise ConfigError(f"tool {tool}: its annotations cannot be read: {error}") from error
        self.given: dict[str, type] = {}
        fields: list[Any] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name not in hints:
                raise ConfigError(f"tool {tool}: its parameter {parameter.name} has no type")
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ConfigError(f"tool {tool}: its parameter {parameter.name} cannot be given by name")
            hint = hints[parameter.name]
            if hint in given:
                self.given[parameter.name] = hint
            elif not _given_in_part(hint, given):
                fields.append(_field(parameter, hint))
            else:
                raise ConfigError(
                    f"tool {tool}: its parameter {parameter.name} must be annotated with the type alone"
                )
        self._struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self.schema = _schema(tool, self._struct)

    def bind(self, arguments: dict[str, Any], given: Mapping[type, Any]) -> dict[str, Any]:
        """The keyword arguments for one call. Raises ToolFailed where a value does not fit its type."""
        try:
            values = msgspec.convert(arguments, self._struct)
        except msgspec.ValidationError as error:
            raise ToolFailed(f"wrong arguments: {error}") from error
        bound = {name: getattr(values, name) for name in values.__struct_fields__}
        bound |= {name: given[wanted] for name, wanted in self.given.items()}
        return bound


def _given_in_part(hint: Any, given: tuple[type, ...]) -> bool:
    """Whether a type that a call brings is a part of this one: a model must not be able to fill it in."""
    return any(each in given for each in _parts_of(hint))


def _parts_of(hint: Any) -> Iterator[Any]:
    yield hint
    for part in typing.get_args(hint):
        yield from _parts_of(part)


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
