"""The JSON schema of a tool's arguments: normalization, compilation, and messages for violations.

`factory.Signature` makes a schema from the signature of a function.
"""

import asyncio
import copy
import difflib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from typing import Any, cast

import jsonschema
import msgspec
from jsonschema import validators
from jsonschema.exceptions import SchemaError, ValidationError
from referencing import Registry
from referencing.exceptions import Unresolvable

from luxx.errors import ConfigError, ToolFailed
from luxx.tools.pattern import compile_regex

_SCHEMA_KEYWORDS = {"type", "properties", "required", "additionalProperties", "$defs", "title", "description"}
_MAX_PROBLEMS = 10
_NO_OTHER_SCHEMAS: Any = cast(Any, Registry)()
_MAX_PROBLEM_LENGTH = 300
_MAX_NAMES = 100
"""Limit for the argument names that are suggested or listed in a message."""

MAX_CHECK_COST = 50_000
"""Cost limit of one check of arguments: some tenths of a second, in a thread."""

MAX_INLINE_COST = 2_000
"""What a check may cost on the event loop."""


def object_schema(
    name: str, parameters: dict[str, Any] | None, required: Iterable[str] = ()
) -> dict[str, Any]:
    """A schema of type object, made from a whole schema or from its properties.

    It refuses additional arguments unless the given schema allows them.
    Raises ConfigError if `required` names an unknown parameter.
    """
    raw_parameters = parameters or {}
    schema: dict[str, Any] = (
        dict(raw_parameters) if _is_whole_schema(raw_parameters) else {"properties": dict(raw_parameters)}
    )
    properties = cast(dict[str, Any], schema.get("properties", {}))
    names: list[str] = list(dict.fromkeys([*cast(list[str], schema.get("required", [])), *required]))
    unknown = [item for item in names if item not in properties]
    if unknown:
        raise ConfigError(f"tool {name}: {', '.join(unknown)} is required but not among its parameters")
    schema |= {"type": "object", "properties": properties}
    schema.setdefault("additionalProperties", False)
    if names:
        schema["required"] = names
    return schema


_SCHEMAS_BY_NAME = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_SCHEMA = ("items", "additionalProperties", "contains", "propertyNames", "not", "if", "then", "else")
_SCHEMA_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")


