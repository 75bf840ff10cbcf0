"""The configuration: precedence, substitution, errors with file and line, and the shipped file."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from luxx.errors import ConfigError
from luxx.infra.config.file import load_config
from luxx.infra.config.schema import Config

ROOT = Path(__file__).parent.parent
SHIPPED = ROOT / "config.yaml"


def write_config(folder: Path, text: str) -> Path:
    file = folder / "luxx.yaml"
    file.write_text(text, "utf-8")
    return file


def refusal(folder: Path, text: str, environ: dict[str, str] | None = None, **overrides: Any) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_config(write_config(folder, text), environ or {}, overrides)
    return caught.value


def keys_of(document: dict[str, Any]) -> set[str]:
    return {f"{section}.{key}" for section, keys in document.items() for key in keys}


# --- the shipped file -------------------------------------------------------------------------------


def test_shipped_file_has_every_key_and_no_other() -> None:
    defaults = msgspec.to_builtins(Config())
    del defaults["data_dir"]
    assert keys_of(yaml.safe_load(SHIPPED.read_text("utf-8"))) == keys_of(defaults)


def test_shipped_file_starts_as_it_is_with_the_default_values() -> None:
    shipped = msgspec.to_builtins(load_config(SHIPPED, {}, {}))
    defaults = msgspec.to_builtins(Config())
    assert shipped.pop("llm") == {
        "provider": "deepseek",
        "api_key": "",
        "api_url": "https://api.deepseek.com/v1",
        "model": "",
    }
    del defaults["llm"]
    assert shipped.pop("demo") == {"enabled": True}
    assert defaults.pop("demo") == {"enabled": False}
    assert shipped == defaults


def test_shipped_file_takes_the_three_documented_variables() -> None:
    environ = {
        "APP_SECRET_KEY": "12345678",
        "DATABASE_URL": "postgresql://luxx:pw@db/luxx",
        "DEEPSEEK_API_KEY": "sk-test",
    }
    config = load_config(SHIPPED, environ, {})
    assert config.app.secret_key == "12345678"
    assert config.database.url == "postgresql://luxx:pw@db/luxx"
    assert config.database.type == "postgresql"
    assert config.llm.api_key == "sk-test"


def test_every_key_of_the_shipped_file_or_its_section_carries_a_comment() -> None:
    lines = SHIPPED.read_text("utf-8").splitlines()
    bare_sections = [
        lines[index].rstrip(":")
        for index in range(1, len(lines))
        if lines[index].endswith(":") and not lines[index].startswith((" ", "#"))
        if not lines[index - 1].startswith("#")
        and not any(line.startswith("  #") for line in section_lines(lines, index))
    ]
    assert bare_sections == []


def section_lines(lines: list[str], start: int) -> Iterator[str]:
    for line in lines[start + 1 :]:
        if line and not line.startswith(" "):
            return
        yield line


def test_contract_defaults_hold() -> None:
    config = Config()
    assert (config.app.host, config.app.port, config.app.debug) == ("127.0.0.1", 8000, False)
    assert msgspec.to_builtins(config.server) == {
        "max_body_mb": 10,
        "head_seconds": 30,
        "body_idle_seconds": 60,
        "body_bytes_per_second": 1000,
        "keep_alive_seconds": 5,
        "connections": 10_000,
        "connections_per_address": 256,
        "allowed_hosts": [],
        "cors_origins": [],
        "trusted_proxies": [],
        "public_url": "",
    }
    assert msgspec.to_builtins(config.auth) == {
        "allow_registration": True,
        "default_permission_level": 1,
        "access_minutes": 30,
        "refresh_days": 30,
        "password_cost": 12,
    }
    assert msgspec.to_builtins(config.limits) == {
        "requests_per_minute": 600,
        "logins_per_minute": 10,
        "link_reads_per_minute": 300,
        "concurrent_runs_per_user": 20,
        "concurrent_runs": 200,
        "queued_runs_per_user": 100,
        "queued_runs": 1000,
        "streams_per_user": 100,
        "tokens_per_day": 0,
        "level1_tokens_per_day": 200_000,
        "cost_per_day": 0,
        "tokens_per_run": 0,
        "cost_per_run": 0,
        "seconds_per_run": 0,
        "tool_calls_per_run": 0,
        "delegation_depth": 2,
        "subagents_per_run": 50,
        "storage_mb_per_user": 2000,
        "question_timeout_seconds": 300,
    }
    assert (config.tools.timeout_seconds, config.tools.sandbox, config.tools.ask_from) == (60, "auto", "high")
    assert (config.files.max_upload_mb, config.files.quota_mb) == (100, 1000)
    assert (config.runs.lease_seconds, config.runs.grace_seconds, config.runs.retention_days) == (10, 5, 90)


# --- finding and merging ----------------------------------------------------------------------------


def test_no_file_at_all_gives_the_defaults(tmp_path: Path) -> None:
    with contextlib.chdir(tmp_path):
        assert load_config(None, {}, {}) == Config()


def test_config_yaml_of_the_working_directory_is_read_by_default(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("app: {port: 9001}")
    with contextlib.chdir(tmp_path):
        assert load_config(None, {}, {}).app.port == 9001


def test_a_named_file_that_is_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot be read"):
        load_config(tmp_path / "nowhere.yaml", {}, {})


def test_an_empty_file_and_empty_sections_give_the_defaults(tmp_path: Path) -> None:
    assert load_config(write_config(tmp_path, ""), {}, {}) == Config()
    assert load_config(write_config(tmp_path, "# nothing\nllm:\napp: {}\n"), {}, {}) == Config()


@given(
    in_file=st.none() | st.integers(0, 65535),
    in_environment=st.none() | st.integers(0, 65535),
    on_command_line=st.none() | st.integers(0, 65535),
)
def test_command_line_beats_environment_beats_file_beats_default(
    tmp_path_factory: pytest.TempPathFactory,
    in_file: int | None,
    in_environment: int | None,
    on_command_line: int | None,
) -> None:
    text = "" if in_file is None else f"app:\n  port: {in_file}\n"
    environ = {} if in_environment is None else {"LUXX_APP__PORT": str(in_environment)}
    config = load_config(
        write_config(tmp_path_factory.getbasetemp(), text),
        environ,
        {"app.port": on_command_line, "app.host": None},
    )
    given_values = [v for v in (on_command_line, in_environment, in_file) if v is not None]
    assert config.app.port == (given_values[0] if given_values else 8000)
    assert config.app.host == "127.0.0.1"


@given(
    st.dictionaries(
        st.sampled_from(["secret_key", "debug", "port"]), st.sampled_from(["file", "environment"]), min_size=1
    )
)
def test_layers_merge_key_by_key(
    tmp_path_factory: pytest.TempPathFactory, source_of_key: dict[str, str]
) -> None:
    values = {"secret_key": "0123", "debug": "true", "port": "9"}
    typed = {"secret_key": "0123", "debug": True, "port": 9}
    in_file = "".join(
        f"  {key}: {values[key]}\n" for key, source in source_of_key.items() if source == "file"
    )
    environ = {
        f"LUXX_APP__{k.upper()}": values[k] for k, source in source_of_key.items() if source == "environment"
    }
    config = load_config(write_config(tmp_path_factory.getbasetemp(), f"app:\n{in_file}"), environ, {})
    defaults = msgspec.to_builtins(Config().app)
    assert msgspec.to_builtins(config.app) == {**defaults, **{key: typed[key] for key in source_of_key}}


def test_every_key_can_be_set_in_the_environment(tmp_path: Path) -> None:
    document = msgspec.to_builtins(Config())
    del document["data_dir"]
    models = document.pop("models")
    given_rules = [{"tool": "shell_execute", "action": "ask", "pattern": "git *"}]
    document["tools"]["rules"] = given_rules
    document["server"]["allowed_hosts"] = ["a.example.org", "localhost:8000"]
    document["local"]["model_path"] = "/models/a.gguf"
    environ = {
        f"LUXX_{section}__{key}".upper(): value if isinstance(value, str) else yaml.safe_dump(value).strip()
        for section, keys in document.items()
        for key, value in keys.items()
    }
    environ["LUXX_TOOLS__RULES"] = '[{tool: shell_execute, action: ask, pattern: "git *"}]'
    environ["LUXX_SERVER__ALLOWED_HOSTS"] = "[a.example.org, 'localhost:8000']"
    environ["LUXX_SKILLS__DIRECTORIES"] = "[skills]"
    environ["LUXX_LOGGING__LEVEL"] = document["logging"]["level"] = "DEBUG"
    config = msgspec.to_builtins(load_config(write_config(tmp_path, ""), environ, {}))
    assert config == {**document, "models": models, "data_dir": "./data"}


CARD = "{pattern: my-*, context_window: 9000, max_output: 900"


def test_cards_of_models_are_read_from_the_file_or_the_environment(tmp_path: Path) -> None:
    file = write_config(tmp_path, f"models:\n  - {CARD}, input_price: 1, output_price: 2.5, tools: false}}\n")
    (card,) = load_config(file, {}, {}).models
    assert (card.pattern, card.context_window, card.max_output, card.tools) == ("my-*", 9000, 900, False)
    assert (card.input_price, card.output_price, card.cached_input_price) == (1.0, 2.5, None)
    (card,) = load_config(file, {"LUXX_MODELS": f"[{CARD}, images: true}}]"}, {}).models
    assert (card.images, card.input_price) == (True, None)


@pytest.mark.parametrize(
    ("card", "line", "said"),
    [
        (f"{CARD}, input_price: 1}}", 2, "belong together"),
        (f"{CARD}, cached_input_price: 1}}", 2, "a price for the cache needs"),
        (f"{CARD}, input_price: cheap, output_price: 1}}", 2, "write a number"),
        (f"{CARD}, input_price: -1, output_price: 1}}", 2, ">= 0"),
        (f"{CARD}, input_price: .inf, output_price: 1}}", 2, "finite"),
        (f"{CARD}, contextwindow: 1}}", 2, "did you mean models[0].context_window?"),
        ("{pattern: my-*, context_window: 9000}", 2, "max_output"),
        ("{pattern: my-*, context_window: 1, max_output: 2}", 2, "larger than context_window"),
        ("my-model", 2, "must be a section"),
        ("\n    pattern: my-*\n    context_window: many\n    max_output: 1", 4, "write a whole number"),
    ],
)
def test_a_wrong_card_stops_the_start_with_its_line(tmp_path: Path, card: str, line: int, said: str) -> None:
    file = write_config(tmp_path, f"models:\n  - {card}\n")
    with pytest.raises(ConfigError) as refused:
        load_config(file, {}, {})
    assert refused.value.message.startswith(f"{file}:{line}: models[0]")
    assert said in refused.value.message


def test_a_list_in_the_environment_may_be_separated_by_commas(tmp_path: Path) -> None:
    environ = {"LUXX_SERVER__ALLOWED_HOSTS": "a.example.org, localhost:8000"}
    config = load_config(write_config(tmp_path, ""), environ, {})
    assert config.server.allowed_hosts == ["a.example.org", "localhost:8000"]


def test_an_empty_variable_in_the_environment_is_not_set(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, "app: {port: 9}"), {"LUXX_APP__PORT": ""}, {})
    assert config.app.port == 9


def test_data_dir_comes_from_the_command_line(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, ""), {}, {"data_dir": tmp_path})
    assert config.data_dir == str(tmp_path)


def test_a_database_type_left_out_follows_the_url(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, "database: {url: 'postgresql+psycopg://db/x'}"), {}, {})
    assert config.database.type == "postgresql"


# --- substitution -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "environ", "expected"),
    [
        ("${A}", {"A": "x"}, "x"),
        ("${A:y}", {}, "y"),
        ("${A:y}", {"A": ""}, "y"),
        ("${A:y}", {"A": "x"}, "x"),
        ("http://${A}:${B:80}/v1", {"A": "h"}, "http://h:80/v1"),
        ("${A:http://h:80}", {}, "http://h:80"),
        ("${A}", {"A": "0042"}, "0042"),
        ("${A}", {"A": "${B}"}, "${B}"),
        ("a$${B}c$", {}, "a${B}c$"),
    ],
)
def test_variables_are_substituted(tmp_path: Path, text: str, environ: dict[str, str], expected: str) -> None:
    assert (
        load_config(write_config(tmp_path, f"llm:\n  api_url: {text}\n"), environ, {}).llm.api_url == expected
    )


def test_a_variable_takes_the_type_of_its_key(tmp_path: Path) -> None:
    text = "app: {port: '${P}', debug: '${D}'}\nserver: {allowed_hosts: ['${H:}', b]}"
    config = load_config(write_config(tmp_path, text), {"P": "9", "D": "true"}, {})
    assert (config.app.port, config.app.debug, config.server.allowed_hosts) == (9, True, ["b"])


def test_an_empty_default_leaves_the_key_at_its_default(tmp_path: Path) -> None:
    config = load_config(write_config(tmp_path, "app:\n  port: ${P:}\n  host: ${H:}\n"), {}, {})
    assert config == Config()


# --- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "line", "key", "says"),
    [
        ("app:\n  prot: 1", 2, "app.prot", "did you mean app.port?"),
        ("\napps:\n  port: 1", 2, "apps", "did you mean app?"),
        ("app:\n  max_iterations: 1", 2, "app.max_iterations", "did you mean tools.max_iterations?"),
        ("zzz: 1", 1, "zzz", "unknown key"),
        ("data_dir: x", 1, "data_dir", "--data-dir"),
        ("app:\n  port: high", 2, "app.port", "write a whole number"),
        ("app:\n  port: '80'", 2, "app.port", "write a whole number"),
        ("app:\n  port: 65536", 2, "app.port", "65535"),
        ("app:\n  port: true", 2, "app.port", "write a whole number"),
        ("app:\n  port:\n  debug: true", 2, "app.port", "is empty"),
        ("app:\n  port: 2024-13-45", 2, "app.port", "write a whole number"),
        ("app:\n  debug: 1", 2, "app.debug", "write true or false"),
        ("app:\n  host: ''", 2, "app.host", "length"),
        ("app:\n  host: [a]", 2, "app.host", "must be one value"),
        ("app:\n  debug: false\n  port: 1\n  port: 2", 4, "app.port", "line 3"),
        ("app: {}\nllm: {}\napp: {}", 3, "app", "line 1"),
        ("app: 3", 1, "app", "section"),
        ("- app", 1, "", "section"),
        ("? [a]\n: b", 1, "(not a name)", "unknown key"),
        ("app: [", 1, "", "not valid YAML"),
        ("app:\n  port: ${NO_SUCH}", 2, "app.port", "NO_SUCH is not set"),
        ("app:\n  secret_key: ab${NO_SUCH}", 2, "app.secret_key", "NO_SUCH is not set"),
        ("app:\n  secret_key: ab${9}", 2, "app.secret_key", "$${"),
        ("app:\n  secret_key: ab${X", 2, "app.secret_key", "$${"),
        ("server:\n  max_body_mb: 0", 2, "server.max_body_mb", "> 0"),
        ("server:\n  max_body_mb: .nan", 2, "server.max_body_mb", "write a number"),
        ("server:\n  max_body_mb: .inf", 2, "server.max_body_mb", "finite"),
        ("server:\n  allowed_hosts: a", 2, "server.allowed_hosts", "must be a list"),
        ("server:\n  allowed_hosts: [a,\n   [b]]", 3, "server.allowed_hosts[1]", "must be one value"),
        ("auth:\n  default_permission_level: 5", 2, "auth.default_permission_level", "<= 4"),
        ("limits:\n  concurrent_runs: -1", 2, "limits.concurrent_runs", ">= 0"),
        ("logging:\n  level: info", 2, "logging.level", "INFO, WARNING"),
        (
            "tools:\n  rules:\n    - tool: a\n      action: may",
            4,
            "tools.rules[0].action",
            "allow, ask, deny",
        ),
        ("tools:\n  rules:\n    - tool: a", 3, "tools.rules[0]", "action"),
        ("tools:\n  rules:\n    - {tol: a}", 3, "tools.rules[0].tol", "did you mean tools.rules[0].tool?"),
        ("mcp:\n  servers:\n    - name: Notes\n      command: [a]", 3, "mcp.servers[0].name", "[a-z0-9]"),
        ('mcp:\n  servers:\n    - {name: "notes\\n", command: [a]}', 3, "mcp.servers[0].name", "[a-z0-9]"),
        ("mcp:\n  servers:\n    - name: notes", 3, "mcp.servers[0]", "command"),
        ("mcp:\n  servers:\n    - {name: a, command: []}", 3, "mcp.servers[0]", "$.command"),
        (
            "mcp:\n  servers:\n    - {name: a, command: [b]}\n    - {name: a, command: [c]}",
            4,
            "mcp.servers[1].name",
            "another server of the tenant",
        ),
        ("database:\n  url: mysql://a", 2, "database.url", "postgresql://"),
        ("database:\n  type: postgresql", 2, "database.type", "make them agree"),
        ("database:\n  type: sqlite\n  url: postgresql://h/d", 2, "database.type", "make them agree"),
    ],
)
def test_an_invalid_value_is_refused_with_file_line_and_key(
    tmp_path: Path, text: str, line: int, key: str, says: str
) -> None:
    error = refusal(tmp_path, text)
    assert str(error).startswith(f"{tmp_path / 'luxx.yaml'}:{line}: {f'{key}: ' if key else ''}")
    assert says in str(error)
    assert error.detail["line"] == line
    assert error.detail["key"] == key


@pytest.mark.parametrize(
    ("variable", "value", "says"),
    [
        ("LUXX_APP__PROT", "1", "did you mean LUXX_APP__PORT?"),
        ("LUXX_APP_PORT", "1", "did you mean LUXX_APP__PORT?"),
        ("LUXX_ADMIN_PASWORD", "1", "did you mean LUXX_ADMIN_PASSWORD?"),
        ("LUXX_DATA_DIR", "x", "unknown"),
        ("LUXX_APP__PORT", "x", "app.port: Expected `int`"),
        ("LUXX_APP__DEBUG", "perhaps", "write true or false"),
        ("LUXX_TOOLS__RULES", "[{tool: a", "not valid YAML"),
        ("LUXX_TOOLS__RULES", "# none", "is empty"),
    ],
)
def test_a_wrong_variable_in_the_environment_is_refused_by_name(
    tmp_path: Path, variable: str, value: str, says: str
) -> None:
    error = refusal(tmp_path, "", {variable: value})
    assert str(error).startswith(f"environment variable {variable}: ")
    assert says in str(error)


def test_variables_that_are_no_keys_are_ignored(tmp_path: Path) -> None:
    environ = {"LUXX_ADMIN_PASSWORD": "x", "LUXX_WIRE_FIXTURES": "y", "LUXX_FORBID_SKIPS": "1", "PATH": "z"}
    assert load_config(write_config(tmp_path, ""), environ, {}) == Config()


def test_a_wrong_flag_is_refused_by_its_name(tmp_path: Path) -> None:
    error = refusal(tmp_path, "", None, **{"app.port": 70000})
    assert str(error).startswith("--port: app.port: ")


def test_a_refusal_does_not_repeat_a_secret(tmp_path: Path) -> None:
    text = (
        "database:\n  type: sqlite\n  url: postgresql://luxx:hidden-pw@h/d\napp:\n  secret_key: hidden-key\n"
    )
    assert "hidden" not in str(refusal(tmp_path, text))


def test_secrets_stay_out_of_the_repr() -> None:
    text = "app: {secret_key: hidden}\nllm: {api_key: hidden}\ndatabase: {url: 'postgresql://a:hidden@h/d'}"
    document = yaml.safe_load(text) | {"database": {"type": "postgresql", "url": "postgresql://a:hidden@h/d"}}
    assert "hidden" not in repr(msgspec.convert(document, Config))


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "luxx.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(file, {}, {})
    with pytest.raises(ConfigError, match="cannot be read"):
        load_config(tmp_path, {}, {})
