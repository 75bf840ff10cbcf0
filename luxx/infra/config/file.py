"""Reads, merges and checks the configuration: command line over environment over file over defaults.

A wrong value raises ConfigError with its location, its key and a fix. The type of a key decides how its
value is read, so a secret of digits stays text. `schema.py` and the shipped `config.yaml` describe the keys.
"""

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, get_args, get_origin

import msgspec
import yaml
from msgspec import UNSET

from luxx.errors import ConfigError, InvalidInput
from luxx.infra.config.schema import Config, EmbeddingConfig, McpServerConfig, ModelConfig
from luxx.infra.network.urls import allowed_host

DEFAULT_FILE = Path("config.yaml")
PREFIX = "LUXX_"
OTHER_VARIABLES = frozenset(
    {
        "LUXX_ADMIN_PASSWORD",
        "LUXX_FORBID_SKIPS",
        "LUXX_PASSWORD",
        "LUXX_RELOAD_ARGUMENTS",
        "LUXX_TOKEN",
        "LUXX_URL",
        "LUXX_WIRE_FIXTURES",
    }
)
"""Variables with the prefix `LUXX_` that are not configuration keys."""

MAX_ENVIRONMENT_CHARS = 32 * 1024
"""The most characters in the environment of one MCP server, which must fit into a pipe's buffer."""

VARIABLE = re.compile(r"\$\$\{|\$\{([^}]*)\}|\$\{")
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TEXT_TAG = "tag:yaml.org,2002:str"
NULL_TAG = "tag:yaml.org,2002:null"

Values = dict[str, Any]


def load_config(path: Path | None, environ: Mapping[str, str], overrides: Mapping[str, Any]) -> Config:
    """The checked configuration. Raises ConfigError with file, line and key.

    `path` None reads `config.yaml` if it exists. `overrides` has dotted keys (`app.port`, `data_dir`); values
    of None have no effect.
    """
    locations: dict[str, str] = {}
    merged: dict[str, Any] = {}
    for layer in (
        _read_file(path, environ, locations),
        _read_environment(environ, locations),
        _read_overrides(overrides, locations),
    ):
        for section, values in layer.items():
            merged[section] = {**merged.get(section, {}), **values} if isinstance(values, dict) else values
    _check_database(merged, locations)
    _check_prices(merged.get("models", []), locations)
    _check_hosts(merged.get("tools", {}).get("network_allow", []), locations)
    _check_embedding(merged.get("memory", {}).get("embedding", EmbeddingConfig()), locations)
    _check_servers(merged.get("mcp", {}).get("servers", []), locations)
    sections = _fields(Config)
    return Config(
        **{
            name: _unwrap_annotated(sections[name])(**value) if isinstance(value, dict) else value
            for name, value in merged.items()
        }
    )


def _read_file(path: Path | None, environ: Mapping[str, str], locations: dict[str, str]) -> Values:
    file = path or DEFAULT_FILE
    if path is None and not file.exists():
        return {}
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _config_error(
            str(file), "", f"cannot be read ({error}); give a readable file with --config"
        ) from error
    root = _compose(text, str(file), has_lines=True)
    reader = _NodeReader(str(file), environ, locations, has_lines=True)
    return {} if root is None else reader.read_struct(root, Config, "")


def _read_environment(environ: Mapping[str, str], locations: dict[str, str]) -> Values:
    layer: Values = {}
    sections = {name: _fields(type_) for name, type_ in _fields(Config).items() if _is_struct(type_)}
    lists = {
        name: type_ for name, type_ in _fields(Config).items() if get_origin(_unwrap_annotated(type_)) is list
    }
    for variable, text in environ.items():
        if not variable.startswith(PREFIX) or variable in OTHER_VARIABLES:
            continue
        location = f"environment variable {variable}"
        section, _, key = variable.removeprefix(PREFIX).lower().partition("__")
        if section in lists and not key:
            if text:
                layer[section] = _value_of_text(text, lists[section], section, location, locations)
            continue
        if key not in sections.get(section, {}):
            known_names = [f"{PREFIX}{s}__{k}".upper() for s in sections for k in sections[s]]
            raise _config_error(
                location, "", "unknown" + _suggestion(variable, [*known_names, *OTHER_VARIABLES])
            )
        if text:
            value = _value_of_text(text, sections[section][key], f"{section}.{key}", location, locations)
            layer.setdefault(section, {})[key] = value
    return layer