def with_items(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with `items` for each array that has none: some vendors refuse a request for one without.

    Such an array may contain anything, so the added schema is empty. Returns the same object if it has all.
    """
    return add_items(copy.deepcopy(schema)) if any(map(_lacks_items, _nodes(schema))) else schema


def add_items(schema: dict[str, Any]) -> dict[str, Any]:
    """`with_items`, in the schema itself."""
    for node in [node for node in _nodes(schema) if _lacks_items(node)]:
        node["items"] = {}
    return schema


def _lacks_items(node: dict[str, Any]) -> bool:
    kind = cast("Any", node.get("type"))
    return "items" not in node and (kind == "array" or (isinstance(kind, list) and "array" in kind))


def _nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The schema and all within it. Not recursive, because a client or a server chooses the depth."""
    pending: list[Any] = [schema]
    while pending:
        given = pending.pop()
        if not isinstance(given, dict):
            continue
        node = cast("dict[str, Any]", given)
        yield node
        pending += [node[key] for key in _SCHEMA if key in node]
        for key in _SCHEMA_LISTS:
            if isinstance(node.get(key), list):
                pending += node[key]
        for key in _SCHEMAS_BY_NAME:
            if isinstance(node.get(key), dict):
                pending += node[key].values()


def _is_whole_schema(parameters: dict[str, Any]) -> bool:
    if parameters.get("type") == "object":
        return True
    return isinstance(parameters.get("properties"), dict) and parameters.keys() <= _SCHEMA_KEYWORDS


def _match_pattern(
    validator: Any, pattern: str, instance: object, schema: dict[str, Any]
) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not compile_regex(pattern).search(instance):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


class _CostExceeded(Exception):
    """The check has used up its cost limit."""


_remaining_cost: ContextVar[int] = ContextVar("remaining_cost")
"""The remaining cost of the current check."""


def _spend(cost: int) -> None:
    remaining = _remaining_cost.get() - cost
    if remaining < 0:
        raise _CostExceeded
    _remaining_cost.set(remaining)


def _metered(check: Any) -> Any:
    """The check of one schema keyword, which charges for the values it visits and the messages it makes."""

    def metered(validator: Any, rule: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        _spend(1 + _size(rule) // 10 + _size(instance) // 20)
        for error in check(validator, rule, instance, schema) or ():
            _spend(1 + len(error.message) // 100)
            yield error

    return metered


def _size(value: Any) -> int:
    if isinstance(value, str):
        return len(value) // 100
    return len(cast("list[Any]", value)) if isinstance(value, list | dict) else 0


# A schema may come from an untrusted MCP server. So its patterns run on RE2, and every keyword is metered.
_VALIDATORS: Any = validators
_KEYWORD_CHECKS: dict[str, Any] = {
    **cast(Any, jsonschema.Draft202012Validator).VALIDATORS,
    "pattern": _match_pattern,
}
_Validator: Any = _VALIDATORS.extend(
    jsonschema.Draft202012Validator, {keyword: _metered(check) for keyword, check in _KEYWORD_CHECKS.items()}
)
_SchemaValidator: Any = _VALIDATORS.extend(jsonschema.Draft202012Validator, {"pattern": _match_pattern})


def _require_valid(tool: str, schema: dict[str, Any]) -> None:
    if schema.get("type") != "object":
        raise ConfigError(f"tool {tool}: its parameters must be a JSON schema of type object")
    try:
        _SchemaValidator.check_schema(schema)
    except SchemaError as error:
        raise ConfigError(f"tool {tool}: its parameters are not a JSON schema: {error.message}") from error
    for reference in _references(schema):
        if not reference.startswith("#"):
            raise ConfigError(f"tool {tool}: its parameters refer to {reference}, outside the schema")


class ArgumentCheck:
    """A tool's schema, compiled. Raises ConfigError if it is invalid or has external references, unless it is
    known to be valid."""

    def __init__(self, tool: str, schema: dict[str, Any], *, is_known_valid: bool = False) -> None:
        if not is_known_valid:
            _require_valid(tool, schema)
        self._properties: list[str] = list(schema.get("properties", {}))
        self._validator: Any = _Validator(schema, registry=_NO_OTHER_SCHEMAS)

    def violated_paths(self, value: dict[str, Any]) -> list[str]:
        """At most ten JSON paths at which the value violates the schema; none if it cannot be checked."""
        paths: dict[str, None] = {}
        before = _remaining_cost.set(MAX_CHECK_COST)
        try:
            for error in self._validator.iter_errors(value):
                paths[str(error.json_path)[:_MAX_PROBLEM_LENGTH]] = None
                if len(paths) >= _MAX_PROBLEMS:
                    break
        except (Unresolvable, ToolFailed, RecursionError, _CostExceeded):
            return []
        finally:
            _remaining_cost.reset(before)
        return list(paths)

    def problems(self, arguments: dict[str, Any]) -> dict[str, str]:
        """At most ten messages by JSON path; empty if the arguments are valid."""
        try:
            return self._problems(arguments, MAX_CHECK_COST)
        except _CostExceeded:
            return {"arguments": "the arguments are too many to be checked; give fewer or shorter ones"}

    async def problems_async(self, arguments: dict[str, Any]) -> dict[str, str]:
        """Like `problems`; a check that takes long is made in a thread."""
        try:
            return self._problems(arguments, MAX_INLINE_COST)
        except _CostExceeded:
            return await asyncio.to_thread(self.problems, arguments)

    def _problems(self, arguments: dict[str, Any], cost: int) -> dict[str, str]:
        violations: dict[str, str] = {}
        before = _remaining_cost.set(cost)
        try:
            for path, message in self._violations(arguments):
                violations.setdefault(path[:_MAX_PROBLEM_LENGTH], message[:_MAX_PROBLEM_LENGTH])
                if len(violations) >= _MAX_PROBLEMS:
                    break
        except (Unresolvable, ToolFailed) as error:
            return {"arguments": f"the tool's own schema cannot be used: {error}"}
        except RecursionError:
            return {"arguments": "the arguments are nested too deeply"}
        finally:
            _remaining_cost.reset(before)
        return violations

    def _violations(self, arguments: dict[str, Any]) -> Iterator[tuple[str, str]]:
        for error in self._validator.iter_errors(arguments):
            yield from self._explain(error)

    def _explain(self, error: ValidationError) -> Iterator[tuple[str, str]]:
        path = "arguments" + "".join(
            f"[{key}]" if isinstance(key, int) else f".{key}" for key in error.absolute_path
        )
        instance = cast(Any, error.instance)
        rule = cast(Any, error.validator_value)
        match error.validator:
            case "required":
                for name in rule:
                    if name not in instance:
                        yield f"{path}.{name}", f'the argument "{name}" is missing'
            case "additionalProperties" if rule is False:
                known = cast(dict[str, Any], error.schema).get("properties", {})
                for name in instance:
                    if name not in known:
                        yield f"{path}.{name}", self._unknown(str(name), list(known))
            case "maxLength" if isinstance(instance, str):
                # The text itself could be most of the message.
                yield path, f"{path}: {len(instance):,} characters are too many; at most {rule:,} are allowed"
            case _:
                yield path, f"{path}: {error.message}"

    def _unknown(self, name: str, known: list[str]) -> str:
        names = known[:_MAX_NAMES]
        near = difflib.get_close_matches(name[:64], names, n=1)
        hint = f'; did you mean "{near[0]}"?' if near else f"; it takes {', '.join(names) or 'none'}"
        return f'there is no argument "{name[:64]}"{hint}'


_NOT_MET = "The answer does not follow the schema that was demanded"


def answer_problem(schema: dict[str, Any], text: str) -> str | None:
    """Why an answer does not follow the schema that was demanded of it; None if it does."""
    try:
        value = msgspec.json.decode(text.strip())
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return f"{_NOT_MET}: it is no JSON."
    if not isinstance(value, dict):
        return f"{_NOT_MET}: it is no JSON object."
    try:
        paths = ArgumentCheck("answer", schema).violated_paths(cast("dict[str, Any]", value))
    except ConfigError:
        return None  # A schema that only the provider can judge.
    return f"{_NOT_MET}, at {', '.join(paths)}." if paths else None


def _references(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        for key, value in cast(dict[str, Any], schema).items():
            if key in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            yield from _references(value)
    elif isinstance(schema, list):
        for item in cast(list[Any], schema):
            yield from _references(item)
