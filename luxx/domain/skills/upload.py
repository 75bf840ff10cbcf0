"""The files of a skill in a ZIP file, in both directions. An upload that breaks a rule is refused whole."""

import io
import re
import stat
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import PurePosixPath

import msgspec

from luxx.domain.skills.document import FILE, OTHER_FILE, public_document
from luxx.errors import InvalidInput, TooLarge
from luxx.wire.tool import skill_key

MIB = 1024 * 1024
MAX_FILES = 100
MAX_BYTES = MIB
"""Bytes of one file of a skill."""

MAX_ALL_BYTES = 10 * MIB
"""Bytes of all files of a skill, and of an upload."""

MAX_PATH = 255
MAX_ENTRIES = 1_000
"""Entries of an archive, with its folders."""

KIND = "upload_unreadable"
_FORBIDDEN = re.compile("[\x00-\x1f\x7f\\\\:]")
_LEFT_OUT = ("__MACOSX/", ".DS_Store")
"""What the archivers of some systems add."""

_READ_ERRORS = (
    zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError, OSError, EOFError,
)  # fmt: skip


class GivenFiles(msgspec.Struct, frozen=True, kw_only=True):
    """The files of a skill by their paths. `folder`: the name of the folder that had them, if there was
    one."""

    files: dict[str, bytes]
    folder: str | None = None


def read_upload(content: bytes) -> GivenFiles:
    """The files of an upload: a SKILL.md, or a ZIP file with a SKILL.md at its top or in its only folder.

    Raises InvalidInput or TooLarge with the rule that it breaks.
    """
    if len(content) > MAX_ALL_BYTES:
        raise TooLarge(f"the upload is larger than {MAX_ALL_BYTES // MIB} MB")
    if not content.startswith(b"PK"):
        return GivenFiles(files={FILE: content})
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return _without_folder(_read(archive))
    except _READ_ERRORS as error:
        raise InvalidInput("the ZIP file cannot be read; make it again", kind=KIND) from error


def _read(archive: zipfile.ZipFile) -> dict[str, bytes]:
    entries = archive.infolist()
    if len(entries) > MAX_ENTRIES:
        raise TooLarge(f"the ZIP file has more than {MAX_ENTRIES} entries")
    wanted: list[zipfile.ZipInfo] = []
    for entry in entries:
        check_path(entry.filename.removesuffix("/"))
        if stat.S_ISLNK(entry.external_attr >> 16):
            raise InvalidInput(f"{_shown(entry.filename)} is a link; put the file itself there", kind=KIND)
        if entry.flag_bits & 1:
            raise InvalidInput("the ZIP file is encrypted; make one without a password", kind=KIND)
        if not entry.is_dir() and not entry.filename.startswith(_LEFT_OUT[0]):
            wanted += [] if entry.filename.endswith(_LEFT_OUT[1]) else [entry]
    # What the archive says of its sizes may be wrong, so what is read counts, too.
    check_sizes({entry.filename: entry.file_size for entry in wanted})
    files: dict[str, bytes] = {}
    for entry in wanted:
        if entry.filename in files:
            raise InvalidInput(f"the ZIP file has {_shown(entry.filename)} twice", kind=KIND)
        with archive.open(entry) as file:
            files[entry.filename] = file.read(MAX_BYTES + 1)
        check_sizes({path: len(content) for path, content in files.items()})
    return files


def check_sizes(sizes: Mapping[str, int]) -> None:
    """Raises TooLarge for more or larger files than a skill may have."""
    if len(sizes) > MAX_FILES:
        raise TooLarge(f"a skill has at most {MAX_FILES} files; this one has more")
    for path, size in sizes.items():
        if size > MAX_BYTES:
            raise TooLarge(f"{_shown(path)} is larger than {MAX_BYTES // MIB} MB, the limit for a file")
    if sum(sizes.values()) > MAX_ALL_BYTES:
        raise TooLarge(f"the files have more than {MAX_ALL_BYTES // MIB} MB in all")


def check_path(path: str) -> None:
    """Raises InvalidInput for a path that leads out of the skill's folder, or that not every system has."""
    parts = path.split("/")
    if path.startswith("/") or ".." in parts or _FORBIDDEN.search(path):
        raise InvalidInput(
            f"{_shown(path)} is no path inside the skill; use names without .., and / between folders",
            kind=KIND,
        )
    if "" in parts or "." in parts or len(path.encode("utf-8", "replace")) > MAX_PATH:
        raise InvalidInput(f"{_shown(path)} is no usable path of a file, or too long", kind=KIND)


def check_files(files: Mapping[str, bytes]) -> None:
    """Raises InvalidInput or TooLarge for files that no upload may have."""
    for path in files:
        check_path(path)
    check_sizes({path: len(content) for path, content in files.items()})
    _checked(GivenFiles(files=dict(files)))


def _without_folder(files: dict[str, bytes]) -> GivenFiles:
    """The files as seen from the folder of the SKILL.md."""
    files = with_usual_name(files, "")
    if FILE in files:
        return _checked(GivenFiles(files=files))
    tops = {PurePosixPath(path).parts[0] for path in files}
    folder = tops.pop() if len(tops) == 1 else None
    files = with_usual_name(files, f"{folder}/")
    if folder is None or f"{folder}/{FILE}" not in files:
        raise InvalidInput(
            f"the ZIP file has no {FILE} at its top or in its only folder; upload one skill at a time",
            kind=KIND,
        )
    inside = {path.removeprefix(f"{folder}/"): content for path, content in files.items()}
    return _checked(GivenFiles(files=inside, folder=folder))


def with_usual_name(files: dict[str, bytes], folder: str) -> dict[str, bytes]:
    """The files with a skill.md of this folder as its SKILL.md, unless there is one."""
    other, usual = f"{folder}{OTHER_FILE}", f"{folder}{FILE}"
    if usual in files or other not in files:
        return files
    return {usual if path == other else path: content for path, content in files.items()}


def _checked(given: GivenFiles) -> GivenFiles:
    """Refuses names that would be the same file, or a file and a folder at once, on some systems."""
    seen: dict[str, str] = {}
    for path in given.files:
        folded = path.casefold()
        if folded in seen:
            raise InvalidInput(f"{_shown(path)} and {_shown(seen[folded])} have one name", kind=KIND)
        seen[folded] = path
    for path in given.files:
        above = {str(each).casefold() for each in PurePosixPath(path).parents}
        if above & seen.keys():
            raise InvalidInput(f"{_shown(path)} is below a file", kind=KIND)
    return given


def _shown(path: str) -> str:
    return repr(path[:80])


def zip_of(name: str, files: Mapping[str, bytes]) -> bytes:
    """A ZIP file with the skill in a folder of its name, in the form that other products accept."""
    folder = skill_key(name)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in sorted(files.items()):
            entry = zipfile.ZipInfo(f"{folder}/{path}")
            entry.external_attr = 0o644 << 16
            data = public_document(content) if path == FILE else content
            archive.writestr(entry, data, zipfile.ZIP_DEFLATED)
    return packed.getvalue()
