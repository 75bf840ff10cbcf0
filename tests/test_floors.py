"""The house rules that a machine can read: imports go down, files stay small, modules carry their sign.

Every rule is a function from modules to complaints, and is tried on a bad sample as well as on `luxx/`.
"""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent

BANDS: list[tuple[str, frozenset[str]]] = [
    (
        "ROOF",
        frozenset(
            {
                "app",
                "house",
                "workshop",
                "upkeep",
                "cli",
                "cli_keeping",
                "serving",
                "checkup",
                "chat_client",
                "chat_questions",
                "chat_server",
                "chat_transcript",
                "doctor",
                "doctor_mcp",
                "doctor_sandbox",
                "doctor_security",
                "doctor_skills",
                "entry",
            }
        ),
    ),
    ("FACES", frozenset({"api"})),
    ("COMPANY", frozenset({"rooms", "tasks", "subagents"})),
    ("RUNS", frozenset({"runs"})),
    (
        "ORGANS",
        frozenset(
            {
                "context",
                "memory",
                "mcp",
                "skills",
                "artifacts",
                "patterns",
                "tools",
                "providers",
                "conversations",
                "transfer",
                "agents",
                "usage",
                "accounts",
                "files",
                "audit",
                "keeping",
            }
        ),
    ),
    (
        "GROUND",
        frozenset(
            {
                "store",
                "bus",
                "network",
                "documents",
                "config",
                "config_file",
                "data_permissions",
                "errors",
                "observe",
                "vault",
                "children",
                "descriptors",
                "clock",
                "json_keys",
                "lean",
                "removal",
            }
        ),
    ),
    ("WORDS", frozenset({"wire"})),
]
"""From top to bottom; an import goes down or stays in its band."""

FILE_LINES = 400
FUNCTION_LINES = 40
SIGN_LINES = 8
BAD_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "base", "manager", "shared"})
ONLY_IN = {
    "aiohttp": {"luxx.providers.body", "luxx.providers.resolver", "luxx.providers.transport"},
    "httpx": {
        "luxx.providers.body",
        "luxx.providers.transport",
        "luxx.providers.scripted",
        "luxx.providers.discovery",
        "luxx.providers.local",
        "luxx.chat_client",
        "luxx.chat_server",
        "luxx.network.fetch",
    },
    "h11": {"luxx.network.proxy", "luxx.network.proxy_speech"},
    "httpcore": {"luxx.network.transport", "luxx.network.wire"},
    "lxml": {"luxx.documents.tree"},
    "pypdf": {"luxx.documents.pdf_text"},
    "charset_normalizer": {"luxx.documents.charset"},
    "httpx_aiohttp": {"luxx.providers.body"},
    "openai": set[str](),
    "anthropic": set[str](),
}
"""Packages and the modules (with what is below them) that may import them."""

UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b")
HALF_END = re.compile(r"(?<!\[\^\\x00\]\*)\$$|\\Z$")
"""A bare `$`, unless it follows what takes line breaks, and what only Python knows."""


class Module(NamedTuple):
    """A parsed file of `luxx/`; `name` is dotted, a package's without `__init__`."""

    name: str
    text: str
    tree: ast.Module
    is_package: bool = False

    @property
    def room(self) -> str:
        """The folder or file right below `luxx/`; empty for `luxx` itself."""
        return [*self.name.split("."), ""][1]


Rule = Callable[[list[Module]], Iterator[str]]


def parse(name: str, text: str, *, is_package: bool = False) -> Module:
    return Module(name, text, ast.parse(text), is_package)


