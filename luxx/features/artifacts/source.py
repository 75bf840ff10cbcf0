"""The source of artifacts: text divided into pages, and pages joined to text. Pure; no rows, no files.

Decks are divided at lines `---`, documents and reports before `#` headings, neither of them in fenced code. A
sheet has a page for each sheet, code one for each file; other types have one page. `split` of what `join`
returns is the same pages.
"""

import re
import unicodedata
from collections.abc import Sequence

import msgspec

from luxx.errors import InvalidInput, TooLarge
from luxx.features.artifacts.sheets import Workbook, read_sheet, read_workbook
from luxx.infra.documents.code_fences import fence_after
from luxx.infra.documents.render.chart_spec import read_chart
from luxx.infra.strict_json import decode_strict
from luxx.wire.artifacts import ArtifactType

MARKDOWN = frozenset({ArtifactType.PPT, ArtifactType.DOCUMENT, ArtifactType.REPORT})
"""The types whose source is Markdown."""

PAGED = MARKDOWN | {ArtifactType.SHEET, ArtifactType.CODE}
"""The types that can have several pages."""

PATH_LENGTH = 200
MAX_DEPTH = 10
"""Folders in the path of a file of code."""

SEPARATOR = "---"
_HEADING = re.compile(r" {0,3}#(?:[ \t]|$)")
_SEPARATOR = re.compile(r" {0,3}---[ \t]*")
# Tabs and line feeds stay; lone surrogates have no encoding.
_REMOVED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_LINE_ENDS = re.compile(r"\r\n?|\x85|\u2028|\u2029")
_BAD_IN_PATH = frozenset('\\:*?"<>|')
_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")
"""Names of devices on Windows, with any extension."""


class SourcePage(msgspec.Struct, frozen=True):
    """A page; `path` is that of a file of code, and empty for other types."""

    text: str
    path: str = ""


class SourceFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of code: its path with `/` between folders, and its text."""

    path: str
    content: str


def size_of(pages: Sequence[SourcePage]) -> int:
    """The bytes of the texts, as they are stored."""
    return sum(len(page.text.encode()) for page in pages)


class SourceLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The configured limits: pages, and kilobytes (1,024 bytes) of text."""

    max_pages: int
    max_source_kb: int

    def check(self, pages: Sequence[SourcePage]) -> None:
        """Raises TooLarge."""
        if len(pages) > self.max_pages:
            raise TooLarge(
                f"an artifact has at most {self.max_pages} pages (artifacts.max_pages); this one would have "
                f"{len(pages)}; leave some out, or make several artifacts",
                kind="too_many_pages",
            )
        size = size_of(pages) + sum(len(page.path.encode()) for page in pages)
        if size > self.max_source_kb * 1024:
            raise TooLarge(
                f"the source of an artifact has at most {self.max_source_kb} KB (artifacts.max_source_kb); "
                f"this one has {size // 1024 + 1}",
                kind="source_too_large",
            )


def clean(text: str) -> str:
    """The text with line feeds as line ends, and without control characters and lone surrogates."""
    return _REMOVED.sub("", _LINE_ENDS.sub("\n", text))


def split(type_: ArtifactType, content: str, name: str = "") -> list[SourcePage]:
    """The pages of a text. Raises InvalidInput for an empty text, and for what is no sheet, chart or list of
    files. `name`: of the artifact, for a program that is one text."""
    text = clean(content)
    if not text.strip():
        raise InvalidInput("the content is empty", field="$.content", kind="source_empty")
    match type_:
        case ArtifactType.PPT:
            return [SourcePage(page) for page in _slides(text)]
        case ArtifactType.DOCUMENT | ArtifactType.REPORT:
            return [SourcePage(page) for page in _sections(text)]
        case ArtifactType.SHEET:
            return [SourcePage(page) for page in read_workbook(text)]
        case ArtifactType.CODE:
            return _files(text, name)
        case ArtifactType.CHART:
            return [SourcePage(check_chart(text))]
        case ArtifactType.WEB | ArtifactType.DIAGRAM:
            return [SourcePage(_trimmed(text) + "\n")]


