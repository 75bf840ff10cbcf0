"""The ZIP archive of an Office file or a book: bounded before anything is unpacked, its XML without entities.

Nothing is written to disk, so names of entries are keys and never paths of the machine.
"""

import io
import posixpath
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, cast
from urllib.parse import unquote

import lxml.html

from luxx.infra.documents.formats import Format
from luxx.infra.documents.parts import ReadProblem, UnreadableDocument

MAX_ENTRIES = 10_000
MAX_UNPACKED = 512 * 1024 * 1024
"""Bytes of all entries, as the archive declares them; an entry never gives more than it declares."""

MAX_RATIO = 200
"""How many times larger than packed the entries may be, above RATIO_FROM bytes."""

RATIO_FROM = 32 * 1024 * 1024
MAX_XML = 128 * 1024 * 1024
"""Bytes of one XML entry, whose tree takes several times as much memory."""

_ENCRYPTED_FLAG = 1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_CONTENT_TYPES = "[Content_Types].xml"
_OFFICE_TYPES = {
    "wordprocessingml.": Format.DOCX,
    "presentationml.": Format.PPTX,
    "spreadsheetml.": Format.XLSX,
}
_OPEN_TYPES = {
    "application/epub+zip": Format.EPUB,
    "application/vnd.oasis.opendocument.spreadsheet": Format.ODS,
}
_untyped: Any = cast("Any", lxml.html).etree


class XmlElement(Protocol):
    """`tag` has the namespace in braces; an entity that was not expanded has a tag that is no text."""

    tag: Any
    text: str | None
    tail: str | None

    @property
    def attrib(self) -> Mapping[str, str]: ...
    def __iter__(self) -> "Iterator[XmlElement]": ...
    def iter(self) -> "Iterator[XmlElement]": ...
    def getroottree(self) -> Any: ...


def name_of(element: XmlElement) -> str:
    """The tag without its namespace: Office files use either of two namespaces."""
    return element.tag.rpartition("}")[2] if isinstance(element.tag, str) else ""


def attribute(element: XmlElement, name: str) -> str:
    """An attribute by its name without the namespace; empty if there is none."""
    attributes = element.attrib
    if name in attributes:
        return attributes[name]
    return next((value for key, value in attributes.items() if key.endswith("}" + name)), "")


def children(element: XmlElement | None, name: str) -> Iterator[XmlElement]:
    """The children with this name."""
    return (child for child in (() if element is None else element) if name_of(child) == name)


def child(element: XmlElement | None, *path: str) -> XmlElement | None:
    """The first descendant along a path of names."""
    for name in path:
        element = next(children(element, name), None)
    return element


def descendants(element: XmlElement, name: str) -> Iterator[XmlElement]:
    """All elements below with this name, in the order of the document."""
    return (below for below in element.iter() if name_of(below) == name)


