"""The documentation is true: its commands run, its links work, and it mentions every setting and tool.

The `sh` blocks of a page run as one script against a real server whose model is scripted; `python` blocks run
too. A `json` block right below an `sh` block shows what its calls answered. `console` blocks are only shown:
their commands must exist.
"""

import ast
import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
from api.server_process import ServerProcess, model_settings
from process_environment import ROOT, free_port, scripted_models

from luxx.app.cli.commands import main
from luxx.app.core_services import SHARED
from luxx.domain.owned import Owned
from luxx.domain.skills.files import SkillCopies
from luxx.domain.skills.tools import SkillPlaces, skill_tools
from luxx.features.artifacts.tools import ArtifactTools
from luxx.features.knowledge.search import ChunkSearch
from luxx.features.knowledge.summary import SummaryTool
from luxx.features.knowledge.tools import KnowledgeTools
from luxx.features.memory.extraction.episode_tool import episode_tool
from luxx.features.memory.facts import FactWriter
from luxx.features.memory.graph import GraphService
from luxx.features.memory.graph_tools import GraphTools
from luxx.features.memory.tools import MemoryTools
from luxx.features.memory.vectors.arm import VectorArm
from luxx.features.tasks.tools import TaskTools
from luxx.infra.config.schema import Config, MemoryConfig, ModelConfig, ToolsConfig
from luxx.infra.store.engine import Store, open_engine, resolve_url
from luxx.infra.store.tables import Base
from luxx.providers.registry import ProviderType
from luxx.providers.scripted import Call, Rule, Script, Text, Thinking, When
from luxx.tools.builtin import builtin_tools
from luxx.tools.builtin.programs import program_tools
from luxx.tools.compositions.service import COMPOSITIONS
from luxx.tools.core import (
    CallPermissions,
    CommandPermission,
    ToolCall,
    ToolCaller,
    ToolContext,
    ToolRegistry,
)
from luxx.tools.executor import ToolExecutor
from luxx.tools.sandbox.plan import ProgramLimits, limits_for
from luxx.tools.sandbox.service import Sandbox
from luxx.tools.service_tools import load_modules
from luxx.wire.event import Event, RunSnapshot

PAGES = [
    ROOT / "README.md",
    ROOT / "ARCHITECTURE.md",
    ROOT / "CHANGELOG.md",
    *sorted(page for page in (ROOT / "docs").rglob("*.md") if "examples" not in page.parts),
]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ANSWERED = re.compile(r"^```sh\n(.*?)^```\n(?:\n```(json|text)\n(.*?)^```\n)?", re.MULTILINE | re.DOTALL)
END_OF_BLOCK = "-- end of the block --"
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
SCRIPT_SECONDS = 240.0
COLOUR = Call(
    name="ask_clarification",
    arguments={
        "question_type": "scope",
        "question": "Which colour?",
        "options": [{"label": "red"}, {"label": "blue", "is_recommended": True}],
    },
)
CHORES = Call(
    name="todo_write", arguments={"todos": [{"title": "Water the plants"}, {"title": "Feed the cat"}]}
)
PLAN = (
    '{"steps": [{"id": "facts", "name": "Collect facts", "goal": "A list of facts"},'
    ' {"id": "text", "name": "Write", "goal": "One page", "depends_on": ["facts"]}]}'
)
MODEL = Script(
    models=["gpt-4.1-mini", "claude-sonnet-5-5", "gemini-2.5-flash", "scripted"],
    rules=[
        Rule(when=When(user="colour", has_tool_result=False), reply=[COLOUR]),
        Rule(when=When(user="chores", has_tool_result=False), reply=[CHORES]),
        Rule(when=When(user="story"), reply=[Text(text="and then " * 400)], delay=0.05),
        Rule(when=When(system="^Split the goal"), reply=[Text(text=PLAN)]),
        Rule(reply=[Thinking(text="A greeting."), Text(text="Hello there, from the model.")]),
    ],
)