def _read_overrides(overrides: Mapping[str, Any], locations: dict[str, str]) -> Values:
    layer: Values = {}
    for dotted, override in overrides.items():
        if override is None:
            continue
        section, _, key = dotted.rpartition(".")
        fields = _fields(_unwrap_annotated(_fields(Config)[section])) if section else _fields(Config)
        location = f"--{key.replace('_', '-')}"
        text = str(override) if isinstance(override, int | float | str | Path) else None
        if isinstance(override, bool) or text is None:
            value = _converted(override, fields[key], dotted, location)
            locations[dotted] = location
        else:
            value = _value_of_text(text, fields[key], dotted, location, locations)
        if section:
            layer.setdefault(section, {})[key] = value
        else:
            layer[key] = value
    return layer


def _value_of_text(text: str, type_: Any, key: str, location: str, locations: dict[str, str]) -> Any:
    """A value from outside a file: used unchanged if the key has type text, else parsed as YAML."""
    node: yaml.Node | None
    if _is_text(type_) and not _is_nullable(type_):
        node = yaml.ScalarNode(TEXT_TAG, text, style='"')
    elif _unwrap_annotated(type_) == list[str] and not text.lstrip().startswith("["):
        entries = [yaml.ScalarNode(TEXT_TAG, part.strip(), style='"') for part in text.split(",")]
        node = yaml.SequenceNode("", [entry for entry in entries if entry.value])
    else:
        node = _compose(text, location)
    if node is None:
        raise _config_error(location, key, "is empty; write a value or leave it out")
    return _NodeReader(location, None, locations, has_lines=False).read(node, type_, key)


def _compose(text: str, location: str, *, has_lines: bool = False) -> yaml.Node | None:
    untyped: Any = yaml
    try:
        return untyped.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = f":{error.problem_mark.line + 1}" if error.problem_mark and has_lines else ""
        problem = f"not valid YAML: {error.problem}; fix it there"
        raise _config_error(f"{location}{line}", "", problem) from error
    except yaml.YAMLError as error:
        problem = "not valid YAML: it contains a forbidden character; remove it"
        raise _config_error(location, "", problem) from error


