"""The translations of the server's sentences belong to sentences and kinds that the server has."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest
from playwright.sync_api import expect

import luxx
from luxx.domain.agents.document import shipped_documents
from luxx.providers.scripted import Call, Rule, Script, Text, When
from luxx.web.build import WEB
from web_ui.person import Person

LANGUAGES = sorted(
    path.parent.name for path in (WEB / "src" / "i18n").glob("*/server.ts") if path.parent.name != "en"
)
# The words for rows that users own, which stand in sentences about all such rows (`domain/owned.py`).
_NOUN = re.compile(r'\b(?:noun|short) ?= ?"([^"]+)"')
_PLACES_OF_NOUNS = ("self.noun", "self.word", "article")
# Given by name, or as the last of a tuple or call.
_KIND = re.compile(r'\bkind(?:: str)? ?= ?"(\w+)"|"(\w+)"\)?,?\n')
_TABLE = re.compile(
    r"^(?:export )?const (\w+): Record<string, string> = \{\n(.*?)^\}", re.DOTALL | re.MULTILINE
)


def table(language: str, name: str) -> list[str]:
    """The keys of the tables of the language whose names begin so."""
    folder = WEB / "src" / "i18n" / language
    catalogs = [folder / "server.ts", *sorted((folder / "sentences").glob("*.ts"))]
    tables = [found for path in catalogs for found in _TABLE.findall(path.read_text("utf-8"))]
    bodies = [body for found, body in tables if found.startswith(name)]
    return [key for body in bodies for key in re.findall(r"^  [\"']?(.+?)[\"']?: '", body, re.MULTILINE)]


@cache
def sources() -> list[str]:
    root = Path(luxx.__path__[0])
    folders = [folder for folder in root.iterdir() if folder.is_dir() and folder != WEB]
    paths = [
        *root.glob("*.py"),
        *WEB.glob("*.py"),
        *(path for folder in folders for path in folder.rglob("*.py")),
    ]
    return [path.read_text("utf-8") for path in paths]


def template_of(node: ast.AST) -> str:
    """The text of a constant or an f-string, with `{}` for each value; empty for all else."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(map(template_of, values))
        case ast.FormattedValue(value=value):
            source = ast.unparse(value)
            return f"{{{source.removeprefix('self.')}}}" if source in _PLACES_OF_NOUNS else "{}"
        case _:
            return ""


def with_nouns(sentence: str) -> list[str]:
    """The sentence for each kind of row that it may be about."""
    if not re.search(r"\{(noun|word)\}", sentence):
        return [sentence]
    nouns = sorted({noun for text in sources() for noun in _NOUN.findall(text)})
    filled = [
        re.sub(r"\{(noun|word)\}", noun, sentence).replace("{article}", "an" if noun[0] in "aeiou" else "a")
        for noun in nouns
    ]
    return [re.sub(r"\{\w+\}", "{}", one) for one in filled]


def plain(sentence: str) -> str:
    """As the tables have it: without a full stop, with a small letter unless an abbreviation begins it."""
    first = sentence[:1] if sentence[1:2].isupper() else sentence[:1].lower()
    return first + sentence[1:].removesuffix(".")


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_translated_sentence_is_one_of_the_server(language: str) -> None:
    templates = {template_of(node) for text in sources() for node in ast.walk(ast.parse(text))}
    written = {plain(sentence) for template in templates for sentence in with_nouns(template)}
    written |= {plain(document.role) for document in shipped_documents().values()}
    # Before the fields that are wrong: one, one with its problem, or several.
    endings = (": {}", ": {}: {}", ": {}{}")
    written |= {f"{sentence}{ending}" for sentence in written for ending in endings}
    page = (WEB / "src" / "api" / "client.ts").read_text("utf-8")
    translated = table(language, "SENTENCES")
    assert len(translated) > 300
    # The wrong fields of a request stand behind a sentence about the whole.
    unknown = [
        one
        for one in translated
        if one not in written
        and re.sub(r"(: \{\})+(\{\})?$", "", one) not in written
        and one.split("{}")[0].strip() not in page.lower()
    ]
    assert unknown == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_each_translated_kind_is_one_of_the_server(language: str) -> None:
    known = {kind for text in sources() for pair in _KIND.findall(text) for kind in pair if kind}
    kinds = table(language, "KINDS")
    assert len(kinds) > 30
    assert [kind for kind in kinds if kind not in known] == []


@pytest.fixture(scope="module")
def script() -> Script:
    call = Call(name="python_eval", arguments={"expression": "2 + 2"})
    return Script(
        rules=[Rule(when=When(has_tool_result=False), reply=[call]), Rule(reply=[Text(text="四。")])]
    )


TASK_FILE = """format: luxx.task
version: 1
name: Shed
goals: Build it
steps:
  - {id: a, name: Measure, required_tools: [web_serch]}
  - {id: b, name: Paint, depends_on: [c]}
"""


def test_a_chinese_page_asks_and_refuses_in_chinese(person: Person) -> None:
    person.put("/permissions/rules?scope=user", [{"tool": "python_eval", "action": "ask"}])
    with person.tab() as tab:
        tab.page.add_init_script("localStorage.setItem('luxx.language', 'zh')")
        tab.expected_problems.append("400")
        page = tab.open("/ui/chat?new")
        page.get_by_label("添加附件").last.set_input_files(
            [{"name": "a.bin", "mimeType": "application/octet-stream", "buffer": b"\x7fELF\xff\xfe"}]
        )
        expect(page.get_by_text("无法附加 a.bin：它不是 UTF-8 文本", exact=False)).to_be_visible()
        page.get_by_role("button", name="移除 a.bin").click()
        page.get_by_label("消息", exact=True).fill("算一算")
        page.get_by_role("button", name="发送").click()
        question = page.get_by_role("region", name="可以用这些参数运行 python_eval 吗？")
        expect(question).to_contain_text("低风险")
        expect(question).to_contain_text("询问原因：用户的第 1 条规则：ask python_eval(*)。")
        question.get_by_role("button", name="仅此一次").click()
        expect(page.get_by_role("article", name="回答")).to_contain_text("四。")
        page = tab.open("/ui/tools/all")
        page.get_by_role("button", name="file_read 读取").click()
        expect(page.get_by_text("从第 offset 行（从 0 数起）开始").last).to_be_visible()
        expect(page.get_by_text("相对于工作区的路径")).to_be_visible()
        page.get_by_role("button", name="process_data 转换").click()
        expect(page.get_by_text("slice: 从 start 到 end 之前的项 (start=0, end=null)").last).to_be_visible()
        page = tab.open("/ui/tasks")
        page.locator("input[type=file]").set_input_files(
            [{"name": "shed.yaml", "mimeType": "application/yaml", "buffer": TASK_FILE.encode()}]
        )
        tray = page.get_by_role("region", name="通知")
        for problem in (
            "goals: 没有此项；是否是 goal？",
            "goal: 此项必填，必须是：1 至 10,000 个字符的文字，即至少有一个可见字符的文字。",
            "没有名为 web_serch 的工具；请从工具列表中选择。",
            "步骤 'b' 依赖 'c'，而此任务没有这个步骤。",
        ):
            expect(tray).to_contain_text(problem)
