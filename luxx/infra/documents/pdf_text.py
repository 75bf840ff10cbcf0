"""The reader process for PDF files; `reader.PdfProcess` starts it.

Standard input is the file, standard output one JSON object. The process sets limits on its memory, time and
files before it reads the file, and may be killed at any time.
"""

import io
import sys
from typing import Any

import msgspec
from pypdf import PdfReader
from pypdf.errors import PyPdfError

from luxx.infra.documents.bounds import limit, storable

MAX_PAGES = 2_000


def main() -> None:
    memory, seconds, characters, may_cut = (int(word) for word in sys.argv[1:5])
    limit(memory, seconds)
    try:
        answer = extract(characters, may_cut=bool(may_cut))
    except MemoryError:
        answer = {"error": "memory"}
    except RecursionError:
        answer = {"error": "broken"}
    except (PyPdfError, ValueError, TypeError, KeyError, IndexError, AttributeError, OSError) as error:
        # pypdf raises such errors for malformed files.
        answer = {"error": "encrypted" if "decrypt" in str(error).lower() else "broken"}
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    sys.stdout.buffer.flush()


def extract(characters: int, *, may_cut: bool) -> dict[str, Any]:
    """The text of all pages. A text of more than `characters` is cut if `may_cut`, else an error."""
    stdin = sys.stdin.buffer
    reader = PdfReader(stdin if stdin.seekable() else io.BytesIO(stdin.read()), strict=False)
    if reader.is_encrypted and not reader.decrypt(""):
        return {"error": "encrypted"}
    pieces: list[str] = []
    size = 0
    pages = len(reader.pages)
    if pages > MAX_PAGES and not may_cut:
        return {"error": "pages"}
    for number, page in enumerate(reader.pages):
        text = storable(page.extract_text())
        size += len(text) + 2
        if size > characters or number >= MAX_PAGES:
            if not may_cut:
                return {"error": "long"}
            pieces.append(text[: max(characters - size + len(text) + 2, 0)])
            break
        pieces.append(text)
    is_cut = size > characters or pages > MAX_PAGES
    return {"text": "\n\n".join(pieces), "pages": pages, "is_cut": is_cut, "title": title_of(reader)}


def title_of(reader: PdfReader) -> str:
    """The title from the file's metadata; empty if there is none."""
    metadata_title = reader.metadata.title if reader.metadata is not None else None
    return storable(metadata_title)[:300] if isinstance(metadata_title, str) else ""


if __name__ == "__main__":
    main()