@dataclass(frozen=True, slots=True)
class _NodeReader:
    """Converts YAML nodes to types. With `environ` None it does not substitute `${…}`."""

    _location: str
    _environ: Mapping[str, str] | None
    _locations: dict[str, str]
    has_lines: bool

    def read(self, node: yaml.Node, type_: Any, key: str) -> Any:
        """The value of `node` as `type_`, or UNSET if its variables are all empty."""
        self._locations[key] = self._location_of(node)
        bare_type = _unwrap_annotated(type_)
        if get_origin(bare_type) is list:
            return self._read_list(node, get_args(bare_type)[0], key)
        if _is_struct(bare_type):
            values = self.read_struct(node, bare_type, key)
            return _converted(values, type_, key, self._location_of(node))
        if not isinstance(node, yaml.ScalarNode):
            raise self._error(node, key, "must be one value, not a list or a section" + _hint(type_))
        value = self._scalar(node, type_, key)
        return value if value is UNSET else _converted(value, type_, key, self._location_of(node))

    def read_struct(self, node: yaml.Node, struct: Any, key: str) -> Values:
        """The values of the keys that a section sets."""
        if isinstance(node, yaml.ScalarNode) and node.tag == NULL_TAG:
            return {}
        if not isinstance(node, yaml.MappingNode):
            raise self._error(node, key, "must be a section of 'key: value' lines")
        fields = _fields(struct)
        lines: dict[str, int] = {}
        values: Values = {}
        for name_node, child in node.value:
            name = str(name_node.value) if isinstance(name_node, yaml.ScalarNode) else "(not a name)"
            inner = f"{key}.{name}" if key else name
            if name not in fields or inner == "data_dir":
                raise self._error(name_node, inner, "unknown key" + _key_suggestion(inner, list(fields)))
            if name in lines:
                raise self._error(name_node, inner, f"is already set in line {lines[name]}; remove one")
            lines[name] = name_node.start_mark.line + 1
            is_section = not key and _is_struct(fields[name])
            value = (self.read_struct if is_section else self.read)(child, fields[name], inner)
            if value is not UNSET:
                values[name] = value
        return values

    def _read_list(self, node: yaml.Node, type_: Any, key: str) -> list[Any]:
        if not isinstance(node, yaml.SequenceNode):
            raise self._error(node, key, "must be a list; write [first, second]")
        values = [self.read(child, type_, f"{key}[{index}]") for index, child in enumerate(node.value)]
        return [value for value in values if value is not UNSET]

    def _scalar(self, node: yaml.ScalarNode, type_: Any, key: str) -> Any:
        text = str(node.value)
        is_substituted = self._environ is not None and "${" in text
        if is_substituted:
            text = self._substituted(text, key, node)
            if not text:
                return UNSET
        elif node.tag == NULL_TAG:
            if _is_nullable(type_):
                return None
            raise self._error(node, key, "is empty; write a value or remove the line")
        if _is_text(type_):
            return text
        loader: Any = yaml.SafeLoader("")
        tag: str = loader.resolve(yaml.ScalarNode, text, (True, False)) if is_substituted else str(node.tag)
        try:
            return loader.construct_object(yaml.ScalarNode(tag, text))
        except (ValueError, yaml.YAMLError) as error:
            raise self._error(node, key, f"cannot be read as a value{_hint(type_)}") from error

    def _substituted(self, text: str, key: str, node: yaml.Node) -> str:
        environ = self._environ or {}

        def replace(match: re.Match[str]) -> str:
            if match[0] == "$${":
                return "${"
            name, colon, default = (match[1] or "").partition(":")
            if not VARIABLE_NAME.fullmatch(name):
                problem = "'${' does not start ${NAME} or ${NAME:default}; write '$${' for a literal '${'"
                raise self._error(node, key, problem)
            value = environ.get(name) or default
            if not value and not colon:
                problem = f"the variable {name} is not set; set it, or write ${{{name}:default}}"
                raise self._error(node, key, problem)
            return value

        return VARIABLE.sub(replace, text)

    def _error(self, node: yaml.Node, key: str, problem: str) -> ConfigError:
        return _config_error(self._location_of(node), key, problem)

    def _location_of(self, node: yaml.Node) -> str:
        return f"{self._location}:{node.start_mark.line + 1}" if self.has_lines else self._location


def _converted(value: Any, type_: Any, key: str, location: str) -> Any:
    try:
        converted = msgspec.convert(value, type_)
    except msgspec.ValidationError as error:
        raise _config_error(location, key, str(error) + _hint(type_)) from error
    if isinstance(converted, float) and not math.isfinite(converted):
        raise _config_error(location, key, "must be a finite number" + _hint(type_))
    return converted


def _check_database(merged: Values, locations: Mapping[str, str]) -> None:
    """Sets a missing `database.type` from the URL. Raises ConfigError if they differ."""
    database = merged.setdefault("database", {})
    url = database.get("url", Config().database.url)
    scheme = str(url).partition(":")[0].partition("+")[0]
    location = locations.get("database.url", "the defaults")
    if scheme not in ("sqlite", "postgresql"):
        raise _config_error(location, "database.url", "must begin with sqlite:/// or postgresql://")
    if database.setdefault("type", scheme) != scheme:
        raise _config_error(
            locations["database.type"],
            "database.type",
            f"says {database['type']}, but database.url ({location}) is a {scheme} URL; make them agree "
            "or leave database.type out",
        )