def text_of(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def blocks(page: Path, kind: str) -> list[str]:
    return [body for language, body in FENCE.findall(page.read_text("utf-8")) if language == kind]


def beginning_of(page: Path) -> list[str]:
    """The lines that the examples of a page begin with, where it refers to them."""
    keys = ROOT / "docs" / "use" / "keys.md"
    return blocks(keys, "sh")[:1] if "keys.md#sign-in-with-a-key" in page.read_text("utf-8") else []


WITH_COMMANDS = [page for page in PAGES if blocks(page, "sh")]


# --- what is shown works ----------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_every_command_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    with (
        scripted_models(MODEL) as model,
        ServerProcess(tmp_path, **model_settings(model.url), LUXX_ADMIN_PASSWORD="") as server,
    ):
        # Each answer is on a line of its own.
        lines = ["set -euo pipefail", "curl() { command curl -w '\\n' \"$@\"; }", *beginning_of(page)]
        lines += [f"{block}\necho '{END_OF_BLOCK}'" for block in ["", *blocks(page, "sh")]]
        script = "\n".join(lines)
        for shown, real in {
            # First, because the port of the server may contain these digits.
            "8099": str(free_port()),
            "http://127.0.0.1:8000": server.url,
            "https://api.openai.com/v1": f"{model.url}/v1",
            "https://api.anthropic.com": model.url,
            "https://generativelanguage.googleapis.com/v1beta": f"{model.url}/v1beta",
            "docs/examples/": f"{ROOT}/docs/examples/",
            "$OPENAI_API_KEY": "sk-a-key-for-the-documentation",
            ".venv/bin/luxx ": "luxx ",
            ".venv/bin/python ": "python ",
        }.items():
            script = script.replace(shown, real)
        finished = subprocess.run(
            ["bash", "-c", script],
            cwd=tmp_path,
            env={**server.environ, "LUXX_URL": server.url},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SCRIPT_SECONDS,
            check=False,
        )
    assert finished.returncode == 0, finished.stdout[-4000:]
    assert "/stream" not in script or '"delta":"Hello' in finished.stdout
    printed = finished.stdout.split(END_OF_BLOCK)[1:-1]
    for (block, kind, shown), output in zip(ANSWERED.findall(page.read_text("utf-8")), printed, strict=True):
        check_answers(block, kind, shown, output)


def check_answers(block: str, kind: str, shown: str, output: str) -> None:
    """`shown` has, in their order, parts of the answers that the calls of `block` printed."""
    answers = [answer for line in output.splitlines() for answer in documents_in(line)]
    assert kind or not answers or "curl" not in block, (
        f"the page does not show what this answers:\n{block}\n{output}"
    )
    expected = parts_of(shown) if kind == "json" else []
    left = iter(answers)
    for part in expected:
        assert any(is_part_of(part, each) or is_part_of(part, data_of(each)) for each in left), (
            f"no answer has this:\n{part}\n{output}"
        )
    for answer in answers:
        is_refusal = isinstance(answer, dict) and answer.get("success") is False and "error" in answer
        assert not is_refusal or any(is_part_of(part, answer) for part in expected), answer


def parts_of(shown: str) -> list[Any]:
    try:
        return [msgspec.json.decode(shown)]
    except msgspec.DecodeError:
        return [msgspec.json.decode(line) for line in shown.splitlines()]


def documents_in(line: str) -> list[Any]:
    """The JSON document of a line; other output, such as a log or an exported document, has none."""
    try:
        document = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return []
    return [document] if isinstance(document, dict | list) else []


def data_of(answer: Any) -> Any:
    return answer.get("data") if isinstance(answer, dict) else None


def is_part_of(shown: Any, real: Any) -> bool:
    """Numbers may differ, and `…` stands for any text and for the rest of a text or list."""
    if isinstance(shown, dict):
        return isinstance(real, dict) and all(
            key in real and is_part_of(shown[key], real[key]) for key in shown
        )
    if isinstance(shown, list) and isinstance(real, list):
        is_cut = bool(shown) and shown[-1] == "…" and len(shown) <= len(real)
        first = shown[:-1] if is_cut else shown
        return (is_cut or len(first) == len(real)) and all(map(is_part_of, first, real))
    if isinstance(shown, str) and shown.endswith("…"):
        return isinstance(real, str) and real.startswith(shown[:-1])
    if isinstance(shown, (int, float)) and not isinstance(shown, bool):
        return isinstance(real, (int, float))
    return bool(shown == real)