def read_house() -> list[Module]:
    house: list[Module] = []
    for file in sorted((ROOT / "luxx").rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        if "node_modules" in parts:
            continue
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        house.append(parse(name, file.read_text("utf-8"), is_package=is_package))
    return house


def imports(module: Module) -> Iterator[tuple[str, int]]:
    """Every dotted name that the module imports, wherever the statement stands, with its line."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield f"{'.' * node.level}{node.module or ''}.{alias.name}", node.lineno


def own_imports(module: Module, known: set[str]) -> Iterator[tuple[str, int]]:
    """The modules of the house among the imports: the module a name comes from, not the name."""
    for name, line in imports(module):
        target = name if name in known else name.rpartition(".")[0]
        if target in known and target != module.name:
            yield target, line


# --- rules ------------------------------------------------------------------------------------------


def imports_go_down(house: list[Module]) -> Iterator[str]:
    height = {room: index for index, (_, rooms) in enumerate(BANDS) for room in rooms}
    known = {module.name for module in house}
    for module in house:
        if not module.room:
            if list(own_imports(module, known)):
                yield "luxx/__init__.py imports the house"
            continue
        if module.room not in height:
            yield f"{module.name}: '{module.room}' stands on no floor; add it to BANDS and to ARCHITECTURE.md"
            continue
        for target, line in own_imports(module, known):
            room = [*target.split("."), ""][1]
            if room in height and height[room] < height[module.room]:
                floor, above = BANDS[height[module.room]][0], BANDS[height[room]][0]
                yield f"{module.name}:{line} ({floor}) imports {target} ({above}) above it"


def rooms_form_no_circle(house: list[Module]) -> Iterator[str]:
    """Between rooms of a band too: two rooms that need each other share a word that belongs to `wire/`."""
    known = {module.name for module in house}
    arrows: dict[str, set[str]] = {}
    for module in house:
        rooms = {[*target.split("."), ""][1] for target, _ in own_imports(module, known)}
        arrows.setdefault(module.room, set()).update(rooms - {module.room, ""})
    yield from circles(arrows)


def modules_form_no_circle(house: list[Module]) -> Iterator[str]:
    known = {module.name for module in house}
    yield from circles(
        {module.name: {target for target, _ in own_imports(module, known)} for module in house}
    )


def circles(arrows: dict[str, set[str]]) -> Iterator[str]:
    """One complaint for each circle that a walk in depth closes."""
    done: set[str] = set()
    path: list[str] = []

    def walk(node: str) -> Iterator[str]:
        path.append(node)
        for target in sorted(arrows.get(node, ())):
            if target in path:
                yield "circle: " + " → ".join([*path[path.index(target) :], target])
            elif target not in done:
                yield from walk(target)
        done.add(path.pop())

    for node in sorted(arrows):
        if node not in done:
            yield from walk(node)


def imports_stand_at_the_top(house: list[Module]) -> Iterator[str]:
    for module in house:
        for node, is_inside in walk_with_place(module.tree):
            if isinstance(node, ast.Import | ast.ImportFrom) and is_inside:
                yield f"{module.name}:{node.lineno} imports inside a function"
            if isinstance(node, ast.ImportFrom) and node.level:
                yield f"{module.name}:{node.lineno} imports relatively"
            if isinstance(node, ast.Call) and names_a_module(node):
                yield f"{module.name}:{node.lineno} imports by a call"


def walk_with_place(root: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it is inside a function."""
    waiting: list[tuple[ast.AST, bool]] = [(root, False)]
    while waiting:
        node, is_inside = waiting.pop()
        yield node, is_inside
        is_inside |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        waiting.extend((child, is_inside) for child in ast.iter_child_nodes(node))


def names_a_module(call: ast.Call) -> bool:
    """An import of the house written as a call, which would hide its arrow."""
    is_import = ast.unparse(call.func) in ("__import__", "importlib.import_module", "import_module")
    name = call.args[0] if call.args else None
    return is_import and isinstance(name, ast.Constant) and str(name.value).partition(".")[0] == "luxx"


def packages_stay_in_their_place(house: list[Module]) -> Iterator[str]:
    for module in house:
        for name, line in imports(module):
            allowed = ONLY_IN.get(name.partition(".")[0])
            if allowed is None:
                continue
            if not any(module.name == place or module.name.startswith(f"{place}.") for place in allowed):
                yield f"{module.name}:{line} imports {name.partition('.')[0]}; only {sorted(allowed)} may"


def files_stay_small(house: list[Module]) -> Iterator[str]:
    for module in house:
        if (lines := len(module.text.splitlines())) > FILE_LINES:
            yield f"{module.name} has {lines} lines"


def functions_stay_small(house: list[Module]) -> Iterator[str]:
    for module in house:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
                if lines > FUNCTION_LINES:
                    yield f"{module.name}:{node.lineno} {node.name}() has {lines} lines"


def modules_carry_their_sign(house: list[Module]) -> Iterator[str]:
    for module in house:
        sign = ast.get_docstring(module.tree)
        if not sign:
            yield f"{module.name} does not open with a docstring that says what lives here"
        elif len(sign.splitlines()) > SIGN_LINES and module.name != "luxx.errors":
            # The tree of errors is drawn in its module's docstring.
            yield f"{module.name}: its sign is longer than {SIGN_LINES} lines"


def files_are_named_after_their_subject(house: list[Module]) -> Iterator[str]:
    for module in house:
        for bad in sorted(BAD_NAMES & set(module.name.split("."))):
            yield f"{module.name}: '{bad}' names no subject"


def nothing_is_left_for_later(house: list[Module]) -> Iterator[str]:
    for module in house:
        for number, line in enumerate(module.text.splitlines(), start=1):
            if UNFINISHED.search(line):
                yield f"{module.name}:{number} is left for later"


def children_are_started_in_one_place(house: list[Module]) -> Iterator[str]:
    """By `start_child`, which may be cancelled."""
    for module in house:
        for node in ast.walk(module.tree):
            is_start = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                "create_subprocess_exec"
            )
            if is_start and module.name != "luxx.children":
                yield f"{module.name}:{node.lineno} starts a process; call luxx.children.start_child"


