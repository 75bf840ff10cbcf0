"""The `@tool` decorator, which makes a tool of a function, sync or async.

The function takes `(arguments)` or `(arguments, context)` and has a schema, or it has annotated parameters.
Its return value becomes the data of the result, and an exception becomes the error.
"""

import copy
import functools
import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from luxx.errors import ConfigError, ToolFailed
from luxx.tools.core import (
    CommandPermission,
    Risk,
    ToolCaller,
    ToolContext,
    ToolDefinition,
    ToolResult,
    cache_always,
)
from luxx.tools.hooks import result_of, result_of_error
from luxx.tools.schema import ArgumentCheck, object_schema, with_items


class Signature:
    """The parameters of `function` as a JSON schema, and the conversion of JSON arguments to its parameters.

    Every parameter needs a type that msgspec supports. A parameter with a type in `injected`, such as
    ToolContext, is not part of the schema: `bind` fills it. `Annotated[int, msgspec.Meta(description=…)]`
    describes a parameter. Raises ConfigError.
    """

    def __init__(
        self, tool: str, function: Callable[..., Any], injected: tuple[type, ...] = (ToolContext,)
    ) -> None:
        try:
            hints = typing.get_type_hints(function, include_extras=True)
        except (NameError, TypeError) as error:
            raise ConfigError(f"tool {tool}: its annotations cannot be read: {error}") from error
        self.injected: dict[str, type] = {}
        fields: list[Any] = []
        for parameter in inspect.signature(function).parameters.values():
            if parameter.name not in hints:
                raise ConfigError(f"tool {tool}: its parameter {parameter.name} has no type")
            if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
                raise ConfigError(f"tool {tool}: its parameter {parameter.name} cannot be given by name")
            hint = hints[parameter.name]
            if hint in injected:
                self.injected[parameter.name] = hint
            elif any(part in injected for part in _parts_of(hint)):
                # A model must not be able to fill it in.
                raise ConfigError(
                    f"tool {tool}: its parameter {parameter.name} must be annotated with the type alone"
                )
            else:
                fields.append(_field(parameter, hint))
        self._struct = msgspec.defstruct("Arguments", fields, kw_only=True, forbid_unknown_fields=True)
        self.schema = _schema(tool, self._struct)

    def bind(self, arguments: dict[str, Any], injected: Mapping[type, Any]) -> dict[str, Any]:
        """The keyword arguments for one call. Raises ToolFailed for a value of the wrong type."""
        try:
            values = msgspec.convert(arguments, self._struct)
        except msgspec.ValidationError as error:
            raise ToolFailed(f"wrong arguments: {error}") from error
        bound = {name: getattr(values, name) for name in values.__struct_fields__}
        bound |= {name: injected[parameter_type] for name, parameter_type in self.injected.items()}
        return bound


def _parts_of(hint: Any) -> Iterator[Any]:
    yield hint
    for part in typing.get_args(hint):
        yield from _parts_of(part)


def _field(parameter: inspect.Parameter, hint: Any) -> Any:
    default: Any = parameter.default
    if default is parameter.empty:
        return (parameter.name, hint)
    if isinstance(default, list | dict | set):
        default = msgspec.field(default_factory=functools.partial(copy.deepcopy, typing.cast(Any, default)))
    return (parameter.name, hint, default)


def _schema(tool: str, struct: type[msgspec.Struct]) -> dict[str, Any]:
    try:
        (top,), parts = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    except (TypeError, ValueError) as error:
        raise ConfigError(f"tool {tool}: its parameters have a type without a schema: {error}") from error
    schema = parts.pop(top["$ref"].removeprefix("#/$defs/"))
    schema.pop("title", None)
    return {**schema, "$defs": parts} if parts else schema