def _check_prices(models: list[ModelConfig], locations: Mapping[str, str]) -> None:
    """Luxx computes the cost of a completion only with both an input and an output price."""
    for index, model in enumerate(models):
        key, problem = f"models[{index}]", ""
        has_cache = model.cached_input_price is not None or model.cache_write_price is not None
        if (model.input_price is None) != (model.output_price is None):
            problem = "input_price and output_price belong together; write both or none"
        elif has_cache and model.input_price is None:
            problem = "a price for the cache needs input_price and output_price"
        elif model.max_output > model.context_window:
            problem = "max_output is larger than context_window, which includes it"
        if problem:
            raise _config_error(locations[key], key, problem)


def _check_embedding(embedding: EmbeddingConfig, locations: Mapping[str, str]) -> None:
    key = "memory.embedding"
    if embedding.problem:
        raise _config_error(locations[key], key, embedding.problem)


def _check_hosts(entries: list[str], locations: Mapping[str, str]) -> None:
    for index, entry in enumerate(entries):
        key = f"tools.network_allow[{index}]"
        try:
            allowed_host(entry)
        except InvalidInput as error:
            raise _config_error(locations[key], key, error.message) from error


def _check_servers(servers: list[McpServerConfig], locations: Mapping[str, str]) -> None:
    """The names of MCP tools contain the server's name, so it must be unique in a tenant."""
    for index, server in enumerate(servers):
        key = f"mcp.servers[{index}]"
        if any((other.name, other.tenant) == (server.name, server.tenant) for other in servers[:index]):
            raise _config_error(
                locations[f"{key}.name"], f"{key}.name", "another server of the tenant has this name"
            )
        if sum(len(variable) for variable in server.env) > MAX_ENVIRONMENT_CHARS:
            problem = f"the entries have more than {MAX_ENVIRONMENT_CHARS // 1024} KiB in total"
            raise _config_error(locations[f"{key}.env"], f"{key}.env", problem)


def _config_error(location: str, key: str, problem: str) -> ConfigError:
    file, _, line = location.rpartition(":")
    detail: dict[str, Any] = {"place": location, "key": key}
    if line.isdigit():
        detail |= {"file": file, "line": int(line)}
    return ConfigError(f"{location}: {f'{key}: ' if key else ''}{problem}", detail=detail)


def _key_suggestion(key: str, fields: list[str]) -> str:
    section, _, name = key.rpartition(".")
    if key == "data_dir":
        return "; the data directory is given on the command line: --data-dir PATH"
    candidates = [s for s, type_ in _fields(Config).items() if _is_struct(type_) and name in _fields(type_)]
    if candidates:
        return f"; did you mean {candidates[0]}.{name}?"
    return _suggestion(
        key, [f"{section}.{field}" if section else field for field in fields if field != "data_dir"]
    )


def _suggestion(name: str, known_names: list[str]) -> str:
    if matches := difflib.get_close_matches(name, known_names, n=1, cutoff=0.6):
        return f"; did you mean {matches[0]}?"
    return "; remove it, or see config.yaml for the valid keys"


def _hint(type_: Any) -> str:
    bare_type = _unwrap_annotated(type_)
    if _is_nullable(type_):
        bare_type = _unwrap_annotated(next(one for one in get_args(bare_type) if one is not NoneType))
    if get_origin(bare_type) is Literal:
        return "; write one of " + ", ".join(get_args(bare_type))
    if _is_struct(bare_type):
        return "; see config.yaml for an example"
    hints = {bool: "; write true or false", int: "; write a whole number", float: "; write a number"}
    return hints.get(bare_type, "; write text")


def _fields(struct: Any) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(struct)}


def _unwrap_annotated(type_: Any) -> Any:
    return get_args(type_)[0] if get_origin(type_) is Annotated else type_


def _is_struct(type_: Any) -> bool:
    return isinstance(type_, type) and issubclass(type_, msgspec.Struct)


def _is_text(type_: Any) -> bool:
    bare_type = _unwrap_annotated(type_)
    return (
        bare_type is str
        or get_origin(bare_type) is Literal
        or (str in get_args(bare_type) and get_origin(bare_type) is not list)
    )


def _is_nullable(type_: Any) -> bool:
    return NoneType in get_args(_unwrap_annotated(type_))