def test_getting_started_gets_a_streamed_answer_with_three_requests() -> None:
    page = ROOT / "docs" / "start" / "getting-started.md"
    (script,) = [block for block in blocks(page, "sh") if "curl" in block]
    assert script.count("curl") == 3
    assert "/messages/stream" in script
    assert "curl" not in text_of("README.md")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_shown_commands_exist(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    targets = set(re.findall(r"^([a-z-]+):", text_of("Makefile"), re.MULTILINE))
    shown = [*blocks(page, "console"), *re.findall(r"`((?:make|luxx) [^`]+)`", page.read_text("utf-8"))]
    for line in "\n".join(shown).splitlines():
        words = [word for word in shlex.split(line.removeprefix("$ "), comments=True) if "=" not in word]
        if words[:1] == ["make"]:
            assert words[1] in targets, line
        if words[:1] == ["luxx"] and not words[1].startswith(("-", "…")):
            assert exists(*command_words(words)), line
    capsys.readouterr()


@cache
def exists(*words: str) -> bool:
    """Whether `luxx` has the command of these words. Pages name the same ones again and again."""
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    return ended.value.code == 0


def command_words(words: list[str]) -> list[str]:
    return (
        words[1:3]
        if words[1] in ("agent", "room", "task", "user", "model") and len(words) > 2
        else words[1:2]
    )


def test_the_programs_with_the_scripted_provider_run() -> None:
    programs = blocks(ROOT / "docs/reference/testing-with-the-scripted-provider.md", "python")
    finished = subprocess.run(
        [sys.executable, "-c", "\n".join(programs)], capture_output=True, text=True, timeout=60, check=False
    )
    assert finished.returncode == 0, finished.stderr


async def test_the_tools_of_the_documentation_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_documented_tools.py").write_text(
        "\n".join(blocks(ROOT / "docs/agents/tools.md", "python"))
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    engine = open_engine(resolve_url("sqlite:///t.db", tmp_path))
    Base.metadata.create_all(engine)
    store, registry = Store(engine), ToolRegistry()
    known = ["count_words", "leave_note", "latest_conversations"]
    assert load_modules(registry, ["my_documented_tools"], store=store) == known
    context = ToolContext(
        caller=ToolCaller(user_id=1, username="carol", permission_level=CommandPermission.WRITE, tenant_id=1),
        permissions=CallPermissions(workspace=tmp_path),
    )

    async def run(name: str, arguments: str) -> object:
        executor = ToolExecutor(registry, Config().tools)
        call = ToolCall(call_id="1", name=name, arguments=arguments)
        try:
            return (await executor.execute(call, context)).result.data
        finally:
            executor.close()

    assert await run("count_words", '{"text": "a bee sees", "minimum": 2}') == {"words": 2}
    assert await run("leave_note", '{"note": "milk"}') == "written for carol"
    assert (tmp_path / "note.txt").read_text("utf-8") == "milk"
    assert await run("latest_conversations", "{}") == []
    store.close()


# --- links ------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    heads = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.stem)
def test_links_resolve(page: Path) -> None:
    for link in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        if link.startswith(("http://", "https://")):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_linked_from_the_readme() -> None:
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in LINK.findall(text_of("README.md"))}
    assert {page for page in PAGES if page.name != "README.md"} <= linked


# --- nothing goes unmentioned -----------------------------------------------------------------------


def test_every_setting_is_documented_with_its_default() -> None:
    rows = dict(
        re.findall(r"^\| `(\w+\.\w+)` \| `(.*?)` \|", text_of("docs/operate/configuration.md"), re.MULTILINE)
    )
    config = Config()
    real = {
        f"{section.name}.{key.name}": getattr(getattr(config, section.name), key.name)
        for section in msgspec.structs.fields(Config)
        if section.name not in ("data_dir", "models")
        for key in msgspec.structs.fields(type(getattr(config, section.name)))
    }
    assert {key: msgspec.json.decode(default) for key, default in rows.items()} == msgspec.to_builtins(real)


def test_every_field_of_a_models_card_is_documented_with_its_default() -> None:
    page = text_of("docs/operate/configuration.md").partition("## models")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| `(\w+)` \| `?(.*?)`? \|", page, re.MULTILINE))
    real = {
        field.name: "needed" if field.required else msgspec.json.encode(field.default).decode()
        for field in msgspec.structs.fields(ModelConfig)
    }
    assert rows == real


def memory_tools() -> list[Any]:
    store = Store(open_engine(resolve_url("sqlite:///unused.db", ROOT / "data")))
    config = MemoryConfig()
    tools = [
        *MemoryTools(store, FactWriter(), config, VectorArm(config)).all(),
        *GraphTools(store, GraphService(store, ROOT / "data")).all(),
        episode_tool(store),
        *KnowledgeTools(ChunkSearch(store, config, VectorArm(config))).all(),
        *ArtifactTools(cast("Any", None), cast("Any", None)).all(),
        SummaryTool(store).function(),
    ]
    return [each.definition for each in tools]