class Archive:
    """An opened archive. Every method raises UnreadableDocument for what is damaged or beyond the limits."""

    def __init__(self, data: bytes) -> None:
        try:
            self._zip = zipfile.ZipFile(io.BytesIO(data))
        except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, OSError) as error:
            raise UnreadableDocument(ReadProblem.BROKEN, "its ZIP archive is incomplete") from error
        entries = self._zip.infolist()
        _check_sizes(entries, len(data))
        self.names = {entry.filename: entry for entry in entries}

    def format(self) -> Format:
        """What the archive is. Raises UnreadableDocument for another type, and for macros and passwords."""
        if _CONTENT_TYPES in self.names:
            return self._office_format()
        kind = (
            self.read("mimetype")[:100].decode("ascii", "replace").strip() if "mimetype" in self.names else ""
        )
        if kind not in _OPEN_TYPES:
            is_open = kind.startswith("application/vnd.oasis.opendocument.")
            raise UnreadableDocument(
                ReadProblem.TYPE, "another OpenDocument file" if is_open else "a ZIP archive"
            )
        manifest = "META-INF/manifest.xml"
        if kind.endswith("spreadsheet"):
            if any(name.startswith(("Basic/", "Scripts/")) for name in self.names):
                raise UnreadableDocument(ReadProblem.MACROS)
            if manifest in self.names and b"encryption-data" in self.read(manifest):
                raise UnreadableDocument(ReadProblem.ENCRYPTED)
        return _OPEN_TYPES[kind]

    def _office_format(self) -> Format:
        root = self.xml(_CONTENT_TYPES)
        types = {attribute(one, "ContentType").lower() for one in root}
        if any("macroenabled" in kind or "vbaproject" in kind for kind in types) or any(
            name.lower().endswith("vbaproject.bin") for name in self.names
        ):
            raise UnreadableDocument(ReadProblem.MACROS)
        for mark, found in _OFFICE_TYPES.items():
            if any(mark in kind and kind.endswith("main+xml") for kind in types):
                return found
        raise UnreadableDocument(ReadProblem.TYPE, "another Office file")

    def read(self, name: str) -> bytes:
        """The bytes of an entry."""
        entry = self.names.get(name)
        if entry is None:
            raise UnreadableDocument(ReadProblem.BROKEN, f"{_shown(name)} is missing in it")
        try:
            return self._zip.read(entry)
        except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, OSError, RuntimeError) as error:
            raise UnreadableDocument(
                ReadProblem.BROKEN, f"{_shown(name)} in it cannot be unpacked"
            ) from error

    def xml(self, name: str, *, may_have_doctype: bool = False) -> XmlElement:
        """The root of an XML entry. Entities are never expanded and nothing outside is loaded."""
        entry = self.names.get(name)
        if entry is not None and entry.file_size > MAX_XML:
            raise UnreadableDocument(ReadProblem.UNPACKED, f"a part of more than {MAX_XML // 2**20} MiB")
        parser = _untyped.XMLParser(
            resolve_entities=False, no_network=True, load_dtd=False, huge_tree=False,
            remove_comments=True, remove_pis=True, collect_ids=False,
        )  # fmt: skip
        try:
            root = cast("XmlElement", _untyped.fromstring(self.read(name), parser))
        except _untyped.XMLSyntaxError as error:
            if "memory" in str(error).lower():
                raise MemoryError from error
            raise UnreadableDocument(ReadProblem.BROKEN, f"{_shown(name)} in it is not valid XML") from error
        if not may_have_doctype and root.getroottree().docinfo.doctype:
            raise UnreadableDocument(
                ReadProblem.BROKEN, f"{_shown(name)} in it has a DOCTYPE, which is not allowed there"
            )
        return root

    def optional_xml(self, name: str) -> XmlElement | None:
        """The root of an entry that a document need not have."""
        return self.xml(name) if name in self.names else None

    def targets(self, name: str) -> dict[str, tuple[str, str]]:
        """The relationships of an entry within the archive: by id, their kind and the entry."""
        folder, _, file = name.rpartition("/")
        root = self.optional_xml(f"{folder}/_rels/{file}.rels".lstrip("/"))
        found: dict[str, tuple[str, str]] = {}
        for one in () if root is None else root:
            if attribute(one, "TargetMode") != "External":
                kind = attribute(one, "Type").rpartition("/")[2]
                found[attribute(one, "Id")] = (kind, resolve(folder, attribute(one, "Target")))
        return found

    def main_entry(self) -> str:
        """The entry that an Office file begins with."""
        return next((entry for kind, entry in self.targets("").values() if kind == "officeDocument"), "")

    def title(self, name: str = "docProps/core.xml") -> str:
        """The title in the metadata; empty if there is none."""
        root = self.optional_xml(name)
        found = None if root is None else next(descendants(root, "title"), None)
        return " ".join((found.text or "").split())[:300] if found is not None else ""


def resolve(folder: str, target: str) -> str:
    """The entry that a relative or absolute reference names."""
    path = target if target.startswith("/") else f"{folder}/{target}"
    return posixpath.normpath(unquote(path.partition("#")[0])).lstrip("/")


def _check_sizes(entries: list[zipfile.ZipInfo], packed: int) -> None:
    if len(entries) > MAX_ENTRIES:
        raise UnreadableDocument(ReadProblem.UNPACKED, f"more than {MAX_ENTRIES:,} entries")
    unpacked = sum(entry.file_size for entry in entries)
    if unpacked > MAX_UNPACKED:
        raise UnreadableDocument(ReadProblem.UNPACKED, f"more than {MAX_UNPACKED // 2**20} MiB")
    if unpacked > RATIO_FROM and unpacked > MAX_RATIO * packed:
        raise UnreadableDocument(ReadProblem.UNPACKED, f"more than {MAX_RATIO} times its size")
    if any(entry.flag_bits & _ENCRYPTED_FLAG for entry in entries):
        raise UnreadableDocument(ReadProblem.ENCRYPTED)
    if any(entry.compress_type not in _METHODS for entry in entries):
        raise UnreadableDocument(ReadProblem.BROKEN, "it is packed in a way that this type of file never is")


def _shown(name: str) -> str:
    return "".join(char if char.isprintable() else "_" for char in name)[:80]
