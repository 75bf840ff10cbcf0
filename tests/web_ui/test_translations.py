"""The Chinese translations of the server's sentences belong to sentences and kinds that the server has."""

import ast
import re
from functools import cache
from pathlib import Path

import luxx
from luxx.domain.agents.shipped import shipped_documents
from luxx.web.build import WEB

CATALOG = WEB / "src" / "i18n" / "zh" / "server.ts"
# Given by name, or as the last of a tuple or call.
_KIND = re.compile(r'\bkind(?:: str)? ?= ?"(\w+)"|"(\w+)"\)?,?\n')
_TABLE = re.compile(r"^const (\w+): Record<string, string> = \{\n(.*?)^\}", re.DOTALL | re.MULTILINE)


def table(name: str) -> list[str]:
    """The keys of a table of the catalog."""
    tables = dict(_TABLE.findall(CATALOG.read_text("utf-8")))
    return re.findall(r"^  [\"']?(.+?)[\"']?: '", tables[name], re.MULTILINE)


@cache
def sources() -> list[str]:
    root = Path(luxx.__path__[0])
    folders = [folder for folder in root.iterdir() if folder.is_dir() and folder != WEB]
    paths = [*root.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))]
    return [path.read_text("utf-8") for path in paths]


def template_of(node: ast.AST) -> str:
    """The text of a constant or an f-string, with `{}` for each value; empty for all else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(
                template_of(value) if isinstance(value, ast.Constant) else "{}" for value in values
            )
        case _:
            return ""


def plain(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:].removesuffix(".")


def test_each_translated_sentence_is_one_of_the_server() -> None:
    written = {plain(template_of(node)) for text in sources() for node in ast.walk(ast.parse(text))}
    written |= {plain(document.role) for document in shipped_documents().values()}
    page = (WEB / "src" / "api" / "client.ts").read_text("utf-8")
    translated = table("SENTENCES")
    assert len(translated) > 150
    unknown = [
        one for one in translated if one not in written and one.split("{}")[0].strip() not in page.lower()
    ]
    assert unknown == []


def test_each_translated_kind_is_one_of_the_server() -> None:
    known = {kind for text in sources() for pair in _KIND.findall(text) for kind in pair if kind}
    kinds = table("KINDS")
    assert len(kinds) > 30
    assert [kind for kind in kinds if kind not in known] == []
