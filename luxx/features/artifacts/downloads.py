"""Formats of downloads, names of files, and the files that are texts. Pure.

Office files, PDF and pictures are in `rendering.py`.
"""

import difflib
import io
import re
import zipfile
from collections.abc import Sequence

import msgspec

from luxx.domain.files.names import safe_name
from luxx.errors import InvalidInput
from luxx.features.artifacts.reports import pages_of_files
from luxx.features.artifacts.rows import Version
from luxx.features.artifacts.sheets import to_csv
from luxx.features.artifacts.source import SourcePage, join
from luxx.features.artifacts.views import ArtifactDiff, PageChange, PageDiff
from luxx.wire.artifacts import ArtifactType

FORMATS: dict[ArtifactType, tuple[str, ...]] = {
    ArtifactType.PPT: ("pptx", "pdf", "md"),
    ArtifactType.DOCUMENT: ("docx", "pdf", "md"),
    ArtifactType.REPORT: ("pdf", "docx", "md"),
    ArtifactType.SHEET: ("xlsx", "csv"),
    ArtifactType.CODE: ("zip",),
    ArtifactType.WEB: ("html",),
    ArtifactType.CHART: ("png", "svg", "json"),
    ArtifactType.DIAGRAM: ("svg", "mmd"),
}
"""The formats of each type; the first is the default."""

TEXT_FORMATS = frozenset({"md", "csv", "zip", "html", "json", "mmd"})
"""The formats that need no renderer."""

ALL_FORMATS = tuple(sorted({one for formats in FORMATS.values() for one in formats}))
MAX_LINES = 4_000
"""Lines of a page on either side whose differences are searched; more are shown as replaced."""

_RESERVED = re.compile(r"(?i)(con|prn|aux|nul|com[0-9]|lpt[0-9])(\.|$)")
_EPOCH = (2020, 1, 1, 0, 0, 0)
"""The time of all files in a zip: the same version has the same bytes."""


class DownloadFile(msgspec.Struct, frozen=True):
    """A file as it is sent."""

    name: str
    data: bytes


def check_format(type_: ArtifactType, given: str | None) -> str:
    """The format of a download, the default one without any. Raises InvalidInput."""
    formats = FORMATS[type_]
    if given is None:
        return "mmd" if type_ == ArtifactType.DIAGRAM else formats[0]
    if given not in formats:
        problem = f"an artifact of the type {type_.value} is downloaded as {', '.join(formats)}"
        raise InvalidInput(problem, field="format", kind="format_unknown")
    return given


def file_name(name: str, extension: str) -> str:
    """A safe name for a file of an artifact, as uploads have, which is no device on Windows."""
    stem = safe_name(name)
    suffix = f".{extension}"
    if stem.lower().endswith(suffix):
        stem = stem[: -len(suffix)]
    stem = stem.rstrip(". ") or "file"
    return safe_name(f"{'_' if _RESERVED.match(stem) else ''}{stem}{suffix}")


def text_file(type_: ArtifactType, name: str, version: Version, format_: str) -> DownloadFile:
    """A download that is made of the source alone."""
    match format_:
        case "zip":
            data = zip_of(version.pages)
        case "csv":
            data = to_csv([page.text for page in version.pages]).encode()
        case _:
            data = join(type_, pages_of_files(type_, version)).encode()
    return DownloadFile(file_name(name, format_), data)


def zip_of(pages: Sequence[SourcePage]) -> bytes:
    """The files of a program; their paths were checked."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for page in pages:
            entry = zipfile.ZipInfo(page.path, date_time=_EPOCH)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, page.text.encode())
    return out.getvalue()


def diff_of(before: Version, after: Version) -> ArtifactDiff:
    """The pages that differ between two versions, by their ids."""
    old = {entry.id: index for index, entry in enumerate(before.entries)}
    new_ids = {entry.id for entry in after.entries}
    found: list[PageDiff] = []
    for index, entry in enumerate(after.entries):
        if entry.id not in old:
            added = _unified("", after.pages[index].text)
            found.append(PageDiff(index=index + 1, change=PageChange.ADDED, diff=added))
        elif before.entries[old[entry.id]] != entry:
            changed = _unified(_shown(before.pages[old[entry.id]]), _shown(after.pages[index]))
            found.append(PageDiff(index=index + 1, change=PageChange.CHANGED, diff=changed))
    for index, entry in enumerate(before.entries):
        if entry.id not in new_ids:
            removed = _unified(before.pages[index].text, "")
            found.append(PageDiff(index=index + 1, change=PageChange.REMOVED, diff=removed))
    return ArtifactDiff(pages=found)


def _shown(page: SourcePage) -> str:
    return f"{page.path}\n{page.text}" if page.path else page.text


def _unified(before: str, after: str) -> str:
    old, new = before.splitlines(), after.splitlines()
    if max(len(old), len(new)) > MAX_LINES:
        # Searching takes time that grows with the product of both.
        same = 0
        while same < min(len(old), len(new)) and old[same] == new[same]:
            same += 1
        end = 0
        while end < min(len(old), len(new)) - same and old[-1 - end] == new[-1 - end]:
            end += 1
        removed, added = old[same : len(old) - end], new[same : len(new) - end]
        head = f"@@ -{same + 1},{len(removed)} +{same + 1},{len(added)} @@"
        return "\n".join([head, *(f"-{line}" for line in removed), *(f"+{line}" for line in added)])
    return "\n".join(list(difflib.unified_diff(old, new, lineterm=""))[2:])