def join(type_: ArtifactType, pages: Sequence[SourcePage]) -> str:
    """The text of pages, which `split` divides into the same pages."""
    match type_:
        case ArtifactType.PPT:
            return f"\n\n{SEPARATOR}\n\n".join(page.text for page in pages) + "\n"
        case ArtifactType.DOCUMENT | ArtifactType.REPORT:
            return "\n\n".join(page.text for page in pages) + "\n"
        case ArtifactType.SHEET:
            return encode_json({"sheets": [msgspec.json.decode(page.text) for page in pages]})
        case ArtifactType.CODE:
            return encode_json({"files": [{"path": page.path, "content": page.text} for page in pages]})
        case ArtifactType.CHART | ArtifactType.WEB | ArtifactType.DIAGRAM:
            return pages[0].text


def pages_of_page(type_: ArtifactType, content: str, path: str = "") -> list[SourcePage]:
    """The pages that the text of one page stands for: several where it has the end of a page in it.

    Raises InvalidInput.
    """
    if type_ == ArtifactType.CODE:
        return [SourcePage(clean(content), path)]
    if type_ == ArtifactType.SHEET:
        text = clean(content)
        if '"sheets"' in text[:40]:
            return split(type_, content)
        return [SourcePage(read_sheet(text))]
    return split(type_, content)


def as_one_page(type_: ArtifactType, content: str, before: str) -> list[SourcePage]:
    """The page that replaces `before` and nothing else, whatever ends of pages the text has.

    A model that was asked for one slide may answer with two, or leave out the heading of its section.
    """
    pages = pages_of_page(type_, content)
    if type_ == ArtifactType.PPT:
        return [SourcePage("\n\n".join(page.text for page in pages))]
    if type_ not in MARKDOWN:
        return pages[:1]
    parts = [page.text for page in pages]
    heading = before.split("\n", 1)[0]
    if _HEADING.match(heading) and not _HEADING.match(parts[0]):
        parts.insert(0, heading)
    # A further section of the same level would be a page of its own.
    first, *others = parts
    starts = 1 if _HEADING.match(first) else 0
    others = [f"#{part.lstrip()}" if index >= starts - 1 and _HEADING.match(part) else part
              for index, part in enumerate(others)]  # fmt: skip
    return [SourcePage("\n\n".join([first, *others]))]


def normalised(type_: ArtifactType, pages: Sequence[SourcePage]) -> list[SourcePage]:
    """The pages as `split` reads their text: one whose heading was removed belongs to the one before it.

    Raises InvalidInput if nothing is left, and for files or sheets with the same name.
    """
    if not pages:
        raise InvalidInput("an artifact has at least one page; delete the artifact instead")
    if type_ in MARKDOWN:
        return split(type_, join(type_, pages))
    if type_ == ArtifactType.CODE:
        check_paths([page.path for page in pages])
    if type_ == ArtifactType.SHEET:
        check_sheet_names(pages)
    return list(pages)


def check_sheet_names(pages: Sequence[SourcePage]) -> None:
    """Raises InvalidInput for two sheets of the same name."""
    Workbook.check_names([str(msgspec.json.decode(page.text)["name"]) for page in pages])


def pages_of_files(files: Sequence[SourceFile]) -> list[SourcePage]:
    """The pages of the files of a program, in their order. Raises InvalidInput."""
    if not files:
        raise InvalidInput("a program needs at least one file", field="$.files", kind="source_empty")
    check_paths([file.path for file in files])
    return [SourcePage(clean(file.content), file.path) for file in files]