def patterns_end_at_the_end(house: list[Module]) -> Iterator[str]:
    """Those for input, which our OpenAPI document repeats; what is handed to `re` is the code's own."""
    for module in house:
        own = {id(part) for call in calls_of_re(module.tree) for part in ast.walk(call)}
        for node in ast.walk(module.tree):
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            first, last = parts[0], parts[-1]
            is_pattern = isinstance(first, ast.Constant) and str(first.value).startswith("^")
            if not is_pattern or id(node) in own or not isinstance(last, ast.Constant):
                continue
            if HALF_END.search(str(last.value)):
                yield f"{module.name}:{last.lineno} end the pattern in $(?!\\n), or a line break passes"


def calls_of_re(tree: ast.AST) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re."):
            yield node


RULES: list[Rule] = [
    imports_go_down,
    rooms_form_no_circle,
    modules_form_no_circle,
    imports_stand_at_the_top,
    packages_stay_in_their_place,
    files_stay_small,
    functions_stay_small,
    modules_carry_their_sign,
    files_are_named_after_their_subject,
    nothing_is_left_for_later,
    children_are_started_in_one_place,
    patterns_end_at_the_end,
]


@pytest.fixture(scope="module")
def house() -> list[Module]:
    return read_house()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_the_house_keeps_the_rule(house: list[Module], rule: Rule) -> None:
    assert list(rule(house)) == []


# --- each rule fires --------------------------------------------------------------------------------