def test_every_built_in_tool_is_documented_with_its_level() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d) \|", text_of("docs/agents/tools.md"), re.MULTILINE)
    sandbox = Sandbox(ToolsConfig(), ROOT / "data", ROOT / "workspaces")
    store = Store(open_engine(resolve_url("sqlite:///unused.db", ROOT / "data")))
    tools = [
        *builtin_tools(),
        *program_tools(sandbox),
        *skill_tools(SkillPlaces(store, SkillCopies(ROOT / "data"), sandbox.shown_skill)),
        *memory_tools(),
        *TaskTools(cast(Any, None)).all(store),
    ]
    assert {(tool.name, str(int(tool.required_permission))) for tool in tools} == set(rows)


def test_every_limit_of_the_sandbox_is_documented_with_its_defaults() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (\d+) \| (\d+) \|", text_of("docs/operate/sandbox.md"), re.MULTILINE)
    levels = [limits_for("any", level, []) for level in (CommandPermission.EXECUTE, CommandPermission.ADMIN)]
    real = [
        (name, *(f"{getattr(level, name):g}" for level in levels)) for name in ProgramLimits.__struct_fields__
    ]
    assert rows == real


def test_every_type_of_provider_is_documented() -> None:
    page = text_of("docs/use/providers.md")
    assert [kind for kind in ProviderType if f"`{kind}`" not in page] == []


def test_every_event_is_documented_with_an_example_that_is_one() -> None:
    page = ROOT / "docs/reference/events.md"
    kinds = {str(kind.__struct_config__.tag): kind for kind in (RunSnapshot, *Event.__args__)}
    assert anchors(page) == {"events", *kinds}
    shown = set[str]()
    for example in blocks(page, "json"):
        kind = msgspec.json.decode(example)["type"]
        msgspec.json.decode(example, type=kinds[kind])
        shown.add(kind)
    assert shown == set(kinds)


def test_every_kind_of_failure_is_documented() -> None:
    page = text_of("docs/reference/api.md")
    undocumented = sorted(kind for kind in kinds_of_failure() if f"`{kind}`" not in page)
    assert undocumented == []


@pytest.mark.parametrize("owned", [*SHARED, COMPOSITIONS], ids=lambda owned: owned.noun)
def test_every_kind_of_failure_of_what_users_own_is_documented(owned: Owned[Any]) -> None:
    noun = owned.noun.replace(" ", "_")
    kinds = [f"{noun}_not_found", *([f"{noun}_name_taken", f"{noun}s_full"] if owned.limit else [])]
    pages = "".join(page.read_text("utf-8") for page in (ROOT / "docs").rglob("*.md"))
    assert [kind for kind in kinds if f"`{kind}`" not in pages] == []


def kinds_of_failure() -> set[str]:
    """The kinds in the classes of the error tree, and those named where an error is raised."""
    kinds: set[str] = set()
    for file in (ROOT / "luxx").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef) and file.name == "errors.py" and file.parent.name == "luxx":
                kinds |= {kind for part in node.body if (kind := assigned_kind(part))}
            if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(ERRORS):
                kinds |= {
                    word.value.value
                    for word in node.keywords
                    if word.arg == "kind" and isinstance(word.value, ast.Constant)
                }
    return kinds


ERRORS = (
    *(
        "InvalidInput",
        "TooLarge",
        "NotSignedIn",
        "NotAllowed",
        "NotFound",
        "Conflict",
        "TooMany",
        "LuxxError",
    ),
    *(
        "Unavailable",
        "ToolFailed",
        "ProviderError",
        "ProviderRefused",
        "ProviderFailed",
        "Unreachable",
        "_Refusal",
    ),
)


def assigned_kind(node: ast.stmt) -> str:
    if (
        isinstance(node, ast.Assign)
        and ast.unparse(node.targets[0]) == "kind"
        and isinstance(node.value, ast.Constant)
    ):
        return str(node.value.value)
    return ""


def test_the_changelog_has_an_unreleased_section() -> None:
    assert "## [Unreleased]" in text_of("CHANGELOG.md")


def test_every_folder_is_in_a_layer_of_the_architecture() -> None:
    page = text_of("ARCHITECTURE.md")
    folders = [
        path for path in (ROOT / "luxx").iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    ]
    names = [f"`{path.name}`" if path.is_file() else f"`{path.name}/`" for path in folders]
    assert [name for name in names if name not in page and name != "`__init__.py`"] == []
