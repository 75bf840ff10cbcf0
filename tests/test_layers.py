"""Rules on the structure of the code: imports go down, files stay small, every module has a docstring.

Each rule is a function from modules to violations, and is tested on a bad sample as well as on `luxx/`.
"""

import ast
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent

LAYERS: list[tuple[str, frozenset[str]]] = [
    ("APP", frozenset({"app"})),
    ("API", frozenset({"api", "web"})),
    ("FEATURES", frozenset({"features"})),
    ("ENGINE", frozenset({"runs"})),
    ("DOMAIN", frozenset({"domain", "tools", "providers"})),
    ("INFRA", frozenset({"infra", "errors"})),
    ("WIRE", frozenset({"wire"})),
]
"""From top to bottom; an import goes down or stays in its layer."""

GROUPS = frozenset({"domain", "infra", "features"})
"""Folders that only group packages; those packages must form no circle either."""

RUNS_LADDER: list[frozenset[str]] = [
    frozenset(
        {
            *("service", "admission", "requests", "options", "routing"),
            *("questions", "question_rows", "sign_in_questions", "elicitation_answers"),
        }
    ),
    frozenset({"orchestration"}),
    frozenset({"engine"}),
    frozenset({"turn"}),
    frozenset({"streams"}),
    frozenset({"log"}),
    frozenset({"slots", "cancel", "agent_use", "models"}),
]
"""The modules and packages of `runs/`, from top to bottom; an import goes down or stays on its rung."""

TOP_ENTRIES = 12
FOLDER_FILES = 25
FILE_LINES = 400
FUNCTION_LINES = 40
DOCSTRING_LINES = 8
BAD_NAMES = frozenset({"utils", "util", "helpers", "helper", "common", "misc", "base", "manager", "shared"})
ONLY_IN = {
    "aiohttp": {"luxx.providers.addresses", "luxx.providers.transport"},
    "httpx": {
        "luxx.providers.transport",
        "luxx.providers.scripted",
        "luxx.providers.discovery",
        "luxx.providers.local.child",
        "luxx.app.cli.server_api",
        "luxx.app.cli.doctor.machine",
        "luxx.app.cli.runs.follower",
        "luxx.infra.network.fetch",
    },
    "rich": {"luxx.app.cli.chat.rich_screen"},
    "prompt_toolkit": {"luxx.app.cli.chat.terminal_input"},
    "markdown_it": {"luxx.app.cli.chat.markdown_blocks", "luxx.infra.documents.render.blocks"},
    "h11": {"luxx.infra.network.proxy", "luxx.infra.network.proxy_http"},
    "httpcore": {"luxx.infra.network.transport"},
    "lxml": {"luxx.infra.documents.content", "luxx.infra.documents.archive", "luxx.infra.documents.render"},
    "python_calamine": {"luxx.infra.documents.sheet_text", "luxx.infra.documents.render.checks"},
    "bs4": {"luxx.tools.web.search_process"},
    "pypdf": {"luxx.infra.documents.pdf_text", "luxx.infra.documents.render.paging"},
    "charset_normalizer": {"luxx.infra.documents.charset"},
    "httpx_aiohttp": {"luxx.providers.transport"},
    "openai": set[str](),
    "anthropic": set[str](),
}
"""Packages, and the modules (with those below them) that may import them."""

LOADED_LATE = {
    "luxx.app.cli.chat.rich_screen": "luxx.app.cli.chat.chat_command",
    "luxx.app.cli.chat.terminal_input": "luxx.app.cli.chat.chat_command",
    "luxx.domain.mcp.http": "luxx.domain.mcp.remote",
}
"""Modules with large libraries that few need, and the module that alone may load them when it
runs: with `pkgutil.resolve_name`, by a name in a constant."""

LATE_LOADERS = {"luxx.app.cli.commands": "luxx.app.cli."}
"""Modules that load any module whose name begins so, for the one command that runs."""

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
    def top(self) -> str:
        """The folder or file right below `luxx/`; empty for `luxx` itself."""
        return top_of(self.name)