class ToolFunction:
    """A function decorated with `@tool`; a registry takes its `definition`.

    A call checks the arguments, runs the function and returns a ToolResult (an awaitable of one if the
    function is async). Permissions, timeout and cutting belong to the executor.
    """

    def __init__(self, function: Callable[..., Any], definition: ToolDefinition) -> None:
        functools.update_wrapper(self, function)
        self.definition = definition

    @functools.cached_property
    def _check(self) -> ArgumentCheck:
        """Compiled when it is called without a registry, which compiles the schema itself."""
        return ArgumentCheck(self.definition.name, self.definition.parameters)

    def __call__(self, arguments: dict[str, Any] | None = None, context: ToolContext | None = None) -> Any:
        call_arguments = arguments or {}
        call_context = context or ToolContext(
            caller=ToolCaller(user_id=0, username="", permission_level=CommandPermission.READ_ONLY)
        )
        if self.definition.is_async:
            return self._run_async(call_arguments, call_context)
        try:
            self._require_valid(call_arguments)
            return result_of(self.definition.handler(call_arguments, call_context))
        except Exception as error:
            return result_of_error(error)

    async def _run_async(self, arguments: dict[str, Any], context: ToolContext) -> ToolResult:
        try:
            self._require_valid(arguments)
            return result_of(await self.definition.handler(arguments, context))
        except Exception as error:
            return result_of_error(error)

    def _require_valid(self, arguments: dict[str, Any]) -> None:
        if problems := self._check.problems(arguments):
            raise ToolFailed("; ".join(problems.values()))


def tool(
    name: str | None = None,
    description: str | None = None,
    parameters: dict[str, Any] | None = None,
    required_params: Sequence[str] = (),
    category: str = "general",
    required_permission: CommandPermission = CommandPermission.READ_ONLY,
    risk: Risk | str = Risk.LOW,
    repeatable: bool = False,
    timeout: float | None = None,
    subject: str = "",
    brings_untrusted: bool = False,
    is_egress: bool = False,
    starts_programs: bool = False,
    is_self_contained: bool = False,
    keeps: Callable[[ToolResult], bool] = cache_always,
) -> Callable[[Callable[..., Any]], ToolFunction]:
    """Make a tool of a function. Default name and description: the function's name and docstring.

    `parameters`: a JSON schema of type object, or only its properties. The other parameters are those of
    `ToolDefinition`. Raises ConfigError.
    """

    def decorate(function: Callable[..., Any]) -> ToolFunction:
        own_name = name or function.__name__
        text = description or inspect.getdoc(function)
        if not text:
            raise ConfigError(f"tool {own_name}: it needs a description or a docstring")
        if timeout is not None and timeout <= 0:
            raise ConfigError(f"tool {own_name}: its timeout must be more than 0 seconds")
        try:
            checked_risk = Risk(risk)
        except ValueError as error:
            raise ConfigError(f"tool {own_name}: its risk is {risk!r}; use {', '.join(Risk)}") from error
        handler, schema = _handler(own_name, function, parameters)
        definition = ToolDefinition(
            name=own_name,
            description=text,
            parameters=with_items(object_schema(own_name, schema, required_params)),
            handler=handler,
            category=category,
            required_permission=CommandPermission(required_permission),
            risk=checked_risk,
            repeatable=repeatable,
            timeout=timeout,
            subject=subject,
            brings_untrusted=brings_untrusted,
            is_egress=is_egress,
            starts_programs=starts_programs,
            is_self_contained=is_self_contained,
            keeps=keeps,
        )
        return ToolFunction(function, definition)

    return decorate


def _handler(
    name: str, function: Callable[..., Any], parameters: dict[str, Any] | None
) -> tuple[Callable[..., Any], dict[str, Any] | None]:
    """A handler that calls the function with `(arguments, context)`, and its schema."""
    names = list(inspect.signature(function).parameters)
    if parameters is not None or names[:1] == ["arguments"]:
        if not 1 <= len(names) <= 2:
            raise ConfigError(f"tool {name}: its function must take (arguments) or (arguments, context)")
        takes_context, schema = len(names) == 2, parameters

        def run(arguments: dict[str, Any], context: ToolContext) -> Any:
            return function(arguments, context) if takes_context else function(arguments)
    else:
        signature = Signature(name, function)
        schema = signature.schema

        def run(arguments: dict[str, Any], context: ToolContext) -> Any:
            return function(**signature.bind(arguments, {ToolContext: context}))

    if not inspect.iscoroutinefunction(function):
        return run, schema

    async def run_async(arguments: dict[str, Any], context: ToolContext) -> Any:
        return await run(arguments, context)

    return run_async, schema