SIGN = '"""A sign."""\n'
A, B, C = "luxx.agents.service", "luxx.usage.ledger", "luxx.accounts.users"
LATER = "TO" + "DO"
BAD: list[tuple[Rule, dict[str, str]]] = [
    (imports_go_down, {"luxx.wire.step": "from luxx.runs.state import State", "luxx.runs.state": ""}),
    (imports_go_down, {A: "import luxx.api.guards", "luxx.api.guards": ""}),
    (imports_go_down, {A: "from luxx.runs import state", "luxx.runs.state": ""}),
    (imports_go_down, {"luxx.store.engine": "def f():\n    from luxx.agents import service", A: ""}),
    (imports_go_down, {"luxx.somewhere.new": ""}),
    (imports_go_down, {"luxx": "from luxx.agents import service", A: ""}),
    (
        rooms_form_no_circle,
        {A: "import luxx.usage.ledger", B: "import luxx.agents.models", "luxx.agents.models": ""},
    ),
    (
        modules_form_no_circle,
        {A: "import luxx.usage.ledger", B: "from luxx.accounts import users", C: f"import {A}"},
    ),
    (imports_stand_at_the_top, {A: "def f():\n    import os"}),
    (
        imports_stand_at_the_top,
        {A: "class C:\n    async def f(self):\n        if True:\n            from os import path"},
    ),
    (imports_stand_at_the_top, {A: "from . import models"}),
    (imports_stand_at_the_top, {A: "import importlib\nhub = importlib.import_module('luxx.runs.hub')"}),
    (packages_stay_in_their_place, {A: "from aiohttp import ClientSession"}),
    (packages_stay_in_their_place, {"luxx.providers.resolver_more": "import aiohttp"}),
    (packages_stay_in_their_place, {"luxx.tools.web": "import httpx"}),
    (packages_stay_in_their_place, {"luxx.providers.openai": "import openai.types"}),
    (files_stay_small, {A: "x = 1\n" * FILE_LINES}),
    (functions_stay_small, {A: "def f():\n" + "    x = 1\n" * (FUNCTION_LINES + 1)}),
    (
        functions_stay_small,
        {A: 'class C:\n    async def f(self):\n        """Doc."""\n' + "        x = 1\n" * 41},
    ),
    (modules_carry_their_sign, {A: "\n" * SIGN_LINES}),
    (files_are_named_after_their_subject, {"luxx.agents.helpers": ""}),
    (files_are_named_after_their_subject, {"luxx.utils.text": ""}),
    (nothing_is_left_for_later, {A: f"x = 1  # {LATER}: more"}),
    (
        children_are_started_in_one_place,
        {A: "import asyncio\nasync def f():\n    await asyncio.create_subprocess_exec('ls')"},
    ),
    (patterns_end_at_the_end, {A: r'NAME = r"^[a-z]+$"'}),
    (patterns_end_at_the_end, {A: r'NAME = rf"^{WORD}$"'}),
    (patterns_end_at_the_end, {A: r'NAME = r"^[a-z]+\Z"'}),
]


@pytest.mark.parametrize(("rule", "files"), BAD, ids=lambda value: getattr(value, "__name__", ""))
def test_the_rule_fires_on_a_bad_sample(rule: Rule, files: dict[str, str]) -> None:
    sample = [parse(name, SIGN + text, is_package=name == "luxx") for name, text in files.items()]
    if rule is modules_carry_their_sign:
        unsigned = parse(A, "x = 1\n")
        endless = parse(A, '"""A sign.\n' + "More.\n" * SIGN_LINES + '"""\n')
        assert [len(list(rule([module]))) for module in (unsigned, endless)] == [1, 1]
    else:
        assert list(rule(sample)) != []


def test_a_good_sample_passes_every_rule() -> None:
    body = '    """Doc."""\n' + "    x = 1\n" * FUNCTION_LINES
    house = [
        parse("luxx", SIGN, is_package=True),
        parse("luxx.app", SIGN + "from luxx.agents import service\nfrom luxx.runs.durable import go\n"),
        parse(
            A,
            SIGN
            + f"from luxx.usage.ledger import add\nfrom luxx.agents.models import Row\n\ndef f():\n{body}",
        ),
        parse("luxx.agents.models", SIGN + "from luxx.wire.step import Step\n"),
        parse(B, SIGN + "from luxx.errors import NotFound\n"),
        parse("luxx.runs.durable", SIGN + "from luxx.usage.ledger import add\n"),
        parse("luxx.providers.resolver", SIGN + "import aiohttp\n"),
        parse("luxx.errors", SIGN),
        parse("luxx.wire.step", SIGN),
    ]
    assert [complaint for rule in RULES for complaint in rule(house)] == []


def test_every_module_of_the_house_is_read(house: list[Module]) -> None:
    assert {"luxx.wire.step", "luxx.config", "luxx.store", "luxx.api.envelope"} <= {
        module.name for module in house
    }
    assert len(house) == len([f for f in (ROOT / "luxx").rglob("*.py") if "node_modules" not in f.parts])