Rule = Callable[[list[Module]], Iterator[str]]


def top_of(name: str) -> str:
    return [*name.split("."), ""][1]


def package_of(name: str) -> str:
    """The folder or file right below `luxx/`, or below one of the folders that only group packages."""
    parts = [*name.split("."), "", ""][1:3]
    return ".".join(parts) if parts[0] in GROUPS and parts[1] else parts[0]


def parse(name: str, text: str, *, is_package: bool = False) -> Module:
    return Module(name, text, ast.parse(text), is_package)


def read_modules() -> list[Module]:
    modules: list[Module] = []
    for file in sorted((ROOT / "luxx").rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        if "node_modules" in parts:
            continue
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules.append(parse(name, file.read_text("utf-8"), is_package=is_package))
    return modules


def imports(module: Module) -> Iterator[tuple[str, int]]:
    """Every dotted name that the module imports, at any place, with its line."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield f"{'.' * node.level}{node.module or ''}.{alias.name}", node.lineno


def own_imports(module: Module, known: set[str]) -> Iterator[tuple[str, int]]:
    """The modules of luxx among the imports: the module that a name comes from, not the name."""
    for name, line in imports(module):
        target = name if name in known else name.rpartition(".")[0]
        if target in known and target != module.name:
            yield target, line


def places(modules: list[Module]) -> dict[str, str]:
    """The place of each module: its package or, if that has packages below it, the module itself."""
    packages = {module.name for module in modules if module.is_package}
    for module in modules:
        parts = module.name.split(".")
        packages.update(".".join(parts[:length]) for length in range(1, len(parts)))
    with_packages = {package.rpartition(".")[0] for package in packages}
    return {
        module.name: module.name
        if module.name in packages or module.name.rpartition(".")[0] in with_packages
        else module.name.rpartition(".")[0]
        for module in modules
    }


# --- rules ------------------------------------------------------------------------------------------


def imports_go_down(modules: list[Module]) -> Iterator[str]:
    height = {top: index for index, (_, tops) in enumerate(LAYERS) for top in tops}
    known = {module.name for module in modules}
    for module in modules:
        if not module.top:
            if list(own_imports(module, known)):
                yield "luxx/__init__.py imports other modules of luxx"
            continue
        if module.top not in height:
            yield f"{module.name}: '{module.top}' is in no layer; add it to LAYERS and to ARCHITECTURE.md"
            continue
        for target, line in own_imports(module, known):
            top = top_of(target)
            if top in height and height[top] < height[module.top]:
                layer, above = LAYERS[height[module.top]][0], LAYERS[height[top]][0]
                yield f"{module.name}:{line} ({layer}) imports {target} ({above}) above it"


def runs_is_a_ladder(modules: list[Module]) -> Iterator[str]:
    """Within `runs/`, imports go down from rung to rung."""
    height = {name: index for index, rung in enumerate(RUNS_LADDER) for name in rung}
    known = {module.name for module in modules if module.name.startswith("luxx.runs.")}
    for module in modules:
        if module.name not in known:
            continue
        own = module.name.split(".")[2]
        if own not in height:
            yield f"{module.name}: '{own}' is on no rung; add it to RUNS_LADDER and to ARCHITECTURE.md"
            continue
        for target, line in own_imports(module, known):
            if height.get(target.split(".")[2], len(height)) < height[own]:
                yield f"{module.name}:{line} imports {target} above it"


def packages_form_no_circle(modules: list[Module]) -> Iterator[str]:
    """Within a layer too: what two packages need of each other belongs into `wire/`."""
    yield from circles(arrows_between(modules, package_of))


def places_form_no_circle(modules: list[Module]) -> Iterator[str]:
    """In every layer: a package without packages below it is one place; in others each module is one."""
    yield from circles(arrows_between(modules, places(modules).__getitem__))


def modules_form_no_circle(modules: list[Module]) -> Iterator[str]:
    yield from circles(arrows_between(modules, str))


def arrows_between(modules: list[Module], group_of: Callable[[str], str]) -> dict[str, dict[str, str]]:
    """Which groups of modules each group imports, with the place of the first such import."""
    known = {module.name for module in modules}
    arrows: dict[str, dict[str, str]] = {}
    for module in modules:
        group = group_of(module.name)
        own = arrows.setdefault(group, {})
        for target, line in own_imports(module, known):
            if group_of(target) not in (group, ""):
                own.setdefault(group_of(target), f"{module.name}:{line}")
    return arrows


def circles(arrows: dict[str, dict[str, str]]) -> Iterator[str]:
    """One violation for each circle that a depth-first search closes. An arrow says where the import is."""
    done: set[str] = set()
    path: list[str] = []

    def walk(node: str) -> Iterator[str]:
        path.append(node)
        for target in sorted(arrows.get(node, ())):
            if target in path:
                circle = [*path[path.index(target) :], target]
                steps = (
                    f"{before} → {after} ({arrows[before][after]})" for before, after in pairwise(circle)
                )
                yield "circle: " + ", ".join(steps)
            elif target not in done:
                yield from walk(target)
        done.add(path.pop())

    for node in sorted(arrows):
        if node not in done:
            yield from walk(node)


def imports_stand_at_the_top(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        for node, is_inside in walk_with_scope(module.tree):
            if isinstance(node, ast.Import | ast.ImportFrom) and is_inside:
                yield f"{module.name}:{node.lineno} imports inside a function"
            if isinstance(node, ast.ImportFrom) and node.level:
                yield f"{module.name}:{node.lineno} imports relatively"
            if isinstance(node, ast.Call) and is_import_call(node):
                yield f"{module.name}:{node.lineno} imports by a call"


def late_imports_are_declared(modules: list[Module]) -> Iterator[str]:
    """`pkgutil.resolve_name` imports too: only what LOADED_LATE has, which nothing imports at its start."""
    for module in modules:
        uses_names = any(name == "pkgutil.resolve_name" for name, _ in imports(module))
        if uses_names and module.name not in LATE_LOADERS and module.name not in LOADED_LATE.values():
            may = sorted({*LATE_LOADERS, *LOADED_LATE.values()})
            yield f"{module.name} imports pkgutil.resolve_name; only {may} may"
        for node, is_checked_only in walk_with_type_checking(module.tree):
            if isinstance(node, ast.ImportFrom) and node.module in LOADED_LATE and not is_checked_only:
                yield f"{module.name}:{node.lineno} imports {node.module}, which is loaded late"
            if isinstance(node, ast.Constant) and str(node.value).startswith("luxx.") and uses_names:
                target = str(node.value).partition(":")[0]
                prefix = LATE_LOADERS.get(module.name)
                if LOADED_LATE.get(target) != module.name and not (prefix and target.startswith(prefix)):
                    yield f"{module.name}:{node.lineno} names {target}, which is not in LOADED_LATE"


def walk_with_type_checking(root: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it is inside `if TYPE_CHECKING:`."""
    waiting: list[tuple[ast.AST, bool]] = [(root, False)]
    while waiting:
        node, is_checked_only = waiting.pop()
        yield node, is_checked_only
        is_checked_only |= isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        waiting.extend((child, is_checked_only) for child in ast.iter_child_nodes(node))


def walk_with_scope(root: ast.AST) -> Iterator[tuple[ast.AST, bool]]:
    """Every node, and whether it is inside a function."""
    waiting: list[tuple[ast.AST, bool]] = [(root, False)]
    while waiting:
        node, is_inside = waiting.pop()
        yield node, is_inside
        is_inside |= isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        waiting.extend((child, is_inside) for child in ast.iter_child_nodes(node))


def is_import_call(call: ast.Call) -> bool:
    """An import of a module of luxx by a function call, which the rules above do not detect."""
    is_import = ast.unparse(call.func) in ("__import__", "importlib.import_module", "import_module")
    name = call.args[0] if call.args else None
    return is_import and isinstance(name, ast.Constant) and str(name.value).partition(".")[0] == "luxx"


def libraries_are_imported_in_few_modules(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        for name, line in imports(module):
            allowed = ONLY_IN.get(name.partition(".")[0])
            if allowed is None:
                continue
            if not any(module.name == owner or module.name.startswith(f"{owner}.") for owner in allowed):
                yield f"{module.name}:{line} imports {name.partition('.')[0]}; only {sorted(allowed)} may"


def files_stay_small(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        if (lines := len(module.text.splitlines())) > FILE_LINES:
            yield f"{module.name} has {lines} lines"


def folders_stay_small(modules: list[Module]) -> Iterator[str]:
    tops = {module.top for module in modules if module.top}
    if len(tops) > TOP_ENTRIES:
        yield f"luxx/ has {len(tops)} entries besides __init__.py"
    files = Counter(module.name.rpartition(".")[0] for module in modules if not module.is_package)
    for folder, count in files.items():
        # Migrations are read by their number, and only ever added.
        if count > FOLDER_FILES and folder != "luxx.infra.store.migrations.versions":
            yield f"{folder} has {count} files"


def functions_stay_small(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                body = node.body[1:] if ast.get_docstring(node) is not None else node.body
                lines = (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0
                if lines > FUNCTION_LINES:
                    yield f"{module.name}:{node.lineno} {node.name}() has {lines} lines"


def modules_have_a_docstring(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        docstring = ast.get_docstring(module.tree)
        if not docstring:
            yield f"{module.name} has no docstring that says what is in it"
        elif len(docstring.splitlines()) > DOCSTRING_LINES and module.name != "luxx.errors":
            # This docstring is exempt because it draws the tree of errors.
            yield f"{module.name}: its docstring is longer than {DOCSTRING_LINES} lines"


def files_are_named_after_their_subject(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        for bad in sorted(BAD_NAMES & set(module.name.split("."))):
            yield f"{module.name}: '{bad}' names no subject"


def class_names_have_one_meaning(modules: list[Module]) -> Iterator[str]:
    first: dict[str, str] = {}
    for module in modules:
        for node in ast.iter_child_nodes(module.tree):
            if isinstance(node, ast.ClassDef) and first.setdefault(node.name, module.name) != module.name:
                yield f"{module.name}: {first[node.name]} has a class {node.name} too"


def no_unfinished_marks(modules: list[Module]) -> Iterator[str]:
    for module in modules:
        for number, line in enumerate(module.text.splitlines(), start=1):
            if UNFINISHED.search(line):
                yield f"{module.name}:{number} has an unfinished mark"


def processes_are_started_in_one_module(modules: list[Module]) -> Iterator[str]:
    """With `start_child`, which may be cancelled."""
    for module in modules:
        for node in ast.walk(module.tree):
            is_start = isinstance(node, ast.Call) and ast.unparse(node.func).endswith("subprocess_exec")
            if is_start and module.name != "luxx.infra.children":
                yield f"{module.name}:{node.lineno} starts a process; call luxx.infra.children.start_child"


def patterns_end_at_the_end(modules: list[Module]) -> Iterator[str]:
    """Patterns for input, which the OpenAPI document repeats; patterns passed to `re` are internal."""
    for module in modules:
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
    runs_is_a_ladder,
    packages_form_no_circle,
    places_form_no_circle,
    modules_form_no_circle,
    imports_stand_at_the_top,
    late_imports_are_declared,
    libraries_are_imported_in_few_modules,
    files_stay_small,
    folders_stay_small,
    functions_stay_small,
    modules_have_a_docstring,
    files_are_named_after_their_subject,
    class_names_have_one_meaning,
    no_unfinished_marks,
    processes_are_started_in_one_module,
    patterns_end_at_the_end,
]


@pytest.fixture(scope="module")
def modules() -> list[Module]:
    return read_modules()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_luxx_follows_the_rule(modules: list[Module], rule: Rule) -> None:
    assert list(rule(modules)) == []


# --- each rule fires --------------------------------------------------------------------------------

DOCSTRING = '"""A docstring."""\n'
A, B, C = "luxx.domain.memory.service", "luxx.domain.usage.ledger", "luxx.domain.accounts.users"
LATER = "TO" + "DO"
BAD: list[tuple[Rule, dict[str, str]]] = [
    (
        imports_go_down,
        {"luxx.wire.turn": "from luxx.runs.turn.state import State", "luxx.runs.turn.state": ""},
    ),
    (imports_go_down, {A: "import luxx.api.http.authentication", "luxx.api.http.authentication": ""}),
    (imports_go_down, {A: "from luxx.runs.turn import state", "luxx.runs.turn.state": ""}),
    (
        imports_go_down,
        {"luxx.infra.store.engine": "def f():\n    from luxx.domain.memory import service", A: ""},
    ),
    (imports_go_down, {"luxx.somewhere.new": ""}),
    (imports_go_down, {"luxx": "from luxx.domain.memory import service", A: ""}),
    (
        packages_form_no_circle,
        {
            A: "import luxx.domain.usage.ledger",
            B: "import luxx.domain.memory.models",
            "luxx.domain.memory.models": "",
        },
    ),
    (
        places_form_no_circle,
        {
            "luxx.runs.log.events": "from luxx.runs.streams.channel import Channel",
            "luxx.runs.streams.channel": "",
            "luxx.runs.streams.watch": "from luxx.runs.log import pages",
            "luxx.runs.log.pages": "",
        },
    ),
    (
        places_form_no_circle,
        {
            "luxx.tools.core": "from luxx.tools.web.pages import Page",
            "luxx.tools.web.pages": "",
            "luxx.tools.web.search": "from luxx.tools.core import tool",
        },
    ),
    (
        places_form_no_circle,
        {
            "luxx.app.cli": "from luxx.app.cli.chat.session import chat",
            "luxx.app.cli.chat.session": "",
            "luxx.app.cli.chat.screen": "import luxx.app.cli",
        },
    ),
    (runs_is_a_ladder, {"luxx.runs.log.events": "import luxx.runs.turn.loop", "luxx.runs.turn.loop": ""}),
    (runs_is_a_ladder, {"luxx.runs.somewhere": ""}),
    (
        modules_form_no_circle,
        {A: "import luxx.domain.usage.ledger", B: "from luxx.domain.accounts import users", C: f"import {A}"},
    ),
    (class_names_have_one_meaning, {A: "class Name: ...", B: "class Name: ..."}),
    (imports_stand_at_the_top, {A: "def f():\n    import os"}),
    (
        imports_stand_at_the_top,
        {A: "class C:\n    async def f(self):\n        if True:\n            from os import path"},
    ),
    (imports_stand_at_the_top, {A: "from . import models"}),
    (
        imports_stand_at_the_top,
        {A: "import importlib\nhub = importlib.import_module('luxx.runs.streams.hub')"},
    ),
    (late_imports_are_declared, {A: "from pkgutil import resolve_name"}),
    (late_imports_are_declared, {A: "from luxx.app.cli.chat.rich_screen import RichScreen"}),
    (
        late_imports_are_declared,
        {
            "luxx.app.cli.chat.chat_command": "from pkgutil import resolve_name\n"
            "resolve_name('luxx.runs.streams.hub:Hub')"
        },
    ),
    (
        late_imports_are_declared,
        {"luxx.app.cli.commands": "from pkgutil import resolve_name\nresolve_name('luxx.app.serve:serve')"},
    ),
    (libraries_are_imported_in_few_modules, {A: "from aiohttp import ClientSession"}),
    (libraries_are_imported_in_few_modules, {"luxx.providers.resolver_more": "import aiohttp"}),
    (libraries_are_imported_in_few_modules, {"luxx.tools.web": "import httpx"}),
    (libraries_are_imported_in_few_modules, {"luxx.providers.openai_chat.adapter": "import openai.types"}),
    (files_stay_small, {A: "x = 1\n" * FILE_LINES}),
    (folders_stay_small, {f"luxx.top{number}": "" for number in range(TOP_ENTRIES + 1)}),
    (folders_stay_small, {f"luxx.wire.file{number}": "" for number in range(FOLDER_FILES + 1)}),
    (functions_stay_small, {A: "def f():\n" + "    x = 1\n" * (FUNCTION_LINES + 1)}),
    (
        functions_stay_small,
        {A: 'class C:\n    async def f(self):\n        """Doc."""\n' + "        x = 1\n" * 41},
    ),
    (modules_have_a_docstring, {A: "\n" * DOCSTRING_LINES}),
    (files_are_named_after_their_subject, {"luxx.domain.memory.helpers": ""}),
    (files_are_named_after_their_subject, {"luxx.utils.text": ""}),
    (no_unfinished_marks, {A: f"x = 1  # {LATER}: more"}),
    (
        processes_are_started_in_one_module,
        {A: "import asyncio\nasync def f():\n    await asyncio.create_subprocess_exec('ls')"},
    ),
    (patterns_end_at_the_end, {A: r'NAME = r"^[a-z]+$"'}),
    (patterns_end_at_the_end, {A: r'NAME = rf"^{WORD}$"'}),
    (patterns_end_at_the_end, {A: r'NAME = r"^[a-z]+\Z"'}),
]


@pytest.mark.parametrize(("rule", "files"), BAD, ids=lambda value: getattr(value, "__name__", ""))
def test_the_rule_rejects_a_bad_sample(rule: Rule, files: dict[str, str]) -> None:
    sample = [parse(name, DOCSTRING + text, is_package=name == "luxx") for name, text in files.items()]
    if rule is modules_have_a_docstring:
        unsigned = parse(A, "x = 1\n")
        endless = parse(A, '"""A docstring.\n' + "More.\n" * DOCSTRING_LINES + '"""\n')
        assert [len(list(rule([module]))) for module in (unsigned, endless)] == [1, 1]
    else:
        assert list(rule(sample)) != []


def test_a_good_sample_passes_every_rule() -> None:
    body = '    """Doc."""\n' + "    x = 1\n" * FUNCTION_LINES
    sample = [
        parse("luxx", DOCSTRING, is_package=True),
        parse(
            "luxx.app.application",
            DOCSTRING + "from luxx.domain.memory import service\nfrom luxx.runs.engine.driver import go\n",
        ),
        parse(
            A,
            DOCSTRING
            + "from luxx.domain.usage.ledger import add\nfrom luxx.domain.memory.models import Row\n"
            + f"\ndef f():\n{body}",
        ),
        parse("luxx.domain.memory.models", DOCSTRING + "from luxx.wire.turn import Step\n"),
        parse(B, DOCSTRING + "from luxx.errors import NotFound\n"),
        parse("luxx.runs.engine.driver", DOCSTRING + "from luxx.domain.usage.ledger import add\n"),
        parse("luxx.providers.transport", DOCSTRING + "import aiohttp\n"),
        parse("luxx.errors", DOCSTRING),
        parse("luxx.wire.turn", DOCSTRING + "from luxx.wire.delta import Delta\n"),
        parse("luxx.wire.event", DOCSTRING + "from luxx.wire.turn import Step\n"),
        parse("luxx.wire.delta", DOCSTRING),
    ]
    assert [violation for rule in RULES for violation in rule(sample)] == []


def test_every_module_is_read(modules: list[Module]) -> None:
    assert {"luxx.wire.turn", "luxx.infra.config.schema", "luxx.infra.store", "luxx.api.http.envelope"} <= {
        module.name for module in modules
    }
    assert len(modules) == len([f for f in (ROOT / "luxx").rglob("*.py") if "node_modules" not in f.parts])