def check_paths(paths: Sequence[str]) -> None:
    """Raises InvalidInput for a path that leaves the folder, that some system cannot store, or that is equal
    to another one but for case."""
    seen: set[str] = set()
    for index, path in enumerate(paths):
        field = f"$.files[{index}].path"
        if (problem := _problem_of(path)) is not None:
            raise InvalidInput(f"the path {path[:80]!r} {problem}", field=field, kind="path_refused")
        folded = unicodedata.normalize("NFC", path).casefold()
        if folded in seen:
            problem = "is in the list twice (upper and lower case are the same on some systems)"
            raise InvalidInput(f"the path {path[:80]!r} {problem}", field=field, kind="path_refused")
        seen.add(folded)
    for folded in seen:
        parts = folded.split("/")
        if any("/".join(parts[:end]) in seen for end in range(1, len(parts))):
            raise InvalidInput(f"the path {folded[:80]!r} is below another file", kind="path_refused")


def _problem_of(path: str) -> str | None:
    parts = path.split("/")
    if not path or len(path) > PATH_LENGTH or len(parts) > MAX_DEPTH:
        return f"needs 1 to {PATH_LENGTH} characters and at most {MAX_DEPTH - 1} folders"
    if any(part in ("", ".", "..") for part in parts):
        return "must be relative, such as src/main.py, without empty parts, . and .."
    if any(unicodedata.category(char) in ("Cc", "Cf", "Cs", "Zl", "Zp") for char in path):
        return "has a character that is not shown"
    if _BAD_IN_PATH & set(path):
        return 'has one of the characters \\ : * ? " < > |, which not every system can store'
    if any(_RESERVED.fullmatch(part) or part[-1] in ". " or part[0] == " " for part in parts):
        return "has a part that not every system can store: a device name, or one that ends in a dot or space"
    return None


def _files(text: str, name: str) -> list[SourcePage]:
    """The files of `{"files": [{path, content}]}`, or a program that is one text."""
    if text.lstrip().startswith("{") and '"files"' in text[:200]:
        try:
            files = msgspec.convert(decode_strict(text.encode()), dict[str, list[SourceFile]])
        except (ValueError, RecursionError) as error:
            raise InvalidInput(
                f'the content is no list of files {{"files": [{{"path", "content"}}]}}: {error}',
                field="$.content",
                kind="source_invalid",
            ) from error
        return pages_of_files(files.get("files", []))
    path = unicodedata.normalize("NFC", name).replace("/", "_").replace("\\", "_").strip()
    return [SourcePage(text, path if _problem_of(path) is None else "main.txt")]


def check_chart(text: str) -> str:
    """The canonical JSON of a chart. Raises InvalidInput for what is none."""
    try:
        value = decode_strict(text.encode())
        read_chart(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            f"a chart is one JSON object {{type, labels, series: [{{name, values}}]}}: {error}",
            field="$.content",
            kind="source_invalid",
        ) from error
    return encode_json(value)


def encode_json(value: object) -> str:
    """JSON with an indentation that people read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode() + "\n"


def _trimmed(text: str) -> str:
    """The text without empty lines around it, nor spaces at its end."""
    lines = text.rstrip().split("\n")
    while lines and not lines[0].strip():
        del lines[0]
    return "\n".join(lines)


def _slides(text: str) -> list[str]:
    pages: list[list[str]] = [[]]
    open_fence = ""
    for line in text.split("\n"):
        open_fence, is_code = fence_after(open_fence, line)
        if not is_code and _SEPARATOR.fullmatch(line):
            pages.append([])
        else:
            pages[-1].append(line)
    return _written(pages, open_fence)


def _sections(text: str) -> list[str]:
    pages: list[list[str]] = [[]]
    open_fence = ""
    for line in text.split("\n"):
        open_fence, is_code = fence_after(open_fence, line)
        if not is_code and _HEADING.match(line):
            pages.append([])
        pages[-1].append(line)
    return _written(pages, open_fence)


def _written(pages: list[list[str]], open_fence: str) -> list[str]:
    """The texts of the pages that have one. Code that is open is closed: it would take in the next page."""
    if open_fence:
        pages[-1] = [*_trimmed("\n".join(pages[-1])).split("\n"), open_fence]
    written = [text for page in pages if (text := _trimmed("\n".join(page)))]
    if not written:
        raise InvalidInput("the content has no page with text", field="$.content", kind="source_empty")
    return written
