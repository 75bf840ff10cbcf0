"""The reader process for PDF files; `reader.DocumentProcess` starts it.

Standard input is the file, standard output the Document, with a part for each page that has text. The process
sets limits on its memory, time and files before it reads the file, and may be killed at any time.
"""

import io
import sys

from pypdf import PdfReader
from pypdf.errors import PyPdfError

from luxx.infra.documents.bounds import limit, storable
from luxx.infra.documents.formats import Format, format_of_extension, name_warning
from luxx.infra.documents.parts import (
    NO_EXTENSION,
    Document,
    Part,
    PartWriter,
    ReadProblem,
    TextLimitReached,
    UnreadableDocument,
    encode_document,
)

MAX_PAGES = 2_000


def main() -> None:
    memory, seconds, characters, may_cut = (int(word) for word in sys.argv[1:5])
    limit(memory, seconds)
    try:
        answer = extract(characters, sys.argv[5], may_cut=bool(may_cut))
    except UnreadableDocument as problem:
        answer = Document(format=Format.PDF, error=problem.problem)
    except MemoryError:
        answer = Document(format=Format.PDF, error=ReadProblem.MEMORY)
    except RecursionError:
        answer = Document(format=Format.PDF, error=ReadProblem.BROKEN)
    except (PyPdfError, ValueError, TypeError, KeyError, IndexError, AttributeError, OSError) as error:
        # pypdf raises such errors for malformed files.
        is_encrypted = "decrypt" in str(error).lower()
        answer = Document(
            format=Format.PDF, error=ReadProblem.ENCRYPTED if is_encrypted else ReadProblem.BROKEN
        )
    sys.stdout.buffer.write(encode_document(answer))
    sys.stdout.buffer.flush()


def extract(characters: int, extension: str, *, may_cut: bool) -> Document:
    """The pages. Of a longer file the first are read if `may_cut`. Raises UnreadableDocument."""
    stdin = sys.stdin.buffer
    reader = PdfReader(stdin if stdin.seekable() else io.BytesIO(stdin.read()), strict=False)
    if reader.is_encrypted and not reader.decrypt(""):
        raise UnreadableDocument(ReadProblem.ENCRYPTED)
    pages = len(reader.pages)
    if pages > MAX_PAGES and not may_cut:
        raise UnreadableDocument(ReadProblem.PAGES)
    writer = PartWriter(characters, may_cut=may_cut)
    if extension != NO_EXTENSION:
        writer.warn(name_warning(Format.PDF, format_of_extension(extension)))
    without_text = 0
    try:
        for number, page in enumerate(reader.pages, 1):
            if number > MAX_PAGES:
                break
            text = storable(page.extract_text())
            if text.strip():
                writer.add(Part(text=text, page=number))
            else:
                without_text += 1
    except TextLimitReached:
        pass
    if without_text:
        writer.warn(f"pages without text, such as scanned ones: {without_text}")
    return Document(
        parts=writer.parts,
        format=Format.PDF,
        title=title_of(reader),
        pages=pages,
        is_cut=writer.is_cut or pages > MAX_PAGES,
        warnings=writer.warnings,
    )


def title_of(reader: PdfReader) -> str:
    """The title from the file's metadata; empty if there is none."""
    metadata_title = reader.metadata.title if reader.metadata is not None else None
    return storable(metadata_title)[:300] if isinstance(metadata_title, str) else ""


if __name__ == "__main__":
    main()
