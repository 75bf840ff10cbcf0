"""The text of one PDF, in a process of its own that may be killed: stdin is the file, stdout the answer.

Started by path from `pdf.py`; it knows nothing of Luxx. A PDF is a program of sorts: before it is
looked at, the process limits its own memory, time and files. One JSON object is the answer.
"""

import json
import logging
import os
import resource
import sys
import warnings
from typing import Any

from pypdf import PdfReader
from pypdf.errors import PyPdfError

MAX_PAGES = 2_000


def main() -> None:
    memory, seconds, characters = (int(word) for word in sys.argv[1:4])
    limit(memory, seconds)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    try:
        answer = extract(characters)
    except MemoryError:
        answer = {"error": "memory"}
    except RecursionError:
        answer = {"error": "broken"}
    except (PyPdfError, ValueError, TypeError, KeyError, IndexError, AttributeError, OSError) as error:
        # The library raises what its code runs into when a file is not what it claims to be.
        answer = {"error": "encrypted" if "decrypt" in str(error).lower() else "broken"}
    sys.stdout.buffer.write(json.dumps(answer).encode())
    sys.stdout.buffer.flush()


def limit(memory: int, seconds: int) -> None:
    """Past these the kernel refuses or kills; core dumps and writing files are off; others go first."""
    os.nice(10)
    wanted = {
        resource.RLIMIT_AS: memory,
        resource.RLIMIT_CPU: seconds,
        resource.RLIMIT_FSIZE: 0,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: 16,
        resource.RLIMIT_NPROC: 0,  # for some filters the library would start a program
    }
    for kind, most in wanted.items():
        resource.setrlimit(kind, (most, most))


def extract(characters: int) -> dict[str, Any]:
    """The text of all pages, up to `characters`."""
    reader = PdfReader(sys.stdin.buffer, strict=False)
    if reader.is_encrypted and not reader.decrypt(""):
        return {"error": "encrypted"}
    pieces: list[str] = []
    size = 0
    pages = len(reader.pages)
    if pages > MAX_PAGES:
        return {"error": "pages"}
    for page in reader.pages:
        text = storable(page.extract_text())
        size += len(text) + 2
        if size > characters:
            return {"error": "long"}
        pieces.append(text)
    return {"text": "\n\n".join(pieces), "pages": pages}


def storable(text: str) -> str:
    """Without what no JSON and no database takes: NUL and halves of characters."""
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return whole.replace("\0", "")


if __name__ == "__main__":
    main()
