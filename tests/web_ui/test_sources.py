"""The sources of the web UI: the types of the API are current, the tests of vitest pass, pages are small."""

import json
from collections import Counter
from typing import Any

import pytest

from luxx.web.build import DIST, MANIFEST_NAME, WEB, run_script
from web_ui.api_types import TYPES, api_shape, first_line


def test_the_types_of_the_api_are_generated_from_the_present_document() -> None:
    assert TYPES.read_text("utf-8").startswith(first_line(api_shape())), "run make ui-types"


@pytest.mark.heavy
@pytest.mark.timeout(600)
def test_the_tests_of_the_sources_pass() -> None:
    assert run_script("test") == 0


FOLDER_FILES = 25


def test_folders_stay_small() -> None:
    files = Counter(path.parent for path in (WEB / "src").rglob("*") if path.is_file())
    assert files
    assert {folder: count for folder, count in files.items() if count > FOLDER_FILES} == {}


def test_the_lock_file_names_no_registry() -> None:
    assert "resolved" not in (WEB / "package-lock.json").read_text("utf-8")


ENTRY_KB = 130
CHAT_KB = 210
"""With the entry."""

PAGE_KB = 80
"""Of every other page, and of every part of an artifact that is loaded later, besides the entry and what it
shares with the chat."""


def loaded_files(manifest: dict[str, Any], source: str) -> set[str]:
    """The scripts that a file of the UI loads, without those that it loads later."""
    files: set[str] = set()
    waiting = [source]
    while waiting:
        entry = manifest[waiting.pop()]
        if entry["file"] not in files:
            files.add(entry["file"])
            waiting.extend(entry.get("imports", ()))
    return files


def kilobytes(files: set[str]) -> float:
    return sum((DIST / f"{file}.gz").stat().st_size for file in files if file.endswith(".js")) / 1000


def test_the_page_is_small(built_ui: None) -> None:
    manifest = json.loads((DIST / MANIFEST_NAME).read_bytes())
    entry = loaded_files(manifest, "index.html")
    assert kilobytes(entry) <= ENTRY_KB
    assert not {manifest["index.html"]["file"]} & loaded_files(manifest, "diagram.html")
    pages = {
        name
        for name in manifest
        if name.startswith(("src/pages/", "src/components/artifacts/"))
        and manifest[name].get("isDynamicEntry")
    }
    (chat_page,) = (name for name in manifest if name.startswith("_chat-"))
    chat = entry | loaded_files(manifest, chat_page)
    print(f"entry {kilobytes(entry):.0f} kB, with the chat {kilobytes(chat):.0f} kB")
    assert kilobytes(chat) <= CHAT_KB
    for page in pages:
        assert kilobytes(loaded_files(manifest, page) - chat) <= PAGE_KB, page
    # No other area loads the chat. It would for a small module that the two share (vite.config.ts).
    preloaded = json.loads((DIST / "preloaded.json").read_bytes())
    of_chat = manifest[chat_page]["file"]
    assert [area for area, files in preloaded.items() if of_chat in files] == ["chat"]
